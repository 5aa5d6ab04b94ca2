"""The packed input of the encoder: pixel rows and grids of many images, one self-checking object.

Letters: N images in a pack, T patches (tokens) in a pack, P values in a patch (patch_size**2 * 3).

NumPy only: the process that makes packs and the process that encodes them both import this module.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from encoder.causes import image_name
from encoder.diagnosis import PackMismatchError, diagnose
from encoder.geometry import Geometry
from encoder.pack_layout import NUM_CHANNELS

__all__ = ["PackMismatchError", "PackedBatch", "check_packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Patches of N images, one image after the other, without padding.

    `cu_seqlens` counts the rows as they were written into the pack and is never computed from
    `spatial_shapes`: two independent records are what makes the check mean something.

    Raises PackMismatchError at construction where the fields disagree.
    """

    pixel_values: NDArray[np.uint8]  # [T, P], patches row-major, channel fastest
    spatial_shapes: NDArray[np.int64]  # [N, 2] (h, w) in patches
    cu_seqlens: NDArray[np.int32]  # [N + 1], rows of image i are cu_seqlens[i]:cu_seqlens[i + 1]
    source_sizes: NDArray[np.int64]  # [N, 2] (height, width) in pixels, after EXIF orientation
    ids: tuple[Hashable, ...]  # [N]

    def __post_init__(self) -> None:
        self.check()

    @property
    def num_images(self) -> int:
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        return int(self.pixel_values.shape[0])

    def part(self, first: int, last: int) -> "PackedBatch":
        """The pack of the images first:last, as views of this pack's arrays."""
        start, stop = self.cu_seqlens[[first, last]].tolist()
        return PackedBatch(
            pixel_values=self.pixel_values[start:stop],
            spatial_shapes=self.spatial_shapes[first:last],
            cu_seqlens=self.cu_seqlens[first : last + 1] - np.int32(start),
            source_sizes=self.source_sizes[first:last],
            ids=self.ids[first:last],
        )

    def check(self) -> None:
        """None; raises PackMismatchError naming the first id whose rows and grid disagree.

        Pickling does not check: whoever receives a pack does.
        """
        _check_types(self)
        _check_images(self)
        lengths, shapes = np.diff(self.cu_seqlens), self.spatial_shapes
        sound = (
            self.pixel_values.shape[1] == self._patch_size**2 * NUM_CHANNELS
            and shapes.shape == (self.num_images, 2)
            and bool((shapes > 0).all())
            and bool((shapes <= self.num_tokens).all())  # so that no product overflows
            and bool((shapes[:, 0] * shapes[:, 1] == lengths).all())
            and int(self.cu_seqlens[-1]) == self.num_tokens
        )
        if not sound:
            self._raise_fault()

    def check_grids(self, geometry: Geometry) -> None:
        """None; raises PackMismatchError where a grid is not what its source size becomes.

        A grid whose rows and columns are swapped shows, unless the source is square: no record of
        a pack could tell. The same holds for two images of equal grids that are exchanged.
        """
        right = geometry.grids(self.source_sizes) == self.spatial_shapes
        if self._patch_size == geometry.patch_size and right.all():
            return
        if geometry.square is not None:
            self._raise_not_square(geometry, right)
        self._raise_fault(patch_size=geometry.patch_size, max_num_patches=geometry.max_num_patches)

    @property
    def _patch_size(self) -> int:
        return math.isqrt(self.pixel_values.shape[1] // NUM_CHANNELS)

    def _raise_not_square(self, geometry: Geometry, right: NDArray[np.bool_]) -> NoReturn:
        grid, size = geometry.grid(1, 1), geometry.patch_size
        found = f"the patches are of {self._patch_size} px"
        if (bad := _first(~right.all(axis=1))) is not None:
            name, wrong = image_name(self.ids, bad), tuple(self.spatial_shapes[bad].tolist())
            found = f"{name} has the grid {wrong}"
        raise PackMismatchError(
            f"Every image must be resized to {geometry.square} x {geometry.square} px, the grid "
            f"{grid} at patch_size {size}, whatever its size: {found}."
        )

    def _raise_fault(
        self, *, patch_size: int | None = None, max_num_patches: int | None = None
    ) -> NoReturn:
        fault = diagnose(
            self.pixel_values,
            self.spatial_shapes,
            lengths=np.diff(self.cu_seqlens),
            keys=self.ids,
            source_sizes=self.source_sizes,
            max_num_patches=max_num_patches,
            patch_size=patch_size,
        )
        raise PackMismatchError(fault or "The pack is inconsistent, but no fault could be named.")


def check_packed(
    pixel_values: Any,
    spatial_shapes: Any,
    *,
    lengths: Any = None,
    keys: Sequence[Hashable] | None = None,
    source_sizes: Any = None,
    max_num_patches: int | None = None,
    patch_size: int = 16,
) -> None:
    """None when packed patches and their grids agree; says as much as the input allows when not.

    Takes NumPy arrays, tensors of other libraries on any device, or nested lists; pixels are not
    copied. `pixel_values` [T, P] or [1, T, P], any dtype; `spatial_shapes` [N, 2] integers, (h, w)
    in patches; `lengths` [N], the rows that were really written for each image; `keys` [N], names
    for the message; `source_sizes` [N, 2], (height, width) in pixels of the images as they were
    given to the resize. Lengths tell which image is at fault. Source sizes show swapped rows and
    columns and exchanged images, whose totals agree; with `max_num_patches` every grid is held to
    the target grid of its source. Of square sources nobody can tell: a grid that is swapped is
    the same grid, and two of them exchanged are in order as far as grids go.

    Raises PackMismatchError. Where totals differ it begins with the sentence that packed SigLIP2
    encoders print; what follows names the image, both numbers and the likely cause.
    """
    fault = diagnose(
        pixel_values,
        spatial_shapes,
        lengths=lengths,
        keys=keys,
        source_sizes=source_sizes,
        max_num_patches=max_num_patches,
        patch_size=patch_size,
    )
    if fault is not None:
        raise PackMismatchError(fault)


def _check_types(batch: PackedBatch) -> None:
    for name, ndim, dtype in (
        ("pixel_values", 2, np.uint8),
        ("spatial_shapes", 2, np.int64),
        ("cu_seqlens", 1, np.int32),
        ("source_sizes", 2, np.int64),
    ):
        array = getattr(batch, name)
        if not isinstance(array, np.ndarray) or array.ndim != ndim or array.dtype != dtype:
            found = f"{getattr(array, 'dtype', type(array).__name__)} {np.shape(array)}"
            raise PackMismatchError(
                f"{name} of a pack must be a {ndim}-d {np.dtype(dtype).name} NumPy array, "
                f"found {found}."
            )


def _check_images(batch: PackedBatch) -> None:
    """None where cu_seqlens, source_sizes and ids each describe N images."""
    ids, cu_seqlens, sizes = batch.ids, batch.cu_seqlens, batch.source_sizes
    if len(cu_seqlens) != len(ids) + 1:
        raise PackMismatchError(
            f"cu_seqlens must hold N + 1 = {len(ids) + 1} values for {len(ids)} ids, "
            f"found {len(cu_seqlens)}."
        )
    if cu_seqlens[0] != 0:
        raise PackMismatchError(f"cu_seqlens must start at 0, found {cu_seqlens[0]}.")
    if (bad := _first(cu_seqlens[1:] <= cu_seqlens[:-1])) is not None:
        raise PackMismatchError(
            f"cu_seqlens must be strictly increasing, {image_name(ids, bad)} has the rows "
            f"{cu_seqlens[bad]}:{cu_seqlens[bad + 1]}."
        )
    if sizes.shape != (len(ids), 2):
        raise PackMismatchError(
            f"source_sizes must be [N, 2], (height, width) in pixels, found {sizes.shape} "
            f"for {len(ids)} ids."
        )
    if (bad := _first((sizes < 1).any(axis=1))) is not None:
        raise PackMismatchError(
            f"source_sizes must be positive, (height, width) in pixels, {image_name(ids, bad)} "
            f"has {tuple(sizes[bad].tolist())}."
        )
    if len(set(ids)) != len(ids):
        twice = next(index for index, key in enumerate(ids) if key in ids[:index])
        raise PackMismatchError(f"ids must be distinct, {image_name(ids, twice)} came before.")


def _first(wrong: Any) -> int | None:
    return int(np.argmax(wrong)) if np.any(wrong) else None

"""The packed input of the encoder: pixel rows and grids of many images in one object that checks itself.

Letters: N images in a pack, T patches (tokens) in a pack, P values in a patch (patch_size**2 * 3).

NumPy only: the process that makes packs and the process that encodes them both import this module.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder.diagnosis import NUM_CHANNELS, PackMismatchError, diagnose
from encoder.grid import target_grids

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

    def check(self) -> None:
        """None; raises PackMismatchError naming the first id whose rows and grid disagree."""
        _check_layout(self)
        lengths = np.diff(self.cu_seqlens.astype(np.int64))
        products = self.spatial_shapes[:, 0] * self.spatial_shapes[:, 1]
        sound = (
            len(self.spatial_shapes) == len(lengths)
            and bool((self.spatial_shapes > 0).all())
            and bool((lengths == products).all())
            and int(lengths.sum()) == self.num_tokens
        )
        if not sound:
            self._diagnose()

    def check_grids(self, *, patch_size: int, max_num_patches: int) -> None:
        """None; raises PackMismatchError where a grid is not the target grid of its source size."""
        expected = target_grids(
            self.source_sizes, patch_size=patch_size, max_num_patches=max_num_patches
        )
        if (
            self.pixel_values.shape[1] != patch_size**2 * NUM_CHANNELS
            or (expected != self.spatial_shapes).any()
        ):
            self._diagnose(patch_size=patch_size, max_num_patches=max_num_patches)

    def _diagnose(
        self, *, patch_size: int | None = None, max_num_patches: int | None = None
    ) -> None:
        if patch_size is None:  # unknown here: take the width at its word
            patch_size = math.isqrt(self.pixel_values.shape[1] // NUM_CHANNELS)
        check_packed(
            self.pixel_values,
            self.spatial_shapes,
            lengths=np.diff(self.cu_seqlens.astype(np.int64)),
            keys=self.ids,
            source_sizes=self.source_sizes,
            max_num_patches=max_num_patches,
            patch_size=patch_size,
        )
        raise PackMismatchError("The pack is inconsistent, but no single fault could be named.")


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

    Takes NumPy arrays, torch tensors or nested lists from any preprocessor:
    `pixel_values` [T, P] or [1, T, P], any dtype; `spatial_shapes` [N, 2] integers, (h, w) in
    patches; `lengths` [N], the rows that were really written for each image; `keys` [N], names for
    the message; `source_sizes` [N, 2], (height, width) in pixels of the images as they were given
    to the resize. Lengths make it possible to name the image at fault; source sizes make swapped
    rows and columns and exchanged images visible, whose totals agree.

    Raises PackMismatchError. Its first sentence, where totals differ, is the one that packed
    SigLIP2 encoders print; the next ones name the sample, both numbers and the likely cause.
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


def _check_layout(batch: PackedBatch) -> None:
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
    cu_seqlens, num_images = batch.cu_seqlens, len(batch.ids)
    if len(cu_seqlens) != num_images + 1 or cu_seqlens[0] != 0 or (np.diff(cu_seqlens) <= 0).any():
        raise PackMismatchError(
            f"cu_seqlens must hold {num_images + 1} strictly increasing values from 0, one segment "
            f"for each of {num_images} ids, found {_head(cu_seqlens)}."
        )
    if batch.source_sizes.shape != (num_images, 2) or (batch.source_sizes <= 0).any():
        raise PackMismatchError(
            f"source_sizes must be [{num_images}, 2] positive (height, width) pixels, "
            f"found shape {batch.source_sizes.shape}."
        )
    if len(set(batch.ids)) != num_images:
        raise PackMismatchError("ids of a pack must be distinct: an image is in it twice.")


def _head(array: NDArray[Any], count: int = 8) -> str:
    values = ", ".join(str(value) for value in array[:count])
    return f"[{values}, ...] ({len(array)})" if len(array) > count else f"[{values}]"

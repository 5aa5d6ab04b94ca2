"""What is wrong with packed patches and their grids, in words that name the sample.

The tests run from the ones that need least (types, widths) to the ones that need keys, lengths or
source sizes; the first fault found is the one reported.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder.grid import target_grid

NUM_CHANNELS = 3


class PackMismatchError(ValueError):
    """Packed pixel_values and spatial_shapes disagree; the message names the first sample at fault."""


def diagnose(
    pixel_values: Any,
    spatial_shapes: Any,
    *,
    lengths: Any,
    keys: Sequence[Hashable] | None,
    source_sizes: Any,
    max_num_patches: int | None,
    patch_size: int,
) -> str | None:
    """One message for the first fault of a pack, or None. Arguments as `encoder.batch.check_packed`."""
    shape, item = tuple(np.shape(pixel_values)), _itemsize(pixel_values)
    fault = _pixel_fault(shape, item, patch_size) or _shapes_fault(spatial_shapes, keys)
    if fault:
        return fault
    num_tokens = shape[-2]
    shapes = _integers(spatial_shapes)
    rows = None if lengths is None else _integers(lengths).reshape(-1)
    sizes = None if source_sizes is None else _integers(source_sizes)
    named = list(keys) if keys is not None else None
    return (
        _count_fault(shapes, rows, sizes, named, num_tokens, max_num_patches, patch_size)
        or _length_fault(shapes, rows, sizes, named, num_tokens, max_num_patches, patch_size)
        or _source_fault(shapes, sizes, named, num_tokens, max_num_patches, patch_size)
        or _budget_fault(shapes, named, max_num_patches)
    )


def _pixel_fault(shape: tuple[int, ...], itemsize: int | None, patch_size: int) -> str | None:
    if len(shape) == 3 and shape[0] != 1:
        return (
            f"pixel_values must be packed, [T, P] or [1, T, P], found the padded shape {shape}: take "
            f"the rows where pixel_attention_mask is 1 and concatenate them."
        )
    if len(shape) not in (2, 3):
        return f"pixel_values must be [T, P] or [1, T, P], found shape {shape}."
    width, expected = shape[-1], patch_size**2 * NUM_CHANNELS
    if width == expected:
        return None
    return (
        f"A patch must have patch_size**2 * 3 = {expected} values (patch_size {patch_size}), "
        f"pixel_values has {width}{_width_hint(width, expected, itemsize, patch_size)}."
    )


def _width_hint(width: int, expected: int, itemsize: int | None, patch_size: int) -> str:
    root = math.isqrt(width // NUM_CHANNELS)
    if root**2 * NUM_CHANNELS == width and root != 2 * patch_size:
        return f": the width of patch size {root}"
    if itemsize == 1 and width in (2 * expected, 4 * expected):
        return f": {width // expected} bytes for each value, so these are float patches viewed as bytes"
    if width == 4 * expected:
        return f": the width of patch size {2 * patch_size}, or of float patches read as bytes"
    if width % patch_size**2 == 0:
        return f": {width // patch_size**2} channels, convert the images to RGB"
    return ""


def _shapes_fault(spatial_shapes: Any, keys: Sequence[Hashable] | None) -> str | None:
    array = np.asarray(spatial_shapes)
    if array.ndim != 2 or array.shape[1] != 2:
        hint = ": drop the leading temporal column" if array.shape[1:] == (3,) else ""
        return f"spatial_shapes must be [N, 2] (h, w) in patches, found {array.shape}{hint}."
    if array.dtype.kind not in "iu":
        return (
            f"spatial_shapes must hold integers, found {array.dtype}: a grid is a count of patches, "
            f"convert it where it is made."
        )
    name = _namer(list(keys) if keys is not None else None)
    exact = [(int(h), int(w)) for h, w in array]
    for index, (h, w) in enumerate(exact):
        if h < 1 or w < 1:
            return f"Every grid must have h, w >= 1, {name(index)} has {(h, w)}."
        if h * w > np.iinfo(array.dtype).max:
            wrapped = int(np.array(h * w).astype(array.dtype))
            return (
                f"The product h * w must fit the type of spatial_shapes, {name(index)} has "
                f"{(h, w)}: {h * w} patches, which {array.dtype} stores as {wrapped}. "
                f"Make spatial_shapes int64."
            )
    return None


def _count_fault(
    shapes: NDArray[np.int64],
    rows: NDArray[np.int64] | None,
    sizes: NDArray[np.int64] | None,
    keys: list[Hashable] | None,
    num_tokens: int,
    max_num_patches: int | None,
    patch_size: int,
) -> str | None:
    for what, count in (
        ("lengths", None if rows is None else len(rows)),
        ("source_sizes", None if sizes is None else len(sizes)),
        ("keys", None if keys is None else len(keys)),
    ):
        if count is None or count == len(shapes):
            continue
        kind = "missing" if count > len(shapes) else "surplus"
        message = (
            f"{_totals(shapes, num_tokens)}spatial_shapes must have one row for each image, found "
            f"{len(shapes)} rows for {count} {what}: {abs(count - len(shapes))} {kind}"
        )
        expected = _expected_rows(rows, sizes, max_num_patches, patch_size)
        return f"{message}{_first_gap(shapes, expected, keys)}."
    if keys is not None and len(set(keys)) != len(keys):
        double = next(key for key in keys if keys.count(key) > 1)
        return f"Every sample must be in a pack once, {_show(double)} is in keys twice."
    return None


def _expected_rows(
    rows: NDArray[np.int64] | None,
    sizes: NDArray[np.int64] | None,
    max_num_patches: int | None,
    patch_size: int,
) -> list[Any] | None:
    """What each image's row of shapes is known to be: its grid, or only its product."""
    if sizes is not None and max_num_patches is not None:
        return [_target(size, patch_size, max_num_patches) for size in sizes]
    return None if rows is None else [int(length) for length in rows]


def _first_gap(
    shapes: NDArray[np.int64], expected: list[Any] | None, keys: list[Hashable] | None
) -> str:
    if expected is None:
        return "; pass lengths= or source_sizes= with max_num_patches= to find which"
    by_grid = bool(expected) and isinstance(expected[0], tuple)
    found = [(int(h), int(w)) if by_grid else int(h * w) for h, w in shapes]
    for index, (want, got) in enumerate(zip(expected, found, strict=False)):
        if want != got:
            unit = "grid" if by_grid else "patches"
            return f"; the first that does not fit is {_namer(keys)(index)}: {unit} {want} expected, row {index} says {got}"
    last = min(len(expected), len(found))
    if len(expected) > last:
        return f"; the first without a row is {_namer(keys)(last)}"
    return f"; the first surplus row is row {last}, {tuple(int(v) for v in shapes[last])}"


def _length_fault(
    shapes: NDArray[np.int64],
    rows: NDArray[np.int64] | None,
    sizes: NDArray[np.int64] | None,
    keys: list[Hashable] | None,
    num_tokens: int,
    max_num_patches: int | None,
    patch_size: int,
) -> str | None:
    products = shapes[:, 0] * shapes[:, 1]
    totals = _totals(shapes, num_tokens)
    if rows is None:
        if not totals:
            return None
        by_source = _source_fault(shapes, sizes, keys, num_tokens, max_num_patches, patch_size)
        advice = "Pass lengths= (rows written for each image) to find the sample at fault."
        return by_source or f"{totals}{advice}"
    wrong = np.flatnonzero(rows != products)
    if len(wrong):
        first = int(wrong[0])
        h, w = (int(value) for value in shapes[first])
        return (
            f"{totals}{_namer(keys)(first)} has {int(rows[first])} rows of pixel_values and the grid "
            f"({h}, {w}), which is {h * w}"
            f"{_length_hint(first, shapes, rows, sizes, keys, max_num_patches, patch_size)}."
        )
    if totals:
        return f"{totals}Every length agrees with its grid, so pixel_values lost or gained rows after they were counted: lengths sum to {int(rows.sum())}."
    return None


def _length_hint(
    index: int,
    shapes: NDArray[np.int64],
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64] | None,
    keys: list[Hashable] | None,
    max_num_patches: int | None,
    patch_size: int,
) -> str:
    products = shapes[:, 0] * shapes[:, 1]
    if sizes is not None and max_num_patches is not None:
        grid = (int(shapes[index][0]), int(shapes[index][1]))
        for other in (14, 16, 32):
            if other != patch_size and _target(sizes[index], other, max_num_patches) == grid:
                return (
                    f": the grid was computed with patch size {other}, the rows were cut "
                    f"with {patch_size}"
                )
    for other in range(len(rows)):
        if other != index and rows[other] == products[index] and rows[index] == products[other]:
            return f": its grid and that of {_namer(keys)(other)} are exchanged"
    return ""


def _source_fault(
    shapes: NDArray[np.int64],
    sizes: NDArray[np.int64] | None,
    keys: list[Hashable] | None,
    num_tokens: int,
    max_num_patches: int | None,
    patch_size: int,
) -> str | None:
    if sizes is None:
        return None
    name = _namer(keys)
    square = int((sizes[:, 0] == sizes[:, 1]).sum())
    note = (
        f" {square} of {len(sizes)} sources are square: rows and columns swapped there, or two of "
        f"them exchanged, cannot be seen."
        if square
        else ""
    )
    found = [(int(h), int(w)) for h, w in shapes]
    if max_num_patches is None:
        for index, (size, (h, w)) in enumerate(zip(sizes, found, strict=True)):
            if (int(size[0]) - int(size[1])) * (h - w) < 0:
                return f"{_totals(shapes, num_tokens)}{name(index)} is {_pixels(size)} but has the grid ({h}, {w}): rows and columns are swapped.{note}"
        return None
    expected = [_target(size, patch_size, max_num_patches) for size in sizes]
    for index, (want, got) in enumerate(zip(expected, found, strict=True)):
        if want == got:
            continue
        hint = _source_hint(index, expected, found, sizes, keys, max_num_patches, patch_size)
        return (
            f"{_totals(shapes, num_tokens)}{name(index)} is {_pixels(sizes[index])}, which makes the "
            f"grid {want} at patch_size {patch_size} and max_num_patches {max_num_patches}, but "
            f"spatial_shapes says {got}{hint}.{note}"
        )
    return None


def _source_hint(
    index: int,
    expected: list[tuple[int, int]],
    found: list[tuple[int, int]],
    sizes: NDArray[np.int64],
    keys: list[Hashable] | None,
    max_num_patches: int,
    patch_size: int,
) -> str:
    got, want = found[index], expected[index]
    if got == want[::-1]:
        return ": rows and columns are swapped"
    for other in range(len(found)):
        if found[other] == want and expected[other] == got:
            return f": its grid and that of {_namer(keys)(other)} are exchanged"
    for patch in (14, 16, 32):
        if patch != patch_size and _target(sizes[index], patch, max_num_patches) == got:
            return f": that is the grid of patch size {patch}"
    return ""


def _budget_fault(
    shapes: NDArray[np.int64], keys: list[Hashable] | None, max_num_patches: int | None
) -> str | None:
    if max_num_patches is None:
        return None
    over = np.flatnonzero(shapes[:, 0] * shapes[:, 1] > max_num_patches)
    if not len(over):
        return None
    h, w = (int(value) for value in shapes[over[0]])
    return (
        f"A grid must have at most max_num_patches = {max_num_patches} patches, "
        f"{_namer(keys)(int(over[0]))} has ({h}, {w}), which is {h * w}."
    )


def _totals(shapes: NDArray[np.int64], num_tokens: int) -> str:
    total = int((shapes[:, 0] * shapes[:, 1]).sum())
    if total == num_tokens:
        return ""
    return (
        f"Packed pixel_values token count does not match spatial_shapes: {num_tokens} vs {total}. "
    )


def _target(size: NDArray[np.int64], patch_size: int, max_num_patches: int) -> tuple[int, int]:
    return target_grid(
        int(size[0]), int(size[1]), patch_size=patch_size, max_num_patches=max_num_patches
    )


def _pixels(size: NDArray[np.int64]) -> str:
    return f"{int(size[0])} x {int(size[1])} pixels (height x width)"


def _integers(values: Any) -> NDArray[np.int64]:
    return np.asarray(values).astype(np.int64)


def _itemsize(values: Any) -> int | None:
    dtype = getattr(values, "dtype", None)
    return getattr(dtype, "itemsize", None)


def _namer(keys: list[Hashable] | None) -> Any:
    def name(index: int) -> str:
        return f"Image {index}" if keys is None else f"Image {index}, {_show(keys[index])},"

    return name


def _show(key: Hashable) -> str:
    return repr(key) if isinstance(key, str) else str(key)

"""Whether tensors have the types and shapes of a pack, in words; they may come from any library.

Pixels are never copied: only their shape and the size of a value are looked at. The other tensors
have one row for each image and are read into Python integers, from whatever device they are on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_CHANNELS = 3
COMMON_PATCH_SIZES = (16, 14, 32)  # of published SigLIP and SigLIP2 checkpoints

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}

NameImage = Callable[[int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    shape: tuple[int, ...]
    itemsize: int | None  # bytes of one value, None for nested lists
    is_list: bool  # the outermost axis is a list or tuple

    @property
    def num_tokens(self) -> int | None:
        """Rows in all; None where the shape does not say it, as in a list of tensors."""
        if len(self.shape) == 2 or (len(self.shape) == 3 and not self.is_list):
            return math.prod(self.shape[:-1])
        return self.shape[1] if len(self.shape) == 3 and self.shape[0] == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A small tensor as nested lists of Python numbers, and the shape and type that it had."""

    values: Any
    shape: tuple[int, ...]
    dtype: str  # int64, bfloat16, ...

    @property
    def limits(self) -> "np.iinfo[Any] | None":
        """The range of an integer type; None for any other type."""
        return np.iinfo(self.dtype) if self.dtype in _INTEGERS else None


def read_pixels(pixel_values: Any) -> PixelLayout:
    """Layout of a NumPy array, of another library's tensor, or of nested lists of either."""
    shape, inner = _list_shape(pixel_values)
    return PixelLayout(
        shape=shape + tuple(getattr(inner, "shape", ())),
        itemsize=getattr(getattr(inner, "dtype", None), "itemsize", None),
        is_list=bool(shape),
    )


def read_numbers(tensor: Any) -> Numbers:
    """Numbers of an array, of another library's tensor on any device, or of nested lists."""
    values = _to_lists(tensor)
    try:
        array = np.array(values)
    except ValueError:  # rows of unequal length
        return Numbers(values=values, shape=(len(values),), dtype="ragged list")
    dtype = getattr(_list_shape(tensor)[1], "dtype", array.dtype)
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]  # torch.int16: int16
    return Numbers(values=values, shape=array.shape, dtype=name)


def pixel_fault(pixels: PixelLayout, patch_size: int | None) -> str | None:
    """What is wrong with the axes and the patch width. Without `patch_size`, any one will do."""
    shape = pixels.shape
    if len(shape) == 3 and shape[0] != 1:
        found = f"a list of {shape[0]} tensors" if pixels.is_list else f"the padded shape {shape}"
        return (
            f"pixel_values must be packed, [T, P] or [1, T, P], found {found}: take each image's "
            f"rows where pixel_attention_mask is 1 and concatenate them."
        )
    if len(shape) not in (2, 3):
        hint = ": cut the images into patches first" if len(shape) == 4 else ""
        return f"pixel_values must be [T, P] or [1, T, P], found shape {shape}{hint}."
    width = shape[-1]
    if patch_size is None and _patch_size_of(width) is None:
        hint = next(filter(None, (_width_hint(pixels, size) for size in COMMON_PATCH_SIZES)), "")
        return f"A patch must have patch_size**2 * 3 values, pixel_values has {width}{hint}."
    if patch_size is not None and width != patch_size**2 * NUM_CHANNELS:
        return (
            f"A patch must have patch_size**2 * 3 = {patch_size**2 * NUM_CHANNELS} values "
            f"(patch_size {patch_size}), pixel_values has {width}{_width_hint(pixels, patch_size)}."
        )
    return None


def patch_size_of(pixels: PixelLayout) -> int:
    """The patch size whose width the pixels have, after `pixel_fault` found nothing."""
    return math.isqrt(pixels.shape[-1] // NUM_CHANNELS)


def shapes_fault(shapes: Numbers, name: NameImage) -> str | None:
    """What is wrong with `spatial_shapes` by itself: layout, type, values, product overflow."""
    fault = _table_fault("spatial_shapes", "(h, w) in patches", shapes, name)
    if fault or shapes.limits is None:
        return fault
    for index, (h, w) in enumerate(shapes.values):
        if h * w > shapes.limits.max:
            return (
                f"The product h * w must fit the type of spatial_shapes, {name(index)} has "
                f"{(h, w)}: {h * w} patches, which {shapes.dtype} stores as "
                f"{_wrap(h * w, shapes.limits)}. Make spatial_shapes int64."
            )
    return None


def sizes_fault(sizes: Numbers, name: NameImage) -> str | None:
    """What is wrong with `source_sizes` by itself: layout, type, values."""
    return _table_fault("source_sizes", "(height, width) in pixels", sizes, name)


def lengths_fault(lengths: Numbers, name: NameImage) -> str | None:
    """What is wrong with `lengths` by itself: layout, type, values, or that it is cu_seqlens."""
    if len(lengths.shape) != 1:
        return f"lengths must be [N], the rows of each image, found shape {lengths.shape}."
    rows = lengths.values
    if rows and lengths.limits is None:
        return f"lengths must hold integers, found {lengths.dtype}."
    if len(rows) > 1 and rows[0] == 0 and sorted(rows) == rows:
        return "lengths must be the rows of each image, found cu_seqlens: pass its differences."
    for index, count in enumerate(rows):
        if count < 1:
            return f"Every image must have rows, lengths says {count} for {name(index)}."
    return None


def total_patches(shapes: Numbers) -> int | None:
    """Sum of h * w as consumers get it, products in the tensor's type; None if it has none."""
    if shapes.shape[:1] == (0,):
        return 0
    if len(shapes.shape) != 2 or shapes.shape[1] != 2 or shapes.limits is None:
        return None
    return sum(_wrap(h * w, shapes.limits) for h, w in shapes.values)


def _table_fault(tensor: str, columns: str, table: Numbers, name: NameImage) -> str | None:
    if table.shape[:1] == (0,):
        return None  # no rows, in whatever shape: the counts say the rest
    if len(table.shape) != 2 or table.shape[1] != 2:
        found = f"{table.dtype} of shape {table.shape}{_table_hint(table)}"
        return f"{tensor} must be [N, 2], {columns}, found {found}."
    if table.limits is None:
        return f"{tensor} must hold integers, found {table.dtype}: convert it where it is made."
    for index, row in enumerate(table.values):
        if min(row) < 1:
            return f"{tensor} must be positive, {columns}, {name(index)} has {tuple(row)}."
    return None


def _table_hint(table: Numbers) -> str:
    match table.shape:
        case (_, 3):
            return ": drop the leading column, which counts frames"
        case (1, _, 2):
            return ": drop the leading axis"
        case (2,):
            return ": one image is one row, [[h, w]]"
        case (2, _):
            return ": transpose it"
    return ""


def _width_hint(pixels: PixelLayout, patch_size: int) -> str:
    width, area = pixels.shape[-1], patch_size**2
    causes = []
    if (other := _patch_size_of(width)) is not None:
        causes.append(f"the width of patch size {other}")
    if pixels.itemsize in (1, None) and width in (
        factor * area * NUM_CHANNELS for factor in (2, 4, 8)
    ):
        count = width // (area * NUM_CHANNELS)
        causes.append(f"{count} bytes for each value: float patches of size {patch_size} as bytes")
    if width in (area, 2 * area, 4 * area):
        causes.append(f"{width // area} channels at patch size {patch_size}: convert to RGB")
    return f", {', or '.join(causes)}" if causes else ""


def _patch_size_of(width: int) -> int | None:
    root = math.isqrt(width // NUM_CHANNELS)
    return root if root and root**2 * NUM_CHANNELS == width else None


def _wrap(value: int, limits: "np.iinfo[Any]") -> int:
    return (value - limits.min) % (limits.max - limits.min + 1) + limits.min


def _list_shape(values: Any) -> tuple[tuple[int, ...], Any]:
    """Lengths of nested lists, and the first thing in them that is none."""
    shape: tuple[int, ...] = ()
    while isinstance(values, list | tuple):
        shape += (len(values),)
        if not values:
            break
        values = values[0]
    return shape, values


def _to_lists(values: Any) -> Any:
    if isinstance(values, list | tuple):
        return [_to_lists(value) for value in values]
    # tolist also reads tensors on a GPU, those that need gradients, and bfloat16, which NumPy lacks
    return values.tolist() if hasattr(values, "tolist") else values

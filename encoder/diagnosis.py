"""What is wrong with packed patches and their grids, in words that name the image.

The checks run from what needs least (types, widths) to what needs lengths or source sizes; the
first fault found is the one reported.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from encoder.causes import (
    UNPAD,
    Grid,
    PackFacts,
    gap,
    image_name,
    is_turned,
    length_cause,
    look_padded,
    other_rule,
    source_cause,
)
from encoder.pack_layout import (
    lengths_fault,
    patch_size_of,
    pixel_fault,
    read_numbers,
    read_pixels,
    shapes_fault,
    sizes_fault,
    total_patches,
)


class PackMismatchError(ValueError):
    """Packed pixel_values and spatial_shapes disagree; the message names the first at fault."""


def diagnose(
    pixel_values: Any,
    spatial_shapes: Any,
    *,
    lengths: Any,
    keys: Sequence[Hashable] | None,
    source_sizes: Any,
    max_num_patches: int | None,
    patch_size: int | None,
) -> str | None:
    """One message for the first fault of a pack, or None. See `encoder.batch.check_packed`.

    Without `patch_size` the patch width may be that of any.
    """
    named = None if keys is None else list(keys)

    def name(index: int) -> str:
        return image_name(named, index)

    pixels, shapes = read_pixels(pixel_values), read_numbers(spatial_shapes)
    rows = None if lengths is None else read_numbers(lengths)
    sizes = None if source_sizes is None else read_numbers(source_sizes)
    fault = (
        pixel_fault(pixels, patch_size)
        or shapes_fault(shapes, name)
        or (rows and lengths_fault(rows, name))
        or (sizes and sizes_fault(sizes, name))
    )
    num_tokens, total = pixels.num_tokens, total_patches(shapes)
    if not fault and num_tokens is not None:
        fault = _disagreement(
            PackFacts(
                num_tokens=num_tokens,
                grids=[tuple(grid) for grid in shapes.values],
                lengths=None if rows is None else rows.values,
                sizes=None if sizes is None else [tuple(size) for size in sizes.values],
                keys=named,
                max_num_patches=max_num_patches,
                patch_size=patch_size or patch_size_of(pixels),
            )
        )
    if not fault or None in (num_tokens, total) or num_tokens == total:
        return fault or None
    sentence = "Packed pixel_values token count does not match spatial_shapes"
    return f"{sentence}: {num_tokens} vs {total}. {fault}"


def _disagreement(facts: PackFacts) -> str | None:
    fault = _count_fault(facts)
    if fault:
        return fault
    if facts.lengths is None and len(facts.grids) == 1:
        facts = replace(facts, lengths=[facts.num_tokens])
    return (
        _empty_fault(facts)
        or _length_fault(facts)
        or _source_fault(facts)
        or _total_fault(facts)
        or _budget_fault(facts)
    )


def _count_fault(facts: PackFacts) -> str | None:
    lists = {"keys": facts.keys, "lengths": facts.lengths, "source_sizes": facts.sizes}
    counts = {what: len(items) for what, items in lists.items() if items is not None}
    rows = len(facts.grids)
    if not counts:
        return None
    what, images = next(iter(counts.items()))  # the first one given says how many images there are
    if rows != images:
        kind = f"{abs(rows - images)} {'missing' if rows < images else 'surplus'}"
        return (
            f"spatial_shapes must have one row for each image, found {rows} for "
            f"{' and '.join(f'{count} {other}' for other, count in counts.items())}: {kind}"
            f"{gap(facts, images)}."
        )
    for other, count in counts.items():
        if count != images:
            return (
                f"{other} must have one entry for each image, found {count} for {images} {what} "
                f"and {rows} rows of spatial_shapes."
            )
    return None


def _length_fault(facts: PackFacts) -> str | None:
    if facts.lengths is None:
        return None
    for index, (rows, patches) in enumerate(zip(facts.lengths, facts.patches, strict=True)):
        if rows != patches:
            return (
                f"{facts.name(index)} has {rows} rows of pixel_values and the grid "
                f"{facts.grids[index]}, which is {patches}{length_cause(facts, index)}."
            )
    spare, agreed = facts.num_tokens - sum(facts.lengths), "Every length agrees with its grid, but"
    if spare > 0:
        return f"{agreed} {spare} rows of pixel_values follow those of the last image."
    end = 0
    for index, rows in enumerate(facts.lengths):
        end += rows
        if end > facts.num_tokens:
            return (
                f"{agreed} pixel_values ends {-spare} rows early, within the rows of "
                f"{facts.name(index)}: rows were lost after they were counted."
            )
    return None


def _source_fault(facts: PackFacts) -> str | None:
    if facts.sizes is None:
        return None
    targets, strict = facts.targets(), facts.max_num_patches is not None
    shuffled = targets is not None and sorted(targets) == sorted(facts.grids)
    for index, (size, grid) in enumerate(zip(facts.sizes, facts.grids, strict=True)):
        if targets and targets[index] == grid:
            continue
        if not (strict or shuffled or is_turned(size, grid)):
            continue  # resized by a rule of its own, perhaps
        cause, makes = source_cause(facts, index), ""
        if strict and targets:
            cause = cause or other_rule(facts, index)
            makes = (
                f", which makes the grid {targets[index]} at patch_size {facts.patch_size} and "
                f"max_num_patches {facts.max_num_patches},"
            )
        return (
            f"{facts.name(index)} is {size[0]} x {size[1]} pixels (height x width){makes} but "
            f"spatial_shapes says {grid}{cause}.{_undecidable(facts.sizes)}"
        )
    return None


def _total_fault(facts: PackFacts) -> str | None:
    if facts.num_tokens == sum(facts.patches):
        return None
    each, rest = divmod(facts.num_tokens, len(facts.grids))
    if not rest and look_padded(facts.patches, each):
        return f"pixel_values has {each} rows for each image: {UNPAD}."
    fitting = facts.sizes is not None and facts.max_num_patches is not None
    return (
        f"{'Every grid fits its source size. ' if fitting else ''}Pass lengths= (the rows written "
        f"for each image) to find the image at fault."
    )


def _empty_fault(facts: PackFacts) -> str | None:
    if bool(facts.num_tokens) == bool(facts.grids):
        return None
    empty = "spatial_shapes" if facts.num_tokens else "pixel_values"
    return f"{empty} has no rows."


def _budget_fault(facts: PackFacts) -> str | None:
    for index, patches in enumerate(facts.patches):
        if facts.max_num_patches is not None and patches > facts.max_num_patches:
            return (
                f"A grid must have at most max_num_patches = {facts.max_num_patches} patches, "
                f"{facts.name(index)} has {facts.grids[index]}, which is {patches}."
            )
    return None


def _undecidable(sizes: list[Grid]) -> str:
    square = sum(height == width for height, width in sizes)
    if not square:
        return ""
    return (
        f" Sources that are square: {square} of {len(sizes)}. Whether rows and columns are swapped "
        f"there, or such images exchanged, cannot be decided."
    )

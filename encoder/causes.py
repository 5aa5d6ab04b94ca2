"""What is known of a pack, and what most likely put a wrong grid into it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from encoder.grid import target_grid
from encoder.pack_layout import COMMON_PATCH_SIZES

Grid = tuple[int, int]
UNPAD = "as if padding was packed too; take the rows where pixel_attention_mask is 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """A pack whose tensors are sound one by one; `grids` as found, `targets` as they must be."""

    num_tokens: int
    grids: list[Grid]
    lengths: list[int] | None
    sizes: list[Grid] | None
    keys: list[Hashable] | None
    max_num_patches: int | None
    patch_size: int

    @property
    def patches(self) -> list[int]:
        return [h * w for h, w in self.grids]

    def targets(self, patch_size: int | None = None) -> list[Grid] | None:
        """Target grids of the source sizes, None where too little is known.

        The length of an image stands in for max_num_patches: an image's target grid is also the
        one for exactly its own number of patches.
        """
        budgets = self.lengths
        if self.max_num_patches is not None:
            budgets = [self.max_num_patches] * len(self.sizes or ())
        if self.sizes is None or budgets is None or len(budgets) != len(self.sizes):
            return None
        return [
            target_grid(*size, patch_size=patch_size or self.patch_size, max_num_patches=budget)
            for size, budget in zip(self.sizes, budgets, strict=True)
        ]

    def name(self, index: int) -> str:
        return image_name(self.keys, index)


def image_name(keys: Sequence[Hashable] | None, index: int) -> str:
    """Words for an image: its index and, where there is one, its key."""
    if keys is None or index >= len(keys):
        return f"Image {index}"
    key = keys[index]
    return f"Image {index} ({key!r})" if isinstance(key, str) else f"Image {index} ({key})"


def gap(facts: PackFacts, num_images: int) -> str:
    """Words for the image without a row of shapes, or the row without an image, where known."""
    known: list[tuple[Sequence[Any] | None, Sequence[Any]]] = [
        (facts.targets(), facts.grids),
        (facts.lengths, facts.patches),
    ]
    usable = [(want, got) for want, got in known if want is not None and len(want) == num_images]
    if not usable:
        return "; pass lengths= or source_sizes= with max_num_patches= to find which"
    for want, got in usable:
        missing = _left_over(want, got)
        if missing:
            return f"; the first without a row is {_alternatives(want, missing[0], facts.name)}"
        surplus = _left_over(got, want)
        if surplus:
            return (
                f"; the first that belongs to no image is "
                f"{_alternatives(got, surplus[0], 'row {}'.format)}, {facts.grids[surplus[0]]}"
            )
    want, got = usable[0]
    index = next(i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b)
    unit = "grid" if isinstance(want[index], tuple) else "patches"
    return (
        f", and others differ; the first is {facts.name(index)}: {unit} {want[index]} expected, "
        f"row {index} says {got[index]}"
    )


def _left_over(longer: Sequence[Any], shorter: Sequence[Any]) -> list[int]:
    """Indices of `longer` to leave out to get `shorter`; empty where that cannot be done."""
    left, matched = [], 0
    for index, item in enumerate(longer):
        if matched < len(shorter) and item == shorter[matched]:
            matched += 1
        else:
            left.append(index)
    return left if matched == len(shorter) else []


def _alternatives(items: Sequence[Any], index: int, name: Callable[[int], str]) -> str:
    """The item, or the equal ones before it: leaving out any of them gives the same sequence."""
    first = index
    while first and items[first - 1] == items[index]:
        first -= 1
    if first == index:
        return name(index)
    return f"{name(index)} or one of the equal ones before it, from {name(first)}"


def length_cause(facts: PackFacts, index: int) -> str:
    """Why the grid of an image has another number of patches than the image has rows."""
    lengths, patches, targets = facts.lengths or [], facts.patches, facts.targets()
    padded = set(lengths) == {lengths[index]} and look_padded(patches, lengths[index])
    if targets and facts.max_num_patches is not None and targets[index] == facts.grids[index]:
        return f": {UNPAD}" if padded else ": the grid fits the source size, so the rows are wrong"
    cause = source_cause(facts, index) or _exchange(facts, lengths, patches, index)
    return cause or other_rule(facts, index) or (f": {UNPAD}" if padded else "")


def look_padded(patches: Sequence[int], rows: int) -> bool:
    """Whether `rows` for each image is what padding makes: enough for all, too many for most."""
    return max(patches) <= rows and 2 * sum(rows != count for count in patches) > len(patches)


def source_cause(facts: PackFacts, index: int) -> str:
    """How a grid that contradicts its source size was mixed up; empty where it was not."""
    if facts.sizes is None:
        return ""
    (height, width), (h, w), targets = facts.sizes[index], facts.grids[index], facts.targets()
    exchange = _exchange(facts, targets, facts.grids, index) if targets else ""
    if targets and facts.max_num_patches is not None:
        swapped = targets[index] == (w, h)
    else:
        agreed = facts.lengths is None or facts.lengths[index] == h * w
        swapped = agreed and is_turned((height, width), (h, w))
    if not swapped:
        return exchange
    causes = [": rows and columns are swapped", exchange.removeprefix(": ")]
    oblong = [pair for pair in zip(facts.sizes, facts.grids, strict=True) if len(set(pair[0])) == 2]
    if all(is_turned(size, grid) for size, grid in oblong):
        causes.append("source_sizes holds (width, height)")
    return ", or ".join(filter(None, causes))


def other_rule(facts: PackFacts, index: int) -> str:
    """Which other rule gives the grid: another patch size, or the image before its resize."""
    grid, patch_size, targets = facts.grids[index], facts.patch_size, facts.targets()
    if targets and targets[index] == grid:
        return ""
    cuts = [targets[index]] if targets else []
    if facts.lengths is not None:
        rows = facts.lengths[index]
        cuts += [(h, rows // h) for h in range(1, rows + 1) if rows % h == 0]
    for other in COMMON_PATCH_SIZES:
        if other == patch_size:
            continue
        ruled = facts.targets(other)
        grids = [ruled[index]] if ruled else []
        for h, w in cuts:
            grids += _cells(h * patch_size, w * patch_size, other)
        if grid in grids:
            return f": that is the grid at patch size {other}, the rows were cut with {patch_size}"
    if facts.sizes is not None and grid in _cells(*facts.sizes[index], patch_size):
        return ": that is the grid of the image before its resize"
    return ""


def _exchange(facts: PackFacts, want: Sequence[Any], got: Sequence[Any], index: int) -> str:
    if want[index] == got[index]:
        return ""
    for other in range(len(got)):
        if want[other] == got[index] and want[index] == got[other]:
            return f": its grid and that of {facts.name(other)} are exchanged"
    if sorted(want) == sorted(got):
        return ": the rows of spatial_shapes are in another order than the images"
    return ""


def is_turned(size: Grid, grid: Grid) -> bool:
    """Whether an image and its grid are one upright and one lying."""
    return (size[0] - size[1]) * (grid[0] - grid[1]) < 0


def _cells(height: int, width: int, patch_size: int) -> tuple[Grid, Grid]:
    """Grids of height x width pixels, incomplete patches dropped and completed."""
    return (
        (height // patch_size, width // patch_size),
        (-(-height // patch_size), -(-width // patch_size)),
    )

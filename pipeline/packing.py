"""Images into packs: as many whole images as the token budget holds, no padding.

First fit with a bounded look-ahead: an image that does not fit the open pack is held back while
later, smaller ones fill the gap. Held images open the next pack in the order they came, so nothing
starves and the result is a function of the input order alone.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from encoder.batch import PackedBatch
from pipeline.records import Pack, PatchedImage, RowInfo

# A pack this full leaves at once: waiting for an image that fits the rest costs memory and latency,
# and gains less than 1 %.
_FULL_SHARE = 0.99


def group_images(
    images: Iterable[PatchedImage], *, token_budget: int, look_ahead: int
) -> Iterator[list[PatchedImage]]:
    """Groups of whole images, each of at most `token_budget` tokens; every image is in one group.

    At most `look_ahead` images are held back besides the group that is being filled.

    Raises ValueError for an image that is larger than the budget.
    """
    group: list[PatchedImage] = []
    held: list[PatchedImage] = []
    room = token_budget
    for image in images:
        tokens = _tokens(image, token_budget)
        if tokens <= room:
            group.append(image)
            room -= tokens
        else:
            held.append(image)
        while group and (room < token_budget * (1 - _FULL_SHARE) or len(held) > look_ahead):
            yield group
            group, held, room = _fill(held, token_budget)
    while group:
        yield group
        group, held, room = _fill(held, token_budget)


def make_pack(images: Sequence[PatchedImage]) -> Pack:
    """One Pack of the given images: the only place where rows, grids and cu_seqlens are joined."""
    lengths = [len(image.pixel_values) for image in images]
    batch = PackedBatch(
        pixel_values=np.concatenate([image.pixel_values for image in images]),
        spatial_shapes=np.array([image.grid for image in images], dtype=np.int64),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        source_sizes=np.array([image.source_size for image in images], dtype=np.int64),
        ids=tuple(image.id for image in images),
    )
    rows = tuple(
        RowInfo(index=image.index, truncated=image.truncated, metadata=image.metadata)
        for image in images
    )
    return Pack(batch=batch, rows=rows)


def _fill(
    waiting: list[PatchedImage], token_budget: int
) -> tuple[list[PatchedImage], list[PatchedImage], int]:
    """(group, held, room): as many of the waiting images as fit, in order."""
    group, held, room = [], [], token_budget
    for image in waiting:
        tokens = len(image.pixel_values)
        if tokens <= room:
            group.append(image)
            room -= tokens
        else:
            held.append(image)
    return group, held, room


def _tokens(image: PatchedImage, token_budget: int) -> int:
    tokens = len(image.pixel_values)
    if tokens > token_budget:
        raise ValueError(
            f"token_budget must hold a single image: {image.id} has {tokens} tokens, "
            f"token_budget is {token_budget}"
        )
    return tokens

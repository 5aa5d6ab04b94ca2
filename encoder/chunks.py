"""Images of one or several packs -> forward passes of bounded size, and results back to the packs.

Host memory and NumPy only. Letters as in encoder.batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from encoder.batch import PackedBatch

__all__ = [
    "PackImage",
    "chunk_images",
    "fill_rows",
    "list_images",
    "sort_by_length",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackImage:
    """Where one image is: the pack, its place there, and its rows."""

    pack: int
    place: int
    first_row: int
    length: int  # rows
    grid: tuple[int, int]  # (h, w) in patches

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.length)


def list_images(batches: Sequence[PackedBatch]) -> list[PackImage]:
    """All images of the packs, pack after pack."""
    return [
        PackImage(pack=pack, place=place, first_row=first, length=last - first, grid=(h, w))
        for pack, batch in enumerate(batches)
        for place, (first, last, (h, w)) in enumerate(
            zip(
                batch.cu_seqlens[:-1].tolist(),
                batch.cu_seqlens[1:].tolist(),
                batch.spatial_shapes.tolist(),
                strict=True,
            )
        )
    ]


def sort_by_length(images: Iterable[PackImage]) -> list[PackImage]:
    """The images with equal lengths as neighbours; those stay in their order."""
    return sorted(images, key=lambda image: image.length)


def chunk_images(images: Iterable[PackImage], max_tokens: int) -> Iterator[list[PackImage]]:
    """Yields neighbours of at most `max_tokens` tokens together; a larger image comes alone."""
    chunk: list[PackImage] = []
    tokens = 0
    for image in images:
        if chunk and tokens + image.length > max_tokens:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(image)
        tokens += image.length
    if chunk:
        yield chunk


def fill_rows(
    target: NDArray[np.uint8], images: Sequence[PackImage], batches: Sequence[PackedBatch]
) -> None:
    """None; writes the pixel rows of the images into `target` [T, P], one after the other."""
    starts = accumulate((image.length for image in images), initial=0)
    for image, start in zip(images, starts, strict=False):
        target[start : start + image.length] = batches[image.pack].pixel_values[image.rows]

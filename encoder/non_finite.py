"""Where in a vision tower the values of an image stop being finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from encoder.batch import PackedBatch

__all__ = ["one_image", "watch_non_finite"]


@contextmanager
def watch_non_finite(tower: nn.Module) -> Iterator[list[str]]:
    """A list that gets the names of the layers whose output is not finite, in order, while open.

    Each of them is waited for: for a single image, not for every pack.
    """
    found: list[str] = []

    def watch(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not bool(output.isfinite().all()):
                found.append(name)

        return layer.register_forward_hook(note)

    leaves = [(name, layer) for name, layer in tower.named_modules() if not list(layer.children())]
    handles = [watch(name, layer) for name, layer in leaves]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def one_image(batch: PackedBatch, place: int) -> PackedBatch:
    """The pack of one image of a pack."""
    first, last = batch.cu_seqlens[place : place + 2].tolist()
    return PackedBatch(
        pixel_values=batch.pixel_values[first:last],
        spatial_shapes=batch.spatial_shapes[place : place + 1],
        cu_seqlens=np.array([0, last - first], dtype=np.int32),
        source_sizes=batch.source_sizes[place : place + 1],
        ids=(batch.ids[place],),
    )

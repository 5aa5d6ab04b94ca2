"""Where in a vision tower the values of an image stop being finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["watch_non_finite"]


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

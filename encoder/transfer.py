"""Moves between host and device, beside the computation. On a CPU there is nothing to move.

On CUDA bytes go up from pinned memory on one stream and come down to pinned memory on another, so
that the pack before and the pack after overlap with the one that is computed. Nothing here makes
the host wait for the device but `Arrival.wait`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Arrival", "Transfer", "upload_integers"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A tensor on its way to the host."""

    host: Tensor
    done: torch.cuda.Event | None  # None: it is there

    def wait(self) -> NDArray[np.floating]:
        """The values, once they are there."""
        if self.done is not None:
            self.done.synchronize()
        values: NDArray[np.floating] = self.host.numpy()
        return values


class Transfer:
    """The copy streams of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        if self._on_cuda:
            self._up, self._down = (
                torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )

    def host_buffer(self, rows: int, columns: int) -> Tensor:
        """[rows, columns] uint8 in host memory, from which `upload` copies without waiting.

        torch keeps pinned memory for reuse, and reuses it only when the copies from it are done.
        """
        return torch.empty(rows, columns, dtype=torch.uint8, pin_memory=self._on_cuda)

    def upload(self, host: Tensor) -> Tensor:
        """The tensor on the device; what is queued next on the current stream waits for it."""
        if not self._on_cuda:
            return host
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._up):
            tensor = host.to(self._device, non_blocking=True)
        current.wait_stream(self._up)
        tensor.record_stream(current)
        return tensor

    def download(self, tensor: Tensor) -> Arrival:
        """The tensor on its way to the host, from where the current stream stands."""
        if not self._on_cuda:
            return Arrival(host=tensor, done=None)
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._down):
            host.copy_(tensor, non_blocking=True)
            done.record()
        tensor.record_stream(self._down)
        return Arrival(host=host, done=done)


def upload_integers(values: Iterable[int], device: torch.device) -> Tensor:
    """[n] int32 on the device, without waiting for it."""
    host = torch.tensor(list(values), dtype=torch.int32, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)

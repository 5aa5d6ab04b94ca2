"""The encoder as a library: load a checkpoint, turn packs into vectors.

    model = load_encoder("google/siglip2-base-patch16-naflex")
    vectors = model(pack)  # float32 [N, D], unit length

`model(pack)` waits for the result. `model.submit(packs)` does not: on CUDA the next packs are
copied up while these are computed, and results come down beside both.
"""

import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encoder.attention import Backend, choose_backend, describe_segments, probe_backend
from encoder.batch import PackedBatch, PackMismatchError
from encoder.budget import forward_budget
from encoder.checkpoint import describe_checkpoint
from encoder.chunks import PackImage, chunk_images, fill_rows, list_images, sort_by_length
from encoder.config import EncoderConfig
from encoder.model import VisionTower
from encoder.non_finite import watch_non_finite
from encoder.output import Output, Readout
from encoder.pending import Pending
from encoder.position import PositionGrids
from encoder.transfer import Arrival, Transfer
from encoder.weights import load_tower

__all__ = ["Encoder", "Pending", "load_encoder"]

log = logging.getLogger("embedmill")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_POOLED = Output()
_IN_FLIGHT = 2  # submits that may wait for the device; the next one waits for the first of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoder:
    """A loaded vision tower; `load_encoder` makes it."""

    config: EncoderConfig
    digest: str  # of the weights, see encoder.checkpoint.describe_checkpoint
    revision: str | None  # commit of the Hugging Face repository, None for a folder
    device: torch.device
    dtype: torch.dtype
    attention: Backend
    readout: Readout
    forward_tokens: int  # tokens in one forward pass at most
    _tower: VisionTower = field(repr=False)
    _positions: PositionGrids = field(repr=False)
    _transfer: Transfer = field(repr=False)
    _in_flight: deque[Arrival] = field(default_factory=deque, repr=False)
    _turn: AbstractContextManager[Any] = field(default_factory=RLock, repr=False)

    def __call__(self, batch: PackedBatch) -> NDArray[Any]:
        """What the output asks for, float32 or float16, in the order of the pack.

        [N, D] for vectors, pooled or means; [T, D] for tokens, row for row those of the pack; D is
        `readout.width`. An image's values do not depend on its neighbours in the pack beyond float
        rounding. Values that are not finite are confined to the images that have them; `explain`
        says where they come from. Raises PackMismatchError where the pack is inconsistent or not
        cut for this checkpoint.
        """
        return self.submit([batch]).results()[0]

    @torch.inference_mode()
    def submit(self, batches: Sequence[PackedBatch]) -> Pending:
        """The results of several packs, which share forward passes; see `Pending.results`.

        On CUDA this returns as soon as the work is queued, unless two submits before it are not
        done. Any thread may call it, on one CUDA stream, as the default one is; any thread may take
        the results.

        Where device memory runs out, the packs are done again once, in forward passes of half
        their tokens; raises torch.OutOfMemoryError where that is not enough. Raises
        PackMismatchError as `__call__` does.
        """
        for batch in batches:
            self._check(batch)
        with self._turn:
            chunks = self._queue(list_images(batches), batches)
        return Pending(batches=batches, readout=self.readout, chunks=chunks)

    def explain(self, batch: PackedBatch, place: int) -> str:
        """Why the values of an image of the pack are not finite; does that image again, alone."""
        with self._turn, watch_non_finite(self._tower) as layers:
            values = self(batch.part(place, place + 1))
        if layers:
            name = str(self.dtype).removeprefix("torch.")
            return f"not finite in {name}, first after {layers[0]}"
        if not np.isfinite(values).all():
            return f"beyond what {self.readout.dtype} can hold, 65504: use float32 for the output"
        return "finite when it was done again, alone"

    def _queue(
        self, images: list[PackImage], batches: Sequence[PackedBatch]
    ) -> list[tuple[list[PackImage], Arrival]]:
        if self.attention != "varlen":
            images = sort_by_length(images)  # long runs
        while len(self._in_flight) >= _IN_FLIGHT:
            self._in_flight.popleft().wait()
        try:
            chunks = self._start(images, batches, self.forward_tokens)
        except torch.OutOfMemoryError:
            if len(images) == 1:
                raise
            chunks = None  # done again below, where the error holds no more memory
        if chunks is None:
            tokens = sum(image.length for image in images)
            halved = min(tokens, self.forward_tokens) // 2
            log.warning(
                "out of memory on %s with %d tokens in %d images; done again in forward passes of "
                "at most %d tokens. Lower the token budget if this comes back.",
                *(self.device, tokens, len(images), halved),
            )
            torch.cuda.empty_cache()
            chunks = self._start(images, batches, halved)
        if chunks:
            self._in_flight.append(chunks[-1][1])
        return chunks

    def _start(
        self, images: Sequence[PackImage], batches: Sequence[PackedBatch], max_tokens: int
    ) -> list[tuple[list[PackImage], Arrival]]:
        return [
            (chunk, self._forward(chunk, batches)) for chunk in chunk_images(images, max_tokens)
        ]

    def _forward(self, images: list[PackImage], batches: Sequence[PackedBatch]) -> Arrival:
        lengths = [image.length for image in images]
        rows = self._transfer.host_buffer(sum(lengths), self.config.patch_values)
        fill_rows(rows.numpy(), images, batches)
        segments = describe_segments(lengths, backend=self.attention, device=self.device)
        positions = self._positions.of([image.grid for image in images])
        result = self._tower(self._transfer.upload(rows), positions, segments)
        return self._transfer.download(result)

    def _check(self, batch: PackedBatch) -> None:
        batch.check()
        width, expected = batch.pixel_values.shape[1], self.config.patch_values
        if width != expected:
            size = self.config.patch_size
            raise PackMismatchError(
                f"Each row of pixel_values must hold {expected} values, a {size} x {size} px RGB "
                f"patch of this checkpoint, found {width}. Cut patches with patch_size {size}."
            )
        side = self.config.grid_side
        if self.config.image_size is not None and (batch.spatial_shapes != side).any():
            wrong = int(np.argmax((batch.spatial_shapes != side).any(axis=1)))
            raise PackMismatchError(
                f"This checkpoint reads {self.config.image_size} x {self.config.image_size} px: "
                f"every grid must be {(side, side)}, image {wrong} ({batch.ids[wrong]}) has "
                f"{tuple(batch.spatial_shapes[wrong].tolist())}."
            )


def load_encoder(
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    prefix: str | None = None,
    output: Output = _POOLED,
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
    forward_tokens: int | None = None,
) -> Encoder:
    """An encoder for the checkpoint, on the device, ready to encode.

    `checkpoint` is a folder or a Hugging Face repository id, `revision` its branch, tag or commit,
    `prefix` what comes before the tower's tensors in a larger model, found where there is one
    tower. `device` is auto (CUDA where there is one), cpu, cuda or cuda:<index>; `dtype` is auto
    (bfloat16 on CUDA, float32 on CPU), float32 or bfloat16; `attention` is auto or a backend's
    name; `forward_tokens` bounds one forward pass, see encoder.budget. What auto became is in the
    answer. A dtype of float16 is not offered: activations can exceed its 65504.

    Raises CheckpointError for the checkpoint, and for an output that it does not have; ValueError
    for the other arguments.
    """
    on = _choose_device(device)
    computed = _choose_dtype(dtype, on)
    described = describe_checkpoint(checkpoint, revision=revision, prefix=prefix)
    config = described.config
    readout = described.readout(output)
    backend = choose_backend(attention, device=on, dtype=computed, head_width=config.head_width)
    probe_backend(
        backend, num_heads=config.num_attention_heads, head_width=config.head_width, device=on
    )
    tower = load_tower(described, readout, device=on, dtype=computed)
    return Encoder(
        config=config,
        digest=described.digest,
        revision=described.revision,
        device=on,
        dtype=computed,
        attention=backend,
        readout=readout,
        forward_tokens=forward_tokens or forward_budget(config, device=on, dtype=computed),
        _tower=tower,
        _positions=PositionGrids(tower.positions, computed),
        _transfer=Transfer(on),
    )


def _choose_device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:<index>, found {name!r}.")
    if name != "cpu" and not has_cuda:
        raise ValueError(f"device {name!r} needs a CUDA device, found none. Use cpu or auto.")
    return torch.device(name)


def _cpu_has_bfloat16() -> bool:
    features: Mapping[str, Any] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # not in torch 2.11
    return any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name == "bfloat16" and device.type == "cpu" and not _cpu_has_bfloat16():
        log.warning("this CPU has no bfloat16 instructions: float32 is several times as fast")
    if name not in _DTYPES:
        raise ValueError(f"dtype must be auto, {' or '.join(_DTYPES)}, found {name!r}.")
    return _DTYPES[name]

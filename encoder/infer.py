"""The encoder as a library: load a checkpoint, turn packs into vectors.

    encoder = load_encoder("google/siglip2-base-patch16-naflex")
    vectors = encoder.encode(batch)  # float32 [N, D], unit length

Moves between host and device happen in this file only.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoder.attention import Backend, Segments, choose_backend, describe_segments
from encoder.batch import PackedBatch, PackMismatchError
from encoder.checkpoint import describe_checkpoint
from encoder.config import EncoderConfig
from encoder.model import VisionTower
from encoder.position import PositionGrids
from encoder.weights import load_tower

__all__ = ["Encoder", "load_encoder"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoder:
    """A loaded vision tower; `load_encoder` makes it."""

    config: EncoderConfig
    digest: str  # of the weights, see encoder.checkpoint.describe_checkpoint
    revision: str | None  # commit of the Hugging Face repository, None for a folder
    device: torch.device
    dtype: torch.dtype
    attention: Backend
    _tower: VisionTower = field(repr=False)
    _positions: PositionGrids = field(repr=False)

    @torch.inference_mode()
    def encode(self, batch: PackedBatch, *, normalize: bool = True) -> NDArray[np.float32]:
        """[N, D] float32 vectors in the order of the pack, of unit length if `normalize`.

        An image's vector does not depend on its neighbours in the pack beyond float rounding.
        Raises PackMismatchError where the pack is inconsistent or cut for another patch size.
        """
        if batch.num_images == 0:
            return np.zeros((0, self.config.hidden_size), dtype=np.float32)
        tokens, segments, order = self._forward(batch)
        pooled = self._tower.pool(tokens, segments).float()
        if normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors = np.empty(pooled.shape, dtype=np.float32)
        vectors[order] = pooled.cpu().numpy()
        return vectors

    @torch.inference_mode()
    def encode_tokens(self, batch: PackedBatch) -> NDArray[np.float32]:
        """[T, D] float32 tokens after the final norm, row for row those of the pack.

        Raises PackMismatchError as `encode` does.
        """
        if batch.num_images == 0:
            return np.zeros((0, self.config.hidden_size), dtype=np.float32)
        tokens, _, order = self._forward(batch)
        rows = np.empty(tokens.shape, dtype=np.float32)
        rows[_row_order(batch, order)] = tokens.float().cpu().numpy()
        return rows

    def _forward(self, batch: PackedBatch) -> tuple[Tensor, Segments, NDArray[np.int64]]:
        """Tokens, segments, and the images' order in both: by length, so that runs are long."""
        self._check(batch)
        lengths = np.diff(batch.cu_seqlens)
        order = np.argsort(lengths, kind="stable")
        segments = describe_segments(
            lengths[order].tolist(), backend=self.attention, device=self.device
        )
        shapes = [(int(h), int(w)) for h, w in batch.spatial_shapes[order]]
        pixel_values = torch.from_numpy(batch.pixel_values[_row_order(batch, order)])
        tokens = self._tower.tokens(
            pixel_values.to(self.device), self._positions.of(shapes), segments
        )
        return tokens, segments, order

    def _check(self, batch: PackedBatch) -> None:
        batch.check()
        width, expected = batch.pixel_values.shape[1], self.config.patch_values
        if width != expected:
            size = self.config.patch_size
            raise PackMismatchError(
                f"Each row of pixel_values must hold {expected} values, a {size} x {size} px RGB "
                f"patch of this checkpoint, found {width}. Cut patches with patch_size {size}."
            )


def load_encoder(
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
) -> Encoder:
    """An encoder for the checkpoint, on the device, ready to encode.

    `checkpoint` is a folder or a Hugging Face repository id, `revision` its branch, tag or commit.
    `device` is auto (CUDA where there is one), cpu, cuda or cuda:<index>; `dtype` is auto (bfloat16
    on CUDA, float32 on CPU), float32 or bfloat16; `attention` is auto or a backend's name. What
    auto became is in the answer. float16 is not offered: activations can exceed its 65504.

    Raises CheckpointError for the checkpoint, ValueError for the other arguments.
    """
    chosen_device = _choose_device(device)
    chosen_dtype = _choose_dtype(dtype, chosen_device)
    backend = choose_backend(attention)
    description = describe_checkpoint(checkpoint, revision=revision)
    tower = load_tower(description, device=chosen_device, dtype=chosen_dtype)
    return Encoder(
        config=description.config,
        digest=description.digest,
        revision=description.revision,
        device=chosen_device,
        dtype=chosen_dtype,
        attention=backend,
        _tower=tower,
        _positions=PositionGrids(tower.positions, chosen_dtype),
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


def _choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ValueError(f"dtype must be auto, {' or '.join(_DTYPES)}, found {name!r}.")
    return _DTYPES[name]


def _row_order(batch: PackedBatch, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """[T] rows of the pack, images taken in this order."""
    cu_seqlens = batch.cu_seqlens
    return np.concatenate([np.arange(cu_seqlens[i], cu_seqlens[i + 1]) for i in order])

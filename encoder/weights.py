"""Checkpoint tensors -> the vision tower's parameters, with the pixel normalisation folded in."""

from collections.abc import Callable, Iterator

import torch
from safetensors import safe_open
from torch import Tensor

from encoder.checkpoint import Checkpoint
from encoder.config import EncoderConfig
from encoder.model import BYTE_CENTRE, VisionTower

__all__ = ["load_tower"]

_BYTE_MEAN, _BYTE_SCALE = 127.5, 127.5  # (x / 255 - 0.5) / 0.5 = (x - 127.5) / 127.5
Read = Callable[[str], Tensor]


def load_tower(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> VisionTower:
    """The checkpoint's vision tower, ready for inference.

    Everything is computed in float32 and rounded to `dtype` last; the position table stays float32.
    """
    with torch.device("meta"):
        tower = VisionTower(checkpoint.config)
    files = {tensor.file for tensor in checkpoint.tensors.values()}
    opened = {file: safe_open(file, framework="pt") for file in files}

    def read(name: str) -> Tensor:
        stored = checkpoint.tensors[name]
        tensor: Tensor = opened[stored.file].get_tensor(stored.name)  # type: ignore[no-untyped-call]
        # A copy: a view of the mapped file would change with it, and where its offset is not a
        # multiple of 64 bytes the products' last digit is another.
        return tensor.to(torch.float32, copy=True)

    state = {
        name: tensor.to(device, torch.float32 if name == "positions" else dtype)
        for name, tensor in _state(read, checkpoint.config)
    }
    tower.load_state_dict(state, strict=True, assign=True)
    return tower.requires_grad_(False).eval()


def _state(read: Read, config: EncoderConfig) -> Iterator[tuple[str, Tensor]]:
    """(name in VisionTower, float32 tensor) of every parameter."""
    weight, bias = _fold_normalisation(
        read("embeddings.patch_embedding.weight"), read("embeddings.patch_embedding.bias")
    )
    yield "patch.weight", weight
    yield "patch.bias", bias
    side = config.grid_side
    yield "positions", read("embeddings.position_embedding.weight").view(side, side, -1)
    for i in range(config.num_hidden_layers):
        yield from _block(read, f"encoder.layers.{i}", f"blocks.{i}")
    yield from _same(read, "post_layernorm", "norm")
    yield from _head(read, config.hidden_size)


def _fold_normalisation(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias for bytes minus BYTE_CENTRE in place of normalised pixels."""
    shift = (BYTE_CENTRE - _BYTE_MEAN) / _BYTE_SCALE
    folded_bias = bias.double() + shift * weight.double().sum(dim=1)
    return weight / _BYTE_SCALE, folded_bias.float()


def _block(read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    yield from _same(read, f"{source}.layer_norm1", f"{target}.norm1")
    for kind in ("weight", "bias"):
        parts = [read(f"{source}.self_attn.{part}_proj.{kind}") for part in "qkv"]
        yield f"{target}.qkv.{kind}", torch.cat(parts)
    yield from _same(read, f"{source}.self_attn.out_proj", f"{target}.out")
    yield from _same(read, f"{source}.layer_norm2", f"{target}.norm2")
    yield from _mlp(read, f"{source}.mlp", f"{target}.mlp")


def _head(read: Read, width: int) -> Iterator[tuple[str, Tensor]]:
    weight, bias = read("head.attention.in_proj_weight"), read("head.attention.in_proj_bias")
    yield "head.query", weight[:width] @ read("head.probe").flatten() + bias[:width]
    yield "head.key_value.weight", weight[width:]
    yield "head.key_value.bias", bias[width:]
    yield from _same(read, "head.attention.out_proj", "head.out")
    yield from _same(read, "head.layernorm", "head.norm")
    yield from _mlp(read, "head.mlp", "head.mlp")


def _mlp(read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    yield from _same(read, f"{source}.fc1", f"{target}.fc1")
    yield from _same(read, f"{source}.fc2", f"{target}.fc2")


def _same(read: Read, source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    for kind in ("weight", "bias"):
        yield f"{target}.{kind}", read(f"{source}.{kind}")

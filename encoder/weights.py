"""Checkpoint tensors -> the vision tower's parameters, with the pixel normalisation folded in."""

from collections.abc import Callable, Iterator

import torch
from safetensors import safe_open
from torch import Tensor

from encoder.checkpoint import Checkpoint
from encoder.linear import lay_out_weights
from encoder.model import BYTE_CENTRE, VisionTower
from encoder.output import Readout
from encoder.processor import Processor

__all__ = ["load_tower"]

Read = Callable[[str], Tensor]


def load_tower(
    checkpoint: Checkpoint, readout: Readout, *, device: torch.device, dtype: torch.dtype
) -> VisionTower:
    """The parts of the checkpoint's vision tower that the readout needs, ready for inference.

    Everything is computed in float32 and rounded to `dtype` last; the position table stays float32.
    """
    with torch.device("meta"):
        tower = VisionTower(checkpoint.config, readout)
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
        for name, tensor in _state(read, checkpoint, readout)
    }
    tower.load_state_dict(state, strict=True, assign=True)
    tower.requires_grad_(False).eval()
    if device.type == "cpu":
        lay_out_weights(tower)
    return tower


def _state(read: Read, checkpoint: Checkpoint, readout: Readout) -> Iterator[tuple[str, Tensor]]:
    """(name in VisionTower, float32 tensor) of every parameter."""
    config = checkpoint.config
    weight = read("embeddings.patch_embedding.weight")
    if weight.dim() == 4:  # a convolution: [D, channel, row, column], and a patch's row has the
        weight = weight.permute(0, 2, 3, 1).flatten(1)  # channel fastest
    weight, bias = _fold_normalisation(
        weight, read("embeddings.patch_embedding.bias"), checkpoint.processor
    )
    yield "patch.weight", weight
    yield "patch.bias", bias
    side = config.grid_side
    yield "positions", read("embeddings.position_embedding.weight").view(side, side, -1)
    for i in range(readout.blocks):
        yield from _block(read, f"encoder.layers.{i}", f"blocks.{i}")
    if readout.norm_after is not None:
        yield from _same(read, "post_layernorm", "norm")
    if readout.vectors == "pooled":
        yield from _head(read, config.hidden_size)


def _fold_normalisation(
    weight: Tensor, bias: Tensor, processor: Processor
) -> tuple[Tensor, Tensor]:
    """Weight and bias for bytes minus BYTE_CENTRE in place of normalised pixels."""
    mean, std = (torch.tensor(values).double() for values in (processor.mean, processor.std))
    pixels = weight.shape[1] // len(mean)
    scale = (processor.rescale / std).repeat(pixels)  # channel fastest
    shift = ((BYTE_CENTRE * processor.rescale - mean) / std).repeat(pixels)
    folded_bias = bias.double() + weight.double() @ shift
    return (weight.double() * scale).float(), folded_bias.float()


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

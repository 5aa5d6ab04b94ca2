"""The tensors of a SigLIP vision tower: names and shapes, and which a checkpoint has. No torch."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from encoder.config import CheckpointError, EncoderConfig

__all__ = ["TowerParts", "find_prefix", "some", "tensor_shapes", "tower_parts"]

_FIRST = "embeddings.patch_embedding.weight"  # ends the name of one tensor of every tower
_BLOCK = re.compile(r"encoder\.layers\.(\d+)\.")

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerParts:
    """What a checkpoint has of its tower. Larger models often leave out what they do not read."""

    blocks: int  # the first so many
    norm: bool  # the final norm
    head: bool  # the pooling head


def find_prefix(names: Collection[str], given: str | None, *, where: str) -> str:
    """What comes before the names of the tower's tensors, with its dot; may be empty.

    Raises CheckpointError where there is no tower, or not exactly one, or none at `given`.
    """
    found = sorted(name.removesuffix(_FIRST) for name in names if name.endswith(_FIRST))
    if given is not None:
        prefix = given if given.endswith(".") or not given else f"{given}."
        if prefix in found:
            return prefix
        raise CheckpointError(
            f"The vision tower must be at prefix {prefix!r}, found it at {some(map(repr, found))} "
            f"in {where}."
        )
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"{where} must hold one vision tower, found {len(found)}: give the prefix of one, "
            f"{some(map(repr, found))}."
        )
    raise CheckpointError(
        f"{where} must hold a vision tower, found no tensor whose name ends in {_FIRST} among "
        f"{some(names)}."
    )


def tower_parts(names: Collection[str], config: EncoderConfig) -> TowerParts:
    """The parts that a tower with these tensor names must have.

    A checkpoint of SigLIP itself has all that config.json says. In a larger model the head may be
    missing, then the final norm, then the last blocks.
    """
    whole = TowerParts(blocks=config.num_hidden_layers, norm=True, head=config.vision_use_head)
    if not config.in_larger_model:
        return whole
    head = whole.head and any(name.startswith("head.") for name in names)
    norm = head or any(name.startswith("post_layernorm.") for name in names)
    if norm:
        return TowerParts(blocks=whole.blocks, norm=True, head=head)
    stored = {int(match[1]) for name in names if (match := _BLOCK.match(name))}
    return TowerParts(blocks=max(stored, default=0) + 1, norm=False, head=False)


def tensor_shapes(config: EncoderConfig, parts: TowerParts) -> Shapes:
    """Every tensor name of transformers' Siglip2VisionModel or SiglipVisionModel with its shape."""
    width, inner, side = config.hidden_size, config.intermediate_size, config.patch_size
    patch = _linear("embeddings.patch_embedding", config.patch_values, width)
    if config.image_size is not None:  # a convolution
        patch[_FIRST] = (width, config.num_channels, side, side)
    shapes = {**patch, "embeddings.position_embedding.weight": (config.num_patches, width)}
    for i in range(parts.blocks):
        layer = f"encoder.layers.{i}"
        shapes |= _norm(f"{layer}.layer_norm1", width) | _norm(f"{layer}.layer_norm2", width)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{layer}.self_attn.{part}", width, width)
        shapes |= _mlp(f"{layer}.mlp", width, inner)
    if parts.norm:
        shapes |= _norm("post_layernorm", width)
    return shapes | _head(width, inner) if parts.head else shapes


def some(names: Iterable[str], count: int = 4) -> str:
    """The first few of the names, in order, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - count} more" if len(ordered) > count else ""
    return ", ".join(ordered[:count]) + more if ordered else "none"


def _head(width: int, inner: int) -> Shapes:
    return {
        "head.probe": (1, 1, width),
        "head.attention.in_proj_weight": (3 * width, width),
        "head.attention.in_proj_bias": (3 * width,),
        **_linear("head.attention.out_proj", width, width),
        **_norm("head.layernorm", width),
        **_mlp("head.mlp", width, inner),
    }


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _mlp(name: str, width: int, inner: int) -> Shapes:
    return _linear(f"{name}.fc1", width, inner) | _linear(f"{name}.fc2", inner, width)

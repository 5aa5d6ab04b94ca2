"""What a checkpoint's config.json says about the vision tower.

Standard library only: the driver reads it on machines without torch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["CheckpointError", "EncoderConfig", "parse_config", "read_config"]

_NAFLEX_TYPES = ("siglip2", "siglip2_vision_model")
_FIXED_TYPES = ("siglip", "siglip_vision_model")


class CheckpointError(ValueError):
    """The checkpoint cannot be used: what must hold, what was found, where, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Sizes of a SigLIP2 NaFlex vision tower.

    Names and defaults are those of transformers' Siglip2VisionConfig: published config.json files
    list only what differs. Raises ValueError at construction where sizes do not fit together.
    """

    hidden_size: int = 768  # D
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    patch_size: int = 16  # px
    num_patches: int = 256  # rows of the learned position table, a square grid
    layer_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_positive(field.name, getattr(self, field.name), field.type)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads})."
            )
        if self.grid_side**2 != self.num_patches:
            raise ValueError(
                f"num_patches ({self.num_patches}) must be a square number: the learned position "
                "table is a square grid."
            )
        if self.num_channels != 3:
            raise ValueError(f"num_channels ({self.num_channels}) must be 3: packs hold RGB.")

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def patch_values(self) -> int:
        """P, the values in one patch."""
        return self.patch_size**2 * self.num_channels

    @property
    def grid_side(self) -> int:
        """Rows and columns of the learned position table."""
        return math.isqrt(self.num_patches)


def read_config(path: Path) -> EncoderConfig:
    """The vision tower's sizes from a config.json; raises CheckpointError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"A checkpoint must have a config.json, found none in {path.parent}. "
            "Give the folder that save_pretrained wrote."
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path} must be JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object, found {type(raw).__name__}.")
    return parse_config(raw, where=str(path))


def parse_config(raw: Mapping[str, Any], *, where: str) -> EncoderConfig:
    """The vision tower's sizes from the JSON of a full Siglip2Config or of its vision part.

    Raises CheckpointError for any other model, for another activation, and for a tower without a
    pooling head; `where` names the file in the message.
    """
    section = _vision_section(raw, where)
    activation = section.get("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise CheckpointError(
            f"{where}: hidden_act must be 'gelu_pytorch_tanh', which every published SigLIP2 tower "
            f"has, found {activation!r}."
        )
    if not section.get("vision_use_head", True):
        raise CheckpointError(
            f"{where}: vision_use_head must be true, found false. The embedding is the pooling "
            "head's output; use a checkpoint that was saved with its head."
        )
    names = [field.name for field in fields(EncoderConfig)]
    try:
        return EncoderConfig(**{name: section[name] for name in names if name in section})
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _vision_section(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    model_type = raw.get("model_type")
    if model_type in _FIXED_TYPES:
        raise CheckpointError(
            f"{where}: model_type must be one of {_NAFLEX_TYPES}, found {model_type!r}, a "
            "fixed-resolution SigLIP checkpoint. Those are not supported; use its NaFlex sibling, "
            "such as google/siglip2-base-patch16-naflex."
        )
    if model_type not in _NAFLEX_TYPES:
        raise CheckpointError(
            f"{where}: model_type must be one of {_NAFLEX_TYPES}, found {model_type!r}. "
            "Use a SigLIP2 NaFlex checkpoint."
        )
    section = raw if model_type == "siglip2_vision_model" else raw.get("vision_config") or {}
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f"{where}: vision_config must be an object, found {type(section).__name__}."
        )
    return section


def _check_positive(name: str, value: Any, kind: Any) -> None:
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted) or not 0 < value < math.inf:
        article = "number" if kind is float else "whole number"
        raise ValueError(f"{name} must be a positive {article}, found {value!r}.")

"""What a checkpoint's config.json says about the vision tower.

Standard library only: the driver reads it on machines without torch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CheckpointError", "EncoderConfig", "parse_config", "read_config", "read_object"]

_NAFLEX, _FIXED = "siglip2_vision_model", "siglip_vision_model"
_TOWERS = (_NAFLEX, _FIXED)
_PAIRS = {"siglip2": _NAFLEX, "siglip": _FIXED}  # image and text towers of one model


class CheckpointError(ValueError):
    """The checkpoint cannot be used: what must hold, what was found, where, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Sizes of a SigLIP2 or SigLIP vision tower.

    Names and defaults are those of transformers' Siglip2VisionConfig and SiglipVisionConfig:
    published config.json files list only what differs. Raises ValueError at construction where
    sizes do not fit together.
    """

    hidden_size: int = 768  # D
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    patch_size: int = 16  # px
    num_patches: int = 256  # rows of the learned position table, a square grid
    layer_norm_eps: float = 1e-6
    image_size: int | None = (
        None  # px, the square that a fixed-resolution tower reads; None: NaFlex
    )
    vision_use_head: bool = True  # the pooling head is there
    feature_layers: tuple[int, ...] = (-1,)  # hidden states that a model around the tower reads
    in_larger_model: bool = False  # other tensors than its own and a text tower's lie beside it

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_positive(name, getattr(self, name), (int,))
        _check_positive("layer_norm_eps", self.layer_norm_eps, (int, float))
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


_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_COUNTS = (*_SIZES, "num_channels", "patch_size", "num_patches")


def read_config(path: Path) -> EncoderConfig:
    """The vision tower's sizes from a config.json; raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(
            f"A checkpoint must have a config.json, found none in {path.parent}. "
            "Give the folder that save_pretrained wrote."
        )
    return parse_config(read_object(path), where=str(path))


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises CheckpointError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} must be JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object, found {type(raw).__name__}.")
    return raw


def parse_config(raw: Mapping[str, Any], *, where: str) -> EncoderConfig:
    """The vision tower's sizes from the JSON of a tower, of SigLIP, or of a model with a tower.

    A model around a tower has it in `vision_config`. Raises CheckpointError for any other tower
    and for another activation; `where` names the file in the message.
    """
    tower, section = _vision_section(raw, where)
    activation = section.get("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise CheckpointError(
            f"{where}: hidden_act must be 'gelu_pytorch_tanh', which every published SigLIP2 tower "
            f"has, found {activation!r}."
        )
    names = (*_COUNTS, "layer_norm_eps")
    sizes = {name: section[name] for name in names if name in section}
    try:
        if tower == _FIXED:
            sizes |= _fixed_sizes(section)
        return EncoderConfig(
            **sizes,
            vision_use_head=bool(section.get("vision_use_head", True)),
            feature_layers=_feature_layers(raw.get("vision_feature_layer", -1)),
            in_larger_model=raw.get("model_type") not in (*_TOWERS, *_PAIRS),
        )
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _vision_section(raw: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """The kind of tower and the mapping that describes it."""
    model_type = raw.get("model_type")
    if model_type in _TOWERS:
        return model_type, raw
    section = raw.get("vision_config") or {}
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f"{where}: vision_config must be an object, found {type(section).__name__}."
        )
    tower = section.get("model_type", _PAIRS.get(str(model_type)))
    if tower not in _TOWERS:
        raise CheckpointError(
            f"{where}: model_type must be one of {(*_PAIRS, *_TOWERS)}, or that of a model whose "
            f"vision_config has one of {_TOWERS}; found {model_type!r} and {tower!r}. Use a "
            "SigLIP2 or SigLIP checkpoint, or a model with such a vision tower."
        )
    return tower, section


def _fixed_sizes(section: Mapping[str, Any]) -> dict[str, int]:
    image_size, patch_size = section.get("image_size", 224), section.get("patch_size", 16)
    _check_positive("image_size", image_size, (int,))
    _check_positive("patch_size", patch_size, (int,))
    if image_size < patch_size:
        raise ValueError(f"image_size ({image_size}) must hold a patch of {patch_size} px.")
    return {"image_size": image_size, "num_patches": (image_size // patch_size) ** 2}


def _feature_layers(value: Any) -> tuple[int, ...]:
    layers = value if isinstance(value, list) else [value]
    if not layers or not all(type(layer) is int for layer in layers):
        raise ValueError(f"vision_feature_layer must be a whole number or several, found {value}.")
    return tuple(layers)


def _check_positive(name: str, value: Any, kinds: tuple[type[float], ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        article = "number" if float in kinds else "whole number"
        raise ValueError(f"{name} must be a positive {article}, found {value!r}.")

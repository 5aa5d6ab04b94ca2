"""A small SigLIP2-shaped checkpoint with seeded, untrained weights, for demos and tests."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from encoder.checkpoint import tensor_shapes
from encoder.config import EncoderConfig
from encoder.source import CONFIG_FILE, WEIGHTS_FILE

__all__ = ["write_seeded_checkpoint"]


def write_seeded_checkpoint(
    folder: str | Path,
    *,
    hidden_size: int = 192,
    intermediate_size: int = 768,
    num_hidden_layers: int = 4,
    num_attention_heads: int = 3,
    patch_size: int = 16,
    num_patches: int = 256,
    seed: int = 0,
) -> Path:
    """The folder, now holding config.json, model.safetensors and preprocessor_config.json.

    transformers' Siglip2VisionModel loads it too. The same arguments give the same weights. Every
    parameter is random, biases and norms included, so that no term of the model goes untested.
    The default has 2.1 million parameters. No torch. Raises ValueError where sizes do not fit.
    """
    config = EncoderConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        patch_size=patch_size,
        num_patches=num_patches,
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors = {name: _draw(rng, name, shape) for name, shape in tensor_shapes(config).items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(folder / CONFIG_FILE, _config_json(config))
    _write_json(folder / "preprocessor_config.json", _preprocessor_json(config))
    return folder


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * values
    if name.endswith("bias"):
        return 0.1 * values
    return values / np.float32(np.sqrt(shape[-1]))


def _config_json(config: EncoderConfig) -> dict[str, object]:
    return {
        "architectures": ["Siglip2VisionModel"],
        "model_type": "siglip2_vision_model",
        "dtype": "float32",
        "hidden_act": "gelu_pytorch_tanh",
        "vision_use_head": True,
        **asdict(config),
    }


def _preprocessor_json(config: EncoderConfig) -> dict[str, object]:
    half = [0.5] * config.num_channels
    return {
        "image_processor_type": "Siglip2ImageProcessor",
        "do_convert_rgb": None,
        "do_resize": True,
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": half,
        "image_std": half,
        "patch_size": config.patch_size,
        "max_num_patches": 256,
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

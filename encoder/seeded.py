"""A small SigLIP2-shaped checkpoint with seeded, untrained weights, for demos and tests."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from encoder.config import EncoderConfig
from encoder.processor import PROCESSOR_FILES
from encoder.source import CONFIG_FILE, WEIGHTS_FILE
from encoder.tensors import tensor_shapes, tower_parts

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
    image_size: int | None = None,
    seed: int = 0,
) -> Path:
    """The folder, now holding config.json, model.safetensors and preprocessor_config.json.

    transformers' Siglip2VisionModel loads it too; SiglipVisionModel where `image_size` (px) makes
    it a fixed-resolution one, from which its `num_patches` follow. The same arguments give the same
    weights. Every parameter is random, biases and norms included, so that no term of the model goes
    untested. The default has 2.1 million parameters. No torch. Raises ValueError where sizes do not
    fit.
    """
    if image_size is not None:
        num_patches = (image_size // patch_size) ** 2
    config = EncoderConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        patch_size=patch_size,
        num_patches=num_patches,
        image_size=image_size,
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(config, tower_parts([], config))
    tensors = {name: _draw(rng, name, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(folder / CONFIG_FILE, _config_json(config))
    _write_json(folder / PROCESSOR_FILES[0], _preprocessor_json(config))
    return folder


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * values
    if name.endswith("bias"):
        return 0.1 * values
    return values / np.float32(np.sqrt(np.prod(shape[1:])))


def _config_json(config: EncoderConfig) -> dict[str, object]:
    fixed = config.image_size is not None
    only = {"image_size": config.image_size} if fixed else {"num_patches": config.num_patches}
    return {
        "architectures": ["SiglipVisionModel" if fixed else "Siglip2VisionModel"],
        "model_type": "siglip_vision_model" if fixed else "siglip2_vision_model",
        "dtype": "float32",
        "hidden_act": "gelu_pytorch_tanh",
        "vision_use_head": True,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_channels": config.num_channels,
        "patch_size": config.patch_size,
        "layer_norm_eps": config.layer_norm_eps,
        **only,
    }


def _preprocessor_json(config: EncoderConfig) -> dict[str, object]:
    half = [0.5] * config.num_channels
    side = config.image_size
    sizes: dict[str, object] = {"patch_size": config.patch_size, "max_num_patches": 256}
    if side is not None:
        sizes = {"size": {"height": side, "width": side}}
    return {
        "image_processor_type": f"Siglip{2 if side is None else ''}ImageProcessor",
        "do_convert_rgb": None,
        "do_resize": True,
        "resample": 2,  # as all SigLIP2 checkpoints
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": half,
        "image_std": half,
        **sizes,
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

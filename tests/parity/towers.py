"""transformers' vision models with random weights, and what they give for the images of a pack."""

from pathlib import Path

import numpy as np
import torch
from transformers import Siglip2VisionConfig, Siglip2VisionModel

from encoder.infer import load_encoder
from encoder.output import Output

MIXED = [
    *((1, 1), (1, 2), (2, 1), (3, 5), (5, 3), (7, 13), (13, 7), (10, 10), (12, 21), (14, 18)),
    *((18, 14), (16, 16), (16, 16), (4, 64), (64, 4), (128, 2), (2, 128), (1, 256), (256, 1)),
    *((1, 16), (16, 1)),
]
FEW = [(1, 1), (3, 5), (14, 18), (16, 16), (4, 64), (64, 4), (1, 256), (256, 1)]
TINY = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
}
TOLERANCE = 1e-5
RAW, TOKENS = Output(normalize=False), Output(vectors="tokens")


def randomise(model, seed=0) -> None:
    """Draw every parameter, so that no bias, norm, probe or position drops out of the result."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * draw)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * draw)
            elif "q_proj" in name or "k_proj" in name or "in_proj" in name:
                # Sharper attention than at the usual scale: boundaries between images must show.
                parameter.copy_(2 * draw / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(draw / parameter.shape[-1] ** 0.5)


def vision_model(**sizes) -> Siglip2VisionModel:
    model = Siglip2VisionModel(Siglip2VisionConfig(**sizes)).eval()
    randomise(model)
    return model


@torch.inference_mode()
def reference(model, pack) -> dict:
    """transformers' pooled [N, D] and hidden states [T, D] of a pack, padded for it.

    By layer as `hidden_states` counts them, which are all before the final norm; `last` is after.
    """
    if hasattr(model.config, "image_size"):
        return _fixed_reference(model, pack)
    lengths = np.diff(pack.cu_seqlens)
    pixels = torch.zeros(len(lengths), int(lengths.max()), pack.pixel_values.shape[1])
    mask = torch.zeros(pixels.shape[:2], dtype=torch.int32)
    for i, rows in enumerate(np.split(pack.pixel_values, pack.cu_seqlens[1:-1])):
        pixels[i, : len(rows)] = (torch.from_numpy(rows.copy()).float() / 255 - 0.5) / 0.5
        mask[i, : len(rows)] = 1
    output = model(
        pixel_values=pixels.to(model.dtype),
        pixel_attention_mask=mask,
        spatial_shapes=torch.from_numpy(pack.spatial_shapes),
        output_hidden_states=True,
    )
    return _by_name(output, lambda states: states[mask.bool()])


def _fixed_reference(model, pack) -> dict:
    """The pack's patches put together to images."""
    side, size = model.config.image_size, model.config.patch_size
    grid = side // size
    patches = torch.from_numpy(pack.pixel_values).view(-1, grid, grid, size, size, 3)
    # What lies outside of whole patches must not matter: bright noise.
    images = torch.full((len(patches), 3, side, side), 9.0, dtype=model.dtype)
    whole = (patches.permute(0, 5, 1, 3, 2, 4).float() / 255 - 0.5) / 0.5
    images[:, :, : grid * size, : grid * size] = whole.reshape(-1, 3, grid * size, grid * size)
    output = model(pixel_values=images, output_hidden_states=True)
    return _by_name(output, lambda states: states.flatten(0, 1))


def _by_name(output, rows) -> dict:
    named = {number: rows(state) for number, state in enumerate(output.hidden_states)}
    named["last"] = rows(output.last_hidden_state)
    if output.pooler_output is not None:
        named["pooled"] = output.pooler_output
    return {name: tensor.float().numpy() for name, tensor in named.items()}


def worst_image(found, expected, cu_seqlens=None) -> float:
    """The largest max|difference| / max|value| of any image."""
    if cu_seqlens is None:
        cu_seqlens = np.arange(len(found) + 1)
    pairs = zip(
        np.split(found, cu_seqlens[1:-1]), np.split(expected, cu_seqlens[1:-1]), strict=True
    )
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def encode(folder: Path, pack, output: Output, *, dtype="float32", **options) -> np.ndarray:
    return load_encoder(folder, device="cpu", dtype=dtype, output=output, **options)(pack)


def differences(model, folder: Path, pack, **options) -> dict:
    """`worst_image` of the pooled vectors, the last hidden state and the layers that are compared.

    Those are what enters the first block, what leaves it, and what leaves the last but one and the
    last, before the final norm.
    """
    expected = reference(model, pack)
    found = {"last": encode(folder, pack, TOKENS, **options)}
    if "pooled" in expected:
        found["pooled"] = encode(folder, pack, RAW, **options)
    depth = model.config.num_hidden_layers
    layers = sorted({0, 1, depth - 1, depth})
    joined = Output(vectors="tokens", layers=tuple(layers), final_norm=False)
    states = encode(folder, pack, joined, **options)
    found |= dict(zip(layers, np.split(states, len(layers), axis=1), strict=True))
    return {
        name: worst_image(values, expected[name], None if name == "pooled" else pack.cu_seqlens)
        for name, values in found.items()
    }

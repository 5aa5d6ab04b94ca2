"""transformers' Siglip2VisionModel on padded batches, as its image processor makes them."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Siglip2VisionModel

from encoder.batch import PackedBatch


class PaddedReference:
    def __init__(self, checkpoint: Path, *, device: str, dtype: torch.dtype) -> None:
        self._model = Siglip2VisionModel.from_pretrained(
            checkpoint, dtype=dtype, attn_implementation="sdpa"
        )
        self._model.to(device).eval()
        self._device = device

    def inputs(self, pack: PackedBatch) -> dict[str, Tensor]:
        """Normalised float32 pixels padded to the longest image of the pack, mask, grids."""
        lengths = np.diff(pack.cu_seqlens)
        pixels = torch.zeros(len(lengths), int(lengths.max()), pack.pixel_values.shape[1])
        mask = torch.zeros(pixels.shape[:2], dtype=torch.int32)
        for image, rows in enumerate(np.split(pack.pixel_values, pack.cu_seqlens[1:-1])):
            pixels[image, : len(rows)] = torch.from_numpy(rows).float().sub(127.5).div(127.5)
            mask[image, : len(rows)] = 1
        inputs = {
            "pixel_values": pixels,
            "pixel_attention_mask": mask,
            "spatial_shapes": torch.from_numpy(pack.spatial_shapes),
        }
        if self._device == "cpu":
            return inputs
        return {name: tensor.pin_memory() for name, tensor in inputs.items()}

    @torch.inference_mode()
    def encode(self, inputs: dict[str, Tensor]) -> np.ndarray:
        """[N, D] float32 pooled vectors of unit length."""
        moved = {
            name: tensor.to(self._device, non_blocking=True) for name, tensor in inputs.items()
        }
        moved["pixel_values"] = moved["pixel_values"].to(self._model.dtype)
        pooled = self._model(**moved).pooler_output.float()
        return torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()

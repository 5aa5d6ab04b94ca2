"""Resizing of 8-bit RGB images with the bytes of the reference processor."""

import functools
import platform
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from encoder.geometry import Resample
from pipeline.colour import RGB
from pipeline.errors import ConfigError

Kernel = Literal["torch", "pillow"]
_PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@functools.cache
def has_uint8_kernel() -> bool:
    """True where torch resizes bytes as bytes: AVX2 and AVX-512 CPUs, and 64-bit ARM.

    Elsewhere torch goes through float, and 13 % of the values differ by one level from the
    reference; Pillow differs in 0.2 %.
    """
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def resolve_kernel(setting: Literal["torch", "pillow", "auto"]) -> Kernel:
    """The kernel that this machine uses for `preprocess.resize_kernel`; recorded in the output.

    Raises ConfigError where torch is asked for and this CPU has no uint8 kernel.
    """
    if setting == "auto":
        return "torch" if has_uint8_kernel() else "pillow"
    if setting == "torch" and not has_uint8_kernel():
        raise ConfigError(
            "preprocess.resize_kernel is torch, which needs a CPU with AVX2 or AVX-512, or 64-bit "
            f"ARM; torch found {torch.backends.cpu.get_cpu_capability()} on "
            f"{platform.machine()}. Use other nodes, or set it to pillow for the whole run."
        )
    return setting


def resize(
    image: RGB, height: int, width: int, kernel: str, resample: Resample = "bilinear"
) -> RGB:
    """The image at height x width px, u8 [height, width, 3]: antialiased.

    `torch` gives the bytes of transformers' SigLIP image processors. `pillow` differs from it by at
    most one level.
    """
    if kernel == "torch":
        return _resize_torch(image, height, width, resample)
    resized = Image.fromarray(image).resize((width, height), _PILLOW[resample])
    return np.asarray(resized)


def _resize_torch(image: RGB, height: int, width: int, resample: Resample) -> RGB:
    # unsqueeze before permute: only then do the strides of the batch axis make torch take the bytes
    # for channels-last. Otherwise it converts them on both sides, three times the work for a small
    # image, and answers in planes, which patchify would have to gather byte by byte.
    batch = torch.from_numpy(image).unsqueeze(0).permute(0, 3, 1, 2)
    resized = F.interpolate(batch, size=(height, width), mode=resample, antialias=True)
    return resized.permute(0, 2, 3, 1)[0].numpy()

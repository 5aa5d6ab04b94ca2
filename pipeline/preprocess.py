"""Image bytes to patches: decode, target grid, resize, cut."""

import threading

import numpy as np
from numpy.typing import NDArray

from encoder.grid import target_grid
from pipeline.colour import RGB
from pipeline.config import PreprocessConfig
from pipeline.decode import PixelBuffer, decode
from pipeline.records import PatchedImage, RawSample
from pipeline.resize import resize, resolve_kernel

__all__ = ["patchify", "prepare", "resolve_kernel"]


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.buffer = PixelBuffer()


_scratch = _Scratch()


def prepare(
    sample: RawSample, config: PreprocessConfig, *, patch_size: int, kernel: str
) -> PatchedImage:
    """The patches of one image, with the bytes of transformers' Siglip2ImageProcessor.

    Raises SampleError where the image is bad; anything else is a fault of ours.
    """

    def grid_of(height: int, width: int) -> tuple[int, int]:
        budget = config.max_num_patches
        return target_grid(height, width, patch_size=patch_size, max_num_patches=budget)

    def twice_the_target(height: int, width: int) -> tuple[int, int]:
        h, w = grid_of(height, width)
        return 2 * h * patch_size, 2 * w * patch_size

    needed = twice_the_target if config.decode == "reduced" else None
    image = decode(sample.image, config, needed=needed, buffer=_scratch.buffer)
    h, w = grid_of(*image.source_size)
    resized = resize(image.pixels, h * patch_size, w * patch_size, kernel)
    return PatchedImage(
        id=sample.id,
        index=sample.index,
        pixel_values=patchify(resized, patch_size),
        grid=(h, w),
        source_size=image.source_size,
        truncated=image.truncated,
        metadata=sample.metadata,
    )


def patchify(image: RGB, patch_size: int) -> NDArray[np.uint8]:
    """u8 [h * w, patch_size^2 * 3]: patches row-major; in a patch row, column, channel fastest."""
    height, width, channels = image.shape
    h, w = height // patch_size, width // patch_size
    blocks = image.reshape(h, patch_size, w, patch_size * channels)
    return blocks.transpose(0, 2, 1, 3).reshape(h * w, patch_size * patch_size * channels)

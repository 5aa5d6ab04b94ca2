"""Image bytes to patches: decode, target grid, resize, cut."""

import threading

import numpy as np
from numpy.typing import NDArray

from encoder.geometry import Geometry
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
    sample: RawSample, config: PreprocessConfig, *, geometry: Geometry, kernel: str
) -> PatchedImage:
    """The patches of one image, with the bytes of transformers' SigLIP image processors.

    Raises SampleError where the image is bad; anything else is a fault of ours.
    """

    def twice_the_target(height: int, width: int) -> tuple[int, int]:
        target_height, target_width = geometry.resized(height, width)
        return 2 * target_height, 2 * target_width

    needed = twice_the_target if config.decode == "reduced" else None
    image = decode(sample.image, config, needed=needed, buffer=_scratch.buffer)
    height, width = geometry.resized(*image.source_size)
    resized = resize(image.pixels, height, width, kernel, geometry.resample)
    return PatchedImage(
        id=sample.id,
        index=sample.index,
        pixel_values=patchify(resized, geometry.patch_size),
        grid=geometry.grid(*image.source_size),
        source_size=image.source_size,
        truncated=image.truncated,
        metadata=sample.metadata,
    )


def patchify(image: RGB, patch_size: int) -> NDArray[np.uint8]:
    """u8 [h * w, patch_size^2 * 3]: patches row-major; in a patch row, column, channel fastest.

    Whole patches from the top left; what is left on the right and at the bottom is dropped.
    """
    height, width, channels = image.shape
    h, w = height // patch_size, width // patch_size
    whole = image[: h * patch_size, : w * patch_size]
    blocks = whole.reshape(h, patch_size, w, patch_size * channels)
    return blocks.transpose(0, 2, 1, 3).reshape(h * w, patch_size * patch_size * channels)

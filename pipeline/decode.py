"""Image bytes to upright RGB pixels, by the rules in docs/images.md."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simplejpeg
from PIL import Image

from pipeline.colour import RGB, to_rgb
from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.image_header import ImageHeader, open_header
from pipeline.jpeg_header import JpegHeader
from pipeline.orientation import swaps_sides, turn_back, turn_upright
from pipeline.pillow_image import describe, is_cut, load_pixels, open_image
from pipeline.records import RejectReason

_KEPT_BYTES = 64 << 20  # 21 megapixels; larger images are rare, and get memory of their own

# From the (height, width) px of an image, the least that its reader needs of each.
Needed = Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedImage:
    pixels: RGB  # u8 [H, W, 3], upright where preprocess.exif_orientation is on
    source_size: tuple[int, int]  # (height, width) px at full size, as upright as the pixels
    truncated: bool  # part of the file is missing; only with truncated_images: accept


class PixelBuffer:
    """Memory for the pixels of one image after the other: fresh pages cost a JPEG 15 % more time.

    What was decoded into it is overwritten by the next image.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, height: int, width: int) -> RGB:
        """An array of [height, width, 3], not cleared."""
        size = height * width * 3
        if size > _KEPT_BYTES:
            return np.empty((height, width, 3), np.uint8)
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size].reshape(height, width, 3)


def decode(
    data: bytes,
    config: PreprocessConfig,
    *,
    needed: Needed | None = None,
    buffer: PixelBuffer | None = None,
) -> DecodedImage:
    """The first frame, in `buffer` where one is given.

    With `needed`, a JPEG may come out smaller, but not below that size. Raises SampleError for a
    bad image; anything else is a fault of ours.
    """
    header, opened = open_header(data, config)
    buffer = buffer or PixelBuffer()
    if isinstance(opened, JpegHeader):
        pixels, truncated = _decode_jpeg(data, header, opened, config, needed, buffer)
    else:
        pixels, truncated = _load(data, header.format, opened, config, buffer)
    if header.format != "TIFF":
        pixels = turn_upright(pixels, header.orientation if config.exif_orientation else 1)
    elif not config.exif_orientation:
        pixels = turn_back(pixels, header.orientation)  # Pillow turns each TIFF
    scaled = needed is not None and header.format == "JPEG"
    height, width = (header.height, header.width) if scaled else pixels.shape[:2]
    return DecodedImage(pixels=pixels, source_size=(height, width), truncated=truncated)


def _decode_jpeg(
    data: bytes,
    header: ImageHeader,
    jpeg: JpegHeader,
    config: PreprocessConfig,
    needed: Needed | None,
    buffer: PixelBuffer,
) -> tuple[RGB, bool]:
    """libjpeg-turbo straight into an array; Pillow where it declines, for CMYK and for profiles."""
    problem = ""
    if jpeg.components != 4 and not (jpeg.has_icc and config.icc == "apply"):
        least = needed(header.height, header.width) if needed else (0, 0)
        if swaps_sides(header.orientation) and config.exif_orientation:
            least = least[::-1]
        try:
            return _decode_turbo(data, least, buffer.take(jpeg.height, jpeg.width)), False
        except ValueError as error:
            problem = describe(error)
        if is_cut(problem):
            return _decode_cut_jpeg(data, problem, config)
    image = open_image(data, "JPEG", config.max_image_pixels)
    try:
        return _load(data, "JPEG", image, config, buffer)
    except SampleError as error:
        if not problem:
            raise
        raise SampleError(error.reason, f"{error.detail} ({problem})") from error


def _decode_turbo(data: bytes, least: tuple[int, int], out: RGB) -> RGB:
    """Raises ValueError for what the decoder declines, and for its warnings."""
    height, width = least
    factor = 2 if height else 1  # 7/8 to 5/8 have no fast path: slower than full size
    pixels: RGB = simplejpeg.decode_jpeg(
        data, "RGB", min_height=height, min_width=width, min_factor=factor, buffer=out
    )
    return pixels


def _decode_cut_jpeg(data: bytes, problem: str, config: PreprocessConfig) -> tuple[RGB, bool]:
    """What there is of a JPEG whose data ends too early, the rest gray; or its rejection."""
    if config.truncated_images == "reject":
        raise SampleError(RejectReason.TRUNCATED_IMAGE, f"JPEG: {problem}")
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=False), True
    except ValueError as error:
        raise SampleError(RejectReason.TRUNCATED_IMAGE, f"JPEG: {describe(error)}") from error


def _load(
    data: bytes, name: str, image: Image.Image, config: PreprocessConfig, buffer: PixelBuffer
) -> tuple[RGB, bool]:
    limit, truncated = config.max_image_pixels, False
    try:
        load_pixels(image, data, name, limit)
    except SampleError as error:
        truncated = error.reason is RejectReason.TRUNCATED_IMAGE
        if not truncated or config.truncated_images == "reject":
            raise
        image = open_image(data, name, limit)  # a failed image would pass for loaded
        load_pixels(image, data, name, limit, accept_truncated=True)
    pixels = buffer.take(image.height, image.width)
    to_rgb(image, pixels, background=config.background, icc=config.icc)
    return pixels, truncated

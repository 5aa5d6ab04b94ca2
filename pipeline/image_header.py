"""What an image is, from its header: format, mode, size, orientation. Limits are checked here."""

import contextlib
from dataclasses import dataclass

from PIL import Image

from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.jpeg_header import JpegHeader, read_jpeg_header
from pipeline.orientation import read_orientation, swaps_sides
from pipeline.pillow_image import open_image, too_many_pixels
from pipeline.records import RejectReason
from pipeline.sniff import sniff

_TIFF_ORIENTATION = 274


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """What is known of an image before its pixels are decoded."""

    format: str  # Pillow's name
    mode: str  # Pillow's name for the pixel type
    height: int  # px, upright where preprocess.exif_orientation is on
    width: int
    orientation: int  # EXIF, 1 to 8; 1 where there is none


Opened = JpegHeader | Image.Image


def probe(data: bytes, config: PreprocessConfig) -> ImageHeader:
    """The header, with no pixel decoded.

    Raises SampleError for what is no image, is not supported or is over a limit.
    """
    return open_header(data, config)[0]


def open_header(data: bytes, config: PreprocessConfig) -> tuple[ImageHeader, Opened]:
    """`probe`, with what the decoders go on from."""
    _check_bytes(data, config.max_image_bytes)
    name, kind = sniff(data)
    if kind == "other":
        raise SampleError(RejectReason.UNKNOWN_FORMAT, f"not an image: {name}")
    if kind == "unsupported":
        raise SampleError(RejectReason.UNSUPPORTED_FORMAT, f"{name} is not decoded here")
    return _open_jpeg(data, config) if name == "JPEG" else _open_other(data, name, config)


def _check_bytes(data: bytes, limit: int) -> None:
    if not data:
        raise SampleError(RejectReason.EMPTY_IMAGE, "0 bytes")
    if len(data) > limit:
        raise SampleError(
            RejectReason.TOO_MANY_BYTES,
            f"{len(data):,} bytes; preprocess.max_image_bytes is {limit:,}",
        )


def _open_jpeg(data: bytes, config: PreprocessConfig) -> tuple[ImageHeader, JpegHeader]:
    jpeg = read_jpeg_header(data)
    _check_jpeg(jpeg)
    orientation = read_orientation(jpeg.exif, jpeg.xmp)
    size = (jpeg.height, jpeg.width)
    return _header("JPEG", jpeg.mode, size, orientation, config), jpeg


def _check_jpeg(jpeg: JpegHeader) -> None:
    if jpeg.ls:
        raise SampleError(RejectReason.UNSUPPORTED_FORMAT, "JPEG-LS is not decoded here")
    if 8 < jpeg.bits <= 16:
        raise SampleError(
            RejectReason.UNSUPPORTED_FORMAT, f"JPEG with {jpeg.bits} bits per value is not decoded"
        )
    if not jpeg.complete:
        raise SampleError(RejectReason.TRUNCATED_IMAGE, "JPEG: ends before its first scan")
    if not jpeg.height or not jpeg.width:
        raise SampleError(RejectReason.DECODE_ERROR, "JPEG: no size before its first scan")


def _open_other(
    data: bytes, name: str, config: PreprocessConfig
) -> tuple[ImageHeader, Image.Image]:
    if name == "AVIF":
        _check_avif(data, config.max_image_pixels)
    image = open_image(data, name, config.max_image_pixels)
    size, orientation = (image.height, image.width), _orientation(image, data)
    if name == "TIFF" and swaps_sides(orientation):
        size = (image.width, image.height)  # Pillow already gives the upright size
    return _header(name, image.mode, size, orientation, config), image


def _check_avif(data: bytes, limit: int) -> None:
    """By the declared size: above 268 megapixels the decoder only says that it cannot parse."""
    at = data.find(b"ispe", 0, 4096)
    width, height = (int.from_bytes(data[at + i : at + i + 4], "big") for i in (8, 12))
    if at > 0 and width * height > limit:
        raise too_many_pixels("AVIF", f"{width}x{height} px", limit)


def _orientation(image: Image.Image, data: bytes) -> int:
    """Never by image.getexif(), which decodes all pixels of a PNG to find an EXIF chunk."""
    if image.format == "TIFF":
        value = image.tag_v2.get(_TIFF_ORIENTATION)  # type: ignore[attr-defined]
        return value if isinstance(value, int) and 1 <= value <= 8 else 1
    exif = image.info.get("exif")
    if image.format == "PNG":
        exif = exif or _png_exif(data) or _raw_profile(image)
    xmp = image.info.get("xmp")
    return read_orientation(exif, xmp if isinstance(xmp, bytes) else None)


def _png_exif(data: bytes) -> bytes | None:
    """The EXIF chunk, which may follow the pixels; Pillow has read up to them only."""
    position = 8
    while (kind := data[position + 4 : position + 8]) and kind != b"IEND":
        length = int.from_bytes(data[position : position + 4], "big")
        if kind == b"eXIf":
            return data[position + 8 : position + 8 + length]
        position += 12 + length
    return None


def _raw_profile(image: Image.Image) -> bytes | None:
    """EXIF as ImageMagick writes it into a PNG: a text chunk with three lines before the hex."""
    text = image.info.get("Raw profile type exif")
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            return bytes.fromhex("".join(text.split("\n")[3:]))
    return None


def _header(
    name: str, mode: str, size: tuple[int, int], orientation: int, config: PreprocessConfig
) -> ImageHeader:
    height, width = size
    if height * width > config.max_image_pixels:
        raise too_many_pixels(name, f"{width}x{height} px", config.max_image_pixels)
    if swaps_sides(orientation) and config.exif_orientation:
        height, width = width, height
    return ImageHeader(format=name, mode=mode, height=height, width=width, orientation=orientation)

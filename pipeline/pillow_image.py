"""Pillow within bounds: one named format, a pixel limit, no warnings, no unknown exceptions."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

from PIL import AvifImagePlugin, Image, ImageFile

from pipeline.errors import SampleError
from pipeline.records import RejectReason

logging.getLogger("PIL").setLevel(logging.CRITICAL)  # it reports each odd TIFF tag

_CUT = re.compile(r"truncat|not enough|unexpected end|premature|end of file|buffer overrun", re.I)
_ADDRESS = re.compile(r"<[^<>]* object at 0x[0-9a-f]+>|'?/[^\s']+'?")


def open_image(data: bytes, image_format: str, max_pixels: int) -> Image.Image:
    """The image with its header read and no pixel decoded. Raises SampleError."""
    with _rejecting(image_format, max_pixels):
        image = Image.open(io.BytesIO(data), formats=[image_format])
    return image


def load_pixels(image: Image.Image, max_pixels: int, *, accept_truncated: bool = False) -> None:
    """Decodes the first frame in place. Raises SampleError."""
    with _rejecting(str(image.format), max_pixels, accept_truncated=accept_truncated):
        image.load()


def describe(error: object) -> str:
    """A decoder's message on one line, without paths and addresses."""
    text = _ADDRESS.sub("it", " ".join(str(error).split()))
    return text[:200] or type(error).__name__


def is_cut(message: str) -> bool:
    """True where a decoder's message says that data is missing."""
    return _CUT.search(message) is not None


@contextlib.contextmanager
def _rejecting(
    image_format: str, max_pixels: int, *, accept_truncated: bool = False
) -> Iterator[None]:
    """Pillow's global settings for one image, and its exceptions as SampleError.

    The settings are module globals: one thread at a time may decode.
    """
    saved = (
        Image.MAX_IMAGE_PIXELS,
        Image.WARN_POSSIBLE_FORMATS,
        ImageFile.LOAD_TRUNCATED_IMAGES,
        AvifImagePlugin.DEFAULT_MAX_THREADS,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Image.MAX_IMAGE_PIXELS = max_pixels / 2  # type: ignore[assignment]  # it raises above twice
        Image.WARN_POSSIBLE_FORMATS = True  # else the reason for "cannot identify" is lost
        ImageFile.LOAD_TRUNCATED_IMAGES = accept_truncated
        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
        try:
            yield
        except Image.DecompressionBombError as error:
            raise too_many_pixels(image_format, describe(error), max_pixels) from error
        except Image.UnidentifiedImageError as error:
            message = describe(caught[-1].message if caught else "the header is not readable")
            raise _rejection(image_format, message) from error
        except Exception as error:  # plugins raise whatever the bytes make them raise
            raise _rejection(image_format, describe(error)) from error
        finally:
            (
                Image.MAX_IMAGE_PIXELS,
                Image.WARN_POSSIBLE_FORMATS,
                ImageFile.LOAD_TRUNCATED_IMAGES,
                AvifImagePlugin.DEFAULT_MAX_THREADS,
            ) = saved


def too_many_pixels(image_format: str, found: str, limit: int) -> SampleError:
    return SampleError(
        RejectReason.TOO_MANY_PIXELS,
        f"{image_format}: {found}; preprocess.max_image_pixels is {limit:,}",
    )


def _rejection(image_format: str, message: str) -> SampleError:
    reason = RejectReason.TRUNCATED_IMAGE if is_cut(message) else RejectReason.DECODE_ERROR
    return SampleError(reason, f"{image_format}: {message}")

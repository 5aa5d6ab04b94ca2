"""Pillow within bounds: one named format, a pixel limit, no warnings, no unknown exceptions."""

import contextlib
import io
import logging
import os
import re
import warnings
from collections.abc import Iterator

from PIL import AvifImagePlugin, Image, ImageFile, UnidentifiedImageError

from pipeline.errors import SampleError
from pipeline.extent import is_cut_short
from pipeline.records import RejectReason

logging.getLogger("PIL").setLevel(logging.CRITICAL)  # it reports each odd TIFF tag

_CUT = re.compile(r"truncat|not enough|unexpected end|premature|end of file", re.I)
_NOISE = re.compile(
    r"<[^<>]* object at 0x[0-9a-f]+>|(?<![^\s'\"])/[^\s'\"]+|^\w+ opening failed\. "
)


def open_image(data: bytes, image_format: str, max_pixels: int) -> Image.Image:
    """The image with its header read and no pixel decoded. Raises SampleError."""
    with _rejecting(data, image_format, max_pixels):
        image = Image.open(io.BytesIO(data), formats=[image_format])
    return image


def load_pixels(
    image: Image.Image,
    data: bytes,
    image_format: str,
    max_pixels: int,
    *,
    accept_truncated: bool = False,
) -> None:
    """Decodes the first frame in place. Raises SampleError."""
    with _rejecting(data, image_format, max_pixels, accept_truncated=accept_truncated):
        image.load()


def describe(error: object) -> str:
    """A decoder's message on one line, without paths and addresses."""
    text = _NOISE.sub("", " ".join(str(error).split())).strip()
    return text[:200] or type(error).__name__


def is_cut(message: str) -> bool:
    """True where a decoder's message says that data is missing."""
    return _CUT.search(message) is not None


@contextlib.contextmanager
def _rejecting(
    data: bytes, image_format: str, max_pixels: int, *, accept_truncated: bool = False
) -> Iterator[None]:
    """Pillow's exceptions as SampleError."""
    with _quiet(image_format), _settings(max_pixels, accept_truncated) as caught:
        try:
            yield
        except Image.DecompressionBombError as error:
            found = re.search(r"\d+ pixels", str(error))
            raise too_many_pixels(
                image_format, found[0] if found else describe(error), max_pixels
            ) from error
        except UnidentifiedImageError as error:
            message = describe(caught[-1].message) if caught else "its header is not readable"
            raise _rejection(data, image_format, message) from error
        except Exception as error:  # plugins raise whatever the bytes make them raise
            raise _rejection(data, image_format, describe(error)) from error


@contextlib.contextmanager
def _settings(max_pixels: int, accept_truncated: bool) -> Iterator[list[warnings.WarningMessage]]:
    """Pillow's options for one image; they are module globals, so one thread decodes at a time."""
    values = [
        (Image, "MAX_IMAGE_PIXELS", max_pixels / 2),  # it warns above this, raises above twice
        (Image, "WARN_POSSIBLE_FORMATS", True),  # else why it "cannot identify" is lost
        (ImageFile, "LOAD_TRUNCATED_IMAGES", accept_truncated),
        (AvifImagePlugin, "DEFAULT_MAX_THREADS", 1),
    ]
    saved = [getattr(module, name) for module, name, _ in values]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for module, name, value in values:
                setattr(module, name, value)
            yield caught
        finally:
            for (module, name, _), value in zip(values, saved, strict=True):
                setattr(module, name, value)


@contextlib.contextmanager
def _quiet(image_format: str) -> Iterator[None]:
    """Closes standard error to libtiff, which writes there past Python; no other decoder does."""
    if image_format != "TIFF":
        yield
        return
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def too_many_pixels(image_format: str, found: str, limit: int) -> SampleError:
    return SampleError(
        RejectReason.TOO_MANY_PIXELS,
        f"{image_format}: {found}; preprocess.max_image_pixels is {limit:,}",
    )


def _rejection(data: bytes, image_format: str, message: str) -> SampleError:
    cut = is_cut(message) or is_cut_short(data, image_format)
    reason = RejectReason.TRUNCATED_IMAGE if cut else RejectReason.DECODE_ERROR
    return SampleError(reason, f"{image_format}: {message}")

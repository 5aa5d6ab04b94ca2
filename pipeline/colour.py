"""Colour rules: what each image that Pillow can load becomes as 8-bit RGB; see docs/images.md.

Large images are converted in strips of rows: no second copy of the whole image is made, and a
strip stays in the CPU's cache (five times faster than one pass over 3 megapixels).
"""

import io
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from pipeline.errors import SampleError
from pipeline.records import RejectReason

RGB = NDArray[np.uint8]  # [H, W, 3]
Strip = Callable[[Image.Image], NDArray[np.uint8]]  # rows of an image -> [h, W, 3] or [h, W, 1]

_STRIP_ROWS = 64
_BACKGROUNDS = {"white": (255, 255, 255), "gray": (128, 128, 128), "black": (0, 0, 0)}
_WITH_ALPHA = {"RGBA", "LA", "PA", "RGBa", "La"}
_PLAIN = {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"}
_HAS_COLOUR_KEY = {
    "1",
    "L",
    "P",
    "RGB",
}  # modes in which info["transparency"] can make pixels clear
_TIFF_BITS, _TIFF_PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0


def to_rgb(image: Image.Image, out: RGB, *, background: str, icc: str) -> None:
    """Fills `out`, u8 [H, W, 3], with a loaded image.

    `background` is white, gray, black or drop, `icc` is ignore or apply, as in PreprocessConfig.
    Raises SampleError for a mode that no rule knows.
    """
    convert = _converter(image, background, icc)
    for top, strip in _strips(image):
        out[top : top + strip.height] = convert(strip)


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    for top in range(0, image.height, _STRIP_ROWS):
        bottom = min(top + _STRIP_ROWS, image.height)
        yield top, image.crop((0, top, image.width, bottom))


def _converter(image: Image.Image, background: str, icc: str) -> Strip:
    mode = image.mode
    if mode.startswith("I;16"):
        return _scale_16_bit(image, background)
    if mode in ("I", "F"):
        return _scale_range(image)
    if mode == "LAB":  # Pillow's convert would build this transform for each strip
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(lab, srgb, "LAB", "RGB")
        return lambda strip: _apply(transform, strip)
    if mode not in _PLAIN | _WITH_ALPHA:
        raise SampleError(RejectReason.UNSUPPORTED_FORMAT, f"no rule for the pixel mode {mode!r}")
    opaque = _flatten(image, background)
    if icc == "apply" and (embedded := _embedded_transform(image)) is not None:
        direct = embedded.input_mode == mode and mode != "RGB"
        return lambda strip: _apply(embedded, strip if direct else opaque(strip))
    return lambda strip: np.asarray(opaque(strip))


def _flatten(image: Image.Image, background: str) -> Callable[[Image.Image], Image.Image]:
    """A function from strips to RGB images without alpha."""
    transparency = image.info.get("transparency") if image.mode in _HAS_COLOUR_KEY else None
    if image.mode not in _WITH_ALPHA and transparency is None:
        return lambda strip: strip if strip.mode == "RGB" else strip.convert("RGB")
    if background == "drop":
        image.info.pop("transparency", None)
        return lambda strip: strip.convert("RGBA").convert("RGB")
    if isinstance(transparency, tuple) and max(transparency) > 255:
        # The key of a 16-bit PNG, whose pixels Pillow has cut to their high bytes.
        image.info["transparency"] = tuple(value >> 8 for value in transparency)
    colour = (*_BACKGROUNDS[background], 255)

    def over_background(strip: Image.Image) -> Image.Image:
        canvas = Image.new("RGBA", strip.size, colour)
        canvas.alpha_composite(strip.convert("RGBA"))
        return canvas.convert("RGB")

    return over_background


def _scale_16_bit(image: Image.Image, background: str) -> Strip:
    """0 to white becomes 0 to 255, rounded. Pillow's own convert clips at 255 instead."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_TIFF_BITS, (16,))[0]
    white = (1 << bits) - 1 if 8 < bits < 16 else 0xFFFF
    inverted = tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO
    clear = image.info.get("transparency") if background != "drop" else None

    def scale(strip: Image.Image) -> NDArray[np.uint8]:
        values = np.asarray(strip).astype(np.uint32)
        gray = ((np.minimum(values, white) * 255 + white // 2) // white).astype(np.uint8)
        if inverted:
            gray = 255 - gray
        if isinstance(clear, int):
            gray[values == clear] = _BACKGROUNDS[background][0]
        return gray[..., None]

    return scale


def _scale_range(image: Image.Image) -> Strip:
    """32-bit integers and floats, whose white is written nowhere.

    Black is 0 or the lowest value, whichever is less. White is the highest value, and at least 255
    for integers and 1 for floats, so that what is stored in the usual range keeps its brightness.
    16-bit PNM is the exception: its white is known. Values that are not finite become black.
    """
    low, high = 0.0, 1.0 if image.mode == "F" else 255.0
    if image.format == "PPM" and image.mode == "I":
        high = 65535.0
    else:
        for _, strip in _strips(image):
            values = np.asarray(strip)
            finite = values[np.isfinite(values)]
            low, high = float(finite.min(initial=low)), float(finite.max(initial=high))

    def scale(strip: Image.Image) -> NDArray[np.uint8]:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = np.asarray(strip).astype(np.float64)
        values[~np.isfinite(values)] = low
        levels = (values - low) * (255 / (high - low))
        return np.rint(levels).clip(0, 255).astype(np.uint8)[..., None]

    return scale


def _embedded_transform(image: Image.Image) -> ImageCms.ImageCmsTransform | None:
    """From the embedded profile to sRGB; None where there is none, or none that can be used."""
    data = image.info.get("icc_profile")
    if not data:
        return None
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        space = profile.profile.xcolor_space.strip()
        mode = {"GRAY": "L", "CMYK": "CMYK", "RGB": "RGB"}.get(space)
        if mode == image.mode or (mode == "RGB" and image.mode != "CMYK"):
            srgb = ImageCms.createProfile("sRGB")
            return ImageCms.buildTransform(profile, srgb, mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):  # a damaged profile; the pixels are good
        pass
    return None


def _apply(transform: ImageCms.ImageCmsTransform, strip: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(ImageCms.applyTransform(strip, transform))

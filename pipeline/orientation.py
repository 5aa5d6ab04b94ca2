"""EXIF orientation: read from metadata without decoding pixels, applied to arrays."""

import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_TAG, _SHORT = 0x0112, 3
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def read_orientation(exif: bytes | None, xmp: bytes | None = None) -> int:
    """1 to 8; 1 (upright) where there is none, it cannot be read, or its value is none of these.

    `exif` is a TIFF structure, with or without the "Exif" prefix. XMP counts where EXIF has no
    orientation at all, as in Pillow's ImageOps.exif_transpose.
    """
    value = _from_exif(exif) if exif else None
    if value is None and xmp and (found := _XMP.search(xmp)):
        value = int(found[1])
    return value if value is not None and 1 <= value <= 8 else 1


def _from_exif(exif: bytes) -> int | None:
    tiff = exif.removeprefix(b"Exif\0\0")
    if tiff[:2] not in (b"II", b"MM"):
        return None
    order: Literal["little", "big"] = "little" if tiff[:1] == b"I" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    directory = number(4, 4)
    for entry in range(directory + 2, directory + 2 + 12 * number(directory, 2), 12):
        if len(tiff) < entry + 12:
            return None
        if number(entry, 2) == _TAG and number(entry + 2, 2) == _SHORT:
            return number(entry + 8, 2)
    return None


def swaps_sides(orientation: int) -> bool:
    return orientation >= 5


def turn_upright(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """The upright image, u8 [H, W, 3], contiguous; the same array where there is nothing to do."""
    if orientation == 1:
        return image
    pixels = image.view("V3")[..., 0]  # whole pixels move in half the time of single bytes
    if swaps_sides(orientation):
        pixels = pixels.T
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels).view(np.uint8).reshape(*pixels.shape, 3)


def turn_back(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """The array that `turn_upright` makes `image` of."""
    return turn_upright(image, {6: 8, 8: 6}.get(orientation, orientation))

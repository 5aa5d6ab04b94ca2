"""Whether a file ends before its own structure says: what decoders often call just broken."""

from collections.abc import Iterator
from typing import Literal

_BOXES = {"AVIF", "JPEG2000"}  # ISO base media: length, name, content


def is_cut_short(data: bytes, image_format: str) -> bool:
    """True where the structure of the format proves that the end of the file is missing."""
    if image_format == "WEBP":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    if image_format == "TIFF":
        return len(data) < _tiff_directory(data)
    if image_format == "PNG":
        return b"IEND" not in data[-64:]
    if image_format == "GIF":
        return not data.rstrip(b"\0").endswith(b";")
    if image_format == "JPEG2000" and not data.startswith(b"\0\0\0\x0cjP"):
        return not data.endswith(b"\xff\xd9")
    return image_format in _BOXES and any(end > len(data) for end in _box_ends(data))


def _tiff_directory(data: bytes) -> int:
    """Where the first directory begins, plus the two bytes of its count."""
    order: Literal["little", "big"] = "little" if data[:1] == b"I" else "big"
    big = data[2:4] in (b"+\0", b"\0+")
    return int.from_bytes(data[8:16] if big else data[4:8], order) + 2


def _box_ends(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if length == 1:
            length = int.from_bytes(data[position + 8 : position + 16], "big")
        if length < 8:  # 0: to the end of the file; else no box
            return
        position += length
        yield position

"""What a JPEG says of itself before its first scan: one walk over the markers, no decoding."""

from dataclasses import dataclass

_STANDALONE = {0x00, 0x01, 0xD8, *range(0xD0, 0xD8)}  # no length follows these markers
_NOT_FRAMES = {0xC4, 0xC8, 0xCC}  # tables among the frame markers C0 to CF
_START_OF_SCAN, _END_OF_IMAGE, _JPEG_LS = 0xDA, 0xD9, 0xF7
_APP1, _APP2 = 0xE1, 0xE2
_EXIF, _XMP, _ICC = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"ICC_PROFILE\0"


@dataclass(slots=True)
class JpegHeader:
    """Sizes are 0 until a frame marker was met. `complete` says that a scan begins."""

    height: int = 0
    width: int = 0
    components: int = 0
    bits: int = 8
    ls: bool = False  # JPEG-LS, a format of its own inside JPEG's markers
    exif: bytes | None = None
    xmp: bytes | None = None
    has_icc: bool = False
    complete: bool = False

    @property
    def mode(self) -> str:
        return {1: "L", 3: "RGB", 4: "CMYK"}.get(self.components, "?")


def read_jpeg_header(data: bytes) -> JpegHeader:
    """The header of a file that begins with the JPEG signature; never raises, whatever follows."""
    header, position = JpegHeader(), 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:  # stray bytes between segments, which decoders skip too
            position = data.find(b"\xff", position)
            if position < 0:
                break
            continue
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _STANDALONE:
            position += 2
            continue
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            header.complete = marker == _START_OF_SCAN
            break
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        _read_segment(header, marker, data, position + 4, position + 2 + length)
        position += 2 + length
    return header


def _read_segment(header: JpegHeader, marker: int, data: bytes, start: int, end: int) -> None:
    if (0xC0 <= marker <= 0xCF and marker not in _NOT_FRAMES) or marker == _JPEG_LS:
        frame = data[start : min(end, start + 6)]
        if len(frame) == 6:
            header.bits, header.components = frame[0], frame[5]
            header.height = int.from_bytes(frame[1:3], "big")
            header.width = int.from_bytes(frame[3:5], "big")
            header.ls = marker == _JPEG_LS
    elif marker == _APP1 and header.exif is None and data.startswith(_EXIF, start):
        header.exif = data[start:end]
    elif marker == _APP1 and header.xmp is None and data.startswith(_XMP, start):
        header.xmp = data[start:end]
    elif marker == _APP2 and data.startswith(_ICC, start):
        header.has_icc = True

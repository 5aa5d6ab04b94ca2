"""What a member's bytes are, told by their first bytes alone: names never decide the format."""

import codecs
import re
from typing import Literal, NamedTuple

Kind = Literal["image", "unsupported", "other"]


class Sniffed(NamedTuple):
    name: str  # Pillow's name of a format that is decoded, else what people call it
    kind: Kind  # image: decoded here; unsupported: an image format that is not; other: no image


# Decoded formats. A format is here because people publish photographs in it, its signature is
# unambiguous and its decoder is compiled code whose work is bounded by the pixel limit.
_IMAGES = [
    (b"\xff\xd8", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"\0\0\1\0", "ICO"),
    (b"8BPS", "PSD"),
    (b"\x01\xda", "SGI"),
    (b"\x59\xa6\x6a\x95", "SUN"),
]
# Named, never handed to a decoder: an interpreter (EPS, SVG, PDF), a decoder written in Python that
# takes seconds for a few bytes (BLP, QOI), or nothing to decode it with.
_UNSUPPORTED = [
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"IIRO", "Olympus raw"),
    (b"IIRS", "Olympus raw"),
    (b"IIU\0", "Panasonic raw"),
    (b"FUJIFILMCCD-RAW", "Fujifilm raw"),
    (b"II\xbc\1", "JPEG XR"),
    (b"\0\0\2\0", "CUR"),
    (b"qoif", "QOI"),
    (b"DDS ", "DDS"),
    (b"BLP1", "BLP"),
    (b"BLP2", "BLP"),
    (b"%!PS", "EPS"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"%PDF", "PDF"),
    (b"icns", "ICNS"),
    (b"gimp xcf", "XCF"),
    (b"v/1\1", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"#?RGBE", "Radiance HDR"),
    (b"SIMPLE  =", "FITS"),
    (b"\x8aMNG\r\n\x1a\n", "MNG"),
    (b"\x8bJNG\r\n\x1a\n", "JNG"),
    (b"FLIF", "FLIF"),
    (b"BPG\xfb", "BPG"),
    (b"AT&TFORM", "DjVu"),
    (b"\xd7\xcd\xc6\x9a", "WMF"),
    (b"GRIB", "GRIB"),
    (b"BUFR", "BUFR"),
    (b"P7", "PAM"),
    (b"\xffO\xff", "JPEG 2000 fragment"),
    (b"/* XPM */", "XPM"),
    (b"DanM", "MSP"),
    (b"LinS", "MSP"),
    (b"Image type:", "IM"),
]
_OTHER = [
    (b"version https://git-lfs.github.com/spec", "a Git LFS pointer"),
    (b"PK\3\4", "a ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!", "a RAR archive"),
    (b"\x1a\x45\xdf\xa3", "a Matroska or WebM video"),
    (b"\0\0\1\xba", "an MPEG video"),
    (b"\0\0\1\xb3", "an MPEG video"),
    (b"OggS", "an Ogg file"),
    (b"ID3", "an MP3 file"),
    (b"fLaC", "a FLAC file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "an SQLite database"),
]
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
_MARKUP = [(rb"<svg", "SVG"), (rb"<(!doctype html|html|head|body)\b", "HTML"), (rb"<", "XML")]


def sniff(data: bytes) -> Sniffed:
    """The format of the bytes and whether it is decoded here; the name plays no part."""
    if data[-18:] == b"TRUEVISION-XFILE.\0":  # its first bytes are those of a cursor
        return Sniffed("TGA", "image")
    for signatures, kind in _TABLES:
        for signature, name in signatures:
            if data.startswith(signature):
                return Sniffed(name, kind)
    return _by_structure(data) or _text(data) or Sniffed("unknown bytes", "other")


_TABLES: list[tuple[list[tuple[bytes, str]], Kind]] = [
    (_IMAGES, "image"),
    (_UNSUPPORTED, "unsupported"),
    (_OTHER, "other"),
]


def _by_structure(data: bytes) -> Sniffed | None:
    """Formats whose mark is not at the start, or is more than a string."""
    if data[:4] == b"RIFF":
        return {
            b"WEBP": Sniffed("WEBP", "image"),
            b"AVI ": Sniffed("an AVI video", "other"),
            b"WAVE": Sniffed("a WAV file", "other"),
        }.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _by_brand(data)
    if re.match(rb"P[1-6fF]\s", data):
        return Sniffed("PPM", "image")
    if len(data) > 128 and data[:1] == b"\x0a" and data[1] in (0, 2, 3, 5) and data[2] == 1:
        return Sniffed("PCX", "image")
    if data[1:4] == b"PNG":  # a text-mode transfer changes the bytes around it
        return Sniffed("a PNG with a damaged signature", "other")
    if data[4:6] in (b"\x11\xaf", b"\x12\xaf"):
        return Sniffed("FLI animation", "unsupported")
    if data[257:262] == b"ustar":
        return Sniffed("a tar archive", "other")
    return None


def _by_brand(data: bytes) -> Sniffed:
    """ISO base media: a still image (AVIF, HEIC), a raw photo or a video, told by its brands."""
    end = min(int.from_bytes(data[:4], "big"), 256)
    brands = {data[8:12], *(data[i : i + 4] for i in range(16, end, 4))}
    if brands & {b"avif", b"avis"}:
        return Sniffed("AVIF", "image")
    if brands & _HEIC_BRANDS or data[8:12] in (b"mif1", b"msf1"):
        return Sniffed("HEIC", "unsupported")
    if data[8:12] == b"crx ":
        return Sniffed("Canon raw", "unsupported")
    return Sniffed("an MP4 or QuickTime video", "other")


def _text(data: bytes) -> Sniffed | None:
    head = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        return Sniffed("white space", "other")
    if b"/annex/objects/" in head[:512]:
        return Sniffed("a git-annex pointer", "other")
    if head.startswith(b"<"):
        for pattern, name in _MARKUP:
            if re.search(pattern, head, re.IGNORECASE):
                return Sniffed(name, "unsupported" if name == "SVG" else "other")
    if head.startswith(b"#define") and b"_width" in head:
        return Sniffed("XBM", "unsupported")
    if head[:1] in (b"{", b"["):
        return Sniffed("JSON", "other")
    return Sniffed("text", "other") if _is_text(head) else None


def _is_text(head: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return not re.search(r"[\x00-\x08\x0e-\x1f\x7f]", text)

import io

import pytest
from PIL import Image

from pipeline.sniff import sniff

FORMATS = ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM", "ICO"]


@pytest.mark.parametrize("name", [*FORMATS, "PCX", "SGI", "TGA"])
def test_decoded_formats_are_told_by_content(name):
    file = io.BytesIO()
    Image.new("RGB", (32, 20), "red").save(file, name)
    assert sniff(file.getvalue()) == (name, "image")


def box(brand, *others):
    content = brand + b"\0\0\0\0" + b"".join(others)
    return (len(content) + 8).to_bytes(4, "big") + b"ftyp" + content + b"\0" * 40


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (box(b"heic", b"mif1"), ("HEIC", "unsupported")),
        (box(b"mif1", b"heic"), ("HEIC", "unsupported")),
        (box(b"mif1", b"avif", b"miaf"), ("AVIF", "image")),
        (box(b"crx "), ("Canon raw", "unsupported")),
        (box(b"isom", b"mp42"), ("an MP4 or QuickTime video", "other")),
        (b"\xff\x0a\xfa\x1f", ("JPEG XL", "unsupported")),
        (b"\0\0\0\x0cJXL \r\n\x87\n", ("JPEG XL", "unsupported")),
        (b"qoif\0\0\0\1", ("QOI", "unsupported")),
        (b"BLP2\1\0\0\0", ("BLP", "unsupported")),
        (b"%!PS-Adobe-3.0 EPSF-3.0", ("EPS", "unsupported")),
        (b"%PDF-1.7", ("PDF", "unsupported")),
        (b"<?xml version='1.0'?><svg xmlns=''>", ("SVG", "unsupported")),
        (b"\n <!DOCTYPE HTML><html>", ("HTML", "other")),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", ("XML", "other")),
        (b'{"error": "not found"}', ("JSON", "other")),
        (b"\xef\xbb\xbf [1, 2]", ("JSON", "other")),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            ("a Git LFS pointer", "other"),
        ),
        (b"../.git/annex/objects/aa/bb/SHA256E-s1--c.jpg", ("a git-annex pointer", "other")),
        (b"404: Not Found", ("text", "other")),
        ("na\u00efve".encode(), ("text", "other")),
        (b"x" * 4095 + "\u00ef".encode() + b"y" * 9, ("text", "other")),
        (b"   \n", ("white space", "other")),
        (b"PK\3\4zip", ("a ZIP archive", "other")),
        (b"\x1f\x8b\x08", ("gzip data", "other")),
        (b"\x1a\x45\xdf\xa3", ("a Matroska or WebM video", "other")),
        (b"RIFF\0\0\0\0AVI LIST", ("an AVI video", "other")),
        (b"RIFF\0\0\0\0????", ("unknown bytes", "other")),
        (b"\x89PNG\n\n\x1a\n", ("a PNG with a damaged signature", "other")),
        (b"\0" * 600, ("unknown bytes", "other")),
        (b"\0" * 257 + b"ustar\0", ("a tar archive", "other")),
        (b"\x00\x01\x02\x03", ("unknown bytes", "other")),
        (b"\x80\x81\x82", ("unknown bytes", "other")),
    ],
)
def test_everything_else_is_named(data, expected):
    assert sniff(data) == expected


@pytest.mark.parametrize("length", range(24))
def test_short_data_never_raises(length):
    for start in (b"RIFF", b"\0\0\0\x18ftypavif", b"P6", b"\x0a\5\1", b"<", b"\xff\xd8"):
        sniff((start + b"\0" * 24)[:length])

import io
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.image_header import ImageHeader, probe
from pipeline.records import RejectReason

CONFIG = PreprocessConfig()
PHOTOS = Path(__file__).parents[2] / "pipeline" / "demo_photos"


def encoded(file_format, mode="RGB", size=(64, 48), **options):
    file = io.BytesIO()
    Image.new(mode, size).save(file, file_format, **options)
    return bytearray(file.getvalue())


def rejection(data, config=CONFIG):
    with pytest.raises(SampleError) as caught:
        probe(bytes(data), config)
    return caught.value


def test_header_of_each_format():
    for name in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM"):
        header = probe(bytes(encoded(name)), CONFIG)
        assert (header.format, header.height, header.width) == (name, 48, 64)
        assert header.orientation == 1
        assert header.mode == ("P" if name == "GIF" else "RGB")


@pytest.mark.parametrize(("mode", "name"), [("L", "JPEG"), ("CMYK", "JPEG"), ("LA", "PNG")])
def test_mode_is_that_of_the_file(mode, name):
    assert probe(bytes(encoded(name, mode)), CONFIG).mode == mode


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("value", [1, 3, 6, 8])
def test_orientation_is_read_and_turns_the_size(name, value):
    exif = Image.Exif()
    exif[0x0112] = value
    data = bytes(encoded(name, exif=exif))
    header = probe(data, CONFIG)
    size = (64, 48) if value >= 5 else (48, 64)
    assert (header.orientation, (header.height, header.width)) == (value, size)
    plain = probe(data, PreprocessConfig(exif_orientation=False))
    assert (plain.orientation, plain.height, plain.width) == (value, 48, 64)


def png_chunk(kind, content):
    check = zlib.crc32(kind + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + kind + content + check


def test_exif_of_a_png_is_found_after_the_pixels_without_decoding_them(monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = bytes(encoded("PNG"))
    after = data[:-12] + png_chunk(b"eXIf", exif.tobytes()[6:]) + data[-12:]
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    assert probe(after, CONFIG) == ImageHeader(
        format="PNG", mode="RGB", height=64, width=48, orientation=6
    )


def test_exif_in_an_imagemagick_profile():
    exif = Image.Exif()
    exif[0x0112] = 8
    text = b"Raw profile type exif\0\nexif\n  34\n" + exif.tobytes().hex().encode() + b"\n"
    data = bytes(encoded("PNG"))
    assert probe(data[:33] + png_chunk(b"tEXt", text) + data[33:], CONFIG).orientation == 8
    broken = b"Raw profile type exif\0\nexif\n  34\nno hex\n"
    assert probe(data[:33] + png_chunk(b"tEXt", broken) + data[33:], CONFIG).orientation == 1


def huge_jpeg():
    data = encoded("JPEG")
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65535, 65535)
    return data


def huge_png():
    data = encoded("PNG")
    data[16:24] = struct.pack(">II", 2**31 - 1, 2**31 - 1)
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return data


def huge_at(name, offset, layout, **options):
    data = encoded(name, **options)
    value = 0xFFFF if "H" in layout else 1_000_000
    struct.pack_into(layout, data, offset, value, value)
    return data


def huge_boxed(name, mark, layout):
    data = encoded(name)
    struct.pack_into(layout, data, data.index(mark) + len(mark), 100_000, 100_000)
    return data


HUGE = {
    "JPEG": huge_jpeg(),
    "PNG": huge_png(),
    "GIF": huge_at("GIF", 6, "<HH"),
    "BMP": huge_at("BMP", 18, "<ii"),
    "JPEG2000": huge_boxed("JPEG2000", b"ihdr", ">II"),
    "AVIF": huge_boxed("AVIF", b"ispe", ">4xII"),
    "PPM": b"P6 100000 100000 255\n" + b"\0" * 100,
    "PCX": huge_at("PCX", 8, "<HH"),
    "SGI": huge_at("SGI", 6, ">HH"),
}


@pytest.mark.parametrize("name", HUGE)
def test_pixel_limit_is_checked_before_decoding(name):
    error = rejection(HUGE[name])
    assert error.reason is RejectReason.TOO_MANY_PIXELS
    assert error.detail.startswith(f"{name}: ")
    assert "max_image_pixels is 178,956,970" in error.detail


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_pixel_limit_is_the_configured_one(name):
    data = bytes(encoded(name, size=(100, 100)))
    assert probe(data, PreprocessConfig(max_image_pixels=10_000)).height == 100
    error = rejection(data, PreprocessConfig(max_image_pixels=9_999))
    assert error.reason is RejectReason.TOO_MANY_PIXELS


def test_limits_above_pillows_own_are_kept(monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1000)
    assert probe(bytes(encoded("PNG")), CONFIG).height == 48


def test_byte_limit_and_empty_files():
    data = bytes(encoded("PNG"))
    assert probe(data, PreprocessConfig(max_image_bytes=len(data)))
    error = rejection(data, PreprocessConfig(max_image_bytes=len(data) - 1))
    assert error.reason is RejectReason.TOO_MANY_BYTES
    assert rejection(b"").reason is RejectReason.EMPTY_IMAGE


@pytest.mark.parametrize(
    ("data", "reason", "says"),
    [
        (b"\0\0\0\x18ftypheic" + b"\0" * 20, RejectReason.UNSUPPORTED_FORMAT, "HEIC"),
        (b"\xff\x0a\xfa\x1f", RejectReason.UNSUPPORTED_FORMAT, "JPEG XL"),
        (b'{"a": 1}', RejectReason.UNKNOWN_FORMAT, "JSON"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", RejectReason.TRUNCATED_IMAGE, "before its first scan"),
        (b"\xff\xd8\xff\xda\0\x08" + b"\0" * 20, RejectReason.DECODE_ERROR, "no size"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 30, RejectReason.TRUNCATED_IMAGE, "PNG"),
        (b"II*\0\xff\xff\xff\0" + b"\0" * 30, RejectReason.TRUNCATED_IMAGE, "TIFF"),
        (b"BM" + b"\0" * 60, RejectReason.DECODE_ERROR, "BMP"),
    ],
)
def test_what_is_no_usable_image_is_named(data, reason, says):
    error = rejection(data)
    assert (error.reason, says in error.detail) == (reason, True), error.detail


def test_jpeg_with_more_than_8_bits_is_unsupported():
    data = encoded("JPEG")
    data[data.index(b"\xff\xc0") + 4] = 12
    error = rejection(data)
    assert error.reason is RejectReason.UNSUPPORTED_FORMAT
    assert "12 bits" in error.detail


def test_stray_and_fill_bytes_between_jpeg_segments_are_skipped():
    data = (PHOTOS / "bars-127x64.jpg").read_bytes()
    odd = data[:2] + b"\xff\xff\xff" + data[3:20] + b"\0garbage" + data[20:]
    assert probe(odd, CONFIG).width == 127


@pytest.mark.parametrize("name", ["bars-127x64.jpg", "blue-150x100.jpg"])
def test_jpeg_cut_at_any_byte_of_its_header_is_a_rejection(name):
    data = (PHOTOS / name).read_bytes()
    for end in range(1, data.index(b"\xff\xda") + 2):
        assert rejection(data[:end]).reason in (
            RejectReason.TRUNCATED_IMAGE,
            RejectReason.UNKNOWN_FORMAT,
        )

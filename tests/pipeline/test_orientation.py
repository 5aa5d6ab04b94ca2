import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from pipeline.orientation import read_orientation, turn_back, turn_upright

XMP = b'<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/"'


def exif(value, *, order="<", kind=3, tag=0x0112, before=0):
    """A TIFF structure with one entry of interest, after others."""
    entries = b"".join(struct.pack(order + "HHII", 0x0100 + i, 3, 1, 7) for i in range(before))
    entries += struct.pack(order + "HHIHH", tag, kind, 1, value, 0)
    start = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
    return start + struct.pack(order + "H", before + 1) + entries + b"\0\0\0\0"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_pillow_turns_them(orientation):
    array = np.random.RandomState(0).randint(0, 256, (5, 7, 3), np.uint8)
    image = Image.fromarray(array)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    found = turn_upright(array, orientation)
    np.testing.assert_array_equal(found, expected)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(turn_back(found, orientation), array)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_read_in_both_byte_orders(value, order):
    assert read_orientation(exif(value, order=order, before=3)) == value
    assert read_orientation(b"Exif\0\0" + exif(value, order=order)) == value


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"Exif\0\0",
        b"neither order",
        exif(0),
        exif(9),
        exif(65535),
        exif(6, kind=2),
        exif(6, tag=0x0113),
        exif(6)[:15],
        struct.pack("<2sHI", b"II", 42, 0xFFFFFFF0) + b"\xff" * 40,
        struct.pack("<2sHIH", b"II", 42, 8, 0xFFFF) + b"\0" * 40,
    ],
)
def test_what_cannot_be_read_or_is_invalid_is_upright(data):
    assert read_orientation(data) == 1


def test_xmp_counts_only_where_exif_is_silent():
    assert read_orientation(None, XMP + b' tiff:Orientation="6"/>') == 6
    assert read_orientation(None, b"<tiff:Orientation>8</tiff:Orientation>") == 8
    assert read_orientation(exif(3), XMP + b' tiff:Orientation="6"/>') == 3
    assert read_orientation(exif(0), XMP + b' tiff:Orientation="6"/>') == 1
    assert read_orientation(None, XMP + b' tiff:Orientation="9"/>') == 1

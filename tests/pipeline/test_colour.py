"""The colour rules of docs/images.md, by value."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from pipeline.colour import to_rgb
from pipeline.errors import SampleError
from pipeline.records import RejectReason


def rgb(image, background="white", icc="ignore"):
    found = np.empty((image.height, image.width, 3), np.uint8)
    to_rgb(image, found, background=background, icc=icc)
    return found


def pixel(image, **rules):
    return tuple(int(value) for value in rgb(image, **rules)[0, 0])


def one(mode, value):
    return Image.new(mode, (1, 1), value)


def reopened(image, file_format, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return Image.open(file)


def gray_row(values, mode):
    """Gray levels of a row of values."""
    kinds = {"I;16": "<u2", "I;16B": ">u2", "I": "<i4", "F": "<f4"}
    array = np.array([values], kinds[mode])
    image = Image.frombytes(mode, (len(values), 1), array.tobytes())
    found = rgb(image)
    assert (found == found[..., :1]).all()
    return found[0, :, 0].tolist()


def tiff(values, *, bits, photometric=1):
    """A one-row gray TIFF, written here because Pillow does not write these kinds."""
    data = np.array(values, "<u2").tobytes()
    if bits == 12:
        a, b = values
        data = bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255])
    tags = [
        *[(256, len(values)), (257, 1), (258, bits), (259, 1), (262, photometric)],
        *[(273, 8), (277, 1), (278, 1), (279, len(data))],
    ]
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags)
    offset = 8 + len(data)
    header = struct.pack("<2sHI", b"II", 42, offset)
    return header + data + struct.pack("<H", len(tags)) + entries + b"\0\0\0\0"


@pytest.mark.parametrize(
    ("mode", "value", "background", "expected"),
    [
        ("RGBA", (255, 0, 0, 255), "white", (255, 0, 0)),
        ("RGBA", (255, 0, 0, 0), "white", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 0), "black", (0, 0, 0)),
        ("RGBA", (255, 0, 0, 0), "gray", (128, 128, 128)),
        ("RGBA", (255, 0, 0, 0), "drop", (255, 0, 0)),
        ("RGBA", (200, 100, 0, 51), "white", (244, 224, 204)),
        ("RGBA", (200, 100, 0, 51), "black", (40, 20, 0)),
        ("RGBA", (200, 100, 0, 51), "drop", (200, 100, 0)),
        ("LA", (100, 0), "white", (255, 255, 255)),
        ("LA", (100, 51), "black", (20, 20, 20)),
        ("LA", (100, 51), "drop", (100, 100, 100)),
    ],
)
def test_alpha_is_laid_on_the_background_or_dropped(mode, value, background, expected):
    assert pixel(one(mode, value), background=background) == expected


def test_alpha_has_the_bytes_of_pillows_composite_on_white():
    random = np.random.RandomState(1)
    image = Image.fromarray(random.randint(0, 256, (130, 40, 4), np.uint8))
    white = Image.new("RGBA", image.size, "white")
    expected = np.asarray(Image.alpha_composite(white, image).convert("RGB"))
    np.testing.assert_array_equal(rgb(image), expected)


def test_premultiplied_alpha_is_divided_before_it_is_laid_on():
    image = one("RGBA", (200, 100, 0, 51)).convert("RGBa")
    assert pixel(image) == pixel(image.convert("RGBA"))
    assert pixel(image, background="drop") == pytest.approx((200, 100, 0), abs=3)


def palette(transparency=None):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 0])
    image.putdata([0, 1])
    return reopened(
        image, "PNG", **({} if transparency is None else {"transparency": transparency})
    )


def test_palette_without_and_with_transparency():
    assert rgb(palette())[0].tolist() == [[10, 20, 30], [200, 100, 0]]
    assert rgb(palette(0))[0].tolist() == [[255, 255, 255], [200, 100, 0]]
    assert rgb(palette(bytes([255, 51])))[0].tolist() == [[10, 20, 30], [244, 224, 204]]
    assert rgb(palette(0), "black")[0].tolist() == [[0, 0, 0], [200, 100, 0]]
    assert rgb(palette(0), "drop")[0].tolist() == [[10, 20, 30], [200, 100, 0]]


def test_palette_with_an_alpha_plane():
    image = palette()
    image.load()
    with_alpha = image.convert("PA")
    with_alpha.putalpha(Image.new("L", (2, 1), 0))
    assert with_alpha.mode == "PA"
    assert rgb(with_alpha)[0].tolist() == [[255, 255, 255]] * 2
    assert rgb(with_alpha, "drop")[0].tolist() == [[10, 20, 30], [200, 100, 0]]


@pytest.mark.parametrize(
    ("mode", "values", "key", "expected"),
    [
        ("L", [7, 8], 7, [255, 8]),
        ("1", [0, 255], 0, [255, 255]),
        ("RGB", [(7, 7, 7), (8, 8, 8)], (7, 7, 7), [255, 8]),
    ],
)
def test_transparent_colour_of_a_png(mode, values, key, expected):
    image = Image.new(mode, (2, 1))
    image.putdata(values)
    loaded = reopened(image, "PNG", transparency=key)
    assert loaded.info["transparency"] == key
    assert rgb(loaded)[0, :, 0].tolist() == expected


def test_transparent_value_of_a_16_bit_gray_png():
    image = Image.frombytes("I;16", (2, 1), np.array([513, 514], "<u2").tobytes())
    image.info["transparency"] = 513
    assert rgb(image)[0, :, 0].tolist() == [255, 2]
    assert rgb(image, "black")[0, :, 0].tolist() == [0, 2]
    assert rgb(image, "drop")[0, :, 0].tolist() == [2, 2]


def test_transparent_colour_of_a_16_bit_rgb_png():
    image = one("RGB", (255, 2, 0))
    image.info["transparency"] = (65535, 512, 0)  # Pillow cuts the pixels to 8 bits, not this
    assert pixel(image) == (255, 255, 255)
    assert pixel(image, background="drop") == (255, 2, 0)


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_16_bit_gray_is_scaled_and_rounded(mode):
    assert gray_row([0, 128, 129, 257, 32768, 65406, 65407, 65535], mode) == [
        *[0, 0, 1, 1, 128, 254, 255, 255]
    ]


def test_12_bit_tiff_is_scaled_by_its_own_white():
    image = Image.open(io.BytesIO(tiff([2048, 4095], bits=12)))
    assert image.mode == "I;16"
    assert rgb(image)[0, :, 0].tolist() == [128, 255]


def test_16_bit_tiff_with_white_as_zero_is_inverted():
    image = Image.open(io.BytesIO(tiff([0, 65535], bits=16, photometric=0)))
    assert rgb(image)[0, :, 0].tolist() == [255, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # white is 1 ...
        ([0.0, 0.2], [0, 51]),  # ... also where it does not occur
        ([0.0, 51.0, 255.0], [0, 51, 255]),  # ... unless there is more
        ([-1.0, 0.0, 1.0], [0, 128, 255]),  # black is the lowest
        ([0.0, float("nan"), 1.0], [0, 0, 255]),
        ([float("inf"), float("-inf"), 1.0], [0, 0, 255]),
        ([3e38, -3e38, 0.0], [255, 0, 128]),
        ([float("nan")], [0]),
    ],
)
def test_floats_are_scaled_not_clipped(values, expected):
    assert gray_row(values, "F") == expected


def test_signalling_nan_is_black_without_a_warning():
    data = struct.pack("<fIf", 0.5, 0x7F800001, 1.0)
    assert rgb(Image.frombytes("F", (3, 1), data))[0, :, 0].tolist() == [128, 0, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 100, 255], [0, 100, 255]),
        ([0, 100], [0, 100]),
        ([0, 32768, 65535], [0, 128, 255]),
        ([0, 2**31 - 1], [0, 255]),
        ([-255, 0, 255], [0, 128, 255]),
    ],
)
def test_32_bit_integers_are_scaled_not_clipped(values, expected):
    assert gray_row(values, "I") == expected


def test_16_bit_pnm_has_a_known_white():
    for white, values in [(65535, (0, 257)), (1000, (500, 1000))]:
        data = b"P5 2 1 %d\n" % white + struct.pack(">HH", *values)
        expected = [round(value * 255 / white) for value in values]
        assert rgb(Image.open(io.BytesIO(data)))[0, :, 0].tolist() == expected


def test_one_bit():
    assert pixel(one("1", 0)) == (0, 0, 0)
    assert pixel(one("1", 1)) == (255, 255, 255)


def test_cmyk_by_complement():
    assert pixel(one("CMYK", (0, 0, 0, 0))) == (255, 255, 255)
    assert pixel(one("CMYK", (255, 0, 0, 0))) == (0, 255, 255)
    assert pixel(one("CMYK", (0, 0, 0, 255))) == (0, 0, 0)
    assert pixel(one("CMYK", (0, 0, 0, 128))) == (127, 127, 127)


def test_adobe_cmyk_jpeg_is_not_a_negative():
    file = io.BytesIO()
    one("CMYK", (255, 0, 0, 0)).resize((16, 16)).save(file, "JPEG", quality=100)
    assert b"Adobe" in file.getvalue()
    assert pixel(Image.open(file)) == pytest.approx((0, 255, 255), abs=2)


def test_other_colour_spaces_are_converted_not_taken_for_rgb():
    assert pixel(one("YCbCr", (255, 128, 128))) == (255, 255, 255)
    assert pixel(one("HSV", (0, 255, 255))) == (255, 0, 0)
    assert pixel(one("LAB", (255, 128, 128))) == pytest.approx((255, 255, 255), abs=1)
    red = pixel(one("LAB", (136, 128 + 80, 128 + 67)))  # L 53, a 80, b 67
    assert red == pytest.approx((255, 0, 0), abs=12)


def test_unknown_mode_is_rejected_by_name():
    image = one("RGB", 0)
    image._mode = "BGR;15"
    with pytest.raises(SampleError, match="BGR;15") as caught:
        rgb(image)
    assert caught.value.reason is RejectReason.UNSUPPORTED_FORMAT


@pytest.mark.parametrize("height", [1, 63, 64, 65, 200])
def test_strips_join_to_the_whole(height):
    random = np.random.RandomState(height)
    array = random.randint(0, 256, (height, 5, 3), np.uint8)
    np.testing.assert_array_equal(rgb(Image.fromarray(array)), array)
    sixteen = Image.frombytes("I;16", (5, height), np.arange(5 * height, dtype="<u2").tobytes())
    expected = np.rint(np.arange(5 * height) / 257).reshape(height, 5)
    np.testing.assert_array_equal(rgb(sixteen)[..., 0], expected)


def swapped_profile(mode):
    """A profile in which the primaries of sRGB have changed places."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = int.from_bytes(data[128:132], "big")
    places = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, blue = places[b"rXYZ"], places[b"bXYZ"]
    data[red : red + 4], data[blue : blue + 4] = b"bXYZ", b"rXYZ"
    data[16:20] = mode.encode("latin-1")
    return bytes(data)


def test_colour_profile_is_applied_only_when_asked():
    image = one("RGB", (255, 0, 0))
    image.info["icc_profile"] = swapped_profile("RGB ")
    assert pixel(image) == (255, 0, 0)
    assert pixel(image, icc="apply") == pytest.approx((0, 0, 255), abs=2)


def test_colour_profile_is_applied_under_alpha_and_palette():
    image = one("RGBA", (255, 0, 0, 0))
    image.info["icc_profile"] = swapped_profile("RGB ")
    assert pixel(image, icc="apply") == (255, 255, 255)
    paletted = palette()
    paletted.info["icc_profile"] = swapped_profile("RGB ")
    found = rgb(paletted, icc="apply")
    assert found[0].tolist() == pytest.approx(np.array([[30, 20, 10], [0, 100, 200]]), abs=2)


@pytest.mark.parametrize(
    "profile",
    [
        b"",
        b"not a profile",
        swapped_profile("RGB ")[:200],
        swapped_profile("CMYK"),
        swapped_profile("R\xf7B "),
    ],
)
def test_profile_that_cannot_be_used_is_ignored(profile):
    image = one("RGB", (255, 0, 0))
    image.info["icc_profile"] = profile
    assert pixel(image, icc="apply") == (255, 0, 0)

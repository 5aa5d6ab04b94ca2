import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile, ImageOps

from pipeline.config import PreprocessConfig
from pipeline.decode import decode
from pipeline.errors import SampleError
from pipeline.records import RejectReason

CONFIG = PreprocessConfig()
PHOTOS = Path(__file__).parents[2] / "pipeline" / "demo_photos"
FALCON = (PHOTOS / "falcon.jpg").read_bytes()  # 800x533
PHOTO = Image.open(io.BytesIO(FALCON)).crop((300, 100, 460, 220))  # 160x120


def encoded(file_format, image=PHOTO, **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def pixels(data, config=CONFIG):
    decoded = decode(data, config)
    assert decoded.source_size == decoded.pixels.shape[:2]
    assert not decoded.truncated
    return decoded.pixels


def by_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


JPEGS = {
    "baseline": encoded("JPEG"),
    "progressive": encoded("JPEG", progressive=True),
    "4:4:4": encoded("JPEG", subsampling=0),
    "4:2:2": encoded("JPEG", subsampling=1),
    "restart markers": encoded("JPEG", restart_marker_blocks=3),
    "rgb": encoded("JPEG", keep_rgb=True),
    "gray": encoded("JPEG", PHOTO.convert("L")),
    "cmyk": encoded("JPEG", PHOTO.convert("CMYK")),
    "progressive photo": (PHOTOS / "curies-progressive.jpg").read_bytes(),
}


@pytest.mark.parametrize("name", JPEGS)
def test_jpegs_have_pillows_bytes(name):
    np.testing.assert_array_equal(pixels(JPEGS[name]), by_pillow(JPEGS[name]))


def test_arithmetic_jpeg():
    """tests/data/arithmetic.jpg is the demo photo after `jpegtran -arithmetic`: the same pixels."""
    data = (PHOTOS.parents[1] / "tests" / "data" / "arithmetic.jpg").read_bytes()
    assert b"\xff\xc9" in data
    np.testing.assert_array_equal(pixels(data), pixels((PHOTOS / "bars-127x64.jpg").read_bytes()))


OTHERS = {
    "png": encoded("PNG"),
    "png gray": encoded("PNG", PHOTO.convert("L")),
    "png palette": encoded("PNG", PHOTO.quantize(64)),
    "png 1 bit": encoded("PNG", PHOTO.convert("1")),
    "webp": encoded("WEBP"),
    "webp lossless": encoded("WEBP", lossless=True),
    "gif": encoded("GIF"),
    "bmp": encoded("BMP"),
    "bmp palette": encoded("BMP", PHOTO.quantize(16)),
    "tiff": encoded("TIFF"),
    "tiff lzw": encoded("TIFF", compression="tiff_lzw"),
    "tiff jpeg": encoded("TIFF", compression="jpeg"),
    "tiff group 4": encoded("TIFF", PHOTO.convert("1"), compression="group4"),
    "tiff cmyk": encoded("TIFF", PHOTO.convert("CMYK")),
    "avif": encoded("AVIF"),
    "jpeg 2000": encoded("JPEG2000"),
    "ppm": encoded("PPM"),
    "pgm": encoded("PPM", PHOTO.convert("L")),
    "pbm": encoded("PPM", PHOTO.convert("1")),
    "ico": encoded("ICO", sizes=[(64, 64)]),
    "pcx": encoded("PCX"),
    "tga": encoded("TGA"),
    "sgi": encoded("SGI"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_have_pillows_bytes(name):
    np.testing.assert_array_equal(pixels(OTHERS[name]), by_pillow(OTHERS[name]))


@pytest.mark.parametrize("name", ["GIF", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_of_several_frames_the_first_is_decoded(name):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "green")]
    options = {} if name == "AVIF" else {"lossless": True} if name == "WEBP" else {}
    data = encoded(name, frames[0], save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3
    found = pixels(data)
    assert found.shape == (16, 16, 3)
    assert found[8, 8].tolist() == pytest.approx([255, 0, 0], abs=4)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", [*range(1, 9), 0, 9])
def test_orientation_is_applied_unless_switched_off(name, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if name == "WEBP" else {}
    data = encoded(name, exif=exif, **options)
    found = pixels(data)
    assert found.shape == ((160, 120, 3) if 5 <= orientation <= 8 else (120, 160, 3))
    if orientation not in (0, 9):  # of which Pillow's AVIF writer makes something else
        np.testing.assert_array_equal(found, by_pillow(data))
    plain = pixels(data, PreprocessConfig(exif_orientation=False))
    assert plain.shape == (120, 160, 3)
    np.testing.assert_array_equal(plain, pixels(encoded(name, **options)))


CUT = {"jpeg": FALCON, **{k: OTHERS[k] for k in ("png", "gif", "bmp", "webp", "avif", "ppm")}}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("name", CUT)
def test_cut_files_are_rejected(name, share):
    data = CUT[name]
    with pytest.raises(SampleError) as caught:
        decode(data[: int(len(data) * share)], CONFIG)
    assert caught.value.reason is RejectReason.TRUNCATED_IMAGE, caught.value


@pytest.mark.parametrize("name", ["jpeg", "png", "gif", "bmp", "ppm"])
def test_cut_files_are_kept_and_marked_when_accepted(name):
    data = CUT[name]
    accept = PreprocessConfig(truncated_images="accept")
    decoded = decode(data[: len(data) * 6 // 10], accept)
    assert decoded.truncated
    whole = by_pillow(data)
    assert decoded.pixels.shape == whole.shape
    assert 0.2 < (decoded.pixels == whole).all(axis=-1).mean() < 0.95
    assert not decode(data, accept).truncated


def test_cut_multi_picture_file_by_way_of_pillow():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = PHOTO.resize((800, 600))
    data = encoded("MPO", image, save_all=True, append_images=[image], icc_profile=profile)
    config = PreprocessConfig(icc="apply", truncated_images="accept")
    assert not decode(data, config).truncated
    cut = decode(data[: len(data) // 4], config)
    assert cut.truncated
    assert cut.pixels.shape == (600, 800, 3)
    with pytest.raises(SampleError, match=r"^truncated_image: JPEG: "):
        decode(data[: len(data) // 4], PreprocessConfig(icc="apply"))


def test_jpeg_with_an_end_marker_but_without_its_pixels_is_truncated():
    cut = FALCON[: len(FALCON) // 2] + b"\xff\xd9"
    by_pillow(cut)  # takes it: the lower half is gray
    with pytest.raises(SampleError) as caught:
        decode(cut, CONFIG)
    assert caught.value.reason is RejectReason.TRUNCATED_IMAGE


def test_stray_bytes_in_a_jpeg_do_not_cost_its_row():
    end = FALCON[:-2] + b"\0\0\0stray" + FALCON[-2:]
    np.testing.assert_array_equal(pixels(end), pixels(FALCON))
    np.testing.assert_array_equal(pixels(FALCON + b"trailing" * 50), pixels(FALCON))


def test_pillows_settings_are_left_as_they_were():
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    with pytest.raises(SampleError):
        decode(CUT["png"][:3000], PreprocessConfig(truncated_images="accept", max_image_pixels=9))
    decode(CUT["png"][:9000], PreprocessConfig(truncated_images="accept"))
    after = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    assert after == before


def test_details_are_one_line_without_paths_or_addresses():
    damaged = [CUT[name][:60] + b"\0" * 200 for name in CUT]
    for data in [*damaged, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0" * 30, b"GIF89a" + b"\0" * 9]:
        with pytest.raises(SampleError) as caught:
            decode(data, CONFIG)
        detail = caught.value.detail
        assert len(detail) > 8
        assert not any(part in detail for part in ("\n", "0x7f", "object at", "/"))


@pytest.mark.parametrize("orientation", [1, 6])
def test_reduced_jpeg_is_never_below_what_is_needed(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded("JPEG", Image.open(io.BytesIO(FALCON)), exif=exif)
    full = (533, 800) if orientation == 1 else (800, 533)
    wide, smaller = max(full), 0
    for share in (0.05, 0.1, 0.26, 0.4, 0.5, 0.51, 0.9, 1.0, 1.5):
        least = tuple(int(side * share) for side in full)
        decoded = decode(data, CONFIG, needed=lambda height, width, least=least: least)
        assert decoded.source_size == full
        found = decoded.pixels.shape[:2]
        assert (found[0] > found[1]) == (full[0] > full[1])
        assert all(f >= min(n, side) for f, n, side in zip(found, least, full, strict=True))
        smaller += max(found) < wide
    assert smaller == 5  # up to one half


def test_reduced_decoding_leaves_other_formats_whole():
    decoded = decode(OTHERS["png"], CONFIG, needed=lambda height, width: (10, 10))
    assert decoded.pixels.shape == (120, 160, 3)


def noisy_tiff():
    """A TIFF whose compression libtiff knows but cannot decode, which it says on stderr."""
    data = bytearray(OTHERS["tiff lzw"])
    directory = int.from_bytes(data[4:8], "little")
    at = data.index((259).to_bytes(2, "little"), directory)
    data[at + 8 : at + 10] = (50001).to_bytes(2, "little")  # WebP
    return bytes(data)


def test_nothing_is_written_to_standard_error():
    """In a fresh process: libtiff writes to the file descriptor, past what pytest can see."""
    code = (
        "from test_decode import *\n"
        "all_of_them = [*JPEGS.values(), *OTHERS.values()]\n"
        "for data in [noisy_tiff(), *all_of_them, *(d[: len(d) // 2] for d in all_of_them)]:\n"
        "    try: decode(data, CONFIG)\n"
        "    except SampleError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert "decoder error" in run.stdout
    assert run.stderr == ""

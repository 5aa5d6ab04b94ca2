import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.preprocess import patchify, prepare
from pipeline.records import RawSample, RejectReason, SampleId
from pipeline.resize import has_uint8_kernel

PHOTOS = Path(__file__).parents[2] / "pipeline" / "demo_photos"
FALCON = (PHOTOS / "falcon.jpg").read_bytes()
KERNELS = ["pillow", *(["torch"] if has_uint8_kernel() else [])]


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


DEFAULT = Geometry(patch_size=16, max_num_patches=256)


def patched(image, *, geometry=DEFAULT, kernel="pillow", **settings):
    sample = RawSample(
        id=SampleId(shard="file:///s.tar", key="a"),
        index=7,
        member="a.jpg",
        image=image,
        metadata={"caption": "x"},
    )
    config = PreprocessConfig(**settings)
    return prepare(sample, config, geometry=geometry, kernel=kernel)


def noise(height, width, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3), np.uint8)


def test_values_of_patches_run_by_row_column_and_channel():
    height, width, size = 4, 6, 2
    image = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    patches = patchify(image, size)
    assert patches.shape == (6, 12)
    for patch in range(6):
        row, column = patch // 3 * size, patch % 3 * size
        expected = image[row : row + size, column : column + size].reshape(-1)
        np.testing.assert_array_equal(patches[patch], expected)


@pytest.mark.parametrize(
    "geometry",
    [
        *(Geometry(patch_size=size, max_num_patches=64) for size in (14, 16, 32)),
        Geometry(patch_size=14, max_num_patches=16, square=60),
    ],
)
def test_everything_but_the_pixels_is_handed_on(geometry):
    found = patched(FALCON, geometry=geometry)
    assert (found.id.key, found.index, found.metadata) == ("a", 7, {"caption": "x"})
    assert found.source_size == (533, 800)
    assert found.grid == geometry.grid(533, 800)
    assert found.pixel_values.shape == (
        found.grid[0] * found.grid[1],
        geometry.patch_size**2 * 3,
    )
    assert found.pixel_values.dtype == np.uint8
    assert found.pixel_values.flags.c_contiguous
    assert not found.truncated


def test_what_fills_no_patch_of_a_square_is_dropped():
    square = Geometry(patch_size=2, max_num_patches=4, square=5)
    image = noise(5, 5)
    found = patched(png(image), geometry=square)
    np.testing.assert_array_equal(found.pixel_values, patchify(image[:4, :4], 2))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3), (5000, 3), (1, 20000)])
def test_thin_and_tiny_images_have_patches(size, kernel):
    found = patched(png(noise(*size)), kernel=kernel)
    h, w = found.grid
    assert 1 <= h * w <= 256
    assert len(found.pixel_values) == h * w


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [(4096, 16), (16, 4096), (256, 256)])
def test_the_next_image_does_not_change_the_patches_of_the_last(size, kernel):
    """Sizes that need no resizing: nothing of the reused pixel memory may be handed out."""
    first = patched(png(noise(*size, 1)), kernel=kernel)
    assert (first.grid[0] * 16, first.grid[1] * 16) == size
    before = first.pixel_values.copy()
    patched(png(noise(*size, 2)), kernel=kernel)
    np.testing.assert_array_equal(first.pixel_values, before)
    np.testing.assert_array_equal(first.pixel_values, patchify(noise(*size, 1), 16))


@pytest.mark.parametrize("kernel", KERNELS)
def test_jpegs_prepared_in_threads_do_not_mix(kernel):
    names = ["falcon.jpg", "fir.jpg", "violet.jpg", "rocks.jpg"] * 6
    files = [(PHOTOS / name).read_bytes() for name in names]
    alone = [patched(data, kernel=kernel).pixel_values for data in files]
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(lambda data: patched(data, kernel=kernel).pixel_values, files)
        for expected, found in zip(alone, together, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_grid_is_that_of_the_upright_image():
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.open(io.BytesIO(FALCON)).save(file, "JPEG", exif=exif)
    turned, plain = patched(file.getvalue()), patched(file.getvalue(), exif_orientation=False)
    assert turned.source_size == plain.source_size[::-1] == (800, 533)
    assert turned.grid == plain.grid[::-1]


def test_reduced_decoding_changes_pixels_slightly_and_nothing_else():
    file = io.BytesIO()
    Image.open(io.BytesIO(FALCON)).resize((2400, 1599)).save(file, "JPEG", quality=95)
    exact, reduced = (patched(file.getvalue(), decode=mode) for mode in ("exact", "reduced"))
    assert (exact.grid, exact.source_size) == (reduced.grid, reduced.source_size)
    assert exact.source_size == (1599, 2400)
    difference = np.abs(exact.pixel_values.astype(int) - reduced.pixel_values)
    assert 0 < difference.mean() < 2


def test_truncated_image_is_marked():
    cut = FALCON[: len(FALCON) * 9 // 10]
    with pytest.raises(SampleError) as caught:
        patched(cut)
    assert caught.value.reason is RejectReason.TRUNCATED_IMAGE
    assert patched(cut, truncated_images="accept").truncated
    assert not patched(FALCON, truncated_images="accept").truncated

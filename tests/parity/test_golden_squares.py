"""Squares of fixed-resolution checkpoints against those of transformers' SiglipImageProcessor."""

import json

import numpy as np
import pytest
from golden_images import GOLDEN, RESAMPLES, SQUARES, digest, images
from test_golden_patches import needs_uint8_kernel, prepare_image

from encoder.geometry import Geometry

EXPECTED = json.loads((GOLDEN / "squares.json").read_text())
CASES = [
    (code, Geometry(patch_size=size, max_num_patches=(side // size) ** 2, square=side, resample=r))
    for code, r in RESAMPLES.items()
    for side, size in SQUARES
]

pytestmark = pytest.mark.parity


def whole_patches(patched, geometry) -> np.ndarray:
    """The patches put together again, [rows, columns, 3]."""
    (h, w), size = patched.grid, geometry.patch_size
    blocks = patched.pixel_values.reshape(h, w, size, size, 3)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(h * size, w * size, 3)


@pytest.fixture(scope="module")
def golden_images():
    return dict(images())


@needs_uint8_kernel
@pytest.mark.parametrize("name", EXPECTED)
def test_squares_have_the_bytes_of_the_reference(golden_images, name):
    for _, geometry in CASES:
        patched = prepare_image(golden_images[name], geometry)
        expected = EXPECTED[name][f"{geometry.square} {geometry.resample}"]
        assert digest(whole_patches(patched, geometry)) == expected, geometry


@pytest.mark.parametrize("name", ["noise-3x640", "noise-255x257", "violet.jpg", "gray-40x30"])
@pytest.mark.parametrize(("code", "geometry"), CASES)
def test_pillow_kernel_has_the_bytes_of_the_pillow_processor(golden_images, name, code, geometry):
    module = pytest.importorskip(
        "transformers.models.siglip.image_processing_pil_siglip",
        reason="transformers is not installed",
    )
    size = {"height": geometry.square, "width": geometry.square}
    processor = module.SiglipImageProcessorPil(size=size, resample=code)
    floats = processor([golden_images[name]], return_tensors="np")["pixel_values"][0]
    patched = prepare_image(golden_images[name], geometry, kernel="pillow")
    found = whole_patches(patched, geometry)
    expected = np.round(floats * 127.5 + 127.5).transpose(1, 2, 0)
    np.testing.assert_array_equal(found, expected[: len(found), : len(found)])

"""Patches against stored ones of transformers' Siglip2ImageProcessor: make_golden_patches.py."""

import io
import json

import numpy as np
import pytest
from golden_images import BUDGETS, GOLDEN, digest, images

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.preprocess import prepare
from pipeline.records import PatchedImage, RawSample, SampleId
from pipeline.resize import has_uint8_kernel

EXPECTED = json.loads((GOLDEN / "patches.json").read_text())
needs_uint8_kernel = pytest.mark.skipif(
    not has_uint8_kernel(), reason="torch has no uint8 resize kernel on this CPU"
)


def prepare_image(image, geometry, kernel="torch") -> PatchedImage:
    file = io.BytesIO()
    image.save(file, "PPM")
    sample = RawSample(
        id=SampleId(shard="file:///s.tar", key="k"), index=0, member="k.ppm", image=file.getvalue()
    )
    return prepare(sample, PreprocessConfig(), geometry=geometry, kernel=kernel)


def naflex(budget) -> Geometry:
    return Geometry(patch_size=16, max_num_patches=budget)


@pytest.fixture(scope="module")
def golden_images():
    found = dict(images())
    assert len(found) >= 30
    assert found.keys() == EXPECTED.keys()
    return found


@needs_uint8_kernel
@pytest.mark.parity
@pytest.mark.parametrize("name", EXPECTED)
def test_patches_have_the_bytes_of_the_reference(golden_images, name):
    image, expected = golden_images[name], EXPECTED[name]
    assert digest(np.asarray(image)) == expected["rgb"], "the source differs, not the patches"
    for budget in BUDGETS:
        patched = prepare_image(image, naflex(budget))
        assert list(patched.grid) == expected[str(budget)]["grid"]
        assert digest(patched.pixel_values) == expected[str(budget)]["sha256"]
        assert patched.source_size == (image.height, image.width)


@needs_uint8_kernel
@pytest.mark.parity
def test_full_arrays_are_equal(golden_images):
    with np.load(GOLDEN / "patches.npz") as arrays:
        assert len(arrays) == 5
        for name, expected in arrays.items():
            np.testing.assert_array_equal(
                prepare_image(golden_images[name], naflex(64)).pixel_values, expected
            )


@pytest.mark.parity
def test_pillow_kernel_differs_by_one_level_at_most(golden_images):
    with np.load(GOLDEN / "patches.npz") as arrays:
        differences = [
            prepare_image(golden_images[name], naflex(64), kernel="pillow").pixel_values.astype(int)
            - array
            for name, array in arrays.items()
        ]
    every = np.abs(np.concatenate(differences))
    assert every.max() == 1
    assert every.mean() < 0.005


@pytest.mark.parity
@pytest.mark.parametrize("name", ["noise-3x640", "noise-255x257", "violet.jpg", "gray-40x30"])
def test_pillow_kernel_has_the_bytes_of_the_pillow_processor(golden_images, name):
    module = pytest.importorskip(
        "transformers.models.siglip2.image_processing_pil_siglip2",
        reason="transformers is not installed",
    )
    processor = module.Siglip2ImageProcessorPil(max_num_patches=256)
    batch = processor([golden_images[name]], return_tensors="np")
    patched = prepare_image(golden_images[name], naflex(256), kernel="pillow")
    floats = batch["pixel_values"][0, : len(patched.pixel_values)]
    np.testing.assert_array_equal(patched.pixel_values, np.round(floats * 127.5 + 127.5))
    assert tuple(batch["spatial_shapes"][0]) == patched.grid

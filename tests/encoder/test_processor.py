"""What preprocessor_config.json says, and what contradicts it."""

import json
import re

import pytest
import torch

from encoder.checkpoint import describe_checkpoint
from encoder.config import CheckpointError
from encoder.geometry import Geometry
from encoder.infer import load_encoder
from encoder.seeded import write_seeded_checkpoint

SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1}


@pytest.fixture
def naflex(tmp_path):
    return write_seeded_checkpoint(tmp_path / "naflex", num_patches=16, **SIZES)


@pytest.fixture
def fixed(tmp_path):
    return write_seeded_checkpoint(tmp_path / "fixed", image_size=60, patch_size=14, **SIZES)


def edit(folder, name="preprocessor_config.json", **changes) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def geometry_error(folder, max_num_patches=None) -> str:
    with pytest.raises(CheckpointError) as error:
        describe_checkpoint(folder).geometry(max_num_patches=max_num_patches)
    return str(error.value)


def test_naflex_takes_the_runs_number_of_patches_or_its_own(naflex):
    described = describe_checkpoint(naflex)
    assert described.geometry(max_num_patches=1024) == Geometry(patch_size=16, max_num_patches=1024)
    edit(naflex, max_num_patches=64)
    assert describe_checkpoint(naflex).geometry() == Geometry(patch_size=16, max_num_patches=64)


def test_naflex_without_the_file_has_the_defaults_of_transformers(naflex):
    (naflex / "preprocessor_config.json").unlink()
    described = describe_checkpoint(naflex)
    assert described.geometry() == Geometry(patch_size=16, max_num_patches=256)
    assert described.processor.mean == described.processor.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("code", "resample"), [(2, "bilinear"), (3, "bicubic"), (None, "bicubic")])
def test_fixed_resolution_follows_the_file(fixed, code, resample):
    edit(fixed, resample=code)
    expected = Geometry(patch_size=14, max_num_patches=16, square=60, resample=resample)
    assert describe_checkpoint(fixed).geometry() == expected
    assert describe_checkpoint(fixed).geometry(max_num_patches=16) == expected


def test_patches_of_a_fixed_resolution_contradict_with_both_shown(fixed):
    message = geometry_error(fixed, 256)
    assert "max_num_patches is 256, but " in message
    assert "fixed/preprocessor_config.json says that images are resized to 60 x 60 px" in message
    assert "16 patches of 14 px, whatever their size" in message


def test_fixed_resolution_without_the_file_has_no_resize_but_loads(fixed, make_pack):
    (fixed / "preprocessor_config.json").unlink()
    assert "must have preprocessor_config.json" in geometry_error(fixed)
    assert load_encoder(fixed, device="cpu")(make_pack([(4, 4)], patch_size=14)).shape == (1, 24)


def test_the_file_of_another_size_is_refused_with_both(fixed):
    edit(fixed, size={"height": 224, "width": 224})
    with pytest.raises(
        CheckpointError, match=r"resizes images to 224 px, config\.json has image_size 60"
    ):
        describe_checkpoint(fixed)


def test_the_file_of_another_patch_size_is_refused_with_both(naflex):
    edit(naflex, patch_size=14)
    with pytest.raises(CheckpointError, match=r"patches of 14 px, config\.json has patch_size 16"):
        describe_checkpoint(naflex)


def test_a_processor_with_rules_of_its_own_needs_the_number_of_patches(naflex):
    edit(naflex, image_processor_type="Lfm2VlImageProcessorFast", patch_size=2)
    assert "found 'Lfm2VlImageProcessorFast', whose tiles and sizes are not made" in geometry_error(
        naflex
    )
    described = describe_checkpoint(naflex)
    assert described.geometry(max_num_patches=64) == Geometry(patch_size=16, max_num_patches=64)


def test_the_file_of_transformers_5_for_models_with_several_processors(fixed):
    inner = json.loads((fixed / "preprocessor_config.json").read_text()) | {"resample": 3}
    (fixed / "preprocessor_config.json").unlink()
    (fixed / "processor_config.json").write_text(json.dumps({"image_processor": inner}))
    assert describe_checkpoint(fixed).geometry().resample == "bicubic"
    (fixed / "processor_config.json").write_text(json.dumps({"processor_class": "SomeProcessor"}))
    assert "must have preprocessor_config.json" in geometry_error(fixed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resample": 1}, "resample must be 2 (bilinear) or 3 (bicubic), found 1"),
        ({"do_resize": False}, "do_resize must be True, found False"),
        ({"do_rescale": False}, "do_rescale must be True, found False"),
        ({"do_center_crop": True}, "do_center_crop must be False, found True"),
        ({"size": {"shortest_edge": 60}}, "size must be a square, as fixed-resolution towers read"),
        ({"size": {"height": 60, "width": 61}}, "size must be a square"),
        ({"image_mean": [0.5, 0.5]}, "image_mean must be three numbers, found [0.5, 0.5]"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std must be three numbers"),
        ({"rescale_factor": 0}, "rescale_factor must be a positive number, found 0"),
        ({"patch_size": -1}, "patch_size must be a positive whole number, found -1"),
    ],
)
def test_what_is_not_done_here_is_refused(fixed, changes, message):
    edit(fixed, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)) as error:
        describe_checkpoint(fixed)
    assert "preprocessor_config.json" in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"image_mean": [0.48, 0.45, 0.41], "image_std": [0.22, 0.23, 0.3]},
        {"do_normalize": False},
        {"rescale_factor": 1 / 127},
        {"image_mean": 0.4},
        {"image_std": 0.2},
    ],
)
def test_any_normalisation_is_folded_in_and_changes_the_digest(fixed, make_pack, changes):
    """Against the product of normalised pixels and the weights as they are stored."""
    plain = load_encoder(fixed, device="cpu")
    pack = make_pack([(4, 4), (4, 4)], patch_size=14)
    raw = {"rescale_factor": 1 / 255, "image_mean": 0.5, "image_std": 0.5} | changes
    if changes.get("do_normalize") is False:
        raw |= {"image_mean": 0, "image_std": 1}
    pixels = torch.from_numpy(pack.pixel_values).double().view(-1, 3)
    mean, std = torch.tensor(raw["image_mean"]), torch.tensor(raw["image_std"])
    pixels = ((pixels * raw["rescale_factor"] - mean) / std).view(32, -1)
    weights = plain._tower.patch.weight.to_dense().double() * 127.5
    bias = plain._tower.patch.bias.double() - weights.sum(dim=1) / 255
    edit(fixed, **changes)
    changed = load_encoder(fixed, device="cpu")
    assert changed.digest != plain.digest
    found = changed._tower.patch(torch.from_numpy(pack.pixel_values).float() - 128)
    expected = pixels @ weights.T + bias
    assert float((found - expected).abs().max() / expected.abs().max()) <= 1e-6

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from encoder.checkpoint import describe_checkpoint
from encoder.infer import load_encoder
from encoder.seeded import write_seeded_checkpoint


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(tmp_path):
    digests = [
        describe_checkpoint(write_seeded_checkpoint(tmp_path / name, seed=seed)).digest
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_every_tensor_is_random(tmp_path):
    write_seeded_checkpoint(tmp_path)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert tensor.dtype == np.float32, name
        assert np.isfinite(tensor).all(), name
        assert tensor.std() > 0.01, name


def test_sizes_are_as_asked(tmp_path, make_pack):
    write_seeded_checkpoint(
        tmp_path, hidden_size=64, intermediate_size=100, num_attention_heads=4, patch_size=14
    )
    vectors = load_encoder(tmp_path, device="cpu")(make_pack([(2, 3)], patch_size=14))
    assert vectors.shape == (1, 64)


def test_preprocessing_file_says_what_the_published_ones_say(tmp_path):
    write_seeded_checkpoint(tmp_path, patch_size=14)
    raw = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert (raw["patch_size"], raw["max_num_patches"], raw["do_convert_rgb"]) == (14, 256, None)
    assert raw["image_mean"] == raw["image_std"] == [0.5, 0.5, 0.5]


def test_sizes_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be a multiple of num_attention_heads"):
        write_seeded_checkpoint(tmp_path, hidden_size=100)

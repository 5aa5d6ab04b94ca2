import json
import re

import pytest

from encoder.config import CheckpointError, EncoderConfig, parse_config, read_config


def test_defaults_are_those_of_transformers():
    from transformers import Siglip2VisionConfig

    theirs = Siglip2VisionConfig()
    ours = parse_config({"model_type": "siglip2", "vision_config": {}}, where="config.json")
    assert ours == EncoderConfig()
    ours_alone = {"image_size", "feature_layers", "in_larger_model"}
    for name in EncoderConfig.__dataclass_fields__.keys() - ours_alone:
        assert getattr(ours, name) == getattr(theirs, name), name


def test_defaults_of_a_fixed_resolution_tower_are_those_of_transformers():
    from transformers import SiglipVisionConfig

    theirs = SiglipVisionConfig()
    ours = parse_config({"model_type": "siglip", "vision_config": {}}, where="config.json")
    assert ours.num_patches == (theirs.image_size // theirs.patch_size) ** 2 == 196
    ours_alone = {"num_patches", "feature_layers", "in_larger_model"}
    for name in EncoderConfig.__dataclass_fields__.keys() - ours_alone:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("tower", "image_size", "patches"),
    [("siglip2_vision_model", None, 256), ("siglip_vision_model", 384, 27**2)],
)
def test_a_tower_in_a_larger_model_is_found(tower, image_size, patches):
    vision = {"model_type": tower, "image_size": 384}
    vision["patch_size"] = 14 if image_size else 16
    config = parse_config({"model_type": "vlm", "vision_config": vision}, where="config.json")
    assert (config.image_size, config.num_patches) == (image_size, patches)
    assert (config.in_larger_model, config.feature_layers) == (True, (-1,))


def test_full_config_takes_the_vision_part():
    raw = {"model_type": "siglip2", "hidden_size": 1, "vision_config": {"hidden_size": 1152}}
    raw["vision_config"]["num_attention_heads"] = 16
    config = parse_config(raw, where="config.json")
    assert (config.hidden_size, config.head_width, config.patch_values) == (1152, 72, 768)


def test_vision_config_takes_the_top_level():
    raw = {"model_type": "siglip2_vision_model", "num_patches": 64, "torch_dtype": "float32"}
    assert parse_config(raw, where="config.json").grid_side == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "clip"}, "found 'clip' and None. Use a SigLIP2 or SigLIP checkpoint"),
        (
            {"model_type": "clip", "vision_config": {"model_type": "clip_vision_model"}},
            "found 'clip' and 'clip_vision_model'",
        ),
        ({"model_type": None}, "found None"),
        (
            {"model_type": "siglip_vision_model", "image_size": "224"},
            "image_size must be a positive",
        ),
        ({"model_type": "siglip_vision_model", "image_size": 8}, "must hold a patch of 16 px"),
        (
            {"vision_feature_layer": "last"},
            "vision_feature_layer must be a whole number or several",
        ),
        ({"vision_feature_layer": []}, "vision_feature_layer must be a whole number or several"),
        ({"model_type": "siglip2", "vision_config": [1]}, "vision_config must be an object"),
        ({"hidden_act": "quick_gelu"}, "hidden_act must be 'gelu_pytorch_tanh'"),
        ({"hidden_size": "768"}, "hidden_size must be a positive whole number, found '768'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive whole number, found 0"),
        ({"num_hidden_layers": True}, "found True"),
        ({"patch_size": [16, 16]}, "patch_size must be a positive whole number, found [16, 16]"),
        ({"layer_norm_eps": -1}, "layer_norm_eps must be a positive number, found -1"),
        ({"num_attention_heads": 7}, "hidden_size (768) must be a multiple of num_attention_heads"),
        ({"num_patches": 255}, "num_patches (255) must be a square number"),
        ({"num_channels": 4}, "num_channels (4) must be 3"),
    ],
)
def test_unusable_config_is_named_with_its_place(change, message):
    with pytest.raises(CheckpointError, match=re.escape(message)) as error:
        parse_config({"model_type": "siglip2_vision_model"} | change, where="here/config.json")
    assert str(error.value).startswith("here/config.json: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "must have a config.json"), ("{", "must be JSON"), ("[]", "JSON object, found list")],
)
def test_unreadable_config_file_is_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CheckpointError, match=message) as error:
        read_config(path)
    assert str(tmp_path) in str(error.value)


def test_reads_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "siglip2", "vision_config": {"patch_size": 14}}))
    assert read_config(path).patch_size == 14

import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from encoder.checkpoint import describe_checkpoint
from encoder.config import CheckpointError, EncoderConfig
from encoder.infer import load_encoder
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint
from encoder.tensors import TowerParts, tensor_shapes

SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_patches": 16}


@pytest.fixture
def folder(tmp_path):
    return write_seeded_checkpoint(tmp_path / "seeded", **SIZES)


def rewrite(folder, change) -> None:
    """Replace the weights by change(weights)."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(change(weights), folder / "model.safetensors")


def edit_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shard(folder) -> dict[str, str]:
    """Split model.safetensors in two as save_pretrained does; returns the weight map."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2]}
    parts["model-00002-of-00002.safetensors"] = names[1::2]
    weight_map = {name: file for file, members in parts.items() for name in members}
    for file, members in parts.items():
        save_file({name: weights[name] for name in members}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weight_map


def prefixed(weights):
    return {f"vision_model.{name}": tensor for name, tensor in weights.items()}


def with_text_tower(weights):
    text = {"text_model.head.weight": np.ones((2, 2), np.float32), "logit_scale": np.ones(1)}
    return prefixed(weights) | text


def error_of(folder) -> str:
    with pytest.raises(CheckpointError) as error:
        load_encoder(folder, device="cpu")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    return str(error.value)


def test_describes_sizes_and_tensors(folder):
    described = describe_checkpoint(folder)
    assert described.config == EncoderConfig(num_attention_heads=3, **SIZES)
    assert described.revision is None
    assert described.parts == TowerParts(blocks=2, norm=True, head=True)
    assert {name: tensor.shape for name, tensor in described.tensors.items()} == tensor_shapes(
        described.config, described.parts
    )
    assert re.fullmatch("[0-9a-f]{64}", described.digest)


@pytest.mark.parametrize("change", [prefixed, with_text_tower, lambda weights: weights])
@pytest.mark.parametrize("sharded", [False, True])
def test_digest_and_vectors_do_not_depend_on_the_layout(folder, make_pack, change, sharded):
    pack = make_pack([(3, 4), (1, 1)])
    before = load_encoder(folder, device="cpu")
    rewrite(folder, change)
    if sharded:
        shard(folder)
    after = load_encoder(folder, device="cpu")
    assert after.digest == before.digest == describe_checkpoint(folder).digest
    assert np.array_equal(after(pack), before(pack))


def test_digest_changes_with_one_bit_of_any_tensor(folder):
    digests = {describe_checkpoint(folder).digest}
    names = list(load_file(folder / "model.safetensors"))

    def flip(weights, name):
        weights[name].view(np.uint32).flat[-1] ^= 1
        return weights

    for name in names:
        rewrite(folder, lambda weights, name=name: flip(weights, name))
        digests.add(describe_checkpoint(folder).digest)
    assert len(digests) == 1 + len(names)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 2}, {"layer_norm_eps": 1e-5}])
def test_digest_changes_with_settings_that_shapes_do_not_show(folder, changes):
    before = describe_checkpoint(folder).digest
    edit_config(folder, **changes)
    assert describe_checkpoint(folder).digest != before


def test_missing_and_foreign_tensors_are_named(folder):
    def rename(weights):
        weights["head.probes"] = weights.pop("head.probe")
        return weights

    rewrite(folder, rename)
    assert error_of(folder) == (
        f"{folder} must hold exactly the 48 tensors of a SigLIP vision tower with 2 layers; "
        "missing: head.probe; not expected: head.probes."
    )


def test_many_missing_tensors_are_counted(folder):
    edit_config(folder, num_hidden_layers=4)
    message = error_of(folder)
    assert "missing: encoder.layers.2.layer_norm1.bias, encoder.layers.2.layer_norm1" in message
    assert "and 28 more; not expected: none" in message


def test_a_tensor_of_neither_tower_is_named(folder):
    rewrite(folder, lambda weights: prefixed(weights) | {"projector.weight": np.ones(1)})
    assert "of its text tower, found also projector.weight" in error_of(folder)


def test_a_wrong_shape_is_named_with_both_shapes(folder):
    edit_config(folder, intermediate_size=48)
    message = error_of(folder)
    assert "encoder.layers.0.mlp.fc1.weight must have shape (48, 24) by config.json" in message
    assert "found (40, 24)" in message


def test_a_convolution_is_refused_in_a_naflex_checkpoint(folder):
    name = "embeddings.patch_embedding.weight"

    def convolve(weights):
        weights[name] = weights[name].reshape(24, 3, 16, 16)
        return weights

    rewrite(folder, convolve)
    assert f"{name} must have shape (24, 768) by config.json, found (24, 3, 16, 16)" in error_of(
        folder
    )


def larger_model(folder, prefix="model.vision_tower.vision_model.", drop="", **top_level) -> None:
    """Make the folder that of a model around the tower, without the tensors that `drop` matches."""
    rewrite(
        folder,
        lambda weights: {
            **{prefix + n: t for n, t in weights.items() if not (drop and re.match(drop, n))},
            "model.language_model.embed_tokens.weight": np.ones((3, 2), np.float32),
            "lm_head.weight": np.ones((3, 2), np.float32),
        },
    )
    path = folder / "config.json"
    vision = json.loads(path.read_text())
    path.write_text(json.dumps({"model_type": "some_vlm", "vision_config": vision, **top_level}))


def test_a_tower_in_a_larger_model_has_the_digest_and_vectors_of_the_tower(folder, make_pack):
    pack = make_pack([(3, 4), (1, 1)])
    alone = load_encoder(folder, device="cpu")
    larger_model(folder)
    for prefix in (None, "model.vision_tower.vision_model", "model.vision_tower.vision_model."):
        inside = load_encoder(folder, device="cpu", prefix=prefix)
        assert inside.digest == alone.digest
        assert np.array_equal(inside(pack), alone(pack))


def test_a_tower_that_is_not_at_the_prefix_is_told_where_it_is(folder):
    larger_model(folder)
    message = "must be at prefix 'vision_tower.', found it at 'model.vision_tower.vision_model.'"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        describe_checkpoint(folder, prefix="vision_tower")


def test_of_two_towers_one_must_be_named(folder):
    def twice(weights):
        return {f"{at}.{name}": tensor for at in "ab" for name, tensor in weights.items()}

    rewrite(folder, twice)
    edit_config(
        folder, model_type="two", vision_config=json.loads((folder / "config.json").read_text())
    )
    assert "must hold one vision tower, found 2: give the prefix of one, 'a.', 'b.'" in error_of(
        folder
    )
    assert describe_checkpoint(folder, prefix="b").parts.blocks == 2


def test_a_file_without_a_tower_is_told(folder):
    rewrite(folder, lambda weights: {"lm_head.weight": np.ones((3, 2), np.float32)})
    assert "found no tensor whose name ends in embeddings.patch_embedding.weight" in error_of(
        folder
    )


@pytest.mark.parametrize(
    ("drop", "parts"),
    [
        ("", TowerParts(blocks=2, norm=True, head=True)),
        ("head", TowerParts(blocks=2, norm=True, head=False)),
        ("head|post_layernorm", TowerParts(blocks=2, norm=False, head=False)),
        (r"head|post_layernorm|encoder.layers.1\.", TowerParts(blocks=1, norm=False, head=False)),
    ],
)
def test_what_a_larger_model_left_out_is_known(folder, drop, parts):
    larger_model(folder, drop=drop)
    assert describe_checkpoint(folder).parts == parts


@pytest.mark.parametrize(
    "drop", [r"head\.probe", r"head|encoder.layers.0\.", "post_layernorm.bias"]
)
def test_parts_that_are_torn_are_refused(folder, drop):
    larger_model(folder, drop=drop)
    assert "missing: " in error_of(folder)


def test_a_head_that_config_json_denies_is_refused(folder):
    edit_config(folder, vision_use_head=False)
    assert "not expected: head.attention.in_proj_bias" in error_of(folder)


def test_an_output_that_the_tower_does_not_have_is_refused(folder):
    larger_model(folder, drop=r"head|post_layernorm|encoder.layers.1\.")
    for output, message in [
        (Output(), "Pooled vectors need the pooling head, which "),
        (Output(vectors="mean"), "holds only the first 1 of 2 blocks"),
        (Output(vectors="tokens", layers=(3,)), "layers must be from -3 to 2 for the 2 layers"),
        (Output(vectors="tokens", layers=(-4,)), "found -4"),
    ]:
        with pytest.raises(CheckpointError, match=re.escape(message)):
            load_encoder(folder, device="cpu", output=output)
    found = load_encoder(folder, device="cpu", output=Output(vectors="tokens", layers=(-2,)))
    assert found.readout.states == (1,)


def test_a_missing_final_norm_is_told(folder, make_pack):
    larger_model(folder, drop="head|post_layernorm")
    with pytest.raises(CheckpointError, match=r"need the final norm, which .* does not have"):
        load_encoder(folder, device="cpu", output=Output(vectors="tokens"))
    plain = Output(vectors="tokens", final_norm=False)
    assert load_encoder(folder, device="cpu", output=plain)(make_pack([(2, 3)])).shape == (6, 24)


def test_the_layers_of_a_larger_model_are_the_default(folder, make_pack):
    larger_model(folder, vision_feature_layer=[-2, 0])
    pack = make_pack([(3, 4)])
    chosen = load_encoder(folder, device="cpu", output=Output(vectors="tokens"))
    named = load_encoder(folder, device="cpu", output=Output(vectors="tokens", layers=(1, 0)))
    assert chosen.readout == named.readout
    assert chosen.readout.width == 48
    assert np.array_equal(chosen(pack), named(pack))


def test_quantised_weights_are_refused(folder):
    rewrite(folder, lambda weights: weights | {"head.probe": np.zeros((1, 1, 24), np.int8)})
    message = error_of(folder)
    assert "head.probe must be stored as one of F32, BF16, F16, found I8" in message


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_load(folder, make_pack, dtype):
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    rounded = {name: t.to(getattr(torch, dtype)) for name, t in load_file(path).items()}
    before = load_encoder(folder, device="cpu")(make_pack([(3, 4)]))
    path.unlink()
    save_file(rounded, path)
    after = load_encoder(folder, device="cpu", dtype="float32")(make_pack([(3, 4)]))
    assert 0 < np.abs(after - before).max() < 0.02


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer: run git lfs"),
        (b"", "must be a whole safetensors file"),
        (b"\x08\0\0\0\0\0\0\0notjson!", "must be a whole safetensors file"),
    ],
)
def test_a_file_that_is_not_safetensors_is_named(folder, content, message):
    (folder / "model.safetensors").write_bytes(content)
    assert message in error_of(folder)


def test_a_truncated_file_is_named(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} must be a whole safetensors file" in error_of(folder)


def test_a_shard_that_differs_from_the_index_is_named(folder):
    weight_map = shard(folder)
    name, file = next(iter(weight_map.items()))
    weights = load_file(folder / file)
    del weights[name]
    save_file(weights, folder / file)
    message = error_of(folder)
    assert "must hold exactly the tensors that the index lists for it" in message
    assert name in message


def test_describing_imports_no_torch():
    code = "import sys, encoder.checkpoint, encoder.seeded; print('torch' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False"

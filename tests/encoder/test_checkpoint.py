import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from encoder.checkpoint import describe_checkpoint, tensor_shapes
from encoder.config import CheckpointError, EncoderConfig
from encoder.infer import load_encoder
from encoder.seeded import write_seeded_checkpoint

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
    assert {name: tensor.shape for name, tensor in described.tensors.items()} == tensor_shapes(
        described.config
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
    assert np.array_equal(after.encode(pack), before.encode(pack))


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
        f"{folder} must hold exactly the 48 tensors of a SigLIP2 vision tower with 2 layers; "
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


def test_a_fixed_resolution_patch_embedding_is_recognised(folder):
    name = "embeddings.patch_embedding.weight"

    def convolve(weights):
        weights[name] = weights[name].reshape(24, 3, 16, 16)
        return weights

    rewrite(folder, convolve)
    message = error_of(folder)
    assert "found a convolution (24, 3, 16, 16)" in message
    assert "a fixed-resolution SigLIP checkpoint" in message
    assert "naflex" in message


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
    before = load_encoder(folder, device="cpu").encode(make_pack([(3, 4)]))
    path.unlink()
    save_file(rounded, path)
    after = load_encoder(folder, device="cpu", dtype="float32").encode(make_pack([(3, 4)]))
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

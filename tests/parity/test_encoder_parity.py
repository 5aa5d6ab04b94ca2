"""The encoder on packs against transformers' vision models on padded batches, in float32."""

import numpy as np
import pytest
import torch
from towers import (
    FEW,
    MIXED,
    RAW,
    SO400M,
    TINY,
    TOKENS,
    TOLERANCE,
    differences,
    encode,
    randomise,
    reference,
    vision_model,
    worst_image,
)
from transformers import (
    Siglip2Config,
    Siglip2Model,
    Siglip2VisionModel,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from encoder.checkpoint import describe_checkpoint
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint

pytestmark = pytest.mark.parity

TEXT = {
    **TINY,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 8,
}
FIXED = [
    pytest.param({"image_size": 224, "patch_size": 16}, id="224-patch16"),
    pytest.param({"image_size": 130, "patch_size": 14}, id="130-patch14-4px-left-out"),
]


def assert_parity(model, folder, pack, **options) -> None:
    found = differences(model, folder, pack, **options)
    assert max(found.values()) <= TOLERANCE, found


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({}, id="tiny"),
        pytest.param({"patch_size": 14, "num_patches": 64}, id="patch14-table8x8"),
        pytest.param({"num_attention_heads": 1, "layer_norm_eps": 1e-3}, id="one-head-large-eps"),
    ],
)
def test_tiny_tower_equals_transformers(tmp_path, make_pack, sizes, attention):
    model = vision_model(**TINY | sizes)
    model.save_pretrained(tmp_path)
    grids = MIXED if attention == "sdpa" else FEW  # reference grows with the square of the pack
    pack = make_pack(grids, patch_size=sizes.get("patch_size", 16))
    assert_parity(model, tmp_path, pack, attention=attention)


def test_full_model_checkpoint_in_shards_equals_transformers(tmp_path, make_pack):
    model = Siglip2Model(Siglip2Config(vision_config=TINY, text_config=TEXT)).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "full", max_shard_size="200KB")
    model.vision_model.save_pretrained(tmp_path / "vision")
    assert len(list((tmp_path / "full").glob("*.safetensors"))) > 2
    assert_parity(model.vision_model, tmp_path / "full", make_pack(FEW))
    digests = {describe_checkpoint(tmp_path / name).digest for name in ("full", "vision")}
    assert len(digests) == 1


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("sizes", FIXED)
def test_fixed_resolution_tower_equals_transformers(tmp_path, make_pack, sizes, attention):
    model = SiglipVisionModel(SiglipVisionConfig(**TINY | sizes)).eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    assert_parity(model, tmp_path, square_pack(make_pack, sizes), attention=attention)


def test_full_fixed_resolution_model_equals_transformers(tmp_path, make_pack):
    sizes = {"image_size": 64, "patch_size": 16}
    model = SiglipModel(SiglipConfig(vision_config=TINY | sizes, text_config=TEXT)).eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    assert_parity(model.vision_model, tmp_path, square_pack(make_pack, sizes))


def square_pack(make_pack, sizes):
    side = sizes["image_size"] // sizes["patch_size"]
    return make_pack([(side, side)] * 3, patch_size=sizes["patch_size"])


def test_tower_of_lfm2_vl_equals_transformers(tmp_path, make_pack):
    """A model of transformers that has SigLIP2 inside, saved by it: prefix, no pooling head."""
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": ["full_attention"],
        "pad_token_id": 0,
    }
    vision = {"model_type": "siglip2_vision_model", "vision_use_head": False, **TINY}
    config = Lfm2VlConfig(vision_config=vision, text_config={"model_type": "lfm2", **text})
    model = Lfm2VlForConditionalGeneration(config).eval()
    tower = model.model.vision_tower
    randomise(tower)
    model.save_pretrained(tmp_path)
    pack = make_pack(FEW)
    expected = reference(tower, pack)
    for layer in (1, 2, -2):
        output = Output(vectors="tokens", layers=(layer,))
        found = encode(tmp_path, pack, output)
        assert worst_image(found, expected[layer % 4], pack.cu_seqlens) <= TOLERANCE
    found = encode(tmp_path, pack, TOKENS)
    assert worst_image(found, expected["last"], pack.cu_seqlens) <= TOLERANCE
    for final_norm, last in ((False, expected[3]), (True, expected["last"])):
        output = Output(vectors="tokens", layers=(-2, 3), final_norm=final_norm)
        both = np.concatenate([expected[2], last], axis=1)  # the norm is for the last layer alone
        assert worst_image(encode(tmp_path, pack, output), both, pack.cu_seqlens) <= TOLERANCE


def test_transformers_loads_the_seeded_checkpoint(tmp_path, make_pack):
    write_seeded_checkpoint(tmp_path, num_hidden_layers=2)
    model, loading = Siglip2VisionModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values())
    assert_parity(model.eval(), tmp_path, make_pack(FEW))


def test_bfloat16_error_is_at_most_twice_that_of_transformers(tmp_path, make_pack):
    model = vision_model(**TINY)
    model.save_pretrained(tmp_path)
    pack = make_pack(MIXED)
    exact, theirs = reference(model, pack), reference(model.to(torch.bfloat16), pack)
    pooled, tokens = (encode(tmp_path, pack, output, dtype="bfloat16") for output in (RAW, TOKENS))
    for found, name in ((pooled, "pooled"), (tokens, "last")):
        assert 0 < rms(found - exact[name]) <= 2 * rms(theirs[name] - exact[name])


def test_bfloat16_keeps_gray_images_exact(tmp_path, make_pack):
    """Bytes near mid-gray: products cancel where they are not centred before they are rounded."""
    model = vision_model(**TINY)
    model.save_pretrained(tmp_path)
    pack = make_pack(FEW)
    np.clip(pack.pixel_values, 120, 135, out=pack.pixel_values)
    exact, theirs = (
        reference(model.to(dtype), pack)["last"] for dtype in (torch.float32, torch.bfloat16)
    )
    tokens = encode(tmp_path, pack, TOKENS, dtype="bfloat16")
    assert rms(tokens - exact) <= 1.5 * rms(theirs - exact)


def rms(values) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sizes", "grids"),
    [pytest.param({}, MIXED, id="base"), pytest.param(SO400M, FEW[:4], id="so400m")],
)
def test_full_size_tower_equals_transformers(tmp_path, make_pack, sizes, grids):
    model = vision_model(**sizes)
    model.save_pretrained(tmp_path)
    assert_parity(model, tmp_path, make_pack(grids))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_full_size_fixed_resolution_tower_equals_transformers(tmp_path, make_pack):
    """As google/siglip2-base-patch16-224; 384 px at patch size 14 leaves pixels out."""
    for sizes in ({}, {"image_size": 384, "patch_size": 14, "num_hidden_layers": 3}):
        model = SiglipVisionModel(SiglipVisionConfig(**sizes)).eval()
        randomise(model)
        model.save_pretrained(tmp_path / str(len(sizes)))
        pack = square_pack(make_pack, {"image_size": 224, "patch_size": 16} | sizes)
        assert_parity(model, tmp_path / str(len(sizes)), pack)

"""The encoder on packs against transformers' vision models on padded batches, in float32."""

import numpy as np
import pytest
import torch
from transformers import (
    Siglip2Config,
    Siglip2Model,
    Siglip2VisionConfig,
    Siglip2VisionModel,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from encoder.checkpoint import describe_checkpoint
from encoder.infer import load_encoder
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint

pytestmark = pytest.mark.parity

MIXED = [
    *((1, 1), (1, 2), (2, 1), (3, 5), (5, 3), (7, 13), (13, 7), (10, 10), (12, 21), (14, 18)),
    *((18, 14), (16, 16), (16, 16), (4, 64), (64, 4), (128, 2), (2, 128), (1, 256), (256, 1)),
    *((1, 16), (16, 1)),
]
FEW = [(1, 1), (3, 5), (14, 18), (16, 16), (4, 64), (64, 4), (1, 256), (256, 1)]
TINY = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
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
TOLERANCE = 1e-5
RAW, TOKENS = Output(normalize=False), Output(vectors="tokens")


def randomise(model, seed=0) -> None:
    """Draw every parameter, so that no bias, norm, probe or position drops out of the result."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * draw)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * draw)
            elif "q_proj" in name or "k_proj" in name or "in_proj" in name:
                # Sharper attention than at the usual scale: boundaries between images must show.
                parameter.copy_(2 * draw / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(draw / parameter.shape[-1] ** 0.5)


def vision_model(**sizes) -> Siglip2VisionModel:
    model = Siglip2VisionModel(Siglip2VisionConfig(**sizes)).eval()
    randomise(model)
    return model


@torch.inference_mode()
def reference(model, pack) -> dict:
    """transformers' pooled [N, D] and hidden states [T, D] of a pack, padded for it.

    By layer as `hidden_states` counts them, which are all before the final norm; `last` is after.
    """
    lengths = np.diff(pack.cu_seqlens)
    pixels = torch.zeros(len(lengths), int(lengths.max()), pack.pixel_values.shape[1])
    mask = torch.zeros(pixels.shape[:2], dtype=torch.int32)
    for i, rows in enumerate(np.split(pack.pixel_values, pack.cu_seqlens[1:-1])):
        pixels[i, : len(rows)] = (torch.from_numpy(rows.copy()).float() / 255 - 0.5) / 0.5
        mask[i, : len(rows)] = 1
    output = model(
        pixel_values=pixels.to(model.dtype),
        pixel_attention_mask=mask,
        spatial_shapes=torch.from_numpy(pack.spatial_shapes),
        output_hidden_states=True,
    )
    return by_name(output, lambda states: states[mask.bool()])


@torch.inference_mode()
def fixed_reference(model, pack) -> dict:
    """`reference` for a fixed-resolution tower: the pack's patches put together to images."""
    side, size = model.config.image_size, model.config.patch_size
    grid = side // size
    patches = torch.from_numpy(pack.pixel_values).view(-1, grid, grid, size, size, 3)
    # What lies outside of whole patches must not matter: bright noise.
    images = torch.full((len(patches), 3, side, side), 9.0)
    whole = (patches.permute(0, 5, 1, 3, 2, 4).float() / 255 - 0.5) / 0.5
    images[:, :, : grid * size, : grid * size] = whole.reshape(-1, 3, grid * size, grid * size)
    output = model(pixel_values=images, output_hidden_states=True)
    return by_name(output, lambda states: states.flatten(0, 1))


def by_name(output, rows) -> dict:
    named = {number: rows(state) for number, state in enumerate(output.hidden_states)}
    named["last"] = rows(output.last_hidden_state)
    if output.pooler_output is not None:
        named["pooled"] = output.pooler_output
    return {name: tensor.float().numpy() for name, tensor in named.items()}


def worst_image(found, expected, cu_seqlens=None) -> float:
    """The largest max|difference| / max|value| of any image."""
    if cu_seqlens is None:
        cu_seqlens = np.arange(len(found) + 1)
    pairs = zip(
        np.split(found, cu_seqlens[1:-1]), np.split(expected, cu_seqlens[1:-1]), strict=True
    )
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def encode(folder, pack, output, dtype="float32", **options) -> np.ndarray:
    return load_encoder(folder, device="cpu", dtype=dtype, output=output, **options)(pack)


def assert_parity(model, folder, pack, **options) -> None:
    fixed = hasattr(model.config, "image_size")
    expected = (fixed_reference if fixed else reference)(model, pack)
    found = encode(folder, pack, RAW, **options)
    assert worst_image(found, expected["pooled"]) <= TOLERANCE
    found = encode(folder, pack, TOKENS, **options)
    assert worst_image(found, expected["last"], pack.cu_seqlens) <= TOLERANCE
    depth = model.config.num_hidden_layers
    for layer in {0, 1, depth - 1, depth}:
        output = Output(vectors="tokens", layers=(layer,), final_norm=False)
        found = encode(folder, pack, output, **options)
        assert worst_image(found, expected[layer], pack.cu_seqlens) <= TOLERANCE, layer


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
    found = encode(tmp_path, pack, Output(vectors="tokens", layers=(-2, 3), final_norm=False))
    both = np.concatenate([expected[2], expected[3]], axis=1)
    assert worst_image(found, both, pack.cu_seqlens) <= TOLERANCE


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
    "sizes",
    [
        pytest.param({}, id="base"),
        pytest.param(
            {
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_attention_heads": 16,
                "num_hidden_layers": 4,
            },
            id="so400m-4-layers",
        ),
    ],
)
def test_full_width_tower_equals_transformers(tmp_path, make_pack, sizes):
    model = vision_model(**sizes)
    model.save_pretrained(tmp_path)
    assert_parity(model, tmp_path, make_pack(MIXED))

"""The encoder on packs against transformers' Siglip2VisionModel on padded batches, in float32."""

import numpy as np
import pytest
import torch
from transformers import Siglip2Config, Siglip2Model, Siglip2VisionConfig, Siglip2VisionModel

from encoder.checkpoint import describe_checkpoint
from encoder.infer import load_encoder
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
TOLERANCE = 1e-5


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
def reference(model, pack) -> tuple[np.ndarray, np.ndarray]:
    """transformers' pooled [N, D] and last hidden state [T, D] of a pack, padded for it."""
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
    )
    return (
        output.pooler_output.float().numpy(),
        output.last_hidden_state[mask.bool()].float().numpy(),
    )


def worst_image(found, expected, cu_seqlens=None) -> float:
    """The largest max|difference| / max|value| of any image."""
    if cu_seqlens is None:
        cu_seqlens = np.arange(len(found) + 1)
    pairs = zip(
        np.split(found, cu_seqlens[1:-1]), np.split(expected, cu_seqlens[1:-1]), strict=True
    )
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def assert_parity(model, folder, pack, **options) -> None:
    encoder = load_encoder(folder, device="cpu", dtype="float32", **options)
    pooled, tokens = reference(model, pack)
    assert worst_image(encoder.encode(pack, normalize=False), pooled) <= TOLERANCE
    assert worst_image(encoder.encode_tokens(pack), tokens, pack.cu_seqlens) <= TOLERANCE


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
    text = {
        **TINY,
        "vocab_size": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 8,
    }
    model = Siglip2Model(Siglip2Config(vision_config=TINY, text_config=text)).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "full", max_shard_size="200KB")
    model.vision_model.save_pretrained(tmp_path / "vision")
    assert len(list((tmp_path / "full").glob("*.safetensors"))) > 2
    assert_parity(model.vision_model, tmp_path / "full", make_pack(FEW))
    digests = {describe_checkpoint(tmp_path / name).digest for name in ("full", "vision")}
    assert len(digests) == 1


def test_transformers_loads_the_seeded_checkpoint(tmp_path, make_pack):
    write_seeded_checkpoint(tmp_path, num_hidden_layers=2)
    model, loading = Siglip2VisionModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values())
    assert_parity(model.eval(), tmp_path, make_pack(FEW))


def test_bfloat16_error_is_at_most_twice_that_of_transformers(tmp_path, make_pack):
    model = vision_model(**TINY)
    model.save_pretrained(tmp_path)
    pack = make_pack(MIXED)
    exact_pooled, exact_tokens = reference(model, pack)
    theirs_pooled, theirs_tokens = reference(model.to(torch.bfloat16), pack)
    encoder = load_encoder(tmp_path, device="cpu", dtype="bfloat16")
    pooled, tokens = encoder.encode(pack, normalize=False), encoder.encode_tokens(pack)
    assert 0 < rms(pooled - exact_pooled) <= 2 * rms(theirs_pooled - exact_pooled)
    assert 0 < rms(tokens - exact_tokens) <= 2 * rms(theirs_tokens - exact_tokens)


def test_bfloat16_keeps_gray_images_exact(tmp_path, make_pack):
    """Bytes near mid-gray: products cancel where they are not centred before they are rounded."""
    model = vision_model(**TINY)
    model.save_pretrained(tmp_path)
    pack = make_pack(FEW)
    np.clip(pack.pixel_values, 120, 135, out=pack.pixel_values)
    _, exact = reference(model, pack)
    _, theirs = reference(model.to(torch.bfloat16), pack)
    tokens = load_encoder(tmp_path, device="cpu", dtype="bfloat16").encode_tokens(pack)
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

import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from encoder.batch import PackMismatchError
from encoder.infer import load_encoder
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint

GRIDS = [(16, 16), (1, 1), (14, 18), (5, 3), (3, 5), (256, 1), (16, 16), (1, 256), (2, 1), (18, 14)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_seeded_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def tokens_of(folder):
    return load_encoder(folder, device="cpu", output=Output(vectors="tokens"))


def difference(a, b) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def test_vectors_are_finite_float32_of_unit_length(folder, encoder, make_pack):
    vectors = encoder(make_pack(GRIDS))
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(GRIDS), 192))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    raw = load_encoder(folder, device="cpu", output=Output(normalize=False))(make_pack(GRIDS))
    assert np.allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), vectors, atol=1e-6)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1


def test_an_image_alone_equals_itself_among_others(encoder, make_pack):
    together = encoder(make_pack(GRIDS))
    for i, grid in enumerate(GRIDS):
        alone = encoder(make_pack([grid], ids=[i]))
        assert difference(alone[0], together[i]) <= 2e-6, grid


def test_permuted_images_give_permuted_vectors_and_tokens(encoder, tokens_of, make_pack):
    order = np.random.default_rng(0).permutation(len(GRIDS))
    pack = make_pack(GRIDS)
    permuted = make_pack([GRIDS[i] for i in order], ids=order.tolist())
    assert difference(encoder(permuted), encoder(pack)[order]) <= 2e-6
    tokens = np.split(tokens_of(pack), pack.cu_seqlens[1:-1])
    found = tokens_of(permuted)
    assert difference(found, np.concatenate([tokens[i] for i in order])) <= 2e-6


def test_backends_agree(folder, make_pack):
    pack = make_pack(GRIDS)
    vectors = [
        load_encoder(folder, device="cpu", dtype="float32", attention=name)(pack)
        for name in ("reference", "sdpa")
    ]
    assert difference(*vectors) <= 2e-6


def test_rows_and_columns_are_told_apart(encoder, make_pack):
    """The same bytes as 4 x 6 and as 6 x 4 patches are two different images."""
    pack = make_pack([(4, 6)])
    turned = make_pack([(6, 4)])
    turned.pixel_values[:] = pack.pixel_values
    assert difference(encoder(turned), encoder(pack)) > 1e-3


def test_empty_pack_gives_no_rows(encoder, tokens_of, make_pack):
    assert encoder(make_pack([])).shape == (0, 192)
    assert tokens_of(make_pack([])).shape == (0, 192)


def test_read_only_arrays_are_accepted_and_left_alone(encoder, make_pack):
    """Ray hands out read-only views of shared memory."""
    pack = make_pack(GRIDS)
    before = pack.pixel_values.copy()
    for array in (pack.pixel_values, pack.spatial_shapes, pack.cu_seqlens, pack.source_sizes):
        array.flags.writeable = False
    encoder(pack)
    assert np.array_equal(pack.pixel_values, before)


def test_what_auto_became_is_told(folder):
    encoder = load_encoder(folder)
    cuda = torch.cuda.is_available()
    assert encoder.device.type == ("cuda" if cuda else "cpu")
    assert encoder.dtype == (torch.bfloat16 if cuda else torch.float32)
    assert encoder.attention == ("varlen" if cuda else "sdpa")
    assert (encoder.revision, len(encoder.digest)) == (None, 64)


def test_bfloat16_is_close_and_float32_on_return(folder, encoder, make_pack):
    pack = make_pack(GRIDS)
    rounded = load_encoder(folder, device="cpu", dtype="bfloat16")(pack)
    assert rounded.dtype == np.float32
    assert 1e-5 < difference(rounded, encoder(pack)) < 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:<index>, found 'tpu'"),
        ({"device": "cuda:x"}, "found 'cuda:x'"),
        ({"device": "1"}, "found '1'"),
        ({"dtype": "float16"}, "dtype must be auto, float32 or bfloat16, found 'float16'"),
        (
            {"attention": "varlen", "device": "cpu"},
            "attention varlen needs a CUDA device, found cpu",
        ),
    ],
)
def test_wrong_options_name_the_allowed_values(folder, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_encoder(folder, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_is_refused_where_there_is_none(folder):
    with pytest.raises(ValueError, match="needs a CUDA device, found none"):
        load_encoder(folder, device="cuda")


def test_patches_of_another_size_are_refused(encoder, make_pack):
    message = "must hold 768 values, a 16 x 16 px RGB patch of this checkpoint, found 588"
    with pytest.raises(PackMismatchError, match=message):
        encoder(make_pack([(2, 3)], patch_size=14))


def test_grids_of_another_resolution_are_refused(tmp_path, make_pack):
    write_seeded_checkpoint(tmp_path, image_size=70, num_hidden_layers=1)
    square = load_encoder(tmp_path, device="cpu")
    assert square(make_pack([(4, 4)] * 2)).shape == (2, 192)
    message = r"reads 70 x 70 px: every grid must be \(4, 4\), image 1 \(1\) has \(4, 5\)"
    with pytest.raises(PackMismatchError, match=message):
        square(make_pack([(4, 4), (4, 5)]))


def test_a_pack_that_changed_after_it_was_made_is_refused(encoder, make_pack):
    pack = make_pack([(2, 3), (4, 4)], ids=[0, 1])
    pack.spatial_shapes[1] = (4, 5)
    with pytest.raises(PackMismatchError):
        encoder(pack)


def test_encoding_leaves_the_number_of_threads_alone(encoder, make_pack):
    before = torch.get_num_threads()
    encoder(make_pack(GRIDS))
    assert torch.get_num_threads() == before


def spoil(folder, name, change) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights[name])
    path.unlink()
    save_file(weights, path)


@pytest.fixture
def overflowing(tmp_path):
    """A checkpoint whose patch embedding overflows where the first two bytes of a patch are 255 and 0."""
    folder = write_seeded_checkpoint(tmp_path, num_hidden_layers=2)

    def change(weight):
        weight[0, :2] = (3e38, -3e38)

    spoil(folder, "embeddings.patch_embedding.weight", change)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "output",
    [Output(), Output(vectors="mean"), Output(vectors="tokens"), Output(dtype="float16")],
)
def test_an_image_that_overflows_changes_no_other(overflowing, make_pack, attention, dtype, output):
    options = {"device": "cpu", "dtype": dtype, "attention": attention, "output": output}
    encoder = load_encoder(overflowing, **options)
    grids = [(3, 4), (2, 6), (4, 3), (5, 5), (12, 1)]  # the bad one is the second of four equal
    pack = make_pack(grids)
    pack.pixel_values[:, :2] = 128  # no part of the huge weights
    clean = encoder(pack)
    assert np.isfinite(clean).all()
    pack.pixel_values[12, :2] = (255, 0)  # one patch of the second image
    found = encoder(pack)
    rows = slice(12, 24) if output.vectors == "tokens" else slice(1, 2)
    assert not np.isfinite(found[rows]).any()
    found[rows] = clean[rows]
    assert np.array_equal(found, clean)
    assert encoder.explain(pack, 1) == f"not finite in {dtype}, first after patch"
    assert encoder.explain(pack, 0) == "finite when it was done again, alone"


def test_the_first_layer_that_is_not_finite_is_named(tmp_path, make_pack):
    folder = write_seeded_checkpoint(tmp_path, num_hidden_layers=3)
    spoil(folder, "encoder.layers.1.mlp.fc1.bias", lambda bias: bias.fill(np.inf))
    encoder = load_encoder(folder, device="cpu")
    pack = make_pack([(3, 4), (2, 2)])
    assert encoder.explain(pack, 1) == "not finite in float32, first after blocks.1.mlp.fc1"


def test_values_that_float16_cannot_hold_are_told_from_those_that_are_not_finite(
    tmp_path, make_pack
):
    folder = write_seeded_checkpoint(tmp_path, num_hidden_layers=1)
    spoil(folder, "post_layernorm.bias", lambda bias: bias.fill(7e4))
    wanted = Output(vectors="tokens", dtype="float16")
    encoder = load_encoder(folder, device="cpu", output=wanted)
    message = "beyond what float16 can hold, 65504: use float32 for the output"
    assert encoder.explain(make_pack([(2, 2)]), 0) == message

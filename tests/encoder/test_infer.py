import re

import numpy as np
import pytest
import torch

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

import math
import re

import pytest
import torch

from encoder.attention import Run, attend, choose_backend, describe_segments

CPU = torch.device("cpu")
BACKENDS = ["reference", "sdpa"]
LENGTHS = [3, 3, 1, 7, 7, 7, 1, 256, 2]


def segments(lengths, backend):
    return describe_segments(lengths, backend=backend, device=CPU)


def random_qkv(num_queries, num_tokens, heads=3, width=8):
    generator = torch.Generator().manual_seed(0)
    sizes = (num_queries, num_tokens, num_tokens)
    return [torch.randn(size, heads, width, generator=generator) for size in sizes]


def one_by_one(query, key, value, lengths, *, per_token):
    """Plain attention of each image on its own, in float64."""
    queries = query.double().split(lengths if per_token else 1)
    outputs = []
    keys, values = key.double().split(lengths), value.double().split(lengths)
    for q, k, v in zip(queries, keys, values, strict=True):
        scores = torch.einsum("qhw,khw->hqk", q, k) / math.sqrt(q.shape[-1])
        outputs.append(torch.einsum("hqk,khw->qhw", scores.softmax(-1), v))
    return torch.cat(outputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("lengths", [LENGTHS, sorted(LENGTHS), [5], [1], [1, 1, 1]])
def test_each_image_attends_to_itself_only(backend, per_token, lengths):
    qkv = random_qkv(sum(lengths) if per_token else len(lengths), sum(lengths))
    found = attend(*qkv, segments(lengths, backend))
    expected = one_by_one(*qkv, lengths, per_token=per_token)
    assert found.shape == qkv[0].shape
    assert torch.allclose(found.double(), expected, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hand_worked_pack(backend):
    """Two images; equal keys make the mean of the values, a lone token returns its own."""
    query = torch.zeros(3, 1, 4)
    value = torch.arange(12.0).view(3, 1, 4)
    found = attend(query, query, value, segments([2, 1], backend))
    assert found.flatten(1).tolist() == [[2, 3, 4, 5], [2, 3, 4, 5], [8, 9, 10, 11]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_neighbour_with_nan_changes_nothing(backend):
    query, key, value = random_qkv(6, 6)
    clean = attend(query, key, value, segments([4, 2], backend))[:4]
    for tensor in (query, key):
        tensor[4:] = torch.nan
    assert torch.equal(attend(query, key, value, segments([4, 2], backend))[:4], clean)


def test_runs_join_neighbours_of_equal_length():
    described = segments([4, 4, 2, 4], "sdpa")
    assert described.runs == (
        Run(first_image=0, first_token=0, num_images=2, length=4),
        Run(first_image=2, first_token=8, num_images=1, length=2),
        Run(first_image=3, first_token=10, num_images=1, length=4),
    )
    assert described.image_of_token.tolist() == [0] * 4 + [1] * 4 + [2] * 2 + [3] * 4


def test_auto_is_sdpa_and_names_are_kept():
    assert [choose_backend(name) for name in ("auto", *BACKENDS)] == ["sdpa", *BACKENDS]


@pytest.mark.parametrize(
    ("name", "why"), [("varlen", "not built yet"), ("flash", "not known"), ("", "not known")]
)
def test_a_backend_that_cannot_run_is_refused(name, why):
    message = f"attention must be one of auto, reference, sdpa, found {name!r}, which is {why}"
    with pytest.raises(ValueError, match=re.escape(message)):
        choose_backend(name)

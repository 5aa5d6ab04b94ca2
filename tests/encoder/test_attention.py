import math
import re

import pytest
import torch
from torch.nn.attention import varlen

from encoder.attention import Run, attend, choose_backend, describe_segments, probe_backend

CPU = torch.device("cpu")
BACKENDS = ["reference", "sdpa", "varlen"]
LENGTHS = [3, 3, 1, 7, 7, 7, 1, 256, 2]


def plain_kernel(query, key, value, cu_query, cu_key, max_query, max_key):
    """What torch's varlen_attn promises for these seven arguments, on any device."""
    assert query.is_contiguous() or query.stride(-1) == 1
    assert 0 not in query.stride()
    outputs = []
    for cu, longest in ((cu_query, max_query), (cu_key, max_key)):
        assert (cu.dtype, cu.dim(), int(cu[0])) == (torch.int32, 1, 0)
        assert int(cu.diff().max()) == longest
    assert (int(cu_query[-1]), int(cu_key[-1])) == (len(query), len(key))
    for i in range(len(cu_query) - 1):
        q = query[cu_query[i] : cu_query[i + 1]]
        k, v = (tensor[cu_key[i] : cu_key[i + 1]] for tensor in (key, value))
        weights = (torch.einsum("qhw,khw->hqk", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
        outputs.append(torch.einsum("hqk,khw->qhw", weights, v))
    return torch.cat(outputs)


@pytest.fixture(autouse=True)
def varlen_without_cuda(monkeypatch):
    """The layout that varlen hands to its kernel, tested with a plain one in the kernel's place."""
    monkeypatch.setattr(varlen, "varlen_attn", plain_kernel)


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
def test_one_query_for_all_images_may_be_an_expanded_view(backend):
    query, key, value = random_qkv(1, sum(LENGTHS))
    query = query.expand(len(LENGTHS), -1, -1)
    found = attend(query, key, value, segments(LENGTHS, backend))
    expected = one_by_one(query, key, value, LENGTHS, per_token=False)
    assert torch.allclose(found.double(), expected, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hand_worked_pack(backend):
    """Two images; equal keys make the mean of the values, a lone token returns its own."""
    query = torch.zeros(3, 1, 4)
    value = torch.arange(12.0).view(3, 1, 4)
    found = attend(query, query, value, segments([2, 1], backend))
    assert found.flatten(1).tolist() == [[2, 3, 4, 5], [2, 3, 4, 5], [8, 9, 10, 11]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("lengths", [[4, 2, 4, 4], [4, 4, 4, 4]])
def test_a_neighbour_that_is_not_finite_changes_nothing(backend, per_token, bad, lengths):
    query, key, value = random_qkv(sum(lengths) if per_token else 4, sum(lengths))
    second = slice(lengths[0], lengths[0] + lengths[1])
    rows = second if per_token else slice(1, 2)
    clean = attend(query, key, value, segments(lengths, backend))
    query[rows] = key[second] = value[second] = bad
    found = attend(query, key, value, segments(lengths, backend))
    assert not found[rows].isfinite().any()
    found[rows] = clean[rows]
    assert torch.equal(found, clean)


def test_runs_join_neighbours_of_equal_length():
    described = segments([4, 4, 2, 4], "sdpa")
    assert described.runs == (
        Run(first_image=0, first_token=0, num_images=2, length=4),
        Run(first_image=2, first_token=8, num_images=1, length=2),
        Run(first_image=3, first_token=10, num_images=1, length=4),
    )
    assert described.cu_tokens.numel() == described.cu_images.numel() == 0


def test_varlen_has_the_starts_of_images_as_int32():
    described = segments([4, 4, 2, 4], "varlen")
    assert described.cu_tokens.tolist() == [0, 4, 8, 10, 14]
    assert described.cu_images.tolist() == [0, 1, 2, 3, 4]
    assert {described.cu_tokens.dtype, described.cu_images.dtype} == {torch.int32}


def choose(name, device="cpu", dtype=torch.float32, head_width=64):
    return choose_backend(name, device=torch.device(device), dtype=dtype, head_width=head_width)


def test_auto_is_sdpa_on_a_cpu_and_names_are_kept():
    assert [choose(name) for name in ("auto", "reference", "sdpa")] == ["sdpa", "reference", "sdpa"]


@pytest.mark.parametrize("name", ["flash", ""])
def test_a_name_that_is_not_known_is_refused(name):
    message = f"attention must be one of auto, reference, sdpa, varlen, found {name!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        choose(name)


@pytest.mark.parametrize(
    ("options", "capability", "lacks"),
    [
        ({"device": "cpu"}, None, "a CUDA device, found cpu"),
        ({"dtype": torch.float32}, (9, 0), "dtype bfloat16, found float32"),
        ({"head_width": 60}, (9, 0), "a multiple of 8 and at most 256, found 60"),
        ({"head_width": 264}, (9, 0), "at most 256, found 264"),
        ({}, (7, 5), "compute capability 8.0 or more, found 7.5"),
        ({"head_width": 72}, (8, 0), ""),
        ({}, (9, 0), ""),
    ],
)
def test_varlen_is_chosen_where_it_can_run_and_refused_elsewhere(
    options, capability, lacks, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    options = {"device": "cuda", "dtype": torch.bfloat16} | options
    assert choose("auto", **options) == ("sdpa" if lacks else "varlen")
    if not lacks:
        assert choose("varlen", **options) == "varlen"
        return
    with pytest.raises(ValueError, match="attention varlen needs ") as error:
        choose("varlen", **options)
    assert lacks in str(error.value)


def test_a_kernel_that_gives_something_else_is_found_at_the_start(monkeypatch):
    options = {"num_heads": 2, "head_width": 72, "device": CPU}
    probe_backend("varlen", **options)
    monkeypatch.setattr(varlen, "varlen_attn", lambda q, *_: q)
    probe_backend("sdpa", **options)
    with pytest.raises(RuntimeError, match=r"varlen must agree with reference .* 2 heads of 72"):
        probe_backend("varlen", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("head_width", [64, 72])
def test_the_real_kernel_agrees_with_the_reference(monkeypatch, head_width):
    monkeypatch.undo()
    device = torch.device("cuda")
    probe_backend("varlen", num_heads=16, head_width=head_width, device=device)
    for per_token in (True, False):
        qkv = [
            tensor.repeat(1, 1, head_width // 8).to(device, torch.bfloat16)
            for tensor in random_qkv(sum(LENGTHS) if per_token else len(LENGTHS), sum(LENGTHS))
        ]
        results = [
            attend(*qkv, describe_segments(LENGTHS, backend=name, device=device)).float()
            for name in ("varlen", "reference")
        ]
        assert torch.allclose(*results, atol=0.02)

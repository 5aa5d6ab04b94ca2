"""Several packs in shared forward passes: results, memory that runs out, order, overlap."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from encoder.infer import load_encoder
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint
from encoder.transfer import Arrival

GRIDS = [[(16, 16), (1, 1), (14, 18)], [(3, 5)], [], [(5, 3), (256, 1), (16, 16), (2, 1)]]
OUTPUTS = [Output(), Output(vectors="mean"), Output(vectors="tokens", layers=(0, -1))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_seeded_checkpoint(tmp_path_factory.mktemp("checkpoint"), num_hidden_layers=2)


@pytest.fixture
def packs(make_pack):
    return [make_pack(grids) for grids in GRIDS]  # the same ids in each


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.size == 0 or np.abs(a - b).max() <= 2e-6 * np.abs(b).max()


@pytest.mark.slow
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("forward_tokens", [None, 1, 300, 600])
def test_packs_together_give_what_each_gives_alone(folder, packs, output, forward_tokens):
    alone = load_encoder(folder, device="cpu", output=output)
    expected = [alone(pack) for pack in packs]
    together = load_encoder(folder, device="cpu", output=output, forward_tokens=forward_tokens)
    assert_same(together.submit(packs).results(), expected)


def test_no_pass_holds_more_than_its_budget(folder, packs, monkeypatch):
    encoder = load_encoder(folder, device="cpu", forward_tokens=300)
    tokens = record_passes(encoder, monkeypatch)
    encoder.submit(packs).results()
    assert sum(tokens) == sum(pack.num_tokens for pack in packs)
    assert max(tokens) <= 300
    assert len(tokens) < 8  # some images share one


def record_passes(encoder, monkeypatch, fail_above=None):
    tokens = []
    forward = type(encoder._tower).forward

    def recorded(self, pixel_values, positions, segments):
        tokens.append(len(pixel_values))
        if fail_above is not None and len(pixel_values) > fail_above:
            raise torch.OutOfMemoryError("planted")
        return forward(self, pixel_values, positions, segments)

    monkeypatch.setattr(type(encoder._tower), "forward", recorded)
    return tokens


def test_memory_that_runs_out_halves_the_passes_once_and_says_so(
    folder, packs, monkeypatch, caplog
):
    """Planted: a CPU does not run out of memory in a way that can be tested."""
    encoder = load_encoder(folder, device="cpu")
    expected = [encoder(pack) for pack in packs]
    total = sum(pack.num_tokens for pack in packs)
    tokens = record_passes(encoder, monkeypatch, fail_above=total - 1)
    with caplog.at_level(logging.WARNING, logger="embedmill"):
        assert_same(encoder.submit(packs).results(), expected)
    assert tokens[0] == total
    assert max(tokens[1:]) <= total // 2
    (record,) = caplog.records
    assert f"out of memory on cpu with {total} tokens in 8 images" in record.message


@pytest.mark.parametrize("grids", [[(16, 16), (16, 16)], [(16, 16)]])
def test_memory_that_is_short_even_so_is_told(folder, make_pack, monkeypatch, grids):
    encoder = load_encoder(folder, device="cpu")
    tokens = record_passes(encoder, monkeypatch, fail_above=10)
    with pytest.raises(torch.OutOfMemoryError, match="planted"):
        encoder(make_pack(grids))
    assert len(tokens) == len(grids)  # the whole, and the first half where there is one


def test_submits_that_nobody_took_are_bounded(folder, packs, monkeypatch):
    encoder = load_encoder(folder, device="cpu")
    waited = []
    wait = Arrival.wait
    monkeypatch.setattr(Arrival, "wait", lambda self: waited.append(self) or wait(self))
    pending = [encoder.submit([packs[0]]) for _ in range(5)]
    assert len(waited) == 3  # the fifth waited for the third, the fourth for the second ...
    assert waited == [p.chunks[-1][1] for p in pending[:3]]


def test_threads_take_turns_and_each_gets_its_own(folder, make_pack):
    encoder = load_encoder(folder, device="cpu")
    packs = [make_pack([(3, 4), (2, 2)], seed=seed) for seed in range(8)]
    expected = [encoder(pack) for pack in packs]
    start = threading.Barrier(4, timeout=30)

    def encode(number):
        if number < 4:
            start.wait()
        return encoder(packs[number])

    with ThreadPoolExecutor(4) as pool:
        assert_same(list(pool.map(encode, range(8))), expected)


@pytest.fixture(scope="module")
def on_gpu(folder):
    return load_encoder(folder, device="cuda")


@pytest.mark.gpu
def test_nothing_waits_for_the_device_while_work_is_queued(on_gpu, packs):
    on_gpu.submit(packs).results()  # kernels are loaded
    torch.cuda.synchronize()
    on_gpu._positions._grids.clear()  # also where grids are new
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = on_gpu.submit(packs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_close(pending.results(), folder_results(on_gpu, packs))


@pytest.mark.gpu
def test_results_do_not_depend_on_what_is_in_flight(on_gpu, make_pack):
    """Buffers of one pack must not be written while another is still copied or computed."""
    packs = [make_pack([(16, 16)] * (1 + seed % 5), seed=seed) for seed in range(40)]
    one_by_one = [on_gpu(pack) for pack in packs]
    pending = [on_gpu.submit([pack]) for pack in packs]
    assert_close([p.results()[0] for p in pending], one_by_one)


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["varlen", "sdpa", "reference"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_gpu_gives_what_a_cpu_gives(folder, packs, attention, output):
    expected = load_encoder(folder, device="cpu", output=output).submit(packs).results()
    options = {"device": "cuda", "attention": attention, "output": output}
    found = load_encoder(folder, **options).submit(packs).results()
    for a, b in zip(found, expected, strict=True):
        assert b.size == 0 or np.abs(a - b).max() <= 0.03 * np.abs(b).max()


@pytest.mark.gpu
def test_float32_on_a_gpu_is_close_to_a_cpu(folder, packs):
    expected = load_encoder(folder, device="cpu").submit(packs).results()
    found = load_encoder(folder, device="cuda", dtype="float32").submit(packs).results()
    for a, b in zip(found, expected, strict=True):
        assert b.size == 0 or np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["varlen", "sdpa"])
def test_an_image_alone_equals_itself_in_a_full_pack_on_a_gpu(folder, make_pack, attention):
    encoder = load_encoder(folder, device="cuda", attention=attention)
    grids = [(16, 16), (14, 18), (3, 5), (1, 1)] * 8
    together = encoder(make_pack(grids))
    for i, grid in enumerate(grids):
        alone = encoder(make_pack([grid], ids=[i]))[0]
        assert np.abs(alone - together[i]).max() <= 0.01 * np.abs(together[i]).max()


def folder_results(encoder, packs):
    return [encoder(pack) for pack in packs]


def assert_close(found, expected):
    """bfloat16: products of other sizes may add up in another order."""
    for a, b in zip(found, expected, strict=True):
        assert b.size == 0 or np.abs(a - b).max() <= 0.01 * np.abs(b).max()

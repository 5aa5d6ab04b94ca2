"""Packs of several leases in shared forward passes: results, fill, waiting, errors."""

import asyncio
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encoder.batch import PackMismatchError
from encoder.infer import load_encoder
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint
from pipeline.errors import ShardError
from pipeline.packing import group_images, make_pack
from pipeline.passes import SharedPasses, WaitingPack, take_pass
from pipeline.records import PatchedImage, SampleId

PATCH_SIZE = 2  # small pixels: 16,384 tokens are 200 kB
BUDGET = 16_384


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_seeded_checkpoint(
        tmp_path_factory.mktemp("checkpoint"),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        patch_size=PATCH_SIZE,
    )


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(folder, device="cpu")


class Recorder:
    """The submit of an encoder, which also keeps what it was asked."""

    def __init__(self, encoder, *, before=lambda batches: None):
        self._encoder, self._before = encoder, before
        self.passes = []

    def __call__(self, batches):
        self.passes.append(list(batches))
        self._before(batches)
        return self._encoder.submit(batches)

    @property
    def tokens(self):
        return [sum(batch.num_tokens for batch in batches) for batches in self.passes]


def image(shard, index, tokens):
    rng = np.random.default_rng((index, tokens))
    pixels = rng.integers(0, 256, (tokens, PATCH_SIZE**2 * 3), dtype=np.uint8)
    return PatchedImage(
        id=SampleId(shard=shard, key=str(index)),
        index=index,
        pixel_values=pixels,
        grid=(1, tokens),
        source_size=(PATCH_SIZE, tokens * PATCH_SIZE),
    )


def packs_of(shard, lengths, *, budget=BUDGET):
    images = (image(shard, index, n) for index, n in enumerate(lengths))
    groups = group_images(images, token_budget=budget, look_ahead=64)
    return [make_pack(group).batch for group in groups]


async def stream(passes, packs):
    """One lease as an Encoder runs it: two packs at once, results in order."""
    encoding, results = [], []
    for pack in packs:
        encoding.append(asyncio.create_task(passes.encode(pack)))
        if len(encoding) == 2:
            results.append(await encoding.pop(0))
    return results + [await task for task in encoding]


def encode_all(submit, streams, *, budget=BUDGET, at_once=None):
    """What each stream of packs gets; at most `at_once` streams are open."""

    async def run():
        passes = SharedPasses(submit, token_budget=budget)
        room = asyncio.Semaphore(at_once or len(streams))

        async def one(packs):
            async with room:
                return await stream(passes, packs)

        return await asyncio.gather(*map(one, streams))

    return asyncio.run(run())


def uniform(count):
    return [256] * count


def mixed(count, seed=0):
    return np.random.default_rng(seed).integers(64, 1025, count).tolist()


@given(
    packs=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    budget=st.integers(9, 30),
)
def test_every_image_is_in_one_pass_and_no_pass_is_above_the_budget(packs, budget):
    waiting = [
        WaitingPack(batch=packs_of(str(number), lengths, budget=99)[0], done=None)
        for number, lengths in enumerate(packs)
    ]
    found, left = {pack: [] for pack in waiting}, waiting
    while left:
        parts = take_pass(left, budget)
        assert 0 < sum(part.batch.num_tokens for part in parts) <= budget
        for part in parts:
            assert len(found[part.pack]) == part.first
            found[part.pack] += part.batch.ids
        left = [pack for pack in left if pack.tokens_left]
    assert all(tuple(ids) == pack.batch.ids for pack, ids in found.items())


@pytest.mark.parametrize("output", [Output(), Output(vectors="mean"), Output(vectors="tokens")])
def test_packs_in_shared_passes_get_what_each_gets_alone(folder, output):
    encoder = load_encoder(folder, device="cpu", output=output)
    streams = [packs_of(str(n), mixed(10 + 3 * n, seed=n), budget=3000) for n in range(4)]
    submit = Recorder(encoder)
    results = encode_all(submit, streams, budget=3000)
    shared = [{id.shard for b in batches for id in b.ids} for batches in submit.passes]
    assert max(map(len, shared)) > 1
    assert any(
        b.num_images < len(pack.ids) for p in submit.passes for b in p for pack in streams[0]
    )
    for packs, encoded in zip(streams, results, strict=True):
        for pack, one in zip(packs, encoded, strict=True):
            expected = encoder(pack)
            assert (one.vectors.shape, one.vectors.dtype) == (expected.shape, expected.dtype)
            assert np.abs(one.vectors - expected).max() <= 2e-6 * np.abs(expected).max()


def test_leases_account_for_the_passes_exactly(encoder):
    submit = Recorder(encoder)
    streams = [packs_of(str(n), mixed(12, seed=n), budget=3000) for n in range(5)]
    results = encode_all(submit, streams, budget=3000)
    assert max(submit.tokens) <= 3000
    assert sum(submit.tokens) == sum(pack.num_tokens for packs in streams for pack in packs)
    shares = [encoded.passes for stream in results for encoded in stream]
    assert sum(shares) == pytest.approx(len(submit.passes))


@pytest.mark.parametrize("lengths", [uniform, mixed])
def test_one_stream_fills_its_passes(encoder, lengths):
    submit = Recorder(encoder)
    encode_all(submit, [packs_of("a", lengths(1000))])
    full = submit.tokens[:-1]
    assert len(full) >= 15
    assert max(full) <= BUDGET
    assert sum(full) / len(full) >= 0.98 * BUDGET


@pytest.mark.parametrize("lengths", [uniform, mixed])
@pytest.mark.parametrize(("images", "shards"), [(100, 16), (1000, 3)])
def test_small_shards_fill_passes_together(encoder, lengths, images, shards):
    """With four leases open, as two Preprocessors have them, and an encoder that is the limit."""
    submit = Recorder(encoder)
    streams = [packs_of(str(number), lengths(images)) for number in range(shards)]
    encode_all(submit, streams, at_once=4)
    full = submit.tokens[:-1]
    assert max(full) <= BUDGET
    assert sum(full) / len(full) >= 0.95 * BUDGET
    alone = [pack.num_tokens for packs in streams for pack in packs]
    if images == 100:
        assert sum(alone) / len(alone) < 0.9 * BUDGET  # what it would be without


class Gate:
    """Holds each pass until it is opened."""

    def __init__(self):
        self._entered, self._open = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, batches):
        self._entered.release()
        assert self._open.acquire(timeout=10)

    def let_one_pass(self):
        self._open.release()

    async def entered(self):
        assert await asyncio.to_thread(self._entered.acquire, timeout=10)


def test_a_lone_pack_starts_at_once(encoder):
    submit = Recorder(encoder)
    (pack,) = packs_of("a", [5])
    (result,) = encode_all(submit, [[pack]])
    assert result[0].passes == 1
    assert submit.tokens == [5]


def test_small_packs_wait_for_the_running_pass_and_then_share_one(encoder):
    gate = Gate()
    submit = Recorder(encoder, before=gate)
    small = [packs_of(name, [40])[0] for name in "abc"]

    async def run():
        passes = SharedPasses(submit, token_budget=100)
        tasks = [asyncio.create_task(passes.encode(pack)) for pack in small]
        await gate.entered()
        assert passes.running_for_s > 0
        gate.let_one_pass()
        await gate.entered()  # the second starts without anything new
        gate.let_one_pass()
        seconds = [block.seconds for block in await asyncio.gather(*tasks)]
        assert passes.running_for_s == 0 < passes.busy_s
        assert sum(seconds) == pytest.approx(passes.busy_s)
        assert seconds[1] == pytest.approx(seconds[2])  # equal parts of one pass

    asyncio.run(run())
    assert submit.tokens == [40, 80]


def test_a_full_pass_is_made_ready_behind_the_running_one(encoder):
    gate = Gate()
    submit = Recorder(encoder, before=gate)

    async def run():
        passes = SharedPasses(submit, token_budget=100)
        names = "abcd"
        tasks = [asyncio.create_task(passes.encode(packs_of(n, [98])[0])) for n in names]
        await gate.entered()
        assert len(passes._running) == 2  # and no more: packs of others may come before
        for _ in names:
            gate.let_one_pass()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert submit.tokens == [98] * 4


def test_a_pack_that_nobody_waits_for_is_in_no_pass(encoder):
    gate = Gate()
    submit = Recorder(encoder, before=gate)
    first, dropped, last = (packs_of(name, [40])[0] for name in "abc")

    async def run():
        passes = SharedPasses(submit, token_budget=100)
        tasks = [asyncio.create_task(passes.encode(pack)) for pack in (first, dropped)]
        await gate.entered()
        tasks[1].cancel()
        with suppress(asyncio.CancelledError):
            await tasks[1]
        gate.let_one_pass()
        await tasks[0]
        gate.let_one_pass()
        await passes.encode(last)

    asyncio.run(run())
    assert [[batch.ids[0].shard for batch in batches] for batches in submit.passes] == [
        ["a"],
        ["c"],
    ]


def failing_on(shard, key, error):
    """Planted: no image makes a CPU fail."""

    def check(batches):
        if any((id.shard, id.key) == (shard, key) for batch in batches for id in batch.ids):
            raise error

    return check


@pytest.mark.parametrize("error", [RuntimeError("planted"), torch.OutOfMemoryError("planted")])
def test_an_image_that_fails_is_named_and_costs_its_own_lease_alone(encoder, error):
    submit = Recorder(encoder, before=failing_on("b", "7", error))
    streams = [packs_of(name, mixed(12, seed=3), budget=3000) for name in "abc"]

    async def run():
        passes = SharedPasses(submit, token_budget=3000)
        tasks = [stream(passes, packs) for packs in streams]
        return await asyncio.gather(*tasks, return_exceptions=True)

    good, failed, other = asyncio.run(run())
    assert isinstance(failed, ShardError)
    assert failed.shard == "b"
    assert f"'7' was not, alone in a pass: {type(error).__name__}: planted" in failed.message
    for packs, encoded in ((streams[0], good), (streams[2], other)):
        for pack, one in zip(packs, encoded, strict=True):
            assert np.allclose(one.vectors, encoder(pack), atol=2e-6)


def test_a_pack_comes_back_in_order_where_its_first_part_was_done_again(encoder):
    """Done again image by image, it ends after the part in the next pass."""

    def fail_together(batches):
        if sum(batch.num_images for batch in batches) > 1 and batches[0].ids[0].key == "0":
            raise RuntimeError("planted")

    submit = Recorder(encoder, before=fail_together)
    (pack,) = packs_of("a", [30] * 6)
    ((encoded,),) = encode_all(submit, [[pack]], budget=90)
    assert submit.tokens == [90, 90, 30, 30, 30]
    assert np.allclose(encoded.vectors, encoder(pack), atol=2e-6)


def test_a_broken_device_is_no_images_fault(encoder):
    submit = Recorder(encoder, before=failing_on("b", "0", torch.AcceleratorError("planted")))

    async def run():
        passes = SharedPasses(submit, token_budget=3000)
        tasks = [stream(passes, packs_of(name, [40] * 3)) for name in "abc"]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    assert isinstance(results[1], torch.AcceleratorError)
    assert all(len(batch.ids) > 1 for batches in submit.passes for batch in batches)  # none again


def test_an_inconsistent_pack_reaches_its_own_lease_alone(encoder):
    good, bad = (packs_of(name, [40, 30])[0] for name in "ab")
    bad.spatial_shapes[1] = (1, 31)
    submit = Recorder(encoder)

    async def run():
        passes = SharedPasses(submit, token_budget=100)
        return await asyncio.gather(
            *(passes.encode(pack) for pack in (good, bad)), return_exceptions=True
        )

    encoded, error = asyncio.run(run())
    assert isinstance(error, PackMismatchError)
    assert "31" in str(error)
    assert encoded.passes == 1

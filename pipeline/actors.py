"""The two Ray actors: shells around the functions of pipeline.stage.

Life of a Preprocessor: start (storage, thread counts), then one stream at a time, in the order the
streams were asked for. Life of an Encoder: start (load weights, compare the digest), then several
leases at once, each awaiting its own stream; their packs share forward passes (pipeline.passes).

Neither restarts by itself (max_restarts=0) and no stream is retried (max_task_retries=0): the
driver alone recreates actors and gives a lost lease to another.
"""

import asyncio
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from encoder import infer as encoder_library
from pipeline.decoder_child import DecoderChild
from pipeline.errors import EmbedmillError
from pipeline.heartbeat import EncoderState, LeaseState, StreamTimes
from pipeline.passes import SharedPasses
from pipeline.records import (
    EmbeddingBlock,
    Pack,
    PatchedImage,
    RawSample,
    Rejections,
    StreamItem,
)
from pipeline.run_encoder import load_run_encoder
from pipeline.spool import dead_spools
from pipeline.stage import (
    LeaseResult,
    RunPlan,
    image_preparer,
    prepare_shard,
    shard_writer,
)
from pipeline.storage import Storage
from pipeline.writer import Lease, ShardWriter

_PACKS_AT_ONCE = 2  # of a lease with the encoder: one follows the other without a gap


class StreamLostError(EmbedmillError):
    """The Preprocessor of a stream died, or its node."""


class DeviceLostError(EmbedmillError):
    """The device of an Encoder fails, and with its context every tensor of the process is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an actor runs, and how it computes."""

    node: str  # Ray's node id
    pid: int
    how: str = ""

    def __str__(self) -> str:
        return f"node {self.node[:8]}, pid {self.pid}" + (f", {self.how}" if self.how else "")


class Preprocessor:
    """Streams one shard at a time as packs."""

    def __init__(self, plan: RunPlan) -> None:
        torch.set_num_threads(1)  # many of these share a node, and decoders use one thread
        # The kernel ends this process where a decoder runs over its time, whatever C code does
        # with the interpreter lock; the shard's next attempt decodes in a child process.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._plan = plan
        self._storage = Storage(plan.config.storage)
        self._prepare = image_preparer(plan)

    def start(self) -> Place:
        """Where it runs."""
        return _place()

    def stream(self, lease: Lease) -> Iterator[StreamItem]:
        """Yields what `pipeline.stage.prepare_shard` yields."""
        if not lease.careful:
            yield from prepare_shard(lease.url, self._plan, self._storage, self._watched)
            return
        settings = self._plan.config.preprocess
        child = DecoderChild(settings, geometry=self._plan.model.geometry, kernel=self._plan.kernel)
        with closing(child):
            yield from prepare_shard(lease.url, self._plan, self._storage, child.prepare)

    def _watched(self, sample: RawSample) -> PatchedImage:
        signal.setitimer(signal.ITIMER_REAL, self._plan.config.preprocess.decode_timeout_s)
        try:
            return self._prepare(sample)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class Encoder:
    """Encodes the streams of its leases and publishes their shards."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._storage = Storage(plan.config.storage)
        self._rows = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._publish = ThreadPoolExecutor(2, thread_name_prefix="publish")
        self._open: dict[str, LeaseState] = {}
        self._streams = StreamTimes()
        self._how = ""  # for the footers

    async def start(self) -> Place:
        """Where and how it computes, once its weights are loaded.

        Not in __init__: Ray turns the exceptions of a constructor into text.
        """
        for folder in dead_spools():  # of Encoders that were killed on this machine
            shutil.rmtree(folder, ignore_errors=True)
        loop = asyncio.get_running_loop()
        self._encoder = await loop.run_in_executor(None, _load, self._plan, self._storage)
        encoder, budget = self._encoder, self._plan.config.packing.token_budget
        self._passes = SharedPasses(encoder.submit, token_budget=budget)
        self._how = f"{encoder.device}, {encoder.dtype}, attention {encoder.attention}"
        return _place(self._how)

    async def heartbeat(self) -> EncoderState:
        """What it does now."""
        now = time.monotonic()
        leases = tuple(self._open.values())
        return EncoderState(
            busy_s=self._passes.busy_s,
            encoding_for_s=self._passes.running_for_s,
            streams=self._streams,
            leases=leases,
            idle_s=tuple(0.0 if lease.encoding else now - lease.last_item for lease in leases),
        )

    async def run_lease(self, lease: Lease, preprocessor: ActorHandle[Any]) -> LeaseResult:
        """The result of one shard, published. Everything is dropped where the stream fails."""
        state = LeaseState(attempt=lease.attempt)
        self._open[lease.attempt] = state
        try:
            with shard_writer(lease, self._plan, self._storage, self._how) as writer:
                return await self._consume(lease, preprocessor, writer, state)
        except torch.AcceleratorError as error:
            raise DeviceLostError(f"{self._encoder.device} fails: {error}") from error
        finally:
            del self._open[lease.attempt]

    async def _consume(
        self,
        lease: Lease,
        preprocessor: ActorHandle[Any],
        writer: ShardWriter,
        state: LeaseState,
    ) -> LeaseResult:
        loop = asyncio.get_running_loop()
        in_flight = self._plan.config.packing.packs_in_flight
        at_once = min(_PACKS_AT_ONCE, in_flight)
        encoding: deque[tuple[Pack, asyncio.Task[EmbeddingBlock]]] = deque()
        stream = _stream(preprocessor, lease, in_flight - at_once + 1)
        told: Mapping[str, float] = {}
        try:
            async for item in stream:
                state.last_item = time.monotonic()
                if isinstance(item, Pack):
                    self._streams.add(told, item.seconds)
                    told = item.seconds
                    encoding.append((item, loop.create_task(self._encode(item))))
                    state.encoding = len(encoding)
                    if len(encoding) == at_once:
                        await self._write(encoding, writer, state)
                elif isinstance(item, Rejections):
                    writer.reject(item.items)
                    state.rejected.update(reject.reason.value for reject in item.items)
                else:
                    self._streams.add(told, item.report.seconds)
                    while encoding:
                        await self._write(encoding, writer, state)
                    publish = partial(writer.publish, item)
                    outcome, report = await loop.run_in_executor(self._publish, publish)
                    return LeaseResult(outcome=outcome, report=report)
        finally:
            await stream.aclose()  # cancels the producer now, not when the generator is collected
            for _, task in encoding:
                task.cancel()
        raise RuntimeError(f"the stream of {lease.shard} ended without End")

    async def _encode(self, pack: Pack) -> EmbeddingBlock:
        pack.batch.check_grids(self._plan.model.geometry)
        return await self._passes.encode(pack.batch)

    async def _write(
        self,
        encoding: deque[tuple[Pack, asyncio.Task[EmbeddingBlock]]],
        writer: ShardWriter,
        state: LeaseState,
    ) -> None:
        """Waits for the oldest of a lease's packs and gives its vectors to the writer."""
        pack, task = encoding.popleft()
        block = await task
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._rows, writer.add, pack, block, self._encoder.explain)
        state.images += pack.batch.num_images
        state.tokens += pack.batch.num_tokens
        state.encoding, state.last_item = len(encoding), time.monotonic()


def _load(plan: RunPlan, storage: Storage) -> encoder_library.Encoder:
    if plan.config.device == "cpu":
        # As many as Ray counts for this actor: pools that each take the whole machine lose time.
        torch.set_num_threads(max(1, int(plan.config.workers.encoders.num_cpus)))
    config = plan.config
    return load_run_encoder(config, plan.model, storage, device=config.device)


def _place(how: str = "") -> Place:
    return Place(node=ray.get_runtime_context().get_node_id(), pid=os.getpid(), how=how)


async def _stream(
    preprocessor: ActorHandle[Any], lease: Lease, in_flight: int
) -> AsyncGenerator[StreamItem, None]:
    """Yields the items of one shard; cancels the producer however the consumer ends.

    Ray 2.60: a generator that is dropped without cancel runs to its end without backpressure.
    """
    refs = preprocessor.stream.options(_generator_backpressure_num_objects=in_flight).remote(lease)
    finished = False
    try:
        async for ref in refs:
            item = await ref
            del ref
            yield item
        finished = True
    except RayTaskError as error:
        raise error.cause from error  # the driver sorts failures by their own class
    except RayError as error:  # it or its node died, was killed for its memory, or lost a pack
        reason = " ".join(str(error).split())
        raise StreamLostError(f"the Preprocessor was lost while it streamed: {reason}") from error
    finally:
        if not finished:
            ray.cancel(refs)

"""The two Ray actors: shells around the functions of pipeline.stage.

Life of a Preprocessor: start (storage, thread counts), then one stream at a time, in the order the
streams were asked for. Life of an Encoder: start (load weights, compare the digest), then several
leases at once, each awaiting its own stream; packs are encoded one by one in a single thread.

Neither restarts by itself (max_restarts=0) and no stream is retried (max_task_retries=0): the
driver alone recreates actors and gives a lost lease to another.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from encoder import infer as encoder_library
from encoder.config import CheckpointError
from pipeline.errors import EmbedmillError
from pipeline.records import Pack, Rejections, StreamItem
from pipeline.stage import LeaseResult, RunPlan, encode_pack, prepare_shard, shard_writer
from pipeline.storage import Storage
from pipeline.writer import Lease, ShardWriter


class StreamLostError(EmbedmillError):
    """The Preprocessor of a stream died, or its node."""


@dataclass(slots=True, kw_only=True)
class LeaseProgress:
    """What an Encoder tells of a lease that is open."""

    shard: str
    attempt: str
    images: int = 0
    tokens: int = 0
    rejected: int = 0
    last_item: float = 0.0  # time.monotonic() of the actor at the last item


class Preprocessor:
    """Streams one shard at a time as packs."""

    def __init__(self, plan: RunPlan) -> None:
        torch.set_num_threads(1)  # many of these share a node, and decoders use one thread
        self._plan = plan
        self._storage = Storage(plan.config.storage)

    def start(self) -> str:
        """Where it runs."""
        return _place()

    def stream(self, url: str) -> Iterator[StreamItem]:
        """Yields what `pipeline.stage.prepare_shard` yields."""
        yield from prepare_shard(url, self._plan, self._storage)


class Encoder:
    """Encodes the streams of its leases and publishes their shards."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._storage = Storage(plan.config.storage)
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._publish = ThreadPoolExecutor(2, thread_name_prefix="publish")
        self._open: dict[str, LeaseProgress] = {}
        self._busy_s = 0.0
        self._described = ""  # how it computes, for the footers

    async def start(self) -> str:
        """How and where this Encoder computes, once its weights are loaded.

        Not in __init__: Ray turns the exceptions of a constructor into text.
        """
        loop = asyncio.get_running_loop()
        self._encoder = await loop.run_in_executor(self._compute, _load, self._plan)
        encoder = self._encoder
        self._described = f"{encoder.device}, {encoder.dtype}, attention {encoder.attention}"
        return f"{self._described}, {_place()}"

    async def progress(self) -> tuple[list[LeaseProgress], float]:
        """The open leases, and the seconds spent encoding since the start."""
        return list(self._open.values()), self._busy_s

    async def run_lease(self, lease: Lease, preprocessor: ActorHandle[Any]) -> LeaseResult:
        """The result of one shard, published. Everything is dropped where the stream fails."""
        state = LeaseProgress(shard=lease.shard, attempt=lease.attempt)
        self._open[lease.attempt] = state
        try:
            with shard_writer(lease, self._plan, self._storage, self._described) as writer:
                return await self._consume(lease, preprocessor, writer, state)
        finally:
            del self._open[lease.attempt]

    async def _consume(
        self,
        lease: Lease,
        preprocessor: ActorHandle[Any],
        writer: ShardWriter,
        state: LeaseProgress,
    ) -> LeaseResult:
        loop = asyncio.get_running_loop()
        in_flight = self._plan.config.packing.packs_in_flight
        async for item in _stream(preprocessor, lease.url, in_flight):
            state.last_item = time.monotonic()
            if isinstance(item, Pack):
                await loop.run_in_executor(self._compute, self._encode, item, writer)
                state.images += item.batch.num_images
                state.tokens += item.batch.num_tokens
            elif isinstance(item, Rejections):
                writer.reject(item.items)
                state.rejected += len(item.items)
            else:
                outcome, report = await loop.run_in_executor(self._publish, writer.publish, item)
                return LeaseResult(outcome=outcome, report=report, tokens=state.tokens)
        raise RuntimeError(f"the stream of {lease.shard} ended without End")

    def _encode(self, pack: Pack, writer: ShardWriter) -> None:
        start = time.perf_counter()
        normalize = self._plan.config.output.normalize
        block = encode_pack(
            pack, lambda batch: self._encoder.encode(batch, normalize=normalize), self._plan
        )
        self._busy_s += time.perf_counter() - start
        writer.add(pack, block)


def _load(plan: RunPlan) -> encoder_library.Encoder:
    encoder = encoder_library.load_encoder(
        plan.model.checkpoint,
        revision=plan.model.revision,
        device=plan.config.device,
        dtype=plan.config.model_dtype,
        attention=plan.config.model.attention,
    )
    if encoder.digest != plan.model.digest:
        raise CheckpointError(
            f"every Encoder must load the same weights: the driver read digest "
            f"{plan.model.digest[:16]} from {plan.model.checkpoint}, this node "
            f"{encoder.digest[:16]}. Make the folder the same on all nodes."
        )
    return encoder


def _place() -> str:
    context = ray.get_runtime_context()
    return f"node {context.get_node_id()[:8]}, pid {os.getpid()}"


async def _stream(
    preprocessor: ActorHandle[Any], url: str, in_flight: int
) -> AsyncIterator[StreamItem]:
    """Yields the items of one shard; cancels the producer however the consumer ends.

    Ray 2.60: a generator that is dropped without cancel runs to its end without backpressure.
    """
    refs = preprocessor.stream.options(_generator_backpressure_num_objects=in_flight).remote(url)
    finished = False
    try:
        async for ref in refs:
            item = await ref
            del ref
            yield item
        finished = True
    except RayActorError as error:
        raise StreamLostError(f"the Preprocessor was lost while it streamed: {error}") from error
    except RayTaskError as error:
        raise error.cause from error  # the driver sorts failures by their own class
    finally:
        if not finished:
            ray.cancel(refs)

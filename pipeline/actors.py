"""The two Ray actors: shells around the functions of pipeline.stage.

Life of a Preprocessor: start (storage, thread counts), then one stream at a time, in the order the
streams were asked for. Life of an Encoder: start (load weights, compare the digest), then several
leases at once, each awaiting its own stream; packs are encoded one by one in a single thread.

Neither restarts by itself (max_restarts=0) and no stream is retried (max_task_retries=0): the
driver alone recreates actors and gives a lost lease to another.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
import torch
from encoder.config import CheckpointError
from encoder.config import CheckpointError
from encoder.infer import load_encoder
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

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
        torch.set_num_threads(
            1
        )  # many of these share a node; the decoder is single-threaded anyway
        self._plan = plan
        self._storage = Storage(plan.config.storage)

    def ready(self) -> str:
        """The id of the node it runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def stream(self, shard: str) -> Iterator[StreamItem]:
        """Yields what `pipeline.stage.prepare_shard` yields."""
        yield from prepare_shard(shard, self._plan, self._storage)


class Encoder:
    """Encodes the streams of its leases and publishes their shards."""

    def __init__(self, plan: RunPlan) -> None:
        config = plan.config
        self._plan = plan
        self._storage = Storage(config.storage)
        self._encoder = load_encoder(
            plan.model.checkpoint,
            revision=plan.model.revision,
            device=config.device,
            dtype=config.model_dtype,
            attention=config.model.attention,
        )
        if self._encoder.digest != plan.model.digest:
            raise CheckpointError(
                f"every Encoder must load the same weights: the driver read digest "
                f"{plan.model.digest[:16]} from {plan.model.checkpoint}, this node "
                f"{self._encoder.digest[:16]}. Make the folder the same on all nodes."
            )
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._publish = ThreadPoolExecutor(2, thread_name_prefix="publish")
        self._open: dict[str, LeaseProgress] = {}
        self._busy_s = 0.0

    async def ready(self) -> str:
        """How this Encoder computes: device, dtype, attention backend."""
        encoder = self._encoder
        return f"{encoder.device}, {encoder.dtype}, attention {encoder.attention}"

    async def progress(self) -> tuple[list[LeaseProgress], float]:
        """The open leases, and the seconds spent encoding since the start."""
        return list(self._open.values()), self._busy_s

    async def run_lease(self, lease: Lease, preprocessor: ActorHandle[Any]) -> LeaseResult:
        """The result of one shard, published. Everything is dropped where the stream fails."""
        state = LeaseProgress(shard=lease.shard, attempt=lease.attempt)
        self._open[lease.attempt] = state
        described = await self.ready()
        try:
            with shard_writer(lease, self._plan, self._storage, described) as writer:
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
        async for item in _stream(preprocessor, lease.shard, in_flight):
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


async def _stream(
    preprocessor: ActorHandle[Any], shard: str, in_flight: int
) -> AsyncIterator[StreamItem]:
    """Yields the items of one shard; cancels the producer however the consumer ends.

    Ray 2.60: a generator that is dropped without cancel runs to its end without backpressure.
    """
    refs = preprocessor.stream.options(_generator_backpressure_num_objects=in_flight).remote(shard)
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

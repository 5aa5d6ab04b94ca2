"""The two halves of the stage as plain functions: shard to packs, packs to a published shard.

The actors run these same functions; `run_plain` joins them in one loop without Ray.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from encoder.batch import PackedBatch
from encoder.output import Output
from pipeline.config import OutputConfig, RunConfig
from pipeline.errors import RejectionLimitError, SampleError
from pipeline.manifest import Fingerprint, ModelFacts, recorded_versions
from pipeline.packing import group_images, make_pack
from pipeline.preprocess import prepare
from pipeline.records import (
    EmbeddingBlock,
    End,
    Pack,
    PatchedImage,
    RawSample,
    Rejection,
    Rejections,
    ShardReport,
    StreamItem,
)
from pipeline.reject_limits import describe_reasons
from pipeline.shards import stored_samples
from pipeline.storage import Storage, canonical_url
from pipeline.tables import embeddings_schema
from pipeline.writer import Explain, Lease, Outcome, ShardWriter

Encode = Callable[[PackedBatch], Any]  # -> float [N, D] vectors or [T, D] tokens
Prepare = Callable[[RawSample], PatchedImage]  # raises SampleError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What every worker must know of the run; made once by the driver, small enough to send."""

    config: RunConfig
    output: str  # canonical URL of the output folder, no slash at its end
    model: ModelFacts
    fingerprint: Fingerprint
    kernel: str  # resize kernel that every Preprocessor must use

    @property
    def schema(self) -> pa.Schema:
        return embeddings_schema(self.config, self.model.readout.width)


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Counts of one shard while it streams."""

    read: int = 0
    packed: int = 0
    tokens: int = 0
    consecutive: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    unsent: list[Rejection] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"read": 0.0, "prepare": 0.0, "pack": 0.0, "blocked": 0.0}
    )


def wanted_output(config: OutputConfig) -> Output:
    """What the encoder is asked for."""
    return Output(
        vectors=config.vectors,
        layers=None if config.layers is None else tuple(config.layers),
        final_norm=config.final_norm,
        normalize=config.normalize,
        dtype=config.dtype,
    )


def image_preparer(plan: RunPlan) -> Prepare:
    """`pipeline.preprocess.prepare` with the settings of the run."""
    return partial(
        prepare,
        config=plan.config.preprocess,
        geometry=plan.model.geometry,
        kernel=plan.kernel,
    )


def prepare_shard(
    url: str, plan: RunPlan, storage: Storage, prepare_image: Prepare
) -> Iterator[StreamItem]:
    """Yields the packs and rejections of a shard, and last its End.

    Raises ShardError and StorageError where the shard cannot be read whole, RejectionLimitError
    where too many images in a row are rejected.
    """
    config = plan.config
    tally = _Tally()
    shard = canonical_url(url)
    with storage.open(url) as stream:
        samples = stored_samples(stream, config.input, config.preprocess)
        groups = group_images(
            _patched(samples, plan, tally, prepare_image),
            token_budget=config.packing.token_budget,
            look_ahead=config.packing.look_ahead,
        )
        for group in groups:
            yield from _unsent(tally)
            start = time.perf_counter()
            pack = make_pack(group)
            pack.batch.check_grids(plan.model.geometry)
            tally.seconds["pack"] += time.perf_counter() - start
            tally.packed += pack.batch.num_images
            tally.tokens += pack.batch.num_tokens
            start = time.perf_counter()
            yield replace(pack, seconds=dict(tally.seconds))
            tally.seconds["blocked"] += time.perf_counter() - start
        yield from _unsent(tally)
        report = ShardReport(
            shard=shard,
            read=tally.read,
            embedded=tally.packed,
            tokens=tally.tokens,
            rejected=dict(tally.rejected),
            skipped=dict(samples.skipped),
            warnings=dict(samples.warnings),
            bytes_read=stream.info.size,
            seconds=dict(tally.seconds),
        )
        yield End(
            report=report,
            size=stream.info.size,
            etag=stream.info.etag,
            complete=samples.complete,
        )


def _patched(
    samples: Iterable[RawSample | Rejection],
    plan: RunPlan,
    tally: _Tally,
    prepare_image: Prepare,
) -> Iterator[PatchedImage]:
    start = time.perf_counter()
    for sample in samples:
        read_at = time.perf_counter()
        tally.seconds["read"] += read_at - start
        tally.read += 1
        result = sample if isinstance(sample, Rejection) else prepared(sample, prepare_image)
        tally.seconds["prepare"] += time.perf_counter() - read_at
        if isinstance(result, Rejection):
            _reject(result, plan, tally)
        else:
            tally.consecutive = 0
            yield result
        start = time.perf_counter()


def prepared(sample: RawSample, prepare_image: Prepare) -> PatchedImage | Rejection:
    """What becomes of a sample; only what is wrong with the sample itself becomes a rejection."""
    try:
        return prepare_image(sample)
    except SampleError as error:
        return Rejection(
            id=sample.id,
            index=sample.index,
            reason=error.reason,
            detail=error.detail,
            member=sample.member,
        )


def _reject(rejection: Rejection, plan: RunPlan, tally: _Tally) -> None:
    tally.rejected[rejection.reason.value] += 1
    tally.examples.setdefault(rejection.reason.value, str(rejection))
    tally.unsent.append(rejection)
    tally.consecutive += 1
    limit = plan.config.limits.max_consecutive_rejects
    if tally.consecutive >= limit:
        raise RejectionLimitError(
            f"fewer than limits.max_consecutive_rejects = {limit} images in a row may be rejected, "
            f"found as many in {rejection.id.shard}, up to {rejection.id.key!r}. Its rejects:\n"
            f"{describe_reasons(tally.rejected, tally.examples)}\n"
            f"Mend the data or the setting behind it; where that is how it is, raise the limit."
        )


def _unsent(tally: _Tally) -> Iterator[Rejections]:
    if tally.unsent:
        yield Rejections(items=tuple(tally.unsent))
        tally.unsent = []


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseResult:
    outcome: Outcome
    report: ShardReport


def shard_writer(lease: Lease, plan: RunPlan, storage: Storage, encoder: str) -> ShardWriter:
    """The writer of one lease; `encoder` says in the footer how vectors were computed."""
    footer = {
        "fingerprint": plan.fingerprint.sha,
        "checkpoint": plan.model.checkpoint,
        "revision": plan.model.revision,
        "digest": plan.model.digest,
        "kernel": plan.kernel,
        "encoder": encoder,
        "token_budget": plan.config.packing.token_budget,
        "versions": recorded_versions(),
    }
    return ShardWriter(
        lease=lease,
        storage=storage,
        output=plan.output,
        schema=plan.schema,
        footer=footer,
    )


def encode_pack(pack: Pack, encode: Encode, plan: RunPlan) -> EmbeddingBlock:
    """The vectors of one pack, checked at this boundary too."""
    pack.batch.check_grids(plan.model.geometry)
    ids: tuple[Any, ...] = pack.batch.ids
    start = time.perf_counter()
    vectors = encode(pack.batch)
    seconds = time.perf_counter() - start
    return EmbeddingBlock(ids=ids, vectors=vectors, seconds=seconds, passes=1.0)


def run_plain(
    leases: Iterable[Lease],
    plan: RunPlan,
    storage: Storage,
    encode: Encode,
    explain: Explain | None = None,
) -> Iterator[LeaseResult]:
    """Yields the result of each lease, done one after the other in this process, without Ray."""
    for lease in leases:
        with shard_writer(lease, plan, storage, "plain loop") as writer:
            for item in prepare_shard(lease.url, plan, storage, image_preparer(plan)):
                if isinstance(item, Pack):
                    writer.add(item, encode_pack(item, encode, plan), explain)
                elif isinstance(item, Rejections):
                    writer.reject(item.items)
                else:
                    outcome, report = writer.publish(item)
                    yield LeaseResult(outcome=outcome, report=report)

"""Rows of one shard into Parquet, spooled to local disk, published in one create-only act."""

import json
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from encoder.batch import PackedBatch
from pipeline.config import MAX_SHARD_OUTPUT_BYTES
from pipeline.errors import InvariantError, OutputTooLargeError
from pipeline.footer import FOOTER_KEY, read_footer, shard_facts
from pipeline.localfs import os_errors
from pipeline.manifest import embeddings_url, rejects_url
from pipeline.records import (
    EmbeddingBlock,
    End,
    Pack,
    Rejection,
    RejectReason,
    SampleId,
    ShardReport,
)
from pipeline.spool import spool_folder
from pipeline.storage import Storage, canonical_url
from pipeline.tables import REJECTS_SCHEMA, rejects_table, rows_table, value_type
from pipeline.urls import locate

# What is in memory at most before it goes to disk: 25 MB of vectors at width 768.
_ROW_GROUP = 8192
_ROW_GROUP_BYTES = 64 << 20

Explain = Callable[[PackedBatch, int], str]  # why the values of an image are not finite
Outcome = Literal["published", "already_ours", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One try at one shard. The attempt decides who won when two publish the same shard."""

    url: str  # where the shard is read; a signed URL has secrets in its query
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    careful: bool = False  # decode in a child process: an attempt before lost its Preprocessor

    @property
    def shard(self) -> str:
        """The canonical shard id."""
        return canonical_url(self.url)


class ShardWriter:
    """Collects the rows of one lease and publishes them; a context manager that leaves no files.

    Rows may come in any order that packing makes; they leave in tar order, in row groups, as soon
    as every sample before them is accounted for.
    """

    def __init__(
        self,
        *,
        lease: Lease,
        storage: Storage,
        output: str,
        schema: pa.Schema,
        footer: Mapping[str, Any],
    ) -> None:
        self._lease, self._storage, self._output = lease, storage, output
        self._schema, self._footer = schema, footer
        self._column = "tokens" if "tokens" in schema.names else "embedding"
        self._dtype = value_type(schema.field(self._column).type)
        self._pending: dict[int, dict[str, Any] | None] = {}  # by sample index; None: rejected
        self._next_index = 0
        self._ready: list[dict[str, Any]] = []
        self._ready_bytes = 0  # of vectors
        self._rows = 0
        self._rejects: list[Rejection] = []
        self._rejected: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._rejects_writer: pq.ParquetWriter | None = None
        self._started = _now()
        self._seconds = {"encode": 0.0, "write": 0.0}
        self._passes = 0.0
        with _spooling(), ExitStack() as stack:
            folder = stack.enter_context(spool_folder())
            self._rows_file = folder / "rows.parquet"
            self._rejects_file = folder / "rejects.parquet"
            # Vectors never repeat: a dictionary of them takes half of the time and gains nothing.
            repeating = [name for name in schema.names if name != self._column]
            self._rows_writer = pq.ParquetWriter(
                self._rows_file, schema, compression="zstd", use_dictionary=repeating
            )
            self._closing = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._closing, suppress(OSError):  # a full disk was told of before; all goes now
            self._rows_writer.close()
            if self._rejects_writer is not None:
                self._rejects_writer.close()

    def add(self, pack: Pack, block: EmbeddingBlock, explain: Explain | None = None) -> None:
        """None; takes what the encoder made of a pack.

        Images whose values are not finite in the output's type become rejections; `explain` finds
        their details.

        Raises InvariantError where the block is not that of the pack, or a sample came before,
        OutputTooLargeError where the output grows too large, StorageError where the local disk is
        full.
        """
        start = time.perf_counter()
        batch = pack.batch
        tokens = self._column == "tokens"
        rows = batch.num_tokens if tokens else batch.num_images
        if block.ids != batch.ids or len(block.vectors) != rows:
            raise InvariantError(f"{self._lease.shard}: vectors do not belong to the pack")
        ends = batch.cu_seqlens[1:-1] if tokens else np.arange(1, rows)
        images = np.split(block.vectors, ends)
        for position, (sample, row) in enumerate(zip(block.ids, pack.rows, strict=True)):
            with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite
                values = images[position].astype(self._dtype)  # a copy: the pack's memory can go
            if not np.isfinite(values).all():
                detail = explain(batch, position) if explain else "NaN or infinity"
                self.reject([_non_finite(sample, row.index, detail)])
                continue
            height, width = batch.source_sizes[position]
            grid_h, grid_w = batch.spatial_shapes[position]
            self._account(
                row.index,
                {
                    "key": sample.key,
                    "shard": sample.shard,
                    "index": row.index,
                    self._column: values,
                    "height": int(height),
                    "width": int(width),
                    "grid_h": int(grid_h),
                    "grid_w": int(grid_w),
                    "truncated": row.truncated,
                    **row.metadata,
                },
            )
        self._drain()
        self._seconds["encode"] += block.seconds
        self._passes += block.passes
        self._seconds["write"] += time.perf_counter() - start

    def reject(self, items: Sequence[Rejection]) -> None:
        """None; takes rejections. Raises InvariantError where a sample came before."""
        for item in items:
            self._account(item.index, None)
            self._rejected[item.reason.value] += 1
            self._examples.setdefault(item.reason.value, str(item))
            self._rejects.append(item)
        if len(self._rejects) >= _ROW_GROUP:
            self._flush_rejects()
        self._drain()

    def publish(self, end: End) -> tuple[Outcome, ShardReport]:
        """What became of the shard, and its final report. The embeddings object is the commit.

        Raises InvariantError where what was read is not what was written and rejected.
        """
        report = self._final_report(end)
        self._flush()
        self._flush_rejects()
        footer = {
            **self._footer,
            "attempt": self._lease.attempt,
            "shard": self._lease.shard,
            **shard_facts(report, end),
            "started": self._started,
            "finished": _now(),
        }
        with _spooling():
            self._rows_writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer).encode()})
            self._rows_writer.close()
            if self._rejects_writer is not None:
                self._rejects_writer.close()
        self._check_size()
        return self._commit(), report

    def _commit(self) -> Outcome:
        rejects = rejects_url(self._output, self._lease.shard, self._lease.attempt)
        if self._rejects_writer is not None:
            self._storage.create(rejects, self._rejects_file)
        target = embeddings_url(self._output, self._lease.shard)
        if self._storage.create(target, self._rows_file):
            return "published"
        if read_footer(self._storage, target)["attempt"] == self._lease.attempt:
            return "already_ours"  # the put succeeded, its answer was lost
        if self._rejects_writer is not None:
            self._storage.delete(rejects)
        return "lost"

    def _account(self, index: int, row: dict[str, Any] | None) -> None:
        if index < self._next_index or index in self._pending:
            raise InvariantError(f"{self._lease.shard}: sample {index} came twice")
        self._pending[index] = row

    def _drain(self) -> None:
        while self._next_index in self._pending:
            row = self._pending.pop(self._next_index)
            self._next_index += 1
            if row is not None:
                self._ready.append(row)
                self._ready_bytes += row[self._column].nbytes
        if len(self._ready) >= _ROW_GROUP or self._ready_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._ready:
            with _spooling():
                self._rows_writer.write_table(rows_table(self._ready, self._schema))
            self._rows += len(self._ready)
            self._ready, self._ready_bytes = [], 0
            self._check_size()

    def _flush_rejects(self) -> None:
        if self._rejects:
            with _spooling():
                if self._rejects_writer is None:
                    self._rejects_writer = pq.ParquetWriter(self._rejects_file, REJECTS_SCHEMA)
                self._rejects_writer.write_table(rejects_table(self._rejects))
            self._rejects = []

    def _check_size(self) -> None:
        """Refuses as soon as it is known: how many images a tar holds is known at its end only."""
        size = self._rows_file.stat().st_size
        if size > MAX_SHARD_OUTPUT_BYTES:
            raise OutputTooLargeError(
                f"the output of one shard must stay below {MAX_SHARD_OUTPUT_BYTES:,} bytes, the "
                f"most that object stores create in one act; {self._rows:,} rows take {size:,} "
                f"already. Use smaller shards",
                self._lease.shard,
            )

    def _final_report(self, end: End) -> ShardReport:
        report = replace(
            end.report,
            embedded=self._rows + len(self._ready),
            rejected=dict(self._rejected),
            examples=self._examples,
            seconds={**end.report.seconds, **self._seconds},
            passes=self._passes,
        )
        non_finite = self._rejected[RejectReason.NON_FINITE.value]
        if (
            not report.balanced
            or self._pending
            or report.embedded + non_finite != end.report.embedded
            or self._next_index != report.read
        ):
            raise InvariantError(
                f"{self._lease.shard}: read = embedded + rejected must hold, found {report.read} "
                f"read, {report.embedded} rows, {dict(self._rejected)} rejected and "
                f"{len(self._pending)} out of order; {end.report.embedded} had been packed"
            )
        return report


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _spooling() -> AbstractContextManager[None]:
    return os_errors(locate(tempfile.gettempdir()), "spool rows to")


def _non_finite(sample: SampleId, index: int, detail: str) -> Rejection:
    return Rejection(
        id=sample,
        index=index,
        reason=RejectReason.NON_FINITE,
        detail=f"the encoder's values for this image are {detail}",
    )

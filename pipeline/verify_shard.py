"""One embeddings object and its rejects, held against what the run promised."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import StorageError
from pipeline.footer import FOOTER_KEY
from pipeline.manifest import embeddings_url, rejects_url
from pipeline.run_record import RunRecord
from pipeline.storage import Storage
from pipeline.tables import REJECTS_SCHEMA, embeddings_schema
from pipeline.urls import locate

_MEMORY_BYTES = 32 << 20  # of an object that is not local; larger ones go through a file
_CHUNK = 8 << 20
# How far a norm may be from 1: float16 rounds each value by 2^-11 of it at most.
_NORM_TOLERANCE = {"float16": 1e-3, "float32": 1e-5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str  # one of pipeline.verify.CHECKS
    subject: str  # URL of an object, or a shard id
    detail: str


@dataclass(slots=True, kw_only=True)
class ShardFacts:
    """What one object holds. Fields keep their defaults where it could not be read so far."""

    url: str
    shard: str = ""
    attempt: str = ""
    rows: int = 0
    read: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True
    findings: list[Finding] = field(default_factory=list)

    def add(self, check: str, detail: str) -> None:
        self.findings.append(Finding(check=check, subject=self.url, detail=detail))


def check_shard(storage: Storage, output: str, record: RunRecord, url: str) -> ShardFacts:
    """What is found in one embeddings object; memory is that of a row group and of the keys."""
    facts = ShardFacts(url=url)
    try:
        with open_parquet(storage, url) as file:
            _check_file(file, output, record, facts, storage)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        facts.add("readable", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    except StorageError as error:
        facts.add("readable", error.message)
    return facts


@contextmanager
def open_parquet(storage: Storage, url: str) -> Iterator[pq.ParquetFile]:
    """A Parquet object; one that is not local is copied first, in memory if it is small."""
    place = locate(url)
    if place.scheme == "file":
        with open(place.key, "rb") as file, pq.ParquetFile(file) as parquet:
            yield parquet
        return
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as copy:
        _copy(storage, url, copy)
        with pq.ParquetFile(copy) as parquet:
            yield parquet


def read_footer_of(file: pq.ParquetFile) -> dict[str, Any]:
    footer: dict[str, Any] = json.loads((file.metadata.metadata or {})[FOOTER_KEY])
    return footer


def _copy(storage: Storage, url: str, target: IO[bytes]) -> None:
    with storage.open(url) as stream:
        while chunk := stream.read(_CHUNK):
            target.write(chunk)
    target.seek(0)


def _check_file(
    file: pq.ParquetFile, output: str, record: RunRecord, facts: ShardFacts, storage: Storage
) -> None:
    footer = read_footer_of(file)
    facts.shard, facts.attempt = footer["shard"], footer["attempt"]
    facts.rows, facts.read = file.metadata.num_rows, footer["read"]
    facts.rejected, facts.complete = footer["rejected"], footer["complete"]
    _check_footer(footer, output, record, facts)
    schema = embeddings_schema(record.config, record.model.readout.width)
    if not file.schema_arrow.equals(schema):
        facts.add("schema", _differences(file.schema_arrow, schema))
        return
    rows = _check_rows(file, record, facts)
    rejects = _read_rejects(storage, output, facts)
    every = np.sort(np.concatenate([rows, rejects]))
    if not np.array_equal(every, np.arange(facts.read)):
        facts.add("counts", f"rows and rejects are not samples 0 to {facts.read - 1}, once each")


def _check_footer(
    footer: Mapping[str, Any], output: str, record: RunRecord, facts: ShardFacts
) -> None:
    of_the_run = {
        "fingerprint": record.fingerprint,
        "revision": record.model.revision,
        "digest": record.model.digest,
        "kernel": record.kernel,
    }
    for name, expected in of_the_run.items():
        if footer[name] != expected:
            facts.add("footer", f"{name} is {footer[name]!r}, the run's is {expected!r}")
    if (expected_url := embeddings_url(output, facts.shard)) != facts.url:
        facts.add("footer", f"it is of {facts.shard}, which belongs in {expected_url}")
    embedded, rejected = footer["embedded"], sum(facts.rejected.values())
    if facts.read != embedded + rejected:
        facts.add("counts", f"{facts.read} read is not {embedded} embedded + {rejected} rejected")
    if facts.rows != embedded:
        facts.add("counts", f"it has {facts.rows} rows, its footer says {embedded}")


def _differences(found: pa.Schema, expected: pa.Schema) -> str:
    found_columns = {column.name: str(column) for column in found}
    expected_columns = {column.name: str(column) for column in expected}
    names = [*expected_columns, *(name for name in found_columns if name not in expected_columns)]
    differing = [
        f"{name}: {found_columns.get(name, 'missing')}, not {expected_columns.get(name, 'there')}"
        for name in names
        if found_columns.get(name) != expected_columns.get(name)
    ]
    return "; ".join(differing) or "the columns are in another order"


def _check_rows(file: pq.ParquetFile, record: RunRecord, facts: ShardFacts) -> NDArray[np.int64]:
    """The sample indexes of the rows, in their order."""
    indexes: list[NDArray[np.int64]] = []
    keys: list[pa.ChunkedArray] = []
    for number in range(file.metadata.num_row_groups):
        group = file.read_row_group(number)
        keys.append(group.column("key").combine_chunks())
        indexes.append(group.column("index").to_numpy())
        others = pc.sum(pc.not_equal(group.column("shard"), facts.shard)).as_py()
        if others:
            facts.add("rows", f"{others} rows are of another shard than the footer")
        _check_values(group, record, facts)
    order = np.concatenate([np.zeros(0, np.int64), *indexes])
    if (np.diff(order) <= 0).any():
        facts.add("rows", "the rows are not in the order of their index")
    every = pa.chunked_array(keys, type=pa.string())
    if (doubles := len(every) - pc.count_distinct(every).as_py()) > 0:
        facts.add("duplicates", f"{doubles} keys come again, one is {_a_double(every)!r}")
    return order


def _a_double(keys: pa.ChunkedArray) -> str:
    counts = pc.value_counts(keys)
    double = counts.filter(pc.greater(counts.field("counts"), 1))
    key: str = double.field("values")[0].as_py()
    return key


def _check_values(group: pa.Table, record: RunRecord, facts: ShardFacts) -> None:
    readout = record.model.readout
    if not group.num_rows:
        return
    vectors = vectors_of(group, readout.vectors)
    if readout.vectors == "tokens":
        lengths = pc.list_value_length(group.column("tokens")).to_numpy()
        area = group.column("grid_h").to_numpy() * group.column("grid_w").to_numpy()
        if (wrong := int((lengths != area).sum())) > 0:
            facts.add("vectors", f"{wrong} rows have other numbers of tokens than their grids")
    if (broken := int((~np.isfinite(vectors).all(axis=1)).sum())) > 0:
        facts.add("vectors", f"{broken} vectors have values that are not finite")
    elif readout.normalize:
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(vectors.astype(np.float32), axis=1)
        off = float(np.abs(norms - 1).max())
        if off > _NORM_TOLERANCE[readout.dtype]:
            facts.add("vectors", f"a vector's length is off from 1 by {off:.2g}")


def vectors_of(table: pa.Table, kind: str) -> NDArray[np.floating]:
    """[N, D] vectors of a table's rows, or [T, D] tokens one row's after the other's."""
    column = table.column("tokens" if kind == "tokens" else "embedding").combine_chunks()
    if kind == "tokens":
        column = column.flatten()
    width = column.type.list_size
    values: NDArray[np.floating] = column.flatten().to_numpy().reshape(-1, width)
    return values


def _read_rejects(storage: Storage, output: str, facts: ShardFacts) -> NDArray[np.int64]:
    """The sample indexes of the attempt's rejects, checked against the footer's counts."""
    if not facts.rejected:
        return np.zeros(0, np.int64)
    url = rejects_url(output, facts.shard, facts.attempt)
    try:
        with open_parquet(storage, url) as file:
            table = file.read()
    except (pa.ArrowException, OSError, StorageError) as error:
        facts.add("rejects", f"its rejects cannot be read: {' '.join(str(error).split())[:300]}")
        return np.zeros(0, np.int64)
    if not table.schema.equals(REJECTS_SCHEMA):
        facts.add("rejects", f"in its rejects {_differences(table.schema, REJECTS_SCHEMA)}")
        return np.zeros(0, np.int64)
    found = Counter(table.column("reason").to_pylist())
    if found != Counter(facts.rejected):
        facts.add("counts", f"its rejects are {dict(found)}, its footer says {facts.rejected}")
    indexes: NDArray[np.int64] = table.column("index").to_numpy()
    return indexes

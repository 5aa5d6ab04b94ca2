"""Rows and rejects of an output that a report shows and measures: few, and evenly spread."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.errors import StorageError
from pipeline.manifest import rejects_url
from pipeline.object_file import ObjectFile
from pipeline.parallel import in_threads
from pipeline.storage import Storage
from pipeline.verify_shard import vectors_of

_ROWS = 8192
_VECTOR_BYTES = 64 << 20  # of the sample as float32: 8192 rows of width 2048
_READ_BYTES = 256 << 20  # of column chunks
_THREADS = 4  # each has a row group of up to 64 MiB, and as much waits
_EXAMPLES = 6
_BROKEN = (pa.ArrowException, OSError, KeyError, ValueError, StorageError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some rows. Letters: n of them, D width."""

    keys: list[str]
    shards: list[str]
    sizes: NDArray[np.int64]  # [n, 2] (height, width) px
    grids: NDArray[np.int64]  # [n, 2] (h, w) patches
    vectors: NDArray[np.float32]  # [n, D]; where the output is tokens, their mean
    shards_read: int

    @property
    def rows(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectLine:
    shard: str
    key: str
    member: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A row group of an embeddings object."""

    url: str
    number: int
    rows: int
    size: int  # bytes of its columns in the object


def read_sample(
    storage: Storage, urls: Sequence[str], kind: str, width: int, *, rows: int = _ROWS
) -> Sample:
    """At most `rows` rows of the objects, evenly spread; all, where there are no more.

    `kind` is `output.vectors`. Reads some 256 MiB at most: of larger outputs every so many
    row groups. An object that cannot be read is left out.
    """
    found = in_threads(partial(_groups, storage), urls, threads=_THREADS)
    groups = _some([group for of_one in found for group in of_one], _READ_BYTES)
    rows = max(1, min(rows, _VECTOR_BYTES // (4 * width)))
    picked = _spread([group.rows for group in groups], rows)
    wanted = [(group, chosen) for group, chosen in zip(groups, picked, strict=True) if len(chosen)]
    parts = list(in_threads(partial(_read, storage, kind), wanted, threads=_THREADS))
    tables = [part for part in parts if part is not None]
    empty = np.zeros((0, width), np.float32)
    return Sample(
        keys=[key for table, _ in tables for key in table.column("key").to_pylist()],
        shards=[shard for table, _ in tables for shard in table.column("shard").to_pylist()],
        sizes=_pairs([table for table, _ in tables], "height", "width"),
        grids=_pairs([table for table, _ in tables], "grid_h", "grid_w"),
        vectors=np.concatenate([empty, *(vectors for _, vectors in tables)]),
        shards_read=len({group.url for group, _ in wanted}),
    )


def read_examples(
    storage: Storage, output: str, having: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, list[RejectLine]]:
    """A few rejects of each reason; `having` names shards and attempts with such rejects."""
    places = [
        (reason, rejects_url(output, *place)) for reason in having for place in having[reason]
    ]
    found = in_threads(partial(_some_rejects, storage), places, threads=_THREADS)
    by_reason: dict[str, list[list[RejectLine]]] = {reason: [] for reason in having}
    for (reason, _), lines in zip(places, found, strict=True):
        by_reason[reason].append(lines)
    return {reason: _in_turn(lists)[:_EXAMPLES] for reason, lists in by_reason.items()}


def _in_turn(lists: Sequence[Sequence[RejectLine]]) -> list[RejectLine]:
    """The first of each list, then the second of each, and so on."""
    return [line for rank in zip_longest(*lists) for line in rank if line is not None]


def _some_rejects(storage: Storage, place: tuple[str, str]) -> list[RejectLine]:
    reason, url = place
    columns = ["shard", "key", "member", "reason", "detail"]
    lines: list[RejectLine] = []
    try:
        with closing(ObjectFile(storage, url)) as file, pq.ParquetFile(file) as parquet:
            for number in range(parquet.num_row_groups):
                table = parquet.read_row_group(number, columns=columns)
                table = table.filter(pc.equal(table.column("reason"), reason))
                lines += [RejectLine(**row) for row in table.slice(0, _EXAMPLES).to_pylist()]
                if len(lines) >= _EXAMPLES:
                    break
    except _BROKEN:  # verify tells of it
        return []
    return lines


def _groups(storage: Storage, url: str) -> list[_Group]:
    try:
        with closing(ObjectFile(storage, url)) as file, pq.ParquetFile(file) as parquet:
            metadata = parquet.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except _BROKEN:
        return []
    return [
        _Group(
            url=url,
            number=number,
            rows=group.num_rows,
            size=sum(group.column(c).total_compressed_size for c in range(group.num_columns)),
        )
        for number, group in enumerate(groups)
    ]


def _some(groups: list[_Group], size: int) -> list[_Group]:
    """Every so many of them, so that they have at most that size together."""
    step = max(1, -(-sum(group.size for group in groups) // size))
    return groups[::step]


def _spread(counts: Sequence[int], rows: int) -> Iterator[NDArray[np.int64]]:
    """Yields, for each count, the rows of `rows` evenly spread ones that fall into it."""
    total = sum(counts)
    chosen = np.arange(min(rows, total)) * total // max(1, min(rows, total))
    start = 0
    for count in counts:
        first, last = np.searchsorted(chosen, (start, start + count))
        yield chosen[first:last] - start
        start += count


def _read(
    storage: Storage, kind: str, item: tuple[_Group, NDArray[np.int64]]
) -> tuple[pa.Table, NDArray[np.float32]] | None:
    group, chosen = item
    column = "tokens" if kind == "tokens" else "embedding"
    names = ["key", "shard", "height", "width", "grid_h", "grid_w", column]
    try:
        with closing(ObjectFile(storage, group.url)) as file, pq.ParquetFile(file) as parquet:
            table = parquet.read_row_group(group.number, columns=names).take(chosen)
    except _BROKEN:
        return None
    vectors = vectors_of(table, kind).astype(np.float32)
    if kind == "tokens":
        lengths = pc.list_value_length(table.column("tokens")).to_numpy()
        vectors = np.add.reduceat(vectors, np.cumsum([0, *lengths[:-1]])) / lengths[:, None]
    return table.drop_columns([column]), vectors


def _pairs(tables: Sequence[pa.Table], first: str, second: str) -> NDArray[np.int64]:
    columns = [
        np.stack([table.column(name).to_numpy() for name in (first, second)], axis=1)
        for table in tables
    ]
    return np.concatenate([np.zeros((0, 2), np.int64), *columns])

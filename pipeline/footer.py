"""What the Parquet footer of an embeddings object says of its shard."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import OutputError
from pipeline.records import End, ShardReport
from pipeline.storage import Storage

FOOTER_KEY = b"embedmill"
_TAIL_BYTES = 64 << 10


def shard_facts(report: ShardReport, end: End) -> dict[str, Any]:
    """What a footer says of the shard and of its final report."""
    return {
        "size": end.size,
        "etag": end.etag,
        "complete": end.complete,
        "read": report.read,
        "embedded": report.embedded,
        "rejected": dict(report.rejected),
        "skipped": dict(report.skipped),
        "warnings": dict(report.warnings),
        "seconds": {name: round(value, 4) for name, value in report.seconds.items()},
        "tokens": report.tokens,
        "passes": round(report.passes, 4),
    }


def read_footer(storage: Storage, url: str) -> dict[str, Any]:
    """The embedmill footer of a published embeddings object; reads the object's tail only.

    Raises OutputError where it is no object that a run published.
    """
    tail = storage.tail(url, _TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little") + 8  # Parquet: footer, its length, magic
    if length > len(tail):
        tail = storage.tail(url, length)
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail)).metadata or {}
        footer: dict[str, Any] = json.loads(metadata[FOOTER_KEY])
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise OutputError(
            f"{url} must be the embeddings of a shard, found another footer ({error!r}). Remove "
            f"it: the next run makes it anew"
        ) from error
    return footer

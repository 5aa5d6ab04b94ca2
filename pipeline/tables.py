"""The columns of embeddings and rejects, and rows made into tables of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.records import Rejection

_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "json": pa.string(),
}
REJECTS_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("member", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


def embeddings_schema(config: RunConfig, width: int) -> pa.Schema:
    """The columns of an embeddings file; the same for every shard of a run."""
    value = pa.float16() if config.output.dtype == "float16" else pa.float32()
    vector = pa.list_(pa.field("element", value, nullable=False), width)
    column = pa.field("embedding", vector, nullable=False)
    if config.output.vectors == "tokens":
        tokens = pa.list_(pa.field("element", vector, nullable=False))
        column = pa.field("tokens", tokens, nullable=False)
    fields = [
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        column,
    ]
    fields += [
        pa.field(name, pa.int32(), nullable=False)
        for name in ("height", "width", "grid_h", "grid_w")
    ]
    if config.preprocess.truncated_images == "accept":
        fields.append(pa.field("truncated", pa.bool_(), nullable=False))
    fields += [pa.field(c.name, _ARROW_TYPES[c.type]) for c in config.input.metadata]
    return pa.schema(fields)


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows [N] as a table of an embeddings schema; metadata that a row lacks is null."""
    columns = []
    for column in schema:
        values: list[Any] = [row.get(column.name) for row in rows]
        if column.name == "embedding":
            columns.append(_vectors(values, column.type))
        elif column.name == "tokens":
            offsets = np.cumsum([0, *(len(tokens) for tokens in values)], dtype=np.int32)
            vectors = _vectors(values, column.type.value_type)
            columns.append(pa.ListArray.from_arrays(offsets, vectors, type=column.type))
        else:
            columns.append(pa.array(values, type=column.type))
    return pa.Table.from_arrays(columns, schema=schema)


def value_type(kind: pa.DataType) -> np.dtype[Any]:
    """float16 or float32, from within the lists of a column."""
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    value: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return value


def _vectors(images: Sequence[NDArray[np.floating]], kind: pa.DataType) -> pa.Array:
    """One vector for each row of the images [n, D]."""
    flat = np.concatenate(images).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)


def rejects_table(items: Sequence[Rejection]) -> pa.Table:
    """The rejections [N] as a table of REJECTS_SCHEMA."""
    columns = {
        "key": [item.id.key for item in items],
        "shard": [item.id.shard for item in items],
        "index": [item.index for item in items],
        "member": [item.member for item in items],
        "reason": [item.reason.value for item in items],
        "detail": [item.detail for item in items],
    }
    return pa.table(columns, schema=REJECTS_SCHEMA)

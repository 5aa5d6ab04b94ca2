"""Chosen fields of a sample's JSON and text members as typed column values."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config import MetadataColumn
from pipeline.records import Value

MAX_METADATA_BYTES = 16 << 20  # a larger member is not read, its columns are null

_ABSENT = object()


class BadValueError(ValueError):
    """A member or field is there but is not what the column needs."""


@dataclass(slots=True, kw_only=True)
class Columns:
    """The values of one sample, and what was wrong with them."""

    values: dict[str, Value] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # one line for each absent field
    bad: list[str] = field(default_factory=list)  # one line for each unreadable one
    required: str = ""  # the line of the first required column that has no value


def read_columns(columns: Sequence[MetadataColumn], members: Mapping[str, bytes]) -> Columns:
    """The value of every column, None where there is none; `members` maps suffix to bytes."""
    result = Columns()
    parsed: dict[str, Any] = {}
    for column in columns:
        try:
            raw = _lookup(column, members, parsed)
            value = None if raw is _ABSENT else _convert(raw, column.type)
            problem = "is missing" if value is None else ""
            problems = result.missing
        except BadValueError as error:
            value, problem, problems = None, str(error), result.bad
        result.values[column.name] = value
        if problem:
            line = f"{_place(column)} {problem}"
            problems.append(line)
            if column.required and not result.required:
                result.required = line
    return result


def _place(column: MetadataColumn) -> str:
    inside = f"field {column.field!r} of " if column.field is not None else ""
    return f"column {column.name!r}: {inside}member .{column.member}"


def _lookup(column: MetadataColumn, members: Mapping[str, bytes], parsed: dict[str, Any]) -> Any:
    suffix = column.member.lower()
    if suffix not in members:
        return _ABSENT
    if column.field is None:
        return _decode(members[suffix])
    if suffix not in parsed:
        parsed[suffix] = _parse(members[suffix])
    if isinstance(parsed[suffix], BadValueError):
        raise parsed[suffix]
    value = parsed[suffix]
    for name in column.field.split("."):
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return _ABSENT if value is None else value


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadValueError(f"is not UTF-8 text: {error.reason}") from error


def _parse(data: bytes | str) -> Any:
    """The JSON value, or the error that says why there is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        return BadValueError(f"is not JSON: {error}")


def _convert(value: Any, kind: str) -> Value:
    try:
        return _CONVERTERS[kind](value)
    except (ValueError, OverflowError, RecursionError) as error:
        shown = repr(value)[:40]
        raise BadValueError(f"is not {kind}: {shown}") from error


def _to_string(value: Any) -> str:
    if isinstance(value, dict | list):
        raise ValueError("nested")
    text = value if isinstance(value, str) else json.dumps(value)
    text.encode("utf-8")  # a JSON text can hold half a surrogate pair, Parquet cannot
    return text


def _to_int(value: Any) -> int:
    if isinstance(value, bool | dict | list) or (isinstance(value, float) and value % 1):
        raise ValueError("no whole number")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError("beyond 64 bits")
    return number


def _to_float(value: Any) -> float:
    if isinstance(value, bool | dict | list):
        raise ValueError("no number")
    number = float(value)
    if math.isinf(number) and not isinstance(value, float):
        raise ValueError("beyond float64")
    return number


def _to_bool(value: Any) -> bool:
    truths = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    key = str(value).strip().lower()
    if isinstance(value, float | dict | list) or key not in truths:
        raise ValueError("no truth value")
    return truths[key]


def _to_json(value: Any) -> str:
    parsed = _parse(value) if isinstance(value, str) else value
    return json.dumps(parsed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_CONVERTERS = {
    "string": _to_string,
    "int64": _to_int,
    "float64": _to_float,
    "bool": _to_bool,
    "json": _to_json,
}

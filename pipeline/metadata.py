"""Chosen fields of a sample's JSON and text members as typed column values."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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


def read_columns(columns: Sequence[MetadataColumn], members: Mapping[str, bytes | None]) -> Columns:
    """The value of every column, None where there is none.

    `members` maps suffixes to bytes, to None where a member was too large to be read.
    """
    result = Columns()
    parsed: dict[str, Any] = {}
    for column in columns:
        result.values[column.name] = None
        try:
            found = _lookup(column, members, parsed)
            if found is not _ABSENT:
                result.values[column.name] = _CONVERTERS[column.type](found)
                continue
            problems, problem = result.missing, "is missing"
        except BadValueError as error:
            problems, problem = result.bad, str(error)
        line = f"{_place(column)} {problem}"
        problems.append(line)
        if column.required and not result.required:
            result.required = line
    return result


def _place(column: MetadataColumn) -> str:
    inside = f"field {column.field!r} of " if column.field is not None else ""
    return f"column {column.name!r}: {inside}member .{column.member}"


def _lookup(
    column: MetadataColumn, members: Mapping[str, bytes | None], parsed: dict[str, Any]
) -> Any:
    """What the column points at; `parsed` keeps JSON members for the next column."""
    suffix = column.member.lower()
    if suffix not in members:
        return _ABSENT
    data = members[suffix]
    if data is None:
        raise BadValueError(f"must have {MAX_METADATA_BYTES >> 20} MiB at most")
    if column.field is None and column.type != "json":
        return _decode(data)
    if suffix not in parsed:
        parsed[suffix] = _parse(data)
    value = parsed[suffix]
    for name in column.field.split(".") if column.field is not None else ():
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return _ABSENT if value is None else value


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadValueError(f"is not UTF-8 text: {error.reason}") from error


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"is not JSON: {error}") from error


def _to_string(value: Any) -> str:
    if isinstance(value, dict | list):
        raise _unfit(value, "text; nested values need type json")
    return _encodable(value if isinstance(value, str) else json.dumps(value))


def _to_int(value: Any) -> int:
    if not isinstance(value, bool | dict | list):
        try:
            number = int(value)
        except (ValueError, OverflowError):
            number = 2**63  # text, NaN or infinity: as unfit as what is too large
        whole = not isinstance(value, float) or number == value
        if whole and -(2**63) <= number < 2**63:
            return number
    raise _unfit(value, "a whole number of 64 bits")


def _to_float(value: Any) -> float:
    if not isinstance(value, bool | dict | list):
        with suppress(ValueError, OverflowError):
            return float(value)
    raise _unfit(value, "a number")


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, str | int) else ""
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise _unfit(value, "true, false, 1 or 0")


def _to_json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise _unfit(value, "JSON, which has no NaN and no infinity") from error
    return _encodable(text)


def _encodable(text: str) -> str:
    """The text, unless it holds half a surrogate pair: JSON can, Parquet cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _unfit(text, "text that UTF-8 can hold") from error
    return text


def _unfit(value: Any, needed: str) -> BadValueError:
    shown = ascii(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return BadValueError(f"must be {needed}, found {shown[:40]}")


_CONVERTERS: dict[str, Callable[[Any], Value]] = {
    "string": _to_string,
    "int64": _to_int,
    "float64": _to_float,
    "bool": _to_bool,
    "json": _to_json,
}

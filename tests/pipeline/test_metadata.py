"""Typed columns from JSON and text members."""

import math

import pytest

from pipeline.config import MetadataColumn
from pipeline.metadata import read_columns


def read(data: bytes | None, kind: str, *, field=None, member="json", required=False):
    column = MetadataColumn(name="c", member=member, field=field, type=kind, required=required)
    return read_columns([column], {} if data is None else {member.lower(): data})


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("string", b'{"f": "text"}', "text"),
        ("string", b'{"f": 5}', "5"),
        ("string", b'{"f": true}', "true"),
        ("int64", b'{"f": 5}', 5),
        ("int64", b'{"f": 5.0}', 5),
        ("int64", b'{"f": "5"}', 5),
        ("int64", b'{"f": -9223372036854775808}', -(2**63)),
        ("float64", b'{"f": 0.5}', 0.5),
        ("float64", b'{"f": 5}', 5.0),
        ("float64", b'{"f": Infinity}', math.inf),
        ("bool", b'{"f": true}', True),
        ("bool", b'{"f": 0}', False),
        ("bool", b'{"f": "True"}', True),
        ("json", b'{"f": {"a": [1, "\xc3\xa9"]}}', '{"a":[1,"é"]}'),
        ("json", b'{"f": "{\\"a\\": 1}"}', '"{\\"a\\": 1}"'),
        ("string", b'\xef\xbb\xbf{"f": "bom"}', "bom"),
    ],
)
def test_json_field_becomes_the_type_of_its_column(kind, data, value):
    result = read(data, kind, field="f")
    assert result.values == {"c": value}
    assert type(result.values["c"]) is type(value)
    assert not result.bad
    assert not result.missing


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("string", b" a caption\n", " a caption\n"),
        ("int64", b"7\n", 7),
        ("float64", b"1e-3", 1e-3),
        ("bool", b"false\n", False),
        ("json", b'{"a": 1}', '{"a":1}'),
    ],
)
def test_whole_member_becomes_the_type_of_its_column(kind, data, value):
    assert read(data, kind, member="txt").values == {"c": value}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("string", b'{"f": {"nested": 1}}'),
        ("string", b'{"f": "\\ud800"}'),
        ("int64", b'{"f": 5.5}'),
        ("int64", b'{"f": true}'),
        ("int64", b'{"f": 9223372036854775808}'),
        ("int64", b'{"f": NaN}'),
        ("int64", b'{"f": Infinity}'),
        ("int64", b'{"f": [1]}'),
        ("float64", b'{"f": true}'),
        ("float64", b'{"f": "much"}'),
        ("float64", b'{"f": 1' + b"0" * 400 + b"}"),
        ("bool", b'{"f": 2}'),
        ("bool", b'{"f": 1.0}'),
        ("json", b'{"f": NaN}'),
        ("json", b'{"f": "\\ud800"}'),
        ("string", b"{broken"),
        ("string", b'{"f": "\xff"}'),
        ("string", b"[" * 100_000),
        ("string", b'{"f": ' + b"1" * 5000 + b"}"),
    ],
)
def test_unfit_value_is_null_and_named(kind, data):
    result = read(data, kind, field="f")
    assert result.values == {"c": None}
    assert len(result.bad) == 1
    assert "'c'" in result.bad[0]
    assert len(result.bad[0]) < 300


def test_text_that_is_not_utf8_is_bad():
    assert read(b"\xff", "string", member="txt").bad
    assert read(b"{", "json", member="txt").bad


@pytest.mark.parametrize("data", [None, b"{}", b'{"f": null}', b"[1]", b"5", b'{"f": 1}'])
def test_absent_value_is_null_and_missing(data):
    result = read(data, "string", field="f.g")
    assert result.values == {"c": None}
    assert len(result.missing) == 1
    assert not result.bad


def test_dots_go_into_nested_objects():
    assert read(b'{"a": {"b": {"c": 3}}}', "int64", field="a.b.c").values == {"c": 3}


def test_members_are_found_in_any_case():
    assert read(b"text", "string", member="TXT").values == {"c": "text"}


@pytest.mark.parametrize("data", [None, b"{broken", b'{"f": [1]}'])
def test_required_column_says_what_is_wrong(data):
    assert "'c'" in read(data, "string", field="f", required=True).required
    assert read(data, "string", field="f").required == ""


def test_one_broken_member_is_told_once_for_each_column():
    columns = [MetadataColumn(name=name, field=name) for name in ("a", "b")]
    result = read_columns(columns, {"json": b"{broken"})
    assert result.values == {"a": None, "b": None}
    assert len(result.bad) == 2

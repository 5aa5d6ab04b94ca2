"""The log in its two forms."""

import json
import logging

import pytest

from pipeline import logs


@pytest.fixture(autouse=True)
def as_it_was():
    root = logging.getLogger()
    handlers, level = list(root.handlers), logs.log.level
    yield
    root.handlers[:] = handlers
    logs.log.setLevel(level)


def told(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_lines_carry_facts_and_errors(capsys):
    logs.set_up(as_json=True)
    logs.log.info("%d shards\nin two lines", 3, extra={"facts": {"shards": 3}})
    try:
        raise ValueError("broken")
    except ValueError:
        logs.log.exception("stopped")
    first, second = told(capsys)
    assert (first["message"], first["level"], first["shards"]) == (
        "3 shards\nin two lines",
        "info",
        3,
    )
    assert first["time"].endswith("+00:00")
    assert "ValueError: broken" in second["error"]
    assert logs.is_json()


def test_quiet_leaves_warnings(capsys):
    logs.set_up(quiet=True)
    logs.log.info("no")
    logs.log.warning("yes")
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["yes"]
    assert not logs.is_json()

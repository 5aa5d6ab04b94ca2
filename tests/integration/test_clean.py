"""`embedmill clean` as people type it."""

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import ConfigError, OutputError
from tests.integration.conftest import embedmill
from tests.pipeline.outputs import Output


@pytest.fixture
def output(tmp_path):
    return Output(f"file://{tmp_path}/out")


def clean(*arguments):
    """`embedmill clean` in this process; what it raises is in `exception`."""
    return CliRunner().invoke(app, ["clean", *map(str, arguments)])


def test_clean_says_what_it_removes_and_dry_run_removes_nothing(output, tmp_path):
    killed = output.leave_rejects("a", {"bad": "unknown_format"})
    output.publish("a")
    before = output.urls()
    dry = embedmill("clean", tmp_path / "out", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.startswith("would remove file:///")
    assert output.urls() == before
    real = embedmill("clean", tmp_path / "out")
    assert real.returncode == 0, real.stderr
    assert killed in real.stdout
    assert {url for url in before - output.urls() if killed not in url} == set()
    assert "Nothing to remove" in embedmill("clean", tmp_path / "out").stderr


def test_a_freed_shard_is_done_again_by_the_next_run(output, tmp_path):
    output.publish("a")
    output.publish("b")
    freed = clean(tmp_path / "out", "--shard", "s3://in/a.tar")
    assert freed.exit_code == 0, freed.output
    (left,) = output.urls()
    assert left.startswith("embeddings/b-")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["nowhere"], "has no _run.json"),
        (["out", "--with-reason", "bad_image"], "no reject reason: bad_image; known: no_image"),
        (["out", "--shard", "gone/*.tar"], "no shard matches"),
    ],
)
def test_wrong_use_is_explained(output, tmp_path, arguments, answer):
    place, *rest = arguments
    done = clean(tmp_path / place, *rest)
    assert isinstance(done.exception, (ConfigError, OutputError))
    assert answer in str(done.exception)

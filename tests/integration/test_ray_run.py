"""Whole runs through the command line on a local Ray."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.integration.conftest import (
    CORPORA,
    REPOSITORY,
    embedmill,
    read_rejects,
    read_rows,
    write_shard,
)
from tests.integration.test_plain_run import run as run_plainly

pytestmark = pytest.mark.timeout(300)  # starting Ray takes up to a minute on a busy machine

TOLERANCE = 2e-6  # of the largest value; transformers itself shows 1.8e-6 between batch sizes


@pytest.fixture
def shards(tmp_path, photos):
    """Twelve shards of six photos each; keys are distinct within a shard."""
    names = list(photos)
    for number in range(12):
        chosen = [names[(number * 5 + i) % len(names)] for i in range(6)]
        write_shard(tmp_path / "shards" / f"{number:02d}.tar", {n: photos[n] for n in chosen})


def vectors_of(output):
    return np.array([row["embedding"] for row in read_rows(output)])


def test_a_run_then_the_same_command_again(shards, write_config, tmp_path):
    config = write_config()
    first = embedmill("run", config)
    assert first.returncode == 0, first.stderr
    assert "72 images read = 72 embedded + 0 rejected" in first.stderr
    again = embedmill("run", config)
    assert again.returncode == 0, again.stderr
    assert "Nothing to do: all 12 shards are done" in again.stderr
    assert len(read_rows(tmp_path / "out")) == 72


@pytest.mark.slow
def test_rejects_of_lost_attempts_are_gone_after_a_run(shards, write_config, tmp_path, photos):
    bad = {"a.jpg": b"no image"}
    for number in (12, 13):
        write_shard(tmp_path / "shards" / f"{number}.tar", bad)
    config = write_config()
    quiet = embedmill("run", config, "--quiet")
    assert quiet.returncode == 0, quiet.stderr
    assert quiet.stderr.startswith("14 shards done now, 0 were done before\n74 images read = ")
    kept = sorted((tmp_path / "out" / "rejects").iterdir())
    stale = kept[0].with_name(f"{kept[0].name.split('.')[0]}.{'0' * 32}.parquet")
    stale.write_bytes(kept[0].read_bytes())  # as a killed attempt leaves it
    next((tmp_path / "out" / "embeddings").glob("03-*")).unlink()
    again = embedmill("run", config, "--json-logs")
    assert again.returncode == 0, again.stderr
    assert sorted((tmp_path / "out" / "rejects").iterdir()) == kept
    said = [json.loads(line) for line in again.stderr.splitlines()]
    assert said[0]["message"] == "1 of 14 shards to do"
    assert {"time", "level"} <= said[0].keys()
    counts = {"shards": 14, "shards_done_before": 13, "shards_done": 1, "images_read": 6}
    assert counts.items() <= said[-1].items()


@pytest.mark.slow
def test_kill_dash_nine_of_the_driver_then_the_same_command(shards, write_config, tmp_path):
    config = write_config(packing={"streams_per_encoder": 1})
    driver = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", str(config)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
    )
    embeddings = tmp_path / "out" / "embeddings"
    deadline = time.monotonic() + 90
    while len(list(embeddings.glob("*.parquet"))) < 2 and time.monotonic() < deadline:
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.01)
    driver.kill()
    driver.communicate()
    finished = {path: path.stat().st_ino for path in embeddings.glob("*.parquet")}
    assert 2 <= len(finished) < 12
    second = embedmill("run", config)
    assert second.returncode == 0, second.stderr
    assert f"{len(finished)} were done before" in second.stderr
    assert {path: path.stat().st_ino for path in finished} == finished
    keys = [(row["shard"], row["index"]) for row in read_rows(tmp_path / "out")]
    assert len(keys) == len(set(keys)) == 72


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_order_and_says_how_to_continue(shards, write_config, tmp_path, number):
    config = write_config()
    driver = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", str(config)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has them ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while "Encoder ready" not in (line := driver.stderr.readline()):
        assert line, "the run ended before an Encoder was ready"
    driver.send_signal(number)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130, said
    assert re.search(r"continue with: embedmill run .*run\.yaml", said)
    assert "Traceback" not in said
    assert embedmill("run", config).returncode == 0
    assert len(read_rows(tmp_path / "out")) == 72


@pytest.mark.slow
def test_a_broken_shard_fails_alone(shards, write_config, tmp_path):
    whole = (tmp_path / "shards" / "03.tar").read_bytes()
    (tmp_path / "shards" / "03.tar").write_bytes(whole[: len(whole) // 2])
    run = embedmill("run", write_config())
    assert run.returncode == 1, run.stderr
    assert re.search(r"FAILED \S+/03\.tar: ", run.stderr)
    assert len(read_rows(tmp_path / "out")) == 66


@pytest.mark.slow
def test_pools_and_the_plain_loop_give_the_same_vectors(shards, write_config, tmp_path):
    outputs = []
    for number in (1, 2):
        workers = {
            "encoders": {"max": number, "num_gpus": 0, "device": "cpu"},
            "preprocessors": {"max": number},
        }
        outputs.append(tmp_path / f"out{number}")
        config = write_config(output={"path": str(outputs[-1])}, workers=workers)
        run = embedmill("run", config)
        assert run.returncode == 0, run.stderr
    outputs.append(tmp_path / "plain")
    run_plainly(write_config(output={"path": str(outputs[-1])}))
    rows = [[(row["shard"], row["key"]) for row in read_rows(output)] for output in outputs]
    assert rows[0] == rows[1] == rows[2]
    one, two, plain = (vectors_of(output) for output in outputs)
    assert np.abs(one - two).max() <= TOLERANCE * np.abs(one).max()
    assert np.abs(one - plain).max() <= TOLERANCE * np.abs(one).max()


@pytest.mark.slow
@pytest.mark.corpus
def test_the_demo_configuration_on_all_photos_gives_transformers_vectors(tmp_path, checkpoint):
    paths = sorted(p for p in (CORPORA / "photos").iterdir() if p.suffix != ".jsonl")
    for number in range(0, len(paths), 25):
        members = {path.name: path.read_bytes() for path in paths[number : number + 25]}
        write_shard(tmp_path / "shards" / f"{number:03d}.tar", members)
    run = embedmill(
        "run",
        "configs/demo.yaml",
        "--set",
        f"input.shards={tmp_path}/shards/*.tar",
        "--set",
        f"output.path={tmp_path}/out",
        "--set",
        f"model.checkpoint={checkpoint}",
        "--set",
        "input.key_split=last_dot",
        env=os.environ | {"COLUMNS": "200"},
    )
    assert run.returncode == 0, run.stderr
    assert read_rejects(tmp_path / "out") == []
    found = {row["key"]: row["embedding"] for row in read_rows(tmp_path / "out")}
    with np.load(REPOSITORY / "tests" / "data" / "reference_vectors.npz") as reference:
        names, expected = reference["names"], reference["vectors"]
    assert len(found) == len(names) == 175
    vectors = np.array([found[name.rsplit(".", 1)[0]] for name in names])
    assert np.abs(vectors - expected).max() <= 1e-5 * np.abs(expected).max()

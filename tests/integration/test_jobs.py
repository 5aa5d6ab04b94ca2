"""`ray job submit` as the documentation types it, on a head that asks for a token."""

import re
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import REPOSITORY, read_rows, write_photo_shard
from tests.integration.ray_head import RAY, ray_head

NUM_SHARDS, NUM_IMAGES = 80, 8  # half a minute of work: ray job stop itself takes seconds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def head():
    with (
        # As in configs/cluster/: time to end in order after `ray job stop`.
        tempfile.TemporaryDirectory(prefix="em", dir="/tmp") as folder,
        ray_head(Path(folder), num_cpus=4, RAY_JOB_STOP_WAIT_TIME_S="30") as running,
    ):
        yield running


@pytest.fixture
def config(tmp_path, photos, write_config):
    for number in range(NUM_SHARDS):
        write_photo_shard(tmp_path / "shards" / f"{number:02d}.tar", photos, NUM_IMAGES)
    return write_config(packing={"streams_per_encoder": 1, "token_budget": 1024})


def submit(head, config, log):
    """A client that writes the job's log to `log` until the job ends."""
    command = [RAY, "job", "submit", "--submission-id", log.stem, "--working-dir", str(REPOSITORY)]
    command += ["--", "python", "-m", "pipeline", "run", str(config)]
    env = head.env | {"RAY_API_SERVER_ADDRESS": head.dashboard}
    with log.open("w") as stream:
        return subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT)


def published(tmp_path):
    return {path: path.stat().st_ino for path in tmp_path.glob("out/embeddings/*.parquet")}


def actors():
    """Actors of embedmill on this machine."""
    titles = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [title for title in titles if title.startswith(("ray::Encoder", "ray::Preprocessor"))]


def test_a_job_that_is_stopped_and_submitted_again_completes_exactly(head, config, tmp_path):
    log = tmp_path / "first.log"
    client = submit(head, config, log)
    line = re.compile(r"INFO shards \d+/80, images [\d,]+ \([\d,.]+/s\).*left ")
    while len(published(tmp_path)) < 3 or not line.search(log.read_text()):
        assert client.poll() is None, log.read_text()
        time.sleep(0.1)
    stop = subprocess.run(
        [RAY, "job", "stop", "--address", head.dashboard, "first"],
        env=head.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert stop.returncode == 0, stop.stdout + stop.stderr
    client.wait(timeout=60)
    said = log.read_text()
    assert "Stopped. What is published stays; continue with: embedmill run" in said
    assert "Traceback" not in said
    assert "SIGTERM received" not in said, "Ray's handler answered, not ours"
    assert "\x1b[2K" not in said, "a live display does not belong in a log"
    assert actors() == []
    before = published(tmp_path)
    assert 3 <= len(before) < NUM_SHARDS

    log = tmp_path / "second.log"
    assert submit(head, config, log).wait(timeout=300) == 0, log.read_text()
    assert f"{len(before)} were done before" in log.read_text()
    after = published(tmp_path)
    assert len(after) == NUM_SHARDS
    assert before.items() <= after.items(), "a published shard was written again"
    keys = [(row["shard"], row["index"]) for row in read_rows(tmp_path / "out")]
    assert len(keys) == len(set(keys)) == NUM_SHARDS * NUM_IMAGES


def test_a_client_without_the_token_is_turned_away(head, config, tmp_path):
    log = tmp_path / "denied.log"
    env = {k: v for k, v in head.env.items() if not k.startswith("RAY_AUTH")}
    client = submit(type(head)(address="", dashboard=head.dashboard, env=env), config, log)
    assert client.wait(timeout=120) != 0
    assert "oken" in log.read_text()
    assert published(tmp_path) == {}

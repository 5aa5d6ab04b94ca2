"""Whole runs against a real S3 server: killed, doubled, through a failing proxy, over lost shards.

EMBEDMILL_CHAOS_S3_SHARDS, _IMAGES and _KILLS make the first test longer; docs/faults.md has the
long run.
"""

import contextlib
import os
import random
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from encoder.seeded import write_seeded_checkpoint
from pipeline.clean import removals, remove
from pipeline.config import StorageConfig
from pipeline.quarantine import read_failures
from pipeline.run_record import read_run
from pipeline.storage import Storage
from pipeline.verify import verify_output
from tests.integration.conftest import REPOSITORY, embedmill, write_shard
from tests.integration.proxy import FAULTS
from tests.integration.s3_server import s3_options

NUM_SHARDS = int(os.environ.get("EMBEDMILL_CHAOS_S3_SHARDS", "8"))
NUM_IMAGES = int(os.environ.get("EMBEDMILL_CHAOS_S3_IMAGES", "10"))  # in a shard, without the bad
NUM_KILLS = int(os.environ.get("EMBEDMILL_CHAOS_S3_KILLS", "2"))
TOLERANCE = 2e-6  # of the largest value; transformers itself shows 1.8e-6 between batch sizes
INPUT = "s3://bucket/kills/in"
CHECKPOINT = "s3://bucket/kills/checkpoint"

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def store(s3):
    """Storage that reaches the server without the proxy."""
    return Storage(StorageConfig(s3=s3.options))


@pytest.fixture(scope="module")
def shards(store, photos, tmp_path_factory):
    """The ids of shards in the bucket: photos, and one file that is none, in each."""
    names = list(photos)
    folder = tmp_path_factory.mktemp("shards")
    ids = []
    for number in range(NUM_SHARDS):
        chosen = [names[(number * 7 + i) % len(names)] for i in range(NUM_IMAGES)]
        members = {f"{i:03d}-{name}": photos[name] for i, name in enumerate(chosen)}
        members["bad.jpg"] = b'{"not": "an image"}'
        ids.append(f"{INPUT}/{number:03d}.tar")
        store.put(ids[-1], write_shard(folder / f"{number:03d}.tar", members).read_bytes())
    return ids


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Where runs copy the checkpoint to."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def tiny(store, tmp_path_factory):
    """A checkpoint in the bucket that costs next to nothing: decoding is most of these runs."""
    folder = write_seeded_checkpoint(
        tmp_path_factory.mktemp("model") / "checkpoint",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    for file in folder.iterdir():
        store.put(f"{CHECKPOINT}/{file.name}", file.read_bytes())
    return CHECKPOINT


@pytest.fixture(scope="module")
def make_config(tiny, tmp_path_factory):
    """A function from an output and the server's address to a configuration file."""

    def make(output, endpoint, *, shards=f"{INPUT}/*.tar", **limits):
        config = {
            "input": {"shards": shards},
            "output": {"path": output, "dtype": "float32"},
            "model": {"checkpoint": tiny},
            "packing": {"token_budget": 1024, "look_ahead": 4},
            "workers": {
                "encoders": {"num_gpus": 0, "device": "cpu"},
                "preprocessors": {"min": 1, "max": 1},
            },
            "storage": {"s3": s3_options(endpoint)},
            "limits": limits,
        }
        path = tmp_path_factory.mktemp("config") / "run.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return make


@pytest.fixture(scope="module")
def calm(s3, store, shards, make_config):
    """The rows of a run that nothing disturbed."""
    output = "s3://bucket/kills/calm"
    run = embedmill("run", make_config(output, s3.endpoint))
    assert run.returncode == 0, run.stderr
    return read_rows(store, output)


def read_rows(store, output):
    """Shard, key, index and vector of every row below embeddings/, in order."""
    buffers = [store.read(info.url) for info in store.list(f"{output}/embeddings")]
    tables = [pq.read_table(pa.BufferReader(buffer)) for buffer in buffers]
    table = pa.concat_tables(tables).sort_by([("shard", "ascending"), ("index", "ascending")])
    return table.select(["shard", "key", "index", "embedding"])


def check_output(store, output, shards, calm):
    """None; the output is exactly what a calm run makes, rejects included."""
    for removal in removals(store, output, specs=[], reasons=[]):
        assert "/embeddings/" not in removal.url
        remove(store, removal)
    report, _ = verify_output(store, output, read_run(store, output), shards)
    assert report.ok, report.findings
    assert report.notes == []
    assert (report.shards, report.rejected) == (len(shards), {"unknown_format": len(shards)})
    assert len(list(store.list(f"{output}/rejects"))) == len(shards)
    rows = read_rows(store, output)
    expected = calm.filter(pa.compute.is_in(calm.column("shard"), pa.array(shards)))
    assert rows.drop_columns(["embedding"]).equals(expected.drop_columns(["embedding"]))
    found, wanted = (np.stack(t.column("embedding").to_numpy()) for t in (rows, expected))
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@contextlib.contextmanager
def driver(config, log):
    """A run in a process of its own that writes to the log; killed if it outlives the block."""
    with open(log, "a") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "run", str(config)], cwd=REPOSITORY, stderr=stream
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def published(store, output):
    return sum(1 for _ in store.list(f"{output}/embeddings"))


def test_a_driver_that_is_killed_again_and_again(s3, store, shards, make_config, calm, tmp_path):
    dice = random.Random(7)
    output = "s3://bucket/kills/killed"
    config = make_config(output, s3.endpoint)
    # Each kill waits for so many outputs; where they are there already it may hit the start.
    thresholds = sorted(dice.randrange(NUM_SHARDS * 2 // 3) for _ in range(NUM_KILLS))
    progress = []
    for threshold in thresholds:
        log = tmp_path / f"{len(progress)}.log"
        with driver(config, log) as process:
            if published(store, output) < threshold:
                while published(store, output) < threshold and process.poll() is None:
                    time.sleep(0.02)
            elif dice.random() < 0.5:
                while "Encoder ready" not in log.read_text() and process.poll() is None:
                    time.sleep(0.02)
            else:
                time.sleep(dice.uniform(0, 8))
            few = published(store, output) < NUM_SHARDS // 2
            time.sleep(dice.uniform(0, NUM_SHARDS / 30 if few else 0.3))
            assert process.poll() is None, f"it ended by itself: {log.read_text()}"
        progress.append(published(store, output))
    last = embedmill("run", config)
    assert last.returncode == 0, last.stderr
    assert progress[-1] < NUM_SHARDS, f"no kill left anything to do: {progress}"
    check_output(store, output, shards, calm)
    print(f"outputs at each kill: {progress}")


def test_a_store_that_fails_in_every_fifth_request(
    proxy, store, shards, make_config, calm, tmp_path
):
    output = "s3://bucket/kills/faults"
    proxy.plan.rate = 0.2
    proxy.plan.script = [("PUT", "lose_answer")] * 6  # of the first writes, besides
    run = embedmill("run", make_config(output, proxy.endpoint))
    assert run.returncode == 0, run.stderr
    assert set(proxy.faults) <= set(FAULTS)
    assert proxy.faults["lose_answer"] >= 6
    assert proxy.faults.total() > 0.1 * len(proxy.seen)
    check_output(store, output, shards, calm)
    print(f"{len(proxy.seen)} requests, faults: {dict(proxy.faults)}")


def test_two_runs_at_once(s3, store, shards, make_config, calm, tmp_path):
    output = "s3://bucket/kills/two"
    config = make_config(output, s3.endpoint)
    logs = [tmp_path / f"{name}.log" for name in "ab"]
    with driver(config, logs[0]) as one, driver(config, logs[1]) as two:
        codes = [process.wait(timeout=300) for process in (one, two)]
    assert codes == [0, 0], [log.read_text() for log in logs]
    check_output(store, output, shards, calm)


def test_lost_and_forbidden_shards_are_given_up_and_the_rest_completes(
    proxy, store, shards, make_config, calm
):
    output = "s3://bucket/kills/lost"
    config = make_config(output, proxy.endpoint, shards=shards, shard_attempts=2)
    forgotten, forbidden = shards[2], shards[5]
    proxy.plan.refuse = {"/in/002.tar": 404, "/in/005.tar": 403}
    run = embedmill("run", config)
    assert run.returncode == 1, run.stderr
    failures = {failure.shard: failure for failure in read_failures(store, output)}
    assert failures.keys() == {forgotten, forbidden}
    assert "there is no such object" in failures[forgotten].message or (
        "404" in failures[forgotten].message
    )
    assert "403" in failures[forbidden].message
    assert {failure.error for failure in failures.values()} == {"StorageError"}
    assert {failure.attempts for failure in failures.values()} == {2}
    rest = [shard for shard in shards if shard not in failures]
    report, _ = verify_output(store, output, read_run(store, output), shards)
    assert dict(report.counts) == {"missing": 2, "failed": 2}
    assert set(read_rows(store, output).column("shard").to_pylist()) == set(rest)

    proxy.plan.refuse = {}
    again = embedmill("run", config)
    assert again.returncode == 0, again.stderr
    assert list(read_failures(store, output)) == []
    check_output(store, output, shards, calm)

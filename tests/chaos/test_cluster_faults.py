"""Faults that are not kills, planted in a run on a cluster: hangs, a node without the model, drains."""

import contextlib
import subprocess
import sys
import time

import numpy as np
import pytest
import ray
from ray._private.internal_api import get_memory_info_reply
from ray._private.state import state
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from pipeline.actors import Preprocessor, _stream
from pipeline.config_file import load_config
from pipeline.records import Pack
from pipeline.storage import Storage
from pipeline.work import prepare_work
from pipeline.writer import Lease
from tests.integration.conftest import REPOSITORY, plant, read_rows, write_photo_shard, write_shard

NUM_SHARDS, NUM_IMAGES = 16, 8
STORE = 150 << 20
# For every worker of the cluster. A file in the folder PLANTED asks
# for a fault; `take` removes it, so that it happens once.
PLANTED = """
import os, pathlib, time
import ray
import encoder.infer as infer
import pipeline.actors as actors
import pipeline.preprocess as preprocess
import pipeline.run_encoder as run_encoder

folder = pathlib.Path(os.environ["PLANTED"])

def take(name):
    try:
        (folder / name).unlink()
    except FileNotFoundError:
        return False
    return True

load, submit, prepare, decode = (
    run_encoder.load_encoder, infer.Encoder.submit, actors.prepare_shard, preprocess.decode
)

def load_encoder(*arguments, **options):
    if "ODD_NODE" in os.environ and (folder / "no model").exists():
        raise OSError("no such weights")
    return load(*arguments, **options)

def hanging_submit(*arguments, **options):
    if take("hang in a pass"):
        time.sleep(1000)
    if (folder / "slow pass").exists():
        time.sleep(0.5)
    return submit(*arguments, **options)

def hanging_shard(*arguments):
    with open(folder / "streams", "a") as stream:
        print(ray.get_runtime_context().get_node_id(), file=stream)
    if take("hang before a shard"):
        time.sleep(1000)
    yield from prepare(*arguments)

def slow_decode(*arguments, **options):
    if (folder / "slow").exists():
        time.sleep(0.5)
    return decode(*arguments, **options)

run_encoder.load_encoder, infer.Encoder.submit = load_encoder, hanging_submit
actors.prepare_shard, preprocess.decode = hanging_shard, slow_decode
"""

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The folder whose files ask for faults."""
    site = tmp_path_factory.mktemp("site")
    plant(site, PLANTED)
    folder = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{site}:{REPOSITORY}")
        patch.setenv("PLANTED", str(folder))
        yield folder


@pytest.fixture(scope="module")
def cluster(planted):
    """A head without CPUs and two nodes with a logical GPU each; the second is the odd one."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        for env in ({}, {"ODD_NODE": "1"}):
            cluster.add_node(num_cpus=3, num_gpus=1, object_store_memory=STORE, env_vars=env)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(autouse=True)
def nothing_planted(planted):
    """What one test leaves must not slow the next."""
    yield
    for left in planted.iterdir():
        left.unlink()


@pytest.fixture
def make_config(tmp_path, photos, write_config):
    for number in range(NUM_SHARDS):
        write_photo_shard(tmp_path / "shards" / f"{number:02d}.tar", photos, NUM_IMAGES)

    def make(**sections):
        workers = {
            "encoders": {"min": 2, "max": 2, "num_gpus": 1, "device": "cpu"},
            "preprocessors": {"min": 2, "max": 2},
        }
        packing = {"token_budget": 1024, "streams_per_encoder": 2}
        return write_config(workers=workers, packing=packing, **sections)

    return make


@contextlib.contextmanager
def driver(cluster, config, log):
    command = [sys.executable, "-m", "pipeline", "run", str(config), "--address", cluster.address]
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=REPOSITORY, stderr=stream)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(text, log, process, *, times=1):
    while log.read_text().count(text) < times:
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


def check_rows(tmp_path):
    found = [(row["shard"], row["index"]) for row in read_rows(tmp_path / "out")]
    assert len(found) == len(set(found)) == NUM_SHARDS * NUM_IMAGES


def spilled_bytes():
    """Of all nodes, by Ray's own count."""
    return get_memory_info_reply(state).store_stats.spilled_bytes_total


def test_hangs_and_a_node_without_the_model_cost_time_only(cluster, planted, make_config, tmp_path):
    for name in ("no model", "hang in a pass", "hang before a shard"):
        (planted / name).touch()
    log = tmp_path / "driver.log"
    with driver(cluster, make_config(limits={"stall_timeout_s": 6}), log) as process:
        wait_for("Encoder lost, replaced in", log, process)
        wait_for("hangs", log, process)
        (planted / "no model").unlink()
        assert process.wait(timeout=300) == 0, log.read_text()
    said = log.read_text()
    assert "OSError: no such weights" in said
    assert "a forward pass has run for" in said
    assert "no pack came from a Preprocessor for" in said
    assert not list(planted.iterdir())
    check_rows(tmp_path)


def test_a_run_whose_packs_wait_for_the_encoder_spills_nothing(
    cluster, planted, photos, write_config, tmp_path
):
    """Without backpressure the packs of these two shards, 236 MB, would not fit the store."""
    names = list(photos)
    for number in range(2):
        members = {
            f"{i}-{names[i % len(names)]}": photos[names[i % len(names)]] for i in range(600)
        }
        write_shard(tmp_path / "shards" / f"{number}.tar", members)
    workers = {"encoders": {"num_gpus": 1, "device": "cpu"}, "preprocessors": {"max": 1}}
    config = write_config(workers=workers, packing={"token_budget": 8192})
    (planted / "slow pass").touch()
    log = tmp_path / "driver.log"
    with driver(cluster, config, log) as process:
        assert process.wait(timeout=300) == 0, log.read_text()
    (planted / "slow pass").unlink()
    assert len(read_rows(tmp_path / "out")) == 1200
    assert spilled_bytes() == 0
    kept = [ray.put(np.zeros(40 << 20, np.uint8)) for _ in range(5)]
    assert spilled_bytes() > 0, "the counter does not count"
    del kept


def test_an_abandoned_stream_stops(cluster, planted, make_config, tmp_path, photos):
    name = next(iter(photos))
    many = write_shard(tmp_path / "many.tar", {f"{i}-{name}": photos[name] for i in range(600)})
    config = load_config(make_config())
    plan = prepare_work(config, Storage(config.storage)).plan

    @ray.remote
    class Consumer:
        async def consume(self, preprocessor, lease):
            stream = _stream(preprocessor, lease, 2)
            async for item in stream:
                await stream.aclose()
                return isinstance(item, Pack)

    preprocessor = ray.remote(Preprocessor).options(num_cpus=1).remote(plan)
    ray.get(preprocessor.start.remote())
    (planted / "slow").touch()  # the shard takes 300 s
    start = time.monotonic()
    assert ray.get(Consumer.remote().consume.remote(preprocessor, Lease(url=str(many))))
    ray.get(preprocessor.start.remote())  # it does one thing after the other
    assert time.monotonic() - start < 60
    (planted / "slow").unlink()


def test_a_draining_node_gets_no_new_leases(cluster, planted, make_config, tmp_path):
    (planted / "slow").touch()
    log = tmp_path / "driver.log"
    node = next(node for node in ray.nodes() if node["Resources"].get("GPU"))
    with driver(cluster, make_config(), log) as process:
        for kind in ("Encoder", "Preprocessor"):
            wait_for(f"{kind} ready", log, process, times=2)
        accepted, why = GcsClient(cluster.gcs_address).drain_node(
            node["NodeID"],
            autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            "the test says so",
            int(time.time() * 1000) + 600_000,
        )
        assert accepted, why
        wait_for("gets no new leases, its node drains", log, process)
        before = (planted / "streams").read_text().split()
        (planted / "slow").unlink()
        assert process.wait(timeout=300) == 0, log.read_text()
    check_rows(tmp_path)
    after = (planted / "streams").read_text().split()[len(before) :]
    assert after.count(node["NodeID"]) <= 2, "those were leased before"
    assert len(after) >= NUM_SHARDS - 4

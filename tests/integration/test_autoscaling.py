"""A run on a cluster without GPU nodes: the autoscaler brings two, and takes each away when idle."""

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY, plant, read_rows, write_shard
from tests.integration.ray_head import STORE, ray_head

NUM_SHARDS = 15
GPU_NODE = {
    "resources": {"CPU": 1, "GPU": 1, "object_store_memory": STORE},
    "node_config": {},
    "min_workers": 0,
    "max_workers": 2,
}
# Writes "time nodes used" when the number of living GPU nodes or of used GPUs changes.
WATCH = """
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
seen = None
changes = open(sys.argv[2], "w")  # Ray writes to standard output too
while True:
    nodes = sum(node["Alive"] and "GPU" in node["Resources"] for node in ray.nodes())
    used = ray.cluster_resources().get("GPU", 0) - ray.available_resources().get("GPU", 0)
    if (nodes, used) != seen:
        seen = nodes, used
        print(time.time(), nodes, round(used), file=changes, flush=True)
    time.sleep(0.2)
"""

# For every worker of the cluster.
PLANTED = """
import time
import pipeline.preprocess as preprocess

decode = preprocess.decode

def planted(data, *rest, **options):
    if data.endswith(b"slow"):
        time.sleep(0.2)
    return decode(data, *rest, **options)

preprocess.decode = planted
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def head():
    with tempfile.TemporaryDirectory(prefix="em", dir="/tmp") as folder:
        plant(Path(folder), PLANTED)
        path = f"{folder}:{REPOSITORY}"
        with ray_head(
            Path(folder), num_cpus=2, node_types={"gpu": GPU_NODE}, PYTHONPATH=path
        ) as running:
            yield running


@contextlib.contextmanager
def watched_nodes(head, path):
    """Yields a function that reads (time, GPU nodes, GPUs in use) after each change so far."""
    command = [sys.executable, "-c", WATCH, head.address, str(path)]
    watcher = subprocess.Popen(command, env=head.env, stdout=subprocess.DEVNULL)
    path.touch()

    def read():
        assert watcher.poll() is None
        lines = [line.split() for line in path.read_text().splitlines()]
        return [(float(at), int(nodes), int(used)) for at, nodes, used in lines]

    try:
        yield read
    finally:
        watcher.kill()
        watcher.wait()


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_gpu_nodes_come_for_the_encoders_and_leave_when_idle(head, photos, write_config, tmp_path):
    names = list(photos)
    for number in range(NUM_SHARDS):
        # The last one takes 12 s more, and one Encoder is enough for it.
        size, tail = (8, b"") if number < NUM_SHARDS - 1 else (60, b"slow")
        chosen = [names[(number * 5 + i) % len(names)] for i in range(size)]
        members = {f"{i}-{name}": photos[name] + tail for i, name in enumerate(chosen)}
        write_shard(tmp_path / "shards" / f"{number:02d}.tar", members)
    workers = {
        "encoders": {"min": 0, "max": 2, "num_gpus": 1, "num_cpus": 1, "device": "cpu"},
        "preprocessors": {"min": 1, "max": 1},
    }
    packing = {"token_budget": 1024, "streams_per_encoder": 1}
    config = write_config(workers=workers, packing=packing)
    with watched_nodes(head, tmp_path / "nodes.txt") as changes:
        wait_until(changes, 120)
        assert [nodes for _, nodes, _ in changes()] == [0]
        started = time.time()
        run = subprocess.run(
            [sys.executable, "-m", "pipeline", "run", str(config), "--address", head.address],
            cwd=REPOSITORY,
            env=head.env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        ended = time.time()
        assert run.returncode == 0, run.stderr
        wait_until(lambda: changes()[-1][1] == 0, 90)
        seen = changes()
    print(run.stderr)
    for at, nodes, used in seen:
        print(f"{at - started:6.1f} s: {nodes} GPU nodes, {used} GPUs in use")
    print(f"{ended - started:6.1f} s: the run ended")
    assert max(nodes for _, nodes, _ in seen) == max(used for *_, used in seen) == 2
    at_work = [at for at, nodes, used in seen if (nodes, used) == (2, 2)]
    left = [at for at, nodes, _ in seen if nodes == 1 and at > at_work[0]]
    assert left, "both nodes stayed to the end"
    assert left[0] < ended, "the idle node stayed while the other worked"
    assert len(read_rows(tmp_path / "out")) == (NUM_SHARDS - 1) * 8 + 60

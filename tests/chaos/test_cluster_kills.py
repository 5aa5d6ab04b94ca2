"""A run on a cluster of four nodes while its actors and nodes are killed.

EMBEDMILL_CHAOS_SHARDS, _IMAGES and _KILLS make it longer; docs/faults.md has the long run.
"""

import os
import random
import re
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.integration.conftest import REPOSITORY, embedmill, read_rejects, read_rows, write_shard

NUM_SHARDS = int(os.environ.get("EMBEDMILL_CHAOS_SHARDS", "16"))
NUM_IMAGES = int(os.environ.get("EMBEDMILL_CHAOS_IMAGES", "10"))  # in a shard
NUM_KILLS = int(os.environ.get("EMBEDMILL_CHAOS_KILLS", "4"))
STORE = 150 << 20

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster():
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster, gpus):
    return cluster.add_node(num_cpus=2, num_gpus=gpus, object_store_memory=STORE)


def workers(kind):
    """Processes of this machine that are actors of the kind."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        title = " ".join(process.info["cmdline"] or [process.info["name"] or ""])
        if title.startswith(f"ray::{kind}"):
            found.append(process)
    return found


def kill_something(cluster, nodes, dice):
    """What was killed, or None where there was nothing to kill just then."""
    what = dice.choice(["Preprocessor", "Preprocessor", "Encoder", "node"])
    if what == "node":
        node, gpus = nodes.pop(dice.randrange(len(nodes)))
        cluster.remove_node(node, allow_graceful=False)
        nodes.append((add_node(cluster, gpus), gpus))
        return f"node with {gpus} GPU"
    victims = workers(what)
    if not victims:
        return None
    dice.choice(victims).kill()
    return what


@pytest.fixture
def shards(tmp_path, photos):
    names = list(photos)
    for number in range(NUM_SHARDS):
        chosen = [names[(number * 7 + i) % len(names)] for i in range(NUM_IMAGES)]
        members = {f"{i:03d}-{name}": photos[name] for i, name in enumerate(chosen)}
        members["bad.jpg"] = b"\xff\xd8 no image"
        write_shard(tmp_path / "shards" / f"{number:03d}.tar", members)


def test_kills_of_actors_and_nodes_change_nothing(cluster, shards, write_config, tmp_path):
    dice = random.Random(5)
    workers_section = {
        "encoders": {"min": 1, "max": 2, "num_gpus": 1, "num_cpus": 1, "device": "cpu"},
        "preprocessors": {"min": 2, "max": 4},
    }
    packing = {"token_budget": 600, "look_ahead": 4}
    storm = write_config("storm.yaml", workers=workers_section, packing=packing)
    nodes = [(add_node(cluster, gpus), gpus) for gpus in (1, 1, 0, 0)]
    log = tmp_path / "driver.log"
    with log.open("w") as stream:
        driver = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "run", str(storm), "--address", cluster.address],
            cwd=REPOSITORY,
            stderr=stream,
        )
    killed = []
    while driver.poll() is None:
        time.sleep(dice.uniform(1.0, 4.0))
        if len(killed) < NUM_KILLS and "Encoder ready" in log.read_text():
            victim = kill_something(cluster, nodes, dice)
            killed += [victim] if victim else []
    said = log.read_text()
    assert driver.returncode == 0, said
    assert len(killed) == NUM_KILLS, f"the run ended after {killed}: {said}"

    calm = write_config("calm.yaml", output={"path": str(tmp_path / "calm")}, packing=packing)
    assert embedmill("run", calm).returncode == 0
    stormy, quiet = read_rows(tmp_path / "out"), read_rows(tmp_path / "calm")
    assert [(r["shard"], r["key"]) for r in stormy] == [(r["shard"], r["key"]) for r in quiet]
    assert len(quiet) == NUM_SHARDS * NUM_IMAGES
    one, two = (np.array([row["embedding"] for row in rows]) for rows in (stormy, quiet))
    assert np.abs(one - two).max() <= 2e-6 * np.abs(two).max()
    committed = {re.sub(r"\.parquet$", "", p.name) for p in (tmp_path / "out/embeddings").iterdir()}
    assert len(committed) == NUM_SHARDS, "something else lies below embeddings/"
    assert {reject["key"] for reject in read_rejects(tmp_path / "out")} == {"bad"}
    print(f"killed: {killed}")

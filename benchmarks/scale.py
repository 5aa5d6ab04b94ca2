"""What a run of very many tiny shards costs its driver: CPU, memory, lengths of its queues.

    python benchmarks/scale.py [--shards 10000] [--actors real] [--json FILE]
    python benchmarks/scale.py --shards 100000 --actors empty

Each shard is a tar of one image of 16 patches, a hard link in a folder in shared memory; outputs go
to another folder there. With `--actors real` everything is as in any run, with a checkpoint that
computes next to nothing. With `--actors empty` the driver, Ray, its actors, heartbeats and leases
are real as well, but the actors are without their insides: a lease is answered at once with the
report of such a shard. Memory is resident, in MiB, of the driver and of Ray's own two processes.
"""

import argparse
import io
import json
import os
import resource
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import ray
from PIL import Image

import pipeline.driver
from encoder.seeded import write_seeded_checkpoint
from pipeline.actors import Place
from pipeline.cluster import connect
from pipeline.config import RunConfig
from pipeline.heartbeat import EncoderState, StreamTimes
from pipeline.manifest import open_run
from pipeline.records import ShardReport
from pipeline.stage import LeaseResult
from pipeline.storage import Storage
from pipeline.work import prepare_work

NUM_SAMPLES = 10
RAY_PROCESSES = {"gcs": "gcs_server", "raylet": "raylet"}


@ray.remote(num_cpus=0)
class EmptyEncoder:
    def start(self) -> Place:
        return Place(node=ray.get_runtime_context().get_node_id(), pid=os.getpid())

    def heartbeat(self) -> EncoderState:
        streams = StreamTimes()
        return EncoderState(busy_s=0.0, encoding_for_s=0.0, streams=streams, leases=(), idle_s=())

    def run_lease(self, lease, preprocessor) -> LeaseResult:
        counts = {"read": 1, "embedded": 1, "tokens": 16, "bytes_read": 10_240}
        nothing: dict[str, Any] = {"rejected": {}, "skipped": {}, "warnings": {}}
        seconds = dict.fromkeys(("read", "prepare", "pack", "blocked", "encode", "write"), 0.001)
        report = ShardReport(shard=lease.shard, **counts, **nothing, seconds=seconds)
        return LeaseResult(outcome="published", report=report)


@ray.remote(num_cpus=0)
class EmptyPreprocessor:
    def start(self) -> Place:
        return Place(node=ray.get_runtime_context().get_node_id(), pid=os.getpid())


def write_shards(folder: Path, count: int) -> None:
    folder.mkdir()
    data = io.BytesIO()
    Image.effect_noise((64, 64), 90).convert("RGB").save(data, "jpeg")
    first = folder / "0000000.tar"
    with tarfile.open(first, "w") as tar:
        member = tarfile.TarInfo("image.jpg")
        member.size = len(data.getvalue())
        tar.addfile(member, io.BytesIO(data.getvalue()))
    for number in range(1, count):
        if number % 30_000 == 0:  # file systems limit the links of one file
            first = Path(folder, f"{number:07d}.tar")
            first.write_bytes((folder / "0000000.tar").read_bytes())
        else:
            os.link(first, folder / f"{number:07d}.tar")


def make_config(folder: Path, count: int, pool: int) -> RunConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    write_seeded_checkpoint(folder / "checkpoint", **sizes, num_attention_heads=1)
    preprocessors = {"min": pool, "max": pool}
    workers = {"preprocessors": preprocessors, "encoders": {"num_gpus": 0}}
    return RunConfig.model_validate(
        {
            "input": {"shards": f"{folder}/shards/{{0000000..{count - 1:07d}}}.tar"},
            "output": {"path": f"{folder}/out"},
            "model": {"checkpoint": str(folder / "checkpoint")},
            "preprocess": {"max_num_patches": 16},
            "packing": {"token_budget": 256},
            "workers": workers,
        }
    )


class Samples:
    """The driver's cost so far, at equal steps of progress."""

    def __init__(self, loop: Any, count: int) -> None:
        self._loop, self._count = loop, count
        self.taken: list[dict[str, float]] = []
        self.most_open = 0
        self._processes = {
            name: process
            for process in psutil.process_iter(["name"])
            for name, binary in RAY_PROCESSES.items()
            if process.info["name"] == binary and _is_ours(process)
        }

    def look(self) -> None:
        done = self._loop.progress.done
        self.most_open = max(self.most_open, self._loop.progress.leases)
        if done * NUM_SAMPLES < self._count * len(self.taken):
            return
        loop = self._loop
        held = sum(len(m.leases) for pool in loop._pools for m in pool.members)
        memory = {name: p.memory_info().rss >> 20 for name, p in self._processes.items()}
        sample = {
            "done": done,
            "seconds": round(time.monotonic() - loop.progress.started, 1),
            "cpu_s": round(time.process_time(), 1),
            "driver_mib": psutil.Process().memory_info().rss >> 20,
            **{f"{name}_mib": value for name, value in sorted(memory.items())},
            "queued": len(loop._queue),
            "open": loop.progress.leases,
            "held": held,  # by members of both pools: twice the open leases
            "remembered": len(loop._failures) + len(loop._losses) + len(loop.lost_attempts),
        }
        self.taken.append(sample)
        print("  ".join(f"{name} {value:,}" for name, value in sample.items()), file=sys.stderr)


def _is_ours(process: psutil.Process) -> bool:
    return os.getpid() in [parent.pid for parent in process.parents()]


def measure(folder: Path, count: int, actors: str) -> dict[str, Any]:
    write_shards(folder / "shards", count)
    config = make_config(folder, count, pool=2 if actors == "real" else 8)
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    open_run(storage, work.plan.output, config, work.plan.model, work.plan.fingerprint)
    if actors == "empty":
        pipeline.driver.new_encoder = lambda plan: EmptyEncoder.remote()
        pipeline.driver.new_preprocessor = lambda plan, near: EmptyPreprocessor.remote()
    with connect(config):
        loop = pipeline.driver._LeaseLoop(work, storage)
        samples = Samples(loop, count)
        try:
            while loop.progress.remaining:
                loop.step()
                samples.look()
        finally:
            loop.close()
    first, last = samples.taken[1], samples.taken[-1]
    shards = last["done"] - first["done"]
    assert not loop.progress.failed
    return {
        "shards": count,
        "actors": actors,
        "shards_per_s": round(shards / (last["seconds"] - first["seconds"]), 1),
        "driver_cpu_ms_per_shard": round(1e3 * (last["cpu_s"] - first["cpu_s"]) / shards, 3),
        "driver_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "driver_growth_bytes_per_shard": round(
            (last["driver_mib"] - first["driver_mib"]) * 2**20 / shards
        ),
        "most_open": samples.most_open,
        "samples": samples.taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--actors", choices=("real", "empty"), default="real")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scale", dir="/dev/shm") as folder:
        result = measure(Path(folder), options.shards, options.actors)
    for name, value in result.items():
        if name != "samples":
            print(f"{name:<32}{value}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

"""The whole stage beside Ray Data and clip-retrieval's reader, and the price of orchestration.

    python benchmarks/stage.py PHOTOS_FOLDER [--engines NAME ...] [--copies 4] [--rounds 3]

Shards hold the photos `copies` times, in a seeded order; the model has seeded weights, 192 wide,
4 layers. All engines have the same photos, model, number of preprocessing workers (`--workers`),
one encoding process, and one thread in each. They take turns, each run in a fresh process with a
Ray of its own. Images/s are given from the call to the last row (starting of workers included, of
Ray not), and in the steady state: between a fifth and nine tenths of the images. Without an encoder
pixels are copied once and thrown away; the plain loops are the same functions in as many processes
without Ray. CPU milliseconds are those of all processes of a run in the steady state.

Prints Markdown. The peers need torchvision, transformers and webdataset beside embedmill's own
requirements, and `pip install clip-retrieval --no-deps`; engines of missing libraries are left out,
with the reason. Not called pipeline.py: that would hide the package of this name.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from paired import ratio

ENGINES = (
    "embedmill",
    "ray data",
    "ray data, its decoder",
    "ray data, packed",
    "clip-retrieval reader",
    "embedmill, no encoder",
    "ray data, no encoder",
    "plain loops, no encoder",
)
# What an engine is compared with: images/s of the second over its own.
AGAINST = {
    "ray data": "embedmill",
    "ray data, its decoder": "embedmill",
    "ray data, packed": "embedmill",
    "clip-retrieval reader": "embedmill",
    "ray data, no encoder": "embedmill, no encoder",
    "plain loops, no encoder": "embedmill, no encoder",
}
PACKAGES = ("ray", "torch", "torchvision", "transformers", "webdataset", "clip_retrieval")


def main() -> None:
    options = _options()
    if options.engine:
        print(json.dumps(_work(options)))
        return
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.engines}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = _write_inputs(folder, options)
        for number in range(options.rounds):
            for engine in options.engines[:: 1 if number % 2 == 0 else -1]:
                if engine in missing:
                    continue
                output = folder / f"{engine.replace(' ', '-')}-{number}"
                answer = _start(engine, folder, output, options.workers)
                if "missing" in answer:
                    missing[engine] = answer["missing"]
                elif answer["images"] != images:
                    raise RuntimeError(f"{engine} gave {answer['images']} of {images} images")
                else:
                    runs[engine].append(answer)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{os.cpu_count()} cores {platform.processor() or platform.machine()}",
        "versions": _versions(),
        "images": images,
        "workers": options.workers,
        "missing": missing,
        "runs": {name: found for name, found in runs.items() if found},
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(markdown(result))


def _write_inputs(folder: Path, options: argparse.Namespace) -> int:
    """The number of images in shards/; writes checkpoint/ too."""
    from preprocess import is_photo, write_shard

    from encoder.seeded import write_seeded_checkpoint

    write_seeded_checkpoint(folder / "checkpoint")
    photos = [p.read_bytes() for p in sorted(options.photos.iterdir()) if is_photo(p)]
    order = np.random.default_rng(0).permutation(len(photos) * options.copies)
    (folder / "shards").mkdir()
    for number, part in enumerate(np.array_split(order, options.shards)):
        members = {f"{index:06d}.jpg": photos[index % len(photos)] for index in part}
        write_shard(folder / "shards" / f"{number:03d}.tar", members)
    return len(order)


def _start(engine: str, folder: Path, output: Path, workers: int) -> dict[str, Any]:
    """What `_work` answers in a process of its own."""
    command = [sys.executable, __file__, str(folder), "--engine", engine, "--output", str(output)]
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [*command, "--workers", str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _work(options: argparse.Namespace) -> dict[str, Any]:
    from stage_meter import CpuMeter, read_events, steady

    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    options.output.mkdir()
    try:
        with CpuMeter() as meter:
            found = _run(options)
    except ImportError as error:
        return {"missing": str(error)}
    events = options.output / "events"
    found["images"] = int(read_events(events)[-1, 1])
    found["images_per_s"] = found["images"] / found["seconds"]
    return {**found, "steady": steady(events, meter)}


def _run(options: argparse.Namespace) -> dict[str, Any]:
    import stage_engines

    arguments = options.photos, options.output, options.workers
    own = {
        "embedmill": partial(stage_engines.embedmill, encoder=True),
        "embedmill, no encoder": partial(stage_engines.embedmill, encoder=False),
        "plain loops, no encoder": stage_engines.plain_loops,
    }
    if options.engine in own:
        return own[options.engine](*arguments)

    import stage_peers  # these need more than embedmill does

    peers = {
        "ray data": partial(stage_peers.ray_data, encoder=True),
        "ray data, its decoder": partial(stage_peers.ray_data, encoder=True, decoder=True),
        "ray data, no encoder": partial(stage_peers.ray_data, encoder=False),
        "ray data, packed": stage_peers.ray_data_packed,
        "clip-retrieval reader": stage_peers.clip_retrieval,
    }
    return peers[options.engine](*arguments)


def markdown(result: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    runs = result["runs"]
    heads = ["images/s", "steady", "CPU ms per image, steady", "ratio, steady", "ratio, whole"]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, found in runs.items():
        whole = [run["images_per_s"] for run in found]
        rates = [run["steady"]["images_per_s"] for run in found]
        cells = [f"{np.median(whole):.1f}", f"{np.median(rates):.1f}", _cpu(found)]
        other = runs.get(AGAINST.get(name, ""))
        if other:
            cells.append(_ratio([run["steady"]["images_per_s"] for run in other], rates))
            cells.append(_ratio([run["images_per_s"] for run in other], whole))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    reasons = [f"\nleft out: {n} ({why})" for n, why in result["missing"].items()]
    return "\n".join([*lines, *reasons])


def _cpu(found: list[dict[str, Any]]) -> str:
    spent = [run["steady"]["cpu_ms_per_image"] for run in found]
    parts = {kind: np.median([run.get(kind, 0.0) for run in spent]) for kind in spent[0]}
    detail = ", ".join(f"{kind} {value:.2f}" for kind, value in parts.items() if value >= 0.05)
    return f"{np.median([sum(run.values()) for run in spent]):.1f} ({detail})"


def _ratio(ours: list[float], theirs: list[float]) -> str:
    figures = ratio(ours, theirs)
    low, high = figures["interval_95"]
    return f"{figures['median']:.2f} ({low:.2f} to {high:.2f})"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

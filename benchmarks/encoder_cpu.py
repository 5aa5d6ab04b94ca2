"""The encoder on packs against transformers on padded batches, on a CPU, in float32.

    python benchmarks/encoder_cpu.py PHOTOS_FOLDER [--model small|base] [--images 512] [--out FILE]

Both have the same weights and get the same images, 32 at a time in order of arrival; padding is to
the longest of the 32. Each engine lives in a process of its own, and the two take turns: a pair is
the same 128 images through one and then the other. What is timed is, for embedmill, all from the
pack of bytes to the vectors; for transformers the model alone, with its inputs at hand. Prints
JSON: images/s, the ratio with its 95 % bootstrap interval over pairs, peak memory of each process.

`--engines embedmill embedmill:16384` compares with forward passes of another size instead.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from encoder_inputs import MODELS, budgets, load_pack, make_pack, photos, save_pack
from paired import ratio

WORKLOADS = ("256", "mixed")


def main() -> None:
    options = _options()
    if options.worker:
        _work(options)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_inputs(folder, options)
        result = {
            "date": datetime.now(UTC).isoformat(timespec="minutes"),
            "machine": platform.processor() or platform.machine(),
            "threads": options.threads,
            "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
            "model": MODELS[options.model],
            "images": options.images,
            "images_at_a_time": options.batch,
            "engines": options.engines,
            "workloads": {name: _measure(name, folder, options) for name in options.workloads},
        }
    text = json.dumps(result, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


def _measure(workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    packs = sorted(folder.glob(f"{workload}-*.npz"))
    count = max(1, options.pair // options.batch)
    pairs = [packs[i : i + count] for i in range(0, len(packs), count)] * options.rounds
    load_before = os.getloadavg()[0]
    engines = options.engines
    workers = {engine: Worker.start(engine, folder, options) for engine in engines}
    vectors = {engine: workers[engine].vectors(packs[0]) for engine in engines}  # warms up too
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    for number, part in enumerate(pairs):
        for engine in engines if number % 2 == 0 else engines[::-1]:
            seconds[engine].append(workers[engine].seconds(part))
    memory = {engine: workers[engine].stop() for engine in engines}
    total = options.images * options.rounds
    return {
        "tokens": int(sum(load_pack(pack).num_tokens for pack in packs)),
        "padded_tokens": sum(_padded(pack) for pack in packs),
        "images_per_s": {engine: round(total / sum(seconds[engine]), 2) for engine in engines},
        "ratio": ratio(seconds[engines[1]], seconds[engines[0]]),
        "memory_mib": memory,
        "largest_difference": float(np.abs(np.subtract(*vectors.values())).max()),
        "load_average": [load_before, os.getloadavg()[0]],
    }


def _padded(pack: Path) -> int:
    lengths = np.diff(load_pack(pack).cu_seqlens)
    return int(lengths.max()) * len(lengths)


def _write_inputs(folder: Path, options: argparse.Namespace) -> None:
    from encoder.seeded import write_seeded_checkpoint

    write_seeded_checkpoint(folder / "model", **MODELS[options.model])
    images = list(photos(options.photos, options.images))
    for workload in options.workloads:
        patches = budgets(workload, len(images))
        for start in range(0, len(images), options.batch):
            part = slice(start, start + options.batch)
            path = folder / f"{workload}-{start:06d}.npz"
            save_pack(path, make_pack(images[part], patches[part]))


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine in a process of its own, which computes only when it is asked."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, engine: str, folder: Path, options: argparse.Namespace) -> "Worker":
        command = [sys.executable, __file__, str(folder), "--worker", engine]
        threads = {"OMP_NUM_THREADS": str(options.threads)}
        root = str(Path(__file__).parents[1])
        process = subprocess.Popen(
            [*command, "--threads", str(options.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root, **threads},
        )
        worker = cls(process)
        worker._ask([])  # its model is loaded
        return worker

    def seconds(self, packs: list[Path]) -> float:
        return float(self._ask([str(pack) for pack in packs])["seconds"])

    def vectors(self, pack: Path) -> np.ndarray:
        return np.array(self._ask([str(pack)])["vectors"])

    def stop(self) -> dict[str, int]:
        """MiB resident with the model loaded, and at the peak."""
        memory: dict[str, int] = self._ask([])["memory"]
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        return memory

    def _ask(self, packs: list[str]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(packs) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def _work(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(options.threads)
    checkpoint = options.photos / "model"
    name, _, tokens = options.worker.partition(":")
    if name == "embedmill":
        from encoder.infer import load_encoder

        run = load_encoder(checkpoint, device="cpu", forward_tokens=int(tokens) if tokens else None)
        prepare = lambda pack: pack  # noqa: E731
    else:
        from padded_reference import PaddedReference

        reference = PaddedReference(checkpoint, device="cpu", dtype=torch.float32)
        run, prepare = reference.encode, reference.inputs
    loaded = _status("VmRSS")
    for line in sys.stdin:
        seconds, vectors = 0.0, np.zeros(0)
        for path in json.loads(line):
            inputs = prepare(load_pack(Path(path)))
            start = time.perf_counter()
            vectors = run(inputs)
            seconds += time.perf_counter() - start
        memory = {"loaded": loaded, "peak": _status("VmHWM")}
        answer = {"seconds": seconds, "vectors": vectors.tolist(), "memory": memory}
        print(json.dumps(answer), flush=True)


def _status(name: str) -> int:
    """MiB of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="images at a time")
    parser.add_argument("--pair", type=int, default=128, help="images in a pair")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engines", nargs=2, default=["embedmill", "transformers"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Seconds from `embedmill demo` to its first published shard, and where they go.

    python benchmarks/cold_start.py [--rounds 5] [--evict] [--no-bytecode] [--json FILE]

Each round is a fresh process in a fresh folder, with a Ray of its own. --evict first asks the
kernel to forget the files of the environment, as after a boot: pages that other processes map stay.
--no-bytecode lets Python compile every module, as after an installer that does not. Phases end with
lines of the log; a shard is published when its file is there. Prints Markdown, medians of the
rounds and the whole range.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

# What a phase ends with, in the order in which they come.
PHASES = {
    "command line": "Writing shards of bundled photos",
    "demo's files, checkpoint, listing": "shards to do",
    "Ray": "started a local Ray",
    "first Preprocessor": "Preprocessor ready",
    "Encoder with its model": "Encoder ready",
}
LAST = "first shard"


def main() -> None:
    options = _options()
    rounds = []
    for _ in range(options.rounds):
        if options.evict:
            _evict()
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(Path(folder), bytecode=not options.no_bytecode))
    result = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "evicted": options.evict,
        "bytecode": not options.no_bytecode,
        "rounds": rounds,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(markdown(rounds))


def measure(folder: Path, *, bytecode: bool) -> dict[str, float]:
    """Seconds since the start of the command at the end of each phase, and of the whole run."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    if not bytecode:
        environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    command = [sys.executable, "-m", "pipeline", "demo", str(folder / "demo")]
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    watch = threading.Thread(target=_read_phases, args=(process.stderr, start, seconds))
    watch.start()
    shards = folder / "demo" / "out" / "embeddings"
    while process.poll() is None and LAST not in seconds:
        if any(shards.glob("*.parquet")):
            seconds[LAST] = time.perf_counter() - start
        time.sleep(0.01)
    if process.wait() != 0:
        raise RuntimeError(f"the demo ended with {process.returncode}")
    seconds["end"] = time.perf_counter() - start
    watch.join()
    return {name: round(seconds[name], 2) for name in (*PHASES, LAST, "end")}


def _read_phases(lines: Any, start: float, seconds: dict[str, float]) -> None:
    for line in lines:
        for name, text in PHASES.items():
            if text in line:
                seconds.setdefault(name, time.perf_counter() - start)


def _evict() -> None:
    """Drops clean pages of the files of the environment from the kernel's cache."""
    os.sync()
    for path in Path(sysconfig.get_path("purelib")).rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def markdown(rounds: list[dict[str, float]]) -> str:
    """The table of docs/benchmarks.md."""
    lines = ["| at the end of | seconds, median | range |", "|---|---|---|"]
    for name in rounds[0]:
        values = [seconds[name] for seconds in rounds]
        low, high = min(values), max(values)
        lines.append(f"| {name} | {np.median(values):.1f} | {low:.1f} to {high:.1f} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--evict", action="store_true")
    parser.add_argument("--no-bytecode", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

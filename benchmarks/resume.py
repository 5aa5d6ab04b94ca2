"""What it costs a driver to find out what is left to do, from listings alone.

    python benchmarks/resume.py [--shards 1000000] [--json FILE]

Listings are simulated: they yield what a store would without waiting, so that the figures are the
driver's own. Each case runs in a fresh process. CPU seconds, those of the simulation subtracted;
peak resident memory above what the process had before, and what the list of pending shards keeps.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import InputConfig, StorageConfig
from pipeline.manifest import embeddings_url, list_committed, pending_shards
from pipeline.specs import list_shards
from pipeline.storage import ObjectInfo, Storage

INPUT = "s3://images-eu-west-1/crawl/2026-11/webdataset/quality=high/part"  # 78 characters in all
OUTPUT = "s3://embeddings-eu-west-1/siglip2-so400m-naflex/crawl-2026-11"
CASES = ("glob", "braces", "file")


class ListedStorage(Storage):
    """A bucket with `count` shards, of which every second has its embeddings."""

    def __init__(self, count: int) -> None:
        super().__init__(StorageConfig())
        self._count = count

    def list(self, prefix_url: str) -> Iterator[ObjectInfo]:
        shards = (f"{INPUT}-{number:07d}.tar" for number in range(self._count))
        if prefix_url.startswith(OUTPUT):
            urls = (embeddings_url(OUTPUT, shard) for n, shard in enumerate(shards) if n % 2)
        else:
            urls = shards
        for url in urls:
            yield ObjectInfo(url=url, size=1 << 30, etag='"d41d8cd98f00b204e9800998ecf8427e-128"')


def measure(case: str, count: int) -> dict[str, float]:
    storage = ListedStorage(count)
    start_rss, start = peak_bytes(), time.process_time()
    for folder in [INPUT, OUTPUT] if case == "glob" else [OUTPUT]:
        deque(storage.list(folder), maxlen=0)
    simulated = time.process_time() - start
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        config = make_input(case, count, file)
        start = time.process_time()
        shards = list_shards(config, storage)
        pending = pending_shards(list_committed(storage, OUTPUT).numbers, shards)
        seconds = time.process_time() - start - simulated
    assert len(shards) == count
    assert len(pending) == count // 2 + count % 2
    del shards
    return {
        "cpu_s": seconds,
        "peak_bytes_per_shard": (peak_bytes() - start_rss) / count,
        "kept_bytes_per_shard": (current_bytes() - start_rss) / count,
    }


def make_input(case: str, count: int, file) -> InputConfig:
    if case == "glob":
        return InputConfig(shards=f"{INPUT}-*.tar")
    if case == "braces":
        return InputConfig(shards=f"{INPUT}-{{0000000..{count - 1:07d}}}.tar")
    file.writelines(f"{INPUT}-{number:07d}.tar\n" for number in range(count))
    file.flush()
    return InputConfig(shards_file=file.name)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def current_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--case", choices=CASES, help="one case, in this process")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.shards)))
        return
    results = {}
    for case in CASES:
        command = [sys.executable, __file__, "--case", case, "--shards", str(options.shards)]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        results[case] = figures = json.loads(run.stdout)
        print(f"{case:<8}" + "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

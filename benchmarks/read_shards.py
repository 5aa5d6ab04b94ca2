"""Members and bytes a second of three tar readers on one shard in the page cache.

python benchmarks/read_shards.py [--samples 1000] [--image-bytes 100000] [--repeats 5]
"""

import argparse
import os
import random
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import webdataset

from pipeline.config import InputConfig
from pipeline.shards import ShardSamples


def write_shard(path: Path, samples: int, image_bytes: int) -> None:
    source = random.Random(0)
    with webdataset.TarWriter(str(path)) as writer:
        for i in range(samples):
            writer.write({"__key__": f"{i:08}", "jpg": source.randbytes(image_bytes)})


def read_embedmill(path: Path) -> int:
    with path.open("rb") as stream:
        samples = ShardSamples(
            stream,
            shard=str(path),
            config=InputConfig(shards=str(path)),
            size=path.stat().st_size,
            max_image_bytes=1 << 30,
        )
        return sum(len(sample.image) for sample in samples)


def read_tarfile(path: Path) -> int:
    total = 0
    with path.open("rb") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for info in tar:
            total += len(tar.extractfile(info).read())
            tar.members = []
    return total


def read_webdataset(path: Path) -> int:
    dataset = webdataset.WebDataset(str(path), shardshuffle=False)
    return sum(len(sample["jpg"]) for sample in dataset)


def seconds(read: Callable[[Path], int], path: Path, expected: int) -> float:
    start = time.perf_counter()
    if read(path) != expected:
        raise RuntimeError(f"{read.__name__} lost bytes of {path}")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--image-bytes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    total = args.samples * args.image_bytes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard.tar"
        write_shard(path, args.samples, args.image_bytes)
        print(f"{args.samples} members of {args.image_bytes} bytes, {os.cpu_count()} cores")
        for read in (read_embedmill, read_tarfile, read_webdataset):
            best = min(seconds(read, path, total) for _ in range(args.repeats))
            name = read.__name__.removeprefix("read_")
            print(
                f"{name:12} {args.samples / best:10,.0f} members/s {total / best / 1e6:8,.0f} MB/s"
            )


if __name__ == "__main__":
    main()

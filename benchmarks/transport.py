"""What a pack costs on its way from a Preprocessor to an Encoder: CPU time and bytes.

    python benchmarks/transport.py [--packs 400] [--rounds 3] [--json FILE]

One actor streams packs of 64 images of 256 patches (12.6 MB), then packs of a single patch, to
another, which reads them as pipeline.actors does and touches every page. The packs of one patch
show what an object costs whatever is in it; the difference is the price of bytes. CPU seconds are
those of all processes of a local Ray. Prints Markdown, medians of rounds.
"""

import argparse
import json
import logging
import pickle
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import ray
from stage_meter import CpuMeter

from pipeline.actors import _stream
from pipeline.packing import make_pack
from pipeline.records import Pack, PatchedImage, SampleId

SIZES = {"64 images of 256 patches": (64, 16), "one patch": (1, 1)}  # images, side in patches
IN_FLIGHT = 2
SETTLE_S = 1.5  # three samples of the meter


class Producer:
    def stream(self, number: int, images: int, side: int) -> Iterator[Pack]:
        pack = a_pack(images, side)
        for _ in range(number):
            yield pack


class Streams:
    """A Preprocessor as `_stream` asks for it, with other arguments."""

    def __init__(self, producer: Any, images: int, side: int) -> None:
        self._producer, self._size, self.stream = producer, (images, side), self

    def options(self, **options: Any) -> "Streams":
        self._options = options
        return self

    def remote(self, number: Any) -> Any:
        return self._producer.stream.options(**self._options).remote(number, *self._size)


class Consumer:
    async def consume(
        self, producer: Any, number: int, images: int, side: int
    ) -> tuple[int, float]:
        """(sum over pages, seconds)."""
        start, total = time.perf_counter(), 0
        async for pack in _stream(Streams(producer, images, side), number, IN_FLIGHT):
            total += int(pack.batch.pixel_values.reshape(-1)[::4096].sum())
        return total, time.perf_counter() - start


def a_pack(images: int, side: int) -> Pack:
    rng = np.random.default_rng(0)
    return make_pack(
        [
            PatchedImage(
                id=SampleId(shard="s3://bucket/photos/000000.tar", key=f"{index:09d}"),
                index=index,
                pixel_values=rng.integers(0, 256, (side * side, 768), np.uint8),
                grid=(side, side),
                source_size=(16 * side, 16 * side),
            )
            for index in range(images)
        ]
    )


def main() -> None:
    options = _options()
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=512 << 20,
        include_dashboard=False,
        logging_level=logging.ERROR,
    )
    producer, consumer = ray.remote(Producer).remote(), ray.remote(Consumer).remote()
    result: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="minutes")}
    with CpuMeter() as meter:
        for name, size in SIZES.items():
            ray.get(consumer.consume.remote(producer, 20, *size))
            rounds = [
                _round(meter, producer, consumer, options.packs, size)
                for _ in range(options.rounds)
            ]
            medians = {key: float(np.median([each[key] for each in rounds])) for key in rounds[0]}
            result[name] = {**_bytes(a_pack(*size)), **medians}
    ray.shutdown()
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(markdown(result))


def _round(
    meter: CpuMeter, producer: Any, consumer: Any, packs: int, size: tuple[int, int]
) -> dict[str, float]:
    time.sleep(SETTLE_S)
    begin = time.monotonic()
    _, seconds = ray.get(consumer.consume.remote(producer, packs, *size))
    time.sleep(SETTLE_S)
    spent = sum(meter.between(begin, time.monotonic()).values())
    return {"ms": 1000 * seconds / packs, "cpu_ms": 1000 * spent / packs}


def _bytes(pack: Pack) -> dict[str, int]:
    """Bytes of pixels, and of all else that a pack needs in the object store."""
    buffers: list[pickle.PickleBuffer] = []
    inside = pickle.dumps(pack, protocol=5, buffer_callback=buffers.append)
    pixels = pack.batch.pixel_values.nbytes
    return {"pixels": pixels, "other": len(inside) + sum(len(b.raw()) for b in buffers) - pixels}


def markdown(result: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    lines = ["| a pack of | pixel bytes | other bytes | ms | CPU ms |", "|---|---|---|---|---|"]
    for name in SIZES:
        figures = result[name]
        lines.append(
            f"| {name} | {figures['pixels']:,} | {figures['other']:,} | {figures['ms']:.2f} "
            f"| {figures['cpu_ms']:.2f} |"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

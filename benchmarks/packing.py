"""How full packs are, and what padding costs instead: pipeline.packing on sizes of real images.

    python benchmarks/packing.py CORPORA_FOLDER [--images 20000] [--json FILE]

Nothing is decoded. Sizes are those in the INDEX.jsonl of the corpora, upright, drawn at random
with a fixed seed; their patches come from the geometry of a run, and pass through group_images and
make_pack as tiny pixels. `uniform 256` and `mix 64-1024` are numbers of patches without an image
behind them: equal ones, and evenly drawn ones. Prints Markdown: images a pack, fill of the packs
of one long stream without its last, fill of whole shards of 100 and 1,000 images, last packs
included: each pack in a pass of its own, and as pipeline.passes shares passes out among leases
(`--leases` open at once, an encoder that is the limit, the last pass of all left out). And how
many of the tokens would be padding where every image is padded to the run's largest
(transformers) or to the largest of its 32 (a collate function).
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from encoder.batch import PackedBatch
from encoder.geometry import Geometry
from pipeline.config import PackingConfig
from pipeline.packing import group_images, make_pack
from pipeline.passes import SharedPasses, Vectors
from pipeline.records import Pack, PatchedImage, SampleId

PATCH_SIZE = 16
BATCH = 32
PASS_S = 0.002  # of the encoder that does nothing; packs come without delay
SHARDS = (100, 1000)  # images
TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width

Grid = tuple[int, int]


def main() -> None:
    options = _options()
    look_ahead = PackingConfig().look_ahead
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "images": options.images,
        "leases": options.leases,
        "look_ahead": look_ahead,
        "workloads": {},
    }
    for name, (grids, largest) in workloads(options.corpora, options.images).items():
        figures = {"padding": padding(grids, largest), "budgets": {}}
        for budget in options.budgets:
            figures["budgets"][budget] = fills(grids, budget, look_ahead, options.leases)
        result["workloads"][name] = figures
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(markdown(result))


def workloads(corpora: Path, images: int) -> dict[str, tuple[list[Grid], int]]:
    """(grids, patches of the largest image that the run allows) by name."""
    rng = np.random.default_rng(0)
    found: dict[str, tuple[list[Grid], int]] = {
        "uniform 256": ([(16, 16)] * images, 256),
        "mix 64-1024": ([(1, int(n)) for n in rng.integers(64, 1025, images)], 1024),
    }
    for folder in ("photos", "hard"):
        sizes = source_sizes(corpora / folder / "INDEX.jsonl")
        drawn = [sizes[index] for index in rng.integers(0, len(sizes), images)]
        for largest in (256, 1024):
            grid = Geometry(patch_size=PATCH_SIZE, max_num_patches=largest).grid
            found[f"{folder}, {largest} patches"] = [grid(*size) for size in drawn], largest
    return found


def source_sizes(index: Path) -> list[tuple[int, int]]:
    """(height, width) px of all images that Pillow can load, upright."""
    sizes = []
    for line in index.read_text().splitlines():
        entry = json.loads(line)
        if entry["loaded"]:
            size = entry["height"], entry["width"]
            sizes.append(size[::-1] if entry["exif_orientation"] in TURNED else size)
    return sizes


def fills(grids: list[Grid], budget: int, look_ahead: int, leases: int) -> dict[str, Any]:
    """Shares of the budget that are tokens, of one long stream and of shards."""
    pack = partial(packs, budget=budget, look_ahead=look_ahead)
    long = [p.batch for p in pack(grids)]
    full = [batch.num_tokens / budget for batch in long[:-1]]
    figures = {
        "images_per_pack": round(float(np.mean([batch.num_images for batch in long[:-1]])), 1),
        "stream": round(float(np.mean(full)), 4),
        "stream_lowest": round(min(full), 4),
    }
    for images in SHARDS:
        shards = [grids[first : first + images] for first in range(0, len(grids), images)]
        streams = [[p.batch for p in pack(shard)] for shard in shards]
        tokens = [batch.num_tokens for stream in streams for batch in stream]
        figures[f"shards_{images}"] = round(sum(tokens) / (budget * len(tokens)), 4)
        tokens = asyncio.run(shared_passes(streams, budget, leases))
        if max(tokens) > budget:
            raise RuntimeError(f"a pass of {max(tokens)} tokens, {budget} are the budget")
        figures[f"shards_{images}_shared"] = round(float(np.mean(tokens[:-1])) / budget, 4)
    return figures


def packs(grids: list[Grid], budget: int, look_ahead: int) -> Iterator[Pack]:
    """The packs of one stream of images with these grids."""
    groups = group_images(_images(grids), token_budget=budget, look_ahead=look_ahead)
    return map(make_pack, groups)


async def shared_passes(
    streams: Sequence[Sequence[PackedBatch]], budget: int, leases: int
) -> list[int]:
    """Tokens of each pass, where as many streams as `leases` are open, as in pipeline.actors."""
    tokens: list[int] = []

    def submit(batches: Sequence[PackedBatch]) -> NoEncoder:
        tokens.append(sum(batch.num_tokens for batch in batches))
        return NoEncoder([batch.num_images for batch in batches])

    passes, room = SharedPasses(submit, token_budget=budget), asyncio.Semaphore(leases)

    async def lease(stream: Sequence[PackedBatch]) -> None:
        async with room:
            encoding: list[asyncio.Task[Any]] = []
            for batch in stream:
                encoding.append(asyncio.create_task(passes.encode(batch)))
                if len(encoding) == 2:
                    await encoding.pop(0)
            await asyncio.gather(*encoding)

    await asyncio.gather(*map(lease, streams))
    return tokens


class NoEncoder:
    """Results that take their time and hold nothing."""

    def __init__(self, images: list[int]) -> None:
        self._images = images

    def results(self) -> list[Vectors]:
        time.sleep(PASS_S)
        return [np.zeros((count, 1), np.float32) for count in self._images]


def _images(grids: list[Grid]) -> Iterator[PatchedImage]:
    for index, (h, w) in enumerate(grids):
        yield PatchedImage(
            id=SampleId(shard="", key=str(index)),
            index=index,
            pixel_values=np.zeros((h * w, 3), np.uint8),
            grid=(h, w),
            source_size=(h, w),
        )


def padding(grids: list[Grid], largest: int) -> dict[str, float]:
    """The share of all tokens that is padding, where every image has as many as the largest."""
    tokens = np.array([h * w for h, w in grids])
    batches = [tokens[first : first + BATCH] for first in range(0, len(tokens), BATCH)]
    collated = sum(len(batch) * int(batch.max()) for batch in batches)
    return {
        "to_the_largest": round(1 - float(tokens.sum()) / (len(tokens) * largest), 4),
        "to_the_largest_of_32": round(1 - float(tokens.sum()) / collated, 4),
    }


def markdown(result: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    heads = ["tokens in a pack", "images a pack", "stream", "lowest pack"]
    heads += [f"shards of {images:,}{how}" for images in SHARDS for how in ("", ", shared")]
    heads += ["padding, to the largest", "padding, of 32"]
    lines = [f"| images | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, figures in result["workloads"].items():
        padded = [f"{share:.1%}" for share in figures["padding"].values()]
        for budget, fill in figures["budgets"].items():
            images, *shares = fill.values()
            cells = [f"{budget:,}", f"{images:.1f}", *(f"{share:.1%}" for share in shares), *padded]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--leases", type=int, default=4)
    parser.add_argument("--budgets", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Preprocessing of one core: embedmill beside transformers, timm and Pillow, image after image.

    python benchmarks/preprocess.py PHOTOS_FOLDER [--rounds 7] [--json FILE]

One process, one thread. The engines take turns: in a round each prepares all photos, which are in
memory, and every round begins with another engine. Counted are CPU seconds of the process, so that
other work on the machine disturbs little; wall-clock seconds are in the JSON. embedmill makes
patches of bytes, the others float32 (and transformers pads); Pillow decoding alone makes no
patches. Prints Markdown: images per CPU second by size of the image, ratios to transformers' fast
processor with intervals, and where embedmill's time goes. transformers' fast processor and timm
need torchvision; engines that are not installed are left out.
"""

import argparse
import io
import json
import os
import platform
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from paired import ratio
from PIL import Image
from preprocess_engines import Engine, engines, one_thread

import pipeline.decode
import pipeline.preprocess
from pipeline.config import InputConfig, StorageConfig
from pipeline.packing import make_pack
from pipeline.records import PatchedImage, RawSample, SampleId
from pipeline.shards import ShardSamples
from pipeline.storage import Storage

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
CLASSES = {"to 0.25 MP": 0.25e6, "to 1 MP": 1e6, "to 4 MP": 4e6, "larger": float("inf")}
BASELINE = "transformers fast"
OURS = ("embedmill exact", "embedmill reduced")


def main() -> None:
    options = _options()
    one_thread()
    photos = {p.name: p.read_bytes() for p in sorted(options.photos.iterdir()) if is_photo(p)}
    found, missing = engines()
    seconds = measure(list(photos.values()), found, options.rounds)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{os.cpu_count()} cores {platform.processor() or platform.machine()}",
        "versions": _versions(),
        "missing": missing,
        "images": len(photos),
        "rounds": options.rounds,
        "classes": _by_class(photos, seconds),
        "wall_images_per_s": {n: _rate(times[..., 1]) for n, times in seconds.items()},
        "stages": {name: stages(photos, found[name]) for name in OURS},
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(markdown(result))


def measure(photos: list[bytes], found: dict[str, Engine], rounds: int) -> dict[str, np.ndarray]:
    """[rounds, photos, 2] CPU and wall-clock seconds of each engine. One round before warms up."""
    seconds = {name: np.zeros((rounds, len(photos), 2)) for name in found}
    names = list(found)
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            for index, data in enumerate(photos):
                cpu, wall = time.process_time(), time.perf_counter()
                found[name](data)
                spent = time.process_time() - cpu, time.perf_counter() - wall
                if number >= 0:
                    seconds[name][number, index] = spent
    return seconds


def _by_class(photos: dict[str, bytes], seconds: dict[str, np.ndarray]) -> dict[str, Any]:
    pixels = np.array([_pixels(data) for data in photos.values()])
    classes, low = {}, 0.0
    chosen = {"all": np.ones(len(pixels), bool)}
    for label, high in CLASSES.items():
        chosen[label], low = (pixels > low) & (pixels <= high), high
    for label, which in chosen.items():
        if not which.any():
            continue
        cpu = {name: times[:, which, 0] for name, times in seconds.items()}
        rates = {name: which.sum() / times.sum(axis=1) for name, times in cpu.items()}
        classes[label] = {
            "images": int(which.sum()),
            "megapixels": round(float(pixels[which].mean()) / 1e6, 3),
            "images_per_cpu_s": {name: round(float(np.median(r)), 1) for name, r in rates.items()},
            "ratios": {n: ratio(r, rates[BASELINE]) for n, r in rates.items()}
            if BASELINE in rates
            else {},
        }
    return classes


def _rate(times: np.ndarray) -> float:
    return round(float(np.median(times.shape[1] / times.sum(axis=1))), 1)


def stages(photos: dict[str, bytes], engine: Engine, rounds: int = 3) -> dict[str, Any]:
    """CPU milliseconds of an image in each stage of the shipped path; medians of rounds."""
    found = []
    for _ in range(rounds):
        spent: dict[str, float] = {}
        with _timed(spent):
            for data in photos.values():
                start = time.process_time()
                engine(data)
                spent["prepare"] = spent.get("prepare", 0.0) + time.process_time() - start
        spent["header"] = spent.pop("open_header")
        spent["decode"] -= spent["header"]
        named = ("header", "decode", "resize", "patchify")
        spent["rest"] = spent.pop("prepare") - sum(spent[name] for name in named)
        spent["read"], spent["pack"] = _read_and_pack(photos, engine)
        found.append({name: 1000 * value / len(photos) for name, value in spent.items()})
    medians = {name: float(np.median([each[name] for each in found])) for name in found[0]}
    order = ("read", "header", "decode", "resize", "patchify", "rest", "pack")
    return {name: round(medians[name], 3) for name in order}


@contextmanager
def _timed(spent: dict[str, float]) -> Iterator[None]:
    """Functions of the shipped path count their CPU seconds in `spent`."""
    places = [(pipeline.preprocess, n) for n in ("decode", "resize", "patchify")]
    places.append((pipeline.decode, "open_header"))
    saved = [getattr(module, name) for module, name in places]
    try:
        for (module, name), function in zip(places, saved, strict=True):
            setattr(module, name, _counting(function, name, spent))
        yield
    finally:
        for (module, name), function in zip(places, saved, strict=True):
            setattr(module, name, function)


def _counting(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Any:
    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.process_time() - start

    return counted


def _read_and_pack(photos: dict[str, bytes], engine: Engine) -> tuple[float, float]:
    """CPU seconds to read the photos as samples of a local shard, and to join their patches."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photos.tar"
        write_shard(path, photos)
        storage = Storage(StorageConfig())
        start = time.process_time()
        with storage.open(str(path)) as stream:
            config = InputConfig(shards=str(path), key_split="last_dot")
            samples = ShardSamples(
                stream, shard="", config=config, size=None, max_image_bytes=1 << 30
            )
            raw = [sample for sample in samples if isinstance(sample, RawSample)]
        read = time.process_time() - start
    if len(raw) != len(photos):
        raise RuntimeError(f"{len(photos)} photos were written, {len(raw)} samples came back")
    images = [_patched(index, engine(data)) for index, data in enumerate(photos.values())]
    start = time.process_time()
    for first in range(0, len(images), 64):
        make_pack(images[first : first + 64])
    return read, time.process_time() - start


def _patched(index: int, rows: np.ndarray) -> PatchedImage:
    return PatchedImage(
        id=SampleId(shard="", key=str(index)),
        index=index,
        pixel_values=rows,
        grid=(1, len(rows)),
        source_size=(1, 1),
        truncated=False,
        metadata=(),
    )


def write_shard(path: Path, photos: dict[str, bytes]) -> None:
    """None; a tar whose members are the photos."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in photos.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def markdown(result: dict[str, Any]) -> str:
    """The tables of docs/benchmarks.md."""
    classes = result["classes"]
    head = [f"{label} ({c['images']}, {c['megapixels']:.2f} MP)" for label, c in classes.items()]
    lines = [
        f"| images per CPU second | {' | '.join(head)} | ratio |",
        "|---" * (len(head) + 2) + "|",
    ]
    for name in classes["all"]["images_per_cpu_s"]:
        rates = [f"{c['images_per_cpu_s'][name]:.1f}" for c in classes.values()]
        lines.append(f"| {name} | {' | '.join(rates)} | {_ratio_text(classes['all'], name)} |")
    lines += ["", f"| ms per image | {' | '.join(result['stages'][OURS[0]])} | sum |"]
    lines.append("|---" * (len(result["stages"][OURS[0]]) + 2) + "|")
    for name, spent in result["stages"].items():
        total = sum(spent.values())
        cells = [f"{value:.2f} ({value / total:.0%})" for value in spent.values()]
        lines.append(f"| {name} | {' | '.join(cells)} | {total:.2f} |")
    return "\n".join(
        [*lines, *(f"\nleft out: {n} ({why})" for n, why in result["missing"].items())]
    )


def _ratio_text(figures: dict[str, Any], name: str) -> str:
    if name not in figures["ratios"]:
        return ""
    found = figures["ratios"][name]
    low, high = found["interval_95"]
    return f"{found['median']:.2f} ({low:.2f} to {high:.2f})"


def is_photo(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _pixels(data: bytes) -> int:
    with Image.open(io.BytesIO(data)) as image:
        return image.width * image.height


def _versions() -> dict[str, str]:
    names = ("torch", "torchvision", "transformers", "timm", "pillow", "simplejpeg", "numpy")
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except ImportError:
            continue
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""The encoder on one GPU, against the card's own rates and against transformers.

    PYTHONPATH=. python benchmarks/encoder_gpu.py [--models base so400m] [--seconds 4] [--out FILE]

Needs encoder/, torch, transformers, Pillow and the demo photos; no Ray and no storage. It first
measures what the card does: the rate of large bfloat16 matrix products, and copies from and to
pinned memory. Then, for each model and workload, both engines get the same images with the same
weights: embedmill as packs of 16,384 tokens in order of arrival, from bytes in host memory to
vectors in host memory; transformers as batches of 64 images padded to their longest, with pixels
normalised and pinned beforehand. Last come correctness, and the test that nothing waits for the
device while work is queued. Without a GPU it runs to its end on the CPU, in float32. Prints
JSON; with --out it writes after each model, so that a run that is cut off leaves what it has.
"""

import argparse
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encoder_inputs import MODELS, budgets, make_pack, photos
from padded_reference import PaddedReference

from encoder.batch import PackedBatch
from encoder.config import EncoderConfig
from encoder.infer import Encoder, load_encoder
from encoder.seeded import write_seeded_checkpoint

PHOTOS = Path(__file__).parents[1] / "pipeline" / "demo_photos"
PACK_TOKENS, PADDED_IMAGES = 16_384, 64
WORKLOADS = ("256", "1024", "mixed")
TARGETS = {"matrix_share": {("so400m", "256"): 0.6}, "ratio": {"256": 1.5, "mixed": 2.5}}


def main() -> None:
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = list(photos(PHOTOS, options.images))
    packs = {
        workload: list(_packs(images, budgets(workload, len(images)), options.pack_tokens))
        for workload in options.workloads
    }
    padded = {
        workload: list(_batches(images, budgets(workload, len(images)), options.padded_images))
        for workload in options.workloads
    }
    card = _card(device, options.seconds)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
        "images": options.images,
        "card": card,
        "models": {},
    }
    for model in options.models:
        figures = _model(model, packs, padded, device, card["matrix_tflops"], options)
        result["models"][model] = figures
        result["targets"] = _targets(result["models"])
        if options.out:
            options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _card(device: torch.device, seconds: float) -> dict[str, float]:
    """Rates of large matrix products and of copies, the best of several."""
    dtype = _dtype(device)
    size = 8192 if device.type == "cuda" else 512
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    rates = {"matrix_tflops": 2 * size**3 / _best(lambda: a @ b, device, seconds) / 1e12}
    if device.type == "cuda":
        host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(host, device=device)
        up = _best(lambda: there.copy_(host, non_blocking=True), device, seconds)
        down = _best(lambda: host.copy_(there, non_blocking=True), device, seconds)
        rates |= {"up_gb_per_s": host.nbytes / up / 1e9, "down_gb_per_s": host.nbytes / down / 1e9}
    return {name: round(rate, 3) for name, rate in rates.items()}


def _best(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Seconds of one call, the best of groups of ten in a row."""
    best, end = np.inf, time.perf_counter() + min(seconds, 2)
    work()
    while best == np.inf or time.perf_counter() < end:
        _wait(device)
        start = time.perf_counter()
        for _ in range(10):
            work()
        _wait(device)
        best = min(best, (time.perf_counter() - start) / 10)
    return float(best)


def _model(
    name: str,
    packs: dict[str, list[PackedBatch]],
    padded: dict[str, list[PackedBatch]],
    device: torch.device,
    matrix_tflops: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_seeded_checkpoint(folder, **MODELS[name])
        found = _embedmill(checkpoint, packs, device, matrix_tflops, options)
        found["theirs"] = _transformers(checkpoint, padded, device, options.seconds)
        found["correctness"] = _correctness(checkpoint, _first(padded), device)
    speeds = [found[engine] for engine in ("ours", "theirs")]
    found["ratio"] = {
        workload: round(
            speeds[0][workload]["images_per_s"] / speeds[1][workload]["images_per_s"], 3
        )
        for workload in packs
    }
    return found


def _embedmill(
    checkpoint: Path,
    packs: dict[str, list[PackedBatch]],
    device: torch.device,
    matrix_tflops: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    encoder = load_encoder(checkpoint, device=str(device))
    speeds = {}
    for workload, batches in packs.items():
        figures = _measure(partial(_ours, encoder), batches, device, options.seconds)
        tflops = figures["images_per_s"] * _flops_per_image(encoder.config, batches) / 1e12
        sent = sum(batch.pixel_values.nbytes + batch.cu_seqlens.nbytes for batch in batches)
        speeds[workload] = figures | {
            "tokens_per_s": _tokens_per_s(figures, batches),
            "model_tflops": round(tflops, 3),
            "matrix_share": round(tflops / matrix_tflops, 3),
            "host_to_device_mb": round(sent / 1e6, 1),
        }
    found = {"ours": speeds, "sync_test": _sync_test(encoder, _first(packs))}
    if options.compile:
        found["compiled_mlp"] = _compiled(
            encoder, next(iter(packs.values())), device, options.seconds
        )
    return found


def _transformers(
    checkpoint: Path, padded: dict[str, list[PackedBatch]], device: torch.device, seconds: float
) -> dict[str, Any]:
    reference = PaddedReference(checkpoint, device=str(device), dtype=_dtype(device))
    speeds = {}
    for workload, batches in padded.items():
        inputs = [reference.inputs(batch) for batch in batches]
        counts = [batch.num_images for batch in batches]
        figures = _measure(partial(map, reference.encode), inputs, device, seconds, counts)
        sent = sum(tensor.nbytes for item in inputs for tensor in item.values())
        speeds[workload] = figures | {
            "tokens_per_s": _tokens_per_s(figures, batches),  # without padding
            "host_to_device_mb": round(sent / 1e6, 1),
        }
    return speeds


def _tokens_per_s(figures: dict[str, float], batches: Sequence[PackedBatch]) -> int:
    tokens = sum(batch.num_tokens for batch in batches)
    return round(figures["images_per_s"] * tokens / sum(batch.num_images for batch in batches))


def _ours(encoder: Encoder, batches: Iterator[PackedBatch]) -> Iterator[np.ndarray]:
    """Yields the vectors of each pack while the next two are on their way."""
    pending = deque()
    for batch in batches:
        pending.append(encoder.submit([batch]))
        if len(pending) > 2:
            yield pending.popleft().results()[0]
    for waiting in pending:
        yield waiting.results()[0]


def _measure(
    encode: Callable[[Iterator[Any]], Iterator[np.ndarray]],
    batches: Sequence[Any],
    device: torch.device,
    seconds: float,
    images: Sequence[int] | None = None,
) -> dict[str, float]:
    """Throughput over whole rounds of the batches that take at least `seconds`."""
    counts = images or [batch.num_images for batch in batches]
    for _ in encode(iter(batches)):  # warms up: kernels, memory, position grids
        pass
    _wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rounds, start = 0, time.perf_counter()
    while rounds == 0 or time.perf_counter() - start < seconds:
        for _ in encode(iter(batches)):
            pass
        rounds += 1
    spent = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0
    return {
        "images_per_s": round(rounds * sum(counts) / spent, 2),
        "seconds": round(spent, 2),
        "peak_device_mib": round(peak),
    }


def _flops_per_image(config: EncoderConfig, batches: Sequence[PackedBatch]) -> float:
    """Floating-point operations of matrix products and attention, the mean over all images."""
    lengths = np.concatenate([np.diff(batch.cu_seqlens) for batch in batches]).astype(float)
    width, inner, depth = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    token = depth * 2 * (4 * width**2 + 2 * width * inner) + 2 * config.patch_values * width
    head = 4 * width**2
    return float(((token + head) * lengths + depth * 4 * width * lengths**2).mean())


def _compiled(
    encoder: Encoder, batches: list[PackedBatch], device: torch.device, seconds: float
) -> dict[str, float]:
    """With each block's MLP compiled; what that costs at the start is in `warm_up_s`."""
    start = time.perf_counter()
    for block in encoder._tower.blocks:
        block.mlp.compile(dynamic=True)
    encoder(batches[0])
    warm_up = time.perf_counter() - start
    figures = _measure(partial(_ours, encoder), batches, device, seconds)
    return figures | {"warm_up_s": round(warm_up, 1)}


def _sync_test(encoder: Encoder, batch: PackedBatch) -> str:
    if encoder.device.type != "cuda":
        return "not on a GPU"
    encoder(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = encoder.submit([batch])
    except RuntimeError as error:
        return f"failed: {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    pending.results()
    return "passed"


def _correctness(checkpoint: Path, batch: PackedBatch, device: torch.device) -> dict[str, Any]:
    """Errors against transformers in float32, the root mean square over unit vectors."""
    exact = _reference(checkpoint, batch, device, torch.float32)
    theirs = _reference(checkpoint, batch, device, torch.bfloat16)
    ours = {
        dtype: load_encoder(checkpoint, device=str(device), dtype=dtype)(batch)
        for dtype in ("float32", "bfloat16")
    }
    return {
        "float32_largest": float(np.abs(ours["float32"] - exact).max() / np.abs(exact).max()),
        "bfloat16_ours": _rms(ours["bfloat16"] - exact),
        "bfloat16_theirs": _rms(theirs - exact),
    }


def _reference(
    checkpoint: Path, batch: PackedBatch, device: torch.device, dtype: torch.dtype
) -> np.ndarray:
    reference = PaddedReference(checkpoint, device=str(device), dtype=dtype)
    return reference.encode(reference.inputs(batch))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _targets(models: dict[str, Any]) -> dict[str, bool]:
    """Whether each target is met, where its model and workload were measured."""
    met = {}
    for (name, workload), least in TARGETS["matrix_share"].items():
        if workload in models.get(name, {}).get("ours", {}):
            share = models[name]["ours"][workload]["matrix_share"]
            met[f"{name} at {workload}: {least:.0%} of the matrix rate"] = share >= least
    for name, found in models.items():
        for workload, least in TARGETS["ratio"].items():
            if workload in found["ratio"]:
                met[f"{name} at {workload}: {least} x transformers"] = (
                    found["ratio"][workload] >= least
                )
        errors = found["correctness"]
        met[f"{name}: bfloat16 error at most twice transformers'"] = (
            errors["bfloat16_ours"] <= 2 * errors["bfloat16_theirs"]
        )
        met[f"{name}: nothing waits for the device"] = found["sync_test"] == "passed"
    return met


def _packs(images: list, patches: list[int], tokens: int) -> Iterator[PackedBatch]:
    """Packs in order of arrival, each as full as the next image allows."""
    single = [make_pack([image], [n]) for image, n in zip(images, patches, strict=True)]
    lengths = [pack.num_tokens for pack in single]
    start = 0
    while start < len(images):
        end, total = start, 0
        while end < len(images) and (end == start or total + lengths[end] <= tokens):
            total += lengths[end]
            end += 1
        yield make_pack(images[start:end], patches[start:end])
        start = end


def _first(workloads: dict[str, list[PackedBatch]]) -> PackedBatch:
    return next(iter(workloads.values()))[0]


def _batches(images: list, patches: list[int], count: int) -> Iterator[PackedBatch]:
    for start in range(0, len(images), count):
        yield make_pack(images[start : start + count], patches[start : start + count])


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["base", "so400m"])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--pack-tokens", type=int, default=PACK_TOKENS)
    parser.add_argument("--padded-images", type=int, default=PADDED_IMAGES)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement, at least")
    parser.add_argument("--compile", action="store_true", help="measure compiled MLPs too")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""How `embedmill plan` shows its forecast."""

from collections.abc import Iterator
from statistics import median

from pipeline.config import RunConfig
from pipeline.forecast import Forecast, Sampled
from pipeline.inspection_view import counts, histogram

_ENOUGH = 0.8  # share of an Encoder's images that its Preprocessors should bring


def sampled_lines(sampled: Sampled) -> Iterator[str]:
    """Lines on the images that were looked at."""
    yield (
        f"{sampled.images:,} images of {sampled.shards:,} shards: {sampled.good:,} fit, "
        f"{sampled.rejected.total():,} rejected"
    )
    if sampled.rejected:
        yield f"rejected: {counts(sampled.rejected)}"
    if sampled.good:
        yield f"formats: {counts(sampled.formats)}"
        sizes = sampled.megapixels
        yield f"megapixels: {min(sizes):.2f} to {max(sizes):.2f}, median {median(sizes):.2f}"
        yield f"tokens of an image: {sampled.total_tokens / sampled.good:.1f} on average"
        yield from histogram(sampled.tokens)


def forecast_lines(found: Forecast, token_budget: int) -> Iterator[str]:
    """Lines on what there is to do."""
    about = "" if found.exact else "about "
    yield (
        f"{about}{found.images:,} images, {found.good:,} of them with a row, in "
        f"{size_text(found.input_bytes)} of shards"
    )
    yield (
        f"{about}{found.tokens:,} tokens, {found.passes:,} full forward passes of "
        f"{token_budget:,} tokens"
    )
    yield f"{about}{size_text(found.output_bytes)} of vectors"


def speed_lines(
    found: Forecast, config: RunConfig, preprocessor: float, encoder: float | None
) -> Iterator[str]:
    """Lines on how long that takes, from images/s of one Preprocessor and of one Encoder."""
    workers = config.workers
    pool, encoders = workers.preprocessors.max, workers.encoders.max
    yield f"one Preprocessor: {preprocessor:,.1f} images/s, measured here on one core"
    if encoder is None:
        yield "one Encoder: not measured, this machine has no GPU"
        rate, who = pool * preprocessor, f"{pool} Preprocessors, and Encoders as fast"
    else:
        yield f"one Encoder: {encoder:,.1f} images/s, measured here on {config.device}"
        rate = min(pool * preprocessor, encoders * encoder)
        who = f"{pool} Preprocessors and {encoders} Encoders"
    yield f"{who}, each on cores of its own: {rate:,.1f} images/s, {_duration(found.images / rate)}"


def memory_lines(memory: int, store: int, machine: int | None) -> Iterator[str]:
    """Lines on what all workers may take at their most."""
    here = "" if machine is None else f"; this machine has {size_text(machine)}"
    yield f"up to {size_text(memory)} for all workers: 1 GiB a Preprocessor, 4 GiB an Encoder"
    yield f"and {size_text(store)} of packs in the object store{here}"


def warnings(
    sampled: Sampled,
    config: RunConfig,
    *,
    encoder: float | None,
    memory: int,
    machine: int | None,
) -> Iterator[str]:
    """What should be looked at before the run; `machine` is its memory where the run is here."""
    merging = {"several_images", "duplicate_key"} & sampled.rejected.keys()
    if merging:
        number = sum(sampled.rejected[reason] for reason in merging)
        yield (
            f"keys merge: {number:,} of {sampled.images:,} images share their key with another, "
            f"often because names hold dots. See input.key_split in docs/configuration.md"
        )
    if sampled.warnings:
        yield f"in the tars: {counts(sampled.warnings)}"
    for shard, message in sampled.failed.items():
        yield f"{shard} cannot be read: {message}"
    pool, encoders = config.workers.preprocessors.max, config.workers.encoders.max
    if encoder and (brought := pool * sampled.images_per_s) < _ENOUGH * encoders * encoder:
        yield (
            f"Encoders will wait: {pool} Preprocessors bring {brought:,.0f} images/s, {encoders} "
            f"Encoders take {encoders * encoder:,.0f}. Raise workers.preprocessors.max"
        )
    if machine is not None and memory > machine:
        yield (
            f"all workers together may take {size_text(memory)}, this machine has "
            f"{size_text(machine)}. Lower workers.preprocessors.max or workers.encoders.max"
        )
    stores = {"s3": config.storage.s3, "gs": config.storage.gs, "az": config.storage.az}
    scheme = config.output.path.partition(":")[0]
    if stores.get(scheme, {}).get("conditional_put") == "disabled":
        yield (
            f"storage.{scheme}.conditional_put is disabled: the store may create an object over "
            "one that is there. Start only one run at a time on this output"
        )


def size_text(number: float) -> str:
    """Bytes for people: 12.3 MB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} seconds"
    if seconds < 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:,.1f} hours"

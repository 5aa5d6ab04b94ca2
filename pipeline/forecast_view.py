"""How `embedmill plan` shows its forecast."""

from collections.abc import Iterator
from statistics import median

from pipeline.config import RunConfig
from pipeline.forecast import Forecast, Sampled
from pipeline.inspection_view import counts, histogram
from pipeline.memory import store_bytes, worker_bytes
from pipeline.words import bytes_text, duration_text

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
        f"{bytes_text(found.input_bytes)} of shards"
    )
    yield (
        f"{about}{found.tokens:,} tokens, {found.passes:,} full forward passes of "
        f"{token_budget:,} tokens"
    )
    yield f"{about}{bytes_text(found.output_bytes)} of vectors"


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
    time = duration_text(found.images / rate)
    yield f"{who}, each on cores of its own: {rate:,.1f} images/s, {time}"


def memory_lines(config: RunConfig, machine: int | None) -> Iterator[str]:
    """Lines on what all workers may take at their most."""
    here = "" if machine is None else f"; this machine has {bytes_text(machine)}"
    workers = bytes_text(worker_bytes(config))
    yield f"up to {workers} for all workers: 1 GiB a Preprocessor, 4 GiB an Encoder"
    yield f"and {bytes_text(store_bytes(config))} of packs in the object store{here}"


def warnings(
    sampled: Sampled,
    config: RunConfig,
    *,
    encoder: float | None,
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
    memory = worker_bytes(config) + store_bytes(config)
    if machine is not None and memory > machine:
        yield (
            f"all workers together may take {bytes_text(memory)}, this machine has "
            f"{bytes_text(machine)}. Lower workers.preprocessors.max or workers.encoders.max"
        )
    stores = {"s3": config.storage.s3, "gs": config.storage.gs, "az": config.storage.az}
    scheme = config.output.path.partition(":")[0]
    if stores.get(scheme, {}).get("conditional_put") == "disabled":
        yield (
            f"storage.{scheme}.conditional_put is disabled: the store may create an object over "
            "one that is there. Start only one run at a time on this output"
        )

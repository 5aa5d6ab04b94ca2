"""What a run would take, from some of its images and a short trial. Reads only, needs no Ray."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from encoder.batch import PackedBatch
from pipeline.config import PreprocessConfig
from pipeline.errors import ShardError
from pipeline.image_header import probe
from pipeline.packing import make_pack
from pipeline.parallel import in_threads
from pipeline.records import PatchedImage, RawSample, Rejection
from pipeline.shards import stored_samples
from pipeline.stage import RunPlan, image_preparer, prepared
from pipeline.storage import Storage, canonical_url

_MOST_SHARDS = 8  # images are read from so many
_MOST_SIZES = 64  # shards whose size is asked for; the others are taken to be alike
_TRIAL_IMAGES = 8  # seconds on a CPU even for the largest tower


@dataclass(slots=True, kw_only=True)
class Sampled:
    """Images of some shards, prepared as in a run."""

    shards: int = 0
    whole_shards: int = 0  # of these, read to their end
    images: int = 0  # rejected ones counted too
    bytes: int = 0  # of the tars, as far as they were read
    seconds: float = 0.0  # of one core, to read and prepare them
    tokens: Counter[int] = field(default_factory=Counter)  # images by number of tokens
    formats: Counter[str] = field(default_factory=Counter)
    megapixels: list[float] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)  # members that are no sample
    warnings: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # shards that cannot be read
    trial: list[PatchedImage] = field(default_factory=list)

    @property
    def good(self) -> int:
        return self.tokens.total()

    @property
    def total_tokens(self) -> int:
        return sum(tokens * count for tokens, count in self.tokens.items())

    @property
    def images_per_s(self) -> float:
        """Of one core; 0 where no image was read."""
        return self.images / self.seconds if self.images else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is to do, exact where every shard was read whole."""

    exact: bool
    input_bytes: int
    images: int
    good: int  # those that get a row
    tokens: int
    passes: int  # forward passes of the token budget, were they all full
    output_bytes: int  # of vectors, before compression


def sample_images(pending: Sequence[str], plan: RunPlan, storage: Storage, count: int) -> Sampled:
    """About `count` images from the beginnings of a few shards that lie evenly among `pending`."""
    found = Sampled()
    shards = _evenly(pending, _MOST_SHARDS)
    each = -(-count // max(1, len(shards)))
    for url in shards:
        try:
            _sample_shard(url, plan, storage, each, found)
        except ShardError as error:
            found.failed[canonical_url(url)] = error.message
    return found


def forecast(
    pending: Sequence[str], sampled: Sampled, plan: RunPlan, storage: Storage
) -> Forecast | None:
    """The sum over all pending shards; None where nothing was sampled.

    Raises StorageError where a shard's size cannot be asked for.
    """
    if not sampled.images:
        return None
    exact = sampled.whole_shards == len(pending)
    asked = _evenly(pending, _MOST_SIZES)
    sizes = list(in_threads(lambda url: storage.info(url).size, asked, threads=8))
    input_bytes = round(sum(sizes) * len(pending) / len(asked))
    scale = 1.0 if exact else input_bytes / max(1, sampled.bytes)
    good, tokens = round(sampled.good * scale), round(sampled.total_tokens * scale)
    readout = plan.model.readout
    vectors = tokens if readout.vectors == "tokens" else good
    return Forecast(
        exact=exact,
        input_bytes=input_bytes,
        images=round(sampled.images * scale),
        good=good,
        tokens=tokens,
        passes=-(-tokens // plan.config.packing.token_budget),
        output_bytes=vectors * readout.width * (2 if readout.dtype == "float16" else 4),
    )


def try_encoder(encode: Callable[[PackedBatch], Any], images: Sequence[PatchedImage]) -> float:
    """Images per second that an encoder does, measured over the second of two passes."""
    batch = make_pack(images).batch
    encode(batch)
    start = time.perf_counter()
    encode(batch)
    return len(images) / (time.perf_counter() - start)


def _sample_shard(url: str, plan: RunPlan, storage: Storage, count: int, found: Sampled) -> None:
    prepare_image, settings = image_preparer(plan), plan.config.preprocess
    with storage.open(url) as stream:
        found.shards += 1
        samples = stored_samples(stream, plan.config.input, settings)
        start, whole = time.perf_counter(), True
        for taken, sample in enumerate(samples):
            if taken == count:
                whole = False
                break
            result = sample if isinstance(sample, Rejection) else prepared(sample, prepare_image)
            found.seconds += time.perf_counter() - start
            _add(found, sample, result, settings)
            start = time.perf_counter()
        found.whole_shards += whole
        found.bytes += stream.info.size if whole else stream.tell()
        found.skipped.update(samples.skipped)
        found.warnings.update(samples.warnings)


def _add(
    found: Sampled,
    sample: RawSample | Rejection,
    result: PatchedImage | Rejection,
    settings: PreprocessConfig,
) -> None:
    found.images += 1
    if isinstance(result, Rejection):
        found.rejected[result.reason.value] += 1
        return
    found.tokens[len(result.pixel_values)] += 1
    height, width = result.source_size
    found.megapixels.append(height * width / 1e6)
    if len(found.trial) < _TRIAL_IMAGES:
        found.trial.append(result)
    if isinstance(sample, RawSample):
        found.formats[probe(sample.image, settings).format] += 1


def _evenly(items: Sequence[str], most: int) -> Sequence[str]:
    """At most so many of the items, the first among them."""
    return items[:: -(-len(items) // most)] if items else items

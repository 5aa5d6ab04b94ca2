"""Whether one shard's output can be published in one act, estimated before any work starts."""

from pipeline.config import MAX_SHARD_OUTPUT_BYTES, RunConfig
from pipeline.errors import ConfigError, ShardError, StorageError
from pipeline.manifest import ModelFacts
from pipeline.records import RawSample
from pipeline.shards import stored_samples
from pipeline.storage import Storage, canonical_url

_SAMPLE_BYTES = 8 << 20  # the reader is up to 256 KiB ahead of the samples it has given
_MIN_SAMPLE_BYTES = 1024  # of a tar: a header and a block


def check_output_size(url: str, config: RunConfig, model: ModelFacts, storage: Storage) -> None:
    """None; raises ConfigError where the output of this shard would be too large.

    The number of images comes from the shard's size and its first samples, which are read only
    where so large a shard could be too much. What cannot be read here is left to the shard's lease.
    """
    tokens = model.geometry.max_num_patches if model.readout.vectors == "tokens" else 1
    value_bytes = 2 if model.readout.dtype == "float16" else 4
    row_bytes = tokens * model.readout.width * value_bytes
    try:
        if storage.info(url).size // _MIN_SAMPLE_BYTES * row_bytes <= MAX_SHARD_OUTPUT_BYTES:
            return
        images = _estimated_images(url, config, storage)
    except (ShardError, StorageError):
        return
    if images * row_bytes <= MAX_SHARD_OUTPUT_BYTES:
        return
    each = f"{tokens} tokens of " if tokens > 1 else ""
    raise ConfigError(
        f"the output of one shard must stay below {MAX_SHARD_OUTPUT_BYTES >> 30} GiB, the most "
        f"that object stores create in one act; {canonical_url(url)} has about {images:,.0f} "
        f"images, which make {images * row_bytes / 2**30:,.1f} GiB of {each}{model.readout.width} "
        f"{model.readout.dtype} values each. Use smaller shards, or set output.dtype: float16, "
        f"fewer output.layers, or output.vectors: mean or pooled"
    )


def _estimated_images(url: str, config: RunConfig, storage: Storage) -> float:
    with storage.open(url) as stream:
        samples = stored_samples(stream, config.input, config.preprocess)
        images = 0
        for item in samples:
            images += isinstance(item, RawSample)
            if stream.tell() >= _SAMPLE_BYTES:
                break
        return images * stream.info.size / max(1, stream.tell())

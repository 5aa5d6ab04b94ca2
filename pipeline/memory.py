"""What the workers of a run take, from its configuration; docs/operations.md says why."""

from pipeline.config import RunConfig

_PATCH_BYTES = 16 * 16 * 3
_PREPROCESSOR_BYTES = 1 << 30
_ENCODER_BYTES = 4 << 30


def store_bytes(config: RunConfig) -> int:
    """Bytes of packs that the pools at their largest may hold in the object store at once."""
    pack = config.packing.token_budget * _PATCH_BYTES
    streams = 2 * config.workers.preprocessors.max  # one running and one waiting on each
    # One more pack of each stream is with the Encoder, one is being written.
    return streams * (config.packing.packs_in_flight + 2) * pack


def worker_bytes(config: RunConfig) -> int:
    """Bytes of all processes at the largest pools, without the object store."""
    workers = config.workers
    preprocessors = workers.preprocessors.max * _PREPROCESSOR_BYTES
    return preprocessors + workers.encoders.max * _ENCODER_BYTES

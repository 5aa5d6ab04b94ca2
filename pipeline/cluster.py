"""The Ray that a run uses: the one it is told of, the job's own, or one started for it here."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from pipeline.config import RunConfig

log = logging.getLogger("embedmill")

_PATCH_BYTES = 16 * 16 * 3
_MIN_STORE_BYTES = 256 << 20


@contextmanager
def connect(config: RunConfig) -> Iterator[None]:
    """A connected Ray. One that was started here ends with the block; others are only left."""
    address = config.ray.address or ("auto" if os.environ.get("RAY_ADDRESS") else None)
    # Ray's own word on num_gpus=0 workers changes with releases; we set CUDA_VISIBLE_DEVICES.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        _start_local(config)
    else:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        log.info("using the Ray cluster at %s", address)
    try:
        yield
    finally:
        ray.shutdown()


def draining_nodes() -> set[str]:
    """Ids of the nodes that Ray was told will go away.

    Ray 2.60 has no public call for it; where this private one is missing there is no notice, and a
    node's loss is found when its actors die.
    """
    state = getattr(ray._private.state, "state", None)
    ask = getattr(state, "get_draining_nodes", None)
    return set() if ask is None else set(ask())


def _start_local(config: RunConfig) -> None:
    """Starts Ray with as many logical CPUs as the pools ask for.

    So a small machine never waits for itself; the kernel shares the real cores.
    """
    encoders, preprocessors = config.workers.encoders, config.workers.preprocessors
    cpus = encoders.max * encoders.num_cpus + preprocessors.max * preprocessors.num_cpus
    ray.init(
        address="local",
        num_cpus=max(1, round(cpus + 0.5)),
        object_store_memory=max(_MIN_STORE_BYTES, 2 * store_bytes(config)),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    log.info("started a local Ray with %s logical CPUs", max(1, round(cpus + 0.5)))


def store_bytes(config: RunConfig) -> int:
    """Bytes of packs that the pools at their largest may hold in the object store at once."""
    pack = config.packing.token_budget * _PATCH_BYTES
    streams = 2 * config.workers.preprocessors.max  # one running and one waiting on each
    # One more pack of each stream is with the Encoder, one is being written.
    return streams * (config.packing.packs_in_flight + 2) * pack

"""The Ray that a run uses: the one it is told of, the job's own, or one started for it here."""

import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.memory import store_bytes

log = logging.getLogger("embedmill")

_MIN_STORE_BYTES = 256 << 20
_SHARED_MEMORY = "/dev/shm"
_SETTINGS = "packing.token_budget, packing.packs_in_flight or workers.preprocessors.max"
_CONNECT_TIMEOUT_S = 10.0


@contextmanager
def connect(config: RunConfig) -> Iterator[None]:
    """A connected Ray. One that was started here ends with the block; others are only left."""
    address = config.ray.address or ("auto" if os.environ.get("RAY_ADDRESS") else None)
    # Ray's own word on num_gpus=0 workers changes with releases; we set CUDA_VISIBLE_DEVICES.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _own_sigterm():
        if address is None:
            _start_local(config)
        else:
            _join(address)
            log.info("using the Ray cluster at %s", ray.get_runtime_context().gcs_address)
            _check_stores(config, ray.nodes())
    try:
        yield
    finally:
        ray.shutdown()


def _join(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ConfigError(
            f"a Ray cluster must answer at ray.address {address}: {str(error).rstrip('.')}. Start "
            f"one, or leave the address out for a Ray of its own"
        ) from error


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keeps this process's answer to SIGTERM, which ray.init (2.60) replaces by its own.

    Ray's prints a C++ stack and exits; a stopped job is to end as after Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


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
        object_store_memory=_local_store_bytes(config, _free_shared_memory()),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    log.info("started a local Ray with %s logical CPUs", max(1, round(cpus + 0.5)))


def _free_shared_memory() -> int:
    """Bytes; macOS has no such folder, and there Ray uses /tmp without a loss."""
    found = os.path.isdir(_SHARED_MEMORY)
    return shutil.disk_usage(_SHARED_MEMORY).free if found else sys.maxsize


def _local_store_bytes(config: RunConfig, free: int) -> int:
    """Bytes for the object store of a Ray of our own, where `free` bytes of shared memory are."""
    need = store_bytes(config)
    size = max(_MIN_STORE_BYTES, 2 * need)
    if free < size:
        size = max(_MIN_STORE_BYTES, need)
    if free < size:
        # Above 10 GB Ray would refuse.
        os.environ.setdefault("RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE", "1")
        log.warning(
            "%s should hold the packs of this run, up to %d MB, and has %d MB free: packs go "
            "through /tmp instead, which is slow. Give the container more (docker run --shm-size, "
            "an emptyDir of medium Memory), or lower %s",
            *(_SHARED_MEMORY, size >> 20, free >> 20, _SETTINGS),
        )
    return size


def _check_stores(config: RunConfig, nodes: list[dict[str, Any]]) -> None:
    """Warns where the Preprocessors that a node can take would fill its object store.

    What does not fit is spilled to disk: slower, not wrong.
    """
    pool = config.workers.preprocessors
    each = store_bytes(config) // pool.max
    for node in nodes:
        resources = node["Resources"]
        here = min(pool.max, int(resources.get("CPU", 0) / pool.num_cpus))
        room = int(resources.get("object_store_memory", 0))
        if node["Alive"] and here * each > room:
            log.warning(
                "node %s: the object store should hold the packs of %d Preprocessors, up to %d MB, "
                "and has %d MB: Ray will spill to disk. Start the node with a larger "
                "--object-store-memory, or lower %s",
                *(node["NodeID"][:8], here, here * each >> 20, room >> 20, _SETTINGS),
            )


def check_address(config: RunConfig) -> None:
    """None; raises ConfigError where nothing listens at ray.address.

    Asked before anything is written: Ray 2.60 itself goes on trying for ten minutes.
    """
    address = config.ray.address or os.environ.get("RAY_ADDRESS") or ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # auto, local: Ray looks on this machine
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"a Ray cluster must answer at ray.address {address}: {error}. Is it the head's "
            f"host:6379, and can this machine reach it? Leave the address out for a Ray of its own"
        ) from error

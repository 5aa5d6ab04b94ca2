"""What may be removed from an output folder: leftovers of killed runs, and shards to do again."""

import os
import re
import shutil
import time
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, StorageError
from pipeline.footer import read_footer
from pipeline.manifest import EMBEDDINGS, FAILED, REJECTS, embeddings_url, failed_url, output_name
from pipeline.parallel import in_threads
from pipeline.records import RejectReason
from pipeline.specs import name_shards
from pipeline.spool import dead_spools
from pipeline.storage import Storage, canonical_url, is_temporary
from pipeline.urls import locate

# A temporary file that was touched since may belong to a run that works now.
SETTLED_S = 600.0
_THREADS = 16  # each waits for a footer
_REJECTS_NAME = re.compile(
    r"/(?P<name>[^/]+-(?P<number>[0-9a-f]{16}))\.(?P<attempt>[0-9a-f]{32})\.parquet$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    url: str
    why: str
    spool: bool = False  # a folder of this machine, no object


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectsObject:
    """A rejects object by what its name says."""

    url: str
    name: str  # of the shard's output
    number: int  # of the shard, see `manifest.shard_number`
    attempt: str


def removals(
    storage: Storage, output: str, *, specs: Collection[str], reasons: Collection[str]
) -> Iterator[Removal]:
    """What `embedmill clean` removes: leftovers, or all of the shards that specs or reasons name.

    With both, the named shards that rejected something for such a reason. Each must be removed
    before the next is asked for. Raises ConfigError for a reason or specification that is wrong.
    """
    if unknown := set(reasons) - set(RejectReason):
        known = ", ".join(RejectReason)
        raise ConfigError(f"no reject reason: {', '.join(sorted(unknown))}; known: {known}")
    if not specs and not reasons:
        yield from leftovers(storage, output)
        for folder in dead_spools():
            yield Removal(url=canonical_url(str(folder)), why="spool of a killed run", spool=True)
        return
    shards = name_shards(specs, storage)
    if reasons:
        having = list(with_reasons(storage, output, reasons))
        shards = sorted(set(shards) & set(having)) if specs else having
    yield from freed(storage, output, shards)


def remove(storage: Storage, removal: Removal) -> None:
    """None; it is gone, or was not there."""
    if removal.spool:
        shutil.rmtree(locate(removal.url).key, ignore_errors=True)
    else:
        storage.delete(removal.url)


def remove_stale_rejects(storage: Storage, output: str, lost: Collection[str]) -> int:
    """How many rejects objects were removed; for the end of a run, see `stale_rejects`."""
    count = 0
    for removal in stale_rejects(storage, output, lost=lost):
        storage.delete(removal.url)
        count += 1
    return count


def leftovers(storage: Storage, output: str) -> Iterator[Removal]:
    """What killed runs left behind; nothing that a reader or a running attempt needs.

    Half-written local files, rejects of attempts that lost, failure records of shards that have
    their embeddings.
    """
    for info in storage.list(output):
        name = info.url.rpartition("/")[2]
        if is_temporary(name) and _settled(info.url):
            yield Removal(url=info.url, why="half-written by a killed run")
    yield from stale_rejects(storage, output)
    for info in storage.list(f"{output}/{FAILED}"):
        name = info.url.rpartition("/")[2].removesuffix(".json")
        if _exists(storage, f"{output}/{EMBEDDINGS}/{name}.parquet"):
            yield Removal(url=info.url, why="failure of a shard that succeeded later")


def stale_rejects(
    storage: Storage, output: str, *, lost: Collection[str] | None = None
) -> Iterator[Removal]:
    """Rejects whose attempt is not the committed one, where a committed one exists.

    With `lost`, attempts that are known to have failed, only these are looked at and the shards
    with rejects of several attempts: the end of a run need not read the footer of every shard.
    """
    found = list_rejects(storage, output)
    if lost is not None:
        several = _several_attempts(storage, output)
        found = (r for r in found if r.attempt in lost or r.number in several)
    for rejects, footer in in_threads(
        partial(_with_footer, storage, output), found, threads=_THREADS
    ):
        if footer is not None and footer["attempt"] != rejects.attempt:
            yield Removal(url=rejects.url, why="rejects of an attempt that was not published")


def with_reasons(storage: Storage, output: str, reasons: Collection[str]) -> Iterator[str]:
    """The canonical ids of published shards that rejected something for one of these reasons."""
    found = list_rejects(storage, output)
    for rejects, footer in in_threads(
        partial(_with_footer, storage, output), found, threads=_THREADS
    ):
        if footer is None or footer["attempt"] != rejects.attempt:
            continue
        if not footer["rejected"].keys().isdisjoint(reasons):
            yield footer["shard"]


def freed(storage: Storage, output: str, shards: Collection[str]) -> Iterator[Removal]:
    """All that the output holds of these shards, in the order in which it must be removed.

    Embeddings first: a shard without them is done again whatever becomes of the rest.
    """
    names = {output_name(shard) for shard in shards}
    for shard in shards:
        if _exists(storage, url := embeddings_url(output, shard)):
            yield Removal(url=url, why="embeddings, to be done again")
    for rejects in list_rejects(storage, output):
        if rejects.name in names:
            yield Removal(url=rejects.url, why="rejects, to be done again")
    for shard in shards:
        if _exists(storage, url := failed_url(output, shard)):
            yield Removal(url=url, why="failure, to be tried again")


def list_rejects(storage: Storage, output: str) -> Iterator[RejectsObject]:
    for info in storage.list(f"{output}/{REJECTS}"):
        if found := _REJECTS_NAME.search(info.url):
            yield RejectsObject(
                url=info.url,
                name=found["name"],
                number=int(found["number"], 16),
                attempt=found["attempt"],
            )


def _several_attempts(storage: Storage, output: str) -> set[int]:
    """The shards with more than one rejects object; 8 bytes of memory for each object."""
    numbers = array("Q", (rejects.number for rejects in list_rejects(storage, output)))
    values, counts = np.unique(np.frombuffer(numbers, dtype=np.uint64), return_counts=True)
    return {int(value) for value in values[counts > 1]}


def _with_footer(
    storage: Storage, output: str, rejects: RejectsObject
) -> tuple[RejectsObject, dict[str, Any] | None]:
    try:
        return rejects, read_footer(storage, f"{output}/{EMBEDDINGS}/{rejects.name}.parquet")
    except StorageError as error:
        if error.kind != "not_found":
            raise
        return rejects, None


def _exists(storage: Storage, url: str) -> bool:
    try:
        storage.info(url)
    except StorageError as error:
        if error.kind != "not_found":
            raise
        return False
    return True


def _settled(url: str) -> bool:
    try:
        return time.time() - os.stat(locate(url).key).st_mtime > SETTLED_S
    except FileNotFoundError:
        return False

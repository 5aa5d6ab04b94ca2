"""What the footers of an output say of its run: counts, times, and the worst shards."""

import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from pipeline.errors import OutputError, StorageError
from pipeline.footer import read_footer
from pipeline.manifest import EMBEDDINGS, is_in_sorted, named_number
from pipeline.parallel import in_threads
from pipeline.quarantine import FailedShard, failed_urls, read_failure
from pipeline.report_worst import ShardLine, Worst
from pipeline.run_record import RunRecord
from pipeline.storage import ObjectInfo, Storage, is_temporary

_THREADS = 16  # each waits for a footer
SAMPLED_SHARDS = 64  # whose rows are looked at
_SHARDS_FOR_REASON = 4  # whose rejects are looked at for examples
_LISTED = 8  # of what cannot be read
_FAILURES = 20
# Later versions added the other fields of a footer.
_NEEDED = {"shard", "attempt", "size", "complete", "read", "embedded", "rejected"}


@dataclass(slots=True, kw_only=True)
class Facts:
    """Sums over all footers; 40 bytes for each shard beside them."""

    output: str
    record: RunRecord
    output_bytes: int = 0  # of the embeddings
    shards: int = 0
    empty_shards: int = 0
    read: int = 0
    embedded: int = 0
    input_bytes: int = 0
    tokens: int = 0
    room: float = 0.0  # passes times token budget
    passed_tokens: int = 0  # of the shards whose footers tell that
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    encoders: Counter[str] = field(default_factory=Counter)  # shards by how they were encoded
    versions: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    incomplete_shards: int = 0
    unreadable_shards: int = 0
    unreadable: list[str] = field(default_factory=list)  # what the first ones said
    numbers: "array[int]" = field(default_factory=lambda: array("Q"))  # see manifest.shard_number
    started: "array[float]" = field(default_factory=lambda: array("d"))  # of shards that tell
    finished: "array[float]" = field(default_factory=lambda: array("d"))
    images: "array[float]" = field(default_factory=lambda: array("d"))
    fills: "array[float]" = field(default_factory=lambda: array("d"))
    sampled: list[str] = field(default_factory=list)  # URLs of some with rows, at random
    with_rows: int = 0  # shards
    having: defaultdict[str, list[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # by reason, some shards and attempts with such rejects
    most_rejected: Worst = field(default_factory=Worst)
    slowest: Worst = field(default_factory=Worst)
    emptiest: Worst = field(default_factory=Worst)
    incomplete: Worst = field(default_factory=Worst)
    failed_shards: int = 0
    failed: list[FailedShard] = field(default_factory=list)  # the first ones

    @property
    def fill(self) -> float | None:
        """Share of the passes' token budget that held tokens."""
        return self.passed_tokens / self.room if self.room else None


def gather_facts(storage: Storage, output: str, record: RunRecord) -> Facts:
    """What the footers say; no row is read. Raises StorageError where the folder cannot be listed.

    Objects without a readable footer are counted, and are the business of `embedmill verify`.
    """
    facts = Facts(output=output, record=record)
    lots = random.Random(0)  # the same report from the same output
    read = partial(_footer, storage)
    for info, footer in in_threads(read, _embeddings(storage, output), threads=_THREADS):
        facts.numbers.append(named_number(info.url) or 0)
        facts.output_bytes += info.size
        if isinstance(footer, str):
            facts.unreadable_shards += 1
            if len(facts.unreadable) < _LISTED:
                facts.unreadable.append(footer)
        else:
            _add(facts, footer)
            if footer["embedded"]:
                _draw(facts, info.url, lots)
    _add_failures(facts, storage)
    return facts


def _embeddings(storage: Storage, output: str) -> Iterator[ObjectInfo]:
    for info in storage.list(f"{output}/{EMBEDDINGS}"):
        if info.url.endswith(".parquet") and not is_temporary(info.url.rpartition("/")[2]):
            yield info


def _footer(storage: Storage, info: ObjectInfo) -> tuple[ObjectInfo, dict[str, Any] | str]:
    try:
        footer = read_footer(storage, info.url)
    except (OutputError, StorageError) as error:
        return info, str(error)
    if missing := _NEEDED - footer.keys():
        return info, f"{info.url}: its footer lacks {', '.join(sorted(missing))}"
    return info, footer


def _add_failures(facts: Facts, storage: Storage) -> None:
    """The shards that were given up, without those that have their output by now."""
    urls = np.array(sorted(failed_urls(storage, facts.output)), dtype=object)
    numbers = np.array([named_number(url) or 0 for url in urls], dtype=np.uint64)
    done = np.sort(np.frombuffer(facts.numbers, dtype=np.uint64))
    given_up = urls[~is_in_sorted(numbers, done)].tolist()
    facts.failed_shards = len(given_up)
    for url in given_up[:_FAILURES]:
        try:
            if (failure := read_failure(storage, url)) is not None:
                facts.failed.append(failure)
        except OutputError as error:
            facts.unreadable.append(str(error))


def _add(facts: Facts, footer: Mapping[str, Any]) -> None:
    rejected = sum(footer["rejected"].values())
    facts.shards += 1
    facts.empty_shards += not footer["embedded"]
    facts.read += footer["read"]
    facts.embedded += footer["embedded"]
    facts.input_bytes += footer["size"] or 0
    facts.tokens += footer.get("tokens", 0)
    facts.rejected.update(footer["rejected"])
    facts.skipped.update(footer.get("skipped", {}))
    facts.warnings.update(footer.get("warnings", {}))
    for phase, seconds in footer.get("seconds", {}).items():
        facts.seconds[phase] += seconds
    facts.encoders[footer.get("encoder", "")] += 1
    for name, version in footer.get("versions", {}).items():
        facts.versions[name][version] += 1
    for reason in footer["rejected"]:
        if len(facts.having[reason]) < _SHARDS_FOR_REASON:
            facts.having[reason].append((footer["shard"], footer["attempt"]))
    fill = _add_fill(facts, footer)
    seconds = _add_times(facts, footer)
    line = ShardLine(
        shard=footer["shard"],
        read=footer["read"],
        rejected=rejected,
        seconds=seconds,
        fill=fill,
        complete=footer["complete"],
    )
    _rank(facts, line)


def _add_fill(facts: Facts, footer: Mapping[str, Any]) -> float | None:
    room = footer.get("passes", 0) * footer.get("token_budget", 0)
    if not room:
        return None
    facts.room += room
    facts.passed_tokens += footer["tokens"]
    facts.fills.append(footer["tokens"] / room)
    return facts.fills[-1]


def _add_times(facts: Facts, footer: Mapping[str, Any]) -> float:
    if "started" not in footer or "finished" not in footer:
        return 0.0
    start, end = (datetime.fromisoformat(footer[k]).timestamp() for k in ("started", "finished"))
    facts.started.append(start)
    facts.finished.append(end)
    facts.images.append(footer["read"])
    return end - start


def _rank(facts: Facts, line: ShardLine) -> None:
    if line.rejected:
        facts.most_rejected.offer(line.reject_share, line)
    if line.rate:
        facts.slowest.offer(-line.rate, line)
    if line.fill is not None:
        facts.emptiest.offer(-line.fill, line)
    if not line.complete:
        facts.incomplete_shards += 1
        facts.incomplete.offer(line.reject_share, line)


def _draw(facts: Facts, url: str, lots: random.Random) -> None:
    """Vitter's algorithm R: each shard with rows has the same chance."""
    facts.with_rows += 1
    if len(facts.sampled) < SAMPLED_SHARDS:
        facts.sampled.append(url)
    elif (place := lots.randrange(facts.with_rows)) < SAMPLED_SHARDS:
        facts.sampled[place] = url

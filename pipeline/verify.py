"""Whether an output folder is what its run promised: every object, every count, every vector."""

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.clean import list_rejects
from pipeline.config import InputConfig, RunConfig
from pipeline.errors import ConfigError, StorageError
from pipeline.manifest import (
    EMBEDDINGS,
    RUN_FILE,
    Fingerprint,
    is_in_sorted,
    named_number,
    shard_number,
)
from pipeline.parallel import in_threads
from pipeline.quarantine import read_failures
from pipeline.run_record import RunRecord
from pipeline.specs import list_shards
from pipeline.storage import Storage, canonical_url, is_temporary
from pipeline.verify_shard import Finding, ShardFacts, check_shard

_THREADS = 8
_KEPT = 100  # findings of each check that are kept; all are counted
_LOW_64 = (1 << 64) - 1

CHECKS = {
    "run": "_run.json and its fingerprint agree",
    "readable": "every output opens and decodes",
    "schema": "columns are those of the configuration",
    "footer": "footers are of this run and name their shard",
    "counts": "read = embedded + rejected, each sample once",
    "rows": "rows are of one shard and in tar order",
    "duplicates": "(shard, key) is unique",
    "vectors": "vectors are finite, and unit vectors where asked",
    "rejects": "rejects are those of the published attempts",
    "missing": "every input shard has its output",
    "surplus": "every output has its input shard",
    "failed": "no shard was given up",
    "foreign": "embeddings/ holds nothing else",
    "sample": "vectors computed again are the same",
}


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found. `checked` has the checks that were made."""

    output: str
    fingerprint: str
    checked: list[str]
    shards: int = 0
    rows: int = 0
    read: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    empty_shards: int = 0  # nothing in them could be embedded: a good output all the same
    incomplete_shards: int = 0  # truncated tars that on_truncated: keep let through
    inputs: int | None = None
    sampled: int = 0
    worst: float = 0.0  # difference of a sampled vector, over its largest value
    counts: Counter[str] = field(default_factory=Counter)  # findings of each check
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.counts

    def add(self, finding: Finding) -> None:
        self.counts[finding.check] += 1
        if self.counts[finding.check] <= _KEPT:
            self.findings.append(finding)


def verify_output(
    storage: Storage,
    output: str,
    record: RunRecord,
    inputs: Sequence[str] | None,
    *,
    sample: int = 0,
) -> tuple[Report, dict[str, list[int]]]:
    """What was found, and `sample` random rows: row numbers by the URL of their object.

    `inputs` are the shards that must be there, None: they are not compared. Memory is 24 bytes for
    each shard beside them. Raises StorageError where a folder cannot be listed.
    """
    report = Report(output=output, fingerprint=record.fingerprint, checked=list(CHECKS)[:-1])
    if inputs is None:
        report.checked = [name for name in report.checked if name not in ("missing", "surplus")]
    _check_run(record, report)
    numbers = _input_numbers(inputs or [])
    wanted = np.sort(numbers)
    there, readable, attempts = array("Q"), array("Q"), array("Q")
    picker = _Picker(sample)
    check = partial(check_shard, storage, output, record)
    for facts in in_threads(check, _embeddings(storage, output, report), threads=_THREADS):
        number = named_number(facts.url) or 0
        there.append(number)
        if facts.attempt:
            readable.append(number)
            attempts.append(_attempt_number(number, facts.attempt))
        if inputs is not None and not _is_in(number, wanted):
            subject = facts.shard or facts.url
            report.add(Finding(check="surplus", subject=subject, detail="it is no input shard"))
        _count(facts, report)
        if not any(finding.check in ("readable", "schema") for finding in facts.findings):
            picker.offer(facts)
    done = _sorted(there)
    _check_rejects(storage, output, _sorted(readable), _sorted(attempts), report)
    _check_failures(storage, output, done, report)
    if inputs is not None:
        report.inputs = len(inputs)
        for place in np.flatnonzero(~is_in_sorted(numbers, done)).tolist():
            subject = canonical_url(inputs[place])
            report.add(Finding(check="missing", subject=subject, detail="it has no output"))
    return report, picker.picked()


def input_shards(
    storage: Storage, record: RunRecord, *, specs: list[str] | None, config: RunConfig | None
) -> tuple[list[str] | None, str]:
    """The shards that must be there; None where the record's are not to be found, and why.

    They are those of the specifications, else of the configuration, else of the record. Raises
    ConfigError and StorageError where what was given cannot be listed.
    """
    if specs:
        return list_shards(InputConfig(shards=specs), storage), ""
    if config:
        return list_shards(config.input, storage), ""
    try:
        return list_shards(record.config.input, storage), ""
    except (ConfigError, StorageError) as error:
        return None, str(error)


class _Picker:
    """Draws rows of all shards, each with the same chance, without keeping more than it draws."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._random = np.random.default_rng()
        self._lots: list[tuple[float, str, int]] = []  # a heap: the largest negated lot first

    def offer(self, facts: ShardFacts) -> None:
        if not self._count:
            return
        lots = self._random.random(facts.rows)
        limit = -self._lots[0][0] if len(self._lots) == self._count else 1.0
        for row in np.flatnonzero(lots < limit).tolist():
            item = (-float(lots[row]), facts.url, row)
            if len(self._lots) < self._count:
                heapq.heappush(self._lots, item)
            else:
                heapq.heappushpop(self._lots, item)

    def picked(self) -> dict[str, list[int]]:
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for _, url, row in sorted(self._lots, key=lambda lot: lot[1:]):
            rows[url].append(row)
        return dict(rows)


def _check_run(record: RunRecord, report: Report) -> None:
    sha = Fingerprint(fields=record.fields).sha
    if sha != record.fingerprint:
        detail = f"its fields have fingerprint {sha[:16]}, it says {record.fingerprint[:16]}"
        subject = f"{report.output}/{RUN_FILE}"
        report.add(Finding(check="run", subject=subject, detail=detail))


def _input_numbers(inputs: Sequence[str]) -> NDArray[np.uint64]:
    return np.fromiter((shard_number(canonical_url(url)) for url in inputs), np.uint64)


def _sorted(numbers: "array[int]") -> NDArray[np.uint64]:
    return np.sort(np.frombuffer(numbers, dtype=np.uint64))


def _is_in(number: int, order: NDArray[np.uint64]) -> bool:
    return bool(is_in_sorted(np.array([number], dtype=np.uint64), order)[0])


def _attempt_number(number: int, attempt: str) -> int:
    return number ^ (int(attempt, 16) & _LOW_64)


def _embeddings(storage: Storage, output: str, report: Report) -> Iterator[str]:
    """The URLs of the outputs; what else is there is told."""
    temporary = 0
    for info in storage.list(f"{output}/{EMBEDDINGS}"):
        parent, _, name = info.url.rpartition("/")
        if is_temporary(name):
            temporary += 1
        elif (
            info.url.endswith(".parquet")
            and named_number(info.url) is not None
            and (parent == f"{output}/{EMBEDDINGS}")
        ):
            yield info.url
        else:
            detail = "readers of the folder may take it for an output"
            report.add(Finding(check="foreign", subject=info.url, detail=detail))
    if temporary:
        report.notes.append(f"{temporary} half-written files; embedmill clean removes old ones")


def _count(facts: ShardFacts, report: Report) -> None:
    for finding in facts.findings:
        report.add(finding)
    report.shards += 1
    report.rows += facts.rows
    report.read += facts.read
    report.rejected.update(facts.rejected)
    report.empty_shards += not facts.rows
    report.incomplete_shards += not facts.complete


def _check_rejects(
    storage: Storage,
    output: str,
    readable: NDArray[np.uint64],
    published: NDArray[np.uint64],
    report: Report,
) -> None:
    """Rejects of other attempts; where the published one is not known, they are only counted."""
    unpublished = 0
    for rejects in list_rejects(storage, output):
        if _is_in(_attempt_number(rejects.number, rejects.attempt), published):
            continue
        if _is_in(rejects.number, readable):
            detail = "its attempt was not published; embedmill clean removes it"
            report.add(Finding(check="rejects", subject=rejects.url, detail=detail))
        else:
            unpublished += 1
    if unpublished:
        report.notes.append(f"{unpublished} rejects objects of shards without a readable output")


def _check_failures(
    storage: Storage, output: str, done: NDArray[np.uint64], report: Report
) -> None:
    overcome = 0
    for failure in read_failures(storage, output):
        if _is_in(shard_number(failure.shard), done):
            overcome += 1
            continue
        detail = f"given up at {failure.at} after {failure.attempts} attempts: {failure.message}"
        report.add(Finding(check="failed", subject=failure.shard, detail=detail))
    if overcome:
        report.notes.append(f"{overcome} failures of shards that have their output; see clean")

"""Rows of an output computed again from their images, and compared."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from encoder.infer import Encoder
from pipeline.errors import SampleError, ShardError, StorageError
from pipeline.manifest import Fingerprint, named_number, shard_number
from pipeline.packing import make_pack
from pipeline.records import RawSample, Rejection
from pipeline.resize import resolve_kernel
from pipeline.run_encoder import device_here, load_run_encoder
from pipeline.run_record import RunRecord
from pipeline.shards import stored_samples
from pipeline.stage import Prepare, RunPlan, image_preparer
from pipeline.storage import Storage, canonical_url
from pipeline.verify import Report
from pipeline.verify_shard import Finding, open_parquet, vectors_of

# Largest difference over largest value. In float32 devices and kernels differ by less than 1e-5; in
# bfloat16 vectors of a seeded 12-layer tower are up to 1.1e-2 off. Float16 rounds by 2^-11 of it.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2}
_FLOAT16_ROUNDING = 1e-3
_GONE = "the shard has no such sample now"


Computed = NDArray[np.floating] | str  # values, or why there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row. `difference` is over the largest stored value, None where nothing was computed."""

    shard: str
    key: str
    difference: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    shard: str
    index: int
    key: str
    values: NDArray[np.float32]


def compare_sample(
    storage: Storage,
    output: str,
    record: RunRecord,
    picked: Mapping[str, Sequence[int]],
    inputs: Sequence[str],
    report: Report,
) -> None:
    """None; the picked rows, row numbers by the URL of their object, enter the report.

    A shard is read where the inputs say, which may be a signed URL, else at its id. Raises
    CheckpointError where the run's checkpoint is not there or another, ConfigError where this
    machine does not have the run's resize kernel.
    """
    report.checked.append("sample")
    sources = _sources(picked, inputs)
    for row in compare_rows(storage, output, record, picked, sources):
        report.sampled += 1
        report.worst = max(report.worst, row.difference or 0.0)
        if row.problem:
            detail = f"{row.key!r}: {row.problem}"
            report.add(Finding(check="sample", subject=row.shard, detail=detail))


def compare_rows(
    storage: Storage,
    output: str,
    record: RunRecord,
    picked: Mapping[str, Sequence[int]],
    sources: Mapping[str, str],
) -> Iterator[Compared]:
    """Yields what became of each picked row; `sources` are URLs to read shards at, by their id."""
    plan = RunPlan(
        config=record.config,
        output=output,
        model=record.model,
        fingerprint=Fingerprint(fields=record.fields),
        kernel=resolve_kernel(record.kernel),
    )
    device = device_here(record.config)
    encoder = load_run_encoder(record.config, record.model, storage, device=device)
    tolerance = _TOLERANCE[record.config.model_dtype]
    if record.model.readout.dtype == "float16":
        tolerance += _FLOAT16_ROUNDING
    for url, rows in picked.items():
        stored = _read_rows(storage, url, rows, record.model.readout.vectors)
        source = sources.get(stored[0].shard, stored[0].shard)
        again: dict[int, Computed] = dict.fromkeys((row.index for row in stored), _GONE)
        try:
            again.update(_compute(storage, source, plan, encoder, stored))
        except (ShardError, StorageError) as error:
            again.update((row.index, str(error)) for row in stored)
        for row in stored:
            yield _compare(row, again[row.index], tolerance)


def _sources(picked: Iterable[str], inputs: Iterable[str]) -> dict[str, str]:
    numbers = {named_number(url) for url in picked}
    shards = ((canonical_url(url), url) for url in inputs)
    return {shard: url for shard, url in shards if shard_number(shard) in numbers}


def _read_rows(storage: Storage, url: str, rows: Sequence[int], kind: str) -> list[_Stored]:
    """The rows with these numbers; in memory is one row group at a time."""
    columns = ["key", "shard", "index", "tokens" if kind == "tokens" else "embedding"]
    found: list[_Stored] = []
    with open_parquet(storage, url) as file:
        start = 0
        for number in range(file.metadata.num_row_groups):
            end = start + file.metadata.row_group(number).num_rows
            chosen = [row - start for row in rows if start <= row < end]
            if chosen:
                group = file.read_row_group(number, columns=columns)
                found += [_stored(group.slice(row, 1), kind) for row in chosen]
            start = end
    return found


def _stored(row: pa.Table, kind: str) -> _Stored:
    return _Stored(
        shard=row.column("shard")[0].as_py(),
        index=row.column("index")[0].as_py(),
        key=row.column("key")[0].as_py(),
        values=vectors_of(row, kind).astype(np.float32),
    )


def _compute(
    storage: Storage, source: str, plan: RunPlan, encoder: Encoder, stored: Sequence[_Stored]
) -> Iterator[tuple[int, Computed]]:
    """Yields index and values of the stored samples, or why there are none. Other images rest."""
    wanted = {row.index: row.key for row in stored}
    prepare = image_preparer(plan)
    with storage.open(source) as stream:
        samples = stored_samples(stream, plan.config.input, plan.config.preprocess)
        for sample in samples:
            if sample.index not in wanted:
                continue
            key = wanted.pop(sample.index)
            if sample.id.key != key:
                yield sample.index, f"the shard has {sample.id.key!r} in its place now"
            elif isinstance(sample, Rejection):
                yield sample.index, f"it is rejected now: {sample.reason}: {sample.detail}"
            else:
                yield sample.index, _encode(sample, prepare, encoder)
            if not wanted:
                return


def _encode(sample: RawSample, prepare: Prepare, encoder: Encoder) -> Computed:
    try:
        return encoder(make_pack([prepare(sample)]).batch)
    except SampleError as error:
        return f"it is rejected now: {error}"


def _compare(row: _Stored, again: Computed, tolerance: float) -> Compared:
    if isinstance(again, str):
        return Compared(shard=row.shard, key=row.key, difference=None, problem=again)
    if again.shape != row.values.shape:
        problem = f"{again.shape} values are computed now, {row.values.shape} are stored"
        return Compared(shard=row.shard, key=row.key, difference=None, problem=problem)
    scale = float(np.abs(row.values).max()) or 1.0
    difference = float(np.abs(again.astype(np.float32) - row.values).max()) / scale
    problem = ""
    if not difference <= tolerance:
        problem = f"off by {difference:.2g} of its largest value, at most {tolerance:g} may be"
    return Compared(shard=row.shard, key=row.key, difference=difference, problem=problem)

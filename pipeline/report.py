"""A report on an output: what was run, how it went, and what came out, gathered for one page."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.manifest import pending_shards
from pipeline.records import RejectReason
from pipeline.report_facts import Facts, gather_facts
from pipeline.report_health import Health, measure_health
from pipeline.report_pictures import Picture, Target, read_pictures
from pipeline.report_sample import RejectLine, Sample, read_examples, read_sample
from pipeline.report_times import Timeline, make_timeline
from pipeline.run_record import RunRecord
from pipeline.storage import Storage, canonical_url

log = logging.getLogger("embedmill")

_GROUPS = 6  # of near-duplicates, with this many pictures each
_OF_A_GROUP = 6
# Rejects whose image may be decoded, in part perhaps. Others have none, or one that may crash.
_SHOWABLE = {
    RejectReason.TRUNCATED_IMAGE,
    RejectReason.DECODE_ERROR,
    RejectReason.SEVERAL_IMAGES,
    RejectReason.DUPLICATE_KEY,
    RejectReason.MISSING_METADATA,
    RejectReason.NON_FINITE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One sample with its picture, or the reason why there is none."""

    key: str
    shard: str
    picture: Picture
    cosine: float | None = None  # to the image whose neighbour it is
    detail: str = ""  # of a reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    facts: Facts
    inputs: int | None  # shards, None where they are not known
    inputs_problem: str
    missing: int  # input shards without output, those that were given up among them
    timeline: Timeline | None
    sample: Sample
    health: Health | None
    rejects: dict[str, list[Tile]]  # by reason
    doubles: list[tuple[int, list[Tile]]]  # groups of near-duplicates: how many, and some of them
    neighbours: list[tuple[Tile, list[Tile]]]
    unseen: list[str]  # why rows have no picture, a text for each

    @property
    def surplus(self) -> int:
        """Outputs of shards that are not in the input."""
        found = self.facts.shards + self.facts.unreadable_shards
        return 0 if self.inputs is None else found - (self.inputs - self.missing)


def make_report(
    storage: Storage,
    output: str,
    record: RunRecord,
    inputs: Sequence[str] | None,
    inputs_problem: str = "",
    *,
    patience_s: float = 60.0,
) -> Report:
    """The report on an output folder. `inputs` are the run's shards, None: they are not compared.

    In memory are at most 8,192 rows, a few row groups, and some 100 bytes for each shard. Pictures
    are looked for during `patience_s`. Raises StorageError where the folder cannot be listed.
    """
    facts = gather_facts(storage, output, record)
    log.info("%d outputs read; looking at some of their rows", facts.shards)
    readout = record.model.readout
    urls = sorted(facts.sampled)
    sample = read_sample(storage, urls, readout.vectors, readout.width)
    health = measure_health(sample.vectors)
    examples = read_examples(storage, output, facts.having)
    rows = _rows(health)
    targets = [_row_target(sample, row) for row in rows] + [
        _reject_target(line) for lines in examples.values() for line in lines if _may_show(line)
    ]
    log.info("looking for %d pictures in the input", len(targets))
    sources = _sources(targets, inputs or [])
    pictures = read_pictures(storage, targets, sources, record.config, patience_s=patience_s)
    tiles = {row: _row_tile(sample, row, pictures) for row in rows}
    return Report(
        facts=facts,
        inputs=None if inputs is None else len(inputs),
        inputs_problem=inputs_problem,
        missing=0 if inputs is None else len(pending_shards(facts.numbers, inputs)),
        timeline=make_timeline(facts.started, facts.finished, facts.images),
        sample=sample,
        health=health,
        rejects={
            reason: [_reject_tile(line, pictures) for line in examples.get(reason, [])]
            for reason, _ in facts.rejected.most_common()
        },
        doubles=[
            (len(group), [tiles[row] for row in group[:_OF_A_GROUP]])
            for group in (health.groups if health else [])[:_GROUPS]
        ],
        neighbours=[
            (tiles[row], [replace(tiles[other], cosine=cosine) for other, cosine in near])
            for row, near in (health.neighbours if health else {}).items()
        ],
        unseen=[tile.picture.problem for tile in tiles.values() if tile.picture.problem],
    )


def _rows(health: Health | None) -> list[int]:
    """The sampled rows whose pictures are wanted."""
    if health is None:
        return []
    doubles = {row for group in health.groups[:_GROUPS] for row in group[:_OF_A_GROUP]}
    near = {row for found in health.neighbours.values() for row, _ in found}
    return sorted(doubles | near | health.neighbours.keys())


def _sources(targets: Sequence[Target], inputs: Sequence[str]) -> dict[str, str]:
    """Where to read shards, by their ids: a signed URL is known from the input only."""
    wanted = {target.shard for target in targets}
    return {shard: url for url in inputs if (shard := canonical_url(url)) in wanted}


def _may_show(line: RejectLine) -> bool:
    return bool(line.member) and line.reason in _SHOWABLE


def _row_target(sample: Sample, row: int) -> Target:
    return Target(shard=sample.shards[row], key=sample.keys[row])


def _reject_target(line: RejectLine) -> Target:
    return Target(shard=line.shard, key=line.key, member=line.member)


def _row_tile(sample: Sample, row: int, pictures: dict[Target, Picture]) -> Tile:
    target = _row_target(sample, row)
    return Tile(key=target.key, shard=target.shard, picture=pictures[target])


def _reject_tile(line: RejectLine, pictures: dict[Target, Picture]) -> Tile:
    picture = pictures.get(_reject_target(line), Picture(problem="no picture"))
    return Tile(key=line.member or line.key, shard=line.shard, picture=picture, detail=line.detail)

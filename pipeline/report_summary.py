"""What a report says in words and small tables: its state, its figures, what was run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from pipeline.config import RunConfig
from pipeline.report import Report
from pipeline.report_charts import Table
from pipeline.report_facts import Facts
from pipeline.report_worst import ShardLine
from pipeline.words import (
    bytes_text,
    clipped,
    count_text,
    counted,
    duration_text,
    share_text,
    shortened,
)

_LISTED = 20  # entries of a list in the configuration
_CONFIG_CHARS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far the run is, in words."""

    kind: Literal["good", "open", "bad"]
    label: str
    text: str


def state_of(report: Report) -> State:
    """What the head of the page says first."""
    facts, missing = report.facts, report.missing
    if not facts.shards and not facts.unreadable_shards:
        return State(kind="open", label="Nothing yet", text="No shard has its output yet.")
    if facts.unreadable_shards:
        text = f"{counted(facts.unreadable_shards, 'output')} cannot be read; see embedmill verify."
        return State(kind="bad", label="Damaged", text=text)
    to_do = missing - facts.failed_shards
    if to_do > 0:
        text = f"{count_text(to_do)} of {counted(report.inputs or 0, 'shard')} still to do."
        return State(kind="open", label="Not finished", text=text)
    if facts.failed_shards:
        text = f"{counted(facts.failed_shards, 'shard')} given up."
        return State(kind="bad", label="Finished with failed shards", text=text)
    if report.inputs is None:
        text = "Every output is whole; whether shards are missing is not known."
        return State(kind="good", label="Readable", text=text)
    return State(kind="good", label="Complete", text="Every input shard has its output.")


def key_figures(report: Report) -> list[tuple[str, str, str]]:
    """Name, value and a remark of the figures on top of the page."""
    facts, timeline = report.facts, report.timeline
    rejected = facts.rejected.total()
    known = report.inputs is not None and not report.surplus
    of_inputs = f"of {count_text(report.inputs or 0)}" if known else ""
    figures = [
        ("Shards done", count_text(facts.shards), of_inputs),
        ("Images read", count_text(facts.read), bytes_text(facts.input_bytes)),
        ("Embedded", count_text(facts.embedded), _share_of(facts.embedded, facts.read)),
        ("Rejected", count_text(rejected), _share_of(rejected, facts.read)),
        ("Tokens", count_text(facts.tokens), _per(facts.tokens, facts.embedded, "an image")),
    ]
    if timeline is not None:
        rate = facts.read / timeline.working_s if timeline.working_s else 0.0
        figures.append(("Images/s", f"{rate:,.1f}", f"in {duration_text(timeline.working_s)}"))
    if facts.fill is not None:
        figures.append(("Fill", share_text(facts.fill), "of the passes' token budget"))
    size = bytes_text(facts.output_bytes)
    figures.append(("Output", size, _per(facts.output_bytes, facts.embedded, "B a row")))
    return figures


def run_table(facts: Facts) -> list[tuple[str, str]]:
    """What was run, by name."""
    record, model = facts.record, facts.record.model
    geometry, readout = model.geometry, model.readout
    config = record.config
    rows = [
        ("Output", facts.output),
        ("Begun", record.created),
        ("Checkpoint", model.checkpoint),
        ("Revision", model.revision or "none, a folder"),
        ("Weights digest", model.digest),
        ("Encoders", "; ".join(filter(None, facts.encoders)) or "not recorded"),
        ("Written", f"{readout.vectors}, width {readout.width}, {readout.dtype}"),
        (
            "Images",
            f"at most {geometry.max_num_patches} patches of {geometry.patch_size} px, decode "
            f"{config.preprocess.decode}, resize kernel {record.kernel}",
        ),
        ("Token budget", count_text(config.packing.token_budget)),
        ("Fingerprint", record.fingerprint),
        ("Versions", ", ".join(f"{name} {_versions(facts, name)}" for name in record.versions)),
    ]
    return [(name, clipped(value, 400)) for name, value in rows if value]


def worst_tables(facts: Facts) -> list[tuple[str, str, Table]]:
    """Title, remark and lines of each list of shards worth a look."""
    lists = [
        (
            "Incomplete",
            "Their tars were cut; what was whole is here.",
            facts.incomplete,
            "rejected",
        ),
        ("Most rejects", "By the share of their images.", facts.most_rejected, "rejected"),
        ("Slowest", "Waiting included.", facts.slowest, "images/s"),
        ("Emptiest passes", "By the share of their token budget.", facts.emptiest, "fill"),
    ]
    return [
        (title, remark, Table(headers=["shard", "images", name], rows=_lines(worst.lines, name)))
        for title, remark, worst, name in lists
        if worst.lines
    ]


def _lines(lines: Sequence[ShardLine], name: str) -> list[tuple[str, str, str]]:
    values = {
        "rejected": lambda line: share_text(line.reject_share),
        "images/s": lambda line: f"{line.rate:,.1f}",
        "fill": lambda line: share_text(line.fill),
    }
    return [(clipped(line.shard), count_text(line.read), values[name](line)) for line in lines]


def config_text(config: RunConfig) -> str:
    """The configuration as YAML, long lists and texts cut."""
    text = yaml.safe_dump(_cut(config.model_dump(mode="json")), sort_keys=False, width=100)
    return shortened(text, _CONFIG_CHARS)


def _cut(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _cut(item) for key, item in value.items()}
    if isinstance(value, list):
        more = [f"and {len(value) - _LISTED:,} more"] if len(value) > _LISTED else []
        return [_cut(item) for item in value[:_LISTED]] + more
    return value


def _versions(facts: Facts, name: str) -> str:
    return " and ".join(facts.versions[name]) or facts.record.versions[name]


def _share_of(part: int, whole: int) -> str:
    return share_text(part / whole) if whole else ""


def _per(value: int, of: int, unit: str) -> str:
    return f"{value / of:,.0f} {unit}" if of else ""

"""The figures on a run: accounting, speed, phases."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.report_charts import Chart, Table, binned_table
from pipeline.report_facts import Facts
from pipeline.report_plots import area, bars
from pipeline.report_times import Timeline
from pipeline.words import count_text, duration_text, share_text

# Phases of the reading half, then of the encoding half, in the order of the work.
_PHASES = {
    "read": "reading the shard",
    "prepare": "decoding, resizing",
    "pack": "packing",
    "blocked": "waiting for encoder",
    "encode": "encoding",
    "write": "writing rows",
}
_ENCODING = ("encode", "write")


def speed_charts(facts: Facts, timeline: Timeline | None) -> list[Chart]:
    """Throughput, open shards and phases, as far as the footers tell."""
    charts = []
    if timeline is not None:
        charts += [_throughput(timeline), _open_shards(timeline)]
    if any(facts.seconds.values()):
        charts.append(_phases(facts.seconds))
    return charts


def accounting_charts(facts: Facts) -> list[Chart]:
    """Rejects and the fill of passes, where there are any."""
    charts = [_rejects(facts.rejected)] if facts.rejected else []
    return charts + ([_fill(facts)] if facts.fill is not None else [])


def _rejects(rejected: Counter[str]) -> Chart:
    rows = rejected.most_common()
    total = rejected.total()
    first, most = rows[0]
    return Chart(
        title="Rejects by reason",
        text=f"{count_text(total)} images, {share_text(most / total)} of them {first}.",
        svg=bars("rejects", [name for name, _ in rows], [n for _, n in rows], x="images"),
        table=Table(
            headers=["reason", "images", "share of rejects"],
            rows=[(name, count_text(n), share_text(n / total)) for name, n in rows],
        ),
    )


def _throughput(timeline: Timeline) -> Chart:
    edges, unit = _in_unit(timeline.edges)
    rates = timeline.images_per_s
    mean = rates @ np.diff(timeline.edges) / timeline.working_s
    return Chart(
        title="Throughput",
        text=f"At most {rates.max():,.1f} images/s, {mean:,.1f} on average while it worked.",
        svg=area("throughput", edges, rates, x=f"{unit} since the start", y="images/s"),
        table=_over_time(timeline.edges, rates, "images/s"),
    )


def _open_shards(timeline: Timeline) -> Chart:
    edges, unit = _in_unit(timeline.edges)
    return Chart(
        title="Shards in work",
        text=f"Up to {timeline.open_shards.max():,.0f} shards at once; work went on for "
        f"{share_text(timeline.working_s / timeline.span_s)} of the time.",
        svg=area(
            "open",
            edges,
            timeline.open_shards,
            x=f"{unit} since the start",
            y="shards",
            first=False,
        ),
        table=_over_time(timeline.edges, timeline.open_shards, "shards"),
    )


def _phases(seconds: Mapping[str, float]) -> Chart:
    known = [name for name in _PHASES if name in seconds]
    names = known + sorted(seconds.keys() - _PHASES.keys())
    total = sum(seconds.values())
    longest = max(names, key=lambda name: seconds[name])
    return Chart(
        title="Where the time went",
        text=f"Sums over all shards: the reading half, below it the encoding half. Most went into "
        f"{_PHASES.get(longest, longest)}: {share_text(seconds[longest] / total)}.",
        svg=bars(
            "phases",
            [_PHASES.get(name, name) for name in names],
            [seconds[name] for name in names],
            x="seconds",
            second=[place for place, name in enumerate(names) if name in _ENCODING],
        ),
        table=Table(
            headers=["phase", "time", "share"],
            rows=[
                (_PHASES.get(n, n), duration_text(seconds[n]), share_text(seconds[n] / total))
                for n in names
            ],
        ),
    )


def _fill(facts: Facts) -> Chart:
    counts, edges = np.histogram(np.minimum(facts.fills, 1.0), bins=20, range=(0, 1))
    return Chart(
        title="Fill of forward passes",
        text=f"Tokens took {share_text(facts.fill or 0.0)} of the token budget of all passes.",
        svg=area("fill", 100 * edges, counts, x="percent of the token budget", y="shards"),
        table=binned_table(100 * edges, counts, "fill, %", "shards"),
    )


def _in_unit(seconds: NDArray[np.float64]) -> tuple[NDArray[np.float64], str]:
    for unit, length in (("days", 172_800), ("hours", 7200), ("minutes", 120)):
        if seconds[-1] >= length:
            return seconds / {"days": 86_400, "hours": 3600, "minutes": 60}[unit], unit
    return seconds, "seconds"


def _over_time(edges: NDArray[np.float64], values: NDArray[np.float64], name: str) -> Table:
    every = slice(None, None, 3)  # 20 of the 60 moments
    rows = zip(edges[:-1][every].tolist(), values[every].tolist(), strict=True)
    return Table(
        headers=["since the start", name],
        rows=[(duration_text(at), f"{value:,.1f}") for at, value in rows],
    )

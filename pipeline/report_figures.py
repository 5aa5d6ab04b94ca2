"""The figures of a report: what each shows, the plot, a sentence, and the table behind it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.report_facts import Facts
from pipeline.report_health import Health
from pipeline.report_plots import area, bars, bubbles, line
from pipeline.report_sample import Sample
from pipeline.report_times import Timeline
from pipeline.report_words import count_text, duration_text, share_text

_BINS = 32
_GRIDS = 300  # bubbles; the table has the first of them
_TABLE_ROWS = 20
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure of the page."""

    title: str
    text: str
    svg: str
    table: Table


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


def image_charts(sample: Sample) -> list[Chart]:
    """Tokens, sizes and grids of the sampled images."""
    if not sample.rows:
        return []
    return [_tokens(sample.grids), _sizes(sample.sizes), _grids(sample.grids)]


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


def health_charts(health: Health, *, unit: bool) -> list[Chart]:
    """Cosines of random pairs, the spectrum of the variance where there is any, and lengths."""
    spectrum = [_spectrum(health)] if health.spectrum.size else []
    return [_cosines(health), *spectrum, _norms(health, unit=unit)]


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
        table=_binned(100 * edges, counts, "fill, %", "shards"),
    )


def _tokens(grids: NDArray[np.int64]) -> Chart:
    tokens = grids.prod(axis=1)
    top = int(tokens.max())
    counts, edges = np.histogram(tokens, bins=min(_BINS, top), range=(0.5, top + 0.5))
    return Chart(
        title="Tokens of an image",
        text=f"{tokens.mean():,.1f} on average, {tokens.min()} to {top}.",
        svg=area("tokens", edges, counts, x="tokens", y="images"),
        table=_binned(edges, counts, "tokens", "images"),
    )


def _sizes(sizes: NDArray[np.int64]) -> Chart:
    sides = np.sqrt(sizes.prod(axis=1, dtype=np.float64))
    top = max(float(np.quantile(sides, 0.99)), 1.0)
    counts, edges = np.histogram(np.minimum(sides, top), bins=_BINS, range=(0, top))
    height, width = sizes[int(sides.argmax())]
    return Chart(
        title="Size of the images",
        text=f"Side of a square of the same area; half of the images have at most "
        f"{np.median(sides):,.0f} px. The largest is {height:,} x {width:,} (height x width); the "
        f"last bar has all above {top:,.0f} px.",
        svg=area("sizes", edges, counts, x="side, px", y="images"),
        table=_binned(edges, counts, "side, px", "images"),
    )


def _grids(grids: NDArray[np.int64]) -> Chart:
    found, counts = np.unique(grids, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_GRIDS]
    found, total, counts = found[order], int(counts.sum()), counts[order]
    rows = [
        (f"{h} x {w}", count_text(n), share_text(n / total))
        for (h, w), n in zip(found[:_TABLE_ROWS].tolist(), counts.tolist(), strict=False)
    ]
    return Chart(
        title="Grids",
        text=f"Patches of an image, height x width; most often {rows[0][0]}, in {rows[0][2]} of "
        f"the images.",
        svg=bubbles(
            "grids",
            found[:, 1].tolist(),
            found[:, 0].tolist(),
            counts.tolist(),
            x="patches across",
            y="patches down",
        ),
        table=Table(headers=["grid", "images", "share"], rows=rows),
    )


def _cosines(health: Health) -> Chart:
    counts, edges = np.histogram(health.cosines, bins=_BINS, range=_span(health.cosines))
    return Chart(
        title="Similarity of random pairs",
        text=f"Cosine of {len(health.cosines):,} random pairs; half of them are below "
        f"{np.median(health.cosines):.3f}. All close to 1 means that the vectors say little.",
        svg=area("cosines", edges, counts, x="cosine", y="pairs"),
        table=_binned(edges, counts, "cosine", "pairs", digits=3),
    )


def _spectrum(health: Health) -> Chart:
    shares = health.spectrum[health.spectrum > 1e-6]
    cumulative = np.cumsum(health.spectrum)
    steps = [step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if step <= len(shares)]
    return Chart(
        title="Variance spectrum",
        text=f"{health.components_for(0.9)} of {len(health.spectrum)} directions hold 90 % of "
        f"the variance of {health.spectrum_rows:,} vectors; their effective rank is "
        f"{health.effective_rank:.1f}.",
        svg=line("spectrum", shares.tolist(), x="direction", y="share of variance"),
        table=Table(
            headers=["direction", "share", "with all before"],
            rows=[
                (str(step), share_text(shares[step - 1]), share_text(cumulative[step - 1]))
                for step in steps
            ],
        ),
    )


def _norms(health: Health, *, unit: bool) -> Chart:
    norms = health.norms[np.isfinite(health.norms)]
    low, high = float(norms.min()), float(norms.max())
    values = 1000 * (norms - 1) if unit else norms
    counts, edges = np.histogram(values, bins=_BINS, range=_span(values))
    label = "(length - 1) x 1000" if unit else "length"
    return Chart(
        title="Length of the vectors",
        text=f"{low:,.4f} to {high:,.4f}"
        + (": unit vectors, but for the rounding of what is stored." if unit else "."),
        svg=area("norms", edges, counts, x=label, y="vectors"),
        table=_binned(edges, counts, label, "vectors", digits=4),
    )


def _span(values: NDArray[np.float64]) -> tuple[float, float]:
    """From the least to the largest, and never nothing: bins need a length."""
    low, high = float(values.min()), float(values.max())
    return low, max(high, low + 1e-3 * max(1.0, abs(low)))


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


def _binned(
    edges: NDArray[np.float64], counts: NDArray[np.int64], name: str, of: str, *, digits: int = 0
) -> Table:
    """The bins that are not empty."""
    rows = [
        (f"{edges[place]:,.{digits}f} to {edges[place + 1]:,.{digits}f}", count_text(int(count)))
        for place, count in enumerate(counts)
        if count
    ]
    return Table(headers=[name, of], rows=rows)

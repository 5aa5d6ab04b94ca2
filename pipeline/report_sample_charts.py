"""The figures on a sample of rows: images, and the health of their vectors."""

import numpy as np
from numpy.typing import NDArray

from pipeline.report_charts import BINS, Chart, Table, binned_table
from pipeline.report_health import Health
from pipeline.report_plots import area, bubbles, line
from pipeline.report_sample import Sample
from pipeline.words import count_text, share_text

_GRIDS = 300  # bubbles; the table has the first of them
_TABLE_ROWS = 20


def image_charts(sample: Sample) -> list[Chart]:
    """Tokens, sizes and grids of the sampled images."""
    if not sample.rows:
        return []
    return [_tokens(sample.grids), _sizes(sample.sizes), _grids(sample.grids)]


def health_charts(health: Health, *, unit: bool) -> list[Chart]:
    """Cosines of random pairs, the spectrum of the variance where there is any, and lengths."""
    spectrum = [_spectrum(health)] if health.spectrum.size else []
    return [_cosines(health), *spectrum, _norms(health, unit=unit)]


def _tokens(grids: NDArray[np.int64]) -> Chart:
    tokens = grids.prod(axis=1)
    top = int(tokens.max())
    counts, edges = np.histogram(tokens, bins=min(BINS, top), range=(0.5, top + 0.5))
    return Chart(
        title="Tokens of an image",
        text=f"{tokens.mean():,.1f} on average, {tokens.min()} to {top}.",
        svg=area("tokens", edges, counts, x="tokens", y="images"),
        table=binned_table(edges, counts, "tokens", "images"),
    )


def _sizes(sizes: NDArray[np.int64]) -> Chart:
    sides = np.sqrt(sizes.prod(axis=1, dtype=np.float64))
    top = max(float(np.quantile(sides, 0.99)), 1.0)
    counts, edges = np.histogram(np.minimum(sides, top), bins=BINS, range=(0, top))
    height, width = sizes[int(sides.argmax())]
    return Chart(
        title="Size of the images",
        text=f"Side of a square of the same area; half of the images have at most "
        f"{np.median(sides):,.0f} px. The largest is {height:,} x {width:,} (height x width); the "
        f"last bar has all above {top:,.0f} px.",
        svg=area("sizes", edges, counts, x="side, px", y="images"),
        table=binned_table(edges, counts, "side, px", "images"),
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
    counts, edges = np.histogram(health.cosines, bins=BINS, range=_span(health.cosines))
    return Chart(
        title="Similarity of random pairs",
        text=f"Cosine of {len(health.cosines):,} random pairs; half of them are below "
        f"{np.median(health.cosines):.3f}. All close to 1 means that the vectors say little.",
        svg=area("cosines", edges, counts, x="cosine", y="pairs"),
        table=binned_table(edges, counts, "cosine", "pairs", digits=3),
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
    counts, edges = np.histogram(values, bins=BINS, range=_span(values))
    label = "(length - 1) x 1000" if unit else "length"
    return Chart(
        title="Length of the vectors",
        text=f"{low:,.4f} to {high:,.4f}"
        + (": unit vectors, but for the rounding of what is stored." if unit else "."),
        svg=area("norms", edges, counts, x=label, y="vectors"),
        table=binned_table(edges, counts, label, "vectors", digits=4),
    )


def _span(values: NDArray[np.float64]) -> tuple[float, float]:
    """From the least to the largest, and never nothing: bins need a length."""
    low, high = float(values.min()), float(values.max())
    return low, max(high, low + 1e-3 * max(1.0, abs(low)))

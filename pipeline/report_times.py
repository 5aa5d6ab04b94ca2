"""How fast a run was, moment by moment, from the times in its footers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOMENTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run cut into moments of equal length, the first beginning at `start`."""

    start: float  # seconds since 1970, UTC
    edges: NDArray[np.float64]  # [M + 1] s since the start
    images_per_s: NDArray[np.float64]  # [M]
    open_shards: NDArray[np.float64]  # [M], on average
    working_s: float  # while at least one shard was open

    @property
    def span_s(self) -> float:
        return float(self.edges[-1])


def make_timeline(
    started: Sequence[float], finished: Sequence[float], images: Sequence[float]
) -> Timeline | None:
    """The run over time; a shard's images are spread evenly over its own. None without shards."""
    if not len(started):
        return None
    begin, end = np.asarray(started, dtype=np.float64), np.asarray(finished, dtype=np.float64)
    end = np.maximum(end, begin + 1e-3)  # clocks of two nodes; footers have milliseconds
    start = float(begin.min())
    begin, end = begin - start, end - start
    edges = np.linspace(0.0, float(end.max()), _MOMENTS + 1)
    weights = np.asarray(images, dtype=np.float64)
    done, opened = np.zeros(len(edges)), np.zeros(len(edges))
    for number, edge in enumerate(edges):
        passed = np.clip(edge - begin, 0.0, end - begin)
        opened[number] = passed.sum()
        done[number] = (passed / (end - begin) * weights).sum()
    length = edges[1] - edges[0]
    return Timeline(
        start=start,
        edges=edges,
        images_per_s=np.diff(done) / length,
        open_shards=np.diff(opened) / length,
        working_s=_covered(begin, end),
    )


def _covered(begin: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Length of the union of the intervals."""
    order = np.argsort(begin)
    begin, latest = begin[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(0.0, begin[1:] - latest[:-1])
    return float(latest[-1] - begin[0] - gaps.sum())

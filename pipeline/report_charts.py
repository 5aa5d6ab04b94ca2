"""One figure of a report: what it shows, the plot, a sentence, and the table behind it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.words import count_text

BINS = 32


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


def binned_table(
    edges: NDArray[np.float64], counts: NDArray[np.int64], name: str, of: str, *, digits: int = 0
) -> Table:
    """The bins that are not empty."""
    rows = [
        (f"{edges[place]:,.{digits}f} to {edges[place + 1]:,.{digits}f}", count_text(int(count)))
        for place, count in enumerate(counts)
        if count
    ]
    return Table(headers=[name, of], rows=rows)

"""Figures from rounds in which several engines take turns on one machine."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Ours over theirs, rates or the other way round seconds: median of the rounds and its 95 %
    bootstrap interval.
    """
    ratios = np.asarray(ours, dtype=float) / np.asarray(theirs, dtype=float)
    resampled = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(resampled, axis=1), (0.025, 0.975))
    return {
        "median": round(float(np.median(ratios)), 3),
        "interval_95": [round(float(low), 3), round(float(high), 3)],
        "rounds": [round(float(value), 3) for value in ratios],
    }

"""Whether a sample of vectors looks as embeddings should: lengths, spread, doubles, neighbours."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PAIRS = 20_000
_SPECTRUM_ROWS = 2048  # its cost grows with the cube
_BLOCK = 1024
_NEAR = 0.05  # of the usual distance: towers whose vectors fill different cones have one measure
_ROUNDING = 1e-6  # of a cosine in float32
_NEIGHBOURS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What n vectors of width D are like; rows are numbers into the sample."""

    norms: NDArray[np.float64]  # [n]
    not_finite: int  # vectors, left out of all that follows
    constant: int  # of the D values, those that are the same in every vector
    spectrum: NDArray[np.float64]  # shares of the variance, the largest first, sum 1
    spectrum_rows: int
    cosines: NDArray[np.float64]  # of random pairs
    near: float  # pairs with at least this cosine are near-duplicates
    groups: list[list[int]]  # rows that are near-duplicates of each other, the largest group first
    neighbours: dict[int, list[tuple[int, float]]]  # row: its nearest ones and their cosines

    @property
    def effective_rank(self) -> float:
        """1 for a line, D for a ball: the exponential of the entropy (Roy and Vetterli, 2007)."""
        shares = self.spectrum[self.spectrum > 0]
        return float(np.exp(-(shares * np.log(shares)).sum())) if shares.size else 0.0

    def components_for(self, share: float) -> int:
        """How many directions hold this share of the variance."""
        return int(np.searchsorted(np.cumsum(self.spectrum), share - 1e-6)) + 1

    @property
    def in_groups(self) -> int:
        return sum(map(len, self.groups))


def measure_health(vectors: NDArray[np.float32], *, queries: int = 6) -> Health | None:
    """What the vectors [n, D] are like; None for fewer than two. Time grows with n squared."""
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    good = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    if len(good) < 2:
        return None
    units = (vectors[good] / norms[good, None]).astype(np.float32)
    cosines = _random_cosines(units)
    near = 1 - max(_NEAR * (1 - float(np.median(cosines))), _ROUNDING)
    asked = np.unique(np.linspace(0, len(good) - 1, min(queries, len(good))).astype(int))
    some = good[:: max(1, -(-len(good) // _SPECTRUM_ROWS))]
    return Health(
        norms=norms,
        not_finite=int((~np.isfinite(norms)).sum()),
        constant=int((vectors[good].min(axis=0) == vectors[good].max(axis=0)).sum()),
        spectrum=_spectrum(vectors[some]),
        spectrum_rows=len(some),
        cosines=cosines,
        near=near,
        groups=[good[group].tolist() for group in _near_groups(units, near)],
        neighbours={
            int(good[row]): [(int(good[other]), cosine) for other, cosine in _nearest(units, row)]
            for row in asked.tolist()
        },
    )


def _random_cosines(units: NDArray[np.float32]) -> NDArray[np.float64]:
    random = np.random.default_rng(0)
    first = random.integers(0, len(units), _PAIRS)
    second = (first + random.integers(1, len(units), _PAIRS)) % len(units)
    parts = [
        (units[first[start : start + _BLOCK]] * units[second[start : start + _BLOCK]]).sum(axis=1)
        for start in range(0, _PAIRS, _BLOCK)
    ]
    return np.concatenate(parts).astype(np.float64)


def _spectrum(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    small = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    values: NDArray[np.float64] = np.maximum(np.linalg.eigvalsh(small)[::-1], 0.0)
    total = values.sum()
    return values / total if total > 0 else values[:0]


def _near_groups(units: NDArray[np.float32], near: float) -> list[list[int]]:
    """Rows with the later rows that are that near to them and in no group yet; largest group first.

    A chain of small steps is no group: all of its rows are near to the first.
    """
    taken = np.zeros(len(units), np.bool_)
    groups: list[list[int]] = []
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK] @ units[start:].T >= near
        block[np.tril_indices(len(block))] = False  # itself, and rows before it
        for row in np.flatnonzero(block.any(axis=1)).tolist():
            others = start + np.flatnonzero(block[row] & ~taken[start:])
            if others.size and not taken[start + row]:
                groups.append([start + row, *others.tolist()])
                taken[groups[-1]] = True
    return sorted(groups, key=len, reverse=True)


def _nearest(units: NDArray[np.float32], row: int) -> list[tuple[int, float]]:
    cosines = units @ units[row]
    cosines[row] = -2.0
    order = np.argsort(-cosines, kind="stable")[: min(_NEIGHBOURS, len(units) - 1)]
    return [(int(other), float(cosines[other])) for other in order]

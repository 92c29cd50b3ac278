"""The bootstrap, over rows or over clusters of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from llmframe.judges.libraries import library

__all__ = ["Interval", "bootstrap", "check", "resamples"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Interval = tuple[float, float]

_BLOCK: Final = 2_000_000
"""Numbers in one block of resamples: 16 MB, whatever the number of draws."""
_DEFINED: Final = 0.9
"""Share of the draws in which a statistic must be defined for its interval to mean something."""


def check(confidence: float, draws: int) -> None:
    """Refuse settings that give no interval.

    Raises:
        ValueError: With the value.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r}: expected a share between 0 and 1, as 0.95.")
    if draws < 100:
        raise ValueError(f"draws={draws!r}: expected at least 100; 1000 is usual.")


def resamples(patterns: Ints, cluster: Ints | None, draws: int, seed: int) -> Iterator[Floats]:
    """Resamples as weights: blocks of draws by patterns.

    Args:
        patterns: The pattern of each row, from 0.
        cluster: The cluster of each row; its rows are drawn together. None: each row by itself.
        draws: Number of resamples.
        seed: Of the random numbers.

    Examples:
        >>> blocks = list(resamples(np.array([0, 0, 1]), None, 4, seed=0))
        >>> np.vstack(blocks).sum(axis=1).tolist()
        [3.0, 3.0, 3.0, 3.0]
    """
    random = np.random.default_rng(seed)
    count = int(patterns.max()) + 1
    if cluster is None:
        share = np.bincount(patterns) / len(patterns)
        for size in _blocks(draws, count):
            yield random.multinomial(len(patterns), share, size=size).astype(float)
        return
    own = np.unique(cluster, return_inverse=True)[1].ravel()
    groups = int(own.max()) + 1
    sparse = library("scipy.sparse")
    rows = sparse.csr_array((np.ones(len(own)), (own, patterns)), shape=(groups, count))
    for size in _blocks(draws, max(count, groups)):
        drawn = random.multinomial(groups, np.full(groups, 1 / groups), size=size)
        yield np.asarray((rows.T @ drawn.T).T, dtype=float)


def bootstrap(
    statistics: Callable[[Floats], Floats],
    patterns: Ints,
    cluster: Ints | None,
    confidence: float,
    draws: int,
    seed: int,
) -> list[Interval | None]:
    """Percentile intervals of statistics; None where one is undefined in too many resamples.

    Efron, B., & Tibshirani, R. J. (1993). An Introduction to the Bootstrap, chapter 13.

    Args:
        statistics: Weights, draws by patterns, to values, draws by statistics.
        patterns: As in `resamples`.
        cluster: As in `resamples`.
        confidence: Of the interval.
        draws: Number of resamples.
        seed: Of the random numbers.
    """
    found = np.vstack([statistics(w) for w in resamples(patterns, cluster, draws, seed)])
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    intervals: list[Interval | None] = []
    for values in found.T:
        defined = values[np.isfinite(values)]
        if len(defined) < _DEFINED * draws:
            intervals.append(None)
        else:
            low, high = np.quantile(defined, tails)
            intervals.append((float(low), float(high)))
    return intervals


def _blocks(draws: int, width: int) -> Iterator[int]:
    size = max(1, _BLOCK // max(width, 1))
    for start in range(0, draws, size):
        yield min(size, draws - start)

"""The bootstrap, over rows or over clusters of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from llmframe.judges.libraries import library

__all__ = ["FEW_CLUSTERS", "LEAST_CLUSTERS", "Interval", "bootstrap", "check", "resamples"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Interval = tuple[float, float]

FEW_CLUSTERS: Final = 20
"""Below this a cluster bootstrap is known to be too narrow (Cameron, Gelbach & Miller 2008)."""
LEAST_CLUSTERS: Final = 5
"""Below this the spread of clusters says next to nothing of itself: no interval is given."""
_BLOCK: Final = 2_000_000
"""Numbers in one block of resamples: 16 MB, whatever the number of draws."""
_JACKKNIFE: Final = 2000
"""Patterns, or clusters, beyond which their skewness no longer matters for an interval."""
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
    rows = _by_cluster(patterns, cluster)
    groups = rows.shape[0]
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
    """BCa intervals of statistics; None where one is undefined in too many resamples.

    Efron, B. (1987). Better bootstrap confidence intervals. JASA 82. Coefficients of agreement are
    skewed, and the plain percentiles of their resamples are too narrow on their short side.

    Args:
        statistics: Weights, draws by patterns, to values, draws by statistics.
        patterns: As in `resamples`.
        cluster: As in `resamples`.
        confidence: Of the interval.
        draws: Number of resamples.
        seed: Of the random numbers.
    """
    found = np.vstack([statistics(w) for w in resamples(patterns, cluster, draws, seed)])
    whole = np.bincount(patterns).astype(float)[None, :]
    estimates = statistics(whole)[0]
    bends = _accelerations(statistics, whole, patterns, cluster)
    normal = library("scipy.stats").norm
    tails = normal.ppf([(1 - confidence) / 2, (1 + confidence) / 2])
    intervals: list[Interval | None] = []
    for values, estimate, bend in zip(found.T, estimates, bends, strict=True):
        defined = values[np.isfinite(values)]
        if len(defined) < _DEFINED * draws or not np.isfinite(estimate):
            intervals.append(None)
            continue
        below = (np.sum(defined < estimate) + np.sum(defined == estimate) / 2) / len(defined)
        lean = normal.ppf(np.clip(below, 1 / draws, 1 - 1 / draws))
        bent = lean + (lean + tails) / (1 - bend * (lean + tails))
        low, high = np.quantile(defined, normal.cdf(bent))
        intervals.append((float(low), float(high)))
    return intervals


def _accelerations(
    statistics: Callable[[Floats], Floats], whole: Floats, patterns: Ints, cluster: Ints | None
) -> Floats:
    """Efron's acceleration: how far each statistic's jackknife, of rows or clusters, is skewed."""
    width = whole.shape[1]
    count = width if cluster is None else len(np.unique(cluster))
    if count > _JACKKNIFE:
        return np.zeros(statistics(whole).shape[1])
    if cluster is None:
        left_out, times = np.eye(width), whole[0]  # rows of one pattern are alike
    else:
        left_out, times = _by_cluster(patterns, cluster).toarray(), np.ones(count)
    size = max(1, _BLOCK // width)
    parts = [statistics(whole - left_out[k : k + size]) for k in range(0, count, size)]
    values = np.vstack(parts)
    values = np.where(np.isfinite(values), values, np.nan)
    defined = np.isfinite(values) * times[:, None]
    mean = np.nansum(values * times[:, None], axis=0) / np.maximum(defined.sum(axis=0), 1)
    pull = np.nan_to_num(mean - values)
    cubes, squares = (np.sum(times[:, None] * pull**power, axis=0) for power in (3, 2))
    spread = 6 * squares**1.5
    return np.asarray(np.divide(cubes, spread, out=np.zeros_like(cubes), where=spread > 0))


def _by_cluster(patterns: Ints, cluster: Ints) -> Any:
    """How many rows of each pattern a cluster has: clusters by patterns, sparse."""
    own = np.unique(cluster, return_inverse=True)[1].ravel()
    shape = (int(own.max()) + 1, int(patterns.max()) + 1)
    return library("scipy.sparse").csr_array((np.ones(len(own)), (own, patterns)), shape=shape)


def _blocks(draws: int, width: int) -> Iterator[int]:
    size = max(1, _BLOCK // max(width, 1))
    for start in range(0, draws, size):
        yield min(size, draws - start)

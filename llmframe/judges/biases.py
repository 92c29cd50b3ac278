"""Arithmetic of an audit: shares, correlations of ranks, and how often votes are alike.

Wilson (1927), JASA 22; Bonett & Wright (2000), Sample size requirements for estimating Pearson,
Kendall and Spearman correlations, Psychometrika 65.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.judges.means import Mean

__all__ = ["alike", "alike_across", "rank_correlation", "share"]

Floats = npt.NDArray[np.float64]


def share(parts: Sequence[float] | Floats, confidence: float) -> Mean:
    """A mean of shares, one a row, with Wilson's interval.

    Of yes and no it is the usual one. Of shares between, whose variance is smaller than that of
    yes and no with the same mean, it is wider than it had to be; it never has the width 0 that
    Student's has where all rows are alike.

    Args:
        parts: From 0 to 1, one a row; may be empty.
        confidence: Of the interval.

    Returns:
        NaN where there is no row.

    Examples:
        >>> [round(value, 3) for value in share([1.0] * 40, 0.95)]
        [1.0, 0.912, 1.0]
    """
    n = len(parts)
    if not n:
        return Mean(math.nan, math.nan, math.nan)
    mean, z2 = float(np.mean(parts)), _normal(confidence) ** 2
    middle = (mean + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * mean * (1 - mean) / n + z2**2 / (4 * n**2)) / (1 + z2 / n)
    # At 0 and at 1 the end is the mean itself, but for rounding.
    return Mean(mean, min(mean, max(0.0, middle - half)), max(mean, min(1.0, middle + half)))


def rank_correlation(x: Floats, y: Floats, confidence: float, given: Floats | None = None) -> Mean:
    """Spearman's correlation, or the partial one; its interval is Bonett & Wright's.

    Args:
        x: One value a row.
        y: Likewise.
        confidence: Of the interval.
        given: What is held constant, likewise: the correlation of what its ranks leave of the
            ranks of the two. None: nothing is.

    Returns:
        NaN where a value never changes, or `given` says all of it; no interval below 5 rows.

    Examples:
        >>> x = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
        >>> y = np.array([2.0, 1, 4, 3, 6, 5, 8, 7])
        >>> round(rank_correlation(x, y, 0.95).estimate, 3)
        0.905
    """
    if len(x) < 2:
        return Mean(math.nan, math.nan, math.nan)
    ranks = [pd.Series(values).rank().to_numpy(float) for values in (x, y)]
    ranks = [values - values.mean() for values in ranks]
    sizes = [float(np.linalg.norm(values)) for values in ranks]
    if given is not None:
        held = pd.Series(given).rank().to_numpy(float)
        held = held - held.mean()
        if held.any():
            ranks = [values - held * (values @ held) / (held @ held) for values in ranks]
    left = [float(np.linalg.norm(values)) for values in ranks]
    if any(now <= 1e-9 * then for now, then in zip(left, sizes, strict=True)):
        return Mean(math.nan, math.nan, math.nan)
    r = float(np.clip(ranks[0] @ ranks[1] / (left[0] * left[1]), -1.0, 1.0))
    freedom = len(x) - 3 - (given is not None)
    if freedom < 1:
        return Mean(r, math.nan, math.nan)
    if abs(r) == 1:  # Fisher's transform has no end there
        return Mean(r, r, r)
    half = _normal(confidence) * math.sqrt((1 + r**2 / 2) / freedom)
    z = math.atanh(r)
    return Mean(r, math.tanh(z - half), math.tanh(z + half))


def alike(votes: Sequence[Any]) -> float:
    """Share of the pairs of a row's votes that say the same.

    Examples:
        >>> alike([4, 4, 5])
        0.3333333333333333
    """
    pairs = list(combinations(votes, 2))
    return sum(bool(one == other) for one, other in pairs) / len(pairs)


def alike_across(votes: Sequence[Any], others: Sequence[Any]) -> float:
    """The same for pairs of a vote under one wording and a vote under the other.

    Examples:
        >>> alike_across([4, 4, 5], [4])
        0.6666666666666666
    """
    pairs = list(product(votes, others))
    return sum(bool(one == other) for one, other in pairs) / len(pairs)


def _normal(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)

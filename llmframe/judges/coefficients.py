"""Coefficients of agreement, of many resamples at once.

A resample is a row of weights over the patterns, the different things that the raters said
together, so the cost follows the number of patterns and not that of rows. scikit-learn, scipy and
krippendorff compute the same figures one sample at a time: their thousand draws of 20,000 rows
take minutes. The tests hold every function here to those libraries and to published examples.

Shapes: `w` is draws by patterns; `codes` are places in the values, with -1 for a missing rating.
Where a coefficient is undefined (all ratings are one value), it is NaN.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llmframe.judges.libraries import library

__all__ = ["accuracy", "alpha", "kappa", "pearson", "spearman"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def accuracy(w: Floats, a: Ints, b: Ints) -> Floats:
    """Share of rows on which two raters agree exactly.

    Examples:
        >>> accuracy(np.array([[3.0, 1.0]]), np.array([0, 1]), np.array([0, 0])).tolist()
        [0.75]
    """
    return _ratio(w @ (a == b).astype(float), w.sum(axis=1))


def kappa(w: Floats, a: Ints, b: Ints, numbers: Floats, weights: str | None = None) -> Floats:
    """Cohen's kappa (1960), or his weighted kappa (1968).

    Args:
        w: Weights, draws by patterns.
        a: Codes of one rater.
        b: Codes of the other.
        numbers: The values as numbers: ``"linear"`` and ``"quadratic"`` disagreement follow their
            distance, so a score that nobody gave still counts.
        weights: None, ``"linear"`` or ``"quadratic"``.

    Examples:
        >>> w, both = np.array([[20.0, 5, 10, 15]]), np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        >>> kappa(w, *both.T, np.arange(2.0)).round(3).tolist()
        [0.4]
    """
    numbers = _unit(numbers)
    distance = np.abs(numbers[:, None] - numbers[None, :])
    cost = {None: distance > 0, "linear": distance, "quadratic": distance**2}[weights]
    cost = cost.astype(float)
    n = w.sum(axis=1)
    observed = n * (w @ cost[a, b])
    count = len(numbers)
    expected = ((_sums(w, a, count) @ cost) * _sums(w, b, count)).sum(axis=1)
    return 1 - _ratio(observed, expected)


def alpha(
    w: Floats, codes: Ints, numbers: Floats, level: Literal["nominal", "ordinal", "interval"]
) -> Floats:
    """Krippendorff's alpha for any number of raters, with missing ratings.

    Krippendorff, K. (2011). Computing Krippendorff's Alpha-Reliability.

    Args:
        w: Weights, draws by patterns.
        codes: Patterns by raters.
        numbers: The values as numbers, for ``"interval"``.
        level: Level of measurement.

    Examples:
        >>> both = np.array([[0, 0], [0, 1], [1, 1]])
        >>> alpha(np.array([[4.0, 2, 4]]), both, np.arange(2.0), "nominal").round(2).tolist()
        [0.62]
    """
    given = codes >= 0
    ratings = given.sum(axis=1)
    pairable = ratings > 1  # one rating alone agrees and disagrees with nothing
    codes, given, ratings, w = codes[pairable], given[pairable], ratings[pairable], w[:, pairable]
    patterns = len(codes)
    each = np.repeat(np.arange(patterns), codes.shape[1])[given.ravel()]
    sparse = library("scipy.sparse")
    counts = sparse.csr_array(
        (np.ones(len(each)), (each, codes[given])), shape=(patterns, len(numbers))
    )
    totals = _dot(w, counts)
    n = totals.sum(axis=1)
    if level == "nominal":
        same = np.asarray(counts.multiply(counts).sum(axis=1)).ravel()
        observed = w @ ((ratings**2 - same) / (ratings - 1))
        expected = n**2 - (totals**2).sum(axis=1)
    else:
        # The ordinal distance of two values is the squared distance of their mean ranks.
        x = _unit(_midranks(totals) if level == "ordinal" else numbers[None, :])
        own = np.where(given, x[:, codes], 0.0)
        spread = 2 * (ratings * (own**2).sum(axis=2) - own.sum(axis=2) ** 2)
        observed = (w * spread / (ratings - 1)).sum(axis=1)
        expected = 2 * (n * (totals * x**2).sum(axis=1) - (totals * x).sum(axis=1) ** 2)
    return np.asarray(1 - (n - 1) * _ratio(observed, expected))


def pearson(w: Floats, a: Ints, b: Ints, numbers: Floats) -> Floats:
    """Pearson's correlation.

    Examples:
        >>> a, b = np.array([0, 1, 2]), np.array([0, 2, 1])
        >>> pearson(np.ones((1, 3)), a, b, np.arange(3.0)).round(2).tolist()
        [0.5]
    """
    numbers = _unit(numbers)[None, :]
    return _correlation(w, numbers[:, a], numbers[:, b])


def spearman(w: Floats, a: Ints, b: Ints, count: int) -> Floats:
    """Spearman's rank correlation, ties at their mean rank.

    Args:
        w: Weights, draws by patterns.
        a: Codes of one rater.
        b: Codes of the other.
        count: Number of values.

    Examples:
        >>> spearman(np.ones((1, 3)), np.array([0, 1, 2]), np.array([0, 2, 1]), 3).round(2).tolist()
        [0.5]
    """
    ranks = [_unit(_midranks(_sums(w, codes, count)))[:, codes] for codes in (a, b)]
    return _correlation(w, *ranks)


def _correlation(w: Floats, x: Floats, y: Floats) -> Floats:
    n = w.sum(axis=1, keepdims=True)
    x = x - (w * x).sum(axis=1, keepdims=True) / n
    y = y - (w * y).sum(axis=1, keepdims=True) / n
    size = np.sqrt((w * x**2).sum(axis=1)) * np.sqrt((w * y**2).sum(axis=1))
    return _ratio((w * x * y).sum(axis=1), size)


def _unit(numbers: Floats) -> Floats:
    """Between -1 and 1 around 0, which changes no coefficient and lets 0 be told from rounding."""
    middle = np.asarray(numbers - numbers.mean(axis=-1, keepdims=True))
    size = np.abs(middle).max(axis=-1, keepdims=True)
    return np.asarray(np.divide(middle, size, out=np.zeros_like(middle), where=size > 0))


def _midranks(totals: Floats) -> Floats:
    """Mean rank of each value, from how often it comes: draws by values."""
    return np.asarray(np.cumsum(totals, axis=1) - totals / 2)


def _sums(w: Floats, codes: Ints, count: int) -> Floats:
    """Weight of each value: draws by values."""
    places = (np.arange(len(codes)), codes)
    shape = (len(codes), count)
    return _dot(w, library("scipy.sparse").csr_array((np.ones(len(codes)), places), shape=shape))


def _dot(w: Floats, sparse: Any) -> Floats:
    return np.asarray((sparse.T @ w.T).T)


def _ratio(top: Floats, bottom: Floats) -> Floats:
    # A spread that is 0 but for rounding is 0: a constant rater has no correlation.
    sound = bottom > 1e-12 * np.maximum(1.0, np.abs(top))
    return np.asarray(np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=sound))

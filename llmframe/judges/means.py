"""Means of what humans would say, from many judged rows and few labelled ones.

Angelopoulos et al. (2023), Prediction-powered inference, Science 382; Angelopoulos, Duchi & Zrnic
(2023), PPI++, arXiv:2311.01453; Rogan & Gladen (1978), Am J Epidemiol 107; Lang & Reiczigel (2014),
Prev Vet Med 113. ppi-python is not used: importing it silences every warning of the process, it
installs a package called `tests`, and it knows neither clusters nor small samples. The tests hold
this to its figures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llmframe.judges.libraries import library

__all__ = ["Mean", "plain", "prediction_powered", "rogan_gladen", "wilson"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Mean(NamedTuple):
    """An estimate and its interval; NaN where there is none."""

    estimate: float
    low: float
    high: float


def plain(y: Floats, cluster: Ints, confidence: float) -> Mean:
    """A mean with Student's interval over clusters; Wilson's for yes or no without clusters.

    Args:
        y: Values, at least one.
        cluster: The cluster of each.
        confidence: Of the interval.

    Examples:
        >>> [round(v, 3) for v in plain(np.array([1.0, 2, 3]), np.arange(3), 0.95)]
        [2.0, -0.484, 4.484]
    """
    groups = _count(cluster)
    scale = math.sqrt(groups / (groups - 1)) if groups > 1 else math.nan
    shares = scale * (y - y.mean()) / len(y)
    return _student(float(y.mean()), shares, cluster, groups - 1, confidence)


def wilson(hits: int, n: int, confidence: float) -> Mean:
    """A share with Wilson's interval (1927), which 0 and 1 do not make empty.

    Examples:
        >>> [round(v, 3) for v in wilson(40, 40, 0.95)]
        [1.0, 0.912, 1.0]
    """
    result = library("scipy.stats").binomtest(hits, n)
    low, high = result.proportion_ci(confidence, method="wilson")
    return Mean(hits / n, float(low), float(high))


def prediction_powered(
    judge: Floats,
    truth: Floats,
    labelled: Bools,
    cluster: Ints,
    confidence: float,
    weight: float | None = None,
) -> tuple[Mean, float]:
    """PPI++: the judge's mean over the unlabelled rows, put right by the labelled ones.

    Args:
        judge: Of every row.
        truth: Of every row; read where `labelled`.
        labelled: Which rows a human labelled: at least three, and not all.
        cluster: The cluster of each row.
        confidence: Of the interval.
        weight: How far to follow the judge. 0 is the labelled rows alone, 1 prediction-powered
            inference; None takes what makes the interval shortest (power tuning).

    Returns:
        The mean, and the weight that was used.

    Examples:
        >>> judge = np.array([1.0, 0, 1, 1, 0, 1, 1, 0])
        >>> truth = np.array([1.0, 0, 1, 0, 0, 0, 0, 0])
        >>> labelled = np.arange(8) < 4
        >>> mean, weight = prediction_powered(judge, truth, labelled, np.arange(8), 0.95, 1.0)
        >>> round(mean.estimate, 3), weight
        (0.25, 1.0)
    """
    mean, used, freedom, shares = _tuned(judge, truth, labelled, None, cluster, weight)
    if not _is_binary(judge) or not _is_binary(truth[labelled]):
        return _student(mean, shares, cluster, freedom, confidence), used
    # Where a judge is nearly always right the labelled rows may show no error at all, and the
    # variance would be that of a perfect judge. Half a row in each cell of the two answers, as
    # Agresti & Min (2005, Stat Med 24) for matched proportions, keeps the interval honest.
    judge = np.append(judge, [0.0, 0.0, 1.0, 1.0])
    truth = np.append(np.where(labelled, truth, 0.0), [0.0, 1.0, 0.0, 1.0])
    parts = np.append(np.ones(len(labelled)), np.full(4, 0.5))
    labelled = np.append(labelled, np.ones(4, bool))
    cluster = np.append(cluster, cluster.max() + 1 + np.arange(4))
    middle, _, _, shares = _tuned(judge, truth, labelled, parts, cluster, weight)
    _, low, high = _student(middle, shares, cluster, freedom, confidence)
    return Mean(mean, max(0.0, min(low, mean)), min(1.0, max(high, mean))), used


def _tuned(
    judge: Floats,
    truth: Floats,
    labelled: Bools,
    parts: Floats | None,
    cluster: Ints,
    weight: float | None,
) -> tuple[float, float, int, Floats]:
    """Estimate, weight, degrees of freedom, and what each row adds to the estimate, centred.

    Args:
        judge: Of every row.
        truth: Of every row; read where `labelled`.
        labelled: Which rows a human labelled.
        parts: What each row counts for; None for 1.
        cluster: The cluster of each row.
        weight: As in `prediction_powered`.
    """
    part = np.ones(len(judge)) if parts is None else parts
    n, others = float(part[labelled].sum()), float(part[~labelled].sum())
    y = np.where(labelled, truth, 0.0)

    def mean(values: Floats, rows: Bools) -> float:
        return float(np.average(values[rows], weights=part[rows]))

    y_mean, inside, outside = mean(y, labelled), mean(judge, labelled), mean(judge, ~labelled)
    root = np.sqrt(part)  # squared and summed, half a row adds half of what a row does
    human = root * np.where(labelled, (y - y_mean) / n, 0.0)
    gap = root * np.where(labelled, (judge - inside) / n, -(judge - outside) / others)
    groups = _count(cluster[labelled])
    freedom = groups - 1
    if weight is None:
        # Where the variance is least, if the labelled rows are like the others (PPI++, example
        # 6.1). The slope is that of least squares: the ratio of the paper, whose variance is of
        # all rows, does not become exact where the judge is, and is noisier on few labels.
        centred = part[labelled] * (judge[labelled] - inside)
        size = float(centred @ (judge[labelled] - inside))
        slope = float(centred @ (y[labelled] - y_mean)) / size if size > 0 else 0.0
        weight = slope * others / (n + others)
        freedom -= 1
    # As a sample variance divides by n - 1: few labelled rows, and a weight that follows their
    # noise, make the interval of the papers, which divide by n, too short.
    scale = math.sqrt(groups / freedom) if freedom > 0 else math.nan
    return y_mean - weight * (inside - outside), weight, freedom, scale * (human - weight * gap)


def rogan_gladen(
    hits: int,
    n: int,
    true_hits: int,
    positives: int,
    true_rejections: int,
    negatives: int,
    confidence: float,
) -> Mean:
    """The rate behind a judge of known sensitivity and specificity.

    The estimate is Rogan & Gladen's, cut to 0 … 1; the interval is Lang & Reiczigel's, which holds
    its confidence where the normal one does not.

    Args:
        hits: Rows that the judge passed, of those without a label.
        n: Rows without a label.
        true_hits: Of these, passed by the judge.
        positives: Labelled rows that a human passed.
        true_rejections: Of these, failed by the judge.
        negatives: Labelled rows that a human failed.
        confidence: Of the interval.

    Examples:
        >>> round(rogan_gladen(23, 150, 96, 100, 89, 100, 0.95).estimate, 3)
        0.051
    """
    if not positives or not negatives:
        return Mean(math.nan, math.nan, math.nan)
    sensitivity, specificity = true_hits / positives, true_rejections / negatives
    youden = sensitivity + specificity - 1
    if youden <= 0:
        return Mean(math.nan, math.nan, math.nan)
    estimate = (hits / n + specificity - 1) / youden
    z = _normal(confidence)
    se = (true_hits + 1) / (positives + 2)
    sp = (true_rejections + 1) / (negatives + 2)
    rate = (hits + z**2 / 2) / (n + z**2)
    slope = se + sp - 1
    if slope <= 0:
        return Mean(math.nan, math.nan, math.nan)
    middle = (rate + sp - 1) / slope
    of_se, of_sp = se * (1 - se) / (positives + 2), sp * (1 - sp) / (negatives + 2)
    shift = 2 * z**2 * (middle * of_se - (1 - middle) * of_sp)
    spread = rate * (1 - rate) / (n + z**2) + middle**2 * of_se + (1 - middle) ** 2 * of_sp
    half = z * math.sqrt(spread) / slope
    low, high = middle + shift - half, middle + shift + half
    return Mean(*(min(1.0, max(0.0, value)) for value in (estimate, low, high)))


def _student(
    estimate: float, shares: Floats, cluster: Ints, freedom: int, confidence: float
) -> Mean:
    if freedom < 1:
        return Mean(estimate, math.nan, math.nan)
    totals = _totals(shares, cluster)
    error = math.sqrt(float(totals @ totals))
    half = float(library("scipy.stats").t.ppf((1 + confidence) / 2, freedom)) * error
    return Mean(estimate, estimate - half, estimate + half)


def _totals(shares: Floats, cluster: Ints) -> Floats:
    own = np.unique(cluster, return_inverse=True)[1].ravel()
    return np.bincount(own, weights=shares).astype(np.float64)


def _is_binary(values: Floats) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def _count(cluster: Ints) -> int:
    return len(np.unique(cluster))


def _normal(confidence: float) -> float:
    return float(library("scipy.stats").norm.ppf((1 + confidence) / 2))

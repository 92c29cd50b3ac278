"""Intervals of Bradley-Terry strengths that hold where rows are few, or all say the same.

Firth (1993), Bias reduction of maximum likelihood estimates, Biometrika 80; Heinze & Schemper
(2002), A solution to the problem of separation in logistic regression, Stat Med 21; Rotnitzky &
Jewell (1990), Biometrika 77, for the likelihood of rows that lean on each other.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from llmframe.judges.libraries import library

__all__ = ["Counts", "firth", "intervals", "likeliest"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STEPS: Final = 100
"""Newton steps, or halvings of one, or rounds of the penalty: each takes some five."""
_NEAR: Final = 1e-8
"""Step, in log odds, at which a fit is done."""
_RIDGE: Final = 1e-10
"""Curvature below which a direction is as good as flat."""
_FARTHEST: Final = 4.0
"""Longest step, in log odds."""
_WIDEST: Final = 64.0
"""Distance, in log odds, beyond which no end of an interval is looked for."""


class Counts:
    """Who won how often, and what each cluster of rows adds to it.

    Args:
        first: The first system of each row, from 0.
        second: The second one.
        share: What the first one won of it: 1, 0, or 0.5 for a tie.
        count: Number of systems.
        cluster: The cluster of each row, from 0. None: each row stands by itself.
    """

    def __init__(
        self, first: Ints, second: Ints, share: Floats, count: int, cluster: Ints | None = None
    ) -> None:
        self.first, self.second, self.share = first, second, share
        self.count, self.cluster = count, cluster
        self.wins = self.weighted(np.ones(len(share)))
        self.groups = len(share) if cluster is None else int(cluster.max()) + 1

    def weighted(self, weights: Floats) -> Floats:
        """How often the system of the row beat that of the column, with a weight for each row."""
        first, second, count = self.first, self.second, self.count
        pairs = np.concatenate([first * count + second, second * count + first])
        parts = np.concatenate([weights * self.share, weights * (1 - self.share)])
        sums = np.bincount(pairs, weights=parts, minlength=count**2)
        return sums.astype(np.float64).reshape(count, count)

    def units(self) -> Ints:
        """What each system's rows are worth in doubt: their number, or that of their clusters."""
        systems = np.concatenate([self.first, self.second])
        if self.cluster is None:
            return np.bincount(systems, minlength=self.count)
        both = np.concatenate([self.cluster, self.cluster])
        met = np.unique(np.column_stack([systems, both]), axis=0)
        return np.bincount(met[:, 0], minlength=self.count)


def firth(wins: Floats) -> Floats:
    """The wins, each way, that Firth's penalty adds to a pair: half its leverage.

    They are as many games as there are strengths to find, one fewer than the systems, and lie
    where single rows decide most. Of two systems it is half a win for each, so that the penalised
    likelihood is the posterior under Jeffreys' prior.

    Args:
        wins: How often the system of the row beat that of the column; all have met, if only
            through others.

    Returns:
        Systems by systems, symmetric.

    Examples:
        >>> firth(np.array([[0.0, 5.0], [0.0, 0.0]])).round(6).tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """
    count, played = len(wins), wins + wins.T
    added = np.where(played > 0, (count - 1) / np.count_nonzero(played), 0.0)
    strength = np.zeros(count)
    for _ in range(_STEPS):
        before, strength = strength, likeliest(wins + added, strength)
        if np.abs(strength - before).max() < _NEAR:
            break
        weights = played * _doubt(strength)
        covariance = _covariance(weights)
        own = np.diag(covariance)
        added = weights * (own[:, None] + own[None, :] - 2 * covariance) / 2
    return added


def likeliest(wins: Floats, start: Floats, held: int | None = None, at: float = 0.0) -> Floats:
    """Strengths, of mean 0, where the likelihood is highest, by Newton's method.

    Args:
        wins: As in `firth`; without a maximum if a group of systems never lost to the rest.
        start: Strengths to begin with.
        held: A system whose strength is given. None: none is.
        at: That strength.

    Examples:
        >>> wins = np.array([[0.0, 3.0], [1.0, 0.0]])
        >>> (2 * likeliest(wins, np.zeros(2))).round(6).tolist() == np.log([3, 1 / 3]).round(6).tolist()
        True
    """  # noqa: E501 - one line of the example
    count, played = len(wins), wins + wins.T
    free = np.arange(count) if held is None else np.delete(np.arange(count), held)
    strength = start.copy()
    if held is not None:
        strength[held] = at
        strength[free] -= strength[free].mean() + at / len(free)
    height = _likelihood(wins, strength)
    for _ in range(_STEPS):
        slope = (wins.sum(axis=1) - (played * _chance(strength)).sum(axis=1))[free]
        bend = _laplacian(played * _doubt(strength))[np.ix_(free, free)]
        # Flat along the mean, which no curvature along it moves; and all but flat where a
        # comparison is decided, where a step goes no farther than is safe.
        bend += 1 / count + _RIDGE * np.eye(len(free))
        step, along = np.linalg.solve(bend, np.column_stack([slope, np.ones(len(free))])).T
        step = step - along * (step.sum() / along.sum())
        step *= min(1.0, _FARTHEST / max(np.abs(step).max(), _NEAR))
        if np.abs(step).max() < _NEAR:
            break
        for _ in range(_STEPS):
            tried = strength.copy()
            tried[free] += step
            if (now := _likelihood(wins, tried)) >= height - 1e-12 * abs(height):
                break
            step = step / 2
        strength, height = tried, now
    return strength


def intervals(counts: Counts, confidence: float) -> tuple[Floats, Floats]:
    """Ends of the profile likelihood of each strength, under Firth's penalty.

    Its fall is measured against Student's distribution on the rows, or clusters, of the system: of
    two systems that is all but Clopper & Pearson's interval when one won all rows. Ties, which say
    more than a win and a loss, and clusters, which say less than their rows, scale the fall by the
    ratio of the variance that they give to that of the model.

    Args:
        counts: The rows; every system has met the others, if only through a third.
        confidence: Of the intervals.

    Returns:
        Low and high ends. Infinite are those on whose side the likelihood has no maximum: a system
        that somebody does not beat, even through others, may be any stronger.
    """
    reach = np.isfinite(library("scipy.sparse.csgraph").shortest_path(counts.wins > 0))
    added = firth(counts.wins)
    wins = counts.wins + added
    top = likeliest(wins, np.zeros(counts.count))
    ratio = _ratio(counts, added, top)
    freedom = counts.units() - (counts.cluster is not None)
    quantile = library("scipy.stats").t.ppf((1 + confidence) / 2, np.maximum(freedom, 1))
    drop = ratio * quantile**2 / 2
    low, high = np.full(counts.count, -np.inf), np.full(counts.count, np.inf)
    for system in range(counts.count):
        if reach[system].all():
            low[system] = _profile_end(wins, top, system, drop[system], -1)
        if reach[:, system].all():
            high[system] = _profile_end(wins, top, system, drop[system], 1)
    return low, high


def _ratio(counts: Counts, added: Floats, strength: Floats) -> Floats:
    """Variance of each strength from the rows, over that which the model says."""
    chance, doubt = _chance(strength), _doubt(strength)
    played = counts.wins + counts.wins.T
    model = _covariance((played + 2 * added) * doubt)
    if counts.cluster is None:
        # A row's variance is p (1 - p), less a quarter of the chance of a tie.
        tied = counts.weighted(4 * counts.share * (1 - counts.share))
        meat = _laplacian(np.maximum(played * doubt - (tied + tied.T) / 4, 0) + 2 * added * doubt)
        own = model @ meat @ model
    else:
        rest = counts.share - chance[counts.first, counts.second]
        scores = np.zeros((counts.groups, counts.count))
        np.add.at(scores, (counts.cluster, counts.first), rest)
        np.add.at(scores, (counts.cluster, counts.second), -rest)
        # What was added counts as one cluster of the usual size: where all rows say the same,
        # nothing else tells that a cluster may be worth no more than one row.
        size = len(rest) / counts.groups
        meat = scores.T @ scores * counts.groups / max(counts.groups - 1, 1)
        meat += _laplacian(size * added * (1 - 2 * doubt))
        own = model @ meat @ model
    return np.asarray(np.diag(own) / np.diag(model))


def _profile_end(wins: Floats, top: Floats, system: int, drop: float, side: int) -> float:
    """Where the likelihood, with one strength held, has fallen by `drop` from its maximum."""
    height, best, state = _likelihood(wins, top), float(top[system]), top

    def beyond(reach: float) -> float:
        nonlocal state
        state = likeliest(wins, state, system, best + side * reach)
        # The root of the fall is all but linear in the reach: few steps find the end.
        return math.sqrt(max(height - _likelihood(wins, state), 0.0)) - math.sqrt(drop)

    far = 1.0
    while beyond(far) < 0:
        far *= 2
        if far > _WIDEST:
            return side * math.inf
    reach: float = library("scipy.optimize").brentq(beyond, 0.0, far, xtol=1e-6)
    return best + side * reach


def _likelihood(wins: Floats, strength: Floats) -> float:
    return -float((wins * np.logaddexp(0.0, strength[None, :] - strength[:, None])).sum())


def _chance(strength: Floats) -> Floats:
    return np.asarray(library("scipy.special").expit(strength[:, None] - strength[None, :]))


def _doubt(strength: Floats) -> Floats:
    chance = _chance(strength)
    return np.asarray(chance * chance.T)


def _laplacian(weights: Floats) -> Floats:
    """Information on the strengths, from that of each pair."""
    return np.asarray(np.diag(weights.sum(axis=1)) - weights)


def _covariance(weights: Floats) -> Floats:
    """Pseudo-inverse of the information, which is flat along the mean."""
    flat = 1 / len(weights)
    return np.asarray(np.linalg.inv(_laplacian(weights) + flat) - flat)

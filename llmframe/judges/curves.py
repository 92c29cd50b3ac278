"""What probabilities of labels are worth, fitted to rows with a known truth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from llmframe.judges.libraries import library
from llmframe.label_scores import Curve, Curves, Scaling, log_odds

__all__ = ["LEAST", "Method", "crossed", "curves", "scaled", "scaling"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]
Method = Literal["platt", "isotonic"]

LEAST: Final = 20
"""Rows of a label from which on it gets a curve of its own."""
_FOLDS: Final = 5
_LEAST: Final = 1e-26  # as little as `label_scores` keeps
_SPREAD: Final = 10.0
"""Standard deviation of the biases before any row is seen: wider than any model's."""


def curves(sure: Floats, right: Bools, labels: npt.NDArray[np.object_], method: Method) -> Curves:
    """A curve for each label with enough rows, and one for all others.

    Args:
        sure: Stated confidence of each row.
        right: Whether its label is right.
        labels: The label, as text.
        method: As in `llmframe.judges.calibration.Calibration.fit`.
    """
    own: dict[str, Curve] = {}
    others = np.ones(len(sure), dtype=bool)
    for label in sorted(set(labels.tolist())):
        here = labels == label
        if here.sum() >= LEAST:
            own[label] = _curve(sure[here], right[here], method)
            others &= ~here
    if others.sum() < LEAST:
        others[:] = True
    return Curves(own, _curve(sure[others], right[others], method))


def crossed(sure: Floats, right: Bools, labels: npt.NDArray[np.object_], method: Method) -> Floats:
    """Confidence of each row by curves that were fitted without it (five-fold)."""
    found = np.empty(len(sure))
    for out in _folds(len(sure)):
        found[out] = curves(sure[~out], right[~out], labels[~out], method)(
            sure[out], labels[out].tolist()
        )
    return found


def scaling(shares: Floats, truth: Codes, labels: tuple[str, ...]) -> Scaling:
    """A slope and a bias for each label, by maximum likelihood.

    Args:
        shares: Probability of each label as the model says it, n rows of k.
        truth: Which label is right; -1 where none of them is.
        labels: The labels as text.
    """
    known = truth >= 0
    logs = np.log(np.maximum(shares[known], _LEAST))
    rows, count = logs.shape
    # As Platt's targets, but of all rows: label by label they leave five labels of twenty rows
    # each far less sure than right (0.73 for 0.83 on the labelled part of banking77).
    target = np.full((rows, count), 1 / (rows + 2) / (count - 1))
    target[np.arange(rows), truth[known]] = (rows + 1) / (rows + 2)

    def loss(line: Floats) -> tuple[float, Floats]:
        slope, bias = np.exp(line[0]), line[1:]
        score = slope * logs + bias
        score -= np.logaddexp.reduce(score, axis=1, keepdims=True)
        off = (np.exp(score) - target) / rows
        # Hardly felt but by a label of which there are next to no rows.
        held = bias / (_SPREAD**2 * rows)
        grown = np.concatenate([[slope * (off * logs).sum()], off.sum(axis=0) + held])
        return float(-(target * score).sum() / rows + bias @ held / 2), grown

    start = np.zeros(count + 1)  # the probabilities as the model says them
    found = library("scipy.optimize").minimize(loss, start, method="BFGS", jac=True).x
    return Scaling(float(np.exp(found[0])), tuple(found[1:].tolist()), labels)


def scaled(shares: Floats, truth: Codes, labels: tuple[str, ...]) -> Floats:
    """Probabilities of each row by a scaling that was fitted without it (five-fold)."""
    found = np.empty_like(shares)
    for out in _folds(len(shares)):
        found[out] = scaling(shares[~out], truth[~out], labels)(shares[out])
    return found


def _folds(count: int) -> Iterator[Bools]:
    fold = np.random.default_rng(0).permutation(count) % _FOLDS
    for one in range(_FOLDS):
        yield fold == one


def _curve(sure: Floats, right: Bools, method: Method) -> Curve:
    return _isotonic(sure, right) if method == "isotonic" else _platt(sure, right)


def _platt(sure: Floats, right: Bools) -> Curve:
    """A logistic curve over the log-odds, to targets that few rows do not drive to 0 and 1."""
    hits = int(right.sum())
    # Platt's targets: the posterior means under a uniform prior.
    target = np.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2))
    odds = log_odds(sure)

    def loss(line: Floats) -> float:
        score = line[0] * odds + line[1]
        return float((np.logaddexp(0, score) - target * score).mean())

    start = np.array([1.0, 0.0])  # the confidence as it is stated
    slope, intercept = library("scipy.optimize").minimize(loss, start, method="BFGS").x.tolist()
    if slope < 0:  # it says nothing, and noise must not turn the order of the rows round
        slope, intercept = 0.0, float(log_odds(target.mean()))
    return Curve((slope, intercept))


def _isotonic(sure: Floats, right: Bools) -> Curve:
    at, place = np.unique(sure, return_inverse=True)
    rows = np.bincount(place)
    found = library("scipy.optimize").isotonic_regression(
        np.bincount(place, weights=right) / rows, weights=rows
    )
    return Curve(tuple(at.tolist()), tuple(found.x.tolist()))

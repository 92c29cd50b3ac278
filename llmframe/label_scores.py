"""What the scores of labels mean: their probabilities, without the model's bias for some labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "CONTENT_FREE",
    "Curve",
    "Curves",
    "Fitted",
    "Scaling",
    "fitted_from",
    "log_odds",
    "probabilities",
]

Method = Literal["contextual", "batch", "none"]

CONTENT_FREE: Final = ("N/A", "", "[MASK]")
"""Inputs that say nothing, in place of a row's text: what the model answers to them is its
bias for some labels, which contextual calibration takes away."""

# Below this a label is as good as impossible; further down the logarithm is rounding noise,
# which calibration would subtract and turn into a confident answer.
_FLOOR: Final = -60.0


def probabilities(
    scores: Sequence[Sequence[float]],
    content_free: Sequence[Sequence[float]] | None,
    method: Method,
) -> npt.NDArray[np.float64]:
    """Probability of each label, from the raw scores of an engine.

    Args:
        scores: Natural-log probabilities, n rows of k labels; a constant that a row's labels
            share makes no difference.
        content_free: The same for inputs that say nothing, any number of rows of k; only
            ``"contextual"`` reads them.
        method: ``"none"``: what the model says. ``"contextual"``: divided by what it says to
            inputs without content (Zhao et al. 2021, Calibrate Before Use). ``"batch"``: divided
            by the geometric mean over all rows (Zhou et al. 2024, Batch Calibration), which
            assumes about as many rows of each label and makes a row's label depend on the
            others. (Geometric, not arithmetic: banking77 as above, 0.90 against 0.67 correct.)
            A single row says nothing about the bias and stays as it is.

    Returns:
        Array of shape (n, k), each row summing to 1.

    Raises:
        ValueError: ``"contextual"`` without `content_free`.

    Examples:
        >>> raw = [[-0.1, -2.4], [-0.7, -0.7]]
        >>> probabilities(raw, [[-0.3, -1.4]], "contextual").argmax(axis=1)
        array([0, 1])
    """
    logs = _log_shares(scores)
    if method == "contextual":
        if content_free is None or not len(content_free):
            raise ValueError('method="contextual" takes the scores of content-free inputs.')
        logs = logs - np.log(np.exp(_log_shares(content_free)).mean(axis=0))
    elif method == "batch" and len(logs) > 1:
        logs = logs - logs.mean(axis=0)
    return np.exp(_normalised(logs))


def _log_shares(scores: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    array = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    # Bounded on both sides of the sum: a label at minus infinity in every row would else take
    # all the probability once its bias is divided out.
    top = array.max(axis=1, keepdims=True, initial=-np.inf)
    array = np.maximum(array - np.where(np.isfinite(top), top, 0.0), _FLOOR)
    return _normalised(array)


def _normalised(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Curve:
    """How often labels of a stated confidence are right.

    Attributes:
        at: Stated confidences, ascending; of Platt's curve its slope and its intercept.
        share: Share of right labels at each of them, straight lines between; None: `at` is
            Platt's curve, a logistic one over the log-odds of the confidence.
    """

    at: tuple[float, ...]
    share: tuple[float, ...] | None = None

    def __call__(self, confidence: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Share of right labels at each stated confidence.

        Examples:
            >>> Curve((0.5, 0.9), (0.2, 0.8))(np.array([0.4, 0.7, 1.0])).round(2).tolist()
            [0.2, 0.5, 0.8]
            >>> Curve((1.0, 0.0))(np.array([0.4, 0.7])).round(2).tolist()
            [0.4, 0.7]
        """
        if self.share is not None:
            return np.interp(confidence, self.at, self.share)
        slope, intercept = self.at
        raised: npt.NDArray[np.float64] = np.exp(-(slope * log_odds(confidence) + intercept))
        return 1.0 / (1.0 + raised)


@dataclass(frozen=True, slots=True)
class Curves:
    """The curve of each label, fitted to rows with a known truth: `llmframe.judges.calibration`.

    A label's own curve, as a model may be right nine times in ten where it says one label and
    one time in ten where it says another, with the same probability (Gupta & Ramdas 2022,
    Top-label Calibration).

    Attributes:
        own: Label as text → its curve.
        rest: The curve of all other labels.
        method: How the stated confidences had been calibrated, as in `probabilities`; None where
            nobody knows.
        model: Whose confidences they were, such as ``"local/SmolLM2-135M-Instruct"``; None where
            nobody knows.
    """

    own: Mapping[str, Curve]
    rest: Curve
    method: Method | None = None
    model: str | None = None

    def __call__(
        self, confidence: npt.NDArray[np.float64], labels: Sequence[Any]
    ) -> npt.NDArray[np.float64]:
        """Probability that each label is right; NaN where the confidence is.

        Args:
            confidence: Of each label, 0 to 1.
            labels: As many.
        """
        texts = np.array([str(label) for label in labels], dtype=object)
        found = self.rest(confidence)
        for label, curve in self.own.items():
            here = texts == label
            found[here] = curve(confidence[here])
        return found

    def stored(self) -> dict[str, Any]:
        """As JSON, for `fitted_from`."""
        return {
            "own": {label: [curve.at, curve.share] for label, curve in self.own.items()},
            "rest": [self.rest.at, self.rest.share],
            "method": self.method,
            "model": self.model,
        }


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bias-corrected temperature scaling of the labels' log-probabilities.

    One slope for all labels, and for each a bias, which takes away what the model, the examples
    or the wording make it say too often (Alexandari, Kundaje & Shrikumar 2020, Maximum Likelihood
    with Bias-Corrected Calibration; the vector scaling of Guo et al. 2017 with one slope).

    Attributes:
        slope: What the log-probabilities are multiplied with.
        bias: What is added then, in the order of the labels.
        labels: The labels as text.
        model: As in `Curves`.
        method: As in `Curves`: the model's own, as a bias for each label is fitted anyway.
    """

    slope: float
    bias: tuple[float, ...]
    labels: tuple[str, ...]
    model: str | None = None
    method: Method = "none"

    def __call__(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Probability that each label is right, from what the model says.

        Args:
            shares: Probability of each label, n rows of k.

        Examples:
            >>> Scaling(2.0, (0.0, 2.0), ("ham", "spam"))(np.array([[0.8, 0.2]])).round(2)
            array([[0.68, 0.32]])
        """
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(shares), _FLOOR)
        return np.exp(_normalised(self.slope * logs + np.array(self.bias)))

    def stored(self) -> dict[str, Any]:
        """As JSON, for `fitted_from`."""
        told = {"slope": self.slope, "bias": self.bias, "labels": self.labels}
        return {**told, "model": self.model}


Fitted = Curves | Scaling
"""What rows with a known truth taught about a model's probabilities."""


def fitted_from(stored: Mapping[str, Any] | None) -> Fitted | None:
    """What `Curves.stored` or `Scaling.stored` kept."""
    if stored is None:
        return None
    if "slope" in stored:
        bias, labels = tuple(stored["bias"]), tuple(stored["labels"])
        return Scaling(stored["slope"], bias, labels, stored["model"])

    def curve(pair: Sequence[Any]) -> Curve:
        return Curve(tuple(pair[0]), None if pair[1] is None else tuple(pair[1]))

    own = {label: curve(pair) for label, pair in stored["own"].items()}
    return Curves(own, curve(stored["rest"]), stored["method"], stored["model"])


def log_odds(confidence: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log-odds of probabilities; those of 0 and 1 stay finite.

    Examples:
        >>> log_odds(np.array([0.5, 1.0])).round(1).tolist()
        [0.0, 13.8]
    """
    bounded = np.clip(confidence, 1e-6, 1 - 1e-6)
    return np.log(bounded / (1 - bounded))

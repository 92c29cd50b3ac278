"""What the scores of labels mean: their probabilities, without the model's bias for some labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["CONTENT_FREE", "probabilities"]

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

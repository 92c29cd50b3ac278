"""The lines of an audit, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.judges.biases import rank_correlation, share
from llmframe.judges.means import Mean, plain

__all__ = ["FEW", "SURE", "Checks"]

Floats = npt.NDArray[np.float64]

SURE: Final = 0.99
"""Confidence at which a finding is told. Several are looked for, so that at 95 % one fair judge in
four would be told something."""
FEW: Final = 10
"""Rows that may all be alike by chance: fewer say nothing against a judge that calls them so."""


class Checks:
    """Collects figures. Each is kept at the confidence that is shown, and returned at `SURE`.

    Args:
        confidence: Of the intervals in the table.
    """

    def __init__(self, confidence: float) -> None:
        self.findings: list[str] = []
        self.notes: list[str] = []
        self._confidence = confidence
        self._lines: list[dict[str, Any]] = []

    def share(self, check: str, parts: Sequence[float], fair: float | None, unit: str) -> Mean:
        """A mean of shares, see `llmframe.judges.biases.share`."""
        return self._add(check, lambda at: share(parts, at), fair, len(parts), unit)

    def mean(self, check: str, values: Sequence[float], fair: float | None, unit: str) -> Mean:
        """A mean with Student's interval."""
        if not values:
            return self._add(check, lambda at: share((), at), fair, 0, unit)
        numbers, own = np.array(values, dtype=np.float64), np.arange(len(values))
        return self._add(check, lambda at: plain(numbers, own, at), fair, len(values), unit)

    def correlation(
        self, check: str, x: Floats, y: Floats, fair: float | None, given: Floats | None = None
    ) -> Mean:
        """Spearman's correlation over rows, see `llmframe.judges.biases.rank_correlation`."""

        def figure(at: float) -> Mean:
            return rank_correlation(x, y, at, given)

        return self._add(check, figure, fair, len(x), "rows")

    def alike(self, told: str, n: int, people: str | None) -> None:
        """Say that a judge makes no difference between the rows.

        Args:
            told: What it says of all of them.
            n: Their number.
            people: How those who were asked differ over the same rows; empty if they do not; None
                if nobody was asked.
        """
        if n < FEW:
            self.notes.append(f"{told}: too few to say whether it can tell them apart.")
        elif people is None:
            self.findings.append(
                f"{told}: it does not tell them apart, or they are all alike; truth= tells."
            )
        elif people:
            self.findings.append(f"{told}, {people}: it does not tell them apart.")
        else:
            self.notes.append(
                f"{told}, and people make no difference either: these rows do not show whether it "
                "can tell others apart."
            )

    def _add(
        self, check: str, figure: Callable[[float], Mean], fair: float | None, n: int, unit: str
    ) -> Mean:
        line = {"check": check, **figure(self._confidence)._asdict()}
        self._lines.append({**line, "fair": np.nan if fair is None else fair, "n": n, "of": unit})
        return figure(SURE)

    def table(self) -> pd.DataFrame:
        """The lines, in the order in which they were added."""
        return pd.DataFrame(self._lines).set_index("check")

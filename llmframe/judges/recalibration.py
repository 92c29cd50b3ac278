"""What a confidence is worth, as rows with a known truth taught it, and how that is used."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe import frames
from llmframe.calls import Call
from llmframe.columns import name_text
from llmframe.errors import SchemaError, StoreError
from llmframe.jobs import Job
from llmframe.judges.findings import Findings
from llmframe.label_scores import Curves, Fitted, probabilities
from llmframe.submits import job
from llmframe.views import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from llmframe.judges.calibration import Calibration

__all__ = ["Origin", "Recalibration", "by_label", "origin_of"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Recalibration(Findings):
    """What a confidence is worth, as learned from rows with a known truth.

    ``classify(…, calibration=fitted)`` gives ``label_confidence`` as the probability that the
    label is right, and `unsure_below` and `below` go by that. It holds for the model, the labels
    and the prompt that gave the rows it was fitted on, and for rows like these.

    Attributes:
        table: A row a label: rows to which the model gave it, mean stated confidence, accuracy; and
            the same afterwards, as in `after`.
        notes: Empty.
        fitted: The curves or the scaling.
        before: Calibration of the stated confidences.
        after: The same of the new ones, each by a fit without its row (five-fold
            cross-validation).
    """

    table: pd.DataFrame
    notes: tuple[str, ...]
    fitted: Fitted
    before: Calibration
    after: Calibration

    def apply(self, confidence: Any, labels: Any) -> pd.Series[Any]:
        """The probability that each label is right.

        Args:
            confidence: Stated confidences, 0 to 1: a Series, or a list.
            labels: The labels, as many.

        Returns:
            Float64 on the index of `confidence`; NA where that is, or where there is no label.

        Raises:
            TypeError: A fit of ``"bias"``, which changes labels.
        """
        if not isinstance(self.fitted, Curves):
            raise TypeError(
                "a fit of method='bias' needs the probabilities of all labels. Give it to the same "
                "call: classify(…, calibration=fitted) asks no row again."
            )
        stated = pd.Series(confidence)
        said = list(labels)
        if len(said) != len(stated):
            raise ValueError(f"{len(stated):,} confidences and {len(said):,} labels.")
        sure = stated.to_numpy(dtype=float, na_value=math.nan)
        missing = pd.isna(pd.Series(said, dtype=object)).to_numpy()
        found = pd.Series(self.fitted(sure, said), stated.index).mask(missing)
        return found.astype("Float64")

    def below(self, loss: float = 0.01) -> float:
        """What to give `classify` as `below`, for a cascade that costs little accuracy.

        The lowest confidence at which the labels that are kept are expected to be wrong in at
        most `loss` of all rows, those that go on counted in. It sums what the confidences of
        `after` leave open, which few rows tell better than the errors among them.

        Args:
            loss: Share of all rows, such as 0.01 for one point of accuracy.

        Returns:
            The confidence; 1.0 where nothing can be kept.

        Examples:
            >>> from llmframe.judges.calibration import calibration
            >>> out = pd.DataFrame({"label": ["a", "b"] * 50, "label_confidence": 0.9})
            >>> out["truth"] = ["a", "b"] * 25 + ["a", "a"] * 25
            >>> fitted = calibration(out, "label", "truth").fit()
            >>> fitted.below(0.01) > 0.95, fitted.below(0.3) < 0.6
            (True, True)
        """
        if not 0 < loss < 1:
            raise ValueError(f"loss={loss!r}: expected a share of all rows, such as 0.01.")
        sure, rows = np.unique(self.after.sure, return_counts=True)
        lost = np.cumsum(((1 - sure) * rows)[::-1]) / rows.sum()
        kept = int((lost <= loss).sum())
        return float(sure[-kept]) if kept else 1.0

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw both reliability diagrams in one; needs matplotlib.

        Args:
            axes: Where to; new ones by default.

        Returns:
            The axes.
        """
        axes = self.before.plot(axes)
        axes = self.after.plot(axes)
        points = axes.get_lines()[1::2]
        names = (("stated", self.before), ("afterwards", self.after))
        for line, (name, found) in zip(points, names, strict=True):
            line.set_label(f"{name}: ECE {found.ece:.3f}")
        axes.legend(loc="upper left")
        axes.set_title(f"{self.before.n:,} rows, five-fold cross-validation")
        return axes

    def _title(self) -> str:
        before, after = self.before, self.after
        return (
            f"Recalibration on {counted(before.n, 'row')}: ECE {before.ece:.3f} before, "
            f"{after.ece:.3f} after, Brier {before.brier:.3f} and {after.brier:.3f} (five-fold)"
        )


def by_label(before: Calibration, after: Calibration) -> pd.DataFrame:
    """What stated confidences were worth, and what the new ones are, label by label."""
    sides = []
    for found, end in ((before, ""), (after, " after")):
        rows = pd.DataFrame(
            {
                "label": found.labels,
                f"n{end}": 1,
                f"confidence{end}": found.sure,
                f"accuracy{end}": found.right.astype(float),
            }
        )
        by = rows.groupby("label")
        sides.append(by.mean().assign(**{f"n{end}": by.size()}))
    both = pd.concat(sides, axis=1).sort_index().rename_axis("label")
    for name in ("n", "n after"):
        both[name] = both[name].fillna(0).astype(int)
    return both


@dataclass(frozen=True, slots=True)
class Origin:
    """Where confidences come from.

    Attributes:
        job: The job that wrote them.
        call: What it asked.
        out: The rows.
        truth: The right label of each, as `ratings` reads it; None where unknown.
    """

    job: Job
    call: Call
    out: pd.DataFrame
    truth: tuple[Any, ...]

    @property
    def model(self) -> str:
        """Whose confidences they are."""
        return self.job.model

    def shares(self) -> tuple[Floats, npt.NDArray[np.int64], tuple[str, ...]]:
        """Probability of each label as the model says it, the right one, and the labels.

        Raises:
            SchemaError: There are none, or not of these rows.
        """
        labels = self.call.labels
        outcome = self.job.on(self.out)
        places = outcome.work.inverse.tolist()
        scored = [place in outcome.scores for place in places]
        if labels is None or not all(scored):
            gone = len(places) - sum(scored)
            raise SchemaError(
                f"{counted(gone, 'row')} of {len(places):,} have no stored probabilities of all "
                "labels under their text. Take the frame as classify gave it, or 'platt'."
            )
        shares = probabilities([outcome.scores[place] for place in places], None, "none")
        code = {value: place for place, value in enumerate(labels.values)}
        truth = np.array([code.get(value, -1) for value in self.truth], dtype=np.int64)
        return shares, truth, tuple(str(value) for value in labels.values)


def origin_of(out: pd.DataFrame, confidence: Hashable, truth: tuple[Any, ...]) -> Origin | None:
    """The job that wrote the confidences, where it is known."""
    written = frames.written(out).get(name_text(confidence))
    try:
        made = None if written is None else job(written)
    except StoreError:  # purged, or another store's
        return None
    return None if made is None else Origin(made, made.call, out, truth)

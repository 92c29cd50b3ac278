"""Whether a confidence of 0.9 is right nine times in ten, and where to stop believing it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.columns import name_text
from llmframe.errors import SchemaError
from llmframe.judges import curves
from llmframe.judges.findings import Findings, finite, shown
from llmframe.judges.libraries import library
from llmframe.judges.means import wilson
from llmframe.judges.ratings import column, numeric, ratings
from llmframe.judges.recalibration import Origin, Recalibration, by_label, origin_of
from llmframe.label_scores import Fitted
from llmframe.views import Sheet, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Calibration", "Threshold", "calibration"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_FEW: Final = 20
"""Rows a bin below which ECE measures noise: a calibrated model's is then well above 0."""


@dataclass(frozen=True, repr=False)
class Threshold(Sheet):
    """A confidence from which on answers are taken.

    Attributes:
        threshold: Take a row whose confidence is at least this; NaN where none is enough.
        precision: Share of right answers among the rows taken; NaN where none is.
        low: Lower end of its interval (Wilson).
        high: Upper end.
        coverage: Share of the rows that are taken.
        n: Rows taken.
        note: What to know before using it; empty where nothing.
    """

    threshold: float
    precision: float
    low: float
    high: float
    coverage: float
    n: int
    note: str

    def _title(self) -> str:
        return (
            f"Take what is at least {shown(self.threshold)} sure: {self.coverage:.1%} of the rows"
        )

    def _lines(self) -> Iterable[tuple[str, str]]:
        interval = f"95% interval {shown(self.low)} to {shown(self.high)}"
        yield "precision", f"{shown(self.precision)}, {interval}"
        yield "rows", f"{self.n:,}"
        if self.note:
            yield "note", self.note


@dataclass(frozen=True, repr=False)
class Calibration(Findings):
    """What `calibration` found.

    Attributes:
        table: The reliability table, a row a bin: rows, mean confidence, accuracy, low, high.
        ece: Expected calibration error: mean distance of confidence and accuracy, over the bins.
        brier: Brier score of "the label is right": mean squared distance of confidence and truth.
        accuracy: Share of right labels.
        confidence: Mean confidence; above the accuracy the model is too sure of itself.
        n: Rows with label, truth and confidence.
        notes: Rows that were left out, and where data are few.
        labels: The label of each of the rows, as text.
        sure: Its confidence.
        right: Whether it is right.
    """

    table: pd.DataFrame
    ece: float
    brier: float
    accuracy: float
    confidence: float
    n: int
    notes: tuple[str, ...]
    sure: Floats
    right: Bools
    labels: npt.NDArray[np.object_]
    _bins: int
    _origin: Origin | None

    def threshold(self, precision: float = 0.95) -> Threshold:
        """The lowest confidence from which on labels are right often enough.

        It is read off the same rows that it is judged by, so on new rows precision falls short a
        little; the lower end of its interval says by how much it may.

        Args:
            precision: Wanted share of right labels among those taken.

        Examples:
            >>> out = pd.DataFrame({"label": list("xxxxyyyy"), "truth": list("xxxyyyyx")})
            >>> out["label_confidence"] = [0.9, 0.8, 0.9, 0.4, 0.9, 0.7, 0.8, 0.3]
            >>> found = calibration(out, "label", "truth").threshold(0.95)
            >>> found.threshold, found.precision, found.coverage
            (0.7, 1.0, 0.75)
        """
        if not (finite(precision) and 0 < precision <= 1):
            raise ValueError(f"precision={precision!r}: expected a share, above 0 and at most 1.")
        order = np.argsort(-self.sure, kind="stable")
        sure, right = self.sure[order], self.right[order]
        # Rows of one confidence are taken together.
        ends = np.append(np.flatnonzero(np.diff(sure)), len(sure) - 1)
        reached = np.cumsum(right)[ends] / (ends + 1)
        enough = np.flatnonzero(reached >= precision - 1e-12)
        if not len(enough):
            note = f"no confidence reaches {precision:.0%}; the best is {reached.max():.1%}."
            return Threshold(math.nan, math.nan, math.nan, math.nan, 0.0, 0, note)
        last = int(ends[enough[-1]])
        n = last + 1
        share, low, high = wilson(int(right[:n].sum()), n, 0.95)
        note = (
            f"{counted(n, 'row')} cannot tell {precision:.0%} from {low:.0%}: label more rows "
            "before relying on it."
            if low < precision
            else ""
        )
        return Threshold(float(sure[last]), share, low, high, n / len(sure), n, note)

    def fit(self, method: Literal["platt", "isotonic", "bias"] = "platt") -> Recalibration:
        """Learn from these rows what a confidence is worth, for rows without a known truth.

        Args:
            method: ``"platt"``: a logistic curve over the log-odds of the confidence (Platt 1999,
                Probabilistic Outputs for Support Vector Machines), two figures, so that few rows
                suffice. ``"isotonic"``: any rising steps (Zadrozny & Elkan 2002, Transforming
                Classifier Scores into Accurate Multiclass Probability Estimates), which take
                hundreds of rows a label and else believe what is chance. With both a label that
                the model gave to at least 20 of the rows has a curve of its own, the others share
                one, and labels stay as they are. ``"bias"``: a slope, and a bias for each label,
                on all the probabilities of a row (Alexandari et al. 2020), so that a label which
                the model gives too often gives way to the next: the one to take where a small
                model is sure and wrong. It reads the stored replies, so `out` must be a frame
                that `classify` gave, with the columns that the prompt reads.

        Returns:
            What `classify` takes as its ``calibration=``.

        Raises:
            SchemaError: Fewer than 40 rows; confidences that are calibrated so already; for
                ``"bias"``, rows whose replies or probabilities are not in the store.

        Examples:
            >>> out = pd.DataFrame({"label": ["bug", "question"] * 40, "label_confidence": 0.9})
            >>> out["truth"] = ["bug", "question", "bug", "bug"] * 20
            >>> fitted = out.pipe(calibration, "label", "truth").fit()
            >>> fitted.apply([0.9, 0.9], ["bug", "question"]).round(2).tolist()
            [0.98, 0.5]
        """
        if method not in ("platt", "isotonic", "bias"):
            raise ValueError(f"method={method!r}: expected 'platt', 'isotonic' or 'bias'.")
        least = 2 * curves.LEAST
        if self.n < least:
            raise SchemaError(f"{counted(self.n, 'row')}: expected at least {least} to fit.")
        origin = self._origin
        if origin is not None and origin.call.fitted is not None:
            raise SchemaError(
                "these confidences come from classify(calibration=a fit): fit the model's own, "
                "from a call without it."
            )
        fitted: Fitted
        if method == "bias":
            if origin is None:
                raise SchemaError(
                    "method='bias' reads the probabilities of all labels, and no job in the store "
                    "wrote these confidences. Take the frame that classify gave, or 'platt'."
                )
            shares, truth, names = origin.shares()
            fitted = curves.scaling(shares, truth, names)
            crossed = curves.scaled(shares, truth, names)
            best = crossed.argmax(axis=1)
            sure, right = crossed.max(axis=1), best == truth
            labels = np.array(names, dtype=object)[best]
        else:
            labels, right = self.labels, self.right
            fitted = curves.curves(self.sure, right, labels, method)
            sure = curves.crossed(self.sure, right, labels, method)
            if origin is not None:
                fitted = replace(fitted, method=origin.call.calibration)
        if origin is not None:
            fitted = replace(fitted, model=origin.model)
        after = _measured(sure, right, labels, self._bins, 0, None)
        return Recalibration(by_label(self, after), (), fitted, self, after)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the reliability diagram, accuracy over confidence; needs matplotlib.

        Args:
            axes: Where to; new ones by default.

        Returns:
            The axes.
        """
        if axes is None:
            _, axes = library("matplotlib.pyplot").subplots()
        given = self.table[self.table["n"] > 0]
        x, y, low, high = (
            given[name].to_numpy(float) for name in ("confidence", "accuracy", "low", "high")
        )
        axes.plot([0, 1], [0, 1], linestyle=":", color="grey")
        axes.vlines(x, low, high, linewidth=1)
        axes.plot(x, y, marker="o", clip_on=False)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy, 95% interval")
        axes.set_title(f"ECE {self.ece:.3f}, {self.n:,} rows")
        return axes

    def _title(self) -> str:
        return (
            f"Calibration of {counted(self.n, 'row')}: ECE {self.ece:.3f}, Brier {self.brier:.3f}, "
            f"accuracy {self.accuracy:.3f}, mean confidence {self.confidence:.3f}"
        )


def calibration(
    out: pd.DataFrame,
    label: Hashable,
    truth: Hashable,
    *,
    confidence: Hashable | None = None,
    bins: int = 10,
) -> Calibration:
    """Whether the confidence of labels says how often they are right.

    Bins of equal width, as Guo et al. (2017), On Calibration of Modern Neural Networks: a
    confidence on an edge belongs to the bin below it.

    Args:
        out: The frame.
        label: Column of the labels, as `classify` gives it.
        truth: Column of the true labels, NA where nobody knows.
        confidence: Column of the confidences, 0 to 1; by default ``<label>_confidence``.
        bins: Number of bins.

    Raises:
        SchemaError: The columns cannot be read so, or no row has all three.
        PromptError: There is no such column.
        ModelError: The extra ``judge`` is not installed.

    Examples:
        >>> out = pd.DataFrame({"label": ["x", "y", "x", "x"], "truth": ["x", "y", "y", "x"]})
        >>> out["label_confidence"] = [0.9, 0.6, 0.6, 0.9]
        >>> found = calibration(out, "label", "truth", bins=2)
        >>> round(found.ece, 3), round(found.brier, 3)  # one bin of mean confidence 0.75
        (0.0, 0.135)
    """
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        raise ValueError(f"bins={bins!r}: expected a whole number, at least 1.")
    name = f"{name_text(label)}_confidence" if confidence is None else confidence
    sure, _ = numeric(out, name)
    wrong = sure[np.isfinite(sure) & ((sure < 0) | (sure > 1))]
    if len(wrong):
        raise SchemaError(f"{name_text(name)!r} holds {wrong[0]:g}: expected shares from 0 to 1.")
    found = ratings(out, [label, truth], ordered=False)
    codes = found.codes
    used = (codes >= 0).all(axis=1) & np.isfinite(sure)
    n = int(used.sum())
    if not n:
        raise SchemaError("no row has a label, a truth and a confidence.")
    labels = column(out, label).astype(str).to_numpy(dtype=object)[used]
    right = codes[used, 0] == codes[used, 1]
    right_ones = tuple(found.values[code] for code in codes[used, 1])
    origin = origin_of(out.loc[used], name, right_ones)
    measured = _measured(sure[used], right, labels, bins, len(out) - n, origin)
    notes = found.spelt_alike()
    if not np.isin(codes[used, 1], codes[used, 0]).any():
        notes.append(f"no value of {name_text(truth)!r} occurs in {name_text(label)!r} at all.")
    return replace(measured, notes=(*notes, *measured.notes))


def _measured(
    sure: Floats,
    right: Bools,
    labels: npt.NDArray[np.object_],
    bins: int,
    left: int,
    origin: Origin | None,
) -> Calibration:
    """The figures of rows whose confidence and truth are known.

    Args:
        sure: Their confidences.
        right: Whether their labels are right.
        labels: Their labels, as text.
        bins: Number of bins.
        left: Rows that were left out.
        origin: The job that gave the confidences, where it is known.
    """
    n = len(sure)
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    hits = np.bincount(place[right], minlength=bins)
    totals = np.bincount(place, weights=sure, minlength=bins)
    intervals = [
        wilson(int(k), int(m), 0.95) if m else None for k, m in zip(hits, counts, strict=True)
    ]
    with np.errstate(invalid="ignore"):
        table = pd.DataFrame(
            {
                "n": counts,
                "confidence": totals / counts,
                "accuracy": hits / counts,
                "low": [math.nan if i is None else i.low for i in intervals],
                "high": [math.nan if i is None else i.high for i in intervals],
            },
            index=pd.IntervalIndex.from_breaks(edges.round(10), name="bin"),
        )
    notes = []
    if left:
        notes.append(f"{counted(left, 'row')} left out: label, truth or confidence is missing.")
    occupied = int((counts > 0).sum())
    if n < _FEW * occupied:
        notes.append(
            f"{counted(n, 'row')} in {counted(occupied, 'bin')}: so few that a well calibrated "
            "model would show an ECE above 0, too. Use fewer bins or more rows."
        )
    return Calibration(
        table=table,
        ece=float(np.abs(totals - hits).sum() / n),
        brier=float(((sure - right) ** 2).mean()),
        accuracy=float(right.mean()),
        confidence=float(sure.mean()),
        n=n,
        notes=tuple(notes),
        sure=sure,
        right=right,
        labels=labels,
        _bins=bins,
        _origin=origin,
    )

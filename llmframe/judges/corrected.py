"""The mean that humans would give to all rows, from a judge and a few labels."""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.columns import name_text
from llmframe.errors import SchemaError
from llmframe.judges.findings import Findings, finite, shown
from llmframe.judges.libraries import library
from llmframe.judges.means import Mean, plain, prediction_powered, rogan_gladen, wilson
from llmframe.judges.ratings import clusters, numeric
from llmframe.views import Sheet, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Corrected", "Labels", "corrected", "how_many_labels"]

Floats = npt.NDArray[np.float64]

_APART: Final = 3
"""Times that one range of scores is wider than the other, from which on they are two scales."""
_FEW: Final = 30
"""Labelled rows, or clusters, below which an interval rests on the shape of the errors."""


@dataclass(frozen=True, repr=False)
class Corrected(Findings):
    """What `corrected` found.

    Attributes:
        table: A row an estimate: ``naive`` (the judge alone, whose interval knows nothing of its
            errors), ``human_only``, and the corrected one; estimate, low, high, and n, the rows.
        notes: What to know before using it.
        estimate: The corrected estimate.
        low: Lower end of its interval.
        high: Upper end.
        weight: How far the judge was followed: 0 not at all; NaN for Rogan-Gladen.
        confidence: Of the intervals.
    """

    table: pd.DataFrame
    notes: tuple[str, ...]
    estimate: float
    low: float
    high: float
    weight: float
    confidence: float

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the estimates with their intervals; needs matplotlib.

        Args:
            axes: Where to; new ones by default.

        Returns:
            The axes.
        """
        return self._draw(list(self.table.index), axes, f"mean, {self.confidence:.0%} interval")

    def _title(self) -> str:
        interval = f"{shown(self.low)} to {shown(self.high)}"
        return f"Corrected mean {shown(self.estimate)}, {self.confidence:.0%} interval {interval}"


def corrected(
    out: pd.DataFrame,
    score: Hashable,
    truth: Hashable,
    *,
    method: Literal["ppi", "rogan_gladen"] = "ppi",
    weight: float | None = None,
    cluster: Hashable | None = None,
    confidence: float = 0.95,
) -> Corrected:
    """Mean score or pass rate of all rows as humans would give it, with an interval that holds.

    The judge scored all rows, humans a part of them. The mean of the judge's scores is as wrong as
    the judge; the mean of the humans' is right and uncertain. Prediction-powered inference takes
    the judge's mean and subtracts the error that it shows on the labelled rows. A judge that is no
    use costs nothing: it is followed only as far as it makes the interval shorter (PPI++).

    **The labelled rows must be drawn at random** from all rows. Where they were drawn by their
    class, 50 passes and 50 fails, ``method="rogan_gladen"`` is right and the others are not.

    Args:
        out: The frame.
        score: The judge's column: numbers, or booleans for a pass rate.
        truth: The humans' column, NA where nobody labelled the row.
        method: ``"ppi"``: Angelopoulos, Duchi & Zrnic (2023), PPI++. ``"rogan_gladen"``, for yes or
            no: the rate behind a judge of the sensitivity and specificity that the labelled rows
            show (Rogan & Gladen 1978), interval by Lang & Reiczigel (2014).
        weight: How far ``"ppi"`` follows the judge; 1 is plain prediction-powered inference, None
            what makes the interval shortest.
        cluster: Column that says which rows belong together, for the interval of ``"ppi"``.
        confidence: Of the intervals.

    Raises:
        SchemaError: A column holds neither numbers nor booleans, or fewer than three rows have
            both.
        PromptError: There is no such column.
        ModelError: The extra ``judge`` is not installed.

    Examples:
        >>> out = pd.DataFrame({"score": [4, 5, 3, 4, 5, 4, 2, 5] * 10})
        >>> out["human"] = (out["score"] - 1).where(out.index % 4 == 0)
        >>> found = corrected(out, "score", "human")
        >>> found.table["estimate"].round(2).tolist()
        [4.0, 3.5, 3.0]
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r}: expected a share between 0 and 1, as 0.95.")
    if method not in ("ppi", "rogan_gladen"):
        raise ValueError(f'method={method!r}: expected "ppi" or "rogan_gladen".')
    if weight is not None and not finite(weight):
        raise ValueError(f"weight={weight!r}: expected None, or a number, most often 0 to 1.")
    judge, judge_binary = numeric(out, score)
    human, human_binary = numeric(out, truth)
    binary = judge_binary and human_binary
    group = clusters(out, cluster)
    own = np.arange(len(out)) if group is None else group
    judged, labelled = np.isfinite(judge), np.isfinite(human)
    both = judged & labelled
    if both.sum() < 3:
        raise SchemaError(
            f"{counted(int(both.sum()), 'row')} with both {name_text(score)!r} and "
            f"{name_text(truth)!r}: expected at least 3. Label a random part of the rows."
        )
    notes = _left_out(judged, labelled, score)

    def simple(values: Floats, rows: npt.NDArray[np.bool_], is_binary: bool) -> Mean:
        if is_binary and group is None:
            return wilson(int(values[rows].sum()), int(rows.sum()), confidence)
        mean = plain(values[rows], own[rows], confidence)
        # Clusters of a pass rate: Student's interval knows nothing of 0 and 1.
        return Mean(mean.estimate, max(0.0, mean.low), min(1.0, mean.high)) if is_binary else mean

    naive, alone = simple(judge, judged, judge_binary), simple(human, labelled, human_binary)
    used = math.nan
    if method == "rogan_gladen":
        found = _rate(judge, human, judged, both, binary, cluster, confidence)
        if math.isnan(found.estimate):
            notes.append(
                "no Rogan-Gladen estimate: the labelled rows lack a class, or the judge does no "
                "better on them than a coin."
            )
    elif both.sum() == judged.sum():
        found = alone
        notes.append("every judged row is labelled, so the judge adds nothing.")
    else:
        found, used = prediction_powered(
            judge[judged], human[judged], both[judged], own[judged], confidence, weight
        )
        without, _ = prediction_powered(
            judge[judged], human[judged], both[judged], own[judged], confidence, 0.0
        )
        notes.append(_worth(judge[both], human[both], without, found))
        notes += _scales(judge[judged], human[labelled], score, truth)
    if (count := len(np.unique(own[both]))) < _FEW:
        what = "labelled rows" if group is None else "clusters with a label"
        notes.append(f"{count} {what} are few: below {_FEW} take the interval as a guide.")
    table = pd.DataFrame(
        {"naive": naive, "human_only": alone, method: found}, index=["estimate", "low", "high"]
    ).T.rename_axis("method")
    table["n"] = [int(judged.sum()), int(labelled.sum()), int(judged.sum())]
    return Corrected(table, tuple(notes), *found, used, confidence)


@dataclass(frozen=True, repr=False)
class Labels(Sheet):
    """What `how_many_labels` found.

    Attributes:
        labels: Rows to label beside the judge.
        human_only: Rows to label without a judge.
        width: Of the interval, from end to end.
        sd: Standard deviation of the humans' answers.
        correlation: Between judge and humans.
        rows: Rows that are judged.
    """

    labels: int
    human_only: int
    width: float
    sd: float
    correlation: float
    rows: int

    def _title(self) -> str:
        return f"{counted(self.labels, 'label')} for an interval of width {self.width:g}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "without a judge", f"{self.human_only:,}"
        yield "sd", shown(self.sd)
        yield "correlation", shown(self.correlation)
        yield "judged rows", f"{self.rows:,}"


def how_many_labels(
    width: float,
    out: pd.DataFrame | None = None,
    score: Hashable = None,
    truth: Hashable = None,
    *,
    sd: float | None = None,
    correlation: float | None = None,
    rows: int | None = None,
    confidence: float = 0.95,
) -> Labels:
    """How many rows to label so that `corrected` gives an interval of a wanted width.

    Either from a pilot, a frame of which some rows are labelled, or from what you assume. The
    variance is that of PPI++ with the best weight: ``sd² / n · (1 - correlation² · (rows - n) /
    rows)``.

    Args:
        width: Of the interval, from end to end: 0.1 for ±0.05.
        out: A pilot: all judged rows, some of them labelled.
        score: The judge's column.
        truth: The humans' column.
        sd: Standard deviation of the humans' answers; of a pass rate p it is √(p(1 - p)), at most
            0.5. Read from the pilot.
        correlation: Pearson's, between judge and humans. Read from the pilot.
        rows: Rows that are, or will be, judged. Those of the pilot.
        confidence: Of the interval.

    Raises:
        ValueError: Something is neither given nor in a pilot, or no number of labels is enough.
        SchemaError: The pilot has fewer than three rows with both, or labels that are all alike.

    Examples:
        >>> found = how_many_labels(0.1, sd=0.5, correlation=0.8, rows=2000)
        >>> found.labels, found.human_only
        (161, 387)
    """
    if out is not None:
        judge, human = numeric(out, score)[0], numeric(out, truth)[0]
        both = np.isfinite(judge) & np.isfinite(human)
        if both.sum() < 3:
            raise SchemaError(f"{counted(int(both.sum()), 'row')} with both: expected at least 3.")
        if (sd is None or correlation is None) and not np.ptp(human[both]):
            raise SchemaError(
                f"the {int(both.sum()):,} labels of the pilot are all alike, so nothing says how "
                "far the others spread. Label more rows, or give sd= and correlation=."
            )
        sd = float(human[both].std(ddof=1)) if sd is None else sd
        rows = int(np.isfinite(judge).sum()) if rows is None else rows
        if correlation is None:
            spread = judge[both].std() * human[both].std()
            correlation = float(np.corrcoef(judge[both], human[both])[0, 1]) if spread else 0.0
    if sd is None or correlation is None or rows is None:
        raise ValueError("give a pilot (out, score, truth), or sd=, correlation= and rows=.")
    if not (
        all(map(finite, (width, sd, correlation, rows, confidence)))
        and width > 0
        and sd > 0
        and -1 <= correlation <= 1
        and rows > 2
        and 0 < confidence < 1
    ):
        raise ValueError(
            f"width={width!r}, sd={sd!r}, correlation={correlation!r}, rows={rows!r}, "
            f"confidence={confidence!r}: expected width > 0, sd > 0, a correlation between -1 and "
            "1, more than 2 rows and a confidence between 0 and 1."
        )
    t = library("scipy.stats").t

    def reached(n: int, squared: float, freedom: int) -> float:
        variance = sd**2 / n * (1 - squared * max(0, rows - n) / rows)
        return 2 * float(t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(variance)

    def least(squared: float, most: int, lost: int) -> int:
        sizes = range(2 + lost, most + 1)
        place = bisect.bisect_left(sizes, -width, key=lambda n: -reached(n, squared, n - 1 - lost))
        return sizes[place] if place < len(sizes) else most + 1

    labels = min(least(correlation**2, rows, 1), least(0.0, rows, 0))
    if labels > rows:
        raise ValueError(
            f"width={width!r} is out of reach: all {rows:,} rows labelled give "
            f"{reached(rows, 0.0, rows - 1):.3g}. Judge more rows, or take a wider interval."
        )
    return Labels(labels, least(0.0, 10**9, 0), width, sd, correlation, rows)


def _rate(
    judge: Floats,
    human: Floats,
    judged: npt.NDArray[np.bool_],
    both: npt.NDArray[np.bool_],
    binary: bool,
    cluster: Hashable | None,
    confidence: float,
) -> Mean:
    if not binary:
        raise SchemaError('method="rogan_gladen" is for yes or no: expected booleans, or 0 and 1.')
    if cluster is not None:
        raise ValueError('method="rogan_gladen" knows no clusters. Use method="ppi".')
    # Not the labelled rows: where they were drawn by their class, their pass rate is that choice.
    rest = judged & ~both
    if not rest.any():
        raise SchemaError("every judged row is labelled: their own pass rate is the answer.")
    passed, failed = both & (human == 1), both & (human == 0)
    return rogan_gladen(
        int(judge[rest].sum()),
        int(rest.sum()),
        int(judge[passed].sum()),
        int(passed.sum()),
        int((1 - judge[failed]).sum()),
        int(failed.sum()),
        confidence,
    )


def _left_out(
    judged: npt.NDArray[np.bool_], labelled: npt.NDArray[np.bool_], score: Hashable
) -> list[str]:
    if judged.all():
        return []
    unjudged = int((~judged).sum())
    also = int((labelled & ~judged).sum())
    return [
        f"{counted(unjudged, 'row')} without {name_text(score)!r} left out ({also:,} labelled): "
        "the estimate is one of the rows that could be judged."
    ]


def _worth(judge: Floats, human: Floats, without: Mean, found: Mean) -> str:
    """What the judge adds, told in labels.

    Args:
        judge: Of the rows that have both.
        human: Of these rows.
        without: The mean and interval of the same method that does not follow the judge.
        found: That which follows it.
    """
    if np.ptp(judge) == 0:
        return "the judge says the same of every labelled row, so it adds nothing."
    if np.ptp(human) == 0:
        return "the labels are all alike, so what the judge is worth cannot be told."
    ours, theirs = found.high - found.low, without.high - without.low
    if not (math.isfinite(ours) and math.isfinite(theirs) and 0 < ours < theirs):
        return "the judge does not make the interval shorter than the labels alone do."
    alike = round(len(human) * (theirs / ours) ** 2)
    return f"the {len(human):,} labels and the judge are worth {alike:,} labels without it."


def _scales(judge: Floats, human: Floats, score: Hashable, truth: Hashable) -> list[str]:
    """A remark where judge and humans seem to use different scales."""
    ours, theirs = np.ptp(judge), np.ptp(human)
    if not (ours and theirs) or 1 / _APART < ours / theirs < _APART:
        return []
    scales = [
        f"{name_text(name)!r} goes from {values.min():g} to {values.max():g}"
        for name, values in ((score, judge), (truth, human))
    ]
    return [f"{' and '.join(scales)}: on different scales the naive mean says nothing."]

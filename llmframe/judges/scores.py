"""Audit of a judge that scores: does it go by length, and does it say the same twice?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import stdev
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.errors import SchemaError
from llmframe.judges.biases import alike, alike_across
from llmframe.judges.checks import FEW, SURE, Checks
from llmframe.judges.means import plain
from llmframe.judges.ratings import numeric, ratings
from llmframe.outcomes import Outcome
from llmframe.panels import Votes
from llmframe.prepared import Prepared

__all__ = ["IN_POINTS", "check", "look", "marks"]

Floats = npt.NDArray[np.float64]

IN_POINTS: Final = ("spread", "reworded_shift")
_NOISY: Final = 0.1
"""Part of the scale that a row's votes are apart, from which on that is told: 0.4 on 1 to 5."""
_DIFFERS: Final = 0.2
"""Share of pairs of votes that differ, from which on that is told, where there are no distances."""


def check(call: Prepared) -> None:
    """Refuse what has no score to look at.

    Raises:
        SchemaError: Criteria on a scale of labels have no total.
    """
    panel = _panel(call)
    if panel.kind == "category" and panel.criteria:
        raise SchemaError(
            "criteria on a scale of labels have no total to audit. Audit one criterion at a time, "
            "as a rubric of its own. Nothing was sent."
        )


def marks(data: pd.DataFrame, name: Hashable, call: Prepared) -> Floats:
    """What people say of the rows, as numbers; labels by their place on the scale.

    Raises:
        SchemaError: A cell is not on the scale.
    """
    panel = _panel(call)
    if panel.kind != "category":
        return numeric(data, name)[0]
    order = pd.CategoricalDtype(list(panel.scale), ordered=True)
    beside = pd.DataFrame(
        {"scale": pd.Categorical([panel.scale[0]] * len(data), dtype=order), "truth": None}
    )
    beside["truth"] = data[name].astype(object).to_numpy()
    codes = ratings(beside, ["scale", "truth"], ordered=True).codes[:, 1]
    return np.where(codes < 0, np.nan, codes.astype(np.float64))


def look(
    checks: Checks,
    outcomes: Sequence[Outcome],
    long: Floats,
    truth: Floats | None,
) -> None:
    """Add the checks of scores.

    Args:
        checks: Where to.
        outcomes: Of the rubric and, where it was asked too, of its other wording.
        long: Characters of each answer.
        truth: As `marks`; None: nobody said.
    """
    panel = outcomes[0].work.call.panel
    assert isinstance(panel, Votes), "only called for judge"
    scored, votes = _scores(panel, outcomes[0])
    if panel.votes > 1:
        _votes(checks, panel, votes)
    judged = ~np.isnan(scored)
    _discerning(checks, panel, scored[judged], None if truth is None else truth[judged])
    found = checks.correlation("length_correlation", scored[judged], long[judged], None)
    if truth is None:
        if found.low > 0 or found.high < 0:
            way, which = ("rise", "longer") if found.low > 0 else ("fall", "shorter")
            checks.findings.append(
                f"its scores {way} with the length of the answer (correlation "
                f"{found.estimate:.2f}, {int(judged.sum()):,} rows): it prefers {which} answers, "
                f"or these are the better ones in your rows; truth= tells."
            )
    else:
        known = judged & ~np.isnan(truth)
        found = checks.correlation(
            "length_given_truth", scored[known], long[known], 0.0, truth[known]
        )
        if found.low > 0 or found.high < 0:
            way = "longer" if found.low > 0 else "shorter"
            checks.findings.append(
                f"it prefers {way} answers: among those that people score alike its scores go with "
                f"the length (correlation {found.estimate:.2f}, {int(known.sum()):,} rows)."
            )
    if len(outcomes) > 1:
        _reworded(checks, panel, (scored, votes), _scores(panel, outcomes[1]))


def _panel(call: Prepared) -> Votes:
    panel = call.call.panel
    assert isinstance(panel, Votes), "judge prepares votes"
    return panel


def _scores(panel: Votes, outcome: Outcome) -> tuple[Floats, list[list[float]]]:
    """Score of each row, NaN where there is none, and its votes that came."""

    def number(mark: Any) -> float:
        return float(panel.scale.index(mark) if panel.kind == "category" else mark)

    rows = outcome.rows()
    scored = [np.nan if row is None else number(row[0]) for row in rows]
    votes = [
        []
        if row is None
        else [
            number(vote) for vote in (row[-1] if panel.votes > 1 else row[:1]) if vote is not None
        ]
        for row in rows
    ]
    return np.array(scored, dtype=np.float64), votes


def _discerning(checks: Checks, panel: Votes, scored: Floats, truth: Floats | None) -> None:
    """Whether it gives rows different scores at all."""
    values, times = np.unique(scored, return_counts=True)
    commonest = values[times.argmax()] if len(values) else np.nan
    checks.share("same_score", (scored == commonest).astype(float).tolist(), None, "rows")
    if len(values) != 1 or len(scored) < 2:
        return
    mark: Any = float(values[0])
    if panel.kind == "category":
        mark = repr(panel.scale[int(mark)])
    elif panel.kind == "bool":
        mark = bool(mark)
    else:
        mark = f"{mark:g}"
    people = None
    if truth is not None:
        known = truth[~np.isnan(truth)]
        differ = len(np.unique(known)) > 1
        people = None if not len(known) else "where people give different ones" if differ else ""
    checks.alike(f"all {len(scored):,} rows get the same score, {mark}", len(scored), people)


def _votes(checks: Checks, panel: Votes, votes: Sequence[Sequence[float]]) -> None:
    several = [own for own in votes if len(own) > 1]
    same = checks.share("votes_alike", [alike(own) for own in several], 1.0, "rows")
    if panel.kind == "int":
        spread = checks.mean("spread", [stdev(own) for own in several], 0.0, "rows")
        if spread.low > _NOISY * (panel.scale[-1] - panel.scale[0]):
            checks.findings.append(
                f"it is not sure of its scores: the votes on a row are {spread.estimate:.2g} "
                f"points apart (standard deviation, {len(several):,} rows)."
            )
    elif same.high < 1 - _DIFFERS:
        checks.findings.append(
            f"it contradicts itself: {1 - same.estimate:.0%} of two votes on one row differ "
            f"({len(several):,} rows)."
        )


def _reworded(
    checks: Checks,
    panel: Votes,
    one: tuple[Floats, list[list[float]]],
    other: tuple[Floats, list[list[float]]],
) -> None:
    both = np.flatnonzero(~np.isnan(one[0]) & ~np.isnan(other[0])).tolist()
    across = [alike_across(one[1][place], other[1][place]) for place in both]
    same = checks.share("reworded_alike", across, 1.0, "rows")
    shift = checks.mean(
        "reworded_shift", [other[0][place] - one[0][place] for place in both], 0.0, "rows"
    )
    if len(both) >= FEW and (shift.low > 0 or shift.high < 0):
        way, size = "higher" if shift.low > 0 else "lower", abs(shift.estimate)
        told = f"{size:.0%} of the rows" if panel.kind == "bool" else f"{size:.2g} points"
        checks.findings.append(
            f"other words make its scores {way}, by {told} on the mean of {len(both):,} rows."
        )
    if panel.votes == 1:
        if same.high < 1 - _DIFFERS:
            checks.findings.append(
                f"other words change its score in {1 - same.estimate:.0%} of {len(both):,} rows."
            )
        return
    # Two votes under one wording differ too; only what is beyond that is the wording's doing.
    within = {
        place: (alike(one[1][place]) + alike(other[1][place])) / 2
        for place in both
        if min(len(one[1][place]), len(other[1][place])) > 1
    }
    beyond = [within[place] - across[k] for k, place in enumerate(both) if place in within]
    if len(beyond) < FEW:
        return
    if plain(np.array(beyond), np.arange(len(beyond)), SURE).low > 0:
        noise = 1 - float(np.mean(list(within.values())))
        checks.findings.append(
            f"other words change its scores: {1 - same.estimate:.0%} of two votes differ where "
            f"each is under another wording, {noise:.0%} where both are under one "
            f"({len(beyond):,} rows)."
        )

"""Whether a judge can be believed: an audit on the user's own rows, by the verbs themselves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe import frames
from llmframe.grading import prepare_compare, prepare_judge
from llmframe.judges import pairs, scores
from llmframe.judges.checks import Checks
from llmframe.judges.findings import Findings
from llmframe.judges.resampling import check
from llmframe.outcomes import Outcome
from llmframe.plans import Plans
from llmframe.prepared import Prepared
from llmframe.prompts import build, source_template
from llmframe.submits import plan as plan_one
from llmframe.submits import submit
from llmframe.views import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Audit", "audit"]

_VOTES: Final = 3
_FEW: Final = 30
"""Rows below which an audit finds only what is glaring."""
_OURS: Final = ("into", "if_exists", "details", "flatten", "dtype_backend", "swap", "expected")
"""Keywords of the verbs about columns, of which there are none here, and what the audit sets."""


@dataclass(frozen=True, repr=False)
class Audit(Findings):
    """What `audit` found.

    Attributes:
        table: A line a check: estimate, low and high; ``fair``, what a judge without the fault
            would show, NA where that depends on the data; ``n``, and of what: rows, pairs,
            replies.
        findings: What speaks against the judge, in words; empty where nothing does.
        notes: The findings, and what must be known to read them.
    """

    table: pd.DataFrame
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    judged: str
    confidence: float

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the shares and correlations, with what a fair judge shows as a cross.

        What is in points of the scale is left out. Needs matplotlib.

        Args:
            axes: Where to; new ones by default.

        Returns:
            The axes.
        """
        known = self.table["estimate"].notna() & ~self.table.index.isin(scores.IN_POINTS)
        shown = self.table[known]
        axes = replace(self, table=shown)._draw(
            [str(name) for name in shown.index], axes, f"{self.confidence:.0%} interval"
        )
        places = np.arange(len(shown), 0, -1)
        axes.plot(
            shown["fair"].to_numpy(float), places, linestyle="", marker="x", color="grey", zorder=3
        )
        return axes

    def _title(self) -> str:
        told = counted(len(self.findings), "finding") if self.findings else "nothing found"
        if not self.findings and not self.table["n"].drop("unparseable").any():
            told = "nothing known"
        return f"Audit of a judge on {self.judged}: {told}; {self.confidence:.0%} intervals"


@overload
def audit(data: Any, rubric: Any, *, plan: Literal[False] = False, **given: Any) -> Audit: ...
@overload
def audit(data: Any, rubric: Any, *, plan: Literal[True], **given: Any) -> Plans: ...
def audit(
    data: Any,
    rubric: Any,
    *,
    answer: Any = None,
    a: Any = None,
    b: Any = None,
    question: Any = None,
    reference: Any = None,
    again: Any = None,
    truth: Hashable | None = None,
    n: int | None = None,
    confidence: float = 0.95,
    plan: bool = False,
    **keywords: Any,
) -> Audit | Plans:
    """How far a judge can be believed on your rows: its likings, and how firm its scores are.

    With `answer` it audits `judge`, with `a` and `b` it audits `compare`. It sends what these
    verbs send, and nothing else: what they were asked before is not paid again, and an audit
    that was interrupted goes on with the same call. Of a large frame pass a sample,
    ``df.sample(200, random_state=0)``.

    | check | of | what it is |
    |---|---|---|
    | ``inconsistent`` | compare | pairs whose winner changes with the order |
    | ``first_favoured`` | compare | of these, the share in which the first place won |
    | ``ties`` | compare | pairs called a tie in both orders |
    | ``longer_wins`` | compare | pairs won, in both orders, by the longer text |
    | ``longer_in_errors`` | compare | the same where `truth` names the other as the winner |
    | ``votes_alike`` | judge | pairs of votes on one row with the same score |
    | ``spread`` | judge | standard deviation of a row's votes, in points |
    | ``same_score`` | judge | rows with the commonest score |
    | ``length_correlation`` | judge | Spearman's, of the score and the characters of the answer |
    | ``length_given_truth`` | judge | the same among answers of the same `truth` (partial) |
    | ``reworded_alike`` | both | the same score, or winner, under `again`; votes are paired |
    | ``reworded_shift`` | judge | mean score under `again`, less that under `rubric`, in points |
    | ``unparseable`` | both | replies that were no score, after all repairs |

    A finding is told where a 99 % interval leaves no doubt of it, as several are looked for.

    Args:
        data: DataFrame; or, with a rubric of scores, a Series of answers.
        rubric: As `judge` takes it; with `a` and `b` the criterion, as `compare` takes it.
        answer: What is scored: a column name or a template.
        a: One of two texts, likewise.
        b: The other.
        question: What was asked, likewise.
        reference: A right answer, likewise.
        again: The rubric, or the criterion, in other words: asked too.
        truth: Column of what people say: scores, or ``"a"``, ``"b"`` and ``"tie"``; NA where
            nobody said. With it a liking for length is told from longer answers being better.
        n: Votes a row, a single number, for `answer` alone; 3 by default, 1 leaves
            self-consistency out.
        confidence: Of the intervals in the table.
        plan: True: say what it would send and cost, and send nothing.
        **keywords: Of `judge` (``scale``, ``explain``) or `compare` (``ties``, ``explain``), and
            those of every verb but the ones about columns.

    Returns:
        An `Audit`; with `plan` a `llmframe.plans.Plans`.

    Raises:
        TypeError: Neither `answer` nor `a` and `b` is given, or both; or a keyword does not
            belong here. Nothing was sent.
        SchemaError: The rubric, the scale or `truth` cannot be used; nothing was sent.
        PromptError: A column is unknown; nothing was sent.

    Examples:
        >>> import llmframe as lf
        >>> df = pd.DataFrame({"x": [f"text {k}" for k in range(40)], "y": "another text"})
        >>> engine = lf.testing.FakeEngine({"reason": "It comes first.", "winner": "first"})
        >>> found = lf.audit(df, "Which is better?", a="x", b="y", model=engine)
        >>> float(found.table.loc["inconsistent", "estimate"])
        1.0
        >>> print(found.findings[0])
        it prefers the first answer: 40 of 40 pairs (100%) change their winner with the order, 100% of these to the first place.
    """  # noqa: E501 - the finding is one line
    check(confidence, draws=100)
    paired = a is not None or b is not None
    if wrong := next((name for name in keywords if name in _OURS), None):
        why = (
            "compare is always asked in both orders"
            if wrong == "swap"
            else "the audit reads the scores that were given"
            if wrong == "expected"
            else "an audit writes no column"
        )
        raise TypeError(f"audit() takes no {wrong}=: {why}. Leave it out.")
    if paired and (answer is not None or n not in (None, 1)):
        name = "answer" if answer is not None else "n"
        raise TypeError(
            f"audit() takes a= and b=, or {name}=, not both: a pair is asked once in each order. "
            f"Nothing was sent."
        )
    if paired and (a is None or b is None):
        raise TypeError("audit() of a comparison takes both a= and b=. Nothing was sent.")
    if not paired and answer is None and not isinstance(data, pd.Series):
        raise TypeError(
            "audit() takes answer= for a judge that scores, or a= and b= for one that compares. "
            "Nothing was sent."
        )
    texts = {"question": question, "reference": reference, **keywords, "if_exists": "replace"}

    def prepared(wording: Any) -> Prepared:
        if paired:
            return prepare_compare(data, a, b, wording, **texts)
        votes = _VOTES if n is None else n
        if isinstance(votes, tuple):
            raise TypeError(
                f"audit() takes one number as n=, not {votes}: votes that stop where they agree "
                f"agree more often than the judge does. Nothing was sent."
            )
        return prepare_judge(data, wording, answer=answer, n=votes, **texts)

    calls = [prepared(wording) for wording in (rubric, again) if wording is not None]
    if not paired:
        scores.check(calls[0])
    if truth is not None and not isinstance(data, pd.DataFrame):
        raise TypeError("truth= names a column, so audit() takes a DataFrame with it.")
    won = pairs.winners(data, truth) if truth is not None and paired else None
    marks = scores.marks(data, truth, calls[0]) if truth is not None and not paired else None
    if plan:
        names = ("rubric", "again")[: len(calls)]
        return Plans("an audit", dict(zip(names, map(plan_one, calls), strict=True)))
    outcomes = [_asked(call) for call in calls]
    checks = Checks(confidence)
    if paired:
        long = [_lengths(data, source, outcomes[0]) for source in (a, b)]
        pairs.look(checks, outcomes, long[0], long[1], won)
    else:
        long_answer = _lengths(data, "{}" if answer is None else answer, outcomes[0])
        scores.look(checks, outcomes, long_answer, marks)
    _replies(checks, outcomes)
    judged = sum(row is not None for row in outcomes[0].rows())
    unit = "pair" if paired else "row"
    caveats = []
    if not judged:
        caveats.append(f"no {unit} was judged, so nothing is known of the judge.")
    elif judged < _FEW:
        verb = "shows" if judged == 1 else "show"
        caveats.append(f"{counted(judged, unit)} {verb} only what is glaring: audit more of them.")
    return Audit(
        checks.table(),
        tuple(checks.findings),
        (*checks.findings, *checks.notes, *caveats),
        counted(judged, unit),
        confidence,
    )


def _asked(prepared: Prepared) -> Outcome:
    job = submit(prepared)
    job.check()
    return job.outcome()


def _lengths(data: Any, source: Any, outcome: Outcome) -> npt.NDArray[np.float64]:
    """Characters of each row's text; NaN for the rows that were not judged."""
    table = frames.Table(data)
    text = source_template(source, table.names, table.index_names)
    prompt = build(text, table.names, table.index_names, blank=True)
    rows = table.rows(prompt.columns)
    return np.array(
        [
            np.nan if row is None else len(str(prompt.render(rows[place])[-1]["content"]))
            for place, row in enumerate(outcome.rows())
        ],
        dtype=np.float64,
    )


def _replies(checks: Checks, outcomes: Sequence[Outcome]) -> None:
    """Replies that were no score, and requests that have no reply."""
    good, bad, silent = 0, 0, 0
    for outcome in outcomes:
        good += sum(values is not None for values in outcome.values)
        lost = list(outcome.losses.values())
        bad += sum(one.raw is not None for one in lost)
        silent += sum(one.raw is None for one in lost)
    told = checks.share("unparseable", [1.0] * bad + [0.0] * good, 0.0, "replies")
    if bad:
        checks.findings.append(
            f"{told.estimate:.1%} of its replies are no score ({bad:,} of {good + bad:,})."
        )
    if silent:
        checks.notes.append(
            f"{counted(silent, 'request')} came to no reply and are left out; the same call asks "
            f"them again."
        )

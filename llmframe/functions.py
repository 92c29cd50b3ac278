"""The verbs as functions: for checkers, for `pipe`, and where ``df.llm`` is another package's."""

from __future__ import annotations

from typing import Any, Unpack, cast, overload

import pandas as pd

from llmframe import comparisons
from llmframe.accessor import ITSELF, Columns, document, result
from llmframe.compared import Comparison
from llmframe.grading import prepare_compare, prepare_judge
from llmframe.jobs import Job
from llmframe.keywords import Common, described, spelled_out
from llmframe.verbs import (
    prepare_classify,
    prepare_extract,
    prepare_filter,
    prepare_map,
)

__all__ = ["classify", "compare", "extract", "filter", "judge", "map"]


@overload
def map(
    data: pd.DataFrame, prompt: Any, schema: Any = None, **common: Unpack[Common]
) -> pd.DataFrame: ...
@overload
def map(data: pd.Series, prompt: Any, schema: Any = None, **common: Unpack[Common]) -> Columns: ...
def map(data: Any, prompt: Any, schema: Any = None, **common: Any) -> Any:
    """Ask the model about each row.

    Args:
        data: DataFrame or Series.
        prompt: A template such as ``"Summarise: {ticket}"``, or a callable that gets a read-only
            dict of the row and returns text or messages.
        schema: What to answer with: a pydantic model, ``{"name": type}``, a bare type, a JSON
            Schema …; None: text.
        **common: Keywords of every verb.

    Returns:
        The frame with a column ``response``, or one typed column a field of `schema`.

    Raises:
        PromptError: The prompt names an unknown column, or none; nothing was sent.
        SchemaError: The schema or an output column cannot be used; nothing was sent.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> engine = lf.testing.FakeEngine(lambda text: text.upper())
        >>> df = pd.DataFrame({"word": ["one", "two"]})
        >>> lf.map(df, "{word}", model=engine)["response"].tolist()
        ['ONE', 'TWO']
    """
    return result(prepare_map(data, prompt, schema, **common))


@overload
def classify(data: pd.DataFrame, source: Any, labels: Any, **keywords: Any) -> pd.DataFrame: ...
@overload
def classify(data: pd.Series, source: Any, **keywords: Any) -> Columns: ...
def classify(data: Any, source: Any = None, labels: Any = None, **keywords: Any) -> Any:
    """Give each row one of `labels`.

    Args:
        data: DataFrame, or a Series (then `source` is left out).
        source: A column name, a template, or a list of column names.
        labels: A list, a dict label → description, an Enum or a Literal. A dict label → dict, or
            list, holds labels under a label: ``billing > refund``.
        multi: Any number of labels a row, as a list.
        explain: Reason before the label, in a column ``label_reason``.
        confidence: Add ``label_confidence``, the label's probability, where the engine scores.
        calibration: How scores become probabilities: ``"contextual"`` (against content-free
            texts), ``"batch"`` (against the batch's mean; for balanced labels), ``"none"``, or
            what labelled rows taught: ``lf.calibration(out, "label", "truth").fit()``.
        other: One more label, for what none of the others fits; True names it ``none of these``.
        unsure_below: Leave rows without a label where its probability is lower: NA, counted in a
            warning, with the confidence beside it. Another value asks nothing again.
        escalate_to: A stronger model for the rows whose probability is lower than `below`, and
            for those that fail; a warning and ``out.llm.report()`` say how many, what it cost and
            what it saved. It is a second call, after the first; ``label_confidence`` is the first
            model's.
        below: Probability below which rows go to `escalate_to`.
        **keywords: Keywords of every verb.

    Returns:
        The frame with a Categorical column ``label``.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> engine = lf.testing.FakeEngine({"label": "bug"})
        >>> df = pd.DataFrame({"ticket": ["It crashes."]})
        >>> lf.classify(df, "ticket", ["bug", "question"], model=engine)["label"].tolist()
        ['bug']
    """
    if isinstance(data, pd.Series) and (labels is None or source is None):
        source, labels = ITSELF, source if labels is None else labels
    return result(prepare_classify(data, source, labels, **keywords))


@overload
def extract(
    data: pd.DataFrame, source: Any, schema: Any, **common: Unpack[Common]
) -> pd.DataFrame: ...
@overload
def extract(data: pd.Series, source: Any, **common: Unpack[Common]) -> Columns: ...
def extract(data: Any, source: Any = None, schema: Any = None, **common: Any) -> Any:
    """Take the fields of `schema` out of a text.

    Args:
        data: DataFrame, or a Series (then `source` is left out).
        source: A column name, a template, or a list of column names.
        schema: As in `map`; required.
        **common: Keywords of every verb.

    Returns:
        The frame with one typed column a field.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> engine = lf.testing.FakeEngine({"city": "Oslo"})
        >>> df = pd.DataFrame({"note": ["Sent from Oslo."]})
        >>> lf.extract(df, "note", {"city": str}, model=engine)["city"].tolist()
        ['Oslo']
    """
    if isinstance(data, pd.Series) and (schema is None or source is None):
        source, schema = ITSELF, source if schema is None else schema
    return result(prepare_extract(data, source, schema, **common))


@overload
def filter(
    data: pd.DataFrame, condition: Any, *, keep_failed: bool = False, **common: Unpack[Common]
) -> pd.DataFrame: ...
@overload
def filter(
    data: pd.Series, condition: Any, *, keep_failed: bool = False, **common: Unpack[Common]
) -> pd.Series: ...
def filter(data: Any, condition: Any, *, keep_failed: bool = False, **common: Any) -> Any:
    """Keep the rows for which a condition holds.

    Args:
        data: DataFrame or Series.
        condition: A template, such as ``"This is a complaint: {ticket}"``.
        keep_failed: Keep the rows without an answer too; else a warning counts them.
        **common: Keywords of every verb.

    Returns:
        The rows as they were; no column is added.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> engine = lf.testing.FakeEngine(lambda text: {"holds": "late" in text})
        >>> df = pd.DataFrame({"ticket": ["It was late.", "Thanks!"]})
        >>> lf.filter(df, "A complaint: {ticket}", model=engine)["ticket"].tolist()
        ['It was late.']
    """
    return result(prepare_filter(data, condition, keep_failed=keep_failed, **common))


@overload
def judge(data: pd.DataFrame, rubric: Any, *, answer: Any, **keywords: Any) -> pd.DataFrame: ...
@overload
def judge(data: pd.Series, rubric: Any, **keywords: Any) -> Columns: ...
def judge(data: Any, rubric: Any, **keywords: Any) -> Any:
    """Let a model score each row by a rubric.

    Args:
        data: DataFrame, or a Series (then `answer` is left out).
        rubric: What to go by: a text, a `Rubric`, or criteria as a list of names or a dict
            name → description. Criteria are scored apart, in columns ``score_<criterion>``, and
            ``score`` is their weighted mean.
        answer: What is judged: a column name or a template.
        question: What was asked, likewise; None: the answer stands alone.
        reference: A right answer to compare with, likewise; rows without one are judged without.
        scale: ``(low, high)`` for whole numbers, ``"binary"`` for pass or fail, or labels from
            the worst to the best.
        explain: Reason before the score, in a column ``score_reason``.
        expected: Add ``score_expected``, the mean of the scores weighted by their probabilities
            (as in G-Eval), where the engine gives these; takes ``explain=False``.
        n: Votes a row, each a request of its own, at temperature 1 where you give none. The score
            is their median (of an even number the lower of the middle two); ``score_spread`` says
            how far they are apart, and ``score_votes`` lists them. A row with half of its votes
            or more missing has no score. ``(2, 5)`` asks two at first, and a row whose votes
            differ on, up to five, until no vote that is left could change its score.
        **keywords: Keywords of every verb.

    Returns:
        The frame with ``score``: Int64 for numbers, boolean for ``"binary"``, an ordered
        Categorical for labels, Float64 for a total of criteria. NA where there is no judgement.

    Raises:
        SchemaError: The rubric or the scale cannot be used; nothing was sent.
        PromptError: A column is unknown; nothing was sent.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> engine = lf.testing.FakeEngine({"reason": "It is short and right.", "score": 5})
        >>> df = pd.DataFrame({"asked": ["2 + 2?"], "said": ["4"]})
        >>> out = lf.judge(df, "Is it right?", question="asked", answer="said", model=engine)
        >>> out["score"].tolist(), out["score"].dtype
        ([5], Int64Dtype())
    """
    return result(prepare_judge(data, rubric, **keywords))


@overload
def compare(
    data: pd.DataFrame, a: Any, b: Any, criterion: str, **keywords: Any
) -> pd.DataFrame: ...
@overload
def compare(data: Job | str, a: Job | str, df: Any = None) -> Comparison: ...
def compare(data: Any, a: Any = None, *others: Any, **keywords: Any) -> Any:  # noqa: D417 - the overloads name them
    """Let a model say which of two texts is the better one, or see what changed between two jobs.

    ``lf.compare(df, a, b, criterion)`` asks a model which of two texts is the better one, row by
    row; all below is about that. ``lf.compare(job_a, job_b, df=None)`` asks nobody: it puts two
    runs side by side, by index label or, with `df`, by the prompts of that frame's rows, and gives
    a `llmframe.compared.Comparison` with ``counts``, ``changed``, ``confusion``, ``agreement``,
    ``cost`` and ``plot()``.

    Args:
        data: DataFrame.
        a: One text: a column name or a template.
        b: The other.
        criterion: What makes one the better, such as ``"Which answer is more helpful?"``.
        question: What both answer, as a column name or a template; None: they stand alone.
        reference: A right answer, likewise; rows without one are compared without.
        swap: Ask in both orders, two requests a row: where they name different winners, which is
            the judge's liking for a place, there is none.
        ties: Neither need be better.
        explain: Reason before the winner, in a column ``winner_reason``.
        **keywords: Keywords of every verb.

    Returns:
        The frame with a Categorical ``winner`` (``a``, ``b`` and, with `ties`, ``tie``), and with
        `swap` a boolean ``winner_consistent``.

    Raises:
        SchemaError: The criterion cannot be used; nothing was sent.
        PromptError: A column is unknown; nothing was sent.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> def polite(text):
        ...     first, _ = text.split("<second>")
        ...     return {"winner": "first" if "please" in first else "second"}
        >>> df = pd.DataFrame({"x": ["Wait, please."], "y": ["Wait."]})
        >>> engine = lf.testing.FakeEngine(polite)
        >>> out = lf.compare(df, "x", "y", "Politer?", explain=False, model=engine)
        >>> out["winner"].tolist(), out["winner_consistent"].tolist()
        (['a'], [True])
    """
    if a is None:
        raise TypeError(
            "lf.compare takes two jobs, lf.compare(job_a, job_b), or a frame and what is compared "
            'in it, lf.compare(df, "a", "b", "Which is more helpful?").'
        )
    if not isinstance(data, pd.DataFrame | pd.Series) or isinstance(a, pd.DataFrame | Job):
        return comparisons.compare(data, a, *others, **keywords)
    return result(prepare_compare(data, a, *others, **keywords))


# What a checker sees in the overloads, for `help` and completion; and the same words wherever the
# verb is: on frames and Series, as plan, as job, awaited.
for _verb, _prepare in (
    (map, prepare_map),
    (classify, prepare_classify),
    (extract, prepare_extract),
    (filter, prepare_filter),
    (judge, prepare_judge),
    (compare, prepare_compare),
):
    cast(Any, _verb).__signature__ = spelled_out(_prepare, 0, self=False)
    _verb.__doc__ = described(_verb.__doc__)
    document(_verb.__name__, _verb.__doc__)

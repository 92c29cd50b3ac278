"""The verbs as functions: for checkers, for `pipe`, and where ``df.llm`` is another package's."""

from __future__ import annotations

from typing import Any, Unpack, cast, overload

import pandas as pd

from llmframe.accessor import ITSELF, Columns, document, result
from llmframe.keywords import Common, described, spelled_out
from llmframe.verbs import (
    prepare_classify,
    prepare_extract,
    prepare_filter,
    prepare_map,
)

__all__ = ["classify", "extract", "filter", "map"]


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
        labels: A list, a dict label → description, an Enum or a Literal.
        multi: Any number of labels a row, as a list.
        explain: Reason before the label, in a column ``label_reason``.
        confidence: Add ``label_confidence``, the label's probability, where the engine scores.
        calibration: How scores become probabilities: ``"contextual"`` (against content-free
            texts), ``"batch"`` (against the batch's mean; for balanced labels), ``"none"``.
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


# What a checker sees in the overloads, for `help` and completion; and the same words wherever the
# verb is: on frames and Series, as plan, as job, awaited.
for _verb, _prepare in (
    (map, prepare_map),
    (classify, prepare_classify),
    (extract, prepare_extract),
    (filter, prepare_filter),
):
    cast(Any, _verb).__signature__ = spelled_out(_prepare, 0, self=False)
    _verb.__doc__ = described(_verb.__doc__)
    document(_verb.__name__, _verb.__doc__)

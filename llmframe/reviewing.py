"""The answers in a frame, and the job that gave them, become a review."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from llmframe import frames
from llmframe.calls import Call
from llmframe.columns import Columns, companion, name_text
from llmframe.errors import PromptError, StoreError
from llmframe.review_rows import Order, ReviewRows, place_of
from llmframe.reviews import Review
from llmframe.row_texts import asked_of_a_series
from llmframe.submits import job

__all__ = ["review", "review_series"]


def review(
    data: pd.DataFrame,
    column: Hashable,
    *,
    text: Any = None,
    order: Order = "auto",
    into: Hashable | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Review:
    """Look through the answers in a column: accept them, or say what is right.

    In a notebook, as the last line of a cell, it pages through the rows with buttons
    (``pip install "llmframe[notebook]"``); in code `accept`, `correct` and `skip` do the same.
    Nothing is sent.

    Args:
        data: A frame with a model's answers.
        column: Which.
        text: What is shown of a row: a column, a template, a list of columns, a function of the
            row, or a Series on the frame's index, which becomes a column of it. None: the cells
            that the prompt uses.
        order: ``"confidence"``: the least sure first; ``"failures"``: rows without an answer
            first; None: as they stand. ``"auto"`` is ``"confidence"`` where the frame has the
            column ``<column>_confidence``, else ``"failures"``.
        into: Column for the right answers; None: ``<column>_reviewed``. Where the frame has it,
            its values count as reviewed.
        path: A file that keeps each mark as it is made; what it holds already is taken over.

    Returns:
        A `Review`: ``column()`` and ``apply(df)`` give the right answers back, ``examples(n)``
        makes them the ``examples=`` of the next run, ``save`` and ``load`` keep them.

    Raises:
        PromptError: The frame has no such column, or nothing says what text belongs to it.
        SchemaError: Column `into` holds something else.
        ValueError: No such order, or there is no confidence to order by.

    Examples:
        >>> import llmframe as lf
        >>> df = pd.DataFrame({"t": ["It crashes.", "Add a dark mode."]})
        >>> engine = lf.testing.FakeEngine({"label": "bug"})
        >>> out = df.llm.classify("t", ["bug", "feature"], model=engine)
        >>> found = out.llm.review("label")
        >>> found.accept()
        >>> found.correct("feature")
        >>> found.apply(out)[["label", "label_reviewed"]]
          label label_reviewed
        0   bug            bug
        1   bug        feature
    """
    place = place_of(data, column)
    if place is None:
        names = Columns(frames.Table(data).names)
        raise names.unknown(name_text(column), braces=False, sends=False)
    name = frames.Table(data).names[place]
    data = data.copy(deep=False)  # rows that are dropped in place later must not shift the others
    if isinstance(text, pd.Series):
        text = _added(data, text)
    call, losses, answered = _origin(data, name, text)
    rows = ReviewRows(
        data, name, text=text, order=order, call=call, losses=losses, answered=answered
    )
    into = companion(name, "reviewed") if into is None else into
    return Review(rows, into, None if path is None else Path(path))


def review_series(
    data: pd.Series[Any],
    *,
    text: Any = None,
    order: Order = "auto",
    into: Hashable | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Review:
    """Look through the answers that a verb on a Series gave, beside the Series that it was about.

    Args:
        data: A model's answers.
        text: The Series that was asked, on the same index; it is shown, and is a column of what
            ``apply`` gives.
        order: As for frames.
        into: As for frames.
        path: As for frames.

    Returns:
        A `Review`, as of the frame that has both.

    Raises:
        PromptError: `text` is no Series on the same index, or has the name of the answers.

    Examples:
        >>> import llmframe as lf
        >>> s = pd.Series(["It crashes.", "Add a dark mode."], name="ticket")
        >>> labels = ["bug", "feature"]
        >>> out = s.llm.classify(labels, model=lf.testing.FakeEngine({"label": "bug"}))
        >>> found = out.llm.review(text=s)
        >>> found.accept()
        >>> found.correct("feature")
        >>> found.examples()
                     ticket    label
        1  Add a dark mode.  feature
        0       It crashes.      bug
    """
    if not isinstance(text, pd.Series):
        raise PromptError(
            f"text={text!r}: the answers are a Series, which does not hold what they are about. "
            f"Pass the Series that was asked, out.llm.review(text=s)."
        )
    name = "answer" if data.name is None else data.name
    frame = data.to_frame(name)
    frame.attrs = data.attrs
    return review(frame, name, text=text, order=order, into=into, path=path)


def _added(data: pd.DataFrame, text: pd.Series[Any]) -> Hashable:
    """Make a Series the first column of a frame; gives its name."""
    if not text.index.equals(data.index):
        raise PromptError(
            f"text is a Series of {len(text):,} rows on other index labels than the "
            f"{len(data):,} answers; expected the Series that was asked, in the same order. Take "
            f"text.loc[out.index] where the labels are unique."
        )
    name = 0 if text.name is None else text.name  # as the prompts of a Series call it
    if name_text(name) in map(name_text, frames.Table(data).names):
        raise PromptError(
            f"text is a Series named {name_text(name)!r}, and the frame has a column of that name. "
            f"Give it another one, text=s.rename('text')."
        )
    data.insert(0, name, text)
    return name


def _origin(
    data: pd.DataFrame, name: Hashable, text: Any
) -> tuple[Call | None, dict[int, str], list[int]]:
    """The call that wrote a column, where that is known; why rows have no answer; which have one.

    Where no cell is missing nobody has to look.
    """
    id = frames.written(data).get(name_text(name))
    if id is None:
        return None, {}, []
    try:
        found = job(id)
    except StoreError:
        if text is None:
            raise
        return None, {}, []
    asked: Any = data
    if asked_of_a_series(found.call):
        place = place_of(data, text) if isinstance(text, Hashable) else None
        asked = None if place is None else data.iloc[:, place]
    if asked is None or not data.iloc[:, place_of(data, name) or 0].isna().any():
        return found.call, {}, []
    outcome = found.on(asked)
    losses = {k: f"{x.failure.kind}: {x.failure.message}" for k, x in outcome.lost_rows()}
    answered = [k for k, row in enumerate(outcome.rows()) if row is not None]
    return found.call, losses, answered

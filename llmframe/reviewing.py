"""The answers in a frame, and the job that gave them, become a review."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from llmframe import frames
from llmframe.columns import Columns, companion, name_text
from llmframe.errors import StoreError
from llmframe.review_rows import Order, ReviewRows, place_of
from llmframe.reviews import Review
from llmframe.submits import job

__all__ = ["review"]


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
        text: What is shown of a row: a column, a template, a list of columns, or a function of
            the row. None: the cells that the prompt uses.
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
    id = frames.written(data).get(name_text(name))
    call, losses = None, {}
    if id is not None:
        try:
            found = job(id)
        except StoreError:
            if text is None:
                raise
        else:
            call = found.call
            if data.iloc[:, place].isna().any():
                lost = found.on(data).lost_rows()
                losses = {k: f"{x.failure.kind}: {x.failure.message}" for k, x in lost}
    data = data.copy(deep=False)  # rows that are dropped in place later must not shift the others
    rows = ReviewRows(data, name, text=text, order=order, call=call, losses=losses)
    into = companion(name, "reviewed") if into is None else into
    return Review(rows, into, None if path is None else Path(path))

"""The rows of a frame as a reviewer sees them: texts, answers, order, and what may be entered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe import frames
from llmframe.calls import Call
from llmframe.columns import Columns, companion, name_text
from llmframe.dtypes import make_series, text_dtype
from llmframe.editing import Editor, editor
from llmframe.errors import SchemaError, warn_user
from llmframe.marks import Mark
from llmframe.rendering import is_missing
from llmframe.row_texts import inputs, row_texts
from llmframe.schemas.values import Field

__all__ = ["Order", "ReviewRows", "Shown", "place_of"]

Order = Literal["auto", "confidence", "failures"] | None

_ORDERS: Final = ("auto", "confidence", "failures", None)


@dataclass(frozen=True, slots=True)
class Shown:
    """A row under review.

    Attributes:
        position: In the frame, from 0.
        label: Its index label.
        text: What the model was asked about.
        answer: What it said; None where there is no answer, or where it is null.
        null: The model answered with null: the text says nothing of it.
        reason: Why, where it was asked.
        confidence: From 0 to 1, where it is known.
        failure: Why there is no answer, where that is known.
        mark: What was said of the row so far.
    """

    position: int
    label: Any
    text: str
    answer: Any
    null: bool = False
    reason: str | None = None
    confidence: float | None = None
    failure: str | None = None
    mark: Mark | None = None


class ReviewRows:
    """What is known of the rows, whatever a person says of them.

    Args:
        data: The frame.
        name: The column whose answers are looked at; its label in the frame.
        text: As `llmframe.row_texts.row_texts` takes it.
        order: Which rows come first.
        call: What the model was asked, where that is known.
        losses: Why rows have no answer, by position.
        answered: Positions of the rows that have one, where that is known: also those whose
            answer is null.

    Attributes:
        answers: The column's cells as plain values.
        editor: What may be entered.
        keys: By which a row is known in another frame; None where it has no text.
        queue: Positions of the rows that have a text, in the order of the review.
    """

    def __init__(
        self,
        data: pd.DataFrame,
        name: Hashable,
        *,
        text: Any,
        order: Order,
        call: Call | None,
        losses: Mapping[int, str],
        answered: Collection[int] = (),
    ) -> None:
        self.data, self.name = data, name
        self._call, self._losses = call, losses
        self._source = row_texts(data, text, call)
        self._texts = self._source.of(data)
        self.keys = self._source.keys(data, self._texts)
        self.answers = _cells(data, name) or []
        self._reasons = _cells(data, companion(name, "reason"))
        self._confidence = _confidence(data, companion(name, "confidence"))
        self.editor = _editor(data, name, call)
        self._answered = frozenset(answered)
        self._nulls = {
            place
            for place in self._answered
            if self.editor.nullable and is_missing(self.answers[place])
        }
        self.queue = [k for k in self._ordered(order) if self._texts[k] is not None]

    @property
    def explained(self) -> bool:
        """Whether the answers come with reasons."""
        return self._reasons is not None

    def _ordered(self, order: Order) -> list[int]:
        if order not in _ORDERS:
            raise ValueError(f"order={order!r}; expected 'auto', 'confidence', 'failures' or None.")
        if order == "auto":
            order = "failures" if self._confidence is None else "confidence"
        if order is None:
            return list(range(len(self.data)))
        if order == "failures":
            answered = [
                not is_missing(answer) or place in self._nulls
                for place, answer in enumerate(self.answers)
            ]
            return list(map(int, np.argsort(answered, kind="stable")))
        if self._confidence is None:
            wanted = name_text(companion(self.name, "confidence"))
            raise ValueError(
                f"order='confidence': the frame has no column {wanted!r} with a value in it. "
                f"classify(…, confidence=True) gives one where the engine can score labels; else "
                f"order='failures'."
            )
        sure = np.nan_to_num(self._confidence, nan=-1.0)  # nobody is sure of no answer
        return list(map(int, np.argsort(sure, kind="stable")))

    def shown(self, place: int, mark: Mark | None) -> Shown:
        """A row, and what was said of it so far."""
        reason = self._reasons[place] if self._reasons else None
        sure = np.nan if self._confidence is None else float(self._confidence[place])
        answer = self.answers[place]
        return Shown(
            place,
            self.data.index[place],
            self._texts[place] or "",
            None if is_missing(answer) else answer,
            place in self._nulls,
            None if is_missing(reason) else str(reason),
            None if np.isnan(sure) else sure,
            self._losses.get(place),
            mark,
        )

    def right(self, place: int, mark: Mark) -> bool:
        """Whether the model's answer is the one that was found right."""
        answer = self.answers[place]
        if mark.value is None:
            return place in self._nulls
        return bool(type(mark.value) is type(answer) and mark.value == answer)

    def made_before(self, into: Hashable) -> dict[int, Mark]:
        """The marks that the frame brings, in the column that an earlier review wrote.

        Raises:
            SchemaError: The column is not of a review of these answers.
        """
        found = {}
        for place, value in enumerate(_cells(self.data, into) or ()):
            if is_missing(value) or self._texts[place] is None:
                continue
            try:
                found[place] = Mark(self.editor.check(value))
            except ValueError as error:
                raise SchemaError(
                    f"column {name_text(into)!r} exists and is not of this review: {error} "
                    f"Name another one with into=."
                ) from None
        return found

    def column(self, marks: Mapping[int, Mark], df: pd.DataFrame | None) -> pd.Series[Any]:
        """The right answers on the index of `df`, or of the frame itself."""
        data = self.data if df is None else df
        if df is not None:
            known = {self.keys[place]: mark for place, mark in marks.items()}
            keys = self._source.keys(df)
            marks = {k: known[key] for k, key in enumerate(keys) if key in known}
        values: list[Any] = [None] * len(data)
        for place, mark in marks.items():
            values[place] = mark.value
        made = self.editor.series(values)
        made.index = data.index.copy(deep=False)
        return made

    def examples(self, marks: Mapping[int, Mark], n: int | None) -> pd.DataFrame:
        """Reviewed rows as the next call takes them; see `llmframe.reviews.Review.examples`."""
        others, reason = self._other_fields()
        first = sorted(self.queue, key=lambda k: k in marks and self.right(k, marks[k]))
        places: dict[str | None, int] = {}
        unexplained = 0
        for place in first:
            if place not in marks or marks[place].skipped:
                continue
            known = place in self._answered or not others
            if not known and self.data[others].iloc[place].isna().all():
                continue  # a failed row: the rest of its answer is nowhere
            if reason is not None and not marks[place].reason:
                unexplained += 1
                continue
            places.setdefault(self._texts[place], place)
        if unexplained:
            told = (
                f"{unexplained:,} reviewed rows have no reason, which every reply of this call "
                f"has, so they are no examples: correct(value, reason=…) gives them one."
            )
            if not places:
                raise ValueError(told)
            warn_user(told)
        if not places:
            raise ValueError("no row has been reviewed yet: accept() or correct(…) some first.")
        seen: Counter[str] = Counter()
        turns = {}
        for place in places.values():
            value = self.editor.text(marks[place].value)
            turns[place] = seen[value]
            seen[value] += 1
        chosen = sorted(turns, key=turns.__getitem__)[:n]
        out = inputs(self.data, self._source, self._call).iloc[chosen]
        for name in others:
            out[name] = self.data[name].iloc[chosen].array
        if reason is not None:
            out[reason] = make_series("str", text_dtype(), [marks[k].reason for k in chosen]).array
        out[self.name] = self.column(marks, None).iloc[chosen].array
        return out

    def _other_fields(self) -> tuple[list[Hashable], Hashable | None]:
        """Columns of the same reply, and the one with its reason.

        Raises:
            ValueError: The model did not write the column: it was made of others.
        """
        if self._call is None:
            return [], None
        here = {name_text(name): name for name in frames.Table(self.data).names}
        own = name_text(self.name)
        reason = f"{own}_reason"
        names = list(map(name_text, _replied(self._call)))
        if own not in names:
            listed = ", ".join(repr(name) for name in names if name != reason)
            raise ValueError(
                f"column {own!r} stands in no reply of the model's, it was made of {listed}: "
                f"review that for examples."
            )
        others = [here[name] for name in names if name in here and name not in {own, reason}]
        return others, here.get(reason) if reason in names else None


def _replied(call: Call) -> list[Hashable]:
    """The columns that stand in a reply, which more columns may be made of."""
    fields = call.form.fields if call.panel is None else call.panel.fields()
    columns = dict(zip((field.name for field in fields), call.columns, strict=False))
    return [columns[field.name] for field in call.form.fields if field.name in columns]


def place_of(data: pd.DataFrame, name: Hashable) -> int | None:
    """Where a column stands; None where there is none."""
    place = Columns(frames.Table(data).names).exact(name)
    return None if place is None or place < 0 else place


def _cells(data: pd.DataFrame, name: Hashable) -> list[Any] | None:
    """A column as plain values; None where there is none."""
    place = place_of(data, name)
    return None if place is None else [row[0] for row in frames.Table(data).rows([place])]


def _confidence(data: pd.DataFrame, name: Hashable) -> npt.NDArray[np.float64] | None:
    place = place_of(data, name)
    if place is None or not pd.api.types.is_numeric_dtype(data.dtypes.iloc[place]):
        return None
    values: npt.NDArray[np.float64] = data.iloc[:, place].to_numpy(float, na_value=np.nan)
    return None if np.isnan(values).all() else values


def _editor(data: pd.DataFrame, name: Hashable, call: Call | None) -> Editor:
    place = place_of(data, name)
    assert place is not None, "who makes it has looked"
    column = data.iloc[:, place]
    if call is None or call.labels is None or call.form.schema is None:
        return editor(column, asked=_asked(call, name))
    labels = dict(zip((field.name for field in call.form.fields), call.columns, strict=False))
    if name_text(labels.get("label")) != name_text(name):
        return editor(column)
    many = call.form.schema["properties"]["label"].get("type") == "array"
    return editor(column, call.labels.values, many=many)


def _asked(call: Call | None, name: Hashable) -> Field | None:
    """What the model was asked for in a column; None where that is not known, or is a label."""
    if call is None or call.labels is not None or call.panel is not None:
        return None
    fields = zip(call.form.fields, call.columns, strict=False)
    return next((f for f, column in fields if name_text(column) == name_text(name)), None)

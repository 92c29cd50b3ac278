"""A person looks through a model's answers, row by row: accepted, corrected, skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pandas as pd

from llmframe import joins, markup
from llmframe.columns import name_text
from llmframe.errors import warn_user
from llmframe.marks import Mark, RowKey, append, stored
from llmframe.progress import in_kernel
from llmframe.review_rows import ReviewRows, Shown
from llmframe.views import Sheet, number

__all__ = ["Review", "draw_with"]

_MISSING: Final = (
    'a review is drawn with ipywidgets, which is missing. pip install "llmframe[notebook]"; '
    "without it, review.current shows a row, and review.accept() and review.correct(…) take it."
)

Said = Literal["corrected", "accepted", "skipped"]


class View(Protocol):
    """A review as it is drawn."""

    def show(self) -> None:
        """Draw it in the cell that runs now."""

    def refresh(self) -> None:
        """Draw the row that is looked at now."""


_draw: list[Callable[[Any], View]] = []


def draw_with(make: Callable[[Any], View]) -> None:
    """Say what draws reviews in notebooks; it is above this module."""
    _draw[:] = [make]


class Review(Sheet):
    """The answers in one column of a frame, looked through by a person.

    In a notebook it shows itself as the last line of a cell, or by `show`. All that the buttons
    do can be done in code: `accept`, `correct`, `skip`, `next` and `previous`.

    Attributes:
        name: The column whose answers are looked at.
        into: The column that `apply` adds.
        editor: What may be entered.
        path: The file that keeps each mark as it is made; None: nothing is written.
    """

    def __init__(self, rows: ReviewRows, into: Hashable, path: Path | None) -> None:
        self._rows = rows
        self.name, self.into, self.path = rows.name, into, path
        self.editor = rows.editor
        self._marks = rows.made_before(into)
        self._view: View | None = None
        self._at = 0
        if path is not None and path.exists():
            self.load(path)
        self._to_unmarked(0)

    # -- where it is -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows.queue)

    @property
    def at(self) -> int:
        """Place of the row that is looked at, from 0, in the order of the review."""
        return self._at

    @property
    def reviewed(self) -> int:
        """Rows with a right answer: accepted or corrected."""
        return sum(not mark.skipped for mark in self._marks.values())

    @property
    def corrected(self) -> int:
        """Of these, the rows whose answer was another one, or none."""
        return sum(
            not mark.skipped and not self._rows.right(place, mark)
            for place, mark in self._marks.items()
        )

    @property
    def skipped(self) -> int:
        """Rows that were left for later."""
        return sum(mark.skipped for mark in self._marks.values())

    @property
    def explained(self) -> bool:
        """Whether the answers come with reasons."""
        return self._rows.explained

    @property
    def longest(self) -> int:
        """Characters of the longest answer, as it is typed."""
        return max((len(self.editor.text(answer)) for answer in self._rows.answers), default=0)

    @property
    def done(self) -> bool:
        """Whether no row is left that was neither reviewed nor skipped."""
        return all(place in self._marks for place in self._rows.queue)

    @property
    def marked(self) -> list[tuple[Said, Shown]]:
        """The rows that something was said of, and what: those corrected, accepted, skipped."""
        found: dict[Said, list[Shown]] = {"corrected": [], "accepted": [], "skipped": []}
        for place in self._rows.queue:
            if (mark := self._marks.get(place)) is not None:
                right = self._rows.right(place, mark)
                said: Said = "skipped" if mark.skipped else "accepted" if right else "corrected"
                found[said].append(self._rows.shown(place, mark))
        return [(said, row) for said, rows in found.items() for row in rows]

    @property
    def current(self) -> Shown:
        """The row that is looked at.

        Raises:
            LookupError: The frame has no row to look at.
        """
        if not self._rows.queue:
            raise LookupError(f"no row of column {name_text(self.name)!r} has a text to look at.")
        place = self._rows.queue[self._at]
        return self._rows.shown(place, self._marks.get(place))

    # -- what is done to a row ---------------------------------------------------------------

    def accept(self) -> None:
        """Take the model's answer for right, and go on to the next row without a mark.

        Raises:
            ValueError: The row has no answer.
        """
        row = self.current
        if row.answer is None and not row.null:
            raise ValueError(
                f"row {joins.label_text(row.label)} has no answer to accept; "
                f"correct(value) gives it one."
            )
        self._set(Mark(row.answer, row.reason))

    def correct(self, value: Any, reason: str | None = None) -> None:
        """Say what is right, and go on to the next row without a mark.

        Args:
            value: One of the column's categories, or a value of its type; None where the schema
                lets the model answer null. The model's own answer counts as accepted.
            reason: Why; shown to the next model where examples hold reasons.

        Raises:
            ValueError: The column cannot hold it.
        """
        row = self.current
        value = self.editor.check(value)
        mark = Mark(value, reason)
        if reason is None and self._rows.right(row.position, mark):
            mark = Mark(value, row.reason)
        self._set(mark)

    def skip(self) -> None:
        """Leave the row without an answer, and go on."""
        self._set(Mark(skipped=True))

    def take_back(self) -> None:
        """Forget what was said of the row that is looked at."""
        place = self._rows.queue[self._at]
        if self._marks.pop(place, None) is not None:
            self._keep(place, None)
        self._refresh()

    def next(self) -> None:
        """Look at the next row; at the last one, stay there."""
        self._go(self._at + 1)

    def previous(self) -> None:
        """Look at the row before; at the first one, stay there."""
        self._go(self._at - 1)

    def _go(self, at: int) -> None:
        self._at = min(max(at, 0), max(len(self._rows.queue) - 1, 0))
        self._refresh()

    def _set(self, mark: Mark) -> None:
        place = self._rows.queue[self._at]
        self._keep(place, mark)
        self._marks[place] = mark
        self._to_unmarked(self._at)
        self._refresh()

    def _keep(self, place: int, mark: Mark | None) -> None:
        if self.path is not None:
            append(self.path, name_text(self.name), {self._key(place): mark})

    def _key(self, place: int) -> RowKey:
        key = self._rows.keys[place]
        assert key is not None, "a row in the queue has a text"
        return key

    def _to_unmarked(self, start: int) -> None:
        """Look at the next row without a mark, also from the top; stay where there is none."""
        places = [*range(start, len(self._rows.queue)), *range(start)]
        self._at = next((k for k in places if self._rows.queue[k] not in self._marks), self._at)

    def _refresh(self) -> None:
        if self._view is not None:
            self._view.refresh()

    # -- what comes of it --------------------------------------------------------------------

    def agrees(self, value: Any) -> bool:
        """Whether a value is the model's own answer to the row that is looked at."""
        return self._rows.right(self.current.position, Mark(value))

    def column(self, df: pd.DataFrame | None = None) -> pd.Series[Any]:
        """The right answers as a column.

        Args:
            df: A frame with these rows, in any order, and others; None: the one under review. Its
                rows are found by their label and the text that was shown.

        Returns:
            A Series on the frame's own index, of the dtype of the answers; NA where a row was
            not reviewed, or where null is right.
        """
        made = self._rows.column(self._marks, df)
        made.name = self.into
        return made

    def apply(self, df: pd.DataFrame | None = None) -> pd.DataFrame:
        """A new frame with one more column: the answers that were accepted or corrected.

        Args:
            df: As in `column`.

        Returns:
            The frame and the column ``into``, in the place of one of that name where there is
            one: its values counted as reviewed from the start.
        """
        out = (self._rows.data if df is None else df).copy(deep=False)
        out[self.into] = self.column(df).array
        return out

    def examples(self, n: int | None = None) -> pd.DataFrame:
        """Reviewed rows as ``examples=`` of the next run.

        The answers take turns, corrected rows first, so that a few rows show as many different
        answers as there are. Texts that repeat are taken once.

        Args:
            n: At most that many; None: all.

        Returns:
            The columns that the prompt uses and those that the call wrote, with the right answers
            in the place of the model's. Other fields are as the model wrote them; the reason of a
            corrected row is the one that `correct` was given.

        Raises:
            ValueError: No row has been reviewed, or none with a reason where the replies have
                one; the column was made of others, which can be reviewed; `n` is less than 1.

        Warns:
            UserWarning: Corrected rows without a reason were left out, where the replies have one.
        """
        if n is not None and n < 1:
            raise ValueError(f"n={n}: expected at least 1, or None for all.")
        return self._rows.examples(self._marks, n)

    # -- kept --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Add all marks to a file of JSON lines, which `load` reads; gives its path.

        Nothing that is in the file is lost: of several lines about a row the last one counts. It
        holds index labels, hashes of the texts, and the answers.
        """
        marks: dict[RowKey, Mark | None] = {self._key(k): m for k, m in self._marks.items()}
        append(Path(path), name_text(self.name), marks)
        return Path(path)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Take over the marks of a file that `save` wrote, perhaps of another run.

        Rows are found by their label and the text that was shown, in whatever order they are.
        What the file says replaces what was said here.

        Returns:
            Rows of this frame that the file had a mark for.

        Raises:
            StoreError: There is no such file, or it is none of marks.

        Warns:
            UserWarning: Answers in the file are none that the column can hold now.
        """
        marks = stored(Path(path), name_text(self.name))
        unfit: list[str] = []
        count = 0
        for place, key in enumerate(self._rows.keys):
            mark = marks.get(key) if key is not None else None
            if mark is None:
                continue
            try:
                value = None if mark.skipped else self.editor.check(mark.value)
            except ValueError as error:
                unfit.append(str(error))
                continue
            self._marks[place] = Mark(value, mark.reason, mark.skipped)
            count += 1
        if unfit:
            warn_user(
                f"{len(unfit):,} answers in {str(path)!r} do not fit column "
                f"{name_text(self.name)!r} and were left out; the first: {unfit[0]}"
            )
        self._to_unmarked(self._at)
        self._refresh()
        return count

    # -- shown -------------------------------------------------------------------------------

    def show(self) -> None:
        """Draw it in the notebook cell that runs now.

        Raises:
            RuntimeError: No notebook runs this.
            ImportError: ipywidgets is missing.
        """
        if not in_kernel():
            raise RuntimeError(
                "review.show() draws in a notebook. Elsewhere review.current is the row, and "
                "review.accept(), review.correct(…) and review.skip() take it."
            )
        if self._view is None:
            try:
                self._view = _draw[0](self)
            except ImportError:
                raise ImportError(_MISSING) from None
        self._view.show()

    def _ipython_display_(self) -> None:
        # Without an error IPython takes it for shown; after one it asks for the HTML.
        try:
            self.show()
        except (RuntimeError, ImportError):
            raise NotImplementedError from None

    def _title(self) -> str:
        return f"Review of {name_text(self.name)}: {self.progress}"

    @property
    def progress(self) -> str:
        """How far it is: ``12 of 200 reviewed, 3 of them corrected, 1 skipped``."""
        parts = [f"{number(self.reviewed)} of {number(len(self))} reviewed"]
        if self.corrected:
            parts.append(f"{number(self.corrected)} of them corrected")
        if self.skipped:
            parts.append(f"{number(self.skipped)} skipped")
        return ", ".join(parts)

    def _lines(self) -> Iterable[tuple[str, str]]:
        if not self._rows.queue:
            return
        row = self.current
        yield "row", f"{joins.label_text(row.label)}, {self._at + 1} of {number(len(self))}"
        yield "answer", self._told(row.answer, row.null)
        if row.confidence is not None:
            yield "confidence", f"{row.confidence:.2f}"
        for name, value in (("reason", row.reason), ("failed", row.failure)):
            if value is not None:
                yield name, value
        if row.mark is not None:
            said = "skipped" if row.mark.skipped else self._told(row.mark.value, True)
            yield "reviewed", said

    def _told(self, value: Any, null: bool) -> str:
        return self.editor.text(value) if value is not None else "null" if null else "none"

    def _parts(self) -> Iterable[markup.Html]:
        yield from self.row_html()
        yield markup.note(_MISSING)

    def row_html(self) -> Iterable[markup.Html]:
        """The row that is looked at."""
        yield markup.joined(markup.meter(self.reviewed, len(self), wide=True), f", {self.progress}")
        if not self._rows.queue:
            yield markup.note("No row has a text to look at.")
            return
        yield markup.text(self.current.text)
        yield markup.facts(self._lines())

"""A review as widgets: the row, a field for what is right, and four buttons.

Below them stands what was said so far, as HTML of its own: it is saved with the notebook, and is
there where the widgets are not, without the kernel, on GitHub, in what nbconvert writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from llmframe import joins
from llmframe.columns import name_text
from llmframe.markup import Html, note, page, table, toned
from llmframe.widgets.pictures import one_line

if TYPE_CHECKING:
    from llmframe.reviews import Review

__all__ = ["ReviewView"]

_LONG: Final = 80
"""Characters from which on an answer is typed into a box of several lines."""
_OPTIONS: Final = 12
"""Options of a list that are seen at once."""
_GONE: Final = "The buttons need a kernel: run the cell again to go on."
_WHY: Final = "Why it is right, where you correct it: examples of the next run need a reason"
_WIDE: Final = {"width": "min(40em, 90%)"}
_ROWS: Final = 20
"""Reviewed rows that stand below the buttons."""
_TEXT: Final = 200
_TONES: Final = {"corrected": "warn", "accepted": "good", "skipped": ""}


class ReviewView:
    """A review in a notebook; one set of widgets, wherever it is shown.

    Args:
        review: What is shown and told of clicks.
    """

    def __init__(self, review: Review) -> None:
        import ipywidgets

        self._review = review
        self._name = uuid.uuid4().hex
        self._told: Html | None = None
        self._row = ipywidgets.HTML()
        self._said = ipywidgets.HTML()
        self._field = _field(ipywidgets, review)
        # Where the model gives reasons, so must who corrects it.
        self._why = [ipywidgets.Text(placeholder=_WHY, layout=_WIDE)] if review.explained else []
        auto = {"width": "auto"}
        self._buttons = {
            "accept": ipywidgets.Button(
                description="Accept",
                button_style="primary",
                layout=auto,
                tooltip="What stands in the field is right.",
            ),
            "previous": ipywidgets.Button(description="Previous", layout=auto),
            "next": ipywidgets.Button(description="Next", layout=auto),
            "skip": ipywidgets.Button(
                description="Skip", layout=auto, tooltip="Leave it without an answer."
            ),
        }
        for name, button in self._buttons.items():
            button.on_click(lambda _, name=name: self._click(name))
        self._field.observe(self._named, names="value")
        self._box = ipywidgets.VBox(
            [
                self._row,
                ipywidgets.HBox([ipywidgets.Label("Right answer"), self._field]),
                *self._why,
                ipywidgets.HBox(list(self._buttons.values())),
                self._said,
            ]
        )
        self.refresh()

    def show(self) -> None:
        """Draw it in the cell that runs now."""
        from IPython.display import display

        bundle = {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self._box.model_id,
            },
            "text/html": page(note(_GONE)),
            "text/plain": f"{self._title}. {_GONE}",
        }
        display(bundle, raw=True)  # type: ignore[no-untyped-call]
        self._told = self._so_far()
        # An output of its own: drawn anew with the widgets, it would take the reader's cursor.
        display(self._picture(), raw=True, display_id=self._name)  # type: ignore[no-untyped-call]

    @property
    def _title(self) -> str:
        return f"Review of {name_text(self._review.name)}"

    def _picture(self) -> dict[str, Any]:
        return {"text/html": self._told, "text/plain": f"{self._title}: {self._review.progress}"}

    def _tell(self) -> None:
        """Bring what was said so far up to date, wherever it was shown."""
        from IPython.display import update_display

        if self._told is not None and (told := self._so_far()) != self._told:
            self._told = told
            update_display(self._picture(), raw=True, display_id=self._name)  # type: ignore[no-untyped-call]

    def _so_far(self) -> Html:
        return page(*self._said_of_rows(), title=f"So far: {self._review.progress}")

    def _said_of_rows(self) -> Iterator[Html]:
        review = self._review
        if not (marked := review.marked):
            return
        lines = []
        for said, row in marked[:_ROWS]:
            answers = [row.answer, None if row.mark is None else row.mark.value]
            texts = [one_line(review.editor.text(answer), _TEXT) for answer in answers]
            label = joins.label_text(row.label)
            lines.append([label, one_line(row.text, _TEXT), *texts, toned(said, _TONES[said])])
        yield table(["row", "text", "the model's answer", "right answer", ""], lines)
        if len(marked) > _ROWS:
            yield note(f"… and {len(marked) - _ROWS:,} more")

    def refresh(self) -> None:
        """Draw the row that is looked at now, and what was said so far."""
        self._tell()
        review = self._review
        self._row.value = page(*review.row_html(), title=self._title)
        empty = not len(review)
        for button in self._buttons.values():
            button.disabled = empty
        for field in (self._field, *self._why):
            field.disabled = empty
        said = "No row is left without a mark." if review.done and not empty else ""
        self._said.value = page(toned(said, "good")) if said else ""
        if empty:
            return
        self._buttons["previous"].disabled = review.at == 0
        self._buttons["next"].disabled = review.at == len(review) - 1
        row = review.current
        marked = row.mark is not None and not row.mark.skipped
        self._fill(row.mark.value if row.mark is not None and marked else row.answer)
        given = None if row.mark is None else row.mark.reason
        for why in self._why:
            # The model's own stays with its answer, and not with another one that is chosen now.
            why.value = "" if given is None or given == row.reason else given
        self._named()

    def _fill(self, value: Any) -> None:
        way = self._review.editor.way
        if way == "choice":
            self._field.value = value
        elif way == "choices":
            self._field.value = tuple(value or ())
        else:
            self._field.value = self._review.editor.text(value)

    def _entered(self) -> Any:
        editor, value = self._review.editor, self._field.value
        if editor.way == "choices":
            return editor.check(list(value))
        return editor.check(value) if editor.way == "choice" else editor.read(value)

    def _named(self, _: Any = None) -> None:
        """Say what the first button would do."""
        try:
            same = self._review.agrees(self._entered())
        except ValueError:
            same = False
        self._buttons["accept"].description = "Accept" if same else "Correct"

    def _click(self, name: str) -> None:
        review = self._review
        try:
            if name == "accept":
                why = "".join(field.value for field in self._why).strip()
                review.correct(self._entered(), why or None)
            else:
                getattr(review, name)()
        except (ValueError, OSError) as error:
            self._said.value = page(toned(str(error), "bad"))


def _field(ipywidgets: Any, review: Review) -> Any:
    """What the right answer is chosen or typed in."""
    editor = review.editor
    if editor.way == "choice":
        none = "null" if editor.nullable else ""
        options = [(none, None), *((editor.text(option), option) for option in editor.options)]
        return ipywidgets.Dropdown(options=options, value=None, layout={"width": "auto"})
    if editor.way == "choices":
        options = [(editor.text(option), option) for option in editor.options]
        rows = min(len(options), _OPTIONS)
        return ipywidgets.SelectMultiple(options=options, rows=rows, layout={"width": "auto"})
    if editor.way == "json" or review.longest > _LONG:
        return ipywidgets.Textarea(layout={**_WIDE, "height": "6em"})
    return ipywidgets.Text(layout=_WIDE)

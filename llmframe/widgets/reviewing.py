"""A review as widgets: the row, a field for what is right, and four buttons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from llmframe.columns import name_text
from llmframe.markup import note, page, toned

if TYPE_CHECKING:
    from llmframe.reviews import Review

__all__ = ["ReviewView"]

_LONG: Final = 80
"""Characters from which on an answer is typed into a box of several lines."""
_OPTIONS: Final = 12
"""Options of a list that are seen at once."""
_GONE: Final = "As it was then: run the cell again to go on."


class ReviewView:
    """A review in a notebook; one set of widgets, wherever it is shown.

    Args:
        review: What is shown and told of clicks.
    """

    def __init__(self, review: Review) -> None:
        import ipywidgets

        self._review = review
        self._row = ipywidgets.HTML()
        self._said = ipywidgets.HTML()
        self._field = _field(ipywidgets, review)
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
            "text/html": self._row.value + page(note(_GONE)),
            "text/plain": repr(self._review),
        }
        display(bundle, raw=True)  # type: ignore[no-untyped-call]

    def refresh(self) -> None:
        """Draw the row that is looked at now."""
        review = self._review
        self._row.value = page(*review.row_html(), title=f"Review of {name_text(review.name)}")
        empty = not len(review)
        for button in self._buttons.values():
            button.disabled = empty
        self._field.disabled = empty
        said = "No row is left without a mark." if review.done and not empty else ""
        self._said.value = page(toned(said, "good")) if said else ""
        if empty:
            return
        self._buttons["previous"].disabled = review.at == 0
        self._buttons["next"].disabled = review.at == len(review) - 1
        row = review.current
        marked = row.mark is not None and not row.mark.skipped
        self._fill(row.mark.value if row.mark is not None and marked else row.answer)
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
        answer = self._review.current.answer
        try:
            same = answer is not None and self._entered() == answer
        except ValueError:
            same = False
        self._buttons["accept"].description = "Accept" if same else "Correct"

    def _click(self, name: str) -> None:
        review = self._review
        try:
            if name == "accept":
                review.correct(self._entered())
            else:
                getattr(review, name)()
        except (ValueError, OSError) as error:
            self._said.value = page(toned(str(error), "bad"))


def _field(ipywidgets: Any, review: Review) -> Any:
    """What the right answer is chosen or typed in."""
    editor = review.editor
    wide = {"width": "min(40em, 90%)"}
    if editor.way == "choice":
        options = [("", None), *((editor.text(option), option) for option in editor.options)]
        return ipywidgets.Dropdown(options=options, value=None, layout={"width": "auto"})
    if editor.way == "choices":
        options = [(editor.text(option), option) for option in editor.options]
        rows = min(len(options), _OPTIONS)
        return ipywidgets.SelectMultiple(options=options, rows=rows, layout={"width": "auto"})
    if editor.way == "json" or review.longest > _LONG:
        return ipywidgets.Textarea(layout={**wide, "height": "6em"})
    return ipywidgets.Text(layout=wide)

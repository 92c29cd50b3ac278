"""How a job shows itself in a notebook: live while somebody drives it, from any process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from llmframe.columns import name_text
from llmframe.driving import Driven
from llmframe.progress import Action, Display, Progress, View, Watched, display, view
from llmframe.watching import seen

if TYPE_CHECKING:
    from llmframe.reports import Report

__all__ = ["Shown"]


class Shown(Driven, ABC):
    """A job that can be watched; `llmframe.jobs.Job` is what its user sees."""

    _drawn: View | None = None

    @abstractmethod
    def report(self) -> Report:
        """What happened."""

    def show(self) -> None:
        """Show it in the notebook cell that runs now; it keeps itself up to date.

        `submit` does so by itself, unless it is told ``progress=False``. Nothing is shown outside
        notebooks, and nothing twice in one cell.
        """
        if (drawn := self._view()) is not None:
            drawn.show()

    def _ipython_display_(self) -> None:
        # Without an error IPython takes it for shown; after one it asks for the HTML.
        if not (self._is_going() or self._resumable()):
            raise NotImplementedError
        drawn = self._view()
        if drawn is None or not drawn.show():
            raise NotImplementedError

    def _display(self) -> Display:
        return display(self.id, self._prepared.progress if self._prepared else None, self._view())

    def _view(self) -> View | None:
        if self._drawn is None:
            self._drawn = view(self._watched())
        return self._drawn

    # -- what a view sees and does -----------------------------------------------------------

    def _watched(self) -> Watched:
        call = self._call
        columns = "" if call.verb == "filter" else " → " + ", ".join(map(name_text, call.columns))
        return Watched(
            id=self.id,
            about=f"{call.verb}{columns}, {call.identity['provider']}/{call.identity['model']}",
            expected=json.loads(self._record.engine).get("estimate"),
            look=self._look,
            going=self._is_going,
            label=self._label,
            report=lambda: self.report()._repr_html_(),
            actions=self._actions,
            press=self._press,
        )

    def _look(self) -> Progress:
        if self._run is not None:
            return self._run.progress(watched=True)
        return seen(self._journal, self._call, self._journal.job(self.id) or self._record)

    def _is_going(self) -> bool:
        if self._run is not None:
            return self._going
        record = self._journal.job(self.id)
        return record is not None and record.driver is not None

    def _label(self, position: int) -> str:
        if self._prepared is None:  # taken up again: the labels are in the store, not at hand
            return f"at position {position:,}"
        return self._prepared.table.label_text(position)

    def _actions(self) -> tuple[Action, ...]:
        if self._going:
            return ("stop", "cancel") if self._batch else ("stop",)
        return ("resume",) if self._resumable() else ()

    def _press(self, action: Action) -> None:
        if action == "resume":
            self.resume()
        elif self._run is not None and self._going:
            # Whoever waits gets what is there, and no error: it was asked for.
            self._pressed = action
            if action == "cancel":
                self.cancel()
            else:
                self.abandon()

"""The live view: one HTML and two buttons, drawn anew by a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any, Final

from llmframe.markup import note, page
from llmframe.progress import Action, Watched
from llmframe.widgets.pictures import Pace, picture, state

__all__ = ["LiveView"]

log = logging.getLogger("llmframe")

_EVERY: Final = 0.25
"""Seconds between two updates, at least."""
_RARELY: Final = 2.0
"""And where nobody drives the job."""
_SHARE: Final = 0.005
"""Of the time that it may use for itself."""
_CLOCK: Final = (1.0, 10.0)
"""Seconds until the clock alone is drawn anew: the first time, and at most."""
_SURE: Final = 5.0
"""Seconds in which a second click cancels."""

_BUTTONS: Final[dict[Action, tuple[str, str]]] = {
    "stop": ("Stop", "Send nothing more; what is answered is kept."),
    "cancel": ("Cancel", "End the batches at the provider too; what is done is kept."),
    "resume": ("Wait here", "Go on in this kernel: read what is there, send what is missing."),
}
_ENDS: Final[dict[Action, str]] = {"stop": "stopping", "cancel": "cancelling"}
_HOW: Final = "If a click on Stop waits for the cell, interrupt the kernel: that keeps as much."


class LiveView:
    """A job in a notebook.

    The widgets are made, and shown, by whoever calls `show`; a thread sets their values from then
    on, which needs nobody's loop. At the end each place where it was shown gets the report, as
    HTML, which outlives the kernel.

    Args:
        watched: The job.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._lock = threading.RLock()
        self._places: dict[str, int | None] = {}
        self._box: Any = None
        self._html: Any = None
        self._buttons: dict[Action, Any] = {}
        self._closed = threading.Event()
        self._begin()

    def _begin(self) -> None:
        self._pace = Pace()
        self._text = ""
        self._drawn = 0.0
        self._idle = _CLOCK[0]
        self._ends: str | None = None
        self._asked = 0.0
        self._said = ""

    # -- drawn and closed --------------------------------------------------------------------

    def show(self) -> bool:
        """Draw it in the cell that runs now, once; False where it cannot be drawn."""
        try:
            with self._lock:
                self._draw()
        except Exception as error:
            # A widget stack of another version must not end a paid run.
            log.debug("no live view of job %s: %r", self._watched.id, error)
            self._forget()
            return False
        return True

    def _draw(self) -> None:
        from IPython.display import display

        if self._box is None:
            self._open()
            self._replace(self._bundle())  # where it was shown before, and was closed
        cell = _cell()
        if cell is None or cell not in self._places.values():
            name = uuid.uuid4().hex
            display(self._bundle(), raw=True, display_id=name)  # type: ignore[no-untyped-call]
            self._places[name] = cell

    def _replace(self, bundle: dict[str, Any]) -> None:
        """Draw something else wherever it was shown."""
        from IPython.display import update_display

        for name in self._places:
            update_display(bundle, raw=True, display_id=name)  # type: ignore[no-untyped-call]

    def _open(self) -> None:
        import ipywidgets

        self._begin()
        self._closed = threading.Event()
        self._html = ipywidgets.HTML()
        self._buttons = {
            action: ipywidgets.Button(description=text, tooltip=tip, layout={"width": "auto"})
            for action, (text, tip) in _BUTTONS.items()
        }
        for action, button in self._buttons.items():
            button.on_click(lambda _, action=action: self._click(action))
            _heard_at_once(button)
        row = ipywidgets.HBox(list(self._buttons.values()))
        # Above what grows, so that a button stays where it is while somebody aims at it.
        self._box = ipywidgets.VBox([row, self._html])
        self._update()
        thread = threading.Thread(
            target=self._watch, args=(self._closed,), name=f"llmframe-view-{self._watched.id}"
        )
        thread.daemon = True
        thread.start()

    def _bundle(self) -> dict[str, Any]:
        """The widgets, and a picture for where no widgets are."""
        again = f'As it was then; lf.job("{self._watched.id}") shows it.'
        return {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self._box.model_id,
            },
            "text/html": self._html.value + page(note(again)),
            "text/plain": f"job {self._watched.id}: {self._watched.about}",
        }

    def close(self) -> None:
        """Leave the job's report in its place; nothing while the job still goes on."""
        with self._lock:
            if self._box is None or self._watched.going():
                return
            self._closed.set()
            try:
                text = f"job {self._watched.id}: {self._watched.about}"
                self._replace({"text/html": self._watched.report(), "text/plain": text})
            except Exception as error:
                log.debug("no report in place of job %s: %r", self._watched.id, error)
            finally:
                self._forget()

    def _forget(self) -> None:
        """Close the widgets with all that belongs to them: ipywidgets keeps what is open."""
        box, self._box = self._box, None
        self._closed.set()
        if box is None:
            return
        for widget in (*self._buttons.values(), *box.children, box):
            for part in (getattr(widget, "style", None), widget.layout, widget):
                if part is not None:
                    part.close()
        self._html, self._buttons = None, {}

    # -- kept up to date ---------------------------------------------------------------------

    def _watch(self, closed: threading.Event) -> None:
        due = time.monotonic() + _EVERY
        while not closed.wait(_EVERY if self._watched.going() else _RARELY):
            try:
                if not (self._watched.going() or self._watched.actions()):
                    self.close()
                    return
                if time.monotonic() < due:
                    continue
                began = time.thread_time()
                with self._lock:
                    if not closed.is_set():
                        self._update()
                # A look at a large job that another process drives takes longer than a widget.
                due = time.monotonic() + (time.thread_time() - began) / _SHARE
            except Exception as error:
                log.debug("the live view of job %s broke: %r", self._watched.id, error)
                self._forget()
                return

    def _update(self) -> None:
        now, going = self._watched.look(), self._watched.going()
        self._pace.add(now)
        doing = self._ends or state(now, going)
        text = picture(self._watched, now, self._pace, doing, self._said)
        time_ = time.monotonic()
        if text == self._text and time_ - self._drawn < self._idle:
            return
        # A wait of hours says nothing new; the clock shows that it is alive all the same.
        self._idle = min(1.5 * self._idle, _CLOCK[1]) if text == self._text else _CLOCK[0]
        self._text, self._drawn = text, time_
        self._html.value = text + page(note(f"Updated {time.strftime('%H:%M:%S')}. {_HOW}"))
        self._offer()

    def _offer(self) -> None:
        """The buttons that make sense now."""
        actions = self._watched.actions()
        if self._asked and time.monotonic() - self._asked > _SURE:
            self._ask(False)
        for action, button in self._buttons.items():
            wanted = "" if action in actions else "none"
            if button.layout.display != wanted:
                button.layout.display = wanted

    # -- clicks ------------------------------------------------------------------------------

    def _click(self, action: Action) -> None:
        """By any thread: that of the cell, or one of a subshell while the cell is blocked."""
        if action == "cancel" and not self._asked:
            self._ask(True)
            return
        button = self._buttons.get(action)
        if button is not None:
            button.disabled = True
        self._ends = _ENDS.get(action)
        # Cancelling and resuming ask the provider; the next click must not wait for that.
        threading.Thread(
            target=self._act, args=(action,), name=f"llmframe-click-{self._watched.id}", daemon=True
        ).start()

    def _act(self, action: Action) -> None:
        try:
            self._watched.press(action)
        except Exception as error:
            self._said = f"{type(error).__name__}: {error}"
            self._ends = None

    def _ask(self, sure: bool) -> None:
        self._asked = time.monotonic() if sure else 0.0
        button = self._buttons.get("cancel")
        if button is not None:
            button.description = "Cancel the batches?" if sure else "Cancel"
            button.button_style = "danger" if sure else ""


def _cell() -> int | None:
    """Which cell runs now."""
    from IPython import get_ipython

    shell = get_ipython()
    count = getattr(shell, "execution_count", None)
    return count if isinstance(count, int) else None


def _heard_at_once(button: Any) -> None:
    """Let clicks come through while the cell is blocked, on ipykernel 7.4.

    The browser sends them to a thread of their own (a subshell). 7.4 hands them on to the thread
    that last wrote to the widget, which is the one that is blocked.
    """
    if hasattr(button.comm, "_reply_subshell_for"):
        button.comm._reply_subshell_for = lambda data, default: default

"""Progress while a call waits: a live view, a bar, a few lines in a log file, or nothing.

The live view of notebooks stands far above this module, and gives itself in by `draw_with`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

from llmframe.engines.base import Batch, BatchStatus, Figures
from llmframe.options import get_options
from llmframe.results import Usage
from llmframe.views import age, money

__all__ = [
    "Action",
    "Awaited",
    "Display",
    "Progress",
    "Trouble",
    "View",
    "Watched",
    "awaited",
    "display",
    "draw_with",
    "engine_figures",
    "in_kernel",
    "view",
    "waiting",
]

_AFTER: Final = 0.5
"""Seconds before anything is shown: a short call needs no bar."""

_LINES: Final = 10.0
"""Seconds between the first two lines in a log file."""

_LOADED: Final = 10.0
"""Seconds to the first answer after which a bar begins anew."""

_SURE: Final = 3.0
"""Seconds after the first answer before a rate is told from it."""

_RAREST: Final = 300.0
"""And between two lines of a long run."""

_BATCHES: Final = 60.0
"""At least between two lines while batches are waited for, which takes hours."""

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Awaited:
    """A batch at a provider.

    Attributes:
        provider: Such as ``"openai"``.
        id: The provider's; None while it has not been told.
        count: Requests in it.
        done: Of those, the ones that are finished, for good or bad; None where nobody here knows.
        since: Unix seconds when it was created.
    """

    provider: str
    id: str | None
    count: int
    done: int | None
    since: float

    def __str__(self) -> str:
        # Some providers count nothing before the end, so 0 says nothing.
        done = f"{self.done:,}/{self.count:,} done" if self.done else f"{self.count:,} requests"
        return f"{self.id or 'on its way'} {done}, since {age(time.time() - self.since)}"


def awaited(provider: str, batch: Batch, seen: BatchStatus | None) -> Awaited:
    """A batch, as the last look at it showed it."""
    done = None if seen is None else seen.done + seen.failed
    return Awaited(provider, batch.id, batch.count, done, batch.created_at)


def waiting(batches: Sequence[Awaited]) -> str:
    """``2 batches at openai (batch_a 1,200/5,000 done, since 12 min; batch_b …)``."""
    named = "; ".join(map(str, batches[:_NAMED]))
    more = f" and {len(batches) - _NAMED:,} more" if len(batches) > _NAMED else ""
    count = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
    return f"{count} at {batches[0].provider} ({named}{more})"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Replies that were no answer, of one kind; they may have been asked again since.

    Attributes:
        kind: As in `llmframe.results.KINDS`.
        count: How many.
        message: Of the last one.
    """

    kind: str
    count: int
    message: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment, in rows of the frame (not in requests).

    Attributes:
        total: Rows that are asked or were answered before.
        ok: Answered in this run.
        cached: Answered before.
        failed: Without an answer, for good.
        in_flight: Requests on their way.
        usage: Tokens of this run, failed rows included.
        cost: US$ of this run; None where the model has no known price.
        seconds: Since the run began.
        awaited: The batches at a provider that it waits for.
        figures: What the engine says of itself, where it does.
        latest: Of the last answers the row's position and the answer as text, the newest first.
        troubles: What replies had against them, the commonest first.
        p50: Seconds from sending a request to its reply, the middle of the last few hundred.
        p95: The same, of the slowest twentieth the quickest.
    """

    total: int
    ok: int = 0
    cached: int = 0
    failed: int = 0
    in_flight: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    seconds: float = 0.0
    awaited: tuple[Awaited, ...] = ()
    figures: Figures | None = None
    latest: tuple[tuple[int, str], ...] = ()
    troubles: tuple[Trouble, ...] = ()
    p50: float | None = None
    p95: float | None = None

    @property
    def done(self) -> int:
        """Rows that need nothing more."""
        return self.ok + self.cached + self.failed


class Display(Protocol):
    """Shows a run; called about ten times a second from the thread that waits."""

    @property
    def shows(self) -> bool:
        """Whether anybody sees it."""

    def update(self, now: Progress) -> None:
        """Show where the run is."""

    def close(self, now: Progress) -> None:
        """Show it for the last time."""


Action = Literal["stop", "cancel", "resume"]
"""What a view offers: end the job, end a provider's batches too, take up what is there."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A job, as a view looks at it; every function may be called from any thread.

    Attributes:
        id: Of the job.
        about: What it does, such as ``"classify → topic, openai/gpt-4.1-mini"``.
        expected: US$ that it was expected to cost; None where unknown.
        look: Where it is now.
        going: Whether somebody drives it, here or in another process.
        label: Of a row, by its position.
        report: What happened, as HTML; at the end.
        actions: What can be done to it now.
        press: Do it.
    """

    id: str
    about: str
    expected: float | None
    look: Callable[[], Progress]
    going: Callable[[], bool]
    label: Callable[[int], str]
    report: Callable[[], str]
    actions: Callable[[], Collection[Action]]
    press: Callable[[Action], None]


class View(Protocol):
    """A picture of a job in a notebook, which keeps itself up to date."""

    def show(self) -> bool:
        """Draw it in the cell that runs now, once; False where it cannot be drawn."""

    def close(self) -> None:
        """Leave the job's report in its place; nothing while the job still goes on."""


_draw: list[Callable[[Watched], View]] = []


def draw_with(make: Callable[[Watched], View]) -> None:
    """Draw jobs in notebooks with `make` from now on."""
    _draw[:] = [make]


def view(watched: Watched) -> View | None:
    """A view of the job; None outside notebooks."""
    return _draw[0](watched) if _draw and in_kernel() else None


class _Nothing:
    shows = False

    def update(self, now: Progress) -> None:
        pass

    def close(self, now: Progress) -> None:
        pass


class _Bar:
    """A tqdm bar, drawn from the second update on."""

    shows = True

    def __init__(self, title: str, make: Callable[..., Any], after: float) -> None:
        self._title = title
        self._make = make
        self._after = after
        self._bar: Any = None
        self._answers = False

    def update(self, now: Progress) -> None:
        if self._bar is None:
            if now.seconds < self._after or now.done == now.total:
                return
            self._bar = self._make(
                total=now.total, initial=now.cached, desc=self._title, unit="row", mininterval=0.2
            )
        if not self._answers and now.done > now.cached:
            self._answers = True
            if now.seconds > _LOADED:
                # The bar tells the time left from all of its own, in which a model was loaded.
                self._bar.start_t, self._bar.initial = time.time(), now.done
        self._bar.n = now.done
        self._bar.set_postfix_str(_detail(now), refresh=False)
        self._bar.refresh()

    def close(self, now: Progress) -> None:
        if self._bar is not None:
            self.update(now)
            self._bar.close()


class _Cell:
    """A view in a notebook's cell, from the second update on; a bar where none can be drawn."""

    def __init__(self, view: View, title: str, after: float) -> None:
        self._view = view
        self._after = after
        self._bar = _Bar(title, _text_bar, after)
        self._drawn: bool | None = None

    @property
    def shows(self) -> bool:
        """A view looks for itself."""
        return self._drawn is False

    def update(self, now: Progress) -> None:
        if self._drawn is None and now.seconds >= self._after and now.done < now.total:
            self._drawn = self._view.show()
        if self._drawn is False:
            self._bar.update(now)

    def close(self, now: Progress) -> None:
        self._view.close()  # also where only another cell shows it
        self._bar.close(now)


class _Log:
    """Lines for a file: one every few seconds, and one at the end of a run that had any."""

    shows = True

    def __init__(self, title: str, every: float, always: bool) -> None:
        self._title = title
        self._every = every
        self._next = time.monotonic() + every
        self._wrote = always
        self._told = -1
        self._first: tuple[float, int] | None = None

    def _write(self, now: Progress) -> None:
        self._wrote, self._told = True, now.done
        print(
            f"{self._title}: {now.done:,} of {now.total:,} rows, {_detail(now)}{self._left(now)}",
            file=sys.stderr,
            flush=True,
        )

    def _left(self, now: Progress) -> str:
        """Time left, once there is a rate to tell it from; a bar has its own."""
        if self._first is None or now.done == now.total:
            return ""
        # From the first answers on: before them a model may have been loaded for minutes.
        since, done = now.seconds - self._first[0], now.done - self._first[1]
        if not done or since < _SURE:
            return ""
        return f", about {timedelta(seconds=round(since / done * (now.total - now.done)))} left"

    def update(self, now: Progress) -> None:
        if self._first is None and now.done > now.cached:
            self._first = now.seconds, now.done
        if time.monotonic() >= self._next and (now.awaited or now.done != self._told):
            # Ever rarer: a run of hours should not fill its log.
            self._every = min(self._every * 1.3, _RAREST)
            if now.awaited:
                self._every = max(self._every, _BATCHES)
            self._next = time.monotonic() + self._every
            self._write(now)

    def close(self, now: Progress) -> None:
        if self._wrote:
            self._write(now)


def _detail(now: Progress) -> str:
    parts = [f"{now.failed:,} failed"] if now.failed else []
    tokens = now.usage.input_tokens + now.usage.output_tokens
    parts.append(f"{tokens:,} tokens")
    if now.cost:
        parts.append(money(now.cost))
    if now.awaited:
        parts.append(f"waiting for {waiting(now.awaited)}")
    if now.figures is not None:
        parts += engine_figures(now.figures)
    return ", ".join(parts)


def engine_figures(figures: Figures) -> list[str]:
    """What an engine on this machine is doing; what it does not say is left out."""
    if figures.loading:
        return ["loading the model"]
    said = [
        (figures.tokens_per_second, "{:,.0f} tokens/s"),
        (figures.running, "{:,} running"),
        (figures.waiting, "{:,} waiting"),
        (figures.kv_cache, "KV cache {:.0%}"),
        (figures.prefix_hits, "prefix hits {:.0%}"),
        (figures.preemptions or None, "{:,} preempted"),
        (figures.p50, "p50 {:.1f} s"),
        (figures.p95, "p95 {:.1f} s"),
    ]
    return [text.format(value) for value, text in said if value is not None]


def display(title: str, wanted: bool | None, view: View | None = None) -> Display:
    """The display that fits where this process runs.

    Args:
        title: Name of the job.
        wanted: False: nothing; True: from the start; None: what `set_options` says, once the
            call has taken half a second.
        view: Of the job, in a notebook.
    """
    wanted = get_options().progress if wanted is None else wanted
    if wanted is False:
        return _Nothing()
    after = 0.0 if wanted else _AFTER
    if view is not None:
        return _Cell(view, title, after)
    try:
        tty = sys.stderr.isatty()
    except (AttributeError, ValueError):
        tty = False
    if not in_kernel() and not tty:
        return _Log(title, 1.0 if wanted else _LINES, always=bool(wanted))
    return _Bar(title, _text_bar, after)


def in_kernel() -> bool:
    """Whether a notebook's kernel runs this code; a script may import ipykernel, too."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def _text_bar(**options: Any) -> Any:
    from tqdm import tqdm

    return tqdm(**options, file=sys.stderr)

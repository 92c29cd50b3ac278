"""Watching a job that another process, or another job of this one, drives."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

from llmframe.calls import Call
from llmframe.comebacks import driven_elsewhere
from llmframe.journal import JobRecord, Journal
from llmframe.progress import Display, Progress
from llmframe.standings import standing

__all__ = ["Caller", "seen", "step", "watch"]

_LOOK: Final = 0.5
"""Seconds between two looks."""
_COUNT: Final = 10.0
"""And between two counts of its rows, to show them,"""
_FIRST: Final = 1.0
"""of which the first comes earlier."""


def step(until: float | None, most: float = 0.1) -> float:
    """Seconds to sleep before the next look, towards `until` of the monotonic clock."""
    return most if until is None else min(most, max(0.0, until - time.monotonic()))


class Caller:
    """The asyncio task that a blocking call was made in, if it was made in one.

    Under ``asyncio.run`` the first Ctrl-C raises nothing: it cancels the task, which hears of it
    at its next `await` only, and a call that blocks has none.
    """

    def __init__(self) -> None:
        try:
            self._task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            self._task = None
        self._before = 0 if self._task is None else self._task.cancelling()

    def look(self) -> None:
        """Let a cancellation through that came since.

        Raises:
            asyncio.CancelledError: One did; ``asyncio.run`` makes a KeyboardInterrupt of its own.
        """
        if self._task is not None and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


def watch(
    journal: Journal, call: Call, record: JobRecord, until: float | None, shown: Display
) -> JobRecord:
    """Wait until nobody drives a job any more, and show how it goes.

    Args:
        journal: Where it is.
        call: Its call.
        record: The job.
        until: When to stop, by the monotonic clock; None: never.
        shown: Where its progress is shown.

    Returns:
        The job as it is then.

    Raises:
        KeyboardInterrupt: The watching was stopped; the job goes on.
    """
    counted = time.monotonic() - _COUNT + _FIRST
    latest: Progress | None = None
    caller = Caller()
    try:
        while True:
            caller.look()
            found = journal.job(record.id)
            if found is None:  # purged
                return record
            record = found
            if record.driver is None or (until is not None and time.monotonic() >= until):
                return record
            if time.monotonic() - counted >= _COUNT:
                latest, counted = seen(journal, call, record), time.monotonic()
                shown.update(latest)
            time.sleep(step(until, _LOOK))
    except KeyboardInterrupt:
        raise driven_elsewhere(record) from None
    except asyncio.CancelledError as error:
        error.add_note(str(driven_elsewhere(record)))
        raise
    finally:
        if latest is not None:
            shown.close(latest)


def seen(journal: Journal, call: Call, record: JobRecord) -> Progress:
    """A job's run as the journal shows it."""
    found = standing(call, journal, record)
    counts = Counter(found.counts)
    return Progress(
        record.count - counts["skipped"] - counts["kept"],
        counts["ok"],
        counts["cached"],
        counts["failed"],
        cost=found.cost,
        seconds=time.time() - record.created,
        awaited=found.awaited,
    )

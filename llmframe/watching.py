"""Watching a job that another process, or another job of this one, drives."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from llmframe.calls import Call
from llmframe.comebacks import driven_elsewhere
from llmframe.journal import JobRecord, Journal
from llmframe.progress import Progress, display
from llmframe.standings import standing

__all__ = ["step", "watch"]

_LOOK: Final = 0.5
"""Seconds between two looks."""
_COUNT: Final = 10.0
"""And between two counts of its rows, to show them."""


def step(until: float | None, most: float = 0.1) -> float:
    """Seconds to sleep before the next look, towards `until` of the monotonic clock."""
    return most if until is None else min(most, max(0.0, until - time.monotonic()))


def watch(journal: Journal, call: Call, record: JobRecord, until: float | None) -> JobRecord:
    """Wait until nobody drives a job any more, and show how it goes.

    Args:
        journal: Where it is.
        call: Its call.
        record: The job.
        until: When to stop, by the monotonic clock; None: never.

    Returns:
        The job as it is then.

    Raises:
        KeyboardInterrupt: The watching was stopped; the job goes on.
    """
    shown, counted = display(record.id, None), time.monotonic()
    seen: Progress | None = None
    try:
        while True:
            found = journal.job(record.id)
            if found is None:  # purged
                return record
            record = found
            if record.driver is None or (until is not None and time.monotonic() >= until):
                return record
            if time.monotonic() - counted >= _COUNT:
                seen, counted = _seen(journal, call, record), time.monotonic()
                shown.update(seen)
            time.sleep(step(until, _LOOK))
    except KeyboardInterrupt:
        raise driven_elsewhere(record) from None
    finally:
        if seen is not None:
            shown.close(seen)


def _seen(journal: Journal, call: Call, record: JobRecord) -> Progress:
    """Its run as the journal shows it."""
    seen = standing(call, journal, record)
    counts = Counter(seen.counts)
    return Progress(
        record.count - counts["skipped"] - counts["kept"],
        counts["ok"],
        counts["cached"],
        counts["failed"],
        cost=seen.cost,
        seconds=time.time() - record.created,
        awaited=seen.awaited,
    )

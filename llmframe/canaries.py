"""The canary: the first row goes ahead alone, and tells whether all would fail as it does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from llmframe.brakes import OUTAGE, Refusals
from llmframe.errors import warn_user
from llmframe.feeds import Feed
from llmframe.flights import Flight
from llmframe.journal import Entry, Journal
from llmframe.lanes import Lane
from llmframe.ledgers import Ledger
from llmframe.outcomes import Outcome
from llmframe.results import Failure, Result
from llmframe.rounds import PAUSES
from llmframe.work import PENDING

__all__ = ["Canary", "Suspects"]

_log = logging.getLogger("llmframe")

_USELESS: Final = frozenset({"invalid_output", "empty_output"})
_ROWS: Final = 3
"""Rows in a row whose answers are no use, before that is said and the rest is sent."""


class Canary:
    """Decides, while the gate is shut, whether the job ends or the gate opens.

    Args:
        feed: Whose gate it is: `Feed.canary`.
        repairs: Of a batch, whose rows nobody sees for hours: an answer that is no use keeps the
            gate shut for that many repairs and for another row. None: the gate opens.

    Attributes:
        watches: There is no gate, since a request inside this process costs nothing, and no row
            is answered yet: refusals are judged as if there were one.
    """

    def __init__(self, feed: Feed, repairs: int | None = None) -> None:
        self._feed = feed
        self._repairs = repairs
        self._refusals = Refusals()
        self._useless: set[int] = set()
        self.watches = False

    def probe(
        self, lane: Lane, absorb: Callable[[Sequence[Result]], None], tick: Callable[[], None]
    ) -> None:
        """The canary of a batch: through the engine's live twin, before anything is uploaded.

        A refused key, model, parameter or schema ends the job at the price of one request. Where
        there is no live twin, the first batch is that one row.

        Args:
            lane: Of the batches to come.
            absorb: Takes each result.
            tick: Called after each of them.
        """
        feed = self._feed
        while feed.canary is not None and (flight := feed.first()) is not None:
            result = lane.probe(feed.request(flight))
            if result is None:
                feed.give_back(flight)
                return
            absorb([result])
            tick()

    def _told(self, failure: Failure) -> None:
        """What three useless answers in a row say of the rest, before it is uploaded."""
        text = (
            f"the answers of the first {_ROWS} rows are no use ({failure.kind}: "
            f"{failure.message}); the others are sent all the same. Interrupt or cancel the job "
            f"if they would fail alike."
        )
        try:
            warn_user(text)
        except UserWarning:  # under -W error: a notice must not end a job
            _log.warning(text)

    def doubts(self, failure: Failure) -> bool:
        """Whether it may be everybody's failure, for all that is known."""
        early = self.watches or self._feed.canary is not None
        return early and failure.kind == "invalid_request"

    def ends(self, flight: Flight, failure: Failure) -> bool:
        """Whether the first row's failure is everybody's; else the gate opens, or stays shut."""
        feed = self._feed
        if feed.canary is None:
            return self.watches and self._refusals.ends(failure)
        if self._refusals.ends(failure):
            return True
        if failure.kind == "invalid_request":
            # It names nothing, so the row itself may be at fault: a short other row is tried.
            feed.shortest_first()
        elif self._repairs is not None and failure.kind in _USELESS:
            self._useless.add(flight.place)
            last = flight.repairs >= self._repairs or not failure.retryable
            if len(self._useless) >= _ROWS and last:
                feed.canary = None
                self._told(failure)
        elif failure.kind == "connection":
            flight.tries = 0  # nothing was reached: the outage's patience decides, not the row's
        elif failure.kind != "rate_limited" and (
            failure.kind not in OUTAGE or flight.tries >= len(PAUSES)
        ):
            feed.canary = None
        return False


class Suspects:
    """Rows that were refused ahead of the others: their own fault, or everybody's?

    Until that is known they are not stored as failed: where the job ends, it was everybody's,
    and the same call asks them again once the cause is mended.

    Args:
        feed: Whose open requests they may become again.
        journal: Where they are kept once they stand.
        outcome: Of the run.
        ledger: Of the run.
    """

    def __init__(self, feed: Feed, journal: Journal, outcome: Outcome, ledger: Ledger) -> None:
        self._feed = feed
        self._journal = journal
        self._outcome = outcome
        self._ledger = ledger
        self._held: list[tuple[Flight, Entry]] = []

    def add(self, flight: Flight, entry: Entry) -> None:
        """One more that failed."""
        self._held.append((flight, entry))

    def convict(self) -> None:
        """The failures so far were the rows' own."""
        self._journal.record([entry for _, entry in self._held])
        for flight, _ in self._held:
            flight.claimed = False
        self._held.clear()

    def absolve(self) -> None:
        """The failures so far were everybody's, so these rows have failed no more than others."""
        for flight, _ in self._held:
            if self._outcome.losses.pop(flight.place, None) is not None:
                self._outcome.status[flight.place] = PENDING
                self._ledger.reopen("failed", flight.place)
                self._feed.open += 1
        self._held.clear()

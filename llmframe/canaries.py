"""The canary: the first row goes ahead alone, and tells whether all would fail as it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmframe.brakes import OUTAGE, Refusals
from llmframe.feeds import Feed
from llmframe.flights import Flight
from llmframe.lanes import Lane
from llmframe.results import Failure, Result
from llmframe.rounds import PAUSES

__all__ = ["Canary"]


class Canary:
    """Decides, while the gate is shut, whether the job ends or the gate opens.

    Args:
        feed: Whose gate it is: `Feed.canary`.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._refusals = Refusals()

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

    def ends(self, flight: Flight, failure: Failure) -> bool:
        """Whether the first row's failure is everybody's; else the gate opens, or stays shut."""
        feed = self._feed
        if feed.canary is None:
            return False
        if self._refusals.ends(failure):
            return True
        if failure.kind == "invalid_request":
            # It names nothing, so the row itself may be at fault: a short other row is tried.
            feed.shortest_first()
        elif failure.kind == "connection":
            flight.tries = 0  # nothing was reached: the outage's patience decides, not the row's
        elif failure.kind != "rate_limited" and (
            failure.kind not in OUTAGE or flight.tries >= len(PAUSES)
        ):
            feed.canary = None
        return False

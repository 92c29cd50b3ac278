"""A run as others see it while it goes on: how far it is, what is open, how to stop it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import numpy as np

from llmframe.brakes import Budget
from llmframe.engines.base import Engine, Mode
from llmframe.feeds import Feed
from llmframe.flights import Control
from llmframe.lanes import Lane
from llmframe.ledgers import Ledger
from llmframe.outcomes import Outcome
from llmframe.progress import Progress, awaited
from llmframe.work import PENDING, Work

__all__ = ["Running"]

_LATEST: Final = 3
"""Answers that whoever watches is shown."""


class Running:
    """What `llmframe.runs.Run` shows of itself; everything here is cheap, and from any thread."""

    work: Work
    engine: Engine
    outcome: Outcome
    error: BaseException | None
    ledger: Ledger
    _budget: Budget
    _control: Control
    _feed: Feed
    _lane: Lane | None
    _batched: bool
    _began: float

    def progress(self, *, watched: bool = False) -> Progress:
        """The run at this moment; cheap, from any thread.

        Args:
            watched: Somebody looks: with the last answers, what was refused, and what the engine
                says of itself.
        """
        waits = [] if self._lane is None else self._lane.open
        rows = self.ledger.rows
        now = Progress(
            self.ledger.total,
            rows["ok"],
            rows["cached"],
            rows["failed"],
            in_flight=self._in_flight(),
            usage=self.ledger.usage,
            cost=None if self._budget.price is None else self.ledger.cost,
            seconds=time.monotonic() - self._began,
            awaited=tuple(awaited(self.engine.name, batch, seen) for batch, seen in waits),
        )
        if not watched:
            return now
        figures = getattr(self.engine, "figures", None)
        p50, p95 = self.ledger.pace() or (None, None)
        return replace(
            now,
            figures=figures() if callable(figures) else None,
            latest=tuple(self.outcome.latest(list(self.ledger.recent), _LATEST)),
            troubles=self.ledger.troubles(),
            p50=p50,
            p95=p95,
        )

    def _in_flight(self) -> int:
        # A live engine takes more than it sends, so that none of its workers waits for the next.
        taken = self._feed.in_flight
        return taken if self._lane is not None else min(taken, self._control.limit)

    @property
    def left(self) -> int:
        """Requests that are without an answer so far."""
        return self._feed.open + self._feed.unasked

    @property
    def unasked(self) -> int:
        """Of those, the ones whose prompt this process has not."""
        return self._feed.unasked

    @property
    def lane(self) -> Lane | None:
        """The engine, where it is a provider's batch API."""
        return self._lane

    @property
    def sending(self) -> bool:
        """Whether requests are on their way to the provider, rather than waited for there."""
        if self._lane is None or self._control.mode != "run":
            return False
        # Before the first batch goes out, the canary goes ahead.
        return not self._batched or self._lane.unsent > 0 or self._feed.sending

    def missing(self) -> list[int]:
        """Places of the requests that are to be sent; before the run starts."""
        return list(self._feed.todo)

    def perhaps(self) -> list[int]:
        """Places of the requests that are sent besides, if the answers to those want it."""
        if self.work.call.panel is None or not self.work.call.panel.sequential:
            return []
        pending = np.flatnonzero(self.outcome.status[: len(self.work.keys)] == PENDING)
        return sorted(set(pending.tolist()).difference(self._feed.todo))

    def tried(self) -> list[int]:
        """Places of the requests that have replies in the store, good or bad."""
        return sorted(self._feed.known)

    def stop(self, mode: Mode) -> None:
        """Drain or abort; what is finished is kept."""
        with self._feed.cond:
            if self._control.mode == "run" or mode == "abort":
                self._control.mode = mode
            self._feed.cond.notify_all()
        self._feed.wake()

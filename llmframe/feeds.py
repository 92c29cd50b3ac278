"""Feeding an engine: requests are made, claimed and put in front of it before it asks.

The feeder runs ahead in a thread of its own, so no worker of an engine ever waits for a row to
be rendered or for the disk. Retries and repairs go in front of new rows.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from llmframe.brakes import Budget, Outage
from llmframe.errors import BudgetError
from llmframe.flights import Control, Flight
from llmframe.journal import Entry, Journal
from llmframe.lanes import Lane
from llmframe.requests import Request
from llmframe.stocks import Stock
from llmframe.work import Work

__all__ = ["Feed"]

_AHEAD: Final = 256
_AT_ONCE: Final = 1024
"""Prompts that are stored in one transaction before any is sent."""
_FOREIGN: Final = 0.3
"""Seconds between two looks at a row that another process is asking."""


class Feed(Stock):
    """A stock that is kept filled.

    Args:
        work: The rows.
        journal: Where keys are claimed.
        control: Shared with the engine.
        budget: Reserves what each request may cost.
        outage: While it is open one row at a time is fed.
        job: Id for the claims.
        keep_prompts: Store the rendered prompts with the claims.
        bounded: Keep what a kill could lose within twice `control.limit`.
        stored: Settles a place from replies that came meanwhile; False: ask all the same.
        ended: Called with what ends the job from this side; None: the outage lasts too long.
        lane: Where the engine is one: it may find batches that other runs left at the provider.
        alike: Bring new rows together that begin alike.
        ahead: Store all prompts before the first row goes out, so that another process may go on.

    Attributes:
        probe_at: When the next single row of an outage is tried, by the monotonic clock.
        longest: Seconds of the slowest answer.
        heard: When the last result came.
    """

    def __init__(
        self,
        work: Work,
        journal: Journal,
        control: Control,
        budget: Budget,
        outage: Outage,
        *,
        job: str,
        keep_prompts: bool,
        bounded: bool,
        stored: Callable[[int, list[Entry]], bool],
        ended: Callable[[BaseException | None], None],
        lane: Lane | None = None,
        alike: bool = False,
        ahead: bool = False,
    ) -> None:
        super().__init__(
            work, journal, control, budget, bounded=bounded, ended=ended, lane=lane, alike=alike
        )
        self.probe_at = 0.0
        self.longest = 0.0
        self.heard = time.monotonic()
        self._outage = outage
        self._job = job
        self._keep_prompts = keep_prompts
        self._ahead = ahead
        self._stored = stored
        self._foreign: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        # Whoever reads a batch has its replies once in hours; a look costs a transaction.
        self._foreign_pause = _FOREIGN if lane is None else max(_FOREIGN, lane.poll_interval / 10)
        self._head = 0

    # -- from the run ------------------------------------------------------------------------

    def open_up(self) -> None:
        """Store what all requests share, and set aside what is not this run's to ask."""
        self._head = self._journal.head(
            orjson.dumps(
                {"messages": self._work.shared, "schema": self._work.call.form.schema}
            ).decode()
        )
        todo, self.todo = self.park(list(self.todo)), deque()
        if self._ahead and self._keep_prompts:
            self._store_ahead(todo)
        self._offer_places(todo)

    def _store_ahead(self, places: Sequence[int]) -> None:
        """Store the prompts of rows that are not sent yet; given up where the job is stopped."""
        own = [place for place in places if place < len(self._work.keys)]
        for start in range(0, len(own), _AT_ONCE):
            if self._control.mode != "run":
                return
            requests = map(self._work.request, own[start : start + _AT_ONCE])
            self._journal.keep(
                self._head,
                [(r.key, orjson.dumps(r.messages[r.shared :])) for r in requests],
            )

    def start(self) -> None:
        """Begin to feed."""
        self._thread = threading.Thread(
            target=self._feed, name=f"llmframe-feed-{self._job}", daemon=True
        )
        self._thread.start()

    def rest(self) -> None:
        """Nothing is open: wait for the thread, so that `start` may begin another."""
        with self.cond:
            self.cond.notify_all()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Feed nothing more, and give back the claims of what never went out."""
        with self.cond:
            self.closing = True
            if self._control.mode == "run":
                self._control.mode = "drain"
            self.cond.notify_all()
        if self._thread is not None:
            self._thread.join(5)
        self._journal.release([key for key, flight in self.flights.items() if not flight.taken])

    def first(self) -> Flight | None:
        """Claim one request, when its pause is over; None where none is to be had."""
        while True:
            with self.cond:
                if self._over():
                    return None
                if not (self._again or self.todo):
                    if not self._delayed:
                        return None
                    self.cond.wait(min(1.0, max(0.0, self._delayed[0][0] - time.monotonic())))
                picked = self._pick()
            self._offer(*picked)
            with self.cond:
                if self._ready:
                    flight = self.flights[self._ready.popleft().key]
                    flight.taken = True
                    self.in_flight += 1
                    return flight
                if self.parked and self._again:
                    return None  # the budget waits for what others sent, and nobody reads it yet

    # -- the feeder's thread -----------------------------------------------------------------

    def _feed(self) -> None:
        try:
            while True:
                with self.cond:
                    while (wait := self._idle_for()) > 0 and not self._over():
                        self.cond.wait(wait)
                    if self._over():
                        return
                    came = self.unsafe
                    picked = self._pick()
                    self._offering = True
                # A claim is a commit too: it takes along every reply that was handed over.
                claimed = self._offer(*picked)
                self._offering = False
                if came and not claimed:
                    self._journal.flush()
                if came:
                    with self.cond:
                        self.unsafe -= came
                    self.wake()
        except Exception as error:
            # A bug here must end the run: the engine would wait for requests for ever.
            with self.cond:
                self._ended(error)

    def _over(self) -> bool:
        return self._control.mode != "run" or not self.open

    def _idle_for(self) -> float:
        """Seconds until there may be something to feed; 0: now. Holds the lock."""
        now = time.monotonic()
        wait = 1.0
        if self._foreign:
            wait = min(wait, min(self._foreign.values()) - now)
        if self._delayed:
            wait = min(wait, self._delayed[0][0] - now)
        if self._outage.streak and self._outage.over(now):
            self._ended(None)
            return 1.0
        if self._bounded and 2 * self.unsafe >= self._control.limit:
            return 0.0
        if self._outage.open:
            return max(0.0, min(1.0, self.probe_at - now)) if not self.busy else 1.0
        if self.canary is not None and self.busy:
            return 1.0
        if self._again or self.todo:
            return 1.0 if self._stocked() else 0.0
        # A lane loses nothing, and is silent for hours.
        if self.in_flight and not (self._ready or self._delayed or self._foreign or self._lane):
            self._flush_out(now)
        return max(0.0, wait)

    def _stocked(self) -> bool:
        return len(self._ready) > max(_AHEAD, 2 * self._control.limit) // 2

    def _flush_out(self, now: float) -> None:
        """End the stream after a long silence in which only requests in flight are open.

        An engine that lost a row would wait for more requests for ever. One that is only slow
        finishes what it has, and gets a new stream for what then fails.
        """
        if now - self.heard > max(2.0, 4 * self.longest) and not self.closing:
            self.closing = True
            self.wake()

    def _pick(self) -> tuple[list[Flight], list[int], list[int]]:
        """What to feed next: due retries, new rows, rows that another run had. Holds the lock."""
        now = time.monotonic()
        # Woken for the sake of the disk, perhaps: small claims would cost the most, and an outage
        # or the canary lets nothing else go out yet.
        if self._outage.open:
            if self.busy or now < self.probe_at:
                return [], [], []
        elif self._stocked() or (self.canary is not None and self.busy):
            return [], [], []
        while self._delayed and self._delayed[0][0] <= now:
            self._again.append(heapq.heappop(self._delayed)[2])
        room = min(_AHEAD, max(_AHEAD, 2 * self._control.limit) - len(self._ready))
        if self._outage.open or self.canary is not None:
            room = 1
        flights = [self._again.popleft() for _ in range(min(room, len(self._again)))]
        places = self._next(room - len(flights))
        due = [place for place, at in self._foreign.items() if at <= now]
        for place in due:
            del self._foreign[place]
        return flights, places, due

    def _offer(self, flights: list[Flight], places: list[int], due: list[int]) -> bool:
        """Make the requests, claim their keys, and put ours before the engine.

        Returns:
            Whether there was something to claim.
        """
        if not (flights or places or due):
            return False
        places += self._still_open(self.park(due) if due else due)
        flights += map(self.flight, places)
        held = self._hold_back(flights)
        offered = [(flight, self.request(flight)) for flight in flights]
        wanted = [pair for pair in offered if not pair[0].claimed]
        ours = self._journal.claim(
            self._head,
            [(request.key, self._tail(request)) for _, request in wanted],
            self._job,
            seen=[self.known.get(flight.place, 0) for flight, _ in wanted],
        )
        for (flight, _), own in zip(wanted, ours, strict=True):
            flight.claimed = own
        with self.cond:
            for flight, request in offered:
                if flight.claimed:
                    flight.taken = False
                    self.flights[request.key] = flight
                    self._ready.append(request)
                else:
                    self._foreign[flight.place] = time.monotonic() + self._foreign_pause
                    self._budget.settle(flight.reserved, 0.0)
            self._again.extendleft(reversed(held))
        self.wake()
        return bool(wanted)

    def _still_open(self, due: list[int]) -> list[int]:
        """Of the rows that another run was asking, those it has not answered."""
        if not due:
            return []
        found = self._journal.replies([self._work.key(place) for place in due])
        left = []
        with self.cond:
            for place in due:
                entries = found.get(self._work.key(place), [])
                if len(entries) > self.known.get(place, 0):
                    self.known[place] = len(entries)
                    if self._stored(place, entries):
                        self.open -= 1
                        continue
                left.append(place)
        return left

    def _tail(self, request: Request) -> bytes | None:
        return orjson.dumps(request.messages[request.shared :]) if self._keep_prompts else None

    def _hold_back(self, flights: list[Flight]) -> list[Flight]:
        """Cut off what the budget has no room for; end the run where nothing fits any more."""
        if self._budget.limit is None:
            return []
        for place, flight in enumerate(flights):
            live = self._lane is not None and self.canary is not None
            cost = self._budget.worst(self.request(flight), live=live)
            with self.cond:
                if self._budget.fits(cost):
                    self._budget.reserve(cost)
                    flight.reserved = cost
                    continue
                if not (place or self.in_flight or self._ready or self.parked):
                    self._ended(BudgetError(self._budget.refusal(cost)))
                elif not place:
                    self.cond.wait(0.1)  # something in flight will settle for less than its reserve
            held = flights[place:]
            del flights[place:]
            return held
        return []

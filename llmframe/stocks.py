"""The requests of a run by where they are: to be asked, ready, on their way, set aside.

`Stock` is what the engine takes from; `llmframe.feeds` keeps it filled.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from llmframe.brakes import Budget
from llmframe.flights import Control, Elsewhere, Flight
from llmframe.holdings import abandoned
from llmframe.journal import Journal
from llmframe.lanes import Lane
from llmframe.requests import Request
from llmframe.work import Work

__all__ = ["Stock"]

_WINDOW: Final = 4096
"""New rows among which those that begin alike are brought together: 10 to 40 ms to render."""

_BEGINNING: Final = 2000
"""Characters by which they are told: about four blocks of the coarsest prefix cache (128 tokens),
and 8 MB of text a window."""


class Stock:
    """The `Source` of a run.

    Args:
        work: The rows.
        journal: Where batches that hold requests are looked up.
        control: Shared with the engine.
        budget: Reserves what each request may cost.
        bounded: Keep what a kill could lose within twice `control.limit`.
        ended: Called with what ends the job from this side; None: the outage lasts too long.
        lane: Where the engine is one: it may find batches that other runs left at the provider.
        alike: Bring new rows together that begin alike.

    Attributes:
        cond: Guards all of it; told when something changed.
        todo: Places that nobody has asked yet, or that are asked anew.
        told: Of those, what is told to them: requests with a conversation behind them.
        flights: Requests, by key, that were made.
        sent: Requests that a lane has, and that are made again from their rows when it wants them.
        known: Stored replies of a place that this run has seen.
        parked: Requests that are in a batch of another run. Their results come without having been
            asked for.
        open: Requests without an end so far.
        unasked: Requests without an end that this process cannot ask; not among the open.
        in_flight: Requests that the engine has.
        unsafe: Replies that came and are not on disk yet.
        canary: Place of the request that goes ahead alone, until it is answered.
        closing: The engine's stream is to end once it has nothing more.
    """

    def __init__(
        self,
        work: Work,
        journal: Journal,
        control: Control,
        budget: Budget,
        *,
        bounded: bool,
        ended: Callable[[BaseException | None], None],
        lane: Lane | None,
        alike: bool = False,
    ) -> None:
        self.cond = threading.Condition()
        self.todo: deque[int] = deque()
        self.told: dict[int, Flight] = {}
        self.flights: dict[bytes, Flight] = {}
        self.sent = Elsewhere(work)
        self.known: dict[int, int] = {}
        self.parked = Elsewhere(work)
        self.open = self.unasked = 0
        self.in_flight = 0
        self.unsafe = 0
        self.canary: int | None = None
        self.closing = False
        self._work = work
        self._journal = journal
        self._control = control
        self._budget = budget
        self._bounded = bounded
        self._ended = ended
        self._lane = lane
        self._alike = alike
        self._ordered = 0
        if lane is not None:
            lane.on_closed = self._unpark
        self._again: deque[Flight] = deque()
        self._delayed: list[tuple[float, int, Flight]] = []
        self._ready: deque[Request] = deque()
        self._wake_engine: Callable[[], None] = lambda: None
        self._offering = False
        self._sequence = 0

    # -- Source ------------------------------------------------------------------------------

    def take(self, n: int) -> list[Request] | None:
        """See `llmframe.engines.base.Source`."""
        with self.cond:
            if self._control.mode != "run":
                return None
            count = min(n, len(self._ready), self._room())
            if not count:
                return None if self.closing or not self.open else []
            taken = [self._ready.popleft() for _ in range(count)]
            for request in taken:
                self._leave(request.key)
            self.in_flight += count
            if self._lane is not None:
                self._lane.unsent += count
            if len(self._ready) < self._control.limit:
                self.cond.notify_all()
            return taken

    def _leave(self, key: bytes) -> None:
        flight = self.flights[key]
        flight.taken = True
        if self._lane is not None and flight.attempt == 1:
            del self.flights[key]
            self.sent.put(flight.place, flight.reserved)

    def again(self, key: bytes) -> Request:
        """See `llmframe.engines.base.Source`."""
        flight = self.flights.get(key)
        if flight is not None:
            return self.request(flight)
        place = self._work.place(key)
        assert place is not None, "only called with keys that were taken"
        return self._work.request(place)

    def request(self, flight: Flight) -> Request:
        """A flight's request as it goes out next."""
        request = flight.request or self._work.request(flight.place)
        same = request.attempt == flight.attempt
        return request if same else replace(request, attempt=flight.attempt)

    def landed(self, key: bytes) -> Flight | None:
        """The flight that a result is for; None: nobody waits for it."""
        flight = self.flights.pop(key, None)
        if flight is None and (flight := self.sent.pop(key)) is not None:
            flight.taken = flight.claimed = True
        if flight is None and (flight := self.parked.pop(key)) is not None:
            return replace(self.flight(flight.place), reserved=flight.reserved)
        return flight

    def flight(self, place: int) -> Flight:
        """A request at its start."""
        return self.told.pop(place, None) or Flight(place)

    def _room(self) -> int:
        """Requests the engine may have besides those it has, and those not yet safe on disk.

        A kill loses what was sent and not stored. That is at most twice what may be in flight,
        however slow the disk is; a provider's batch keeps its own replies.
        """
        if not self._bounded:
            return len(self._ready)
        return max(0, 2 * self._control.limit - self.in_flight - self.unsafe)

    def on_ready(self, wake: Callable[[], None]) -> None:
        """See `llmframe.engines.base.Source`."""
        self._wake_engine = wake

    @property
    def busy(self) -> bool:
        """Whether the engine has requests, or could take some."""
        return bool(self.in_flight or self._ready)

    def wake(self) -> None:
        """Tell the engine to look again."""
        self._wake_engine()

    # -- what comes in -----------------------------------------------------------------------

    def retry(self, flight: Flight, seconds: float) -> None:
        """Ask once more, after a pause. Holds the lock."""
        if seconds <= 0:
            self._again.append(flight)
            return
        self._sequence += 1
        heapq.heappush(self._delayed, (time.monotonic() + seconds, self._sequence, flight))

    def park(self, places: list[int]) -> list[int]:
        """Set aside the requests that a batch at the provider holds already; gives the others."""
        if not self._journal.batches():
            return places
        keys = {self._work.key(place): place for place in places}
        if self._lane is None:
            if (error := abandoned(self._journal, keys.keys())) is not None:
                with self.cond:
                    self._ended(error)
            return places
        held = keys.keys() & self._lane.take_over(keys.__contains__)
        with self.cond:
            for key in held:
                place, worst = keys[key], 0.0
                if self._budget.limit is not None:
                    # Another run sent it: it is paid for when its batch is read.
                    worst = self._budget.worst(self._work.request(place))
                    self._budget.reserve(worst)
                self.parked.put(place, worst)
        return [place for key, place in keys.items() if key not in held]

    def _unpark(self, keys: AbstractSet[bytes]) -> None:
        """A batch is over: what it said nothing new about is asked like any other."""
        with self.cond:
            flights = [flight for flight in map(self.parked.pop, keys) if flight is not None]
            for flight in flights:
                self._budget.settle(flight.reserved, 0.0)
            self._offer_places([flight.place for flight in flights])
            self.cond.notify_all()

    def add(self, places: list[int]) -> None:
        """More requests are open. Holds the lock."""
        self.open += len(places)
        self._offer_places(places)

    def _offer_places(self, places: list[int]) -> None:
        """To be asked, where this process has what to ask."""
        able = [place for place in places if self._work.can_ask(place)]
        self.todo.extend(able)
        self.unasked += len(places) - len(able)
        self.open -= len(places) - len(able)

    def give_back(self, flight: Flight) -> None:
        """What `first` gave is the next to be taken."""
        with self.cond:
            flight.taken = False
            self.in_flight -= 1
            self._ready.appendleft(self.request(flight))

    @property
    def sending(self) -> bool:
        """Whether there is something that can go out now."""
        waiting = self._offering or self._ready or self._again or self.todo
        return self.canary is None and bool(waiting)

    def _next(self, count: int) -> list[int]:
        """At most `count` places that nobody has asked yet. Holds the lock."""
        if self._alike and not self._ordered:
            self._ordered = min(_WINDOW, len(self.todo))
            ahead = [self.todo.popleft() for _ in range(self._ordered)]
            self.todo.extendleft(reversed(sorted(ahead, key=self._beginning)))
        count = min(count, self._ordered if self._alike else len(self.todo))
        self._ordered -= count if self._alike else 0
        return [self.todo.popleft() for _ in range(count)]

    def _beginning(self, place: int) -> str:
        """How a request begins, behind what all of them share."""
        request = self._work.request(place)
        return str(request.messages[-1]["content"])[request.prefix :][:_BEGINNING]

    def shortest_first(self) -> None:
        """Put the row with the shortest prompt, of the next few, at the front. Holds the lock."""
        ahead = [place for place in list(self.todo)[:64] if place < len(self._work.keys)]
        if ahead:
            place = min(ahead, key=self._size)
            self.todo.remove(place)
            self.todo.appendleft(place)

    def _size(self, place: int) -> int:
        return sum(len(str(m["content"])) for m in self._work.request(place).messages)

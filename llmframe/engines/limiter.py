"""How fast requests may go to one server: one limiter for all workers of an engine.

It knows nothing of loops or sockets. A worker asks `Limiter.wait`; 0 seconds means go. What the
server answers (429, ``Retry-After``, rate-limit headers, 5xx) is told by `Limiter.finish`.

Three things hold a request back:

* a pause that holds everybody: ``Retry-After`` of any length, else exponential backoff;
* a budget that the server states in its headers (requests or tokens left until a reset);
* a pace and a window that were learned from refusals. The pace matters more: where two requests
  a second are allowed and each takes 10 ms, one single worker is still fifty times too fast.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from llmframe.engines.headers import parse_duration, retry_after

__all__ = ["Limiter", "Outcome", "Ticket"]

Outcome = Literal["ok", "limited", "failed", "other"]
"""``limited``: 429. ``failed``: 5xx, timeout, lost connection. ``other``: says nothing of load."""

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_LONGEST_OUTAGE: Final = 2.0
"""Where nothing is answered at all, it is for the run to stop feeding; a longer pause here would
only keep it from seeing how many have failed."""
_IDLE: Final = 1.0
_SICK: Final = 0.5
"""Share of recent failures (moving average over ~10) above which sending pauses. Seven failures
in a row reach it; a server that fails 3 % of requests practically never does."""
_MANY: Final = 8
"""Failures between two pauses, at least: the run counts them to tell an outage."""

_SETTLED: Final = 15.0
_DOUBTS: Final = 4
_UNPACED: Final = 60.0
"""A right pace is not refused before it has been raised, which takes `_PROBE` seconds. Where that
happens more than `_DOUBTS` times, the pace is not what the server objects to: some answer 429 to
a share of all requests, whatever comes. Then there is none for `_UNPACED` seconds."""
_MARGIN: Final = 0.9
"""Of the pace that a server let through. Right at it, every second request would be a little
early and be refused."""
_PROBE: Final = 20.0
"""Seconds after which a pace is 10 % up; after three times that it is 3.7-fold, after ten times
100-fold. Slow near a right guess, where each probe costs a refusal; fast away from a wrong one,
such as the one a minute of a quota that others had used up."""


class Ticket(NamedTuple):
    """A request that is under way: when it went, and all that had been sent by then."""

    at: float
    requests: int
    tokens: int


@dataclass(slots=True)
class _Budget:
    """What a server says is left of one resource until its reset."""

    left: float = math.inf
    size: float = math.inf
    reset: float = 0.0
    seen: float = -math.inf  # when the request was sent whose reply told us

    def wait(self, need: float, now: float) -> float:
        # A row larger than the whole budget waits for a full one, then is the server's to judge.
        if self.left >= min(need, self.size) or now >= self.reset:
            return 0.0
        return self.reset - now

    def spend(self, need: float, now: float) -> None:
        if now >= self.reset:
            self.left = self.size
        self.left -= need


class Limiter:
    """Decides when the next request may go; shared by every stream of an engine.

    Not thread-safe: everything happens in the background event loop.

    Args:
        clock: Seconds, monotonic.
        jitter: A random number in [0, 1): spreads several processes that were told the same.

    Examples:
        >>> limiter = Limiter(clock=lambda: 0.0, jitter=lambda: 0.0)
        >>> limiter.wait()
        0.0
        >>> limiter.finish(limiter.start(), "limited", {"retry-after": "7"})
        >>> limiter.wait()
        7.0
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self.in_flight = 0
        self.free = True
        """No rule holds anything back: `wait` is 0 without asking."""
        self._requests = 0
        self._tokens = 0
        self._budgets: dict[str, _Budget] = {}
        self._until = 0.0
        self._decided = -math.inf  # when the last pause was ordered: older requests don't count
        self._window = math.inf
        self._pace: float | None = None  # requests a second, at the time `_paced`
        self._paced = 0.0
        self._next = 0.0
        self._since = 0.0  # start of the count of successes
        self._good = 0
        self._idle = -math.inf  # when the last request in flight ended
        self._early = 0  # refusals of a pace that should have been right
        self._longest = 0.0  # pause of late
        self._unpaced = -math.inf  # no pace is learned until then
        self._refusals = 0  # pauses in a row without a success between
        self._sick = 0.0
        self._bad = 0  # failures since the last pause
        self._outages = 0

    @property
    def held(self) -> float:
        """Seconds for which the server's or our own pause still holds every worker."""
        return max(0.0, self._until - self._clock())

    @property
    def counts_tokens(self) -> bool:
        """Whether `wait` and `start` need the tokens of a request."""
        return "tokens" in self._budgets

    def wait(self, tokens: int = 0) -> float:
        """Seconds until a request may go; 0 now; infinity: when another one has finished.

        Args:
            tokens: Estimate of the request's tokens, prompt and reply.
        """
        if self.free:
            return 0.0
        if self.in_flight >= self._window:
            return math.inf
        now = self._clock()
        delay = self._until - now
        if self._pace is not None:
            delay = max(delay, self._next - now)
        for name, budget in self._budgets.items():
            delay = max(delay, budget.wait(tokens if name == "tokens" else 1, now))
        return max(0.0, delay)

    def start(self, tokens: int = 0) -> Ticket:
        """Count a request as sent; give the ticket back to `finish`, whatever happens."""
        now = self._clock()
        if not self.in_flight and now - max(self._idle, self._until, self._next) > _IDLE:
            # Time in which nobody wanted anything says nothing of what the server allows.
            self._since, self._good = max(now, self._until), 0
        self.in_flight += 1
        self._requests += 1
        self._tokens += tokens
        if not self.free:
            if self._pace is not None:
                probed = max(0.0, now - self._paced) / _PROBE
                pace = self._pace * (1 + 0.1 * probed**3)
                self._next = max(self._next, now) + 1 / pace
            for name, budget in self._budgets.items():
                budget.spend(tokens if name == "tokens" else 1, now)
        return Ticket(now, self._requests, self._tokens)

    def finish(
        self, ticket: Ticket, outcome: Outcome, headers: Mapping[str, str] | None = None
    ) -> None:
        """Learn from a reply.

        Args:
            ticket: Of the request.
            outcome: What became of it.
            headers: Of the response, where there was one.
        """
        self.in_flight -= 1
        if not self.in_flight:
            self._idle = self._clock()
        if headers is not None and "x-ratelimit-remaining-requests" in headers:
            self._read("requests", headers, ticket)
        if headers is not None and "x-ratelimit-remaining-tokens" in headers:
            self._read("tokens", headers, ticket)
        if outcome == "ok":
            self._good += 1
            self._refusals = 0
            if self._sick:
                self._sick = 0.9 * self._sick if self._sick > 0.01 else 0.0
                self._outages = 0
            if self._window < math.inf:
                self._window += 1 / self._window
        elif outcome == "limited":
            self._refused(ticket, retry_after(headers) if headers is not None else None)
        elif outcome == "failed":
            self._failed(ticket, retry_after(headers) if headers is not None else None)

    def _read(self, name: str, headers: Mapping[str, str], ticket: Ticket) -> None:
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = _Budget()
            self.free = False
        if ticket.at < budget.seen:
            return  # replies come out of order; the newest request knows best
        try:
            left = float(headers[f"x-ratelimit-remaining-{name}"])
        except ValueError:
            return
        reset = parse_duration(headers.get(f"x-ratelimit-reset-{name}", ""))
        if reset is None or not math.isfinite(left):
            return
        try:
            budget.size = float(headers.get(f"x-ratelimit-limit-{name}", "inf"))
        except ValueError:
            budget.size = math.inf
        # The server had not counted what went out after this request.
        sent, then = (
            (self._tokens, ticket.tokens) if name == "tokens" else (self._requests, ticket.requests)
        )
        budget.left = left - (sent - then)
        budget.reset = self._clock() + reset
        budget.seen = ticket.at

    def _refused(self, ticket: Ticket, asked: float | None) -> None:
        now = self._clock()
        if ticket.at <= self._decided:  # of the burst that is being waited out already
            if asked is not None:
                self._until = max(self._until, now + asked)
            return
        pause = asked
        if pause is None:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._refusals) * self._spread()
        if self._good and self._pace is not None:
            self._early = max(0, self._early + (1 if now - self._paced < _SETTLED else -1))
        if self._early > _DOUBTS:
            self._pace, self._early, self._unpaced = None, 0, now + _UNPACED
        elif self._good and now >= self._unpaced:
            # What the server did let through, over the time that it took *and* the time it
            # asks for: two answers, then "wait one second" means two a second.
            self._pace = _MARGIN * self._good / max(now - self._since + pause, 1e-3)
        elif self._pace is not None:
            self._pace /= 2
        # "Wait two seconds" allows about one request every two seconds: far below that, the
        # pace follows chance and not the server.
        self._longest = max(pause, 0.9 * self._longest)
        if self._pace is not None:
            self._pace = max(self._pace, 0.25 / max(self._longest, 1e-3))
        self._window = max(1.0, min(self._window, self.in_flight + 1.0) / 2)
        self._refusals += 1
        if asked is not None:
            pause += min(1.0, 0.05 * asked) * self._jitter()
        self._pause(now, pause)
        self._paced = self._since = self._until
        self._good = 0

    def _failed(self, ticket: Ticket, asked: float | None) -> None:
        now = self._clock()
        self._sick = 0.9 * self._sick + 0.1
        if ticket.at <= self._decided:
            return
        self._bad += 1
        if asked is not None:
            self._pause(now, asked)
        elif self._sick > _SICK and self._bad >= _MANY:
            pause = min(_LONGEST_OUTAGE, _FIRST_PAUSE / 2 * 2**self._outages)
            self._outages += 1
            self._pause(now, pause * self._spread())

    def _pause(self, now: float, seconds: float) -> None:
        self.free = False
        self._decided = now
        self._until = max(self._until, now + seconds)
        self._next = self._until
        self._bad = 0

    def _spread(self) -> float:
        return 0.75 + 0.5 * self._jitter()

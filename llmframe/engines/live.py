"""The bounded stream that live servers share.

Three threads take part in a stream: the *driver* that iterates `stream`, the loop with its
workers, and one that asks the source for requests (rendering and claiming rows may wait for a
disk, which must not stall replies).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import weakref
from collections import deque
from collections.abc import Generator
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from llmframe.engines.background import background_loop, on_loop
from llmframe.engines.base import Control, Source
from llmframe.engines.limiter import Limiter
from llmframe.requests import Request
from llmframe.results import Failure, Result

__all__ = ["Sender", "background_loop", "stream"]

_TICK: Final = 0.1
"""Seconds between two looks at `Control`, which tells nobody when it changes."""
_GATHER: Final = 0.005
"""Seconds that results are gathered before they cross threads: waking the driver for each one
costs more than parsing it."""
_HANDFUL: Final = 128
_PATIENCE: Final = 1.0
"""Seconds that an abort waits for workers (and for a source that is being asked) to let go."""
_AHEAD: Final = 256
"""Requests taken ahead of need, at most; else one for each that may be in flight."""


class Sender(Protocol):
    """What a live engine gives to `stream`; used in the background loop only."""

    limiter: Limiter

    async def answer(self, request: Request) -> Result:
        """Send one request; every fault is a `Failure` in the result, never an exception."""

    def tokens(self, request: Request) -> int:
        """Estimate of prompt and reply, for servers that state a budget of tokens."""


def stream(source: Source, control: Control, sender: Sender) -> Generator[list[Result], None, None]:
    """Answer what `source` gives, at most `control.limit` requests in flight at any moment.

    There are no waves: a request goes out the moment that another's reply is in. Each request
    taken gets exactly one result. On ``"drain"`` what is in flight is finished, on ``"abort"``
    it is given up within a second; requests that were taken and not answered come back as
    ``canceled``, with `maybe_paid` where they had been sent.

    Args:
        source: Where the requests come from; asked from a thread of its own.
        control: Limit and mode, read live.
        sender: The engine's side.

    Yields:
        Results in lists, as they come. Closing the iterator early cancels everything.

    Raises:
        Exception: Whatever ``source.take`` raised, after the results so far.
    """
    loop = background_loop()
    state = _Stream(loop, source, control, sender)
    wake = weakref.WeakMethod(state.wake)  # a source may outlive the stream and must not keep it

    def awaken() -> None:
        if (waking := wake()) is not None:
            waking()

    source.on_ready(awaken)
    threading.Thread(target=state.ask, name="llmframe-source", daemon=True).start()
    loop.call_soon_threadsafe(state.start)
    try:
        while True:
            try:
                # A timed wait: an untimed one cannot be interrupted on Windows.
                batch = state.queue.get(timeout=_TICK)
            except Empty:
                if loop.is_closed():
                    return
                continue
            if batch is None:
                return
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        if not state.ended.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(state.stop)
            if not on_loop():  # a collector may close us there, where waiting would hang
                state.ended.wait(timeout=2 * _PATIENCE)


def _canceled(request: Request, sent: bool) -> Result:
    message = "stopped while in flight" if sent else "stopped before it was sent"
    return Result(
        request.key, failure=Failure("canceled", message, retryable=True, maybe_paid=sent)
    )


def _broken(request: Request, error: Exception) -> Result:
    # Type and place, never the text: texts of aiohttp's errors hold the request's headers.
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" at {place.tb_frame.f_code.co_qualname}:{place.tb_lineno}" if place else ""
    message = f"llmframe failed on this row: {type(error).__name__}{where}. Please report it."
    return Result(request.key, failure=Failure("provider_error", message, maybe_paid=True))


class _Stream:
    """State of one `stream` call. All but `wake` runs in the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, source: Source, control: Control, sender: Sender
    ) -> None:
        self.queue: SimpleQueue[list[Result] | BaseException | None] = SimpleQueue()
        self.ended = threading.Event()
        self._asked: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._loop = loop
        self._source = source
        self._control = control
        self._sender = sender
        self._limiter = sender.limiter
        self._waiting: deque[Request] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._starting = False  # a worker was made that has not run yet
        self._results: list[Result] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._taking = False
        self._dry = False  # the source had nothing; it wakes us
        self._closed = False  # the source will never have anything again
        self._stopped = False
        self._aborted = False
        self._woken = False
        self._wakes = 0
        self._error: BaseException | None = None

    def start(self) -> None:
        """Look for the first time, then every `_TICK` seconds besides every event."""
        if not self.ended.is_set():
            self._pump()
            self._loop.call_later(_TICK, self.start)

    def wake(self) -> None:
        """The source has something; called from any thread, as often as it likes."""
        if self._woken or self.ended.is_set():
            return
        self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._on_wake)

    def stop(self) -> None:
        """Nobody reads what is still to come."""
        self._stop(abort=True)
        self._pump()

    def _on_wake(self) -> None:
        self._woken = False
        self._wakes += 1
        self._dry = False
        self._pump()

    def _pump(self) -> None:
        """Bring what is running in line with what is allowed, waiting and asked for."""
        if self.ended.is_set():
            return
        if self._control.mode != "run":
            self._stop(abort=self._control.mode == "abort")
        self._refill()
        if (
            not self._starting
            and not self._stopped
            and len(self._workers) < self._control.limit
            and self._may_go()
        ):
            # One at a time: each is counted by the limiter before the next one asks it.
            self._starting = True
            worker = self._loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._left)
        if (self._closed or self._stopped) and not (self._workers or self._waiting or self._taking):
            self._end()

    def _left(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._pump()

    def _stop(self, abort: bool) -> None:
        self._stopped = True
        while self._waiting:
            self._put(_canceled(self._waiting.popleft(), sent=False))
        if abort and not self._aborted:
            self._aborted = True
            for worker in self._workers:
                worker.cancel()
            self._loop.call_later(_PATIENCE, self._end)

    def _end(self) -> None:
        if self.ended.is_set():
            return
        if self._hold is not None:
            self._hold.cancel()
        self._hand_over()
        self.ended.set()
        self._asked.put(None)
        self.queue.put(self._error)

    def _refill(self) -> None:
        """Ask the source for more before the workers run out."""
        if self._taking or self._dry or self._closed or self._stopped:
            return
        ahead = min(_AHEAD, max(1, self._control.limit))
        if 2 * len(self._waiting) > ahead:
            return
        self._taking = True
        self._asked.put((ahead - len(self._waiting), self._wakes))

    def ask(self) -> None:
        """Take from the source for as long as the stream lives, in a thread of its own.

        A thread of the loop's pool would be refused where the caller's thread outlives the
        main one: Python ends its pools first.
        """
        while (asked := self._asked.get()) is not None:
            count, wakes = asked
            found: list[Request] | BaseException | None
            try:
                found = self._source.take(count)
            except BaseException as error:  # the run's own, such as a full disk: the run's to see
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._taken, found, wakes)

    def _taken(self, requests: list[Request] | BaseException | None, wakes: int) -> None:
        self._taking = False
        if isinstance(requests, BaseException):
            self._error = requests
            self._stop(abort=True)
        elif requests is None:
            self._closed = True
        elif requests:
            self._waiting.extend(requests)
        elif wakes == self._wakes:  # else it woke us while it said that it had nothing
            self._dry = True
        self._pump()

    def _may_go(self) -> bool:
        """Whether the first waiting request may be sent; where it is a matter of time, a timer."""
        if not self._waiting:
            return False
        if self._limiter.free:
            return True
        tokens = self._sender.tokens(self._waiting[0]) if self._limiter.counts_tokens else 0
        delay = self._limiter.wait(tokens)
        if 0 < delay < math.inf:
            if self._hold is not None:
                self._hold.cancel()
            self._hold = self._loop.call_later(delay, self._pump)
        return delay <= 0

    def _next(self) -> Request | None:
        if (
            self._stopped
            or self._control.mode != "run"
            or len(self._workers) > self._control.limit
            or not self._may_go()
        ):
            return None
        request = self._waiting.popleft()
        self._refill()
        return request

    async def _work(self) -> None:
        """One worker: sends request after request for as long as it may, then leaves."""
        self._starting = False
        request = self._next()
        self._loop.call_soon(self._pump)  # the next worker, after this one has sent
        while request is not None:
            try:
                self._put(await self._sender.answer(request))
            except asyncio.CancelledError:
                self._put(_canceled(request, sent=True))
                raise
            except Exception as error:  # a fault of ours must cost one row, not the job
                self._put(_broken(request, error))
            request = self._next()

    def _put(self, result: Result) -> None:
        self._results.append(result)
        if result.failure is not None and result.failure.fatal:
            # Every further request would fail alike, and the run takes a moment to say so.
            self._stop(abort=False)
        if len(self._results) >= _HANDFUL:
            self._hand_over()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER, self._hand_over)

    def _hand_over(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._results and not self.ended.is_set():
            self.queue.put(self._results)
            self._results = []

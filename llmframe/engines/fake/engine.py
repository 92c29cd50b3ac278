"""The fake engine: deterministic, schema-aware, with faults on demand; no network, no model."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from llmframe.engines.base import Control, Limits, Source
from llmframe.engines.fake.answers import Answers
from llmframe.engines.fake.batch import FakeBatchEngine
from llmframe.engines.fake.faults import Faults, FaultsLike, spoil
from llmframe.errors import EngineError
from llmframe.requests import Request
from llmframe.results import Result

if TYPE_CHECKING:
    from llmframe.journal import Journal

__all__ = ["FakeEngine"]

_TICK: Final = 0.02
"""Seconds between two looks at `control`, which has no signal of its own."""


class FakeEngine:
    """An engine for tests: answers what it is told to, keeps its replies in memory.

    Args:
        answer: What it replies.

            - None: a value that fits the request's schema, always the same for the same row;
              without a schema the text of the last message, so that every answer shows its row.
            - a str: that text. Under a schema of one field (labels, a bare type) a text that the
              field takes is wrapped as ``{"label": text}``; any other is sent as it is.
            - a number, bool, list, dict, dataclass or pydantic model: its JSON, a bare value
              wrapped likewise.
            - a `Result` or `Failure`: that, with the request's key.
            - a callable: is given the text of the last message, or the whole `Request` where its
              first parameter is named ``request`` or annotated `Request`; returns any of the
              above. An exception in it ends the run: it is a mistake of the test, no failed row.

            `llmframe.testing.answers` and `llmframe.testing.in_turn` make such callables. With
            `choices`, a dict label -> weight sets the probabilities.
        model: Name of the model.
        choices: Give the probability of each label, as engines that score do.
        faults: What goes wrong: a kind (every request), a dict kind -> share of the requests,
            a list of kinds or None (the first request to come meets the first …), or a callable
            `Request` -> kind or None. `Fault` lists the kinds; a plain kind hits the first try
            of a request only, ``Fault(kind, times=…)`` more of them.
        latency: Seconds until a reply, or a callable `Request` -> seconds. Nothing sleeps for
            it: up to ``control.limit`` requests are in flight at once.
        concurrency: Requests in flight at once where the caller names no number.
        timeout: Seconds until a request that hangs is given up as ``timeout``.
        in_process: True: costs nothing and needs no canary. False: is treated as a remote
            model, whose price is set by ``set_options(prices={"fake/fake-1": (1.0, 2.0)})``.
        seed: Changes the automatic answers and which requests a share of faults falls on.

    Attributes:
        requests: Every request taken, retries included, in the order in which they came.
        in_flight_max: The most requests that were ever in flight at once.
        closed: Whether `close` was called.

    Examples:
        >>> import llmframe as lf
        >>> engine = lf.testing.FakeEngine(lambda text: text.upper())
        >>> lf.testing.ask(engine, "hello").text
        'HELLO'
        >>> len(engine.requests)
        1
    """

    name = "fake"

    def __init__(
        self,
        answer: Any = None,
        *,
        model: str = "fake-1",
        choices: bool = False,
        faults: FaultsLike = None,
        latency: float | Callable[[Request], float] = 0.0,
        concurrency: int = 32,
        timeout: float = 600.0,
        in_process: bool = True,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.limits = Limits(concurrency=concurrency, choices=choices, in_process=in_process)
        self.requests: list[Request] = []
        self.in_flight_max = 0
        self.closed = False
        self._answers = Answers(answer, model, choices, seed)
        self._faults = Faults(faults, seed)
        self._latency = latency
        self._timeout = timeout
        self._seed = seed
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = 0
        self._order = count(1)
        self._store: Journal | None = None
        self._twin: FakeBatchEngine | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_lock", "_order", "_store", "_in_flight", "_twin"):
            del state[name]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"FakeEngine(model={self.model!r}, {len(self.requests)} requests)"

    @property
    def store(self) -> Journal:
        """The journal of this engine's replies: in memory, one an engine, made when first used."""
        from llmframe.journal import Journal

        with self._lock:
            if self._store is None:
                self._store = Journal.memory()
            return self._store

    def batched(self) -> FakeBatchEngine:
        """What a call with ``batch=True`` goes to: the same answers, faults, requests and store.

        Its batches have ended at the first look. For more, make a `FakeBatchEngine`.
        """
        store = self.store
        with self._lock:
            if self._twin is None:
                self._twin = twin = FakeBatchEngine(model=self.model, polls=0, seed=self._seed)
                twin._answers, twin._faults = self._answers, self._faults
                twin.requests, twin._store = self.requests, store
            return self._twin

    def identity(self) -> Mapping[str, str]:
        """Provider, model and seed."""
        return {"provider": self.name, "model": self.model, "seed": str(self._seed)}

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives until it is closed.

        Raises:
            EngineError: The fault ``"crash"``.
            Exception: What the answer function raised.
        """
        ready = threading.Event()
        source.on_ready(ready.set)
        in_flight: list[tuple[float, int, list[Result]]] = []
        held = 0  # as `in_flight`, but right also where `_send` raises half-way
        taking = True
        try:
            while control.mode != "abort":
                taking = taking and control.mode == "run"
                ready.clear()  # before `take`: a wake-up during it must not be lost
                room = control.limit - held
                taken = source.take(room) if taking and room > 0 else []
                if taken is None:
                    taking = False
                elif taken:
                    held += self._count(len(taken))
                    now = time.monotonic()
                    for request in taken:
                        heapq.heappush(in_flight, self._send(request, now))
                elif not held and not taking:
                    return
                done: list[Result] = []
                now = time.monotonic()
                while in_flight and in_flight[0][0] <= now:
                    done += heapq.heappop(in_flight)[2]
                held += self._count(len(in_flight) - held)
                if done:
                    yield done
                elif taken == []:
                    pause = in_flight[0][0] - now if in_flight else _TICK
                    ready.wait(min(pause, _TICK))
        finally:
            self._count(-held)

    def _count(self, change: int) -> int:
        with self._lock:
            self._in_flight += change
            self.in_flight_max = max(self.in_flight_max, self._in_flight)
        return change

    def _send(self, request: Request, now: float) -> tuple[float, int, list[Result]]:
        """When the reply comes, its place among those of the same moment, and its results."""
        self.requests.append(request)
        order = next(self._order)
        latency = self._latency
        seconds = latency(request) if callable(latency) else latency
        fault = self._faults.next(request)
        if fault is not None and fault.kind == "crash":
            raise EngineError(
                f"the fake engine crashed at request {order}, as its faults= says.",
                provider=self.name,
                retryable=True,
            )
        result = self._answers.result(request, f"fake-{order}")
        results = [result] if fault is None else spoil(fault, result)
        if fault is not None and fault.kind == "hang":
            seconds = self._timeout
        if fault is not None and fault.kind == "reorder":
            seconds *= 2
            order += 1 << 40
        return now + seconds, order, results

    def close(self) -> None:
        """Mark the engine closed; it holds nothing."""
        self.closed = True

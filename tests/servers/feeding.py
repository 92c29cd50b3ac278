"""The run's side of an engine, as small as it can be: a source, a control, a way to drive both."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from llmframe.engines.base import Engine, Mode
from llmframe.requests import Request
from llmframe.results import KINDS, Result

__all__ = ["Control", "Feed", "ask", "drive", "requests"]


@dataclass
class Control:
    """See `llmframe.engines.base.Control`."""

    limit: int = 32
    mode: Mode = "run"


def requests(texts: Iterable[str], **fields: Any) -> list[Request]:
    """One request a text; `fields` are those of `Request`."""
    return [
        Request(
            key=number.to_bytes(16, "big"),
            position=number,
            messages=({"role": "user", "content": text},),
            **fields,
        )
        for number, text in enumerate(texts)
    ]


class Feed:
    """A source over a list; `again` puts a request back, `close` ends it."""

    def __init__(self, items: Iterable[Request] = (), closed: bool = False) -> None:
        self.taken = 0
        self.closed = closed
        self._items = deque(items)
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    def take(self, n: int) -> list[Request] | None:
        with self._lock:
            got = [self._items.popleft() for _ in range(min(n, len(self._items)))]
            self.taken += len(got)
            return got or (None if self.closed else [])

    def on_ready(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def again(self, items: Iterable[Request]) -> None:
        with self._lock:
            self._items.extend(items)
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()


def drive(
    engine: Engine,
    items: list[Request],
    *,
    limit: int = 32,
    tries: int = 1,
    control: Control | None = None,
) -> dict[bytes, Result]:
    """Every request's last result, by key.

    A request is sent again as the failure table says: without end where it spends no try
    (429), else up to `tries` times where it backs off.
    """
    control = control or Control(limit)
    by_key = {request.key: request for request in items}
    tried = dict.fromkeys(by_key, 0)
    done: dict[bytes, Result] = {}
    feed = Feed(items)
    for batch in engine.stream(feed, control):
        for result in batch:
            failure = result.failure
            again = KINDS[failure.kind].again if failure and not failure.fatal else ""
            tried[result.key] += again == "backoff"
            if again == "wait" or (again == "backoff" and tried[result.key] < tries):
                feed.again([by_key[result.key]])
                continue
            done[result.key] = result
        if len(done) == len(by_key):
            feed.close()
    return done


def ask(engine: Engine, text: str = "hello", **fields: Any) -> Result:
    """One answer to one prompt."""
    (request,) = requests([text], **fields)
    return drive(engine, [request])[request.key]

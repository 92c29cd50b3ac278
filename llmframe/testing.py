"""Fakes for tests that need no model and no network, and a harness for engines of one's own.

`FakeEngine` and `FakeBatchEngine` stand in for any model: deterministic, fitting any schema,
with faults on demand. An engine of one's own (anything with the protocol of
`llmframe.engines.base`) is tried with `ask` and `drive`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmframe.engines.base import Engine, Mode
from llmframe.engines.fake import FakeBatchEngine, FakeEngine, Fault
from llmframe.requests import KeyMaker, Request, Sampling
from llmframe.results import Result

__all__ = [
    "FakeBatchEngine",
    "FakeEngine",
    "Fault",
    "ListSource",
    "Switch",
    "answers",
    "ask",
    "drive",
    "in_turn",
    "requests",
]

_RAISE: Any = object()


class answers:  # noqa: N801 - used as a function: FakeEngine(answers({...}))
    """An answer function that looks the prompt up.

    Args:
        by_text: Answer by text. A prompt meets the text that it equals, else the longest one
            that it contains, so the text of a cell is enough.
        default: Answer for any other prompt; None: the automatic one. Not given: an error.

    Raises:
        LookupError: When called for a prompt with none of the texts, and there is no `default`.

    Examples:
        >>> engine = FakeEngine(answers({"I was charged twice": "billing"}, default="other"))
        >>> ask(engine, "Which topic? I was charged twice").text
        'billing'
        >>> ask(engine, "Which topic? Hello").text
        'other'
    """

    def __init__(self, by_text: Mapping[str, Any], *, default: Any = _RAISE) -> None:
        self._by_text = dict(by_text)
        self._longest_first = sorted(self._by_text, key=len, reverse=True)
        self._has_default = default is not _RAISE
        self._default = default if self._has_default else None

    def __call__(self, text: str) -> Any:
        """The answer to the prompt `text`."""
        if text in self._by_text:
            return self._by_text[text]
        for part in self._longest_first:
            if part in text:
                return self._by_text[part]
        if self._has_default:
            return self._default
        raise LookupError(
            f"no answer for the prompt {text[:200]!r}: it contains none of the "
            f"{len(self._by_text)} texts of answers(…). Add it, or give default=."
        )


class in_turn:  # noqa: N801 - used as a function: FakeEngine(in_turn("a", "b"))
    """An answer function that gives one answer after the other, in the order of the requests.

    Args:
        *replies: Answers as `FakeEngine` takes them.

    Raises:
        LookupError: When called once more than there are answers.

    Examples:
        >>> engine = FakeEngine(in_turn("not json", {"city": "Rome"}))
        >>> [result.text for result in drive(engine, requests(["one", "two"]))]
        ['not json', '{"city": "Rome"}']
    """

    def __init__(self, *replies: Any) -> None:
        self._replies = replies
        self._next = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[tuple[Any, ...], int]:
        return self._replies, self._next

    def __setstate__(self, state: tuple[tuple[Any, ...], int]) -> None:
        self._replies, self._next = state
        self._lock = threading.Lock()

    def __call__(self, text: str) -> Any:
        """The next answer, whatever `text` is."""
        with self._lock:
            place, self._next = self._next, self._next + 1
        if place >= len(self._replies):
            raise LookupError(
                f"request {place + 1} came, but in_turn(…) has {len(self._replies)} answers. "
                f"Was a row asked again?"
            )
        return self._replies[place]


class ListSource:
    """A `Source` over a list: gives its requests once, then says that it is closed.

    Args:
        requests: What to give.
        closed: False keeps the source open after the last of them, until `close`.
    """

    def __init__(self, requests: Iterable[Request] = (), *, closed: bool = True) -> None:
        self._waiting = list(requests)
        self._closed = closed
        self._wakes: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self.taken: list[Request] = []

    def take(self, n: int) -> list[Request] | None:
        """At most `n` requests; ``[]`` while more may come; None at the end."""
        with self._lock:
            if not self._waiting and self._closed:
                return None
            taken, self._waiting = self._waiting[:n], self._waiting[n:]
            self.taken += taken
            return taken

    def again(self, key: bytes) -> Request:
        """The last request taken with that key."""
        with self._lock:
            return next(request for request in reversed(self.taken) if request.key == key)

    def on_ready(self, wake: Callable[[], None]) -> None:
        """`wake` is called at each `add` and at `close`."""
        self._wakes.append(wake)

    def add(self, requests: Iterable[Request]) -> None:
        """More requests."""
        with self._lock:
            self._waiting += requests
        for wake in self._wakes:
            wake()

    def close(self) -> None:
        """Nothing more will come."""
        with self._lock:
            self._closed = True
        for wake in self._wakes:
            wake()


class Switch:
    """A `Control` to set by hand.

    Attributes:
        limit: Requests in flight, at most.
        mode: ``"run"``, ``"drain"`` or ``"abort"``.
    """

    def __init__(self, limit: int = 8, mode: Mode = "run") -> None:
        self.limit = limit
        self.mode: Mode = mode


def requests(
    texts: Iterable[str],
    schema: Mapping[str, Any] | None = None,
    *,
    choices: tuple[str, ...] | None = None,
    system: str | None = None,
    sampling: Sampling | None = None,
    engine: Mapping[str, str] | None = None,
) -> list[Request]:
    """Requests as a run makes them, one a text.

    Args:
        texts: Texts of the user message; two alike get different keys, as with ``dedupe=False``.
        schema: JSON Schema of the reply, its root an object.
        choices: Labels to score.
        system: Text of a shared system message.
        sampling: How the replies are drawn.
        engine: Part of the keys, see `Engine.identity`.

    Returns:
        Requests at the positions 0, 1, 2 …
    """
    sampling = sampling or Sampling()
    shared = () if system is None else ({"role": "system", "content": system},)
    maker = KeyMaker(
        engine or {}, str(schema) if schema else None, choices, sampling, shared=shared
    )
    made = []
    for position, text in enumerate(texts):
        messages = (*shared, {"role": "user", "content": text})
        key = maker.key(messages, sample=position)
        made.append(Request(key, position, messages, schema, choices, sampling, shared=len(shared)))
    return made


def drive(engine: Engine, requests: Iterable[Request], *, limit: int = 8) -> list[Result]:
    """Every result of `requests`, in the order in which the engine gives them.

    Args:
        engine: Any engine.
        requests: What to ask.
        limit: Requests in flight, at most.
    """
    stream = engine.stream(ListSource(requests), Switch(limit))
    return [result for results in stream for result in results]


def ask(engine: Engine, text: str, schema: Mapping[str, Any] | None = None) -> Result:
    """The result of one request.

    Args:
        engine: Any engine.
        text: Text of the user message.
        schema: JSON Schema of the reply.

    Raises:
        LookupError: The engine gave no result, or more than one.
    """
    results = drive(engine, requests([text], schema))
    if len(results) != 1:
        raise LookupError(f"{engine.name} gave {len(results)} results to one request; expected 1.")
    return results[0]

"""The engines under contract.

A live or local engine joins `ENGINES`, a provider's batch API `BATCH_ENGINES`, each with a context
manager that makes it. ``make(latency)`` gives an engine whose replies take `latency` seconds.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from servers.anthropic import AnthropicServer
from servers.chat import ChatServer
from servers.openai_batches import BatchServer

from llmframe.engines.anthropic import Anthropic
from llmframe.engines.base import BatchEngine, Engine
from llmframe.engines.openai import OpenAI
from llmframe.journal import Journal
from llmframe.lanes import Lane
from llmframe.testing import FakeBatchEngine, FakeEngine


@dataclass(frozen=True)
class Case:
    """An engine and what may be asked of it.

    Attributes:
        name: Shown in the test's id.
        make: ``make(latency)`` as a context manager.
        in_flight_max: The most requests that were in flight at once, counted outside of the
            engine where that can be done; None: its requests wait in batches, unbounded.
        echoes: It answers with the text of the prompt.
        slow: `latency` works.
    """

    name: str
    make: Callable[[float], AbstractContextManager[Engine]]
    in_flight_max: Callable[[Any], int] | None = None
    echoes: bool = True
    slow: bool = True


@contextmanager
def fake(latency: float) -> Iterator[Engine]:
    yield FakeEngine(latency=latency)


@contextmanager
def openai(latency: float) -> Iterator[Engine]:
    with ChatServer(answer=lambda seen: seen.text, delay=latency) as server:
        engine = OpenAI("fake-1", base_url=server.url, api_key="sk-fake")
        engine.server = server  # counts what is in flight
        yield engine


@contextmanager
def anthropic(latency: float) -> Iterator[Engine]:
    with AnthropicServer(delay=latency) as server:
        engine = Anthropic("fake-1", base_url=server.url, api_key=server.key)
        engine.server = server  # counts what is in flight
        yield engine


@contextmanager
def lane(latency: float) -> Iterator[Engine]:
    polls = 10**9 if latency > 1 else 1
    engine = FakeBatchEngine(polls=polls, max_requests=4)
    yield Lane(engine, Journal.memory(), "j_contract", poll_interval=0.01, linger=0.02)


ENGINES = [
    Case("anthropic", anthropic, in_flight_max=lambda engine: engine.server.max_in_flight),
    Case("fake", fake, in_flight_max=lambda engine: engine.in_flight_max),
    Case("lane", lane),
    Case("openai", openai, in_flight_max=lambda engine: engine.server.max_in_flight),
]


@contextmanager
def fake_batch() -> Iterator[BatchEngine]:
    yield FakeBatchEngine()


@contextmanager
def fake_batch_on_disk() -> Iterator[BatchEngine]:
    with tempfile.TemporaryDirectory() as folder:
        yield FakeBatchEngine(directory=folder, faults={"500": 0.3, "truncate": 0.3})


@contextmanager
def openai_batch() -> Iterator[BatchEngine]:
    with BatchServer() as server:
        engine = OpenAI("fake-1", base_url=server.url, api_key="sk-fake", batch=True)
        yield engine
        engine.close()


@contextmanager
def anthropic_batch() -> Iterator[BatchEngine]:
    with AnthropicServer() as server:
        yield Anthropic("fake-1", base_url=server.url, api_key=server.key, batch=True)


BATCH_ENGINES = {
    "anthropic": anthropic_batch,
    "fake_batch": fake_batch,
    "fake_batch_on_disk": fake_batch_on_disk,
    "openai_batch": openai_batch,
}


class Running:
    """`work` in a thread of its own, so that a stream that never ends fails its test."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def value(self, within: float = 20.0) -> Any:
        """What `work` returned.

        Raises:
            AssertionError: It has not ended.
        """
        self._thread.join(within)
        assert not self._thread.is_alive(), f"not ended within {within} s"
        if self._error is not None:
            raise self._error
        return self._value

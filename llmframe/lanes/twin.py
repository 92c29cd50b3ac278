"""The live twin of a batch engine, as an engine that answers a stream."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from llmframe.engines.base import BatchEngine, Control, Engine, Limits, Source
from llmframe.errors import EngineError
from llmframe.requests import Request
from llmframe.results import Result

__all__ = ["Twin", "twin_of"]

_TICK: Final = 0.1
"""Seconds between two looks at `control`, which has no signal of its own."""
_MOST: Final = 32
"""Threads: `probe` blocks for a reply."""


def twin_of(engine: BatchEngine) -> Engine:
    """An engine that asks the same model live, under the same keys."""
    return Twin(engine)


class Twin:
    """Answers live, with `BatchEngine.probe`, under the same keys.

    Args:
        engine: Whose live twin it is.

    Attributes:
        engine: The same.
    """

    def __init__(self, engine: BatchEngine) -> None:
        self.engine = engine
        self.name = engine.name
        self.model = engine.model
        self.limits: Limits = engine.limits
        self.base_url: str | None = getattr(engine, "base_url", None)
        self.store: Any = getattr(engine, "store", None)

    @property
    def home(self) -> Any:
        """As of the engine, where it has one (`llmframe.engines.homes`)."""
        return getattr(self.engine, "home", None)

    def identity(self) -> Mapping[str, str]:
        """The batch engine's: the lane is no part of a key."""
        return self.engine.identity()

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """See `llmframe.engines.base.Engine.stream`.

        Raises:
            EngineError: The engine has no live twin.
        """
        own = getattr(self.engine, "stream", None)
        if callable(own):  # the engine asks live as well, and better than one thread a request
            yield from own(source, control)
            return
        landed: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()
        source.on_ready(lambda: landed.put(None))
        pool = ThreadPoolExecutor(_MOST, thread_name_prefix="llmframe-live")

        def ask(request: Request) -> None:
            try:
                landed.put(self._asked(request))
            except BaseException as error:
                landed.put(error)

        held, taking = 0, True
        try:
            while control.mode != "abort":
                taking = taking and control.mode == "run"
                room = min(control.limit, _MOST) - held
                taken = source.take(room) if taking and room > 0 else []
                taking = taking and taken is not None
                for request in taken or ():
                    pool.submit(ask, request)
                held += len(taken or ())
                if not held and not taking:
                    return
                try:
                    item = landed.get(timeout=_TICK)
                except queue.Empty:
                    continue
                if isinstance(item, BaseException):
                    raise item
                if item is not None:
                    held -= 1
                    yield [item]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _asked(self, request: Request) -> Result:
        result = self.engine.probe(request)
        if result is None:
            raise EngineError(
                f"{self.name}/{self.model} answers in batches only. Wait for them: job.wait().",
                provider=self.name,
            )
        return result

    def close(self) -> None:
        """Nothing of its own."""

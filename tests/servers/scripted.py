"""An engine written from the protocol alone, as a user would hand one in.

It is in-process and keeps its own list of what it was asked, so a test can count at the engine.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping

from llmframe.engines.base import Control, Limits, Source
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage


class Scripted:
    """Answers with `answer(request)`: a text, a `Failure`, or a whole `Result`.

    Attributes:
        requests: Every request taken, in order.
        most_alive: The largest number of `Request` objects alive at any hand-over, looked at
            every `watch` requests; 0 where nothing was looked at.
    """

    name = "scripted"

    def __init__(
        self,
        answer: Callable[[Request], str | Failure | Result],
        *,
        model: str = "m1",
        concurrency: int = 8,
        watch: int = 0,
        keep: bool = True,
    ) -> None:
        self.answer = answer
        self.model = model
        self.limits = Limits(concurrency=concurrency, in_process=True)
        self.requests: list[Request] = []
        self.count = 0
        self.most_alive = 0
        self.closed = False
        self._watch = watch
        self._keep = keep

    @property
    def prompts(self) -> list[str]:
        return [prompt_of(request) for request in self.requests]

    def identity(self) -> Mapping[str, str]:
        return {"provider": self.name, "model": self.model}

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        ready = threading.Event()
        source.on_ready(ready.set)
        while control.mode == "run":
            ready.clear()
            taken = source.take(max(1, control.limit))
            if taken is None:
                return
            if not taken:
                ready.wait(0.05)
                continue
            self._look(len(taken))
            if self._keep:
                self.requests.extend(taken)
            yield [self._result(request) for request in taken]

    def close(self) -> None:
        self.closed = True

    def _look(self, more: int) -> None:
        before, self.count = self.count, self.count + more
        if self._watch and before // self._watch != self.count // self._watch:
            alive = sum(isinstance(thing, Request) for thing in gc.get_objects())
            self.most_alive = max(self.most_alive, alive)

    def _result(self, request: Request) -> Result:
        said = self.answer(request)
        if isinstance(said, Result):
            return said
        if isinstance(said, Failure):
            return Result(key=request.key, failure=said)
        return Result(
            key=request.key, text=said, finish="stop", usage=Usage(7, 3), model=self.model
        )


def prompt_of(request: Request) -> str:
    """Text of the request's last message."""
    content = request.messages[-1]["content"]
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def echo(request: Request) -> str:
    """The row's own prompt, so a misplaced answer shows."""
    return prompt_of(request)

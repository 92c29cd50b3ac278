"""What passes between a stream and the loaded engine that serves it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from llmframe.engines.base import Control, Source
from llmframe.engines.vllm_requests import Asked
from llmframe.requests import Request
from llmframe.results import Result

__all__ = ["Config", "Flight", "Stream"]


@dataclass(frozen=True)
class Config:
    """What makes two engines the same one.

    How many rows run at once is not among it: a loaded engine serves fewer as well.

    Attributes:
        model: Hub id or folder.
        given: Engine arguments, as sorted pairs of name and repr: they may not be hashable.
        template: A chat template in place of the model's own.
        max_num_seqs: Rows in the batch at once.
        arguments: What vLLM is loaded with, `max_num_seqs` included.
    """

    model: str
    given: tuple[tuple[str, str], ...]
    template: str | None
    max_num_seqs: int = field(compare=False)
    arguments: Mapping[str, Any] = field(compare=False, repr=False)


@dataclass
class Flight:
    """A request that vLLM has, as one or several of its own."""

    request: Request
    asked: Asked
    ids: list[str]
    outputs: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)


class Stream:
    """One call of ``VLLM.stream``, as the core sees it.

    Args:
        source: Where its requests come from.
        control: What the run wants.
        most: Requests in flight at most, where the engine was loaded for more.

    Attributes:
        out: Lists of results; an exception of the source's; None at the end.
        left: Nobody reads `out` any more.
        flying: What vLLM has of this stream.
    """

    def __init__(self, source: Source, control: Control, most: int | None = None) -> None:
        self.source = source
        self.control = control
        self.most = most
        self.out: SimpleQueue[list[Result] | BaseException | None] = SimpleQueue()
        self.left = False
        self.closed = False
        self.flying: dict[int, Flight] = {}

    @property
    def room(self) -> int:
        """Requests that it may have in flight beside those that are."""
        limit = self.control.limit
        return (limit if self.most is None else min(limit, self.most)) - len(self.flying)

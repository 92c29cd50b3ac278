"""The first batch of a job whose prompts share a long start: one row, which puts it into the cache.

The rows of a batch run side by side, and each that starts before the first has ended pays for
writing the same start once more. A row that was asked live is no help: batches have a cache of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

from llmframe.lanes.packs import Pack
from llmframe.requests import Request

__all__ = ["Priming"]

_PAYS: Final = 100
"""Requests below which it is not worth the wait."""
_PATIENCE: Final = 600.0
"""Seconds after which the others go all the same."""


class Priming:
    """Whether the first batch is one row, and until when the others wait for it.

    Args:
        engine: Whose ``marked``, where it has one, tells what of a request is marked for a cache.
    """

    def __init__(self, engine: Any) -> None:
        self._marked: Callable[[Request], str] = getattr(engine, "marked", lambda request: "")
        self._tag: str | None = None
        self._until = 0.0
        self._first = True

    def wanted(self, pack: Pack, again: Callable[[bytes], Request]) -> bool:
        """Whether one row of this pack is to go ahead; of the first pack alone.

        Args:
            pack: About to be sent.
            again: Gives the request of a key.
        """
        first, self._first = self._first, False
        return first and len(pack.lines) >= _PAYS and bool(self._marked(again(pack.lines[0][2])))

    def sent(self, tag: str, now: float) -> None:
        """The one row is at the provider."""
        self._tag, self._until = tag, now + _PATIENCE

    def until(self, open_batches: Container[str]) -> float:
        """When the others may go, in Unix seconds; 0 where they need not wait."""
        return self._until if self._tag in open_batches else 0.0

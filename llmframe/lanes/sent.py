"""A batch that a stream has at the provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llmframe.engines.base import Batch, BatchStatus
from llmframe.errors import EngineError
from llmframe.lanes.checkoff import CheckOff
from llmframe.lanes.doubts import Doubt

__all__ = ["Sent", "check_window"]

_LATE: Final = 3600.0
"""Seconds after the end of a batch's window at which it surely hangs."""


@dataclass(slots=True)
class Sent:
    """A batch at the provider.

    Attributes:
        due: When to look at it.
        alone: No other batch of this stream was open when it was sent.
        reopened: Another stream sent it, so some of its results may be stored already.
        doubt: Where a search found it: until an id of ours is in it, it may be another's.
        failed: Looks that failed, in a row.
        paused: Seconds of the pauses after those.
        check: Its lines, once it was read.
    """

    tag: str
    batch: Batch
    due: float
    alone: bool = False
    reopened: bool = False
    doubt: Doubt | None = None
    failed: int = 0
    paused: float = 0.0
    check: CheckOff | None = None


def check_window(name: str, batch: Batch, status: BatchStatus, now: float) -> None:
    """Refuse to wait on for a batch that runs long after its window.

    Raises:
        EngineError: It does; it may be charged yet, so nothing of it is sent again.
    """
    if status.expires_at is not None and now > status.expires_at + _LATE:
        raise EngineError(
            f"batch {batch.id} is still {status.message!r} an hour after its window ended. "
            f"Nothing was sent again; look for it in the provider's dashboard and cancel it "
            f"there, then run the same call.",
            provider=name,
        )

"""A batch that a stream has at the provider."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmframe.engines.base import Batch
from llmframe.lanes.checkoff import CheckOff
from llmframe.lanes.doubts import Doubt
from llmframe.requests import Request

__all__ = ["Sent"]


@dataclass(slots=True)
class Sent:
    """A batch at the provider.

    Attributes:
        due: When to look at it.
        held: Its requests, while the provider may still reject it for a full queue.
        alone: No other batch of this stream was open when it was sent.
        reopened: Another stream sent it, so some of its results may be stored already.
        doubt: Where a search found it: until an id of ours is in it, it may be another's.
        failed: Looks that failed, in a row.
        check: Its lines, once it was read.
    """

    tag: str
    batch: Batch
    due: float
    held: list[Request] = field(default_factory=list)
    alone: bool = False
    reopened: bool = False
    doubt: Doubt | None = None
    failed: int = 0
    check: CheckOff | None = None

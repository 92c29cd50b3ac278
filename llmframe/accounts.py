"""What the replies to some requests took: tokens, US$, seconds; from the journal alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from llmframe.journal import Journal
from llmframe.results import Usage

__all__ = ["Account", "account"]

_AT_ONCE: Final = 4096


@dataclass(slots=True)
class Account:
    """Replies, counted.

    Attributes:
        replies: How many, failed ones and repairs included.
        usage: Their tokens.
        cost: US$; None where no reply has a known price.
        latencies: Seconds of each good one, where the engine told them.
        models: Resolved names that the provider reported.
        maybe_paid: Requests that may have been charged without an answer.
    """

    replies: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    latencies: list[float] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    maybe_paid: int = 0


def account(journal: Journal, keys: Sequence[bytes], since: float = 0.0) -> Account:
    """Count the replies to `keys`.

    Args:
        journal: Where they are.
        keys: Of the requests, each once.
        since: Unix seconds; older replies are left out.
    """
    found = Account()
    for start in range(0, len(keys), _AT_ONCE):
        for entries in journal.replies(keys[start : start + _AT_ONCE]).values():
            for entry in entries:
                if entry.at < since:
                    continue
                found.replies += 1
                found.maybe_paid += entry.maybe_paid
                if entry.usage is not None:
                    found.usage += entry.usage
                if entry.cost is not None:
                    found.cost = (found.cost or 0.0) + entry.cost
                if entry.model is not None:
                    found.models.add(entry.model)
                if entry.latency is not None and entry.kind == "ok":
                    found.latencies.append(entry.latency)
    return found

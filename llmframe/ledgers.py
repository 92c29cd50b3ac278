"""What a run has done and paid so far, in rows of the frame, tokens and US$."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final

import numpy as np

from llmframe.journal import Entry
from llmframe.progress import Trouble
from llmframe.results import Failure, Usage
from llmframe.work import Work

__all__ = ["Ledger"]

_RECENT: Final = 64
"""Answers that a view is given: labels are told from scores better by many than by one."""

_PACE: Final = 512
"""Latencies that say how quick the engine is now."""


class Ledger:
    """Counts for the report and for progress.

    Args:
        work: The rows.

    Attributes:
        total: Rows that are asked or were answered before.
        usage: Tokens, failed rows included.
        cost: US$, as far as prices are known.
        saved: US$ that the provider's prompt cache saved, less what writing to it cost.
        maybe_paid: Requests that may have been charged without an answer.
        extra: Late or second replies.
        conflicts: Of those, replies that differ from the first.
        repaired: Answers that needed a repair or a tolerant reading.
        models: Resolved names that the provider reported.
        latencies: Seconds of each answered request.
        recent: Places of the last requests that were answered.
        refused: Kind → replies that were no answer, and why the last of them was none.
    """

    def __init__(self, work: Work) -> None:
        asked = work.inverse[work.inverse >= 0]
        self._weight = np.bincount(asked, minlength=len(work)).tolist()
        self._asks = work.call.asks
        self.total = sum(self._weight) // self._asks
        self._settled = dict.fromkeys(("ok", "cached", "failed"), 0)
        self.usage, self.cost, self.saved = Usage(), 0.0, 0.0
        self.maybe_paid = self.extra = self.conflicts = self.repaired = 0
        self.models: set[str] = set()
        self.latencies: list[float] = []
        self.recent: deque[int] = deque(maxlen=_RECENT)
        self.refused: dict[str, tuple[int, str]] = {}

    def pay(self, entries: Iterable[Entry]) -> None:
        """Replies that were paid for, or may have been."""
        for entry in entries:
            if entry.usage is not None:
                self.usage += entry.usage
                self.cost += entry.cost or 0.0

    def settle(self, status: str, place: int) -> None:
        """A request is at its end, and so are the rows that share it."""
        self._settled[status] += self._weight[place]

    def reopen(self, status: str, place: int) -> None:
        """A request was not at its end after all."""
        self._settled[status] -= self._weight[place]

    def recount(self, counts: Mapping[str, int], unasked: int) -> None:
        """Rows by status, after they were looked at together; `unasked` of the failed are none."""
        for status in self.rows:
            self.rows[status] = counts[status] - (unasked if status == "failed" else 0)

    def answer(self, place: int, latency: float | None, repaired: bool) -> None:
        """A request was answered now."""
        self.settle("ok", place)
        self.repaired += repaired
        self.recent.append(place)
        if latency is not None:
            self.latencies.append(latency)

    def refuse(self, failure: Failure) -> None:
        """A reply was no answer."""
        count, _ = self.refused.get(failure.kind, (0, ""))
        self.refused[failure.kind] = count + 1, failure.message

    def troubles(self) -> tuple[Trouble, ...]:
        """What was refused so far, the commonest first."""
        found = [Trouble(kind, *seen) for kind, seen in dict(self.refused).items()]
        return tuple(sorted(found, key=lambda trouble: -trouble.count))

    def pace(self) -> tuple[float, float] | None:
        """Median and 95th percentile of the last latencies, in seconds; None where none is known.

        The nearest rank (https://en.wikipedia.org/wiki/Percentile#The_nearest-rank_method).
        """
        ordered = sorted(self.latencies[-_PACE:])
        if not ordered:
            return None
        ranks = (ceil(share * len(ordered)) - 1 for share in (0.5, 0.95))
        p50, p95 = (ordered[rank] for rank in ranks)
        return p50, p95

    @property
    def rows(self) -> dict[str, int]:
        """Rows ``ok``, ``cached`` and ``failed`` so far.

        Of rows with several requests it is an estimate until all have settled: a third of the
        requests counts as a third of the rows.
        """
        cached, failed = (self._settled[name] // self._asks for name in ("cached", "failed"))
        done = sum(self._settled.values()) // self._asks
        return {"ok": done - cached - failed, "cached": cached, "failed": failed}

    @property
    def empty(self) -> bool:
        """Whether nothing was answered by this run, and nothing paid."""
        return not (self._settled["ok"] or self.maybe_paid) and self.usage == Usage()

    def late(self, first: Sequence[Entry], text: str | None) -> None:
        """One more reply to a request that had these already."""
        self.extra += 1
        self.conflicts += any(entry.text not in {None, text} for entry in first)

    def kept(self, failure: Failure | None = None) -> str:
        """How far the run came, for whoever is told that it ended early.

        Args:
            failure: What ended it, where it was a reply.
        """
        done = self.rows["ok"] + self.rows["cached"]
        again = "the same call sends the rest"
        if failure is not None and _is_the_calls(failure):
            again = "the same call would be refused again, until that is mended"
        return f"{done:,} of {self.total:,} rows are answered and kept; {again}."


def _is_the_calls(failure: Failure) -> bool:
    """Whether what was refused is asked again by the same call: no key or account is at fault."""
    return failure.kind == "invalid_request" and failure.status not in {401, 402, 403}

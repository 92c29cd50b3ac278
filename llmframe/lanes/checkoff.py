"""Results against the stored lines of a batch: nothing missing, nothing twice, nothing foreign."""

from __future__ import annotations

import json
import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from llmframe.results import Failure, Result

if TYPE_CHECKING:
    from llmframe.engines.base import Batch
    from llmframe.journal import Journal
    from llmframe.lanes.sent import Sent

__all__ = ["CONFLICTS", "CheckOff", "scored"]

log = logging.getLogger("llmframe")

CONFLICTS: Final = "conflicts"
"""Note of a batch: how many of its rows had two different replies."""

_WHY: Final = {
    "expired": "the batch's window ended before this row was answered",
    "canceled": "the batch was cancelled before this row was answered",
}


def scored(journal: Journal, batch: Batch) -> Batch:
    """The batch with the labels that its rows were asked to score, as its job has them stored.

    Args:
        journal: Where the job is.
        batch: Of this job or of another one; its tag begins with the job's id.
    """
    job = journal.job(batch.tag.rpartition("-")[0])
    call = json.loads(job.call) if job is not None else {}
    if not call.get("choices"):
        return batch
    return replace(batch, choices=tuple(call["choices"]), schema=call["form"]["schema"])


class CheckOff:
    """The lines of one batch, and which of them are answered. Joins by id, never by order.

    Args:
        lines: ``(custom_id, part, key)`` of every request that was sent.
        recorded: By key, the provider's ids of results that the journal has already: read
            before a crash, they would look like a second, paid reply.

    Attributes:
        counts: ``unknown_ids``, ``duplicates``, ``conflicts``, ``missing`` and ``rate_limited``.
        answered: Number of lines with a result.
    """

    def __init__(
        self,
        lines: Iterable[tuple[str, int, bytes]],
        recorded: Mapping[bytes, AbstractSet[str]] | None = None,
    ) -> None:
        self._place: dict[tuple[str, int] | str, int] = {}
        keys = bytearray()
        for place, (custom_id, part, key) in enumerate(lines):
            self._place[(custom_id, part) if part else custom_id] = place
            keys += key
        self._keys = bytes(keys)
        self._recorded = recorded or {}
        # Of each line what it said, and whether it was seen at all and in this read: flat, since a
        # batch has 100,000 of them.
        count = len(self._place)
        self._said = array("q", bytes(8 * count))
        self._seen, self._this_time = bytearray(count), bytearray(count)
        self.counts: Counter[str] = Counter()

    @classmethod
    def stored(cls, journal: Journal, tag: str, again: bool) -> CheckOff:
        """That of a batch in the journal.

        Args:
            journal: Where its lines are.
            tag: Of the batch.
            again: Another stream may have read some of its results.
        """
        lines = journal.lines(tag)
        replies = journal.replies([key for _, _, key in lines]) if again else {}
        recorded = {
            key: {entry.request_id for entry in entries if entry.request_id is not None}
            for key, entries in replies.items()
        }
        return cls(lines, recorded)

    @property
    def answered(self) -> int:
        """Lines with a result."""
        return sum(self._seen)

    @property
    def keys(self) -> set[bytes]:
        """Keys of all lines."""
        return {self._key(line) for line in range(len(self._seen))}

    def _key(self, line: int) -> bytes:
        return self._keys[16 * line : 16 * line + 16]

    def start(self) -> None:
        """The results are read from the beginning, for the first time or again."""
        self._this_time = bytearray(len(self._seen))
        self.counts.clear()

    def result(self, custom_id: str, part: int, result: Result) -> Result | None:
        """The result to hand on, with the key of its line; None where there is none.

        Args:
            custom_id: As the provider gives it back.
            part: Place in the line.
            result: What it says.
        """
        line = self._place.get((custom_id, part) if part else custom_id)
        if line is None:
            self.counts["unknown_ids"] += 1
            return None
        key = self._key(line)
        said = hash((result.text, result.failure and result.failure.kind, result.vector))
        if self._this_time[line]:
            self.counts["duplicates" if self._said[line] == said else "conflicts"] += 1
            return None
        self._this_time[line] = 1
        failure = result.failure
        if failure is not None and failure.kind == "rate_limited" and not failure.fatal:
            self.counts["rate_limited"] += 1
        if self._seen[line]:  # handed on before the last read broke off
            return None
        self._seen[line], self._said[line] = 1, said
        if result.request_id is not None and result.request_id in self._recorded.get(key, ()):
            return None
        return result if result.key == key else replace(result, key=key)

    def tell(self, journal: Journal, provider: str, sent: Sent, pause: float) -> None:
        """What the user should know at once, and what the report should.

        Args:
            journal: Where the batch is.
            provider: Where it ran.
            sent: The batch.
            pause: Seconds for which no other is sent.
        """
        where = f"batch {sent.batch.id} at {provider}"
        limited, conflicts = self.counts["rate_limited"], self.counts["conflicts"]
        if limited:
            told = "%s: rows that were rate-limited: %d; no batch is sent for %.0f s"
            log.warning(told, where, limited, pause)
        if conflicts:
            journal.note(sent.tag, CONFLICTS, str(conflicts))
            told = "%s: rows with two different replies: %d; the first one is kept"
            log.warning(told, where, conflicts)

    def missing(self, kind: str) -> list[Result]:
        """A failure of `kind` for each line without a result."""
        why = _WHY.get(kind, "the batch ended without a line for this row")
        failure = Failure(kind, why, retryable=kind != "canceled")
        missing = [line for line, seen in enumerate(self._seen) if not seen]
        self.counts["missing"] += len(missing)
        return [Result(self._key(line), failure=failure) for line in missing]

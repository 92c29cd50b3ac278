"""Results against the stored lines of a batch: nothing missing, nothing twice, nothing foreign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from llmframe.results import Failure, Result

if TYPE_CHECKING:
    from llmframe.journal import Journal

__all__ = ["CheckOff"]

_WHY: Final = {
    "expired": "the batch's window ended before this row was answered",
    "canceled": "the batch was cancelled before this row was answered",
}


class CheckOff:
    """The lines of one batch, and which of them are answered. Joins by id, never by order.

    Args:
        lines: ``(custom_id, part, key)`` of every request that was sent.
        recorded: By key, the provider's ids of results that the journal has already: read
            before a crash, they would look like a second, paid reply.

    Attributes:
        keys: Keys of all lines.
        counts: ``unknown_ids``, ``duplicates``, ``conflicts`` and ``missing``.
        answered: Number of lines with a result.
    """

    def __init__(
        self,
        lines: Iterable[tuple[str, int, bytes]],
        recorded: Mapping[bytes, AbstractSet[str]] | None = None,
    ) -> None:
        self._lines = {(custom_id, part): key for custom_id, part, key in lines}
        self._recorded = recorded or {}
        self._seen: dict[tuple[str, int], int] = {}
        self._this_time: set[tuple[str, int]] = set()
        self.keys = set(self._lines.values())
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
        return len(self._seen)

    def start(self) -> None:
        """The results are read from the beginning, for the first time or again."""
        self._this_time.clear()
        self.counts.clear()

    def result(self, custom_id: str, part: int, result: Result) -> Result | None:
        """The result to hand on, with the key of its line; None where there is none.

        Args:
            custom_id: As the provider gives it back.
            part: Place in the line.
            result: What it says.
        """
        line = custom_id, part
        key = self._lines.get(line)
        if key is None:
            self.counts["unknown_ids"] += 1
            return None
        print_ = hash((result.text, result.failure and result.failure.kind, result.vector))
        if line in self._this_time:
            same = self._seen[line] == print_
            self.counts["duplicates" if same else "conflicts"] += 1
            return None
        self._this_time.add(line)
        if line in self._seen:  # handed on before the last read broke off
            return None
        self._seen[line] = print_
        if result.request_id is not None and result.request_id in self._recorded.get(key, ()):
            return None
        return result if result.key == key else replace(result, key=key)

    def missing(self, kind: str) -> list[Result]:
        """A failure of `kind` for each line without a result."""
        why = _WHY.get(kind, "the batch ended without a line for this row")
        failure = Failure(kind, why, retryable=kind != "canceled")
        missing = [line for line in self._lines if line not in self._seen]
        self.counts["missing"] += len(missing)
        return [Result(self._lines[line], failure=failure) for line in missing]

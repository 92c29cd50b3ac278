"""What a person said of rows, which rows they are, and the file that keeps it.

A row is known by its index label and by a hash of the text that was shown, so that a frame in
another order, with other rows, or in another process finds its own. Rows that agree in both are
told apart by their order. The file holds the answers that were given and no text of a row.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llmframe.errors import StoreError
from llmframe.rendering import plain

__all__ = ["Mark", "RowKey", "append", "row_keys", "stored"]


class RowKey(NamedTuple):
    """Which row.

    Attributes:
        row: Its index label, as text.
        text: SHA-256 of the text that was shown, 32 hex digits of it.
        nth: Of the rows that agree in both, from 0.
    """

    row: str
    text: str
    nth: int


@dataclass(frozen=True, slots=True)
class Mark:
    """What was said of a row.

    Attributes:
        value: The right answer; None where the row was skipped.
        reason: Why, in the person's own words.
        skipped: Left for later, without an answer.
    """

    value: Any = None
    reason: str | None = None
    skipped: bool = False


def row_keys(rows: Iterable[tuple[str, str]]) -> list[RowKey]:
    """Keys of rows, from their labels and texts in order.

    Examples:
        >>> [key.nth for key in row_keys([("a", "x"), ("a", "y"), ("a", "x")])]
        [0, 0, 1]
    """
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for label, text in rows:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        found.append(RowKey(label, digest, seen[label, digest]))
        seen[label, digest] += 1
    return found


def append(path: Path, column: str, marks: Mapping[RowKey, Mark | None]) -> None:
    """Add lines to a file of marks; the last line of a row is the one that counts.

    Args:
        path: JSON lines; made where there is none.
        column: Name of the column whose answers were looked at.
        marks: By row; None takes a mark back.
    """
    lines = []
    for key, mark in marks.items():
        line: dict[str, Any] = {"column": column, **key._asdict()}
        if mark is None:
            line["taken_back"] = True
        elif mark.skipped:
            line["skipped"] = True
        else:
            line["value"] = plain(mark.value)
            if mark.reason is not None:
                line["reason"] = mark.reason
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    with path.open("ab+") as file:
        if file.tell() and not _ends_a_line(file):
            lines.insert(0, "\n")  # a process died while it wrote
        # One write: two notebooks on one file do not mix their lines.
        file.write("".join(lines).encode("utf-8", "replace"))


def _ends_a_line(file: Any) -> bool:
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")


def stored(path: Path, column: str) -> dict[RowKey, Mark]:
    """The marks of a column that a file holds.

    Raises:
        StoreError: There is no such file, or it is none of marks.
    """
    if not path.is_file():
        raise StoreError(f"there is no file {str(path)!r}; review.save(path) writes one.")
    found: dict[RowKey, Mark] = {}
    for name, key, mark in _lines(path):
        if name == column:
            found.pop(key, None)
            if mark is not None:
                found[key] = mark
    return found


def _lines(path: Path) -> Iterator[tuple[str, RowKey, Mark | None]]:
    for number, text in enumerate(path.read_bytes().split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            if text.startswith(b'{"column"'):
                continue  # cut off where a process died
            line = None
        try:
            key = RowKey(str(line["row"]), str(line["text"]), int(line["nth"]))
            name = str(line["column"])
        except (TypeError, KeyError, ValueError):
            raise StoreError(
                f"line {number} of {str(path)!r} is no mark of a review; expected a file that "
                f"review.save(path) wrote."
            ) from None
        if line.get("taken_back"):
            yield name, key, None
        else:
            yield name, key, Mark(line.get("value"), line.get("reason"), bool(line.get("skipped")))

"""Message Batches on the wire: what is sent, and what their states and results say. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from llmframe.engines.anthropic_wire import failure_of, message, unix_time
from llmframe.engines.base import Batch, BatchStatus
from llmframe.requests import parse_custom_id
from llmframe.results import Failure, Result

__all__ = ["batch_of", "counts_of", "entry", "line_id", "lines", "part_of", "result", "status_of"]

_log = logging.getLogger("llmframe")

_UNKNOWN: Final = b""
_PART: Final = re.compile(r"(.+)_p(\d+)")
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")


def line_id(custom_id: str, part: int) -> str:
    """Id at the provider: a line's later requests each need one of their own.

    Examples:
        >>> line_id("0-ab-1", 0), line_id("0-ab-1", 2)
        ('0-ab-1', '0-ab-1_p2')
    """
    return custom_id if part == 0 else f"{custom_id}_p{part}"


def part_of(text: str) -> tuple[str, int]:
    """custom_id and part of a `line_id`."""
    found = _PART.fullmatch(text)
    return (text, 0) if found is None else (found[1], int(found[2]))


def entry(custom_id: str, params: bytes) -> bytes:
    """One element of ``requests``; `params` is the body that a live request would have."""
    return b'{"custom_id":' + orjson.dumps(custom_id) + b',"params":' + params + b"}"


def counts_of(read: Mapping[str, Any]) -> dict[str, int]:
    """``request_counts``, every one there."""
    counts = read.get("request_counts")
    if not isinstance(counts, dict):
        counts = {}
    return {name: count if isinstance(count := counts.get(name), int) else 0 for name in _COUNTS}


def batch_of(read: Mapping[str, Any], tag: str, count: int, now: float) -> Batch:
    """A batch as created or listed.

    Raises:
        KeyError: It has no id.
    """
    created_at = unix_time(read.get("created_at"))
    return Batch(str(read["id"]), tag, count, now if created_at is None else created_at)


def status_of(read: Mapping[str, Any]) -> BatchStatus:
    """State of a batch in one vocabulary; a word that nobody knows is no end."""
    counts = counts_of(read)
    total = sum(counts.values())
    if read.get("archived_at"):
        said = f"its results were archived on {read['archived_at']}"
        return BatchStatus("gone", total=total, message=said)
    state = read.get("processing_status")
    if state != "ended":
        # All requests count as processing until the last has ended, so there is no progress.
        return BatchStatus(
            "running",
            counts["succeeded"],
            counts["errored"],
            total,
            str(state),
            expires_at=unix_time(read.get("expires_at")),
        )
    done = counts["succeeded"]
    failed = counts["errored"] + counts["canceled"] + counts["expired"]
    if read.get("cancel_initiated_at"):
        missing = "canceled"
    else:
        missing = "expired" if counts["expired"] else "no_result"
    return BatchStatus("done", done, failed, total, "ended", missing=missing)


def lines(file: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records of a results file with their line numbers; what is none is said and left out.

    Args:
        file: Lines as a binary file gives them: cut at line feeds alone, since a record may hold
            U+2028 as it is.
    """
    for number, line in enumerate(file, 1):
        line = line.strip(b" \t\r\n")
        if not line:
            continue
        try:
            read = orjson.loads(line)
        except orjson.JSONDecodeError:
            read = None
        if isinstance(read, dict) and isinstance(read.get("custom_id"), str):
            yield number, read
        else:
            _log.warning("line %d of a batch's results is no result; it is left out", number)


def result(
    record: Mapping[str, Any],
    batch: str,
    *,
    key: bytes | None = None,
    scrub: Callable[[str], str] = str,
) -> Result:
    """What one record says.

    Args:
        record: With a ``custom_id``.
        batch: The provider's id of the batch.
        key: Of its request; None: as its custom_id says.
        scrub: Takes secrets out of a provider's words.
    """
    custom_id = record["custom_id"]
    if key is None:
        parsed = parse_custom_id(custom_id)
        key = _UNKNOWN if parsed is None else parsed[1]
    said = record.get("result")
    if not isinstance(said, dict):
        said = {}
    kind = said.get("type")
    # Two reads of one line have one id, two lines have two.
    own = f"{batch}/{custom_id}"
    if kind == "succeeded":
        read = said.get("message")
        if not isinstance(read, dict) or not isinstance(read.get("id"), str):
            return message(key, read, request_id=own, scrub=scrub)
        return message(key, read, scrub=scrub)
    if kind == "errored":
        error = said.get("error")
        told = error.get("request_id") if isinstance(error, dict) else None
        failure = failure_of(None, {}, error, scrub=scrub)
        return Result(key, request_id=told if isinstance(told, str) else own, failure=failure)
    if kind == "expired":
        failure = Failure("expired", "the batch's 24 hours ended before this row", retryable=True)
    elif kind == "canceled":
        failure = Failure("canceled", "the batch was cancelled before this row was answered")
    else:
        words = f"a result of the unknown type {kind!r}"
        failure = Failure("provider_error", words, retryable=True, maybe_paid=True)
    return Result(key, request_id=own, failure=failure)

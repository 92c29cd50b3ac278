"""Lines, states and results of OpenAI's Batch API, and of services that imitate it. Pure.

Total: any line of a results file gives a result, a `BadLine`, or nothing where it is blank.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring_ascii
from typing import Any, Final, Literal

import orjson

from llmframe.engines.base import Batch, BatchStatus
from llmframe.engines.openai_wire import failure_of, from_read
from llmframe.engines.payloads import count_of
from llmframe.requests import Request, parse_custom_id
from llmframe.results import Failure, Result

__all__ = [
    "TAG",
    "BadLine",
    "Service",
    "ascii_json",
    "batch_of",
    "created_at",
    "files_of",
    "line",
    "line_size",
    "read_line",
    "service_for",
    "status_of",
    "tag_of",
    "unwrapped",
    "wire_id",
]

TAG: Final = "llmframe"
"""Name of the tag in a batch's metadata."""
_LONGEST_ID: Final = 64
_SEVERAL: Final = re.compile(r"(.+)_(\d+)_([A-Za-z0-9_-]{22})")
_NON_ASCII: Final = re.compile(r"[^\x00-\x7f]+")

_State = Literal["running", "done", "rejected", "gone"]


@dataclass(frozen=True, slots=True)
class Service:
    """Where services that imitate OpenAI's Batch API differ.

    Attributes:
        purpose: Of an input file.
        window: The completion window asked for.
        states: The service's words, in lower case; any other word is a batch that still runs.
        missing: By word, the failure of a request that has no line.
    """

    purpose: str = "batch"
    window: str = "24h"
    states: Mapping[str, _State] = field(
        default_factory=lambda: {
            "completed": "done",
            "expired": "done",
            "cancelled": "done",
            "canceled": "done",
            "failed": "rejected",
        }
    )
    missing: Mapping[str, str] = field(
        default_factory=lambda: {
            "expired": "expired",
            "cancelled": "canceled",
            "canceled": "canceled",
        }
    )


_SERVICES: Final[dict[str, Service]] = {"together.xyz": Service(purpose="batch-api")}


def service_for(host: str | None) -> Service:
    """What is known of the service at a host; OpenAI's own ways where nothing is.

    Examples:
        >>> service_for("api.together.xyz").purpose, service_for("127.0.0.1").purpose
        ('batch-api', 'batch')
    """
    for name, service in _SERVICES.items():
        if f".{host}".endswith(f".{name}"):
            return service
    return Service()


def ascii_json(data: bytes) -> bytes:
    r"""The same JSON with every character above U+007F escaped.

    Some services cut their input at U+2028 and its like, which JSON allows in a text.

    Examples:
        >>> ascii_json('{"a":"é\u2028"}'.encode())
        b'{"a":"\\u00e9\\u2028"}'
    """
    if data.isascii():
        return data
    return _NON_ASCII.sub(lambda found: _escaped(found[0]), data.decode()).encode("ascii")


def _escaped(text: str) -> str:
    return encode_basestring_ascii(text)[1:-1]


def wire_id(custom_id: str, request: Request, part: int, parts: int) -> str:
    """The id of one request at the provider: the line's own, where it has one request.

    A chat completion answers one request, so a line of several is as many lines on the wire,
    and each of their ids holds its key as the line's own does.

    Raises:
        ValueError: The id is longer than the 64 characters that a provider takes.
    """
    found = parse_custom_id(custom_id) if parts == 1 else None
    if found is not None and found[1] == request.key:
        return custom_id
    key = urlsafe_b64encode(request.key).decode().rstrip("=")
    wire = f"{custom_id}_{part}_{key}"
    if len(wire) > _LONGEST_ID:
        raise ValueError(f"custom_id {custom_id!r} is too long for a line of several requests")
    return wire


def _read_id(wire: str) -> tuple[str, int, bytes]:
    """custom_id, part and key; no key where the id is not one of ours."""
    found = _SEVERAL.fullmatch(wire) if "_" in wire else None
    if found is not None:
        return found[1], int(found[2]), urlsafe_b64decode(found[3] + "==")
    ours = parse_custom_id(wire)
    return wire, 0, ours[1] if ours is not None else b""


_HEAD: Final = b'{"custom_id":"%s","method":"POST","url":"%s","body":'


def line(wire: str, url: str, body: bytes) -> bytes:
    """One line of an input file; `body` is ASCII."""
    return _HEAD % (wire.encode(), url.encode()) + body + b"}\n"


def line_size(url: str, body: bytes) -> int:
    """Bytes of a line with the longest id."""
    return len(_HEAD) - 4 + _LONGEST_ID + len(url) + len(body) + 2


def unwrapped(read: object) -> dict[str, Any]:
    """The batch in an answer; empty where there is none."""
    if isinstance(read, dict):
        inner = read.get("job")  # Together
        return inner if isinstance(inner, dict) else read
    return {}


def batch_of(read: Mapping[str, Any], tag: str, count: int, now: float) -> Batch | None:
    """A batch as a create or a list gives it; None where it has no id."""
    name = read.get("id")
    if not isinstance(name, str) or not name:
        return None
    return Batch(name, tag, count, created_at(read) or now)


def created_at(read: Mapping[str, Any]) -> float:
    """Unix seconds at which a batch or a file was made; 0 where it is not told."""
    value = read.get("created_at")
    return float(value) if isinstance(value, int | float) else 0.0


def tag_of(read: Mapping[str, Any]) -> str | None:
    """The tag in a batch's metadata."""
    metadata = read.get("metadata")
    tag = metadata.get(TAG) if isinstance(metadata, dict) else None
    return tag if isinstance(tag, str) else None


def files_of(read: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Ids of the output and the error file; an empty one is none."""
    return _file(read.get("output_file_id")), _file(read.get("error_file_id"))


def _file(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def status_of(
    read: Mapping[str, Any], service: Service, scrub: Callable[[str], str]
) -> BatchStatus:
    """Where a batch stands, from the provider's own account of it."""
    word = str(read.get("status") or "").lower()
    state: _State = service.states.get(word, "running")
    if state == "rejected" and any(files_of(read)):
        state = "done"  # it failed on its way, and what was answered by then is paid
    counts = read.get("request_counts")
    counts = counts if isinstance(counts, dict) else {}
    done, failed, total = (count_of(counts, name) for name in ("completed", "failed", "total"))
    errors = read.get("errors")
    listed = errors.get("data") if isinstance(errors, dict) else errors
    errors = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    said = [_said(error) for error in errors[:3]]
    if len(errors) > 3:
        said.append(f"and {len(errors) - 3:,} more")
    full = any("token_limit_exceeded" in text or "nqueued token" in text for text in said)
    ends = read.get("expires_at")
    return BatchStatus(
        state,
        done,
        failed,
        total,
        scrub("; ".join(said)) if said else word,
        queue_full=state == "rejected" and full,
        missing=service.missing.get(word, "no_result"),
        expires_at=float(ends) if isinstance(ends, int | float) and ends > 0 else None,
    )


def _said(error: Mapping[str, Any]) -> str:
    text = f"{error.get('code') or 'error'}: {' '.join(str(error.get('message') or '').split())}"
    place = error.get("line")
    return f"{text[:300]} (line {place})" if isinstance(place, int) else text[:300]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a results file that says nothing of any request."""

    why: str


_KINDS: Final = {
    "batch_expired": "expired",
    "batch_cancelled": "canceled",
    "batch_canceled": "canceled",
}
_PASSING: Final = {"server_error", "internal_error", "rate_limit_exceeded", "timeout"}


def read_line(
    data: bytes,
    scrub: Callable[[str], str] = str,
    choices: tuple[str, ...] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> tuple[str, int, Result] | BadLine | None:
    r"""One line of an output or error file.

    Args:
        data: The line, with or without its end.
        scrub: Takes secrets out of a provider's words.
        choices: Labels that the request was to score; the line does not repeat them.
        schema: Of the request.

    Returns:
        custom_id, part and result; None for a blank line.

    Examples:
        >>> read_line(b"\r\n")
        >>> read_line(b"not json")
        BadLine(why='no JSON')
    """
    data = data.strip(b" \t\r\n")
    if not data:
        return None
    read = _decoded(data)
    if not isinstance(read, dict):
        return BadLine("no JSON" if read is None else "no object")
    wire = read.get("custom_id")
    if not isinstance(wire, str) or not wire:
        return BadLine("no custom_id")
    custom_id, part, key = _read_id(wire)
    request = Request(key, 0, (), schema, choices)
    return custom_id, part, _result(request, read, scrub)


def _decoded(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:  # Python's reads what orjson does not: half a surrogate pair, bytes that are no UTF-8
        read = json.loads(data.decode(errors="replace"), parse_constant=lambda name: None)
        return orjson.loads(json.dumps(read, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _result(request: Request, read: Mapping[str, Any], scrub: Callable[[str], str]) -> Result:
    response, error = read.get("response"), read.get("error")
    response = response if isinstance(response, dict) else {}
    status = response.get("status_code")
    if isinstance(status, str) and re.fullmatch(r"[1-5]\d\d", status):
        status = int(status)
    body = response.get("body")
    request_id = next(
        (text for text in (response.get("request_id"), read.get("id")) if _file(text)), None
    )
    raw = b""
    if isinstance(body, str):  # OGX
        raw = body.encode(errors="replace")
        body = _decoded(raw)
    if error or not isinstance(status, int) or not 200 <= status < 300:
        failure = _failure(status, body, error, scrub)
        return Result(request.key, request_id=request_id, failure=failure)
    headers = {"x-request-id": request_id} if request_id is not None else {}
    result = from_read(request, status, headers, body, raw, scrub=scrub)
    if result.failure is not None and result.failure.kind == "provider_error":
        return result.failed(replace(result.failure, maybe_paid=False))
    return result


def _failure(status: object, body: object, error: object, scrub: Callable[[str], str]) -> Failure:
    """The verdict on a line that is no answer."""
    code = error.get("code") if isinstance(error, dict) else None
    code = code if isinstance(code, str) else ""
    kind = _KINDS.get(code)
    if kind is not None:
        words = error.get("message") if isinstance(error, dict) else None
        why = scrub(" ".join(str(words or code).split()))[:400]
        return Failure(kind, why, retryable=kind == "expired", code=code)
    told = error or body
    if not isinstance(status, int) or status == 0:
        if not told:
            shown = "" if status is None else f" (status {status})"
            return Failure("provider_error", f"no reason given{shown}", True)
        status = 500 if code in _PASSING else 400
        read = told if isinstance(told, dict) else {"error": told}
        failure = failure_of(status, {}, read, scrub=scrub)
        said = failure.message.removeprefix(f"HTTP {status}: ")  # nobody named that status
        return replace(failure, message=said, status=None, maybe_paid=False)
    if 200 <= status < 300:
        # An answer and an error: the answer proves nothing.
        status = 500 if code in _PASSING else 400
    # A row that the provider did not answer well is not billed.
    read = told if isinstance(told, dict) else {"error": str(told or "")}
    return replace(failure_of(status, {}, read, scrub=scrub), maybe_paid=False)

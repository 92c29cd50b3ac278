"""Results files in OpenAI's batch shape, from whatever ran them, line by line. Total: never raises.

Split at newlines alone: U+2028 and its like stand unescaped inside valid JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from llmframe.engines.openai_wire import failure_of, from_wire
from llmframe.requests import Request, parse_custom_id
from llmframe.results import Failure, Result

__all__ = ["BadLine", "read_answers"]

_KINDS: Final = {
    "batch_expired": "expired",
    "batch_cancelled": "canceled",
    "batch_canceled": "canceled",
}


class BadLine:
    """A line that says nothing of any request.

    Args:
        number: Of the line, from 1.
        why: What is wrong with it.
    """

    def __init__(self, number: int, why: str) -> None:
        self.number = number
        self.why = why


def read_answers(path: Path) -> Iterator[Result | BadLine]:
    """The results of a file; blank lines are left out."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            data = data.strip()
            if data:
                yield _answer(number, data)


def _answer(number: int, data: bytes) -> Result | BadLine:
    read = _decoded(data)
    if not isinstance(read, dict):
        return BadLine(number, "no JSON object")
    parsed = parse_custom_id(str(read.get("custom_id")))
    if parsed is None or len(parsed[1]) != 16:
        return BadLine(number, f"custom_id {read.get('custom_id')!r} is none of llmframe's")
    key = parsed[1]
    response, error = read.get("response"), read.get("error")
    response = response if isinstance(response, dict) else {}
    status, body = response.get("status_code"), response.get("body")
    raw = body.encode(errors="replace") if isinstance(body, str) else _encoded(body)
    request_id = response.get("request_id") or read.get("id")
    headers = {"x-request-id": request_id} if isinstance(request_id, str) else {}
    if error is None and isinstance(status, int) and 200 <= status < 300:
        return from_wire(Request(key, 0, ()), status, headers, raw)
    failure = _failure(status, _decoded(raw), error)
    return Result(key, failure=failure, request_id=headers.get("x-request-id"))


def _failure(status: Any, body: Any, error: Any) -> Failure:
    """What a line without an answer says: in three shapes, and as plain text."""
    code = error.get("code") if isinstance(error, dict) else None
    kind = _KINDS.get(code) if isinstance(code, str) else None
    if kind is not None:
        return Failure(kind, str(error.get("message") or code), kind == "expired", code=code)
    if not error and not body and not isinstance(status, int | str):
        return Failure("provider_error", "no reason given", True)
    if status == 0 and not error and not body:
        return Failure("provider_error", "no reason given (status 0)", True)
    read = error or body
    if not isinstance(read, dict):
        read = {"error": read}
    known = isinstance(status, int) and status >= 300
    return failure_of(status if known else 400, {}, read)


def _decoded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:  # Python's reads what orjson does not, such as half a surrogate pair
            return json.loads(data.decode(errors="replace"))
        except (ValueError, RecursionError):
            return None


def _encoded(body: Any) -> bytes:
    return json.dumps(body).encode()

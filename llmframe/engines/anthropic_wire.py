"""What comes back from Anthropic's Messages API, as results. Pure and total.

Any status with any body gives a `Result`: an unknown shape is a `Failure`, never an exception.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import orjson

from llmframe.engines.headers import retry_after
from llmframe.engines.payloads import LONGEST, count_of, shortened, text_of
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage

__all__ = ["STATUS", "failure_of", "from_wire", "limit_headers", "message", "unix_time"]

STATUS: Final[dict[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP status of each type of error: the rows of a batch have the type alone."""

_FINISH: Final[dict[Any, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "refusal": "refusal",
    "tool_use": "tool",
}
_NO_CREDIT: Final = re.compile(
    r"credit.balance|spend(ing)?.limit|usage limits|billing_(error|hard)|plans? (&|and) billing",
    re.IGNORECASE,
)
_TOO_LONG: Final = re.compile(
    r"prompt is too long|input length and .?max_tokens.? exceed|exceeds? (the )?context"
    r"|too many tokens|input is too long",
    re.IGNORECASE,
)
_FILTERED: Final = re.compile(r"content filter|violat\w+ .{0,60}polic", re.IGNORECASE)
_PARAM: Final = re.compile(r"^([a-z_][\w.\[\]]*): |`([a-z_]{3,40})`")


def from_wire(
    request: Request,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    latency: float | None = None,
    scrub: Callable[[str], str] = str,
) -> Result:
    """Read one live response.

    Args:
        request: What was asked.
        status: HTTP status.
        headers: Looked up in lower case.
        body: As it came.
        latency: Seconds, passed on.
        scrub: Takes secrets out of a provider's words.

    Returns:
        The result; `text`, `usage` and `finish` are kept beside a failure where there are any.
    """
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError:
        read = None
    request_id = headers.get("request-id")
    if not 200 <= status < 300 or not isinstance(read, dict) or read.get("error"):
        if request_id is None and isinstance(read, dict):
            request_id = text_of(read.get("request_id"))
        failure = failure_of(status, headers, read, body, scrub=scrub)
        return Result(request.key, failure=failure, request_id=request_id, latency=latency)
    limit = request.sampling.max_tokens
    return message(
        request.key, read, request_id=request_id, latency=latency, limit=limit, scrub=scrub
    )


def message(
    key: bytes,
    read: object,
    *,
    request_id: str | None = None,
    latency: float | None = None,
    limit: int | None = None,
    scrub: Callable[[str], str] = str,
) -> Result:
    """Read a Message, from a live response or a line of a batch.

    Args:
        key: Of the request.
        read: The message, decoded.
        request_id: The provider's id of the request; None: the message's own.
        latency: Seconds, passed on.
        limit: The request's token limit, for the words of a failure.
        scrub: Takes secrets out of a provider's words.
    """
    if not isinstance(read, dict):
        read = {}
    if request_id is None:
        request_id = text_of(read.get("id"))
    usage = _usage(read.get("usage"))
    content = read.get("content")
    word = read.get("stop_reason")
    finish = _FINISH.get(word, word) if isinstance(word, str) else None
    text: str | None = None
    reasoning: str | None = None
    verdict: Failure | None
    if not isinstance(content, list):
        verdict = Failure("provider_error", "the reply holds no content", True, maybe_paid=True)
    else:
        text, reasoning, called = _blocks(content)
        verdict = _verdict(read, text, finish, word, limit, usage, scrub)
        if verdict is not None and text is None:
            text = called
    return Result(
        key,
        text,
        finish,
        usage,
        text_of(read.get("model")),
        request_id,
        verdict,
        None,
        None,
        latency,
        reasoning,
    )


def _blocks(content: list[Any]) -> tuple[str | None, str | None, str | None]:
    """Text, thinking and the input of a tool out of the blocks of a reply."""
    texts, thoughts, called = [], [], None
    for block in content:
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use" and called is None:
            called = orjson.dumps(block.get("input")).decode()
    return ("".join(texts) if texts else None), "\n".join(thoughts) or None, called


def _verdict(
    read: Mapping[str, Any],
    text: str | None,
    finish: str | None,
    word: object,
    limit: int | None,
    usage: Usage | None,
    scrub: Callable[[str], str],
) -> Failure | None:
    """Why a reply is no answer, or None."""
    if finish == "refusal":
        details = read.get("stop_details")
        said = (
            [details.get(name) for name in ("category", "explanation")]
            if (isinstance(details, dict))
            else []
        )
        why = ": ".join(scrub(one) for one in said if isinstance(one, str)) or (text or "")
        return Failure("refused", shortened(f"refused: {why}" if why.strip() else "refused"))
    if finish in {"length", "window"}:
        if finish == "window":
            where = "the end of the model's context window"
        else:
            where = "the token limit that was sent" if limit is None else f"max_tokens={limit}"
        if usage is not None and not text and usage.reasoning_tokens:
            where += f"; {usage.reasoning_tokens} tokens went into thinking"
        # In a full window a larger limit is cut at the same place.
        return Failure("truncated", f"cut off at {where}", retryable=finish == "length")
    if word == "pause_turn":
        # Only a tool that runs at the provider pauses a turn; whatever text there is, is a part.
        message = "the model paused in the middle of its turn (pause_turn) for a tool that runs at"
        return Failure(
            "invalid_request",
            f"{message} the provider; such turns are not carried on here. Leave the tool out of "
            f"extra=",
        )
    if text is not None and text.strip():
        return None
    if finish == "tool":
        return Failure("invalid_output", "answered with a tool call, not a text", retryable=True)
    return Failure("empty_output", "the reply is empty", retryable=True)


def _usage(usage: object) -> Usage | None:
    """Tokens; what came from the cache or went into it is not in the provider's input count."""
    if not isinstance(usage, dict) or not isinstance(usage.get("input_tokens"), int):
        return None
    cached = count_of(usage, "cache_read_input_tokens")
    written = count_of(usage, "cache_creation_input_tokens")
    lifetimes = usage.get("cache_creation")
    hour = count_of(lifetimes, "ephemeral_1h_input_tokens") if isinstance(lifetimes, dict) else 0
    details = usage.get("output_tokens_details")
    thought = count_of(details, "thinking_tokens") if isinstance(details, dict) else 0
    return Usage(
        usage["input_tokens"] + cached + written,
        count_of(usage, "output_tokens"),
        cached,
        written,
        thought,
        hour,
    )


def failure_of(
    status: int | None,
    headers: Mapping[str, str],
    read: object,
    body: bytes = b"",
    *,
    scrub: Callable[[str], str] = str,
) -> Failure:
    """What an error means, be it a response or a row of a batch.

    Args:
        status: HTTP status; None: that of the error's type, as in a batch.
        headers: Looked up in lower case.
        read: The error decoded, at whatever depth it is nested; or None.
        body: As it came, for servers that answer in plain text.
        scrub: Takes secrets out of a provider's words.
    """
    error = read
    for _ in range(3):  # {"type": "error", "error": {…}}, which a batch wraps once more
        inner = error.get("error") if isinstance(error, dict) else None
        if not isinstance(inner, dict | str):
            break
        error = inner
    row = status is None
    kind, code, words = None, None, ""
    if isinstance(error, dict):
        kind = text_of(error.get("type"))
        details = error.get("details")
        code = text_of(details.get("error_code")) if isinstance(details, dict) else None
        words = text_of(error.get("message")) or ""
    elif isinstance(error, str):
        words = error
    else:
        plain = body[: 2 * LONGEST].decode(errors="replace").strip()
        words = "" if read is not None or plain[:1] in "<{[" else plain
    words = shortened(scrub(words)).removesuffix(".")  # more may follow, in brackets or behind
    if status is None or 200 <= status < 300:
        known = STATUS.get(kind or "")
        if known is None:
            said = words or kind or "no message"
            paid = status is not None
            message = f"answered {status} with {said}" if paid else f"errored: {said}"
            return Failure(
                "provider_error", message, True, status=status, code=kind, maybe_paid=paid
            )
        status = known
    about = f"{kind or f'HTTP {status}'}: {words}" if words else f"HTTP {status}"
    if code is not None and code not in about:
        about += f" ({code})"
    named = _PARAM.search(words)
    param = (named[1] or named[2]) if named and status in {400, 422} else None
    pause = retry_after(headers)

    def failure(kind_: str, message: str = about, **more: Any) -> Failure:
        return Failure(kind_, message, status=status, code=code or kind, param=param, **more)

    if status == 402 or (status in {400, 403, 429} and _NO_CREDIT.search(f"{code or ''} {words}")):
        message = f"the account cannot pay ({about}). Check its plan and billing."
        return failure("rate_limited", message, fatal=True)
    if status == 429:
        return failure("rate_limited", retryable=True, retry_after=pause)
    if status >= 500 or status in {408, 409, 425, 499}:
        paid = not row and status >= 500 and status != 529  # overloaded: nothing was begun
        return failure("provider_error", retryable=True, retry_after=pause, maybe_paid=paid)
    if status in {401, 403}:
        what, remedy = {
            401: ("the key is refused", "Set ANTHROPIC_API_KEY or pass api_key="),
            403: ("not allowed", "Check what the key may use"),
        }[status]
        return failure("invalid_request", f"{what} ({about}). {remedy}.", fatal=True)
    if status in {400, 404} and (
        re.match(r"model\b", words) or re.search(r"model .{0,80}(not found|does not exist)", words)
    ):
        return failure("invalid_request", f"no such model ({about})", fatal=True)
    if status == 405:
        return failure("invalid_request", f"that is not done there ({about})", fatal=True)
    if status in {404, 410} and not row:
        message = f"nothing answers there ({about}). Anthropic's base_url has no /v1 at its end."
        return failure("invalid_request", message, fatal=True)
    if status < 400:
        message = f"HTTP {status}: redirected; set base_url to where it leads"
        return failure("invalid_request", message, fatal=True)
    if status == 413:
        return failure("request_too_large")
    if _TOO_LONG.search(words):
        return failure("prompt_too_long", _too_long(words))
    if _FILTERED.search(words):
        return failure("content_filter")
    return failure("invalid_request")


def _too_long(words: str) -> str:
    """Both numbers where they are told: what the prompt has, what the model takes."""
    found = re.search(r"prompt is too long: ([\d,]+) tokens > ([\d,]+)", words)
    if found is None:
        return f"the prompt is too long for the model: {words}"
    has, takes = (int(number.replace(",", "")) for number in found.groups())
    return f"the prompt has {has} tokens, the model takes {takes}"


_LIMITED: Final = ("requests", "tokens")


def limit_headers(headers: Mapping[str, str], now: float | None = None) -> Mapping[str, str]:
    """The rate-limit headers in the words that the limiter reads.

    Args:
        headers: Of a response; looked up in lower case.
        now: Unix time; the clock's where None.
    """
    told = {
        name: value for name in ("retry-after", "retry-after-ms") if (value := headers.get(name))
    }
    for name in _LIMITED:
        left = headers.get(f"anthropic-ratelimit-{name}-remaining")
        reset = unix_time(headers.get(f"anthropic-ratelimit-{name}-reset"))
        if left is None or reset is None:
            continue
        seconds = max(0.0, reset - (time.time() if now is None else now))
        told[f"x-ratelimit-remaining-{name}"] = left
        told[f"x-ratelimit-reset-{name}"] = f"{seconds:.3f}"
        size = headers.get(f"anthropic-ratelimit-{name}-limit")
        if size is not None:
            told[f"x-ratelimit-limit-{name}"] = size
    return told


def unix_time(text: object) -> float | None:
    """Seconds of an RFC 3339 time, or None.

    Examples:
        >>> unix_time("2026-11-29T12:00:00Z"), unix_time("soon")
        (1795953600.0, None)
    """
    if not isinstance(text, str):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if when.tzinfo is None else when.timestamp()

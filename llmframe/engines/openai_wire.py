"""What comes back from an OpenAI-compatible server, as results. Pure and total.

Any status with any body gives a `Result`: an unknown shape is a `Failure`, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from llmframe.engines import openai_responses
from llmframe.engines.headers import retry_after
from llmframe.engines.openai_scores import choice_logprobs
from llmframe.engines.payloads import LONGEST, count_of, shortened, text_of
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage

__all__ = ["failure_of", "from_read", "from_wire"]

_FINISH: Final[dict[Any, str]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
    "tool_calls": "tool",
    "function_call": "tool",
}
_NO_QUOTA: Final = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_user_quota",
    "access_terminated",
}
_TOO_LONG: Final = re.compile(
    r"context[ _](length|window|size)|context_length_exceeded|exceed_context_size"
    r"|longer than the maximum model length|maximum (input|model|sequence) length"
    r"|prompt is too long|input is too long|too many (input )?tokens|input length",
    re.IGNORECASE,
)
_LIMIT_TOO_LARGE: Final = re.compile(r"max_(completion_)?tokens\W+(\w+ ){0,4}is too large")
_FILTERED: Final = re.compile(
    r"content_filter|content management policy|content_policy_violation|ResponsibleAIPolicy"
    r"|data_inspection_failed|input was flagged|flagged for",
    re.IGNORECASE,
)
_NO_MODEL: Final = re.compile(
    r"model_not_found|model [`'\"]?[^`'\"]{0,200}[`'\"]? ?(does not exist|not found)|unknown model",
    re.IGNORECASE,
)
_BAD_KEY: Final = re.compile(r"invalid_api_key|api[ _]key not valid|invalid api[ _]key", re.I)


def from_wire(
    request: Request,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    latency: float | None = None,
    scrub: Callable[[str], str] = str,
) -> Result:
    """Read one response.

    Args:
        request: What was asked: its key, its labels to score, its schema.
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
        if isinstance(read, str):  # some gateways encode the body twice
            read = orjson.loads(read)
    except orjson.JSONDecodeError:
        read = None
    return from_read(request, status, headers, read, body, latency=latency, scrub=scrub)


def from_read(
    request: Request,
    status: int,
    headers: Mapping[str, str],
    read: object,
    body: bytes = b"",
    *,
    latency: float | None = None,
    scrub: Callable[[str], str] = str,
) -> Result:
    """As `from_wire`, of a body that is decoded: `read`, None where it is no JSON."""
    if isinstance(read, dict) and openai_responses.is_response(read):
        read = openai_responses.as_chat(read)
    request_id = headers.get("x-request-id")
    if not 200 <= status < 300 or not isinstance(read, dict) or read.get("error"):
        failure = failure_of(status, headers, read, body, scrub=scrub)
        return Result(request.key, failure=failure, request_id=request_id, latency=latency)
    if request_id is None:
        request_id = text_of(read.get("id"))
    model = text_of(read.get("model"))
    usage = _usage(read.get("usage"))
    choices = read.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        failure = Failure(
            "provider_error", "the reply holds no choices", True, status=status, maybe_paid=True
        )
        return Result(
            request.key,
            usage=usage,
            model=model,
            request_id=request_id,
            failure=failure,
            latency=latency,
        )
    content = message.get("content")
    refusal = message.get("refusal")
    if not isinstance(content, str | None):
        content, refusal = _parts(content, refusal)
    word = choice.get("finish_reason")
    finish = _FINISH.get(word, word) if isinstance(word, str) else None
    reasoning = text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))
    scores = None
    if content is None or finish != "stop" or refusal or not content.strip():
        content, finish, verdict = _unfinished(
            request, message, content, finish, refusal, reasoning, usage
        )
    else:
        verdict = None
        if request.choices is not None:
            logprobs = choice.get("logprobs")
            if isinstance(logprobs, dict):
                scores = choice_logprobs(
                    logprobs.get("content"), content, request.choices, request.schema
                )
    return Result(
        request.key,
        content,
        finish,
        usage,
        model,
        request_id,
        verdict,
        scores,
        None,
        latency,
        reasoning,
    )


def _unfinished(
    request: Request,
    message: Mapping[str, Any],
    content: str | None,
    finish: str | None,
    refusal: object,
    reasoning: str | None,
    usage: Usage | None,
) -> tuple[str | None, str | None, Failure | None]:
    """Text, finish and verdict of a reply that is not simply a text with an end."""
    if isinstance(refusal, str) and refusal:
        return content or refusal, "refusal", Failure("refused", shortened(f"refused: {refusal}"))
    if finish == "content_filter":
        return content, finish, Failure("content_filter", "the provider's filter cut the reply off")
    if finish == "length":
        limit = request.sampling.max_tokens
        where = "the model's own limit" if limit is None else f"max_tokens={limit}"
        thought = usage.reasoning_tokens if usage else 0
        if not content and thought:
            where += f"; {thought} tokens went into reasoning"
        return content, finish, Failure("truncated", f"cut off at {where}", retryable=True)
    if content and content.strip():
        return content, finish, None
    calls = message.get("tool_calls") or message.get("function_call")
    if calls:
        call = calls[0] if isinstance(calls, list) else calls
        function = call.get("function", call) if isinstance(call, dict) else {}
        told = function.get("arguments") if isinstance(function, dict) else None
        failure = Failure("invalid_output", "answered with a tool call, not a text", True)
        return text_of(told), "tool", failure
    if reasoning:
        failure = Failure(
            "empty_output",
            "the answer is empty and the text stands under reasoning: the server takes the answer "
            "for thinking. Start it with the right reasoning parser (vLLM: --reasoning-parser), "
            "or without one, or turn thinking off.",
            retryable=True,
        )
        return content, finish, failure
    return content, finish, Failure("empty_output", "the reply is empty", retryable=True)


def _parts(content: object, refusal: object) -> tuple[str | None, object]:
    """Text and refusal out of a content that is no string."""
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict):
                if isinstance(part.get("refusal"), str):
                    refusal = refusal or part["refusal"]
                elif isinstance(part.get("text"), str) and part.get("type") != "thinking":
                    texts.append(part["text"])
        return ("".join(texts) if texts else None), refusal
    # An answer under a schema that the server has decoded already.
    return orjson.dumps(content).decode(), refusal


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(output, int | None):
        return None
    cached = written = thought = 0
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        cached, written = (
            count_of(details, "cached_tokens"),
            count_of(details, "cache_write_tokens"),
        )
    else:  # DeepSeek's name
        cached = count_of(usage, "prompt_cache_hit_tokens")
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):
        thought = count_of(details, "reasoning_tokens")
    return Usage(prompt, output or 0, cached, written, thought)


def failure_of(
    status: int,
    headers: Mapping[str, str],
    read: object,
    body: bytes = b"",
    *,
    scrub: Callable[[str], str] = str,
) -> Failure:
    """What an error response means.

    Args:
        status: HTTP status; 200 where the body alone says error.
        headers: Looked up in lower case.
        read: The body decoded, or None.
        body: As it came, for servers that answer in plain text.
        scrub: Takes secrets out of a provider's words.
    """
    words, code, param, error = _error(read, body)
    words = shortened(scrub(words)).removesuffix(".")  # more may follow, in brackets or behind
    if 200 <= status < 300:
        inner = error.get("code", error.get("status"))
        if isinstance(inner, int) and 400 <= inner < 600:  # OpenRouter: 200 with the real status
            status = inner
        else:
            said = words or ("no JSON" if read is None else "no completion")
            return Failure(
                "provider_error",
                f"answered {status} with {said}",
                True,
                status=status,
                maybe_paid=True,
            )
    told = f"{code or ''} {words}"
    pause = retry_after(headers)
    about = f"HTTP {status}: {words}" if words else f"HTTP {status}"

    def failure(kind: str, message: str = about, **more: Any) -> Failure:
        return Failure(kind, message, status=status, code=code, param=param, **more)

    if code in _NO_QUOTA or "insufficient_quota" in told:
        message = f"no quota left on this account ({about}). Check its plan and billing."
        return failure("rate_limited", message, fatal=True)
    if status == 429:
        return failure("rate_limited", retryable=True, retry_after=pause)
    if status >= 500 or status in {408, 409, 425}:
        paid = status >= 500
        return failure("provider_error", retryable=True, retry_after=pause, maybe_paid=paid)
    if status in {400, 403, 422} and _FILTERED.search(told):
        return failure("content_filter")
    if status in {401, 402, 403} or (status == 400 and _BAD_KEY.search(told)):
        what, remedy = {
            402: ("the account cannot pay", "Check its plan and billing"),
            403: ("not allowed", "Check what the key may use"),
        }.get(status, ("the key is refused", "Set OPENAI_API_KEY or pass api_key="))
        return failure("invalid_request", f"{what} ({about}). {remedy}", fatal=True)
    if status in {400, 404} and (code == "model_not_found" or _NO_MODEL.search(told)):
        return failure("invalid_request", f"no such model ({about})", fatal=True)
    if status in {404, 405, 410}:
        message = f"nothing answers there ({about}). base_url ends in /v1 on most servers."
        return failure("invalid_request", message, fatal=True)
    if status < 400:
        where = re.match(r"(https?://)([^/?#]+@)?([^/?#@]+)", headers.get("location", ""))
        host = f" to {where[1]}{where[3]}" if where else ""
        message = f"HTTP {status}: redirected{host}; set base_url to where it leads"
        return failure("invalid_request", message, fatal=True)
    if status == 413:
        return failure("request_too_large")
    if _TOO_LONG.search(told) and not _LIMIT_TOO_LARGE.search(words):
        return failure("prompt_too_long", _too_long(words, error))
    return failure("invalid_request")


def _too_long(words: str, error: Mapping[str, Any]) -> str:
    """Both numbers where they are told: what the prompt has, what the model takes."""
    takes, has = error.get("n_ctx"), error.get("n_prompt_tokens")  # llama.cpp
    if not isinstance(takes, int) or not isinstance(has, int):
        # In every wording known, the larger number is the prompt's, the smallest the limit,
        # and parts of the sum stand behind both.
        numbers = [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\d", words)]
        if len(numbers) < 2:
            return f"the prompt is too long for the model: {words}"
        has, takes = max(numbers[:2]), min(numbers[:2])
    return f"the prompt has {has} tokens, the model takes {takes}"


def _error(read: object, body: bytes) -> tuple[str, str | None, str | None, Mapping[str, Any]]:
    """Words, code, parameter and the whole of an error, in any of the known shapes."""
    error = read
    if isinstance(error, list) and error:  # Google wraps the object into a list
        error = error[0]
    if isinstance(error, dict) and "error" in error:
        error = error["error"]
    if isinstance(error, str):  # Ollama
        return error, None, None, {}
    if not isinstance(error, dict):
        plain = body[: 2 * LONGEST].decode(errors="replace").strip()
        # A page is no message; a line of plain text is.
        return ("" if read is not None or plain[:1] in "<{[" else plain), None, None, {}
    detail = error.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):  # FastAPI
        found = detail[0].get("loc")
        place = [part for part in found if isinstance(part, str)] if isinstance(found, list) else []
        param = ".".join(place[1:] if place[:1] == ["body"] else place)
        return f"{param}: {detail[0].get('msg', '')}", text_of(detail[0].get("type")), param, {}
    words = error.get("message") or detail or error.get("msg") or ""
    code = error.get("code")
    if not isinstance(code, str) or not code:  # vLLM and llama.cpp repeat the status there
        code = error.get("type")
    return (
        words if isinstance(words, str) else orjson.dumps(words).decode(),
        text_of(code),
        text_of(error.get("param")),
        error,
    )

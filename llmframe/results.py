"""What an engine says about one request: the values that cross every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

__all__ = ["KINDS", "Failure", "Kind", "Result", "Usage"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of failure leads to (one row of the failure table).

    Attributes:
        again: Inside the job: ``"backoff"`` (sent again after a pause, spends a try),
            ``"wait"`` (sent again, spends no try), ``"repair"`` (sent again with the error
            told), ``"longer"`` (once, with a larger token limit) or ``"no"``.
        rerun: The same call again: ``"asked"``, ``"told"`` (only with ``retry="all"``),
            ``"code"`` (only with ``join(df, schema=…)``).
    """

    again: str
    rerun: str = "asked"


KINDS: Final[dict[str, Kind]] = {
    "rate_limited": Kind("wait"),
    "timeout": Kind("backoff"),
    "connection": Kind("backoff"),
    "provider_error": Kind("backoff"),
    "engine_lost": Kind("backoff"),
    "expired": Kind("wait"),
    "no_result": Kind("wait"),
    "canceled": Kind("no"),
    "invalid_output": Kind("repair"),
    "empty_output": Kind("repair"),
    "truncated": Kind("longer"),
    "refused": Kind("no", "told"),
    "content_filter": Kind("no", "told"),
    "invalid_request": Kind("no", "told"),
    "prompt_error": Kind("no"),
    "prompt_too_long": Kind("no"),
    "request_too_large": Kind("no"),
    "user_code": Kind("no"),
    "needs_code": Kind("no", "code"),
    "lost": Kind("no", "told"),
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    `cached_tokens` and `cache_write_tokens` are part of the input, and `cache_write_1h_tokens`
    (written for an hour, at a higher price than for minutes) part of `cache_write_tokens`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_1h_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one request has no answer.

    Attributes:
        kind: A key of `KINDS`.
        message: What happened, in words that name the cause; never a secret, never a body.
        retryable: Whether the same request may pass later.
        fatal: Every other request of the job would fail alike (401, 402, 403, no quota, the
            model is gone, the engine is dead): the job ends here and the row stays pending.
        status: HTTP status, where there was one.
        code: The provider's error code, such as ``"insufficient_quota"``.
        param: The request parameter that the provider refused.
        retry_after: Seconds the provider asked to wait.
        maybe_paid: The request may have been answered and charged (timeout, reset, 5xx).
    """

    kind: str
    message: str
    retryable: bool = False
    fatal: bool = False
    status: int | None = None
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    maybe_paid: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """One reply to one try of one request.

    Attributes:
        key: The request's key.
        text: The reply as the model wrote it, unread; kept on a failure too where there is one.
        finish: Why it stopped, in one vocabulary: ``"stop"``, ``"length"``, ``"window"``
            (prompt and reply fill the model's context), ``"content_filter"``, ``"refusal"``,
            ``"tool"`` or the provider's own word.
        usage: Tokens, None where the engine does not say.
        model: The resolved name that the provider reports.
        request_id: The provider's id of the request.
        failure: Set where there is no answer to read.
        choice_logprobs: Natural-log probability of each of `Request.choices`, in their order,
            as the engine gives them (not normalised, not calibrated).
        vector: An embedding.
        latency: Seconds from sending to the reply.
        reasoning: The model's own thinking where the provider keeps it apart from the answer.
    """

    key: bytes
    text: str | None = None
    finish: str | None = None
    usage: Usage | None = None
    model: str | None = None
    request_id: str | None = None
    failure: Failure | None = None
    choice_logprobs: tuple[float, ...] | None = None
    vector: tuple[float, ...] | None = None
    latency: float | None = None
    reasoning: str | None = None

    def failed(self, failure: Failure) -> Result:
        """The same reply, with `failure` as its verdict."""
        return replace(self, failure=failure)

"""Chat completion bodies: what goes out, and what is left out where a server refuses it. Pure.

`Bodies` encodes requests. `refused` tells from an error which of the things that *we* chose to
send a server does not take; what the user asked for is sent or fails, never left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from llmframe.engines import openai_responses
from llmframe.engines.payloads import dump
from llmframe.requests import Message, Request
from llmframe.results import Failure

__all__ = ["Bodies", "Features", "features_of", "marked", "refused"]

_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_EVERY_LIMIT: Final = (*_LIMITS, "max_output_tokens")
_CACHEABLE: Final = 4096
"""Characters of constant prompt below which no provider caches it (1,024 tokens at OpenAI)."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a server takes, as far as it is known.

    Attributes:
        temperature: A temperature of 0 may be sent where the user gave none.
        limit: Name of the token limit: ``"max_tokens"`` or ``"max_completion_tokens"``.
        limit_settled: The other name was refused before.
        response_format: JSON Schemas are taken; else they go into the prompt.
        top_logprobs: Alternatives to ask for at each token when labels are scored; 0: none.
        cache_marks: The constant start of the prompt is marked for the prompt cache.
    """

    temperature: bool = True
    limit: str = "max_tokens"
    limit_settled: bool = False
    response_format: bool = True
    top_logprobs: int = 20
    cache_marks: bool = False


def features_of(model: str, official: bool, prompt_cache: bool | None = None) -> Features:
    """What is known of a model by its name, before anything was sent.

    Args:
        model: The model's name.
        official: The server is api.openai.com; any other may call anything by any name.
        prompt_cache: Whether the prompt cache is told where the constant start ends; None: where
            the model is known to want it.

    Examples:
        >>> features_of("o4-mini", official=True).temperature
        False
        >>> features_of("o4-mini", official=False).temperature
        True
    """
    if not official:
        return Features(cache_marks=bool(prompt_cache))
    name = model.removeprefix("ft:")
    reasoning = bool(re.match(r"o\d|gpt-(5|[6-9])", name)) and "chat" not in name
    # From GPT-5.6 on every prompt is written to the cache, at a price, unless it is told where.
    marks = bool(re.match(r"gpt-(5\.([6-9]|\d\d)|[6-9])", name))
    return Features(
        temperature=not reasoning,
        limit="max_completion_tokens",
        top_logprobs=0 if reasoning else 20,
        cache_marks=marks if prompt_cache is None else prompt_cache,
    )


class Bodies:
    """Encodes request bodies: what all rows share once, a row's own messages each time.

    Args:
        model: Name of the model.
        responses: In the shape of ``/v1/responses``, not of chat completions.
    """

    def __init__(self, model: str, responses: bool = False) -> None:
        self._model = model
        self._responses = responses
        # Heads by the identity of what is in them; that is kept, so that an id stays its own.
        self._heads: dict[tuple[Any, ...], tuple[bytes, tuple[Any, ...]]] = {}

    def encode(self, request: Request, features: Features) -> bytes:
        """The JSON body of a request.

        Raises:
            ValueError: Something in it is not plain JSON, or `extra` asks for what cannot be.
        """
        sampling, schema = request.sampling, request.schema
        shared = request.messages[: request.shared]
        if schema is not None and not features.response_format and not _system(shared):
            # No shared system message to put the schema into: the row's own, or a new one.
            own, shared = _with_schema(request.messages, schema), ()
        else:
            own = request.messages[request.shared :]
        mark = bool(marked(request, features))
        key = (
            id(schema),
            request.choices is not None,
            sampling.temperature,
            sampling.max_tokens,
            sampling.seed,
            id(sampling.extra),
            features,
            mark,
            *map(id, shared),
        )
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) >= 64:  # a job that raises limits row by row must not pile up
                self._heads.clear()
            head = self._head(request, features, shared, mark)
            found = self._heads[key] = (head, (schema, sampling.extra, shared))
        if mark and request.prefix:
            own = (*own[:-1], _marked(own[-1], request.prefix))
        if self._responses:
            own = tuple(openai_responses.messages_of(own))
        return found[0] + dump(own)[1:] + b"}"

    def _head(
        self, request: Request, features: Features, shared: tuple[Message, ...], mark: bool
    ) -> bytes:
        """All but the row's own messages, up to where they follow."""
        sampling, schema = request.sampling, request.schema
        extra = dict(sampling.extra or {})
        for name in ("messages", "input", "model", "stream"):
            if name in extra and (name != "stream" or extra[name]):
                raise ValueError(f"extra={{{name!r}: …}} cannot be sent; leave it out")
        body: dict[str, Any] = {"model": self._model}
        if sampling.temperature is not None:
            body["temperature"] = float(sampling.temperature)
        elif features.temperature:
            body["temperature"] = 0
        if sampling.max_tokens is not None and not any(name in extra for name in _EVERY_LIMIT):
            body[features.limit] = int(sampling.max_tokens)
        if sampling.seed is not None:
            body["seed"] = int(sampling.seed)
        if request.choices is not None and features.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": features.top_logprobs}
        if schema is not None:
            if features.response_format:
                body["response_format"] = _response_format(schema)
            elif shared:
                shared = _with_schema(shared, schema)
        if features.cache_marks:
            # Without a mark this turns the cache, and its price for writing, off.
            body["prompt_cache_options"] = {"mode": "explicit"}
            if mark:
                if not request.prefix:
                    shared = (*shared[:-1], _marked(shared[-1], None))
                told = dump([self._model, schema, list(shared)])
                body["prompt_cache_key"] = blake2b(told, digest_size=16).hexdigest()
        # Messages come last, and of them the row's own: nothing after them need be encoded.
        place = b"messages"
        if self._responses:
            body, place = openai_responses.fields_of(body), b"input"
            shared = tuple(openai_responses.messages_of(shared))
        head = dump({**body, **extra})[:-1] + b',"' + place + b'":['
        return head + dump(shared)[1:-1] + (b"," if shared else b"")


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    from llmframe.schemas import dialects

    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title") or "response"))[:64]
    strict = dialects.openai_strict(schema)
    return {
        "type": "json_schema",
        "json_schema": {"name": name or "response", "strict": True, "schema": strict},
    }


def _system(messages: tuple[Message, ...]) -> bool:
    """Whether there is a first message whose text can be added to."""
    return (
        bool(messages)
        and messages[0]["role"] in {"system", "developer"}
        and isinstance(messages[0]["content"], str)
    )


def _with_schema(messages: tuple[Message, ...], schema: Mapping[str, Any]) -> tuple[Message, ...]:
    """The schema as text, in the system message: many chat templates take no second one."""
    from llmframe.schemas import dialects

    text = dialects.plain(schema)
    if _system(messages):
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return (first, *messages[1:])
    return ({"role": "system", "content": text}, *messages)


def marked(request: Request, features: Features) -> str:
    """The constant start of a prompt that the prompt cache is told of; empty where it is not."""
    if not features.cache_marks:
        return ""
    texts = [message["content"] for message in request.messages[: request.shared]]
    if request.prefix:
        texts.append(request.messages[-1]["content"][: request.prefix])
    start = "".join(text for text in texts if isinstance(text, str))
    return start if len(start) >= _CACHEABLE else ""


def _marked(message: Message, prefix: int | None) -> Message:
    """The message with a cache mark after its first `prefix` characters (None: at its end)."""
    content = message["content"]
    if not isinstance(content, str) or not content:
        return message
    cut = len(content) if prefix is None else prefix
    mark = {"type": "text", "text": content[:cut], "prompt_cache_breakpoint": {"mode": "explicit"}}
    rest = [{"type": "text", "text": content[cut:]}] if content[cut:] else []
    return {**message, "content": [mark, *rest]}


_UNKNOWN: Final = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|not permitted|not allowed|unexpected|extra"
    r"|use '?max_|not available|unavailable|invalid param",
    re.IGNORECASE,
)
_BAD_SCHEMA: Final = re.compile(
    r"invalid schema|invalid_json_schema|invalid json schema|schema is (not |in)valid"
    r"|grammar error",
    re.IGNORECASE,
)


def refused(failure: Failure, request: Request, features: Features) -> Features | None:
    """What a server does not take after all, by its answer to a request.

    Args:
        failure: What the error said, as `llmframe.engines.openai_wire.failure_of` reads it.
        request: What was asked.
        features: As they were when it was sent.

    Returns:
        The features without it, to send the request again; None where it was not ours to change.
    """
    if failure.status not in {400, 422, 501} or failure.kind != "invalid_request":
        return None
    sampling = request.sampling
    theirs = sampling.extra or {}
    said = f"{failure.param or ''} {failure.code or ''} {failure.message}"

    def named(*names: str) -> bool:
        if any(name in theirs for name in names):
            return False
        if failure.param:
            return failure.param.partition(".")[0] in names
        return any(re.search(rf"\b{name}\b", said) for name in names)

    if (
        request.schema is not None
        and features.response_format
        and (
            named("response_format", "json_schema", "text_format", "structured_outputs")
            or (failure.param or "").startswith("text.format")
        )
        and not _BAD_SCHEMA.search(said)
    ):
        return replace(features, response_format=False)
    if (
        request.choices is not None
        and features.top_logprobs
        and named("logprobs", "top_logprobs", "max_logprobs", "include")
    ):
        # Some take five alternatives and no more; that many still tell labels apart.
        fewer = 5 if features.top_logprobs > 5 and "top_logprobs" in said else 0
        return replace(features, top_logprobs=fewer)
    if sampling.temperature is None and features.temperature and named("temperature"):
        return replace(features, temperature=False)
    if (
        sampling.max_tokens is not None
        and not features.limit_settled
        and named(features.limit)
        and _UNKNOWN.search(said)
    ):
        other = _LIMITS[1 - _LIMITS.index(features.limit)]
        return replace(features, limit=other, limit_settled=True)
    if features.cache_marks and "prompt_cache" in said:
        return replace(features, cache_marks=False)
    return None

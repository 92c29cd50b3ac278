"""Messages bodies: what goes out, and what is left out where a server refuses it. Pure.

`Bodies` encodes requests. `refused` tells from an error which of the things that *we* chose to
send a server does not take; what the user asked for is sent or fails, never left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from llmframe.engines.payloads import dump
from llmframe.requests import Message, Request
from llmframe.results import Failure

__all__ = [
    "CACHE_MINIMUM",
    "DEFAULT_LIMIT",
    "REPLY_MOST",
    "Bodies",
    "Features",
    "cache_minimum",
    "refused",
    "reply_most",
]

DEFAULT_LIMIT: Final = 8192
"""Tokens of a reply where nobody says how many: the API takes no request without a limit."""

CACHE_MINIMUM: Final[dict[str, int]] = {
    "opus-4-5": 4096,
    "opus-4-6": 4096,
    "haiku-4-5": 4096,
    "sonnet-4-6": 2048,
    "3-5-haiku": 2048,
    "3-haiku": 2048,
    "opus-4": 1024,
    "sonnet-4": 1024,
    "3-7-sonnet": 1024,
    "3-5-sonnet": 1024,
}
"""Tokens that a prefix must have to be cached, by part of the model's name, the first that fits.
A shorter one is not cached, whatever is marked."""

REPLY_MOST: Final[dict[str, int]] = {
    "opus-4-5": 64_000,
    "opus-4-6": 128_000,
    "opus-4-7": 128_000,
    "opus-4-8": 128_000,
    "sonnet-4-6": 128_000,
    "sonnet-4": 64_000,
    "haiku-4-5": 64_000,
    "opus-4": 32_000,
    "3-7-sonnet": 64_000,
    "3-5-sonnet": 8192,
    "3-5-haiku": 8192,
    "3-opus": 4096,
    "3-sonnet": 4096,
    "3-haiku": 4096,
}
"""Tokens that a reply may have, by part of the model's name, the first that fits."""

_UNKNOWN: Final = 512
"""For a model that is not in the table: half of the least that any known one asks for."""

_WITHIN: Final = ("messages", "stream", "system", "model")
"""What `extra` cannot bring: the request has its own."""


def cache_minimum(model: str) -> int:
    """Characters below which a prefix is surely too short for the prompt cache.

    Examples:
        >>> cache_minimum("claude-haiku-4-5-20251001"), cache_minimum("claude-next")
        (4096, 512)
    """
    # Dense scripts have one token a character, so a prefix with fewer characters than tokens are
    # asked for is too short in any language. A mark that comes to nothing costs nothing.
    return next((tokens for part, tokens in CACHE_MINIMUM.items() if part in model), _UNKNOWN)


def reply_most(model: str) -> int | None:
    """The largest token limit that a model takes, where known.

    Examples:
        >>> reply_most("claude-opus-4-1-20250805"), reply_most("claude-next")
        (32000, None)
    """
    return next((tokens for part, tokens in REPLY_MOST.items() if part in model), None)


@dataclass(frozen=True, slots=True)
class Features:
    """What a server takes, as far as it is known.

    Attributes:
        output_format: JSON Schemas are taken; else they go into the prompt.
        cache_marks: The constant start of the prompt is marked for the prompt cache.
        limit: Token limit where the user gave none.
    """

    output_format: bool = True
    cache_marks: bool = True
    limit: int = DEFAULT_LIMIT


class Bodies:
    """Encodes request bodies: what all rows share once, a row's own messages each time.

    Args:
        model: Name of the model.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._minimum = cache_minimum(model)
        # Heads by the identity of what is in them; that is kept, so that an id stays its own.
        self._heads: dict[tuple[Any, ...], tuple[bytes, tuple[Any, ...]]] = {}

    def encode(self, request: Request, features: Features, *, ttl: str | None = None) -> bytes:
        """The JSON body of a request, in a batch its ``params``.

        Args:
            request: What is asked.
            features: What the server takes.
            ttl: Lifetime of what is cached; None: the provider's, five minutes.

        Raises:
            ValueError: Something in it is not plain JSON, or cannot be asked for.
        """
        sampling = request.sampling
        shared = request.messages[: request.shared]
        own = request.messages[request.shared :]
        # A row's own instructions stand beside the shared ones, so nothing can be prepared.
        personal = any(message["role"] in _SYSTEM for message in own)
        if personal:
            shared, own = (), request.messages
        marked = features.cache_marks and _markable(request)
        key = (
            id(request.schema),
            sampling.temperature,
            sampling.max_tokens,
            sampling.seed,
            id(sampling.extra),
            features,
            marked,
            ttl,
            *map(id, shared),
        )
        found = None if personal else self._heads.get(key)
        if found is None:
            if len(self._heads) >= 64:  # a job that raises limits row by row must not pile up
                self._heads.clear()
            head = self._head(request, features, shared, own, marked, ttl)
            found = (head, (request.schema, sampling.extra, shared))
            if not personal:
                self._heads[key] = found
        if personal:
            own = tuple(message for message in own if message["role"] not in _SYSTEM)
        if marked and request.prefix and own and self._long(request):
            own = (*own[:-1], _marked(own[-1], request.prefix, _mark(ttl)))
        return found[0] + dump(own)[1:] + b"}"

    def marked(self, request: Request, features: Features) -> str:
        """The constant start of a prompt that is marked for the cache; may be empty."""
        own = request.messages[request.shared :]
        if not (features.cache_marks and _markable(request) and self._long(request)):
            return ""
        if any(message["role"] in _SYSTEM for message in own):
            return ""
        texts = [message["content"] for message in request.messages[: request.shared]]
        if request.prefix:
            texts.append(own[-1]["content"][: request.prefix])
        return "".join(text for text in texts if isinstance(text, str))

    def _long(self, request: Request, prefix: bool = True) -> bool:
        texts = [message["content"] for message in request.messages[: request.shared]]
        length = sum(len(text) for text in texts if isinstance(text, str))
        return length + (request.prefix if prefix else 0) >= self._minimum

    def _head(
        self,
        request: Request,
        features: Features,
        shared: tuple[Message, ...],
        own: tuple[Message, ...],
        marked: bool,
        ttl: str | None,
    ) -> bytes:
        """All but the row's own messages, up to where they follow."""
        sampling, schema = request.sampling, request.schema
        extra = dict(sampling.extra or {})
        for name in _WITHIN:
            if name in extra and (name != "stream" or extra[name]):
                raise ValueError(f"extra={{{name!r}: …}} cannot be sent; leave it out")
        if sampling.seed is not None:
            raise ValueError("seed= is not in Anthropic's API; leave it out")
        body: dict[str, Any] = {"model": self._model}
        if "max_tokens" not in extra:
            body["max_tokens"] = int(sampling.max_tokens or features.limit)
        if sampling.temperature is not None:
            body["temperature"] = float(sampling.temperature)
        system = _system((*shared, *own))
        shown = tuple(message for message in shared if message["role"] not in _SYSTEM)
        if schema is not None:
            if features.output_format:
                from llmframe.schemas import dialects

                told = {"type": "json_schema", "schema": dialects.anthropic(schema)}
                body["output_config"] = {**(extra.pop("output_config", None) or {}), "format": told}
            else:
                system = _with_schema(system, schema)
        if marked and shared and (shown or system) and self._long(request, prefix=False):
            if shown:
                shown = (*shown[:-1], _marked(shown[-1], None, _mark(ttl)))
            else:
                system = [*system[:-1], {**system[-1], "cache_control": _mark(ttl)}]
        if system:
            plain = len(system) == 1 and set(system[0]) == {"type", "text"}
            body["system"] = system[0]["text"] if plain else system
        # Messages come last, and of them the row's own: nothing after them need be encoded.
        head = dump({**body, **extra})[:-1] + b',"messages":['
        return head + dump(shown)[1:-1] + (b"," if shown else b"")


_SYSTEM: Final = {"system", "developer"}


def _markable(request: Request) -> bool:
    """Whether the marks are ours to set: the user set none."""
    extra = request.sampling.extra
    if extra is not None and "cache_control" in extra:
        return False
    contents = (message["content"] for message in request.messages)
    return not any(
        isinstance(part, dict) and "cache_control" in part
        for content in contents
        if not isinstance(content, str)
        for part in content
    )


def _mark(ttl: str | None) -> dict[str, str]:
    return {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}


def _system(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The instructions as blocks: here they stand apart from the conversation."""
    blocks: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] in _SYSTEM:
            content = message["content"]
            if not isinstance(content, str):
                blocks.extend(content)
            elif content:  # an empty block is refused
                blocks.append({"type": "text", "text": content})
    return blocks


def _with_schema(system: list[dict[str, Any]], schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    from llmframe.schemas import dialects

    return [*system, {"type": "text", "text": dialects.plain(schema)}]


def _marked(message: Message, prefix: int | None, mark: dict[str, str]) -> Message:
    """The message with a cache mark after its first `prefix` characters (None: at its end)."""
    content = message["content"]
    if not isinstance(content, str):
        if prefix is not None or not content:
            return message
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}
    cut = len(content) if prefix is None else prefix
    if not content[:cut].strip():  # a blank block is refused
        return message
    rest = content[cut:]
    if not rest:
        return {
            **message,
            "content": [{"type": "text", "text": content, "cache_control": mark}],
        }
    if not rest.strip():
        return message
    first = {"type": "text", "text": content[:cut], "cache_control": mark}
    return {**message, "content": [first, {"type": "text", "text": rest}]}


_NOT_TAKEN: Final = re.compile(
    r"not support|unsupported|not permitted|not allowed|extra inputs|unknown|unrecogni[sz]ed"
    r"|not available|unexpected",
    re.IGNORECASE,
)
_LESS: Final = re.compile(r"max_tokens: \d+ > (\d+)")


def refused(failure: Failure, request: Request, features: Features) -> Features | None:
    """What a server does not take after all, by its answer to a request.

    Args:
        failure: What the error said.
        request: What was asked.
        features: As they were when it was sent.

    Returns:
        The features without it, to send the request again; None where it was not ours to change.
    """
    if failure.status not in {400, 422} or failure.kind != "invalid_request":
        return None
    said = failure.message
    theirs = request.sampling.extra or {}
    if (
        features.output_format
        and request.schema is not None
        and re.search(r"output_config|output_format|structured.outputs?|json_schema", said)
        and _NOT_TAKEN.search(said)
        # What is wrong with this schema would be hidden by asking without it.
        and not re.search(r"schema: |invalid.schema|grammar|output_config\.(?!format)", said, re.I)
        and "output_config" not in theirs
    ):
        return replace(features, output_format=False)
    less = _LESS.search(said)
    if less and request.sampling.max_tokens is None and 0 < int(less[1]) < features.limit:
        return replace(features, limit=int(less[1]))
    if features.cache_marks and "cache_control" in said and _markable(request):
        return replace(features, cache_marks=False)
    return None

"""Rows become requests, each with a key that says exactly what was asked.

The key is what makes a rerun free and a crash harmless: the same key is the same question to
the same model, whatever frame, position, process or lane it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

__all__ = [
    "KEY_VERSION",
    "KeyMaker",
    "Message",
    "Request",
    "Sampling",
    "custom_id",
    "parse_custom_id",
]

KEY_VERSION: Final = 1
"""Part of every key. A change in what is hashed is a new version; old replies stay readable."""

Message = dict[str, Any]
"""``{"role": "system" | "user" | "assistant", "content": str | list of provider parts}``."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the reply is drawn.

    Attributes:
        temperature: None asks for the most repeatable answer the model allows: engines send 0
            where it is taken and nothing where it is refused.
        max_tokens: Ceiling for the reply in tokens; None leaves it to the model. Not in the key.
        seed: Passed on where the engine takes one.
        extra: Merged into the request body as it is; plain JSON.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the model.

    Attributes:
        key: 16 bytes, see `KeyMaker`.
        position: Place of the (first) row in the frame; negative for a request that belongs to
            no row, such as a content-free input for calibration.
        messages: The conversation. The first `shared` of them are the *same objects* in every
            request of a job (system, examples), so an engine can encode them once.
        schema: Canonical JSON Schema of the reply (root an object, the same object in every
            request of a job), or None for text.
        choices: Labels to score, or None. An engine whose `limits.choices` is true returns
            `Result.choice_logprobs`; any other decodes under `schema`, which then is the enum.
        sampling: How the reply is drawn.
        shared: Number of leading messages that every request of the job shares.
        prefix: Number of characters at the start of the last message that are constant text.
        attempt: 1 for the first try.
    """

    key: bytes
    position: int
    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None = None
    choices: tuple[str, ...] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    shared: int = 0
    prefix: int = 0
    attempt: int = 1


def _part(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(8, "big") + data


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)


class KeyMaker:
    """Makes the keys of one call: blake2b-128 over length-prefixed UTF-8.

    Everything that is the same for all rows is hashed once; a row costs one copy of that state.

    Args:
        identity: All that the engine adds: provider, endpoint, model, base_url, weights …
        schema: Normal form of the schema (`llmframe.schemas.forms.Form.normal`), or None.
        choices: Labels to score, in order.
        sampling: As the user asked; `max_tokens` is left out, so raising it asks a truncated
            row again and keeps the others.
        shared: The leading messages that every row has.
        salt: The job's id for ``cache=False``, else empty.
    """

    __slots__ = ("_shared", "_start")

    def __init__(
        self,
        identity: Mapping[str, str],
        schema: str | None = None,
        choices: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        shared: Sequence[Message] = (),
        salt: str = "",
    ) -> None:
        sampling = sampling or Sampling()
        temperature = None if sampling.temperature is None else float(sampling.temperature)
        head = {
            "version": KEY_VERSION,
            "engine": dict(identity),
            "schema": schema,
            "choices": None if choices is None else list(choices),
            "temperature": temperature,
            "seed": sampling.seed,
            "extra": None if sampling.extra is None else dict(sampling.extra),
            "salt": salt,
        }
        self._start = blake2b(_part(_plain(head)), digest_size=16)
        for message in shared:
            self._start.update(_message(message))
        self._shared = len(shared)

    def key(self, messages: Sequence[Message], sample: int = 0) -> bytes:
        """Key of one request.

        Args:
            messages: The whole conversation; its first messages are the `shared` ones.
            sample: 0, or k for the k-th identical row under ``dedupe=False``.

        Returns:
            16 bytes.

        Raises:
            UnicodeEncodeError: A text holds a lone surrogate, which no provider can be sent.
        """
        state = self._start.copy()
        for message in messages[self._shared :]:
            state.update(_message(message))
        state.update(_part(f"#{sample}"))
        return state.digest()


def _message(message: Message) -> bytes:
    content = message["content"]
    text = content if isinstance(content, str) else "json:" + _plain(content)
    return _part(message["role"]) + _part(text)


def custom_id(position: int, key: bytes, attempt: int) -> str:
    """Id of a request at a provider: ``<position>-<32 hex of the key>-<round>``.

    At most 64 characters of ``[A-Za-z0-9_-]``, unique in a batch, and without any text of the
    row: a provider's dashboard shows it.
    """
    return f"{position}-{key.hex()}-{attempt}"


def parse_custom_id(text: str) -> tuple[int, bytes, int] | None:
    """Position, key and round of `custom_id`, or None where it is not one of ours."""
    head, _, attempt = text.rpartition("-")
    position, _, key = head.rpartition("-")
    try:
        return int(position), bytes.fromhex(key), int(attempt)
    except ValueError:
        return None

"""Finding the answer in what a model wrote: strict JSON, fences, prose and thinking around it."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

__all__ = [
    "Found",
    "RepeatedKeyError",
    "decode",
    "longest_blank",
    "refusal",
    "scan",
    "split_thinking",
    "unfenced",
]


class RepeatedKeyError(ValueError):
    """An object with one key twice: two answers in one, of which JSON keeps the last."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RepeatedKeyError(f"the key {twice[:60]!r} is there twice")
    return made


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a float")
    return number


def _decoder(exact: bool, strict: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_object,
        parse_constant=_constant,
        parse_float=Decimal if exact else _float,
        strict=strict,
    )


# Made once: a JSONDecoder costs more to make than a short reply to read.
_STRICT: Final = (_decoder(False, True), _decoder(True, True))
# Raw line feeds inside strings are forgiven, once a reply is not strict JSON anyway.
_TOLERANT: Final = (_decoder(False, False), _decoder(True, False))


def decode(text: str, exact: bool = False) -> Any:
    """The value of a text that is strict JSON from end to end.

    Args:
        text: The reply.
        exact: Keep all digits of numbers with a fraction, as Decimal.

    Raises:
        ValueError: It is not; NaN, an infinite number or a repeated key is in it.
        RecursionError: It is nested too deeply.
    """
    return _STRICT[exact].decode(text)


@dataclass(frozen=True, slots=True)
class Found:
    """A piece of the text that starts as a JSON object or array.

    Attributes:
        start: Where it starts.
        end: Where it ends; the text's end where it is not closed.
        value: What it decodes to, where it is whole.
        fault: Why it does not decode, else None.
        closed: Whether its brackets close.
    """

    start: int
    end: int
    value: Any = None
    fault: ValueError | None = None
    closed: bool = True


_START: Final = re.compile(r'\{(?=\s*["}])|\[(?=\s*["{\[\]\-0-9tfn])')
# Each try that fails reads the text from its beginning once (for the error's line number).
_MAX_TRIES: Final = 1000
_LIKE_JSON: Final = re.compile(r'\{\s*["}]|\[\s*[{\]]')
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


def scan(text: str, exact: bool = False) -> Iterator[Found]:
    """The outermost JSON objects and arrays in a text, in order.

    What stands inside a broken object is never given out: half an answer is no answer.

    Args:
        text: Any text.
        exact: As in `decode`.
    """
    position = tries = 0
    while (match := _START.search(text, position)) and tries < _MAX_TRIES:
        start = match.start()
        try:
            value, end = _TOLERANT[exact].raw_decode(text, start)
        except RecursionError:
            yield Found(start, len(text), fault=ValueError("nested too deeply"), closed=False)
            return
        except ValueError as fault:
            if not isinstance(fault, RepeatedKeyError) and not _LIKE_JSON.match(text, start):
                position, tries = start + 1, tries + 1  # a bracket in prose
                continue
            closing = _closing(text, start)
            yield Found(start, closing or len(text), fault=fault, closed=closing is not None)
            if closing is None:
                return
            position = closing
        else:
            yield Found(start, end, value)
            position = end


def _closing(text: str, start: int) -> int | None:
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


_TAG: Final = r"(?:think|thinking|thought|reasoning)"
_TAGS: Final = re.compile(rf"<(/?){_TAG}>|\[(/?){_TAG}\]|◁(/?){_TAG}▷", re.IGNORECASE)


def split_thinking(text: str, *, everywhere: bool = True) -> tuple[str, bool]:
    """The text without the model's thinking, and whether the thinking was left open.

    Chat templates that open the block themselves leave only its end in the reply. A tag inside a
    string of whole JSON is part of that string.

    Args:
        text: The reply.
        everywhere: Take out every block; False: only what stands before the answer, since free
            text may speak of such tags.

    Returns:
        The rest, and True where a block has no end.
    """
    tags = list(_TAGS.finditer(text))
    if not tags:
        return text, False
    quoted = [piece for piece in scan(text) if piece.fault is None] if everywhere else []
    starts = [piece.start for piece in quoted]
    kept, position, inside = "", 0, False
    for tag in tags:
        nearest = bisect_right(starts, tag.start()) - 1
        if nearest >= 0 and tag.start() < quoted[nearest].end:
            continue
        if any(tag.groups()):
            kept = kept if inside else ""
            inside, position = False, tag.end()
        elif not inside:
            before = kept + text[position : tag.start()]
            if not everywhere and before.strip():
                break
            kept, inside = before, True
    return (kept, True) if inside else (kept + text[position:], False)


_FENCE: Final = re.compile(r"\s*```[A-Za-z0-9_+-]*[ \t]*\n?(.*?)\n?[ \t]*```\s*", re.DOTALL)


def unfenced(text: str) -> str:
    """The content of a text that is one code fence, else the text; without blanks around it."""
    match = _FENCE.fullmatch(text)
    return (match[1] if match else text).strip()


def longest_blank(text: str) -> int:
    """Length of the longest run of white space."""
    return max((len(run) for run in re.findall(r"\s{2,}", text)), default=0)


# The opening of a refusal: who speaks, that it will not, and a verb of helping. "I cannot find a
# date" is no refusal, so the verbs are few.
_WILL_NOT: Final = (
    r"(?:can(?:no|')?t|can not|will not|won't|am unable to|'m unable to|am not able to"
    r"|'m not able to|must decline to|have to decline to|decline to)"
)
_REFUSAL: Final = re.compile(
    r"(?:(?:i'm|i am|we're|my)\s+(?:very |so |really |truly )?(?:sorry|apologies|afraid)\b|sorry\b"
    r"|i apologi[sz]e\b|unfortunately\b|as an ai\b)?[^.!?\n]{0,80}?"
    rf"\b(?:i|we)(?:\s+{_WILL_NOT}|{_WILL_NOT})\s+(?:\w+\s+){{0,2}}?"
    r"(?:help\b(?!\s+but)|assist\b|comply\b|fulfil|engage\b|participate\b|support\b"
    r"|(?:do|provide|create|generate|write|produce|continue|answer|discuss|process)\s+"
    r"(?:with\s+)?(?:that|this|such|your request|the request)\b)",
    re.IGNORECASE,
)


def refusal(text: str) -> bool:
    """Whether a short text, where JSON was due, plainly says that the model will not answer."""
    if len(text) > 600:
        return False
    return _REFUSAL.match(text.strip().strip("\"'*").replace("\u2019", "'")) is not None

"""The probability of each label, from the token log-probabilities of one reply. Pure.

A chat API shows, at every token it wrote, some tokens that it might have written instead. A
label is followed token by token through the reply: what would have led to another label there
is that label's share, at the probability of the path so far. Labels that begin alike are told
apart where they part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["choice_logprobs"]

_DECODER: Final = json.JSONDecoder()
_BELOW: Final = 1.0
"""How far below the least probable thing seen a label stands that was never seen, in nats."""


class _Token(NamedTuple):
    start: int
    data: bytes
    logprob: float
    others: Sequence[Any]


def choice_logprobs(
    tokens: object,
    text: str,
    choices: Sequence[str],
    schema: Mapping[str, Any] | None = None,
) -> tuple[float, ...] | None:
    """Natural-log probability of each label, in the order of `choices`; not normalised.

    Args:
        tokens: ``choices[0].logprobs.content`` of the reply, whatever it is.
        text: The reply's text.
        choices: The labels, as the model writes them.
        schema: The schema asked for; tells which property of a JSON reply holds the label.

    Returns:
        One number a label, or None where it cannot be told: no alternatives given, tokens that
        do not spell the text, or a reply that is none of the labels. Labels never seen get a
        floor below everything that was.

    Examples:
        >>> other = {"token": "yes", "logprob": -1.6}
        >>> first = {"token": "no", "logprob": -0.22, "top_logprobs": [other]}
        >>> choice_logprobs([first], "no", ["yes", "no"])
        (-1.6, -0.22)
    """
    place = _find(text, choices, schema)
    if place is None:
        return None
    start, quoted = place
    read = _tokens(tokens, text)
    if read is None:
        return None
    # In JSON the closing quote tells "bug" from "bugfix"; elsewhere the end of the word does.
    targets = [_spelt(choice) + b'"' if quoted else choice.encode() for choice in choices]
    encoded = text.encode()
    begin = len(text[:start].encode())
    mass = [0.0] * len(choices)
    path, lowest, seen_others = 0.0, 0.0, False
    for token in read:
        if token.start + len(token.data) <= begin or not token.data:
            continue
        done = encoded[begin : max(begin, token.start)]
        lead = token.data[: max(0, begin - token.start)]  # a quote that is glued to the label
        here = done + token.data[len(lead) :]
        for other in token.others:
            data, logprob = _entry(other)
            if data is None or data == token.data:
                continue
            ahead = _after(data, lead, strip=not quoted and not done)
            if ahead is None:
                continue
            seen_others = True
            lowest = min(lowest, path + logprob)
            ways = [i for i, target in enumerate(targets) if _leads(done + ahead, target, quoted)]
            for i in ways:
                mass[i] += math.exp(path + logprob) / len(ways)
        path += token.logprob
        ways = [i for i, target in enumerate(targets) if _leads(here, target, quoted)]
        if not ways:
            return None
        if len(ways) == 1:
            break
    else:
        # The text ends here: of labels that begin alike, it is the one that ends here too.
        ways = [i for i, target in enumerate(targets) if target == encoded[begin:].rstrip()]
    if len(ways) != 1 or not seen_others:
        return None
    mass[ways[0]] += math.exp(path)
    floor = min([lowest, *(math.log(part) for part in mass if part > 0)]) - _BELOW
    return tuple(math.log(part) if part > 0 else floor for part in mass)


def _spelt(choice: str) -> bytes:
    return json.dumps(choice, ensure_ascii=False)[1:-1].encode()


def _find(
    text: str, choices: Sequence[str], schema: Mapping[str, Any] | None
) -> tuple[int, bool] | None:
    """Where the label begins in the text, and whether quotes stand around it."""
    bare = text.strip()
    if bare in choices:
        return text.index(bare), False
    brace = text.find("{")
    if brace < 0:
        return None
    found: dict[str, tuple[int, bool]] = {}
    try:
        at = _blank(text, brace + 1)
        while text[at] != "}":
            name, at = _DECODER.raw_decode(text, at)
            at = _blank(text, _blank(text, at) + 1)  # over the colon
            value, end = _DECODER.raw_decode(text, at)
            if isinstance(value, str):
                # Escapes of another spelling than ours would not match byte by byte.
                if value in choices and text[at + 1 : end - 1].encode() == _spelt(value):
                    found[name] = (at + 1, True)
            elif not isinstance(value, dict | list) and text[at:end] in choices:
                found[name] = (at, False)
            at = _blank(text, end)
            if text[at] == ",":
                at = _blank(text, at + 1)
    except (ValueError, IndexError, RecursionError):
        return None
    if len(found) > 1 and schema is not None:
        listed = [str(choice) for choice in choices]
        fields = schema.get("properties", {})
        found = {
            name: place
            for name, place in found.items()
            if [str(v) for v in fields.get(name, {}).get("enum", ())] == listed
        }
    return next(iter(found.values())) if len(found) == 1 else None


def _blank(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _tokens(tokens: object, text: str) -> list[_Token] | None:
    """The tokens with their places in the text's bytes; None where they do not spell it."""
    if not isinstance(tokens, list) or not tokens:
        return None
    entries = []
    for token in tokens:
        data, logprob = _entry(token)
        if data is None:
            return None
        others = token.get("top_logprobs")
        entries.append((data, logprob, others if isinstance(others, list) else ()))
    # Special tokens may stand around the text, and a server may strip it: found, not assumed.
    found = b"".join(data for data, _, _ in entries).rfind(text.encode())
    if found < 0:
        return None
    at = -found
    read = []
    for data, logprob, others in entries:
        read.append(_Token(at, data, logprob, others))
        at += len(data)
    return read


def _entry(entry: object) -> tuple[bytes | None, float]:
    """Bytes and log-probability of a token; a token may be part of a character."""
    if not isinstance(entry, Mapping):
        return None, 0.0
    data, token, logprob = entry.get("bytes"), entry.get("token"), entry.get("logprob")
    if not isinstance(logprob, int | float) or math.isnan(logprob):
        return None, 0.0
    if isinstance(data, list):
        try:
            return bytes(data), float(logprob)
        except (TypeError, ValueError):
            return None, 0.0
    return (token.encode(), float(logprob)) if isinstance(token, str) else (None, 0.0)


def _after(data: bytes, lead: bytes, strip: bool) -> bytes | None:
    """What a token says of the label, after the `lead` that it must share; None: nothing."""
    if strip and not lead.strip():
        return data.lstrip()  # blanks before a label that has no quotes mean nothing
    if not data.startswith(lead):
        # Part of the lead only, such as a lone quote: every label may follow.
        return b"" if data and lead.startswith(data) else None
    return data[len(lead) :]


def _leads(ahead: bytes, target: bytes, quoted: bool) -> bool:
    """Whether what would be written goes, or has gone, to this label."""
    if target.startswith(ahead):
        return True
    if not ahead.startswith(target):
        return False
    return quoted or not ahead[len(target) : len(target) + 1].isalnum()

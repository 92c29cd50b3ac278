"""Regular expressions on the wire: which ones engines take, and how a grammar says them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["decimal_pattern", "is_portable", "rule_of"]

_ESCAPES_REFUSED: Final = frozenset("123456789bBAZzGkKpPuUNxQERX")
_MAX_REPEAT: Final = 256
# llama.cpp writes repeats out as rules, and refuses a repeat that would make more of them.
_MAX_RULES: Final = 2000


def is_portable(pattern: str) -> bool:
    """Whether every engine that takes patterns takes this one.

    Look-around makes servers answer 500 for a third of the requests (their engines have none);
    back-references, named groups, flags, word boundaries and lazy or possessive repeats are no
    part of what the grammars know.

    Args:
        pattern: A regular expression as in JSON Schema.
    """
    position, in_class = 0, False
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            if position + 1 >= len(pattern) or pattern[position + 1] in _ESCAPES_REFUSED:
                return False
            position += 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            # `[]a]` and `[^]a]`: a bracket that stands first is one of the characters.
            position += len(re.match(r"\[\^?\]?", pattern[position:])[0]) - 1  # type: ignore[index]
        elif char == "(" and pattern[position + 1 : position + 2] == "?":
            if pattern[position + 2 : position + 3] != ":":
                return False
            position += 2
        elif char in "*+?}" and pattern[position + 1 : position + 2] in ("+", "?"):
            return False
        position += 1
    return not in_class and _compiles(pattern)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def decimal_pattern(node: Mapping[str, Any]) -> str:
    r"""A pattern, without look-around and with an end, for the texts of a decimal number.

    Args:
        node: A canonical schema of the format ``decimal``.

    Examples:
        >>> decimal_pattern({"decimal_places": 2, "minimum": 0})
        '^(0|[1-9][0-9]{0,27})(\\.[0-9]{1,2})?$'
    """
    bounds = [node[word] for word in ("minimum", "exclusiveMinimum") if word in node]
    sign = "" if bounds and max(bounds) >= 0 else "-?"
    places = min(node.get("decimal_places", 28), 28)
    fraction = rf"(\.[0-9]{{1,{places}}})?" if places > 0 else ""
    return f"^{sign}(0|[1-9][0-9]{{0,27}}){fraction}$"


def rule_of(pattern: str, limit: int = _MAX_REPEAT) -> str | None:
    """A GBNF expression for the texts that match a pattern, inside a JSON string.

    Args:
        pattern: A regular expression; what is not anchored may be followed or led by anything,
            which a grammar must not leave open, so both ends need their anchor.
        limit: Where a repeat without an end is cut.

    Returns:
        The expression, or None where a grammar has no words for the pattern.
    """
    if not is_portable(pattern) or not pattern.startswith("^"):
        return None
    try:
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
        return _sequence(list(parsed), min(limit, _MAX_REPEAT), outer=True)
    except (_NoWordsError, AttributeError):
        return None


class _NoWordsError(Exception):
    pass


def _sequence(items: list[Any], limit: int, outer: bool = False) -> str:
    if outer:
        ends = [(str(op), str(argument)) for op, argument in (items[0], items[-1])]
        if ends != [("AT", "AT_BEGINNING"), ("AT", "AT_END")]:
            raise _NoWordsError
        items = items[1:-1]
    return " ".join(_item(str(op), argument, limit) for op, argument in items) or '""'


def _item(op: str, argument: Any, limit: int) -> str:
    if op == "LITERAL":
        return _literal(chr(argument))
    if op == "NOT_LITERAL":
        return f"[^{_escaped(chr(argument))}{_NOT_RAW}]"
    if op == "ANY":
        return f"[^{_NOT_RAW}]"
    if op == "IN":
        return _class(argument)
    if op == "BRANCH":
        return "(" + " | ".join(_sequence(list(branch), limit) for branch in argument[1]) + ")"
    if op == "SUBPATTERN":
        return f"({_sequence(list(argument[3]), limit)})"
    if op == "MAX_REPEAT":
        low, high, inner = argument
        high = limit if str(high) == "MAXREPEAT" else int(high)
        if low > _MAX_REPEAT or high > _MAX_REPEAT:
            raise _NoWordsError
        repeated = f"({_sequence(list(inner), limit)})"
        if _size(repeated) * max(low, high) >= _MAX_RULES:
            raise _NoWordsError
        return f"{repeated}{{{low},{max(low, high)}}}"
    raise _NoWordsError


def _size(expression: str) -> int:
    """Rules that llama.cpp makes of an expression: one a group, and one a repeat."""
    # Brackets in a literal or class count too: a pattern less, never a grammar that is refused.
    repeats = re.findall(r"\{\d+,(\d+)\}", expression)
    return expression.count("(") + sum(map(int, repeats))


# What JSON must escape stays out of classes: a shorter language, never a wrong one.
_NOT_RAW: Final = r"\"\\\x00-\x1F\x7F"
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": "0-9",
    "CATEGORY_WORD": "a-zA-Z0-9_",
    "CATEGORY_SPACE": " ",
}


def _class(items: list[Any]) -> str:
    negated = str(items[0][0]) == "NEGATE"
    parts: list[str] = []
    for op, argument in items[1:] if negated else items:
        if str(op) == "LITERAL":
            parts.append(_raw(argument, argument, negated))
        elif str(op) == "RANGE":
            parts.append(_raw(argument[0], argument[1], negated))
        elif str(op) == "CATEGORY" and str(argument) in _CATEGORIES:
            parts.append(_CATEGORIES[str(argument)])
        else:
            raise _NoWordsError
    inside = "".join(parts)
    if not inside:
        raise _NoWordsError
    return f"[^{inside}{_NOT_RAW}]" if negated else f"[{inside}]"


def _raw(low: int, high: int, negated: bool) -> str:
    holds = any(low <= ord(char) <= high for char in '"\\') or low < 0x20
    if holds and not negated:
        if low == high:
            return ""
        raise _NoWordsError
    start, end = _escaped(chr(low)), _escaped(chr(high))
    return start if low == high else f"{start}-{end}"


def _escaped(char: str) -> str:
    if char in '\\"[]^-':
        return "\\" + char
    return char if char.isprintable() else f"\\x{ord(char):02X}"


def _literal(char: str) -> str:
    if char == '"':
        return '"\\\\\\""'
    if char == "\\":
        return '"\\\\\\\\"'
    if ord(char) < 0x20:
        raise _NoWordsError
    return f'"{char}"'

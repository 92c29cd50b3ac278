"""Texts in a format of JSON Schema, as the Python values that stand for them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

from llmframe.schemas.coercion import Invalid
from llmframe.schemas.wording import shown

__all__ = ["FORMATS", "is_multiple"]

_MOST_PLACES: Final = 400
"""Beyond a float's: a power of ten as large as a text can name one would fill the memory."""

Read = Callable[[str, Mapping[str, Any], str], Any]


def _by_pydantic(kind: type, word: str) -> Read:
    # The same reader as behind a class, so that a job joined without its class gives equal cells.
    @lru_cache(maxsize=1)
    def adapter() -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(kind)

    def read(text: str, node: Mapping[str, Any], path: str) -> Any:
        try:
            made = adapter().validate_json(json.dumps(text), strict=True)
        except ValueError:
            raise Invalid(path, f"should be {word}, got {shown(text)}") from None
        aware = getattr(made, "tzinfo", None) is not None
        if node.get("tz") == "aware" and not aware:
            raise Invalid(path, f"should have an offset such as Z, got {shown(text)}")
        if node.get("tz") == "naive" and aware:
            raise Invalid(path, f"should have no offset, got {shown(text)}")
        return made

    return read


def is_multiple(value: float | Decimal, step: float | Decimal) -> bool:
    """Whether a number is a multiple of another, in the digits that both are written with.

    In binary 19.99 is no multiple of 0.01, and 0.3 none of 0.1.

    Examples:
        >>> is_multiple(19.99, 0.01), is_multiple(0.35, 0.1)
        (True, False)
    """
    number, whole = Decimal(str(value)), Decimal(str(step))
    if not number.is_finite() or abs(number.adjusted()) > _MOST_PLACES:
        return False
    return (Fraction(number) / Fraction(whole)).denominator == 1


def _decimal(text: str, node: Mapping[str, Any], path: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise Invalid(path, f"should be a decimal number, got {shown(text)}") from None
    rules: tuple[tuple[str, str, Callable[[Decimal], bool]], ...] = (
        ("minimum", "at least", lambda bound: number >= bound),
        ("maximum", "at most", lambda bound: number <= bound),
        ("exclusiveMinimum", "more than", lambda bound: number > bound),
        ("exclusiveMaximum", "less than", lambda bound: number < bound),
        ("multipleOf", "a multiple of", lambda bound: is_multiple(number, bound)),
    )
    for rule, words, holds in rules:
        if rule in node and not holds(Decimal(str(node[rule]))):
            raise Invalid(path, f"should be {words} {node[rule]}, got {text}")
    _digits(number, node, path)
    return number


def _digits(number: Decimal, node: Mapping[str, Any], path: str) -> None:
    """Hold a number to `max_digits` and `decimal_places`, counted as pydantic does."""
    _, digits, exponent = number.as_tuple()
    written = "".join(map(str, digits)).lstrip("0").rstrip("0")
    last = int(exponent) + len(digits) - len("".join(map(str, digits)).rstrip("0"))
    after = max(-last, 0) if written else 0
    before = max(len(written) + last, 0) if written else 0
    most, places = node.get("max_digits"), node.get("decimal_places")
    if places is not None and after > places:
        raise Invalid(path, f"should have at most {places} digits after the point, got {number}")
    if most is not None and before > most - (places or 0):
        before_it = most - (places or 0)
        raise Invalid(
            path, f"should have at most {before_it} digits before the point, got {number}"
        )
    if most is not None and before + after > most:
        raise Invalid(path, f"should have at most {most} digits, got {number}")


def _by_pattern(pattern: str, word: str) -> Read:
    test = re.compile(pattern)

    def read(text: str, node: Mapping[str, Any], path: str) -> str:
        if not test.fullmatch(text):
            raise Invalid(path, f"should be {word}, got {shown(text)}")
        return text

    return read


FORMATS: Final[dict[str, Read]] = {
    "date": _by_pydantic(date, "a date as YYYY-MM-DD"),
    "date-time": _by_pydantic(datetime, "a time as YYYY-MM-DDThh:mm:ss"),
    "time": _by_pydantic(time, "a time of day as hh:mm:ss"),
    "duration": _by_pydantic(timedelta, "a duration as in ISO 8601, such as P3D"),
    "uuid": _by_pydantic(UUID, "a UUID"),
    "ipv4": _by_pydantic(IPv4Address, "an IPv4 address"),
    "ipv6": _by_pydantic(IPv6Address, "an IPv6 address"),
    "binary": lambda text, node, path: text.encode(),
    "decimal": _decimal,
    "email": _by_pattern(r"[^@\s]+@[^@\s]+\.[^@\s]+", "an e-mail address"),
    "uri": _by_pattern(r"[A-Za-z][A-Za-z0-9+.\-]*:\S+", "a URI"),
}
"""A reader for each format that is checked: ``read(text, node, path)`` gives the value, or raises
`Invalid`. JSON Schema lets all other formats be; so do we."""

"""A value that fits a JSON Schema, the same one for the same seed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from math import ceil, floor
from typing import Any, Final

__all__ = ["Draw", "fitting"]

_WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
_DEPTH: Final = 6
"""Below this a recursive schema is closed off: no optional property, no item, null if allowed."""


class Draw:
    """Numbers drawn from a hash: repeatable, and a tenth of the price of `random.Random`."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._state = 0

    def below(self, n: int) -> int:
        """The next number of ``range(n)``."""
        if self._state < n << 16:
            self._seed = blake2b(self._seed, digest_size=16).digest()
            self._state = int.from_bytes(self._seed, "big") | 1 << 128
        self._state, number = divmod(self._state, n)
        return number


def fitting(schema: Mapping[str, Any], draw: Draw) -> Any:
    """A value that fits `schema`.

    Knows what the canonical schemas of llmframe use: types and unions of them, ``enum``,
    ``const``, ``anyOf``, ``oneOf``, ``allOf``, ``$ref`` (recursive ones too), the bounds of
    numbers, strings and arrays, ``format``, and ``pattern`` without look-around.

    Args:
        schema: JSON Schema.
        draw: Where the choices come from.

    Returns:
        Plain JSON data.

    Examples:
        >>> fitting({"type": "integer", "minimum": 3, "maximum": 3}, Draw(b"seed"))
        3
    """
    return _value(schema, schema, draw, 0)


def _value(schema: Any, root: Mapping[str, Any], draw: Draw, depth: int) -> Any:
    if not isinstance(schema, Mapping):  # `true` takes anything
        return None
    if "$ref" in schema:
        others = {name: rule for name, rule in schema.items() if name != "$ref"}
        schema = {**_target(schema["$ref"], root), **others}
        return _value(schema, root, draw, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][draw.below(len(schema["enum"]))]
    if "allOf" in schema:
        return _value(_merged(schema, root), root, draw, depth)
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return _value(_branch(schema[union], draw, depth), root, draw, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = _branch(kind, draw, depth)
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, root, draw, depth)
    if kind == "array":
        return _array(schema, root, draw, depth)
    if kind == "string":
        return _string(schema, draw)
    if kind == "integer":
        return int(_number(schema, draw, Fraction(1)))
    if kind == "number":
        return float(_number(schema, draw, Fraction(1, 4)))
    if kind == "boolean":
        return draw.below(2) == 1
    return None


def _target(ref: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found  # type: ignore[no-any-return]


def _merged(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    merged = {name: rule for name, rule in schema.items() if name != "allOf"}
    for part in schema["allOf"]:
        part = _target(part["$ref"], root) if "$ref" in part else part
        properties = {**merged.get("properties", {}), **part.get("properties", {})}
        required = [*merged.get("required", ()), *part.get("required", ())]
        merged = {**merged, **part, "properties": properties, "required": required}
    return merged


def _branch(branches: Sequence[Any], draw: Draw, depth: int) -> Any:
    def is_null(branch: Any) -> bool:
        return branch == "null" or (isinstance(branch, Mapping) and branch.get("type") == "null")

    if depth > _DEPTH and any(map(is_null, branches)):
        return next(filter(is_null, branches))
    # A nullable field is filled: a column of nulls would test little.
    full = [branch for branch in branches if not is_null(branch)] or list(branches)
    return full[draw.below(len(full))]


def _object(
    schema: Mapping[str, Any], root: Mapping[str, Any], draw: Draw, depth: int
) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    return {
        name: _value(rule, root, draw, depth + 1)
        for name, rule in schema.get("properties", {}).items()
        if depth <= _DEPTH or name in required
    }


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], draw: Draw, depth: int) -> list[Any]:
    items = [_value(rule, root, draw, depth + 1) for rule in schema.get("prefixItems", ())]
    least = schema.get("minItems", 0)
    most = schema.get("maxItems", max(least, 2))
    rule = schema.get("items")
    wanted = least if depth > _DEPTH else max(least, min(most, 1 + draw.below(2)))
    if rule is None or rule is False:
        return items
    for _ in range(wanted * 20):
        if len(items) >= wanted:
            break
        item = _value(rule, root, draw, depth + 1)
        if not schema.get("uniqueItems") or item not in items:
            items.append(item)
    return items


_BOUNDS: Final = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}


def _number(schema: Mapping[str, Any], draw: Draw, finest: Fraction) -> Fraction:
    """A multiple of ``multipleOf``, else of `finest`, within the bounds (exact, unlike floats)."""
    if schema.keys().isdisjoint(_BOUNDS):  # most schemas; exact fractions cost ten times as much
        return draw.below(100) * finest

    def bound(name: str) -> Fraction | None:
        return Fraction(str(schema[name])) if schema.get(name) is not None else None

    step = bound("multipleOf") or finest
    firsts = [ceil(low / step) for low in [bound("minimum")] if low is not None]
    firsts += [floor(low / step) + 1 for low in [bound("exclusiveMinimum")] if low is not None]
    lasts = [floor(high / step) for high in [bound("maximum")] if high is not None]
    lasts += [ceil(high / step) - 1 for high in [bound("exclusiveMaximum")] if high is not None]
    last = min(lasts, default=None)
    first = max(firsts, default=0 if last is None or last >= 0 else last - 99)
    last = first + 99 if last is None else min(last, first + 99)
    if first > last and finest != 1 and "multipleOf" not in schema:
        return _number(schema, draw, finest / 1000)  # bounds closer together than the grid
    return (first + draw.below(max(1, last - first + 1))) * step


_FORMATS: Final = {
    "date-time": "2024-{0:02d}-{1:02d}T{2:02d}:30:00Z",
    "date": "2024-{0:02d}-{1:02d}",
    "time": "{2:02d}:30:00Z",
    "duration": "P{1}D",
    "email": "row{1}@example.org",
    "hostname": "host{1}.example.org",
    "uri": "https://example.org/{1}",
    "ipv4": "192.0.2.{1}",
    "ipv6": "2001:db8::{1}",
    "uuid": "00000000-0000-4000-8000-0000000000{1:02d}",
}


def _string(schema: Mapping[str, Any], draw: Draw) -> str:
    if "pattern" in schema:
        return matching(schema["pattern"], draw)
    if schema.get("format") in _FORMATS:
        numbers = 1 + draw.below(12), 1 + draw.below(28), draw.below(24)
        return _FORMATS[schema["format"]].format(*numbers)
    text = f"{_WORDS[draw.below(len(_WORDS))]} {draw.below(1000)}"
    text = text.ljust(schema.get("minLength", 0), "x")
    return text[: schema.get("maxLength", len(text))]


def matching(pattern: str, draw: Draw) -> str:
    """A text in which `pattern` is found; look-around and back-references are left out."""
    # The only parser of this syntax in the standard library; its tree has been stable since 3.11.
    parser = importlib.import_module("re._parser")
    return _pieces(parser.parse(pattern), draw)


def _pieces(tree: Any, draw: Draw) -> str:
    return "".join(_piece(str(kind), argument, draw) for kind, argument in tree)


def _piece(kind: str, argument: Any, draw: Draw) -> str:
    if kind == "LITERAL":
        return chr(argument)
    if kind in {"ANY", "NOT_LITERAL"}:
        return "b" if argument == ord("a") else "a"
    if kind == "IN":
        return _member(argument, draw)
    if kind == "BRANCH":
        return _pieces(argument[1][draw.below(len(argument[1]))], draw)
    if kind == "SUBPATTERN":
        return _pieces(argument[3], draw)
    if kind == "ATOMIC_GROUP":
        return _pieces(argument, draw)
    if kind in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, most, part = argument
        times = least + draw.below(min(int(most) - least, 2) + 1)
        return "".join(_pieces(part, draw) for _ in range(times))
    return ""  # anchors match where they stand


_CATEGORIES: Final = {"CATEGORY_DIGIT": "0123456789", "CATEGORY_SPACE": " "}


def _member(options: Sequence[tuple[Any, Any]], draw: Draw) -> str:
    members = ""
    for kind, argument in options:
        if str(kind) == "LITERAL":
            members += chr(argument)
        elif str(kind) == "RANGE":
            members += "".join(map(chr, range(argument[0], min(argument[1], argument[0] + 25) + 1)))
        elif str(kind) == "CATEGORY":
            members += _CATEGORIES.get(str(argument), "abcdefgh")
    if str(options[0][0]) == "NEGATE":
        members = "".join(c for c in "abcxyz0189 _-.,/" if c not in members)
    return members[draw.below(len(members))] if members else ""

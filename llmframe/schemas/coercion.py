"""What a reply may get wrong in form and still be an answer, and what it may never.

pydantic in strict JSON mode is not strict enough for text that a model wrote: it takes ``true``
for ``Literal[1]`` and the digits ``"1710028800"`` for a date (seen with 2.9 to 2.14). And it is
too strict where the meaning is plain: ``3.0`` and ``"3"`` are 3. Both are decided here, by the
canonical schema alone, so that one rule holds for classes, dicts and raw JSON Schemas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from llmframe.schemas.nodes import NULL, Node, deref, entry, is_free, without_null

__all__ = ["Coercion", "Invalid"]

Step = Callable[[Any, str, list[str]], Any]

_INTEGER: Final = re.compile(r"[+-]?\d{1,20}")
_NUMBER: Final = re.compile(r"[+-]?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,3})?")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SHIFT: Final = re.compile(r":\d.*[+-](?!00:?00)\d\d:?\d\d$")
_EXACT: Final = 2**53
"""Below it a float holds every integer."""
_MIDNIGHT: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ]00:00(:00(\.0+)?)?(Z|[+-]\d\d:\d\d)?")


class Invalid(Exception):  # noqa: N818 - says what the answer is
    """A value that no coercion makes valid, and that a later check might let through.

    Attributes:
        path: Where it stands, such as ``"items[2].price"``.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class Coercion:
    """The plain corrections of one schema.

    Args:
        schema: A canonical schema.

    Attributes:
        always: The schema has places where the check behind this one is too lenient (dates,
            allowed numbers, Decimal), so every answer goes through; otherwise only those that
            the check refused.
    """

    def __init__(self, schema: Node) -> None:
        self._defs: Mapping[str, Any] = schema.get("$defs", {})
        self._memo: dict[str, Step] = {}
        self.always = False
        self._root = self._step(schema)

    def __call__(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """The value with its plain mistakes put right, and the paths that were.

        Raises:
            Invalid: The value holds what the schema's words forbid.
        """
        marks: list[str] = []
        return self._root(value, "", marks), tuple(marks)

    def _step(self, node: Mapping[str, Any]) -> Step:
        reference = node.get("$ref")
        if reference is None:
            return self._of_kind(node)
        if reference not in self._memo:
            self._memo[reference] = lambda value, path, marks: made(value, path, marks)
            made = self._of_kind(deref(node, self._defs))
        return self._memo[reference]

    def _of_kind(self, node: Mapping[str, Any]) -> Step:
        branches = [branch for branch in node.get("anyOf", ()) if branch != NULL]
        if branches and len(branches) < len(node["anyOf"]):
            # By its reference, where it is one: a definition may contain itself.
            step = self._step(branches[0]) if len(branches) == 1 else self._union(branches)
            return lambda value, path, marks: None if value is None else step(value, path, marks)
        if "enum" in node:
            return self._enum(node["enum"])
        if branches or "oneOf" in node:
            return self._union(branches or node["oneOf"])
        kind = node.get("type")
        if kind == "object":
            return self._map(node) if is_free(node) else self._object(node)
        if kind == "array":
            return self._array(node)
        if kind == "string":
            return self._string(node.get("format"), node.get("tz"))
        return {"integer": _integer, "number": _number, "boolean": _boolean}.get(str(kind), _same)

    def _string(self, form: str | None, zone: str | None) -> Step:
        if form in ("date", "date-time", "decimal"):
            self.always = True
            steps = {"date": _date, "date-time": _moment, "decimal": _decimal}
            return _offset if form == "date-time" and zone is None else steps[form]
        return _same

    def _enum(self, allowed: list[Any]) -> Step:
        if all(isinstance(value, str) for value in allowed):
            return _same
        self.always = True
        words = ", ".join(_word(value) for value in allowed[:20])
        steps: dict[type, Step] = {int: _integer, bool: _boolean, float: _number}
        kinds = {type(value) for value in allowed}
        step = steps.get(kinds.pop(), _same) if len(kinds) == 1 else _same

        def enum(value: Any, path: str, marks: list[str]) -> Any:
            tried: list[str] = []
            made = step(value, path, tried)
            for each in allowed:
                # 1 == True == 1.0 in Python; in JSON they are three values.
                if each == made and isinstance(each, bool) == isinstance(made, bool):
                    marks += tried
                    return made
            raise Invalid(path, f"should be one of {words}, got {_word(value)}")

        return enum

    def _union(self, branches: list[Node]) -> Step:
        kinds: set[str] = set()
        exact = False
        for branch in branches:
            inner, _ = without_null(branch, self._defs)
            exact = exact or inner.get("format") == "decimal"
            kinds.add(str(inner.get("type")))
        self.always = True
        closed = kinds <= {"integer", "number", "string", "boolean", "null", "object", "array"}

        def union(value: Any, path: str, marks: list[str]) -> Any:
            if isinstance(value, Decimal):
                keep = exact and "number" not in kinds
                return str(value) if keep else _same(value, path, marks)
            if closed and isinstance(value, bool) and "boolean" not in kinds:
                raise Invalid(path, f"got {_word(value)}, which is none of what is allowed there")
            return value

        return union

    def _object(self, node: Mapping[str, Any]) -> Step:
        required = set(node.get("required", ()))
        steps = []
        for name, child in node["properties"].items():
            inner, nullable = without_null(child, self._defs)
            typed = not nullable and bool(inner.keys() & {"type", "enum", "anyOf", "oneOf"})
            optional = typed and name not in required
            steps.append((name, self._step(child), nullable and name in required, optional))

        def fields(value: Any, path: str, marks: list[str]) -> Any:
            if type(value) is not dict:
                return value
            made = dict(value)
            for name, step, nullable, optional in steps:
                where = f"{path}.{name}" if path else name
                if optional and made.get(name, ...) is None:
                    # Where every key is required, null is the word for what is left out.
                    del made[name]
                    marks.append(where)
                elif name in made:
                    made[name] = step(made[name], where, marks)
                elif nullable:
                    # Models leave out what is null; no other meaning is possible.
                    made[name] = None
                    marks.append(where)
            return made

        return fields

    def _map(self, node: Mapping[str, Any]) -> Step:
        _, values = entry(node) or ({}, {})
        step = self._step(values)

        def free(value: Any, path: str, marks: list[str]) -> Any:
            if type(value) is not dict:
                return value
            return {name: step(item, f"{path}.{name}", marks) for name, item in value.items()}

        return free

    def _array(self, node: Mapping[str, Any]) -> Step:
        first = [self._step(item) for item in node.get("prefixItems", ())]
        rest = self._step(node["items"]) if "items" in node else _same

        def array(value: Any, path: str, marks: list[str]) -> Any:
            if type(value) is not list:
                return value
            return [
                (first[i] if i < len(first) else rest)(item, f"{path}[{i}]", marks)
                for i, item in enumerate(value)
            ]

        return array


def _same(value: Any, path: str, marks: list[str]) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
        if not math.isfinite(value):
            raise Invalid(path, "is too large for a number")
    return value


def _integer(value: Any, path: str, marks: list[str]) -> Any:
    if isinstance(value, float | Decimal) and -(2**63) <= value < 2**63 and value % 1 == 0:
        if isinstance(value, float) and abs(value) >= _EXACT:
            raise Invalid(
                path,
                f"should be an integer without a fraction or exponent, since beyond 2**53 its "
                f"last digits would be lost, got {_word(value)}",
            )
        marks.append(path)
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        marks.append(path)
        return int(value)
    return _same(value, path, marks)


def _number(value: Any, path: str, marks: list[str]) -> Any:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        marks.append(path)
        return float(value)
    return _same(value, path, marks)


def _boolean(value: Any, path: str, marks: list[str]) -> Any:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        marks.append(path)
        return value.strip().lower() == "true"
    return _same(value, path, marks)


def _date(value: Any, path: str, marks: list[str]) -> Any:
    if isinstance(value, str):
        midnight = _MIDNIGHT.fullmatch(value)
        if midnight:
            marks.append(path)
            return midnight[1]
        if not _DATE.fullmatch(value):
            raise Invalid(path, f"should be a date as YYYY-MM-DD, got {_word(value)}")
    return _same(value, path, marks)


def _moment(value: Any, path: str, marks: list[str]) -> Any:
    if isinstance(value, str):
        if _DATE.fullmatch(value):
            marks.append(path)
            return value + "T00:00:00"
        if not _DATE.match(value):
            raise Invalid(path, f"should be a time as YYYY-MM-DDThh:mm:ss, got {_word(value)}")
    return _same(value, path, marks)


def _offset(value: Any, path: str, marks: list[str]) -> Any:
    # A column of naive times tells a time with an offset in UTC: another wall clock.
    if isinstance(value, str) and _SHIFT.search(value):
        marks.append(path)
    return _moment(value, path, marks)


def _decimal(value: Any, path: str, marks: list[str]) -> Any:
    # The digits of a number survive only as text: 12.30 is not 12.3 to whoever asked for Decimal.
    if isinstance(value, Decimal | int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        try:
            number = Decimal(value.strip())
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite():
            raise Invalid(path, f"should be a decimal number, got {_word(value)}")
        return value.strip()
    return value


def _word(value: Any) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

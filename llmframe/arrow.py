"""Fields of a schema as Arrow types, and their values in the shape that Arrow takes.

The type follows from the canonical schema alone, so that every frame of a call has it: one without
rows, and one in which every row failed. Where no Arrow type holds whatever may be answered, there
is none and the column stays one of Python objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from llmframe.schemas.nodes import common_type, deref, entry, merged, without_null

__all__ = ["arrow_type", "arrow_value"]

_MOST_DIGITS: Final = 38
"""Of a decimal of 128 bits."""


def arrow_type(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    """The Arrow type of a field, or None where none holds all of its values.

    A model is a struct, a list or set a list, a map with free keys a map of text. A union has no
    type that pandas and Parquet know, nor has a model inside itself, a tuple of different types or
    a value of any type; what holds one of these has none either. A `Decimal` with ``max_digits``
    and ``decimal_places`` is a decimal of just these; any other may have more digits than a
    column's one scale, so it is text inside a struct or list and has no type by itself.

    Args:
        schema: The property in the canonical schema.
        defs: ``$defs`` of that schema.

    Returns:
        A `pyarrow.DataType`, or None.

    Examples:
        >>> from llmframe.schemas.forms import form
        >>> [field] = form({"tags": list[dict[str, float]]}).fields
        >>> print(arrow_type(field.schema, field.defs))
        list<item: map<string, double>>
    """
    inner, _ = without_null(schema, defs)
    if inner.get("format") == "decimal" and "enum" not in inner:
        return _decimal(inner)
    return _Types(defs).of(schema, frozenset())


class _Types:
    """One schema's types; names the definitions it is inside of, which must not come again."""

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self.defs = defs

    def of(self, node: Mapping[str, Any], inside: frozenset[str]) -> Any:
        import pyarrow as pa

        names = set()
        inner: Mapping[str, Any] = node
        for _ in range(2):  # a reference may stand around a nullable as well as in it
            if "$ref" in inner:
                names.add(inner["$ref"])
            inner = deref(inner, self.defs)
            branches = [branch for branch in inner.get("anyOf", ()) if branch != {"type": "null"}]
            if len(branches) == 1 and "$ref" in branches[0]:
                names.add(branches[0]["$ref"])
            inner, _ = without_null(inner, self.defs)
        if names & inside:
            return None
        inside |= names
        if "allOf" in inner:
            inner = merged(inner, self.defs)
        if "enum" in inner:
            return _scalar(common_type(list(inner["enum"])))
        if "anyOf" in inner or "oneOf" in inner:
            return None
        kind = inner.get("type")
        if kind == "string":
            return _text(inner) if "contentMediaType" not in inner else None
        if kind == "array":
            item = self._item(inner, inside)
            return None if item is None else pa.list_(item)
        if kind == "object":
            return self._object(inner, inside)
        return _scalar(kind)

    def _item(self, node: Mapping[str, Any], inside: frozenset[str]) -> Any:
        items = [*node.get("prefixItems", ()), *([node["items"]] if "items" in node else [])]
        found = [self.of(item, inside) for item in items]
        return found[0] if found and all(kind == found[0] for kind in found) else None

    def _object(self, node: Mapping[str, Any], inside: frozenset[str]) -> Any:
        import pyarrow as pa

        if (parts := entry(node)) is not None:
            value = self.of(parts[1], inside)
            return None if value is None else pa.map_(pa.string(), value)
        more = isinstance(node.get("additionalProperties"), Mapping) or "patternProperties" in node
        if more or "properties" not in node:
            return None
        fields = [(name, self.of(child, inside)) for name, child in node["properties"].items()]
        return None if any(kind is None for _, kind in fields) else pa.struct(fields)


def _scalar(kind: str | None) -> Any:
    import pyarrow as pa

    types = {"string": pa.string, "integer": pa.int64, "number": pa.float64, "boolean": pa.bool_}
    return types[kind]() if kind in types else None


def _text(node: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    form = node.get("format")
    if form == "date-time":
        return pa.timestamp("us", tz="UTC" if node.get("tz") == "aware" else None)
    if form == "decimal":
        return _decimal(node) or pa.string()
    types = {
        "date": pa.date32(),
        "time": pa.time64("us"),
        "duration": pa.duration("us"),
        "binary": pa.binary(),
    }
    return types.get(str(form), pa.string())


def _decimal(node: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    digits, places = node.get("max_digits"), node.get("decimal_places")
    if digits is None or places is None or not 0 < digits <= _MOST_DIGITS or places > digits:
        return None
    return pa.decimal128(digits, places)


def arrow_value(kind: Any, value: Any) -> Any:
    """A cell's value as Arrow takes it for a type: no time zones it would drop, no other names.

    Args:
        kind: What `arrow_type` gave.
        value: A plain value of the field, or such a cell as it was read from a frame.

    Raises:
        ValueError: It is none of that type, or would lose something.

    Examples:
        >>> import pyarrow as pa
        >>> arrow_value(pa.map_(pa.string(), pa.int64()), {"mon": 8})
        [('mon', 8)]
    """
    import pyarrow as pa

    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        return _struct(kind, value)
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_typed(str, key), arrow_value(kind.item_type, item)) for key, item in pairs]
    if types.is_list(kind):
        return [arrow_value(kind.value_type, item) for item in _typed(list | tuple, value)]
    if types.is_string(kind):
        # Arrow holds UTF-8, which has no lone surrogates.
        text = str(value) if isinstance(value, Decimal) else _typed(str, value)
        return text.encode("utf-8", "replace").decode()
    if types.is_timestamp(kind):
        moment = _typed(datetime, value)
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC) if kind.tz else moment
        return moment.astimezone(UTC).replace(tzinfo=UTC if kind.tz else None)
    if types.is_date(kind):
        return value.date() if isinstance(value, datetime) else _typed(date, value)
    if types.is_time(kind):
        clock = _typed(time, value)
        if clock.utcoffset():  # a column has one clock: a time with an offset is told in UTC
            clock = datetime.combine(date(2000, 1, 1), clock).astimezone(UTC).time()
        return clock.replace(tzinfo=None)
    if types.is_float64(kind) and type(value) is int:
        return float(value)
    for test, own in _PYTHON:
        if getattr(types, test)(kind):
            if own is not bool and isinstance(value, bool):
                break
            return _typed(own, value)
    raise ValueError(f"{value!r} is no {kind}")


_PYTHON: Final[tuple[tuple[str, Any], ...]] = (
    ("is_boolean", bool),
    ("is_integer", int),
    ("is_floating", float),
    ("is_duration", timedelta),
    ("is_decimal", Decimal),
    ("is_binary", bytes),
)


def _struct(kind: Any, value: Any) -> dict[str, Any]:
    given = _typed(Mapping, value)
    names = [field.name for field in kind]
    if not given.keys() <= set(names):
        # A class's own names differ from the wire's where it has aliases; the order does not.
        if len(given) != len(names):
            raise ValueError(f"{value!r} has other keys than {names}")
        given = dict(zip(names, given.values(), strict=True))
    return {field.name: arrow_value(field.type, given.get(field.name)) for field in kind}


def _typed(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
    return value

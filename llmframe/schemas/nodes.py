"""Reading a canonical schema: what a reference means, what is nullable, which column it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from llmframe.errors import SchemaError

__all__ = [
    "DECIMAL_DIGITS",
    "NULL",
    "Kind",
    "Node",
    "bounds_in_64_bits",
    "common_type",
    "deref",
    "entry",
    "is_free",
    "kind_of",
    "merged",
    "needs_null",
    "recursive_names",
    "references",
    "without",
    "without_null",
]

Node = dict[str, Any]
Kind = Literal[
    "str", "int", "float", "bool", "category", "datetime", "datetime_utc", "date", "object"
]

NULL: Final[Node] = {"type": "null"}
DECIMAL_DIGITS: Final = ("max_digits", "decimal_places")
"""Words of pydantic's beside the format ``decimal``: what a class bounds its digits to."""


def deref(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Node:
    """`node`, or what it refers to with the words that stand beside the reference."""
    seen = 0
    made = dict(node)
    while "$ref" in made and seen < 100:
        made = {**defs[made["$ref"].rpartition("/")[2]], **without(made, "$ref")}
        seen += 1
    return made


def without_null(node: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[Node, bool]:
    """The node without its null branch, and whether it had one."""
    made = deref(node, defs)
    if "anyOf" not in made:
        return made, made.get("type") == "null"
    branches = [branch for branch in made["anyOf"] if branch != NULL]
    if len(branches) == len(made["anyOf"]):
        return made, False
    if len(branches) == 1:
        inner, _ = without_null(branches[0], defs)
        return {**inner, **without(made, "anyOf")}, True
    return {**made, "anyOf": branches}, True


def needs_null(node: Mapping[str, Any], name: str, defs: Mapping[str, Any]) -> bool:
    """Whether a field of an object is to be null where the model leaves it out.

    Every key is asked for, so a model without an answer would have to invent one. An object
    that requires nothing and gives no default was most likely written without a thought of it: its
    fields are asked for as they are. Where one value is allowed, nothing is invented.
    """
    child, required = node["properties"][name], node.get("required", ())
    inner, nullable = without_null(child, defs)
    if name in required or nullable or len(inner.get("enum", ())) == 1:
        return False
    return bool(required) or "default" in child


def references(node: Mapping[str, Any], defs: Mapping[str, Any]) -> frozenset[str]:
    """The definitions that a node is by reference, itself or its one branch beside null."""
    names = set()
    inner: Mapping[str, Any] = node
    while "$ref" not in inner or inner["$ref"] not in names:
        if "$ref" in inner:
            names.add(inner["$ref"])
            inner = defs[inner["$ref"].rpartition("/")[2]]
            continue
        branches = [branch for branch in inner.get("anyOf", ()) if branch != NULL]
        if len(branches) != 1:
            break
        inner = branches[0]
    return frozenset(names)


def bounds_in_64_bits(node: Any) -> Any:
    """The schema with bounds beyond 64 bits as floats, which every encoder of JSON takes.

    No integer of 64 bits, and no float, is on another side of the bound for that. A bound beyond
    all floats is none.

    Examples:
        >>> bounds_in_64_bits({"type": "integer", "maximum": 10**20, "minimum": -(10**400)})
        {'type': 'integer', 'maximum': 1e+20}
    """
    if isinstance(node, list):
        return [bounds_in_64_bits(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    made = {key: bounds_in_64_bits(value) for key, value in node.items()}
    for word in _NUMBER_BOUNDS & made.keys():
        bound = made[word]
        if isinstance(bound, int) and not -(2**63) <= bound < 2**64:
            try:
                made[word] = float(bound)
            except OverflowError:
                del made[word]
    return made


_NUMBER_BOUNDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)


def merged(node: Mapping[str, Any], defs: Mapping[str, Any], path: str = "") -> Node:
    """A node with its `allOf` written out as one: the engines have no word for it.

    Raises:
        SchemaError: Two parts have different types.
    """
    made: Node = without(node, "allOf")
    for part in node["allOf"]:
        for key, value in deref(part, defs).items():
            if key == "properties":
                made["properties"] = {**made.get("properties", {}), **value}
            elif key == "required":
                made["required"] = [*made.get("required", []), *value]
            elif key == "type" and {made.get("type"), value} == {"integer", "number"}:
                made["type"] = "integer"
            elif key == "type" and made.get("type", value) != value:
                where = f"field {path!r}" if path else "the schema"
                raise SchemaError(f"{where} has an allOf that no value can meet.")
            elif key == "allOf":
                made.setdefault("allOf", []).extend(value)
            else:
                made.setdefault(key, value)
    return made


def is_free(node: Mapping[str, Any]) -> bool:
    """Whether the node is an object that names none of its keys."""
    named = node.get("properties") or "allOf" in node
    return node.get("type") == "object" and not named


def entry(node: Mapping[str, Any]) -> tuple[Node, Node] | None:
    """What the keys and the values of a free-form map are.

    Args:
        node: A canonical schema.

    Returns:
        The schema of a key and that of a value; None where the node is no map, or one whose values
        depend on the key.
    """
    if not is_free(node):
        return None
    values = node.get("additionalProperties")
    patterns = node.get("patternProperties", {})
    if not patterns:
        return node.get("propertyNames", {}), values or {}
    if len(patterns) > 1 or isinstance(values, Mapping):
        return None
    pattern, made = next(iter(patterns.items()))
    return {"pattern": pattern}, made


def recursive_names(defs: Mapping[str, Any]) -> frozenset[str]:
    """Definitions that contain themselves, straight or by way of others."""
    refers = {
        name: {other for other in defs if f'"#/$defs/{other}"' in json.dumps(node)}
        for name, node in defs.items()
    }
    found = set()
    for name in defs:
        reached: set[str] = set()
        ahead = set(refers[name])
        while ahead:
            reached |= ahead
            ahead = set().union(*(refers[other] for other in ahead)) - reached
        if name in reached:
            found.add(name)
    return frozenset(found)


def kind_of(node: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[Kind, tuple[Any, ...]]:
    """What kind of column a property becomes, by its canonical schema alone.

    Returns:
        The kind, and the allowed values where there are any (kind ``"category"``: all text).
    """
    inner, _ = without_null(node, defs)
    if "enum" in inner:
        values = tuple(inner["enum"])
        by_type: dict[str | None, Kind] = {
            "string": "category",
            "integer": "int",
            "boolean": "bool",
            "number": "float",
        }
        return by_type.get(common_type(list(values)), "object"), values
    kind = inner.get("type")
    if kind == "string":
        form = inner.get("format")
        if form in ("date", "date-time"):
            return ("datetime_utc" if inner.get("tz") == "aware" else "datetime"), ()
        parsed = form in ("decimal", "time", "duration", "binary") or "contentMediaType" in inner
        return ("object" if parsed else "str"), ()
    scalars: dict[str, Kind] = {"integer": "int", "number": "float", "boolean": "bool"}
    return scalars.get(str(kind), "object"), ()


def common_type(values: list[Any]) -> str | None:
    """The JSON type that all of the values have, or None."""
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return "number"
    names = {str: "string", int: "integer", bool: "boolean", float: "number"}
    return names.get(kinds.pop()) if len(kinds) == 1 else None


def without(node: Mapping[str, Any], *keys: str) -> Node:
    """The node without some of its keys."""
    return {key: value for key, value in node.items() if key not in keys}

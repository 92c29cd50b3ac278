"""One canonical JSON Schema for every way to write a schema.

pydantic, its versions, OpenAPI and people write the same thing differently: a nullable as
``anyOf``, as a type list or as ``nullable: true``; one allowed value as ``const`` or ``enum``.
Everything after this module (checks, wire dialects, the key) sees one shape:

* the root is an object with ``properties``; definitions are ``$defs``, named ``d1, d2 …`` in the
  order of their first use, so that a class's name or module never changes a key;
* a nullable is ``{"anyOf": [X, …, {"type": "null"}]}``, null last;
* allowed values are an ``enum`` without null; ``type`` is one word;
* an object with ``additionalProperties: true`` has none; a free map has the schema of its values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.schemas.nodes import DECIMAL_DIGITS, NULL, Node, common_type, deref, without

__all__ = ["canonical", "normal"]

_DROPPED: Final = frozenset(
    {"$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "nullable", "discriminator"}
    | {"readOnly", "writeOnly", "deprecated"}
)
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
# What stays outside when a node is split into branches: it speaks of the field, not of a branch.
_OUTER: Final[tuple[str, ...]] = ("title", "description", "default", "examples")
_KEYWORDS: Final[dict[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "tz"}),
    "integer": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "array": frozenset(
        {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}
        | {"minContains", "maxContains", "unevaluatedItems"}
    ),
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
        | {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas"}
        | {"unevaluatedProperties"}
    ),
}
_BOUNDS: Final = _KEYWORDS["integer"]
_ALL_KEYWORDS: Final = frozenset().union(*_KEYWORDS.values())
_MAX_NODES: Final = 20_000


def canonical(schema: Mapping[str, Any], *, title: str | None = None) -> tuple[Node, list[str]]:
    """The canonical form of a JSON Schema, its definitions included.

    Args:
        schema: A JSON Schema as pydantic or a person writes it. References stay inside it.
        title: Name of the Python class it comes from; as the root's title it is dropped.

    Returns:
        The canonical schema, and the paths of objects that allow any further key.

    Raises:
        SchemaError: A reference leads nowhere or outside, a node is no schema, or an object has
            no fields.
    """
    work = _Canonical(schema)
    root = work.node(schema, "", names=() if title is None else (title,))
    for definition in work.defs.values():
        if "$ref" in deref(definition, work.defs):
            raise SchemaError(
                "a definition of the schema refers to itself and to nothing else. Say what it is."
            )
    if "$ref" in root:
        # A recursive class: the root is written out, its definition stays for the recursion, and
        # a second pass counts the definitions anew from there.
        root = {**deref(root, work.defs), "$defs": work.defs}
        again = _Canonical(root)
        return _with_defs(again.node(root, ""), again.defs), work.open_objects
    return _with_defs(root, work.defs), work.open_objects


def _with_defs(root: Node, defs: dict[str, Node]) -> Node:
    return {**root, "$defs": defs} if defs else root


class _Canonical:
    """One pass over one schema document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.defs: dict[str, Node] = {}
        self.open_objects: list[str] = []
        self._names: dict[str, str] = {}
        self._nodes = 0

    def node(self, raw: Any, path: str, names: tuple[str, ...] = ()) -> Node:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise SchemaError(f"the schema has more than {_MAX_NODES:,} parts. Ask for less.")
        if raw is True:
            return {}
        if not isinstance(raw, Mapping):
            raise SchemaError(
                f"the schema{_at(path)} is {_short(raw)}: expected a JSON Schema object."
            )
        node: Node = {key: value for key, value in raw.items() if key not in _DROPPED}
        if node.get("title") in names:
            del node["title"]
        if node.get("default", 0) is None:
            del node["default"]
        for word in _BOUNDS & node.keys():
            node[word] = _number(node[word])
            if node[word] is None:
                del node[word]  # ge=-inf and the like: no bound at all
        if isinstance(node.get("default"), float) and not math.isfinite(node["default"]):
            del node["default"]  # JSON has no word for it; the class still knows
        if "$ref" in node:
            node["$ref"] = self._reference(node["$ref"], path)
        else:
            node = self._values(node, path)
            node = self._split_types(node, path)
            node = self._branches(node, path)
            self._object(node, path)
            self._array(node, path)
        if raw.get("nullable") is True:
            node = _nullable(node)
        return node

    def _reference(self, reference: Any, path: str) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(
                f"the schema{_at(path)} refers to {_short(reference)}: only references inside "
                f"the schema ('#/$defs/…') can be asked for. Put the definition under '$defs'."
            )
        if reference not in self._names:
            target: Any = self.document
            for part in reference[1:].split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(target, Mapping) or part not in target:
                    raise SchemaError(
                        f"the schema{_at(path)} refers to {reference!r}, which is not in it. "
                        f"Add the definition, or write it out."
                    )
                target = target[part]
            name = self._names[reference] = f"d{len(self._names) + 1}"
            self.defs[name] = {}  # holds the place: definitions stand in the order of first use
            own = reference.rpartition("/")[2]
            title = target.get("title") if isinstance(target, Mapping) else None
            generated = isinstance(title, str) and own.endswith(_definition_name(title))
            self.defs[name] = self.node(target, path, names=(str(title),) if generated else ())
        return f"#/$defs/{self._names[reference]}"

    def _values(self, node: Node, path: str) -> Node:
        """`const` and `enum` become one `enum` without null."""
        if "const" in node:
            node["enum"] = [node.pop("const")]
        if "enum" not in node:
            return node
        values = list(node["enum"])
        kinds = node.get("type")
        if kinds is not None:
            kinds = [kinds] if isinstance(kinds, str) else kinds
            values = [value for value in values if _is_one_of(value, kinds)]
        if not values:
            raise SchemaError(f"the schema{_at(path)} allows no value at all: its enum is empty.")
        has_null = None in values
        values = [value for value in values if value is not None]
        node.pop("type", None)
        if not values:
            return {**without(node, "enum"), **NULL}
        kind = common_type(values)
        typed = {"type": kind} if kind else {}
        node = {**without(node, "enum"), **typed, "enum": values}
        return _nullable(node) if has_null else node

    def _split_types(self, node: Node, path: str) -> Node:
        kinds = node.get("type")
        if kinds is None:
            if "properties" in node:
                node["type"] = "object"
            elif "items" in node or "prefixItems" in node:
                node["type"] = "array"
            return node
        if isinstance(kinds, str):
            if kinds not in _TYPES:
                raise SchemaError(
                    f"the schema{_at(path)} has type {kinds!r}: expected one of "
                    f"{', '.join(_TYPES)}."
                )
            return node
        outer = {key: node[key] for key in _OUTER if key in node}
        rest = {key: value for key, value in node.items() if key not in outer and key != "type"}
        branches = []
        for kind in kinds:
            mine = _KEYWORDS.get("integer" if kind == "number" else kind, frozenset())
            own = {k: v for k, v in rest.items() if k in mine or k not in _ALL_KEYWORDS}
            branches.append({"type": kind, **own})
        return {**outer, "anyOf": branches}

    def _branches(self, node: Node, path: str) -> Node:
        for word in ("anyOf", "oneOf", "allOf"):
            if word not in node:
                continue
            flat: list[Node] = []
            for branch in node[word]:
                made = self.node(branch, path)
                # A union inside a union is one union; so Optional[Union[…]] has one shape.
                if word == "anyOf" and made.keys() == {"anyOf"}:
                    flat.extend(made["anyOf"])
                elif made not in flat:
                    flat.append(made)
            nulls = [branch for branch in flat if branch == NULL]
            flat = [branch for branch in flat if branch != NULL]
            if word == "oneOf" and nulls:
                node["anyOf"] = node.pop("oneOf")
                word = "anyOf"
                if len(flat) > 1:
                    flat = [{"oneOf": flat}]
            node[word] = flat + nulls[:1]
            rest = without(node, word)
            if len(node[word]) == 1 and not (rest.keys() & node[word][0].keys()):
                node = {**node[word][0], **rest}
        for word in ("not", "if", "then", "else", "contains", "propertyNames"):
            if word in node:
                node[word] = self.node(node[word], path)
        return node

    def _object(self, node: Node, path: str) -> None:
        if node.get("type") != "object":
            return
        properties = node.get("properties")
        extra = node.get("additionalProperties", True)
        if properties is None and "patternProperties" not in node and "allOf" not in node:
            if extra is False:
                raise SchemaError(_no_fields(path))
            node["additionalProperties"] = self.node(extra, _join(path, "*"))
            return
        if properties is not None and not properties:
            raise SchemaError(_no_fields(path))
        _refuse_mixed(node, path)
        if extra is True or extra == {}:
            if "additionalProperties" in node:
                self.open_objects.append(path)
            node.pop("additionalProperties", None)
        elif extra is not False:
            node["additionalProperties"] = self.node(extra, _join(path, "*"))
        node["properties"] = {
            str(name): self.node(child, _join(path, name), names=_field_titles(str(name)))
            for name, child in (properties or {}).items()
        }
        required = node.get("required", [])
        node["required"] = [name for name in node["properties"] if name in required]
        for word in ("patternProperties", "dependentSchemas"):
            if word in node:
                node[word] = {k: self.node(v, path) for k, v in node[word].items()}

    def _array(self, node: Node, path: str) -> None:
        if node.get("type") != "array":
            return
        inner = _join(path, "[]")
        if "prefixItems" in node:
            node["prefixItems"] = [self.node(item, inner) for item in node["prefixItems"]]
            if node.get("items") is False:
                del node["items"]
                size = len(node["prefixItems"])
                node["maxItems"] = min(size, node.get("maxItems", size))
        items = node.get("items")
        if items is not None:
            node["items"] = self.node(items, inner)
        elif "prefixItems" not in node:
            node["items"] = {}


def normal(schema: Mapping[str, Any]) -> str:
    """The text that stands for a canonical schema in a key.

    Properties are an ordered list, since their order changes answers; the order of all other
    keywords does not count.

    Args:
        schema: A canonical schema.

    Returns:
        Compact JSON, the same on every supported version of pydantic and pandas.
    """
    text = json.dumps(
        _normal(schema), sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False
    )
    return text


def _normal(value: Any) -> Any:
    if isinstance(value, Mapping):
        aside: tuple[str, ...] = ("properties",)
        if value.get("format") == "decimal":
            aside += DECIMAL_DIGITS  # told to the model, and no part of what was asked before
        plain = {key: _normal(item) for key, item in value.items() if key not in aside}
        if "properties" in value:
            plain["properties"] = [[k, _normal(v)] for k, v in value["properties"].items()]
        return plain
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return _number(value) if isinstance(value, float) else value


def _number(value: Any) -> Any:
    """A number in one spelling: ge=1 on a float is 1 or 1.0, by the version of pydantic."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _nullable(node: Node) -> Node:
    if "anyOf" in node and NULL in node["anyOf"]:
        return node
    if node == NULL:
        return node
    outer = {key: node[key] for key in _OUTER if key in node}
    inner = without(node, *outer)
    branches = inner["anyOf"] if inner.keys() == {"anyOf"} else [inner]
    return {**outer, "anyOf": [*branches, dict(NULL)]}


def _is_one_of(value: Any, kinds: Any) -> bool:
    tests = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "null": value is None,
        "array": isinstance(value, list),
        "object": isinstance(value, Mapping),
    }
    return any(tests.get(kind, False) for kind in kinds)


def _field_titles(name: str) -> tuple[str, ...]:
    return (name, name.title().replace("_", " ").strip(), name.replace("_", " ").title().strip())


def _definition_name(title: str) -> str:
    return re.sub(r"[^a-zA-Z0-9.\-_]", "_", title)


def _refuse_mixed(node: Node, path: str) -> None:
    """Refuse named keys with a rule for further ones: wires close an object that names its keys."""
    for word in ("additionalProperties", "unevaluatedProperties", "patternProperties"):
        rule = node.get(word)
        if node.get("properties") and isinstance(rule, Mapping) and rule:
            raise SchemaError(
                f"the schema{_at(path)} names fields and has {word} for further keys, which "
                f"cannot be asked for together. Give the further keys a field of their own, such "
                f"as 'more': dict[str, int], or list them under 'properties'."
            )


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _at(path: str) -> str:
    return f" at {path!r}" if path else ""


def _no_fields(path: str) -> str:
    where = f"{path!r} has" if path else "the schema has"
    return f"{where} no fields, so there is nothing to ask for. Add a field."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

"""The canonical schema in each engine's words; pure.

A wire schema may allow more than the full schema and never less: what an engine has no word for
moves into the description, for the model to read, and the local check holds all of it anyway.

Examples:
    >>> from llmframe.schemas.dialects import openai_strict
    >>> from llmframe.schemas.forms import form
    >>> wire = openai_strict(form({"tags": list[str]}).schema)
    >>> wire["required"], wire["additionalProperties"]
    (['tags'], False)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.schemas.grammar import llama_grammar
from llmframe.schemas.limits import anthropic_limits, field_name, openai_limits
from llmframe.schemas.nodes import (
    NULL,
    Node,
    deref,
    entry,
    is_free,
    merged,
    needs_null,
    recursive_names,
    without,
)
from llmframe.schemas.pairs import KEY, VALUE, holds_map, refuse_unclear
from llmframe.schemas.patterns import decimal_pattern, is_portable
from llmframe.schemas.plain import plain, rules_in_words

__all__ = ["anthropic", "llama_grammar", "openai_strict", "plain", "xgrammar"]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What an engine takes.

    Attributes:
        name: For messages.
        keywords: Constraints that are sent as they are.
        formats: Values of ``format`` that are.
        free: Whether values of any type, and objects with free keys as such, can be asked for.
        tuples: Whether ``prefixItems`` can.
        recursion: Whether a definition may refer to itself.
    """

    name: str
    keywords: frozenset[str]
    formats: frozenset[str]
    free: bool = False
    tuples: bool = False
    recursion: bool = True


_COMMON_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
# Bounds and counts are left out although newer OpenAI models take them: fine-tuned and older ones
# answer 400 for every row.
_OPENAI: Final = _Dialect("OpenAI's strict mode", frozenset({"pattern"}), _COMMON_FORMATS)
_ANTHROPIC: Final = _Dialect(
    "Anthropic's structured output", frozenset(), _COMMON_FORMATS | {"uri"}, recursion=False
)
_XGRAMMAR: Final = _Dialect(
    "xgrammar",
    frozenset({"pattern", "minLength", "maxLength", "minItems", "maxItems"})
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    _COMMON_FORMATS | {"uri"},
    free=True,
    tuples=True,
)


def openai_strict(schema: Mapping[str, Any]) -> Node:
    """The schema for ``response_format`` with ``strict: true``.

    Args:
        schema: A canonical schema.

    Returns:
        A schema in which every object is closed and every key required; a map is the list of
        its entries.

    Raises:
        SchemaError: Values of any type, a place that may be a map or a list, or one of OpenAI's
            limits is passed.

    Examples:
        >>> from llmframe.schemas.forms import form
        >>> form_ = form({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}})
        >>> openai_strict(form_.schema)["properties"]
        {'n': {'type': 'integer', 'description': 'at least 1'}}
    """
    return _within(schema, _OPENAI, openai_limits)


def anthropic(schema: Mapping[str, Any]) -> Node:
    """The schema for ``output_config.format`` of Messages.

    A null costs one of 16 unions a request may have; beyond that the last nullables become keys
    that may be left out, of which there may be 24.

    Args:
        schema: A canonical schema.

    Raises:
        SchemaError: Values of any type, a place that may be a map or a list, recursion, or a
            limit is passed.
    """
    return _within(schema, _ANTHROPIC, anthropic_limits)


def xgrammar(schema: Mapping[str, Any]) -> Node:
    """The schema for vLLM's default grammar backend.

    Args:
        schema: A canonical schema.

    Returns:
        A schema without the keywords at which the backend refuses the request.
    """
    return _Wire(schema, _XGRAMMAR).document()


def _within(schema: Mapping[str, Any], dialect: _Dialect, limits: Callable[[Node], None]) -> Node:
    try:
        wire = _Wire(schema, dialect).document()
        limits(wire)
    except SchemaError:
        # Nulls for what may be left out are a help; they must not be what a limit breaks on.
        wire = _Wire(schema, dialect, leave_out=False).document()
        limits(wire)
    return wire


class _Wire:
    """One schema on its way into one dialect.

    Args:
        schema: A canonical schema.
        dialect: The dialect.
        leave_out: Whether a field that may be left out may be null: every key is required, so a
            model without an answer would have to invent one.
    """

    def __init__(
        self, schema: Mapping[str, Any], dialect: _Dialect, *, leave_out: bool = True
    ) -> None:
        self.schema = schema
        self.leave_out = leave_out
        self.dialect = dialect
        self.defs: Mapping[str, Any] = schema.get("$defs", {})
        self.used: dict[str, Node] = {}
        self._recursive = recursive_names(self.defs)

    def document(self) -> Node:
        if not self.dialect.free and holds_map(self.schema):
            refuse_unclear(self.schema, self.dialect.name)
        wire = self.node(without(self.schema, "$defs"), "")
        return {**wire, "$defs": self.used} if self.used else wire

    def node(self, node: Mapping[str, Any], path: str) -> Node:
        if "$ref" in node:
            return self._reference(node, path)
        words = [str(node[key]) for key in ("title", "description") if node.get(key)]
        made: Node = {}
        if "enum" in node:
            made = self._enum(node)
        elif "anyOf" in node or "oneOf" in node:
            made = self._union(node, path)
        elif "allOf" in node:
            return self.node(merged(node, self.defs, path), path)
        elif node.get("type") == "object":
            made = self._object(node, path)
        elif node.get("type") == "array":
            made = self._array(node, path)
        elif "type" in node:
            made = {"type": node["type"]}
        elif not self.dialect.free:
            raise SchemaError(
                f"{field_name(path)} may be any value, which {self.dialect.name} cannot ask for. "
                f"Give it a type, such as str."
            )
        sent = {}
        for key in self.dialect.keywords & node.keys():
            if key != "pattern" or is_portable(node[key]):
                sent[key] = node[key]
        if node.get("format") in self.dialect.formats:
            made["format"] = node["format"]
        if self.dialect is _XGRAMMAR:
            if node.get("format") == "decimal":
                sent["pattern"] = decimal_pattern(node)
            if "pattern" in sent or "format" in made:
                # vLLM refuses a text that has either and a length: xgrammar would drop one.
                sent = without(sent, "minLength", "maxLength")
        made.update(sorted(sent.items()))
        # A short range is a list of values, which every engine holds a model to.
        if made == {"type": "integer"} and (values := _short_range(node)):
            made["enum"] = values
        rules = without(node, *made, "default")
        if (node.get("type"), made.get("type")) == ("object", "array"):
            words.append("a map, as the list of its entries: each key once")
            rules = without(rules, "propertyNames", "patternProperties")
        words += rules_in_words(rules)
        if words:
            made["description"] = "; ".join(words)
        return made

    def _reference(self, node: Mapping[str, Any], path: str) -> Node:
        name = node["$ref"].rpartition("/")[2]
        beside = without(node, "$ref", "default")
        recursive = name in self._recursive
        if recursive and not self.dialect.recursion:
            raise SchemaError(
                f"{field_name(path)} contains itself, which {self.dialect.name} cannot ask for. "
                f"Write the levels out as models of their own, or ask for a flat list."
            )
        if beside and not recursive:
            return self.node({**self.defs[name], **beside}, path)  # no words beside a reference
        if name not in self.used:
            self.used[name] = {}
            self.used[name] = self.node(self.defs[name], path)
        return {"$ref": node["$ref"]}

    def _enum(self, node: Mapping[str, Any]) -> Node:
        if "type" in node:
            return {"type": node["type"], "enum": list(node["enum"])}
        # Mixed types: one branch a type, since strict modes want the type of each value.
        by_type: dict[str, list[Any]] = {}
        names = {bool: "boolean", int: "integer", float: "number", str: "string"}
        for value in node["enum"]:
            by_type.setdefault(names.get(type(value), "object"), []).append(value)
        return {"anyOf": [{"type": kind, "enum": values} for kind, values in by_type.items()]}

    def _union(self, node: Mapping[str, Any], path: str) -> Node:
        flat: list[Node] = []
        for branch in node.get("anyOf") or node["oneOf"]:
            made = self.node(branch, path)
            flat.extend(made["anyOf"] if made.keys() == {"anyOf"} else [made])
        unique = [branch for i, branch in enumerate(flat) if branch not in flat[:i]]
        if self.dialect is _OPENAI:
            self._tell_apart(unique, path)
        return {"anyOf": unique}

    def _tell_apart(self, branches: list[Node], path: str) -> None:
        """OpenAI refuses objects in one anyOf that start with the same key, tags apart."""
        starts: list[tuple[str, frozenset[str]]] = []
        for branch in branches:
            target = self.used[branch["$ref"].rpartition("/")[2]] if "$ref" in branch else branch
            properties = target.get("properties")
            if not properties:
                continue
            for name in list(properties):
                tags = frozenset(map(repr, properties[name].get("enum", ())))
                if not any(
                    n == name and not (tags and t and tags.isdisjoint(t)) for n, t in starts
                ):
                    break
            else:
                raise SchemaError(
                    f"{field_name(path)} may be one of several objects with the same fields, which "
                    f"OpenAI's strict mode cannot tell apart. Give each a first field of its own, "
                    f"such as kind: Literal['…']."
                )
            starts.append((name, tags))
            target["properties"] = {name: properties.pop(name), **properties}
            target["required"] = list(target["properties"])

    def _object(self, node: Mapping[str, Any], path: str) -> Node:
        if is_free(node):
            if not self.dialect.free:
                return self._pairs(node, path)
            _, values = entry(node) or ({}, {})
            return {"type": "object", "additionalProperties": self.node(values, f"{path}.*")}
        properties = {}
        for name, child in node["properties"].items():
            made = self.node(child, f"{path}.{name}".strip("."))
            leave_out = self.leave_out and needs_null(node, name, self.defs)
            properties[name] = _or_null(made) if leave_out else made
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def _pairs(self, node: Mapping[str, Any], path: str) -> Node:
        parts = entry(node)
        if parts is None:
            raise SchemaError(
                f"{field_name(path)} is a map whose values depend on the key, which "
                f"{self.dialect.name} cannot ask for. Name the keys as fields."
            )
        key, value = parts
        properties = {
            KEY: self.node({"type": "string", **deref(key, self.defs)}, f"{path}.*"),
            VALUE: self.node(value, f"{path}.*"),
        }
        pair = {"type": "object", "properties": properties, "required": [KEY, VALUE]}
        return {"type": "array", "items": {**pair, "additionalProperties": False}}

    def _array(self, node: Mapping[str, Any], path: str) -> Node:
        made: Node = {"type": "array"}
        first = [self.node(item, f"{path}[]") for item in node.get("prefixItems", ())]
        rest = self.node(node["items"], f"{path}[]") if "items" in node else None
        if first and self.dialect.tuples:
            made["prefixItems"] = first
            made["items"] = False if rest is None else rest
            return made
        kinds = first + ([rest] if rest is not None else [])
        unique = [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]
        made["items"] = unique[0] if len(unique) == 1 else {"anyOf": unique}
        if node.get("minItems") in (0, 1) and self.dialect is _ANTHROPIC:
            made["minItems"] = node["minItems"]
        return made


def _or_null(made: Node) -> Node:
    if not made.keys() & {"type", "anyOf", "$ref"}:
        return made  # any value
    branches = made["anyOf"] if "anyOf" in made else [without(made, "description")]
    outer = {"description": made["description"]} if "description" in made else {}
    return {"anyOf": [*branches, dict(NULL)], **outer}


def _short_range(node: Mapping[str, Any]) -> list[int] | None:
    low = node.get("minimum", node.get("exclusiveMinimum", None))
    high = node.get("maximum", node.get("exclusiveMaximum", None))
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    low = int(low) + ("minimum" not in node)
    high = int(high) - ("maximum" not in node)
    return list(range(low, high + 1)) if 0 <= high - low <= 20 else None

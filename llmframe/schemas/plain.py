"""The schema in a prompt's words, for models and servers that take no schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from llmframe.schemas.nodes import NULL, deref, entry, is_free, recursive_names, without_null

__all__ = ["plain", "rules_in_words"]

_FORMATS: Final = {
    "date": "a date as YYYY-MM-DD",
    "date-time": "a time as YYYY-MM-DDThh:mm:ss",
    "time": "a time of day as hh:mm:ss",
    "duration": "a duration as in ISO 8601, such as P3D",
    "decimal": "a decimal number in digits, such as 12.30",
}
_RULES: Final[dict[str, Callable[[Any], str]]] = {
    "minimum": lambda n: f"at least {n}",
    "exclusiveMinimum": lambda n: f"more than {n}",
    "maximum": lambda n: f"at most {n}",
    "exclusiveMaximum": lambda n: f"less than {n}",
    "multipleOf": lambda n: f"a multiple of {n}",
    "minLength": lambda n: f"at least {_many(n, 'character')}",
    "maxLength": lambda n: f"at most {_many(n, 'character')}",
    "minItems": lambda n: f"at least {_many(n, 'item')}",
    "maxItems": lambda n: f"at most {_many(n, 'item')}",
    "minProperties": lambda n: f"at least {_many(n, 'key')}",
    "maxProperties": lambda n: f"at most {_many(n, 'key')}",
    "uniqueItems": lambda n: "no item twice" if n else "",
    "pattern": lambda p: f"matching the regular expression {p}",
    "format": lambda f: _FORMATS.get(f, f"format {f}"),
    "max_digits": lambda n: f"at most {_many(n, 'digit')}",
    "decimal_places": lambda n: f"at most {_many(n, 'digit')} after the point",
    "tz": lambda z: "with its offset, such as Z" if z == "aware" else "without an offset",
    "examples": lambda e: "for example " + ", ".join(_json(one) for one in list(e)[:5]),
    "prefixItems": lambda items: (
        "in this order: " + ", ".join(str(item.get("type", "a value")) for item in items)
    ),
}


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_STRUCTURE: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "oneOf"}
    | {"allOf", "$ref", "$defs", "title", "description", "default"}
)


def rules_in_words(node: Mapping[str, Any]) -> list[str]:
    """The node's constraints, each in a few words; rules of other kinds as their JSON."""
    told = [say(node[key]) for key, say in _RULES.items() if key in node]
    for key, value in node.items():
        if key not in _RULES and key not in _STRUCTURE:
            text = _json({key: value})
            told.append(text if len(text) <= 200 else text[:197] + "…")
    return [words for words in told if words]


def plain(schema: Mapping[str, Any]) -> str:
    """The schema as text for a prompt: one line a field, in order.

    Small models repeat a JSON Schema instead of filling it in; they follow a list of keys.

    Args:
        schema: A canonical schema.

    Returns:
        Instructions that end the prompt.

    Examples:
        >>> from typing import Literal
        >>> from llmframe.schemas.forms import form
        >>> print(plain(form({"topic": Literal["bug", "praise"], "tags": list[str]}).schema))
        Answer with one JSON object and nothing else: no code fence, no other text.
        Its keys, in this order:
        - "topic": "bug" or "praise"
        - "tags": array of string
    """
    defs = schema.get("$defs", {})
    words = _Words(defs)
    lines = ["Answer with one JSON object and nothing else: no code fence, no other text."]
    if schema.get("description"):
        lines.append(f"It stands for: {schema['description']}")
    lines.append("Its keys, in this order:")
    lines += words.fields(schema, "")
    while words.waiting:
        name = words.waiting.pop(0)
        lines.append(f"A {name} is an {words.phrase(defs[name])}:")
        lines += words.inner(defs[name], "")
    return "\n".join(lines)


class _Words:
    """The fields, in words; definitions that repeat are told by name, after them.

    Those that contain themselves, and the branches of a union, are named; all others are written
    out where they stand.
    """

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self.defs = defs
        self.waiting: list[str] = []
        self._named: set[str] = set()
        self._recursive = recursive_names(defs)

    def fields(self, node: Mapping[str, Any], indent: str) -> list[str]:
        lines = []
        for name, raw in node["properties"].items():
            child = self._written_out(raw)
            words = ", ".join([self.phrase(child), *self._rules(child)])
            note = child.get("description") or child.get("title")
            lines.append(f"{indent}- {_json(name)}: {words}" + (f" ({note})" if note else ""))
            lines += self.inner(child, indent)
        return lines

    def _written_out(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = node.get("$ref")
        if reference is not None and reference.rpartition("/")[2] not in self._recursive:
            return self._written_out(deref(node, self.defs))
        branches = node.get("anyOf", ())
        if len(branches) == 2 and NULL in branches:
            return {**node, "anyOf": [self._written_out(branch) for branch in branches]}
        made = dict(node)
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), Mapping):
                made[key] = self._written_out(node[key])
        return made

    def inner(self, node: Mapping[str, Any], indent: str) -> list[str]:
        """The keys of objects written out inside the node."""
        if "properties" in node:
            return self.fields(node, indent + "  ")
        lines = []
        branches = [*node.get("anyOf", ()), *node.get("oneOf", ())]
        for child in [*branches, node.get("items"), node.get("additionalProperties")]:
            if isinstance(child, Mapping):
                lines += self.inner(child, indent)
        return lines

    def _rules(self, node: Mapping[str, Any]) -> list[str]:
        inner = node
        if "anyOf" in node:
            inner, _ = without_null({k: v for k, v in node.items() if k != "$ref"}, self.defs)
        return rules_in_words(inner)

    def phrase(self, node: Mapping[str, Any]) -> str:
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            target = self.defs[name]
            if "properties" not in target and "enum" in target:
                return self.phrase(target)
            if name not in self._named:
                self._named.add(name)
                self.waiting.append(name)
            return f"a {name} as below"
        if "enum" in node:
            return _either([_json(value) for value in node["enum"]])
        if "anyOf" in node or "oneOf" in node:
            return _either([self.phrase(one) for one in node.get("anyOf") or node["oneOf"]])
        kind = node.get("type")
        if kind == "array":
            items = node.get("items")
            return f"array of {self.phrase(items)}" if items else "array"
        if kind == "object":
            if is_free(node):
                _, values = entry(node) or ({}, {})
                return f"object with any keys, each value {self.phrase(values)}"
            return "object with these keys, in this order"
        return str(kind) if kind else "any JSON value"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

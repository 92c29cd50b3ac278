"""The schema as a compact grammar for llama.cpp (GBNF).

Left free, small models spend their tokens on code fences and white space, and never close a
string. This grammar has the keys in one order, no white space between tokens, and an end to every
string, number and list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from llmframe.schemas.nodes import deref, entry, is_free, merged, needs_null
from llmframe.schemas.patterns import rule_of

__all__ = ["llama_grammar"]

# llama.cpp writes a repeat out, rule by rule, and refuses those over about 2,000.
_MAX_CHARACTERS: Final = 1000
_MAX_REPEAT: Final = 2000
_MAX_ITEMS: Final = 64
_MOST_ITEMS: Final = 1000

_SHARED: Final = {
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "string": rf'"\"" char{{0,{_MAX_CHARACTERS}}} "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,17})',
    "natural": '"0" | [1-9] [0-9]{0,17}',
    "number": 'integer ("." [0-9]{1,15})? ([eE] [+-]? [0-9]{1,2})?',
    "positive": 'natural ("." [0-9]{1,15})? ([eE] [+-]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" (string ":" value ("," string ":" value){0,31})? "}"',
    "array": '"[" (value ("," value){0,31})? "]"',
    "day": '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])',
    "clock": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})?',
    "offset": '"Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]',
    "date": r'"\"" day "\""',
    "time": r'"\"" clock "\""',
    "naive-time": r'"\"" day "T" clock "\""',
    "any-time": r'"\"" day "T" clock (offset)? "\""',
    "aware-time": r'"\"" day "T" clock (offset) "\""',
    "decimal": r'"\"" "-"? ("0" | [1-9] [0-9]{0,27}) ("." [0-9]{1,12})? "\""',
    "hex": "[0-9a-f]",
    "uuid": r'"\"" hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12} "\""',
    "duration": r'"\"" "P" ([0-9]{1,6} "D" | "T" ([0-9]{1,6} [HMS]){1,3}) "\""',
}
_FORMATS: Final = {"date": "date", "time": "time", "decimal": "decimal", "uuid": "uuid"} | {
    "duration": "duration"
}
_TIMES: Final = {"aware": "aware-time", "naive": "naive-time", None: "any-time"}


def llama_grammar(schema: Mapping[str, Any]) -> str:
    r"""The grammar of a schema's answers, compact JSON with the keys in declared order.

    A range of at most 100 integers, an enum, formats and anchored patterns without look-around are
    part of the grammar; other rules are left to the local check.

    Args:
        schema: A canonical schema.

    Returns:
        GBNF text whose start is ``root``; the same for equal schemas.

    Raises:
        SchemaError: An ``allOf`` that no value can meet.

    Examples:
        >>> from llmframe.schemas.forms import form
        >>> print(llama_grammar(form({"ok": bool}).schema))
        root ::= "{\"ok\":" boolean "}"
        boolean ::= "true" | "false"
    """
    return _Grammar(schema.get("$defs", {})).text(schema)


class _Grammar:
    def __init__(self, defs: Mapping[str, Any]) -> None:
        self.defs = defs
        self.rules: dict[str, str] = {}
        self.shared: dict[str, str] = {}

    def text(self, schema: Mapping[str, Any]) -> str:
        root = self.expression(schema)
        rules = {"root": root, **self.rules, **self.shared}
        return "\n".join(f"{name} ::= {rule}" for name, rule in rules.items())

    def expression(self, node: Mapping[str, Any]) -> str:
        if "$ref" in node:
            return self._reference(node["$ref"].rpartition("/")[2])
        if "enum" in node:
            return _any_of([_literal(_compact(value)) for value in node["enum"]])
        if "anyOf" in node or "oneOf" in node:
            branches = node.get("anyOf") or node["oneOf"]
            return _any_of(list(dict.fromkeys(self.expression(branch) for branch in branches)))
        if "allOf" in node:
            return self.expression(merged(node, self.defs))
        kind = node.get("type")
        if kind == "object":
            return self._map(node) if is_free(node) else self._object(node)
        if kind == "array":
            return self._array(node)
        if kind == "string":
            return self._string(node)
        if kind == "integer":
            return self._integer(node)
        if kind == "number":
            return self._use("positive" if _low(node) >= 0 else "number")
        return self._use({"boolean": "boolean", "null": "null"}.get(str(kind), "value"))

    def _use(self, name: str) -> str:
        if name not in self.shared:
            self.shared[name] = _SHARED[name]
            for word in _SHARED:
                if word != name and _mentions(_SHARED[name], word):
                    self._use(word)
        return name

    def _reference(self, name: str) -> str:
        rule = f"def-{name}"
        if rule not in self.rules:
            self.rules[rule] = ""  # holds the place: definitions may contain themselves
            self.rules[rule] = self.expression(self.defs[name])
        return rule

    def _object(self, node: Mapping[str, Any]) -> str:
        parts: list[str] = []
        text = "{"
        for name, child in node["properties"].items():
            text += f"{_compact(name)}:"
            value = self.expression(child)
            if needs_null(node, name, self.defs):
                value = f"{_grouped(value)} | {self._use('null')}"
            parts += [_literal(text), _grouped(value)]
            text = ","
        return " ".join([*parts, '"}"'])

    def _repeatable(self, expression: str) -> str:
        """An expression that can be repeated, under a name where it repeats by itself.

        llama.cpp multiplies the repeats that stand inside one another, and refuses the product.
        """
        if not set(expression) & set("{(|"):
            return _grouped(expression)
        known = {rule: name for name, rule in self.rules.items()}
        name = known.get(expression, f"item-{len(self.rules) + 1}")
        self.rules[name] = expression
        return name

    def _map(self, node: Mapping[str, Any]) -> str:
        key, values = entry(node) or ({}, {})
        value = self._repeatable(self.expression(values))
        name = self._repeatable(self.expression({"type": "string", **deref(key, self.defs)}))
        pair = f'{name} ":" {value}'
        return f'"{{" ({pair} ("," {pair}){{0,{_MAX_ITEMS - 1}}})? "}}"'

    def _array(self, node: Mapping[str, Any]) -> str:
        first = [_grouped(self.expression(item)) for item in node.get("prefixItems", ())]
        if first:
            return " ".join(['"["', ' "," '.join(first), '"]"'])
        item = self._repeatable(self.expression(node.get("items", {})))
        low = min(int(node.get("minItems", 0)), _MOST_ITEMS)
        high = min(int(node.get("maxItems", max(_MAX_ITEMS, low))), _MOST_ITEMS)
        if high == 0:
            return '"[]"'
        rest = f'("," {item}){{{max(low - 1, 0)},{high - 1}}}' if high > 1 else ""
        inner = f"{item} {rest}".strip()
        return f'"[" {inner} "]"' if low else f'"[" ({inner})? "]"'

    def _string(self, node: Mapping[str, Any]) -> str:
        pattern = node.get("pattern")
        limit = int(node.get("maxLength", _MAX_CHARACTERS))
        rule = rule_of(pattern, limit) if isinstance(pattern, str) else None
        if rule is not None:
            return rf'"\"" {rule} "\""'
        form = node.get("format")
        if form == "date-time":
            return self._use(_TIMES[node.get("tz")])
        if form in _FORMATS:
            return self._use(_FORMATS[form])
        low, high = int(node.get("minLength", 0)), node.get("maxLength")
        if not low and high is None:
            return self._use("string")
        low = min(low, _MAX_REPEAT)
        high = min(_MAX_CHARACTERS if high is None else int(high), _MAX_REPEAT)
        return rf'"\"" {self._use("char")}{{{low},{max(low, high)}}} "\""'

    def _integer(self, node: Mapping[str, Any]) -> str:
        low, high = _low(node), _high(node)
        if high - low <= 100:
            step = node.get("multipleOf", 1)
            values = [n for n in range(int(low), int(high) + 1) if n % step == 0]
            if values:
                return _any_of([f'"{value}"' for value in values])
        return self._use("natural" if low >= 0 else "integer")


def _low(node: Mapping[str, Any]) -> float:
    closed, exclusive = node.get("minimum"), node.get("exclusiveMinimum")
    if exclusive is not None and (closed is None or exclusive >= closed):
        return float(int(exclusive // 1) + 1) if node.get("type") == "integer" else float(exclusive)
    return -float("inf") if closed is None else float(-(-closed // 1))


def _high(node: Mapping[str, Any]) -> float:
    closed, exclusive = node.get("maximum"), node.get("exclusiveMaximum")
    if exclusive is not None and (closed is None or exclusive <= closed):
        return float(-(-exclusive // 1) - 1)
    return float("inf") if closed is None else float(closed // 1)


def _mentions(rule: str, word: str) -> bool:
    tokens = rule.replace("(", " ").replace(")", " ").replace("{", " ").split()
    return word in tokens


def _any_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else "(" + " | ".join(choices) + ")"


def _grouped(expression: str) -> str:
    return f"({expression})" if " " in expression and not expression.startswith("(") else expression


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'

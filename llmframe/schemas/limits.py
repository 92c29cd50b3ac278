"""The providers' limits on a wire schema, checked before anything is sent."""

from __future__ import annotations

from typing import Any

from llmframe.errors import SchemaError
from llmframe.schemas.nodes import NULL, Node, without

__all__ = ["anthropic_limits", "field_name", "openai_limits"]


def field_name(path: str) -> str:
    """How a message names a place in the schema."""
    return f"field {path!r}" if path else "the schema"


def openai_limits(wire: Node) -> None:
    """Hold a wire schema to what OpenAI's strict mode takes.

    Raises:
        SchemaError: Names the limit that is passed.
    """
    counts = _Counts()
    counts.walk(wire)
    limits = (
        (counts.properties, 5000, "properties"),
        (_depth(wire, wire.get("$defs", {}), frozenset()), 10, "levels of nesting"),
        (counts.enums, 1000, "allowed values in all its enums"),
        (counts.characters, 120_000, "characters of names and allowed values"),
    )
    for count, limit, what in limits:
        if count > limit:
            raise SchemaError(
                f"the schema has {count:,} {what}; OpenAI's strict mode takes {limit:,}. Ask for "
                f"less, or split it over two calls."
            )
    for path, size in counts.long_enums:
        raise SchemaError(
            f"{field_name(path)} has more than 250 allowed values of {size:,} characters together; "
            f"OpenAI's strict mode takes 15,000 then. Shorten the values, or ask for str."
        )


def _depth(node: Any, defs: Node, inside: frozenset[str]) -> int:
    """Objects inside objects; a definition that contains itself counts once."""
    if not isinstance(node, dict):
        return 0
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return 0 if name in inside else _depth(defs[name], defs, inside | {name})
    children = [*node.get("properties", {}).values(), *node.get("anyOf", []), node.get("items")]
    below = max(_depth(child, defs, inside) for child in children)
    return below + (node.get("type") == "object")


class _Counts:
    def __init__(self) -> None:
        self.properties = self.enums = self.characters = 0
        self.long_enums: list[tuple[str, int]] = []

    def walk(self, node: Any, path: str = "") -> None:
        if isinstance(node, list):
            for item in node:
                self.walk(item, path)
            return
        if not isinstance(node, dict):
            return
        texts = [value for value in node.get("enum", ()) if isinstance(value, str)]
        self.enums += len(node.get("enum", ()))
        size = sum(map(len, texts))
        self.characters += size
        if len(texts) > 250 and size > 15_000:
            self.long_enums.append((path, size))
        for group in ("properties", "$defs"):
            for name, child in node.get(group, {}).items():
                self.properties += group == "properties"
                self.characters += len(name)
                self.walk(child, f"{path}.{name}".strip("."))
        for key in ("items", "anyOf"):
            self.walk(node.get(key), path)


def anthropic_limits(wire: Node) -> None:
    """Hold a wire schema to what Anthropic's grammars take.

    Nullables beyond the unions it may have become keys that may be left out, in place.

    Raises:
        SchemaError: There are more than both together.
    """
    unions, optional = 0, 0

    def walk(node: Any) -> None:
        nonlocal unions, optional
        if isinstance(node, list):
            for item in node:
                walk(item)
            return
        if not isinstance(node, dict):
            return
        for name, child in node.get("properties", {}).items():
            branches = child.get("anyOf", [])
            if unions >= 16 and NULL in branches and len(branches) == 2:
                inner = next(branch for branch in branches if branch != NULL)
                beside = without(child, "anyOf")
                node["properties"][name] = inner if "$ref" in inner else {**inner, **beside}
                node["required"].remove(name)
                optional += 1
            elif branches:
                unions += 1
            walk(node["properties"][name].get("anyOf"))
            walk(without(node["properties"][name], "anyOf"))
        for child in node.get("$defs", {}).values():
            walk(child)
        walk(node.get("items"))
        walk(node.get("anyOf"))

    walk(wire)
    if unions > 16 or optional > 24:
        raise SchemaError(
            f"the schema has {unions + optional} fields that may be null or of several types; "
            f"Anthropic's structured output takes 16, and 24 that may be left out. Make some "
            f"fields plain, with a word such as 'none' for nothing."
        )

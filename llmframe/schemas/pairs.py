"""Free-form maps as lists of pairs, for engines that can only ask for objects with named keys.

``{"apple": 3}`` is asked for, and answered, as ``[{"key": "apple", "value": 3}]``. Both ways follow
from the canonical schema alone, so a stored reply is read without knowing which engine wrote it,
and a reply that holds the map itself is one too.

Examples:
    >>> from llmframe.schemas.forms import form
    >>> asked = form({"counts": dict[str, int]})
    >>> asked.check({"counts": [{"key": "apple", "value": 3}]}).values
    ({'apple': 3},)
    >>> twice = [{"key": "a", "value": 3}, {"key": "a", "value": 4}]
    >>> asked.check({"counts": twice}).failure.message
    "counts: the key 'a' stands twice"
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.schemas.coercion import Invalid
from llmframe.schemas.nodes import Node, deref, entry

__all__ = ["KEY", "VALUE", "Pairs", "holds_map", "refuse_unclear"]

KEY: Final = "key"
VALUE: Final = "value"
_PAIR: Final = {KEY, VALUE}


def holds_map(schema: Any) -> bool:
    """Whether a canonical schema has a free-form map anywhere."""
    if isinstance(schema, Mapping):
        return entry(schema) is not None or any(map(holds_map, schema.values()))
    return isinstance(schema, list) and any(map(holds_map, schema))


class Pairs:
    """Lists of pairs in an answer become the maps they stand for.

    Args:
        schema: A canonical schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._defs: Mapping[str, Any] = schema.get("$defs", {})

    def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        """The answer with its maps as maps.

        Raises:
            Invalid: A key stands twice: which of the two values counts is a guess.
        """
        made: dict[str, Any] = self._read(value, [self._schema], "")
        return made

    def _read(self, value: Any, nodes: Iterable[Mapping[str, Any]], path: str) -> Any:
        if type(value) is list:
            kinds = _alternatives(nodes, self._defs)
            if not any(map(_takes_list, kinds)):
                return self._map(value, _values(kinds), path)
            return [
                self._read(item, _items(kinds, place), f"{path}[{place}]")
                for place, item in enumerate(value)
            ]
        if type(value) is dict:
            kinds = _alternatives(nodes, self._defs)
            values = _values(kinds)
            return {
                key: self._read(
                    item, [*_properties(kinds, key), *values], f"{path}.{key}".strip(".")
                )
                for key, item in value.items()
            }
        return value

    def _map(self, pairs: list[Any], values: list[Node], path: str) -> Any:
        if not values or not all(type(one) is dict and one.keys() == _PAIR for one in pairs):
            return pairs  # no list of pairs: the check that follows says what was expected
        made: dict[str, Any] = {}
        for one in pairs:
            key = one[KEY]
            if type(key) is not str:
                return pairs
            if key in made:
                raise Invalid(path, f"the key {key!r} stands twice")
            made[key] = self._read(one[VALUE], values, f"{path}.{key}")
        return made


def refuse_unclear(schema: Mapping[str, Any], dialect: str) -> None:
    """Refuse places where a list of pairs could be a map as well as a list.

    Args:
        schema: A canonical schema.
        dialect: Who can only ask for pairs; for the message.

    Raises:
        SchemaError: Names the place.
    """
    defs = schema.get("$defs", {})
    seen: set[str] = set()

    def walk(nodes: list[Node], path: str) -> None:
        kinds = _alternatives(nodes, defs)
        known = json.dumps(kinds)
        if not kinds or known in seen:
            return
        seen.add(known)
        values = _values(kinds)
        if values and any(map(_takes_list, kinds)):
            raise SchemaError(
                f"field {path!r} may be a map with free keys or a list, which {dialect} could only "
                f"answer alike. Ask for one of the two."
            )
        longest = max(len(kind.get("prefixItems", ())) for kind in kinds)
        for place in range(longest + 1):
            walk(_items(kinds, place), f"{path}[]")
        walk(values, f"{path}.*")
        for key in dict.fromkeys(key for kind in kinds for key in kind.get("properties", ())):
            walk(_properties(kinds, key), f"{path}.{key}".strip("."))

    walk([dict(schema)], "")


def _alternatives(nodes: Iterable[Mapping[str, Any]], defs: Mapping[str, Any]) -> list[Node]:
    """The nodes without references and unions around them."""
    found: list[Node] = []
    waiting = list(nodes)
    for node in waiting:  # grows as unions open
        made = deref(node, defs)
        branches = [branch for word in ("anyOf", "oneOf", "allOf") for branch in made.get(word, ())]
        waiting += [branch for branch in branches if branch not in waiting]
        if not branches or "type" in made:
            found.append(made)
    return found


def _takes_list(node: Node) -> bool:
    return node.get("type", "array") == "array" and "enum" not in node


def _values(kinds: list[Node]) -> list[Node]:
    return [parts[1] for kind in kinds if (parts := entry(kind)) is not None]


def _properties(kinds: list[Node], key: str) -> list[Node]:
    return [kind["properties"][key] for kind in kinds if key in kind.get("properties", ())]


def _items(kinds: list[Node], place: int) -> list[Node]:
    found = []
    for kind in kinds:
        first = kind.get("prefixItems", ())
        if place < len(first):
            found.append(first[place])
        elif "items" in kind:
            found.append(kind["items"])
    return found

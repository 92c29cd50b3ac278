"""Nested models as dotted columns: ``addr.city`` in place of a dict in ``addr``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmframe.results import Failure
from llmframe.schemas.converting import column_values
from llmframe.schemas.nodes import references, without_null
from llmframe.schemas.values import Checked, Field, Misfit, fields_of

__all__ = ["Flat"]

_Path = tuple[tuple[int, str, int], ...]
"""For each level: place of the property, its name, number of properties beside it."""


class Flat:
    """The leaves of a form's fields, and how an answer's values reach them.

    Lists and free-form maps stay one cell, and so does a model inside itself.

    Args:
        fields: The columns as they are nested.
        defs: ``$defs`` of the canonical schema.

    Attributes:
        fields: The leaves in declared order, with dotted names.
    """

    def __init__(self, fields: Sequence[Field], defs: Mapping[str, Any]) -> None:
        self._paths: list[tuple[int, _Path]] = []
        leaves: list[Field] = []
        for place, field in enumerate(fields):
            for leaf, path in _leaves(field, defs, frozenset()):
                leaves.append(leaf)
                self._paths.append((place, path))
        self.fields = tuple(leaves)
        self._cells = column_values(leaves)

    def __call__(self, checked: Checked) -> Checked:
        """The same outcome, one value a leaf."""
        if checked.values is None:
            return checked
        values = [_reach(checked.values[place], path) for place, path in self._paths]
        try:
            return Checked(self._cells(values), None, checked.coerced)
        except Misfit as misfit:
            return Checked(None, Failure(misfit.kind, str(misfit)))


def _leaves(
    field: Field, defs: Mapping[str, Any], inside: frozenset[str]
) -> list[tuple[Field, _Path]]:
    names = references(field.schema, defs)
    inner, _ = without_null(field.schema, defs)
    properties = inner.get("properties")
    if field.kind != "object" or not properties or names & inside:
        return [(field, ())]
    below = {"properties": properties, "required": inner.get("required", ()), "$defs": defs}
    found = []
    for place, child in enumerate(fields_of(below, tuple(properties))):
        dotted = replace(
            child, name=f"{field.name}.{child.name}", nullable=child.nullable or field.nullable
        )
        step = (place, child.name, len(properties))
        found += [(leaf, (step, *path)) for leaf, path in _leaves(dotted, defs, inside | names)]
    return found


def _reach(value: Any, path: _Path) -> Any:
    for place, name, count in path:
        if not isinstance(value, dict):
            return None
        if name in value:
            value = value[name]
        elif len(value) == count:
            # A model's own names differ from the wire's where it has aliases; the order does not.
            value = list(value.values())[place]
        else:
            return None
    return value

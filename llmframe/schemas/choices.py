"""Closed choices that no answer in JSON can meet: refused before anything is sent."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from llmframe.errors import SchemaError

__all__ = ["check_choices"]

_LITERAL: Final = (str, int, type(None))
_VALUE: Final = (*_LITERAL, float)
# What stands behind a function of the user's gets whatever that function makes of the answer; the
# rest says nothing about answers in JSON.
_UNSEEN: Final = frozenset({"function-before", "function-wrap", "function-plain"})
_ASIDE: Final = frozenset(
    {"serialization", "metadata", "python_schema", "lax_schema", "config", "default"}
)
# Their keys are the user's words, "type" among them: names of fields, values of a discriminator.
_NAMED: Final = frozenset({"fields", "choices"})


def check_choices(core: Any) -> None:
    """Refuse a Literal or an Enum whose values JSON cannot say.

    pydantic's JSON Schema writes a date or bytes as text and a plain Enum's member as its value;
    its strict check of JSON then takes none of them (seen with 2.14.4).

    Args:
        core: A pydantic core schema.

    Raises:
        SchemaError: There is one; says which and what to write.

    Examples:
        >>> from typing import Literal
        >>> from pydantic import TypeAdapter
        >>> check_choices(TypeAdapter(Literal["a", 1, None]).core_schema)
    """
    if isinstance(core, list | tuple):
        for item in core:
            check_choices(item)
    elif isinstance(core, Mapping):
        kind = core.get("type")
        if kind in _UNSEEN:
            return
        if kind == "literal" and isinstance(core.get("expected"), list):
            _check_literal(core["expected"])
        elif kind == "enum" and isinstance(core.get("members"), list):
            _check_enum(core["cls"], core["members"])
        for key, child in core.items():
            if key in _NAMED and isinstance(child, Mapping):
                check_choices(list(child.values()))
            elif key not in _ASIDE:
                check_choices(child)


def _check_literal(expected: list[Any]) -> None:
    for value in expected:
        if isinstance(value, _LITERAL):
            continue
        if isinstance(value, enum.Enum):
            raise SchemaError(
                f"Literal[{value}] is a member of an Enum that is no text or number itself, which "
                f"no answer in JSON can be. Write Literal[{value.value!r}], or let "
                f"{type(value).__name__} be an enum.StrEnum. Nothing was sent."
            )
        raise SchemaError(
            f"Literal[{value!r}] holds {type(value).__name__}, which no answer in JSON can be. "
            f"Write text or numbers. Nothing was sent."
        )


def _check_enum(cls: type[enum.Enum], members: list[Any]) -> None:
    if cls._missing_.__func__ is not enum.Enum._missing_.__func__:  # type: ignore[attr-defined]
        return  # the class itself finds the member that an answer means
    for member in members:
        if not isinstance(member.value, _VALUE):
            raise SchemaError(
                f"{member} of the Enum {cls.__name__} is {type(member.value).__name__}: "
                f"{member.value!r}, which no answer in JSON can be. Give its members text or "
                f"numbers as values, or ask for the type itself. Nothing was sent."
            )

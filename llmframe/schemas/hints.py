"""What somebody probably meant who passed something that is no schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmframe.schemas.python_types import is_type
from llmframe.schemas.wording import shown

__all__ = ["no_schema", "no_types"]


def no_schema(schema: Any) -> str:
    """Of an object that is no schema at all."""
    if hasattr(type(schema), "model_fields"):
        return (
            f"the schema is an instance of {type(schema).__name__}. Pass the class itself: "
            f"schema={type(schema).__name__}."
        )
    if isinstance(schema, list | tuple | set):
        return (
            f"{shown(list(schema))} is a list, not a schema. For one of several labels write "
            f"Literal[…] or use classify; for fields write {{'name': type, …}}."
        )
    return (
        f"{shown(schema)} ({type(schema).__name__}) is no schema. Expected a pydantic model, a "
        f"dataclass, a TypedDict, {{'name': type, …}}, a JSON Schema or a type such as int."
    )


_WORDS: Final = {
    "string": "str",
    "text": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "datetime": "datetime",
}


def no_types(schema: Mapping[Any, Any]) -> str:
    """Of a dict whose values are no types."""
    for key, value in schema.items():
        if is_type(value):
            continue
        near = _WORDS.get(value, value) if isinstance(value, str) else None
        known = near in {"str", "int", "float", "bool", "list", "date", "datetime"}
        hint = "Write a type such as str."
        if value is None:
            hint = "Write Optional[…] around another type."
        elif known:
            hint = f"Write {{{key!r}: {near}}} without quotes."
        return f"the schema's field {key!r} is {shown(value)}: expected a type. {hint}"
    return "the schema mixes types and JSON Schema. Write {'name': type, …} or a JSON Schema."

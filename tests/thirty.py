"""Thirty schemas, of every kind that users write, for whoever judges what is made of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, Field
from typing_extensions import TypedDict

__all__ = ["SCHEMAS"]


class Mood(enum.Enum):
    """How it sounds."""

    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(BaseModel):
    """Where it was."""

    city: str = Field(min_length=1, max_length=40)
    zip: str | None = None


@dataclass
class Item:
    name: str
    price: Decimal
    count: int = 1


class Person(TypedDict):
    name: str
    born: date | None


class Tree(BaseModel):
    name: str
    children: list[Tree]


class Card(BaseModel):
    kind: Literal["card"]
    digits: str = Field(pattern=r"^\d{4}$")


class Cash(BaseModel):
    kind: Literal["cash"]
    coins: list[int]


class Start(BaseModel):
    at: datetime
    who: str


class End(BaseModel):
    at: datetime
    why: str


RAW: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "An order of a customer",
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid", "default": "none"},
        "state": {"const": "open"},
        "amount": {"type": ["number", "null"], "exclusiveMinimum": 0, "multipleOf": 0.01},
        "lines": {
            "type": "array",
            "minItems": 2,
            "uniqueItems": True,
            "items": {"$ref": "#/definitions/line", "description": "one line"},
        },
    },
    "required": ["id"],
    "definitions": {
        "line": {
            "type": "object",
            "properties": {"sku": {"type": "string", "minLength": 3}, "n": {"type": "integer"}},
            "if": {"properties": {"n": {"minimum": 10}}},
            "then": {"required": ["sku"]},
        }
    },
}
ALL_OF: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}},
    "$defs": {
        "a": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "b": {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
    },
}
ONE_OF: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"oneOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}]}},
    "required": ["x"],
}

SCHEMAS: dict[str, Any] = {
    "int": int,
    "bool": bool,
    "labels": Literal["a", "b c", 'd"'],
    "numbers": Literal[1, 2, 30],
    "mixed labels": Literal["a", 1, True, None],
    "enum": Mood,
    "int enum": {"level": Level, "mood": Mood | None},
    "range": {"n": Annotated[int, Field(ge=1, le=5)], "x": Annotated[float, Field(gt=0, lt=1)]},
    "long range": Annotated[int, Field(ge=0, le=10_000, multiple_of=5)],
    "nullable": {"a": int | None, "b": str | None, "c": list[int] | None},
    "dates": {"d": date, "t": datetime, "z": AwareDatetime, "s": timedelta},
    "decimal": {"price": Decimal, "id": UUID},
    "lists": {
        "tags": Annotated[list[str], Field(min_length=1, max_length=3)],
        "m": list[list[int]],
    },
    "set": {"tags": set[str]},
    "tuple": {"pair": tuple[int, str], "same": tuple[float, float], "any": tuple[int, ...]},
    "map": {"counts": dict[str, int]},
    "map of models": dict[str, Place],
    "map of maps": {"m": dict[Literal["a", "b"], dict[int, list[Item]]]},
    "model": Place,
    "nested": {"at": Place, "to": Place | None, "all": list[Place]},
    "dataclass": Item,
    "typed dict": Person,
    "tagged union": {"paid": Annotated[Card | Cash, Field(discriminator="kind")]},
    "plain union": {"event": Start | End, "id": int | str},
    "pattern": {"code": Annotated[str, Field(pattern="^[A-Z]{2}-[0-9]+$", max_length=8)]},
    "thirty nullables": {f"f{n}": int | None for n in range(30)},
    "raw": RAW,
    "all of": ALL_OF,
    "one of": ONE_OF,
    "recursive": Tree,
}

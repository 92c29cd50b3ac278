"""The normal form of a schema is part of every key: it must not move with a library's version.

After a deliberate change of the form (then also a new KEY_VERSION): `python
tests/test_schemas_normal.py` writes the golden file anew.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NotRequired, Optional, TypeVar, Union
from uuid import UUID

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, HttpUrl, RootModel
from typing_extensions import TypedDict

from llmframe.schemas.canonical import canonical, normal
from llmframe.schemas.forms import form, form_from

GOLDEN = Path(__file__).parent / "golden" / "schema_normal.json"
T = TypeVar("T")


class Colour(enum.Enum):
    """Names of colours."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Only(enum.Enum):
    ONE = "one"


class Sub(BaseModel):
    """A part."""

    city: str
    zip_code: str = Field(description="as written", max_length=10)


class Ticket(BaseModel):
    """One support ticket."""

    topic: Literal["billing", "bug"]
    stars: int = Field(ge=1, le=5)
    share: float = Field(ge=0, le=1)
    note: str | None = None
    address: Sub = Field(description="where")
    other: Sub | None = None
    colour: Colour = Colour.RED
    level: Level
    only: Only


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Left(BaseModel):
    right: Right | None = None


class Right(BaseModel):
    left: Left | None = None


class Box(BaseModel, Generic[T]):
    content: T


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", title="A closed thing")

    a: Annotated[int, Field(gt=0, multiple_of=5, title="An A", examples=[5, 10])]
    b: Annotated[str, Field(pattern="^x+$", min_length=1, max_length=3)] = "x"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Aliased(BaseModel):
    kind_of: str = Field(alias="kind of")


class Free(BaseModel):
    a: dict
    b: dict[str, Any]
    c: dict[str, int]
    d: list
    e: Any


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5
    tags: list[str] = dataclasses.field(default_factory=list)


class Loose(TypedDict):
    name: str
    age: NotRequired[int | None]


class Moments(BaseModel):
    d: date
    at: datetime
    aware: AwareDatetime
    clock: time
    span: timedelta
    default: date = date(2024, 1, 1)


class Exact(BaseModel):
    price: Decimal
    share: Decimal = Field(ge=0, le=1, default=Decimal("0.5"))
    maybe: Decimal | None = None
    u: UUID
    url: HttpUrl


SCHEMAS: dict[str, Any] = {
    "model": Ticket,
    "recursive": Node,
    "mutually recursive": Left,
    "generic": Box[int],
    "generic of model": Box[Sub],
    "constraints and config": Closed,
    "tagged union": {"pet": Annotated[Cat | Dog, Field(discriminator="kind")]},
    "plain union": {"x": int | Literal["na"] | Sub},
    "optional union": {"x": Optional[Union[int, str]]},  # noqa: UP007, UP045 - the old spelling
    "alias": Aliased,
    "free maps": Free,
    "dataclass": Point,
    "typed dict": Loose,
    "moments": Moments,
    "decimals": Exact,
    "dict of types": {"name": str, "stars": int, "inner": {"a": bool, "b": list[int]}},
    "names of methods": {"copy": str, "json": int, "model_x": float, "a b": bool},
    "bare int": int,
    "bare optional": int | None,
    "labels": Literal["spam", "ham"],
    "labels with null": Literal["spam", None],
    "numbers": Literal[1, 2, 3],
    "mixed literal": {"x": Literal[1, "a", True]},
    "enum": Colour,
    "int enum": Level,
    "list of models": list[Sub],
    "tuples and sets": {"t": tuple[int, str], "many": tuple[int, ...], "s": set[str]},
    "root model": RootModel[list[int]],
    "regex": re.compile("[A-Z]{2}[0-9]+", re.IGNORECASE),
    "json schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Thing",
        "type": "object",
        "properties": {
            "a": {"type": ["integer", "null"], "minimum": 1, "description": "an a"},
            "b": {"const": "x"},
            "c": {"type": "string", "nullable": True},
            "d": {"$ref": "#/definitions/Part"},
            "e": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "f": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        },
        "required": ["a", "b"],
        "definitions": {"Part": {"type": "object", "properties": {"p": {"type": "number"}}}},
    },
}


def made() -> dict[str, str]:
    return {name: str(form(schema).normal) for name, schema in SCHEMAS.items()}


def test_the_normal_form_is_the_golden_one() -> None:
    assert made() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_canonical_form_of_a_canonical_schema_is_itself(name: str) -> None:
    schema = form(SCHEMAS[name]).schema
    assert schema is not None
    again, _ = canonical(schema)
    assert normal(again) == normal(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_stored_form_has_the_same_key_and_columns(name: str) -> None:
    asked = form(SCHEMAS[name])
    again = form_from(json.loads(json.dumps(asked.stored())))
    assert again.normal == asked.normal
    assert again.fields == asked.fields
    assert again.bare == asked.bare


def test_a_model_and_its_own_json_schema_are_one_schema() -> None:
    for schema in (Ticket, Closed, Node):
        assert form(schema.model_json_schema()).normal == form(schema).normal


def test_three_ways_to_say_nullable_are_one() -> None:
    ways: list[dict[str, Any]] = [
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"type": "string"}]},
        {"type": "string", "nullable": True},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    ]
    forms = {
        form({"type": "object", "properties": {"a": way}, "required": ["a"]}).normal for way in ways
    }
    assert len(forms) == 1


def test_what_changes_an_answer_changes_the_form_and_names_do_not() -> None:
    base = form({"a": int, "b": str}).normal
    assert form({"b": str, "a": int}).normal != base  # the order of keys changes answers
    assert form({"a": float, "b": str}).normal != base
    assert form({"a": int, "b": str | None}).normal != base

    def model(name: str, doc: str | None) -> Any:
        fields = {"a": int, "b": str}
        return type(name, (BaseModel,), {"__annotations__": fields, "__doc__": doc})

    assert form(model("One", None)).normal == form(model("Two", None)).normal == base
    assert form(model("One", "Read with care.")).normal != base


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(made(), indent=1, ensure_ascii=False) + "\n")

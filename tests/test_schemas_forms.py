"""Every way to write a schema, the columns it makes, and what is refused at once."""

from __future__ import annotations

import dataclasses
import enum
import json
import subprocess
import sys
import typing
import warnings
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    PastDate,
    field_validator,
)
from typing_extensions import TypedDict

from llmframe.errors import SchemaError
from llmframe.schemas.forms import Form, form, form_from


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Mixed(enum.Enum):
    A = 1
    B = "b"


class Address(BaseModel):
    city: str
    zip: str


class Person(BaseModel):
    name: str
    tags: list[str]
    home: Address
    age: int | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


class Loose(TypedDict):
    name: str
    age: NotRequired[int]


class Old(typing.TypedDict):
    inner: list[Inner]
    note: typing.NotRequired[str]


class Inner(typing.TypedDict):
    a: int


@pytest.mark.parametrize(
    ("type_", "kind", "categories", "nullable"),
    [
        (str, "str", None, False),
        (int, "int", None, False),
        (float, "float", None, False),
        (bool, "bool", None, False),
        (int | None, "int", None, True),
        (Literal["b", "a"], "category", ("b", "a"), False),
        (Literal["b", "a", None], "category", ("b", "a"), True),
        (Literal["one"], "category", ("one",), False),
        (Colour, "category", ("red", "blue"), False),
        (Colour | None, "category", ("red", "blue"), True),
        (Literal[2, 1], "int", None, False),
        (Number, "int", None, False),
        (Literal[True], "bool", None, False),
        (Mixed, "object", None, False),
        (Literal[1, "a"], "object", None, False),
        (date, "datetime", None, False),
        (datetime, "datetime", None, False),
        (AwareDatetime, "datetime_utc", None, False),
        (AwareDatetime | None, "datetime_utc", None, True),
        (Decimal, "object", None, False),
        (time, "object", None, False),
        (timedelta, "object", None, False),
        (UUID, "str", None, False),
        (list[str], "object", None, False),
        (dict[str, int], "object", None, False),
        (tuple[int, str], "object", None, False),
        (set[int], "object", None, False),
        (int | str, "object", None, False),
        (Address, "object", None, False),
        (Any, "object", None, False),
        (Annotated[int, Field(ge=1)], "int", None, False),
    ],
)
def test_the_kind_of_column_follows_from_the_type(
    type_: Any, kind: str, categories: Any, nullable: bool
) -> None:
    (field,) = form({"x": type_}).fields
    assert (field.name, field.kind, field.categories, field.nullable) == (
        "x",
        kind,
        categories,
        nullable,
    )
    if type_ is not Address:
        bare = form(type_, name="label")
        assert bare.bare
        assert bare.schema is not None
        assert bare.schema["type"] == "object"  # the root is an object, whatever is asked for
        assert [(f.name, f.kind) for f in bare.fields] == [("label", kind)]


def test_classes_dicts_and_json_schemas_have_one_column_a_field_in_order() -> None:
    def columns(asked: Form) -> list[tuple[str, str, bool]]:
        return [(field.name, field.kind, field.nullable) for field in asked.fields]

    assert columns(form(Person)) == [
        ("name", "str", False),
        ("tags", "object", False),
        ("home", "object", False),
        ("age", "int", True),
    ]
    assert columns(form(Person.model_json_schema())) == columns(form(Person))
    assert columns(form(Point)) == [("x", "int", False), ("y", "float", False)]
    assert columns(form(Loose)) == [("name", "str", False), ("age", "int", True)]
    assert columns(form({"b": int, "a": str})) == [("b", "int", False), ("a", "str", False)]
    assert columns(form(None)) == [("response", "str", False)]
    assert not form(Person).bare
    assert form(None).bare
    assert form(form(Person)).fields == form(Person).fields


def test_an_old_typed_dict_works_on_every_python() -> None:
    asked = form(Old)
    assert [field.name for field in asked.fields] == ["inner", "note"]
    assert asked.check({"inner": [{"a": 1}], "note": "x"}).values == ([{"a": 1}], "x")
    assert asked.check({"inner": [{"a": 1}]}).values == ([{"a": 1}], None)
    assert asked.check({"inner": [{"a": "b"}]}).failure is not None


def test_values_are_plain() -> None:
    class Everything(BaseModel):
        colour: Colour
        number: Number
        home: Address | None
        homes: list[Address]
        points: tuple[Point, ...]
        chosen: set[Colour]
        by: dict[str, Number]
        id: UUID
        price: Decimal

    answer = {
        "colour": "red",
        "number": 2,
        "home": {"city": "Oslo", "zip": "00501"},
        "homes": [{"city": "Rome", "zip": "1"}],
        "points": [{"x": 1}],
        "chosen": ["blue"],
        "by": {"a": 1},
        "id": "F47AC10B-58CC-4372-A567-0E02B2C3D479",
        "price": "1.10",
    }
    expected = (
        "red",
        2,
        {"city": "Oslo", "zip": "00501"},
        [{"city": "Rome", "zip": "1"}],
        [{"x": 1, "y": 0.5}],
        ["blue"],
        {"a": 1},
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        Decimal("1.10"),
    )
    asked = form(Everything)
    for each in (asked, form_from(asked.stored())):
        values = each.check(answer).values
        assert values == expected
        assert [type(value) for value in values or ()] == [type(value) for value in expected]


def test_u160_nested_and_list_fields_are_one_cell_each() -> None:
    asked = form(Person)
    checked = asked.check({"name": "A", "tags": ["x"], "home": {"city": "O", "zip": "00501"}})
    assert checked.values == ("A", ["x"], {"city": "O", "zip": "00501"}, None)
    assert checked.failure is None
    nested = form({"name": str, "home": {"city": str, "zip": str}})
    assert nested.check({"name": "A", "home": {"city": "O", "zip": "1"}}).values == (
        "A",
        {"city": "O", "zip": "1"},
    )


def test_u001_defaults_and_optional_fields_are_read() -> None:
    class Note(BaseModel):
        a: int
        note: str | None = None
        level: int = 3

    asked = form(Note)
    assert asked.check({"a": 1, "note": None, "level": 2}).values == (1, None, 2)
    assert asked.check({"a": 1}).values == (1, None, 3)
    assert form_from(asked.stored()).check({"a": 1}).values == (1, None, 3)


def test_u002_extra_allow_warns_once_and_points_at_the_call() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    with pytest.warns(UserWarning, match="extra keys cannot be asked for") as caught:
        asked = form(Open)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert asked.check({"a": 1, "b": 2}).values == (1,)


def test_aliases_are_asked_for_and_columns_keep_the_fields_name() -> None:
    class Aliased(BaseModel):
        kind_of: str = Field(alias="kind of")
        n: int

    asked = form(Aliased)
    assert [field.name for field in asked.fields] == ["kind_of", "n"]
    assert list((asked.schema or {})["properties"]) == ["kind of", "n"]
    for each in (asked, form_from(asked.stored())):
        assert each.check({"kind of": "x", "n": 1}).values == ("x", 1)


def test_u007_unions_and_recursion_check_alike_before_and_after_a_restart() -> None:
    class Tree(BaseModel):
        x: int | Literal["na"] | Address
        children: list[Tree] = []

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    asked = form(Tree)
    stored = form_from(json.loads(json.dumps(asked.stored())))
    home = {"city": "O", "zip": "1"}
    good = {"x": home, "children": [{"x": "na"}, {"x": 3, "children": []}]}
    for each in (asked, stored):
        assert each.check(good).values == (
            home,
            [{"x": "na", "children": []}, {"x": 3, "children": []}],
        )
        for bad in ("no", True, {"city": 1}, None):
            failure = each.check({"x": 1, "children": [{"x": bad}]}).failure
            assert failure is not None
            assert failure.message.startswith("children[0].x")


def test_defaults_in_a_json_schema_are_filled() -> None:
    asked = form(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "d": {"type": "string", "format": "date", "default": "2024-01-01"},
                "o": {"type": "string"},
            },
            "required": ["a"],
        }
    )
    values = asked.check({"a": 1}).values
    assert values is not None
    assert values[0] == 1
    assert str(values[1]) == "2024-01-01 00:00:00"
    assert values[2] is None
    assert asked.fields[2].nullable


def test_a_json_schema_is_checked_in_full() -> None:
    asked = form(
        {
            "type": "object",
            "properties": {
                "a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
                "b": {"type": "string", "pattern": "^x$"},
                "c": {"not": {"type": "string"}},
                "d": {"type": "integer", "multipleOf": 5},
                "e": {"type": "string", "format": "ipv4"},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
            "dependentRequired": {"c": ["d"]},
        }
    )
    good = {"a": [1, 2], "b": "x", "c": 1, "d": 10, "e": "10.0.0.1"}
    assert asked.check(good).failure is None
    for change in (
        {"a": [1, 1]},
        {"b": "x\n"},
        {"c": "text"},
        {"d": 7},
        {"e": "10.0.0.256"},
        {"f": 1},
    ):
        failure = asked.check({**good, **change}).failure
        assert failure is not None, change
    missing = {key: value for key, value in good.items() if key != "d"}
    assert asked.check(missing).failure is not None


class NoJson:
    pass


class Callback(BaseModel):
    name: str
    then: Callable[[int], int]


class Empty(BaseModel):
    pass


class Parent(BaseModel):
    child: Empty


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (Callback, r"'then' of Callback.*Use a type"),
        ({"name": str, "then": Callable[[int], int]}, "'then'"),
        ({"name": str, "then": Callable[[int], int] | None}, "'then'"),
        ({"x": NoJson}, r"'x'.*NoJson"),
        (NoJson, "NoJson"),
        (Empty, "no fields"),
        (Parent, "'child' has no fields"),
        ({}, "no fields"),
        ({"type": "object"}, "no fields"),
        ({"type": "object", "patternProperties": {"^a": {"type": "string"}}}, "names no field"),
        ({"type": "object", "properties": {}}, "no fields"),
        ({"name": "string", "n": int}, r"'name'.*\{'name': str\} without quotes"),
        ({"name": "text"}, r"\{'name': str\}"),
        ({"name": 5}, "'name'"),
        ({1: int}, "1 is no text"),
        ({"x": None}, "Optional"),
        ({"x": type(None)}, "'x' can only be null"),
        (["a", "b"], r"list.*Literal"),
        ("int", "no schema"),
        (3, "no schema"),
        (Person(name="A", tags=[], home=Address(city="O", zip="1")), "schema=Person"),
        ({"type": "objekt", "properties": {"a": {}}}, "not valid"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}}, r"'a'.*#/\$defs/B"),
        ({"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}, "inside the schema"),
        ({"type": "object", "properties": {"a": {"enum": []}}}, "'a'"),
        ({"type": "object", "properties": {"a": {"type": "integer", "enum": ["x"]}}}, "empty"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, r"'a'"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/L"}}, "$defs": {}}, "'a'"),
    ],
)
def test_what_no_model_can_be_asked_for_is_refused_with_its_field(schema: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        form(schema)


def test_a_definition_that_is_only_itself_is_refused() -> None:
    loop = {"$ref": "#/$defs/L"}
    with pytest.raises(SchemaError, match="itself"):
        form({"type": "object", "properties": {"a": loop}, "$defs": {"L": loop}})


# Checks that only a class holds


class Plain(BaseModel):
    a: int = Field(ge=1, le=3)
    at: date
    price: Decimal = Field(ge=0)
    colour: Colour


class Validated(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("even")
        return value


def positive(value: int) -> int:
    assert value > 0
    return value


class Hooked(BaseModel):
    a: int

    def model_post_init(self, context: Any, /) -> None:
        assert self.a > 0


@dataclasses.dataclass
class Initialised:
    a: int

    def __post_init__(self) -> None:
        self.a += 1


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    a: str


def test_code_is_named_only_where_json_cannot_say_the_check() -> None:
    for schema in (Plain, Person, Point, Loose, Colour, {"x": int}, int, Literal["a"], UUID):
        assert form(schema).code is None, schema
    for schema in (Validated, Hooked, Initialised, Stripped):
        assert form(schema).code == f"{__name__}:{schema.__qualname__}"
    assert form({"x": Annotated[int, AfterValidator(positive)]}).code == f"{__name__}:positive"
    assert form({"x": Annotated[Decimal, Field(max_digits=3)]}).code is not None
    assert form({"x": Validated}).code is not None


def test_types_that_check_more_than_json_says_need_code_elsewhere() -> None:
    for type_, text in ((ByteSize, "1MB"), (HttpUrl, "http://a.b"), (PastDate, "2020-01-01")):
        asked = form({"x": type_})
        assert asked.check({"x": text}).failure is None
        failure = form_from(asked.stored()).check({"x": text}).failure
        assert failure is not None
        assert failure.kind == "needs_code"


def test_u092_numpys_scalars_in_a_json_schema_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    node = {"enum": [numpy.int64(1), numpy.int64(2)]}
    bound = {"type": "number", "minimum": numpy.float64(0.5)}
    asked = form({"type": "object", "properties": {"a": node, "b": bound}, "required": ["a", "b"]})
    plain = {"a": Literal[1, 2], "b": Annotated[float, Field(ge=0.5)]}
    assert asked.normal == form(plain).normal
    json.dumps(asked.stored(), allow_nan=False)


def test_u094_no_infinite_number_gets_into_a_schema() -> None:
    unbounded = form({"x": Annotated[float, Field(ge=float("-inf"), le=float("inf"))]})
    assert unbounded.normal == form({"x": float}).normal
    with pytest.raises(SchemaError, match="JSON cannot carry"):
        form({"type": "object", "properties": {"x": {"type": "number", "maximum": float("inf")}}})


def test_a_stored_form_uses_the_class_where_it_is_loaded() -> None:
    again = form_from(json.loads(json.dumps(form(Validated).stored())))
    assert again.check({"a": 3}).values == (3,)
    failure = again.check({"a": 2}).failure
    assert failure is not None
    assert failure.message == "a: even"


def test_a_stored_form_without_its_class_needs_code_and_imports_nothing() -> None:
    stored = {**form(Validated).stored(), "code": "antigravity:Validated"}
    again = form_from(stored)
    assert again.fields == form(Validated).fields
    assert again.normal == form(Validated).normal
    failure = again.check({"a": 3}).failure
    assert failure is not None
    assert failure.kind == "needs_code"
    assert "antigravity:Validated" in failure.message
    assert "antigravity" not in sys.modules
    # A function holds a check of a dict of types: its name does not give the dict back.
    asked = form({"x": Annotated[int, AfterValidator(positive)]})
    failure = form_from(asked.stored()).check({"x": 1}).failure
    assert failure is not None
    assert failure.kind == "needs_code"


def test_a_class_that_means_another_schema_by_now_is_not_used() -> None:
    stored = {**form(Hooked).stored(), "code": f"{__name__}:Point"}
    failure = form_from(stored).check({"a": 1}).failure
    assert failure is not None
    assert failure.kind == "needs_code"


def test_importing_the_schemas_loads_no_library_of_schemas() -> None:
    code = (
        "import sys, llmframe.schemas.reading, llmframe.schemas.dialects;"
        "assert not {'pydantic', 'jsonschema', 'pandera'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_form_is_made_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for schema in (Person, Point, Loose, Old, {"schema": int, "model_x": str, "copy": bool}):
            form(schema)

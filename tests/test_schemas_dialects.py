"""The canonical schema in each engine's words."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from llmframe.errors import SchemaError
from llmframe.schemas.dialects import anthropic, llama_grammar, openai_strict, plain, xgrammar
from llmframe.schemas.forms import form
from llmframe.schemas.patterns import is_portable, rule_of
from tests.gbnf import accepts, parse

STRICT = (openai_strict, anthropic, xgrammar)


def schema_of(schema: Any) -> dict[str, Any]:
    made = form(schema).schema
    assert made is not None
    return made


def nodes(wire: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a wire schema."""
    if not isinstance(wire, dict):
        return
    yield wire
    for group in ("properties", "$defs"):
        for child in wire.get(group, {}).values():
            yield from nodes(child)
    for key in ("items", "additionalProperties"):
        yield from nodes(wire.get(key))
    for key in ("anyOf", "prefixItems"):
        for child in wire.get(key, []):
            yield from nodes(child)


STRICT_KEYS = {"type", "enum", "anyOf", "$ref", "$defs", "description", "properties", "required"}
STRICT_KEYS |= {"additionalProperties", "items", "format"}


def strict_server(wire: dict[str, Any], more: frozenset[str] = frozenset()) -> list[str]:
    """What a provider in strict mode would answer 400 for."""
    wrong = [] if wire.get("type") == "object" and "anyOf" not in wire else ["root"]
    for node in nodes(wire):
        wrong += sorted(node.keys() - STRICT_KEYS - more)
        if "$ref" in node and len(node) > 1:
            wrong.append("beside $ref")
        if node.get("type") == "object":
            if node.get("additionalProperties") is not False:
                wrong.append("open object")
            if list(node["properties"]) != node["required"]:
                wrong.append("not required")
    return wrong


class Sub(BaseModel):
    """A place."""

    city: str = Field(min_length=1, max_length=40)


class Colour(enum.Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class Wide(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")

    reason: str = "because"
    note: str | None = None
    score: int = Field(ge=1, le=5, description="How good")
    big: int = Field(ge=0, le=10_000, multiple_of=5)
    share: float = Field(gt=0, lt=1, examples=[0.5])
    tags: list[str] = Field(min_length=1, max_length=3)
    odd: str = Field(pattern=r"^(?!x)[a-z]+$")
    code: str = Field(pattern="^[A-Z]+$", max_length=3, title="The code")
    price: Decimal = Field(ge=0)
    day: date | None
    at: AwareDatetime
    sub: Sub = Field(description="where it was")
    other: Sub | None = None
    colour: Colour = Colour.RED
    pair: tuple[int, str]
    same: tuple[int, int]
    unique: set[int]
    mixed: Literal[1, "a"]
    label: Literal["x", "y"]


def test_u001_u004_strict_modes_get_only_what_they_take() -> None:
    wire = openai_strict(schema_of(Wide))
    assert strict_server(wire, frozenset({"pattern"})) == []
    assert strict_server(anthropic(schema_of(Wide))) == ["minItems"]  # 1 is taken, and no more
    text = json.dumps(wire)
    for word in ("default", "minimum", "maxLength", "minItems", "title", "uniqueItems", "tz"):
        assert f'"{word}"' not in text
    assert wire["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_u004_what_is_not_sent_is_told_in_the_description() -> None:
    properties = openai_strict(schema_of(Wide))["properties"]
    assert properties["score"] == {
        "type": "integer",
        "enum": [1, 2, 3, 4, 5],
        "description": "How good; at least 1; at most 5",
    }
    assert "a multiple of 5" in properties["big"]["description"]
    assert "enum" not in properties["big"]
    assert properties["tags"]["description"] == "at least 1 item; at most 3 items"
    assert properties["share"]["description"] == "more than 0; less than 1; for example 0.5"
    assert "no item twice" in properties["unique"]["description"]
    assert properties["at"]["format"] == "date-time"
    assert "offset" in properties["at"]["description"]
    assert "at least 0" in properties["price"]["description"]
    assert properties["sub"]["description"] == "where it was"
    assert "in this order: integer, string" in properties["pair"]["description"]
    assert properties["same"]["items"] == {"type": "integer"}


def test_u002_objects_are_closed_whatever_the_model_says() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    with pytest.warns(UserWarning, match="extra keys"):
        wire = openai_strict(schema_of(Open))
    assert wire["additionalProperties"] is False


def test_u003_no_look_around_on_the_wire_and_the_pattern_is_held_here() -> None:
    asked = form(Wide)
    assert asked.schema is not None
    for dialect in STRICT:
        wire = dialect(asked.schema)
        assert "pattern" not in wire["properties"]["odd"]
        assert "(?!x)" in wire["properties"]["odd"]["description"]
        assert "(?" not in json.dumps([n["pattern"] for n in nodes(wire) if "pattern" in n])
        assert wire["properties"]["price"]["type"] == "string"

    class Odd(BaseModel):
        model_config = ConfigDict(regex_engine="python-re")
        odd: str = Field(pattern=r"^(?!x)[a-z]+$")

    for each in (form(Odd), form(Odd.model_json_schema())):
        assert each.check({"odd": "abc"}).values == ("abc",)
        assert each.check({"odd": "xbc"}).failure is not None


def test_vllm_gets_a_pattern_or_a_length_but_never_both() -> None:
    texts = {
        "code": Annotated[str, Field(pattern="^[A-Z]+$", max_length=3)],
        "odd": Annotated[str, Field(max_length=3)],
        "mail": {"type": "string", "format": "email", "maxLength": 40},
    }
    mail = texts.pop("mail")
    schema = {**schema_of(texts)}
    schema["properties"] = {**schema["properties"], "mail": mail}
    schema["required"] = list(schema["properties"])
    wire = xgrammar(schema)["properties"]
    assert wire["code"] == {
        "type": "string",
        "pattern": "^[A-Z]+$",
        "description": "at most 3 characters",
    }
    assert wire["odd"] == {"type": "string", "maxLength": 3}
    assert wire["mail"]["format"] == "email"
    assert "maxLength" not in wire["mail"]


@pytest.mark.parametrize(
    ("rules", "good", "bad"),
    [
        ({}, ["12.30", "-0.5", "0", "123456789012345678901234567890"[:28]], ["", "x", "1.", ".5"]),
        ({"ge": 0, "max_digits": 6, "decimal_places": 2}, ["12.30", "7"], ["-1", "1.234"]),
        ({"max_digits": 6, "decimal_places": 0}, ["-12"], ["1.5", "NaN"]),
    ],
)
def test_u003_vllm_gets_a_pattern_for_decimals_that_has_an_end(
    rules: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    asked = schema_of({"price": Annotated[Decimal, Field(**rules)]})
    pattern = xgrammar(asked)["properties"]["price"]["pattern"]
    assert is_portable(pattern)
    assert [text for text in [*good, *bad] if re.search(pattern, text)] == good
    for dialect in STRICT:
        words = dialect(asked)["properties"]["price"]["description"]
        assert "a decimal number in digits, such as 12.30" in words
        if rules:
            assert "at most 6 digits; " in words
    told = form({"price": Annotated[Decimal, Field(**rules)]})
    assert told.check({"price": good[0]}).values == (Decimal(good[0]),)


def test_bounds_of_digits_change_no_key() -> None:
    bounded = {"price": Annotated[Decimal, Field(max_digits=6, decimal_places=2)]}
    assert form(bounded).normal == form({"price": Decimal}).normal


@pytest.mark.parametrize("dialect", STRICT)
def test_u151_the_declared_order_of_keys_is_kept(dialect: Any) -> None:
    asked = schema_of({"reason": str, "label": Literal["b", "a"], "alpha": {"z": int, "a": int}})
    wire = dialect(asked)
    assert list(wire["properties"]) == ["reason", "label", "alpha"]
    assert wire["required"] == ["reason", "label", "alpha"]
    inner = next(node for node in nodes(wire) if "z" in node.get("properties", {}))
    assert list(inner["properties"]) == ["z", "a"]
    assert llama_grammar(asked).startswith('root ::= "{\\"reason\\":" string ",\\"label\\":"')
    assert plain(asked).index('"reason"') < plain(asked).index('"label"')


class Node(BaseModel):
    value: int
    children: list[Node]


def test_recursion_where_the_engine_knows_it() -> None:
    asked = schema_of(Node)
    wire = openai_strict(asked)
    assert wire["properties"]["children"]["items"] == {"$ref": "#/$defs/d1"}
    assert strict_server(wire) == []
    assert strict_server(xgrammar(asked)) == []
    with pytest.raises(SchemaError, match=r"'children\[\]' contains itself, which Anthropic"):
        anthropic(asked)
    grammar = llama_grammar(asked)
    assert accepts(grammar, '{"value":1,"children":[{"value":2,"children":[]}]}')
    assert not accepts(grammar, '{"value":1,"children":[{"value":2}]}')


@pytest.mark.parametrize("dialect", [openai_strict, anthropic])
def test_any_values_are_refused_where_they_cannot_be_asked_for(dialect: Any) -> None:
    with pytest.raises(SchemaError, match=r"'counts\.\*' may be any value.*Give it a type"):
        dialect(schema_of({"counts": dict}))
    with pytest.raises(SchemaError, match="'x' may be any value"):
        dialect(schema_of({"x": Any}))


def test_free_keys_where_the_engine_knows_them() -> None:
    asked = schema_of({"counts": dict[str, int], "x": Any})
    counts = xgrammar(asked)["properties"]["counts"]
    assert counts == {"type": "object", "additionalProperties": {"type": "integer"}}
    grammar = llama_grammar(asked)
    assert accepts(grammar, '{"counts":{"a":1,"b":2},"x":[null,{"y":1.5}]}')
    assert not accepts(grammar, '{"counts":{"a":"1"},"x":1}')


def test_xgrammar_keeps_bounds_and_leaves_out_what_it_refuses() -> None:
    wire = xgrammar(schema_of(Wide))
    assert wire["properties"]["score"]["maximum"] == 5
    assert wire["properties"]["tags"]["maxItems"] == 3
    assert wire["properties"]["code"]["pattern"] == "^[A-Z]+$"
    text = json.dumps(wire)
    assert '"uniqueItems"' not in text
    assert '"multipleOf"' not in text
    assert "prefixItems" in wire["properties"]["pair"]


class A1(BaseModel):
    a: int
    b: int


class A2(BaseModel):
    a: int
    c: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Copy(BaseModel):
    a: int
    b: str


def test_objects_of_a_union_start_with_keys_of_their_own() -> None:
    def firsts(wire: dict[str, Any]) -> list[str]:
        branches = wire["properties"]["x"]["anyOf"]
        names = [branch["$ref"].rpartition("/")[2] for branch in branches]
        return [next(iter(wire["$defs"][name]["properties"])) for name in names]

    wire = openai_strict(schema_of({"x": A1 | A2}))
    assert firsts(wire) == ["a", "c"]
    assert strict_server(wire) == []
    assert firsts(openai_strict(schema_of({"x": Cat | Dog}))) == ["kind", "kind"]  # told by tags
    assert firsts(xgrammar(schema_of({"x": A1 | A2}))) == ["a", "a"]
    with pytest.raises(SchemaError, match="'x' may be one of several objects with the same fields"):
        openai_strict(schema_of({"x": A1 | Copy | Third}))


class Third(BaseModel):
    b: int
    a: bool


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"leaf": int}
    for _ in range(levels - 1):
        schema = {"inner": schema}
    return schema


def long_labels(count: int, length: int) -> Any:
    return Literal[tuple(f"{i:04d}".ljust(length, "x") for i in range(count))]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (deep(11), "11 levels of nesting.*10"),
        ({f"f{i}": int for i in range(5001)}, "5,001 properties.*5,000"),
        ({"a": long_labels(1001, 4)}, "1,001 allowed values.*1,000"),
        ({"a": long_labels(251, 60)}, "'a' has more than 250 allowed values of 15,060.*15,000"),
        ({f"{i:04d}".ljust(200, "x"): int for i in range(601)}, "120,200 characters.*120,000"),
    ],
)
def test_openais_limits_are_named(schema: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        openai_strict(schema_of(schema))


def test_schemas_at_openais_limits_pass() -> None:
    openai_strict(schema_of(deep(10)))
    openai_strict(schema_of({"a": long_labels(1000, 4)}))
    openai_strict(schema_of({"a": long_labels(250, 100)}))


def test_anthropics_sixteen_unions_and_twenty_four_optional_keys() -> None:
    def nullables(count: int) -> dict[str, Any]:
        return schema_of({f"f{i}": int | None for i in range(count)})

    assert len(anthropic(nullables(16))["required"]) == 16
    wire = anthropic(nullables(40))
    assert len(wire["required"]) == 16
    assert wire["properties"]["f39"] == {"type": "integer"}
    assert sum("anyOf" in node for node in nodes(wire)) == 16
    with pytest.raises(SchemaError, match="41 fields"):
        anthropic(nullables(41))
    # What may be left out is read as null.
    asked = form({f"f{i}": int | None for i in range(40)})
    assert asked.check({"f0": 1}).values == (1, *[None] * 39)


def test_all_of_is_written_as_one_object() -> None:
    asked = schema_of(
        {
            "type": "object",
            "properties": {"x": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}},
            "$defs": {
                "A": {"type": "object", "properties": {"a": {"type": "integer"}}},
                "B": {"type": "object", "properties": {"b": {"type": "string"}}},
            },
        }
    )
    wire = openai_strict(asked)
    assert strict_server(wire) == []
    assert list(wire["properties"]["x"]["properties"]) == ["a", "b"]
    assert form(asked).check({"x": {"a": 1, "b": 2}}).failure is not None
    asked["properties"]["x"]["type"] = "object"
    assert form(asked).check({"x": {"a": 1, "b": "y"}}).values == ({"a": 1, "b": "y"},)
    assert accepts(llama_grammar(asked), '{"x":{"a":1,"b":"y"}}')
    assert not accepts(llama_grammar(asked), '{"x":{"a":1}}')


def test_all_of_a_number_and_an_integer_is_an_integer() -> None:
    x = {"allOf": [{"type": "number"}, {"type": "integer", "minimum": 1}]}
    asked = form({"type": "object", "properties": {"x": x}})
    assert asked.schema is not None
    assert openai_strict(asked.schema)["properties"]["x"]["type"] == "integer"
    assert asked.check({"x": 2}).values == (2,)
    assert asked.check({"x": 0}).failure is not None


def test_other_keywords_are_told_as_they_are() -> None:
    asked = schema_of(
        {"type": "object", "properties": {"x": {"type": "string", "not": {"enum": ["a"]}}}}
    )
    node = openai_strict(asked)["properties"]["x"]
    assert node.keys() == {"type", "description"}
    assert '"not"' in node["description"]


@pytest.mark.parametrize(
    ("pattern", "portable"),
    [
        ("^[A-Z]+$", True),
        (r"^\d{4}-\d\d$", True),
        ("(?:ab|c)*", True),
        ("[]a]", True),
        ("[^]a]b", True),
        (r"\(\?!", True),
        ("[(?!]", True),
        ("(?!x)a", False),
        ("a(?=b)", False),
        ("(?<=a)b", False),
        ("(?<!a)b", False),
        ("(?i)a", False),
        ("(?P<n>a)", False),
        (r"(a)\1", False),
        (r"\bx", False),
        (r"\Ax\Z", False),
        (r"\p{L}", False),
        ("a+?", False),
        ("a++", False),
        ("(", False),
        ("[a", False),
        ("a\\", False),
    ],
)
def test_which_patterns_travel(pattern: str, portable: bool) -> None:
    assert is_portable(pattern) == portable


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        ("^[A-Z]{2}-[0-9]+$", ["AB-1", "AB-123"], ["A-1", "AB-", "AB-1x"]),
        ("^(cat|dog)s?$", ["cat", "dogs"], ["cow", "catss"]),
        (r'^"\w*"$', ['\\"a_1\\"', '\\"\\"'], ['"a"']),
        (r"^a\\b$", ["a\\\\b"], ["a\\b"]),
        ("^[^a-c]é.$", ["xéy"], ["aéy", 'xé"', "xé\n"]),
        ("^$", [""], ["a"]),
        ("^[-+]?[.]$", ["-.", "."], ["+"]),
        ("^x{0,2}$", ["", "xx"], ["xxx"]),
    ],
)
def test_patterns_in_the_grammar(pattern: str, texts: list[str], others: list[str]) -> None:
    rule = rule_of(pattern)
    assert rule is not None
    for text in texts:
        assert accepts(f"root ::= {rule}", text), rule
    for text in others:
        assert not accepts(f"root ::= {rule}", text), rule


def test_patterns_a_grammar_cannot_say_fall_back_to_any_string() -> None:
    for pattern in ("[A-Z]", "^[A-Z]", "^a|b$", "^(?!x).*$", "^a{5000}$", '^["-z]$'):
        assert rule_of(pattern) is None
        asked = schema_of(
            {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
        )
        assert accepts(llama_grammar(asked), '{"x":"anything"}')


def test_u128_the_grammar_has_no_white_space_and_an_end() -> None:
    grammar = llama_grammar(schema_of(Wide))
    parse(grammar)
    assert "*" not in grammar.replace("\\*", "")
    assert "+" not in grammar.replace("[+-]", "")
    answer = (
        '{"reason":"r","note":null,"score":5,"big":5,"share":0.5,"tags":["a"],"odd":"abc",'
        '"code":"ABC","price":"12.30","day":null,"at":"2024-01-01T00:00:00Z",'
        '"sub":{"city":"Oslo"},"other":null,"colour":"red","pair":[1,"a"],"same":[1,2],'
        '"unique":[1],"mixed":"a","label":"x"}'
    )
    assert accepts(grammar, answer)
    assert form(Wide).check(json.loads(answer)).failure is None
    for old, new in (
        ('"score":5', '"score":6'),
        ('"score":5', '"score": 5'),
        ('"label":"x"', '"label":"z"'),
        ('["a"]', '["a","b","c","d"]'),
        ('"ABC"', '"ABCD"'),
        ('"2024-01-01T00:00:00Z"', '"2024-01-01T00:00:00"'),
        ('[1,"a"]', '["a",1]'),
        ('"price":"12.30"', '"price":12.30'),
    ):
        assert old in answer
        assert not accepts(grammar, answer.replace(old, new)), new
    assert llama_grammar(schema_of(Wide)) == grammar


def test_plain_words_name_every_key_and_label() -> None:
    text = plain(schema_of(Wide))
    for name in Wide.model_fields:
        assert f'"{name}"' in text
    assert '"label": "x" or "y"' in text
    assert '"score": integer, at least 1, at most 5 (How good)' in text
    assert '  - "city": string' in text
    recursive = plain(schema_of(Node))
    assert "array of a d1 as below" in recursive
    assert recursive.count("A d1 is") == 1


def test_no_dialect_changes_the_schema_it_gets() -> None:
    asked = schema_of({"x": A1 | A2, "y": int | None, "z": Sub})
    before = json.dumps(asked)
    for dialect in (*STRICT, plain, llama_grammar):
        dialect(asked)
    assert json.dumps(asked) == before

"""Free-form maps, asked for as lists of pairs and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, create_model

import llmframe as lf
from llmframe.errors import SchemaError
from llmframe.results import Result
from llmframe.schemas.dialects import anthropic, llama_grammar, openai_strict, plain, xgrammar
from llmframe.schemas.forms import form, form_from
from llmframe.schemas.reading import read
from tests.gbnf import accepts

TOLD = "a map, as the list of its entries: each key once"


def pair(value: dict[str, Any], key: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"key": {"type": "string", **(key or {})}, "value": value},
        "required": ["key", "value"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("type_", "items", "words"),
    [
        (dict[str, float], pair({"type": "number"}), TOLD),
        (dict[int, str], pair({"type": "string"}), TOLD),
        (dict[Literal["a", "b"], int], pair({"type": "integer"}, {"enum": ["a", "b"]}), TOLD),
        (
            Annotated[dict[str, bool], Field(min_length=1, max_length=3, description="Flags")],
            pair({"type": "boolean"}),
            f"Flags; {TOLD}; at least 1 key; at most 3 keys",
        ),
        (
            dict[str, dict[str, int]],
            pair({"type": "array", "items": pair({"type": "integer"}), "description": TOLD}),
            TOLD,
        ),
    ],
)
@pytest.mark.parametrize("dialect", [openai_strict, anthropic])
def test_a_map_on_the_wire(
    dialect: Callable[[Any], Any], type_: Any, items: dict[str, Any], words: str
) -> None:
    asked = form({"m": type_})
    assert asked.schema is not None
    node = {"type": "array", "items": items, "description": words}
    assert dialect(asked.schema)["properties"] == {"m": node}
    assert xgrammar(asked.schema)["properties"]["m"]["type"] == "object"  # it knows maps


def test_keys_with_a_pattern_and_listed_keys_in_every_dialect() -> None:
    keys = Annotated[str, Field(pattern="^x[0-9]$")]
    asked = form({"m": dict[keys, int], "n": dict[Literal["a", "b"], bool]})
    assert asked.schema is not None
    answer = '{"m":{"x1":2},"n":{"a":true}}'
    assert asked.check(json.loads(answer)).failure is None
    grammar = llama_grammar(asked.schema)
    assert accepts(grammar, answer)
    assert accepts(grammar, '{"m":{},"n":{}}')
    for old, new in (("x1", "y1"), (":2", ':"2"'), ('"a"', '"c"'), ("true", "1")):
        assert not accepts(grammar, answer.replace(old, new)), new
    m = xgrammar(asked.schema)["properties"]["m"]
    assert m["additionalProperties"] == {"type": "integer"}
    assert '"m": object with any keys, each value integer' in plain(asked.schema)
    assert asked.check({"m": {"x1": "2"}, "n": {}}).coerced == ("m.x1",)


def test_the_keys_of_a_map_may_have_a_pattern() -> None:
    asked = form({"m": dict[Annotated[str, Field(pattern="^x")], int]})
    assert asked.schema is not None
    wire = openai_strict(asked.schema)["properties"]["m"]
    assert wire["items"] == pair({"type": "integer"}, {"pattern": "^x"})
    for each in (asked, form_from(asked.stored())):
        for answer in ({"x1": 2}, [{"key": "x1", "value": 2}]):
            assert each.check({"m": answer}).values == ({"x1": 2},)
    assert asked.check({"m": [{"key": "y", "value": 2}]}).failure is not None


Shape = tuple[Any, st.SearchStrategy[Any], Callable[[Any], Any]]
"""A type, its values, and how strict modes write one."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
KEYS = TEXT | st.sampled_from(["key", "value"])


def _same(value: Any) -> Any:
    return value


def _map(inner: Shape) -> Shape:
    type_, values, write = inner
    return (
        dict.__class_getitem__((str, type_)),
        st.dictionaries(KEYS, values, max_size=3),
        lambda made: [{"key": key, "value": write(value)} for key, value in made.items()],
    )


def _list(inner: Shape) -> Shape:
    type_, values, write = inner
    return (
        list.__class_getitem__(type_),
        st.lists(values, max_size=3),
        lambda made: [write(one) for one in made],
    )


def _tuple(inner: Shape) -> Shape:
    type_, values, write = inner
    return (
        tuple.__class_getitem__((int, type_)),
        st.tuples(st.integers(-9, 9), values).map(list),
        lambda made: [made[0], write(made[1])],
    )


def _nullable(inner: Shape) -> Shape:
    type_, values, write = inner
    return type_ | None, st.none() | values, lambda made: None if made is None else write(made)


def _object(inner: Shape) -> Shape:
    type_, values, write = inner
    return (
        # Named as a pair's own keys are: nothing may take this object for one.
        create_model("Entry", key=(str, ...), value=(type_, ...)),
        st.fixed_dictionaries({"key": TEXT, "value": values}),
        lambda made: {"key": made["key"], "value": write(made["value"])},
    )


LEAVES: list[Shape] = [
    (int, st.integers(-9, 9), _same),
    (str, TEXT, _same),
    (bool, st.booleans(), _same),
]
SHAPES: st.SearchStrategy[Shape] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.builds(
        lambda wrap, one: wrap(one),
        st.sampled_from([_map, _list, _tuple, _nullable, _object]),
        inner,
    ),
    max_leaves=5,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(SHAPES, st.data())
def test_what_was_written_as_pairs_is_read_as_the_map(shape: Shape, data: st.DataObject) -> None:
    type_, values, write = _map(shape)
    asked = form({"m": type_, "last": int})
    answer = data.draw(values)
    assert asked.schema is not None
    written = {"m": write(answer), "last": 1}
    for dialect in (openai_strict, anthropic):
        assert Draft202012Validator(dialect(asked.schema)).is_valid(written)
    for each in (asked, form_from(json.loads(json.dumps(asked.stored())))):
        for told in (written, {"m": answer, "last": 1}):
            got = read(each, Result(b"", json.dumps(told), "stop"))
            assert got.values == (answer, 1)
            assert not got.coerced
        twice = {"m": [*written["m"], *written["m"][:1]], "last": 1}
        if answer:
            failure = read(each, Result(b"", json.dumps(twice), "stop")).failure
            assert failure is not None
            assert failure.kind == "invalid_output"
            assert "stands twice" in failure.message


@pytest.mark.parametrize(
    "wrong",
    [
        [{"key": "a", "value": "x"}],
        [{"key": "a"}],
        [{"key": 1, "value": 1}],
        [{"key": "a", "value": 1, "more": 2}],
        [{"key": "a", "value": 1}, 3],
        [["a", 1]],
        [1],
    ],
)
def test_a_list_that_is_no_list_of_pairs_is_a_failure(wrong: Any) -> None:
    asked = form({"m": dict[str, int]})
    for each in (asked, form_from(asked.stored())):
        got = each.check({"m": wrong})
        assert got.values is None
        assert got.failure is not None
        assert got.failure.message.startswith("m")


class Entry(BaseModel):
    key: str
    value: int


class Maps(BaseModel):
    kind: Literal["map"]
    x: dict[str, int]


class Lists(BaseModel):
    kind: Literal["list"]
    x: list[Entry]


class Tree(BaseModel):
    name: str
    below: dict[str, Tree]


@pytest.mark.parametrize("type_", [dict[str, int] | list[Entry], Maps | Lists])
def test_a_place_that_may_be_a_map_or_a_list_is_refused_and_never_guessed(type_: Any) -> None:
    asked = form({"m": type_})
    assert asked.schema is not None
    for dialect in (openai_strict, anthropic):
        with pytest.raises(SchemaError, match=r"'m(\.x)?' may be a map with free keys or a list"):
            dialect(asked.schema)
    pairs: list[Any] = [{"key": "a", "value": 1}]
    answer: Any = {"kind": "list", "x": pairs} if type_ == Maps | Lists else pairs
    assert asked.check({"m": answer}).values == (answer,)


def test_values_that_depend_on_the_key_are_refused() -> None:
    rule = {"^a": {"type": "integer"}, "^b": {"type": "string"}}
    schema = {"type": "object", "properties": {"m": {"type": "object", "patternProperties": rule}}}
    asked = form(schema)
    assert asked.schema is not None
    with pytest.raises(SchemaError, match="'m' is a map whose values depend on the key"):
        openai_strict(asked.schema)
    assert asked.check({"m": {"a": 1, "b": "x"}}).values == ({"a": 1, "b": "x"},)


def test_maps_of_models_that_hold_maps_of_themselves() -> None:
    asked = form(Tree)
    assert asked.schema is not None
    written = {
        "name": "a",
        "below": [{"key": "b", "value": {"name": "b", "below": []}}],
    }
    assert Draft202012Validator(openai_strict(asked.schema)).is_valid(written)
    assert asked.check(written).values == ("a", {"b": {"name": "b", "below": {}}})


def test_a_map_lands_in_the_frame_as_a_dict_and_flat_keeps_it_whole() -> None:
    df = pd.DataFrame({"text": ["2 apples, 1 pear", "nothing"]})
    two = [{"key": "apples", "value": 2}, {"key": "pear", "value": 1}]
    answers = {"2 apples, 1 pear": {"counts": two}, "nothing": {"counts": []}}
    llm = lf.testing.FakeEngine(lf.testing.answers(answers))
    for flat in (False, True):
        out = df.llm.extract("text", {"counts": dict[str, int]}, model=llm, flatten=flat)
        assert out["counts"].tolist() == [{"apples": 2, "pear": 1}, {}]

"""For a family of schemas and their values: what was written is read; a single change is not."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field
from typing_extensions import TypedDict

from llmframe.results import Result
from llmframe.schemas.dialects import anthropic, llama_grammar, openai_strict, xgrammar
from llmframe.schemas.forms import Form, form, form_from
from llmframe.schemas.reading import read
from tests.gbnf import accepts

quiet = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


class Leaf:
    """A type, its JSON values, what a cell then holds, and values that are none of it."""

    def __init__(
        self, type_: Any, values: st.SearchStrategy[Any], wrong: list[Any], cell: Any = None
    ) -> None:
        self.type = type_
        self.values = values
        self.wrong = wrong
        self.cell = cell or (lambda value: value)


class Part(TypedDict):
    city: str
    zip: str


INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WRONG: list[Any] = [[[]], {"a": {}}]
LEAVES = [
    Leaf(str, TEXT, [*WRONG, 5, None, True]),
    Leaf(int, INTEGERS, [*WRONG, "x", 1.5, True, None, 2**63]),
    Leaf(float, FLOATS, [*WRONG, "x", True, None], float),
    Leaf(bool, st.booleans(), [*WRONG, 0, 1, "yes", None]),
    Leaf(Literal["a", "b c", 'd"'], st.sampled_from(["a", "b c", 'd"']), [*WRONG, "A", 1, None]),
    Leaf(Literal[1, 2, 30], st.sampled_from([1, 2, 30]), [*WRONG, 3, True, "x", None]),
    Leaf(Annotated[int, Field(ge=1, le=5)], st.integers(1, 5), [*WRONG, 0, 6, "x", True]),
    Leaf(
        Annotated[str, Field(pattern="^[A-Z]{2}[0-9]+$", max_length=6)],
        st.from_regex("[A-Z]{2}[0-9]{1,4}", fullmatch=True),
        [*WRONG, "ab1", "AB", "AB12345"],
    ),
    Leaf(int | None, st.none() | INTEGERS, [*WRONG, "x", True, 1.5]),
    Leaf(list[int], st.lists(INTEGERS, max_size=4), [{"a": 1}, ["x"], [True], [[1]], None]),
    Leaf(
        Annotated[list[str], Field(min_length=1, max_length=2)],
        st.lists(TEXT, min_size=1, max_size=2),
        [[], ["a", "b", "c"], [1], "a"],
    ),
    Leaf(
        Part,
        st.builds(lambda city, zip_: {"city": city, "zip": zip_}, TEXT, TEXT),
        [{"city": "x"}, {}, "x", []],
    ),
    Leaf(int | Literal["na"], INTEGERS | st.just("na"), [*WRONG, "no", True, None, 1.5]),
    Leaf(
        date,
        st.dates().map(date.isoformat),
        [*WRONG, "2024-02-30", "1710028800", 20240101, None],
        lambda text: datetime.fromisoformat(text + "T00:00:00"),
    ),
    Leaf(
        datetime,
        st.datetimes().map(datetime.isoformat),
        [*WRONG, "1710028800", 1710028800, "today"],
        datetime.fromisoformat,
    ),
    Leaf(
        Decimal,
        st.decimals(-(10**12), 10**12, places=2).map(str),
        [*WRONG, "x", True, None, "NaN"],
        Decimal,
    ),
    Leaf(
        timedelta,
        st.integers(0, 99).map(lambda days: f"P{days}D"),
        [*WRONG, "x", 3],
        lambda text: timedelta(days=int(text[1:-1])),
    ),
]
# Words of JSON Schema and of pydantic's own form of a schema are names like any other.
WORDS = ["type", "properties", "required", "items", "enum", "const", "default", "anyOf", "title"]
WORDS += ["fields", "schema", "metadata", "choices", "serialization", "config", "expected", "cls"]
NAMES = st.lists(
    st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=8)
    | st.sampled_from(WORDS),
    min_size=1,
    max_size=5,
    unique=True,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Form, dict[str, Leaf], dict[str, Any]]:
    names = draw(NAMES)
    leaves = {name: draw(st.sampled_from(LEAVES)) for name in names}
    answer = {name: draw(leaf.values) for name, leaf in leaves.items()}
    return form({name: leaf.type for name, leaf in leaves.items()}), leaves, answer


def wrapped(text: str, way: int) -> str:
    return (text, f"```json\n{text}\n```", f"Sure!\n{text}", f"<think>{{}}</think>{text}")[way]


@quiet
@given(cases(), st.integers(0, 3), st.booleans())
def test_what_was_written_is_read(
    case: tuple[Form, dict[str, Leaf], dict[str, Any]], way: int, ascii_: bool
) -> None:
    asked, leaves, answer = case
    text = wrapped(json.dumps(answer, ensure_ascii=ascii_), way)
    expected = tuple(
        None if answer[name] is None else leaf.cell(answer[name]) for name, leaf in leaves.items()
    )
    for each in (asked, form_from(json.loads(json.dumps(asked.stored())))):
        got = read(each, Result(b"", text, "stop"))
        assert got.failure is None
        assert got.values == expected
        assert got.values is not None
        assert [type(v) for v in got.values] == [type(v) for v in expected]
        assert got.repaired == (way != 0)
        assert not got.coerced


@quiet
@given(cases(), st.data())
def test_one_changed_place_is_a_failure(
    case: tuple[Form, dict[str, Leaf], dict[str, Any]], data: st.DataObject
) -> None:
    asked, leaves, answer = case
    name = data.draw(st.sampled_from(list(leaves)))
    wrong = data.draw(st.sampled_from(leaves[name].wrong))
    changed = json.dumps({**answer, name: wrong})
    for each in (asked, form_from(json.loads(json.dumps(asked.stored())))):
        got = read(each, Result(b"", changed, "stop"))
        assert got.values is None
        assert got.failure is not None
        assert got.failure.kind == "invalid_output"
        assert got.failure.message.startswith(name)


@quiet
@given(cases(), st.data())
def test_a_cut_text_is_never_an_answer(
    case: tuple[Form, dict[str, Leaf], dict[str, Any]], data: st.DataObject
) -> None:
    asked, _, answer = case
    text = json.dumps(answer)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for finish, kinds in (("length", {"truncated"}), ("stop", {"invalid_output", "empty_output"})):
        got = read(asked, Result(b"", cut, finish))
        assert got.values is None
        assert got.failure is not None
        assert got.failure.kind in kinds


@quiet
@given(st.text(max_size=200), st.sampled_from(["stop", "length", None]))
def test_no_text_raises(text: str, finish: str | None) -> None:
    for asked in (form(None), form({"a": int}), form(Literal["a", "b"]), form(list[Decimal])):
        got = read(asked, Result(b"", text, finish))
        assert (got.values is None) != (got.failure is None)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@quiet
@given(cases())
def test_every_valid_answer_is_allowed_on_the_wire(
    case: tuple[Form, dict[str, Leaf], dict[str, Any]],
) -> None:
    asked, _, answer = case
    assert asked.schema is not None
    for dialect in (openai_strict, anthropic, xgrammar):
        wire = dialect(asked.schema)
        Draft202012Validator.check_schema(wire)
        assert Draft202012Validator(wire).is_valid(answer)
        assert list(wire["properties"]) == list(answer)


GRAMMAR_LEAVES = [leaf for leaf in LEAVES if leaf.type not in (float, datetime, int, list[int])]


@settings(quiet, max_examples=60)
@given(st.lists(st.sampled_from(GRAMMAR_LEAVES), min_size=1, max_size=3), st.data())
def test_the_grammar_takes_compact_valid_answers_and_no_others(
    leaves: list[Leaf], data: st.DataObject
) -> None:
    asked = form({f"f{i}": leaf.type for i, leaf in enumerate(leaves)})
    assert asked.schema is not None
    grammar = llama_grammar(asked.schema)
    answer = {f"f{i}": data.draw(leaf.values) for i, leaf in enumerate(leaves)}
    assume(all(abs(v) < 10**18 for v in answer.values() if isinstance(v, int)))
    assume("\x7f" not in compact(answer))
    text = compact(answer)
    assert accepts(grammar, text)
    place = data.draw(st.integers(0, len(leaves) - 1))
    wrong = data.draw(st.sampled_from([[[]], {"a": {}}, 1.5]))
    assert not accepts(grammar, compact({**answer, f"f{place}": wrong}))
    assert not accepts(grammar, json.dumps(answer, indent=1))
    assert not accepts(grammar, text[:-1])
    assert not accepts(grammar, text + " ")


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: str(leaf.type))
def test_the_grammar_of_each_type_is_whole(leaf: Leaf) -> None:
    schema = form({"x": leaf.type}).schema
    assert schema is not None
    assert llama_grammar(schema).startswith('root ::= "{\\"x\\":"')

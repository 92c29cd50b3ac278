"""Answers whose values are unusual: what stands in the cells, and which row fails for them."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import pandas as pd
import pytest
from pydantic import BaseModel, BeforeValidator, Field, RootModel, field_validator

import llmframe as lf
from llmframe.results import Result
from llmframe.schemas.forms import form, form_from
from llmframe.schemas.reading import read

pytestmark = pytest.mark.usefixtures("home")


def extract(schema: Any, *replies: Any, **keywords: Any) -> pd.DataFrame:
    """The frame that a call gives whose rows are answered by these replies in turn."""
    texts = {
        f"row {i}": reply if isinstance(reply, str) else json.dumps(reply)
        for i, reply in enumerate(replies)
    }
    engine = lf.testing.FakeEngine(
        lambda text: next(reply for name, reply in texts.items() if f"\n{name}\n" in text)
    )
    frame = pd.DataFrame({"text": list(texts)})
    keywords = {"errors": "coerce", "progress": False, "repairs": 0, **keywords}
    return frame.llm.extract("text", schema, model=engine, **keywords)


def failure(schema: Any, reply: Any, **keywords: Any) -> tuple[str, str]:
    """Kind and message of the failure of the one row."""
    [found] = extract(schema, reply, **keywords).llm.failures()[["kind", "message"]].to_numpy()
    return found[0], found[1]


class Name(RootModel[str]): ...


class Number(RootModel[int]): ...


class Maybe(RootModel[int | None]): ...


class Choice(RootModel[Literal["a", "b"]]): ...


class Day(RootModel[date]): ...


class Deep(RootModel[Name]): ...


@pytest.mark.parametrize(
    ("cls", "reply", "cell"),
    [
        (Name, "Oslo", "Oslo"),
        (Number, 3, 3),
        (Choice, "b", "b"),
        (Day, "2024-02-29", pd.Timestamp("2024-02-29")),
        (Deep, "Oslo", "Oslo"),
    ],
)
@pytest.mark.parametrize("backend", [None, "pyarrow"])
def test_a_root_model_is_what_it_holds(cls: Any, reply: Any, cell: Any, backend: Any) -> None:
    bare = extract(cls, {"response": reply}, dtype_backend=backend)
    field = extract({"x": cls}, {"x": reply}, dtype_backend=backend)
    assert pd.Timestamp(bare["response"][0]) == cell if cls is Day else bare["response"][0] == cell
    assert pd.Timestamp(field["x"][0]) == cell if cls is Day else field["x"][0] == cell


def test_a_root_model_may_hold_null() -> None:
    out = extract({"x": Maybe}, {"x": None}, {"x": 2})
    assert out["x"].tolist() == [pd.NA, 2]
    assert out.llm.status().tolist() == ["ok", "ok"]


class Forgetful(BaseModel):
    a: int
    items: list[int]
    name: str

    @field_validator("a", "items")
    @classmethod
    def forget(cls, value: Any) -> Any:
        assert value

    @field_validator("name")
    @classmethod
    def wrap(cls, value: str) -> Any:
        return object() if value == "wrapped" else value


class Forgets(BaseModel):
    items: list[int]

    @field_validator("items")
    @classmethod
    def forget(cls, value: Any) -> Any:
        assert value


class Wraps(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def wrap(cls, value: str) -> Any:
        return {"object": object(), "bytes": b"q", "date": date(2024, 1, 1)}.get(value, value)


def test_a_validator_that_returns_nothing_fails_its_row() -> None:
    kind, message = failure(Forgetful, {"a": 1, "items": [1], "name": "x"})
    assert kind == "user_code"
    assert message.startswith("a: became None in a validator, while its column is int")
    assert failure(Forgets, {"items": [1]})[1].startswith("items: became None")


@pytest.mark.parametrize("name", ["object", "bytes", "date"])
def test_no_repr_in_a_column_of_text(name: str) -> None:
    kind, message = failure(Wraps, {"name": name})
    assert (kind, message) == (
        "user_code",
        f"name: became {name} in a validator, while its column is text",
    )
    assert extract(Wraps, {"name": "x"})["name"].tolist() == ["x"]


class Alias(enum.Enum):
    A = "a"
    B = "a"
    C = "c"


class WithNone(enum.Enum):
    A = None
    B = "b"


@pytest.mark.parametrize(
    "schema",
    [
        {"x": Alias},
        {"type": "object", "properties": {"x": {"enum": ["a", "a", "c"]}}, "required": ["x"]},
    ],
)
def test_a_value_that_an_enum_says_twice_is_one_category(schema: Any) -> None:
    out = extract(schema, {"x": "a"}, {"x": "c"})
    assert out["x"].tolist() == ["a", "c"]
    assert out["x"].cat.categories.tolist() == ["a", "c"]


def test_a_member_of_an_enum_that_is_none_is_missing() -> None:
    out = extract({"x": WithNone}, {"x": None}, {"x": "b"})
    assert out["x"].isna().tolist() == [True, False]
    assert out.llm.status().tolist() == ["ok", "ok"]


class Leaves(BaseModel):
    a: Literal["x", "y"]

    @field_validator("a")
    @classmethod
    def leave(cls, value: str) -> str:
        return "other" if value == "x" else value


def test_a_validator_that_leaves_the_categories_fails_its_row_alone() -> None:
    out = extract(Leaves, {"a": "x"}, {"a": "y"})
    assert out["a"].tolist()[1] == "y"
    [found] = out.llm.failures()[["kind", "message"]].to_numpy().tolist()
    assert found == ["user_code", "a: became 'other' in a validator, which is none of 'x', 'y'"]


@pytest.mark.parametrize("backend", [None, "pyarrow"])
@pytest.mark.parametrize(
    ("kind", "bad", "good", "word"),
    [
        (timedelta, "P999999999D", "PT1S", "292,000 years"),
        (list[datetime], ["9999-12-31T23:59:59-01:00"], [], "years 1 to 9999"),
        (datetime, "0001-01-01T00:00:00+14:00", "2024-01-01T00:00:00", "years 1 to 9999"),
    ],
)
def test_what_no_column_holds_fails_its_row_alone(
    kind: Any, bad: Any, good: Any, word: str, backend: Any
) -> None:
    out = extract({"x": kind}, {"x": bad}, {"x": good}, dtype_backend=backend)
    assert out.llm.status().tolist() == ["failed", "ok"]
    [found] = out.llm.failures()[["kind", "message"]].to_numpy().tolist()
    assert found[0] == "invalid_output"
    assert word in found[1]


def test_a_time_with_an_offset_is_told_in_utc_in_every_column() -> None:
    for backend in (None, "pyarrow"):
        out = extract(
            {"x": time, "many": list[time]},
            {"x": "01:00:00+02:00", "many": ["12:00:00Z", "08:30:00"]},
            dtype_backend=backend,
        )
        assert out["x"].tolist() == [time(23)]
        assert list(out["many"][0]) == [time(12), time(8, 30)]


def test_a_set_is_a_sorted_list_with_and_without_its_class() -> None:
    asked = form({"names": set[str], "days": frozenset[date]})
    reply = Result(b"", '{"names": ["b", "a", "c"], "days": ["2024-02-01", "2024-01-01"]}')
    expected = (["a", "b", "c"], [date(2024, 1, 1), date(2024, 2, 1)])
    assert read(asked, reply).values == expected
    assert read(form_from(asked.stored()), reply).values == expected
    # A raw JSON Schema's list of unique items is a list: its order is the answer's.
    raw = form({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, name="names")
    assert read(form_from(raw.stored()), reply).values == (["b", "a", "c"],)


@pytest.mark.parametrize("number", ["123456789012345678.0", "-9007199254740993.0", "1e18"])
def test_an_integer_with_a_fraction_keeps_its_digits_or_fails(number: str) -> None:
    """The text of a float beyond 2**53 may mean an integer beside the one that it reads as."""
    kind, message = failure({"id": int}, f'{{"id":{number}}}')
    assert kind == "invalid_output"
    assert "without a fraction" in message
    exact = extract({"id": int, "price": Decimal}, f'{{"id":{number},"price":"1"}}')
    assert exact["id"].tolist() == [int(Decimal(number))]


def test_bounds_hold_on_the_digits_that_were_written() -> None:
    most = Annotated[int, Field(le=2**53)]
    assert failure({"id": most}, '{"id":9007199254740993.0}')[0] == "invalid_output"
    reply = '{"id":9007199254740993.0,"price":"1"}'
    assert failure({"id": most, "price": Decimal}, reply)[0] == "invalid_output"
    assert extract({"id": int}, '{"id":9007199254740991.0}')["id"].tolist() == [2**53 - 1]


class Small(BaseModel):
    a: int


class Large(Small):
    b: int = 1


class Grows(BaseModel):
    s: Small

    @field_validator("s")
    @classmethod
    def grow(cls, value: Small) -> Small:
        return Large(a=value.a) if value.a == 1 else value


def test_an_answer_that_arrow_cannot_hold_costs_no_other_one() -> None:
    with pytest.warns(UserWarning, match="column 's': 1 of 2 answers do not fit") as caught:
        out = extract(Grows, {"s": {"a": 1}}, {"s": {"a": 2}}, dtype_backend="pyarrow")
    assert len(caught) == 1
    assert str(out["s"].dtype) == "struct<a: int64>[pyarrow]"
    assert [None if cell is pd.NA else cell for cell in out["s"]] == [None, {"a": 2}]
    plain = extract(Grows, {"s": {"a": 1}}, {"s": {"a": 2}})
    assert plain["s"].tolist() == [{"a": 1, "b": 1}, {"a": 2}]


def test_rows_with_one_answer_share_no_list() -> None:
    engine = lf.testing.FakeEngine({"items": [{"tags": [1]}]})
    frame = pd.DataFrame({"text": ["a", "a"]})
    out = frame.llm.extract("text", {"items": list[dict[str, list[int]]]}, model=engine)
    out["items"].iloc[0][0]["tags"].append(9)
    out["items"].iloc[0].append(None)
    assert out["items"].tolist() == [[{"tags": [1, 9]}, None], [{"tags": [1]}]]


class Plain(enum.Enum):
    CAT = "cat"


class Text(enum.StrEnum):
    CAT = "cat"


class Days(enum.Enum):
    A = date(2024, 1, 1)


class Prices(enum.Enum):
    A = Decimal("1.10")


class Pairs(enum.Enum):
    A = (1, 2)


class Parsed(enum.Enum):
    A = date(2024, 1, 1)

    @classmethod
    def _missing_(cls, value: Any) -> Parsed:
        return cls(date.fromisoformat(value))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (Literal[Plain.CAT], r"Literal\['cat'\]"),
        (list[Literal[b"q"]], "bytes"),
        (Days, "Days"),
        (Prices | None, "Prices"),
        (dict[str, Pairs], "Pairs"),
    ],
)
def test_choices_that_no_answer_can_meet_are_refused(kind: Any, word: str) -> None:
    engine = lf.testing.FakeEngine({"x": "cat"})
    with pytest.raises(lf.SchemaError, match=word):
        pd.DataFrame({"t": ["a"]}).llm.extract("t", {"x": kind}, model=engine)
    assert not engine.requests


def test_choices_that_an_answer_can_meet_are_taken() -> None:
    assert extract({"x": Literal[Text.CAT]}, {"x": "cat"})["x"].tolist() == ["cat"]
    by_hand = Annotated[Literal[Plain.CAT], BeforeValidator(lambda text: Plain(text))]
    assert extract({"x": by_hand}, {"x": "cat"})["x"].tolist() == ["cat"]
    assert extract({"x": Parsed}, {"x": "2024-01-01"}).llm.status().tolist() == ["ok"]


class Tagged(BaseModel):
    type: str
    metadata: dict[str, str] = {"type": "literal"}
    expected: list[Any] = [{"type": {}}]


@pytest.mark.parametrize("name", ["type", "metadata", "default", "config", "serialization"])
def test_a_field_may_have_any_name_and_its_choices_are_looked_at(name: str) -> None:
    assert extract({name: str}, {name: "a"})[name].tolist() == ["a"]
    with pytest.raises(lf.SchemaError, match="Days"):
        extract({name: Days}, {name: "2024-01-01"})


def test_defaults_are_not_taken_for_parts_of_a_schema() -> None:
    assert extract(Tagged, {"type": "a"}).llm.status().tolist() == ["ok"]


@dataclasses.dataclass
class Counted:
    a: int
    total: int = dataclasses.field(default=9, init=False)


@dataclasses.dataclass
class Started:
    a: int
    seed: dataclasses.InitVar[int]


class Typed(TypedDict):  # of `typing`, which pydantic refuses below Python 3.12
    a: int


def test_what_a_dataclass_sets_itself_is_not_asked_for() -> None:
    assert extract(Counted, {"a": 1}).columns.tolist() == ["text", "a"]
    out = extract({"x": Counted}, {"x": {"a": 1}})
    assert out["x"].tolist() == [{"a": 1, "total": 9}]
    with pytest.raises(lf.SchemaError, match="field 'seed' of Started is an InitVar"):
        form(Started)


def test_a_typed_dict_of_typing_inside_a_dict_of_types() -> None:
    out = extract({"x": Typed, "many": list[Typed]}, {"x": {"a": 1}, "many": [{"a": 2}]})
    assert out.loc[0, ["x", "many"]].tolist() == [{"a": 1}, [{"a": 2}]]


class Nested(BaseModel):
    v: int
    n: Nested | None = None


class Pair(BaseModel):
    first: Nested
    rest: list[Nested]


def test_flatten_leaves_a_model_inside_itself_one_cell() -> None:
    reply = {"v": 1, "n": {"v": 2, "n": {"v": 3, "n": None}}}
    out = extract(Nested, reply, flatten=True).drop(columns="text")
    assert out.loc[0].to_dict() == {"v": 1, "n.v": 2, "n.n": {"v": 3, "n": None}}
    out = extract(Pair, {"first": reply, "rest": []}, flatten=True)
    assert out.columns.tolist() == ["text", "first.v", "first.n", "rest"]
    assert out["first.n"].tolist() == [reply["n"]]


@pytest.mark.parametrize("most", [10**20, 10**400], ids=["20", "400"])
def test_a_bound_beyond_64_bits_is_sent_and_checked(most: int) -> None:
    asked = {"x": Annotated[int, Field(le=most, ge=1)], "y": Annotated[float, Field(ge=-(10**20))]}
    assert extract(asked, {"x": 3, "y": 0.5})[["x", "y"]].to_numpy().tolist() == [[3, 0.5]]
    assert failure(asked, {"x": 0, "y": 0.5})[0] == "invalid_output"
    raw = {
        "type": "object",
        "properties": {"x": {"type": "integer", "maximum": most}},
        "required": ["x"],
    }
    assert extract(raw, {"x": 3})["x"].tolist() == [3]


def test_a_float_is_held_to_a_bound_beyond_64_bits() -> None:
    raw = {
        "type": "object",
        "properties": {"x": {"type": "number", "maximum": 10**20}},
        "required": ["x"],
    }
    assert failure(raw, {"x": 1.5e20})[0] == "invalid_output"
    assert extract(raw, {"x": 1e20})["x"].tolist() == [1e20]


class Asserts(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def above(cls, value: int) -> int:
        if value <= 3:
            raise AssertionError  # as a bare assert does, which pytest would give words
        return value


def test_a_bare_assert_names_its_validator() -> None:
    kind, message = failure(Asserts, {"a": 1})
    assert kind == "invalid_output"
    assert message == "a: the validator Asserts.above turned it down without a message, got 1"


class Endless(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def again(cls, value: int) -> int:
        return cls.again(value)


def test_endless_recursion_of_a_validator_is_the_users_code() -> None:
    kind, message = failure(Endless, {"a": 1})
    assert kind == "user_code"
    assert "RecursionError" in message
    deep = '{"x":' + "[" * 600 + "]" * 600 + "}"
    assert failure({"x": list[Any]}, deep)[0] == "invalid_output"


class Example(BaseModel):
    day: date = Field(alias="DAY")
    n: int


@dataclasses.dataclass
class Dated:
    day: date


def test_an_example_may_be_an_instance_of_the_schema() -> None:
    def asked(schema: Any, answer: Any) -> str:
        engine = lf.testing.FakeEngine(schema)
        frame = pd.DataFrame({"text": ["a"]})
        frame.llm.extract(
            "text", type(answer), model=engine, examples=[({"text": "q"}, answer)], progress=False
        )
        return next(
            message["content"]
            for message in engine.requests[0].messages
            if message["role"] == "assistant"
        )

    reply = {"DAY": "2024-01-01", "n": 1}
    assert json.loads(asked(reply, Example(DAY=date(2024, 1, 1), n=1))) == reply
    dated = {"day": "2024-01-01"}
    assert json.loads(asked(dated, Dated(date(2024, 1, 1)))) == dated


@pytest.mark.parametrize("kind", [["Spam", "Ham"], [0.5, 1.5]])
def test_a_label_that_is_said_twice_fits_once(kind: list[Any]) -> None:
    a, b = kind
    engine = lf.testing.FakeEngine(json.dumps({"label": [str(b), str(a), str(b)]}))
    frame = pd.DataFrame({"text": ["a"]})
    out = frame.llm.classify("text", kind, multi=True, model=engine, progress=False)
    assert out["label"].tolist() == [[b, a]]

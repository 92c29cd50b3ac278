"""Rules of schemas that answers, frames or wires did not hold to, each as it was found."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pandas as pd
import pytest
from pydantic import BaseModel, Field

import llmframe as lf
from llmframe.errors import SchemaError
from llmframe.schemas.dialects import anthropic, llama_grammar, openai_strict, xgrammar
from llmframe.schemas.forms import form, form_from

pa = pytest.importorskip("pandera.pandas")
pandas_engine = pytest.importorskip("pandera.engines.pandas_engine")
pyarrow = pytest.importorskip("pyarrow")

FRAME = pd.DataFrame({"t": ["a"]})


def asked(schema: Any, answer: Any, **keywords: Any) -> pd.DataFrame:
    engine = lf.testing.FakeEngine(json.dumps(answer))
    made: pd.DataFrame = FRAME.llm.extract(
        "t", schema, model=engine, errors="coerce", progress=False, cache=False, **keywords
    )
    return made


def told(frame: pd.DataFrame) -> str:
    failed = frame.llm.failures()
    assert failed.kind.tolist() == ["invalid_output"]
    return str(failed.message.iloc[0])


# -- pandera --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", pd.Float32Dtype(), pd.ArrowDtype(pyarrow.float32())])
def test_a_number_beyond_a_narrow_float_is_no_answer(dtype: Any) -> None:
    schema = pa.DataFrameSchema({"f": pa.Column(dtype)}, coerce=True)
    assert "f: lies outside ±3.4028e+38" in told(asked(schema, {"f": 1e39}))
    assert "f: lies outside" in told(asked(schema, {"f": -(10**39)}))
    kept = asked(schema, {"f": 3e38})
    assert kept.f.notna().all()
    assert schema.validate(kept).f.tolist() == [pytest.approx(3e38)]


# Not `pa.Decimal`: pandera makes it this one, and up to 0.33 refuses it in a column.
@pytest.mark.parametrize(
    "dtype", [pandas_engine.Decimal(4, 2), pd.ArrowDtype(pyarrow.decimal128(4, 2))]
)
def test_a_decimals_digits_are_told_and_held(dtype: Any) -> None:
    schema = pa.DataFrameSchema({"d": pa.Column(dtype)})
    assert "at most 2 digits before the point" in told(asked(schema, {"d": "123.45"}))
    assert "at most 2 digits after the point" in told(asked(schema, {"d": "1.234"}))
    right = asked(schema, {"d": "-1.23"})
    assert schema.validate(right).d.tolist() == [Decimal("-1.23")]
    node = form(schema).schema["properties"]["d"]  # type: ignore[index]
    assert (node["max_digits"], node["decimal_places"]) == (4, 2)
    # Told and held, and no part of the key: what was asked before is not asked again.
    assert "max_digits" not in str(form(schema).normal)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("0.00", True),
        ("0", True),
        ("1E+1", True),
        ("1E+2", False),
        ("01.50", True),
        ("99.99", True),
        ("100", False),
        ("1.230", True),
        ("1E+999999999", False),
    ],
)
def test_a_class_and_its_schema_alone_count_digits_alike(text: str, right: bool) -> None:
    kind = Annotated[Decimal, Field(max_digits=4, decimal_places=2)]
    own = form({"d": kind})
    alone = form_from({**own.stored(), "code": None})
    for each in (own, alone):
        assert (each.check({"d": text}).failure is None) == right, each


def test_a_parser_is_refused_before_anything_is_sent() -> None:
    up = pa.Parser(lambda column: column.str.upper())
    engine = lf.testing.FakeEngine('{"n": "abc"}')
    for schema in (
        pa.DataFrameSchema({"n": pa.Column(str, parsers=up)}),
        pa.DataFrameSchema({"n": pa.Column(str)}, parsers=pa.Parser(lambda frame: frame)),
    ):
        with pytest.raises(SchemaError, match=r"has a parser.*validate\(\)"):
            FRAME.llm.extract("t", schema, model=engine)
    assert not engine.requests

    class Model(pa.DataFrameModel):
        n: str

        @pa.parser("n")
        def up(cls, column: Any) -> Any:  # noqa: N805 - as pandera writes it
            return column.str.upper()

    with pytest.raises(SchemaError, match="the pandera column 'n' has a parser"):
        form(Model)
    own = pa.DataFrameSchema({"t": pa.Column(str, parsers=up), "k": pa.Column(str)})
    assert asked(own, {"k": "a"}).k.tolist() == ["a"]  # of a column that the frame has: its own


def test_a_pandera_default_stands_for_null() -> None:
    schema = pa.DataFrameSchema(
        {
            "n": pa.Column("Int64", pa.Check.ge(2), default=4, nullable=True),
            "k": pa.Column(str),
        }
    )
    made = asked(schema, {"n": None, "k": "a"})
    assert made.n.tolist() == [4]
    assert schema.validate(made).n.tolist() == [4]
    assert asked(schema, {"n": 7, "k": "a"}).n.tolist() == [7]


@pytest.mark.parametrize("nothing", [float("nan"), pd.NA, pd.NaT])
def test_a_default_that_is_missing_is_none(nothing: Any) -> None:
    schema = pa.DataFrameSchema({"n": pa.Column("Int64", default=nothing, nullable=True)})
    assert form(schema).check({"n": None}).values == (None,)
    assert form(schema).code is None


def test_a_category_that_json_cannot_carry_is_refused() -> None:
    kind = pd.CategoricalDtype([pd.Timestamp("2024-01-01")])
    with pytest.raises(SchemaError, match="category Timestamp"):
        form(pa.DataFrameSchema({"x": pa.Column(kind)}))


def test_unsigned_integers_of_64_bits_fit() -> None:
    schema = pa.DataFrameSchema({"u": pa.Column("uint64")}, coerce=True)
    made = asked(schema, {"u": 2**64 - 1})
    assert made.u.tolist() == [2**64 - 1]
    assert schema.validate(made).u.tolist() == [2**64 - 1]
    assert "more than 64 bits" in told(asked(schema, {"u": 2**64}))
    assert "u: should be at least 0" in told(asked(schema, {"u": -1}))
    with_gap = FRAME.llm.extract("t", schema, model=lf.testing.FakeEngine("no"), errors="coerce")
    assert str(with_gap.u.dtype) == "UInt64"


@pytest.mark.parametrize(
    ("dtype", "answer"),
    [
        ("timedelta64[ns]", "P1D"),
        (pa.Date, "2024-02-29"),
        (pd.ArrowDtype(pyarrow.decimal128(4, 2)), "1.23"),
        (pd.ArrowDtype(pyarrow.date32()), "2024-02-29"),
    ],
)
def test_the_declared_dtype_comes_back(dtype: Any, answer: str) -> None:
    schema = pa.DataFrameSchema({"x": pa.Column(dtype, nullable=True)})
    for one in (answer, None):
        made = asked(schema, {"x": one})
        assert made.llm.status().tolist() == ["ok"]
        schema.validate(made)
    again = form_from(form(schema).stored())
    assert again.fields[0].dtype == form(schema).fields[0].dtype


def test_a_duration_that_no_column_holds_is_no_answer() -> None:
    schema = pa.DataFrameSchema({"x": pa.Column("timedelta64[ns]")})
    assert "292 years or more" in told(asked(schema, {"x": "P200000D"}))


# -- multiples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "value", "right"),
    [
        (0.01, 19.99, True),
        (0.01, 4.35, True),
        (0.01, 1.005, False),
        (0.01, 1e300, True),
        (0.1, 0.3, True),
        (0.1, -0.3, True),
        (0.1, 0.35, False),
        (0.1, 0.30000000000000004, False),
        (1, 2.0, True),
        (5, 10, True),
        (5, 11, False),
    ],
)
def test_multiples_are_counted_in_digits(step: float, value: float, right: bool) -> None:
    node = {"type": "number", "multipleOf": step}
    checked = form({"type": "object", "properties": {"x": node}, "required": ["x"]}).check(
        {"x": value}
    )
    assert (checked.failure is None) == right
    if not right:
        assert f"x: should be a multiple of {step}" in str(checked.failure)


# -- named and further keys -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^x": {"type": "integer"}}},
        {"unevaluatedProperties": {"type": "integer"}},
    ],
)
def test_named_fields_with_a_rule_for_further_keys_are_refused(rule: dict[str, Any]) -> None:
    inner = {"type": "object", "properties": {"k": {"type": "string"}}, **rule}
    engine = lf.testing.FakeEngine({"m": {"k": "a", "x": 5}})
    whole = {"type": "object", "properties": {"m": inner}, "required": ["m"]}
    with pytest.raises(SchemaError, match=f"at 'm' names fields and has {next(iter(rule))}"):
        FRAME.llm.extract("t", whole, model=engine)
    with pytest.raises(SchemaError, match="a field of their own"):
        form(inner)
    assert not engine.requests
    # Either alone is asked for.
    free = {"type": "object", **rule}
    if "unevaluatedProperties" not in rule:
        form({"type": "object", "properties": {"m": free}, "required": ["m"]})


def test_a_class_that_types_its_extra_keys_is_refused() -> None:
    class Open(BaseModel, extra="allow"):
        __pydantic_extra__: dict[str, int] = Field(init=False)
        k: str

    with pytest.raises(SchemaError, match="names fields and has additionalProperties"):
        form(Open)


# -- fields that may be left out ------------------------------------------------------------------


class Inner(BaseModel):
    n: int = 3


class Loose(BaseModel):
    a: int
    b: str = "q"
    tags: list[str] = Field(default_factory=list, description="what it is about")
    inner: Inner = Inner()
    when: date | None = None
    kind: Literal["x"] = "x"


LOOSE_JSON = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
}


@pytest.mark.parametrize("dialect", [openai_strict, anthropic, xgrammar])
def test_what_may_be_left_out_may_be_null_on_the_wire(dialect: Any) -> None:
    wire = dialect(form(Loose).schema)
    assert wire["required"] == list(Loose.model_fields)
    null = {"type": "null"}
    properties = wire["properties"]
    assert properties["a"] == {"type": "integer"}
    assert properties["b"] == {"anyOf": [{"type": "string"}, null]}
    assert properties["tags"]["anyOf"][1:] == [null]
    assert properties["tags"]["description"] == "what it is about"
    assert properties["inner"]["anyOf"][1:] == [null]
    assert properties["when"]["anyOf"].count(null) == 1
    assert properties["kind"] == {"type": "string", "enum": ["x"]}  # nothing to invent
    assert dialect(form(LOOSE_JSON).schema)["properties"]["b"]["anyOf"][1:] == [null]


def test_null_for_what_may_be_left_out_is_left_out() -> None:
    reply = {"a": 1, "b": None, "tags": None, "inner": {"n": None}, "when": None, "kind": "x"}
    own = form(Loose)
    alone = form_from({**own.stored(), "code": None})  # which knows of no default_factory
    for each, tags in ((own, []), (alone, None)):
        assert each.at_once(json.dumps(reply)) is None
        checked = each.check(reply)
        assert checked.failure is None
        assert checked.values == (1, "q", tags, {"n": 3}, None, "x")
        assert {"b", "tags", "inner.n"} <= set(checked.coerced)
    made = asked(LOOSE_JSON, {"a": 1, "b": None})
    assert made.b.isna().all()
    assert made.llm.status().tolist() == ["ok"]
    # What has to be there is no less so than before.
    assert "a: should be integer, got null" in told(asked(LOOSE_JSON, {"a": None, "b": "x"}))


def test_nulls_for_what_may_be_left_out_break_no_limit() -> None:
    properties = {f"f{n}": {"type": "string"} for n in range(60)}
    schema = {"type": "object", "properties": properties, "required": ["f1"]}
    wire = anthropic(form(schema).schema)
    assert wire["required"] == list(properties)
    assert wire["properties"]["f0"] == {"type": "string"}


def test_a_schema_that_requires_nothing_asks_for_all_as_it_is() -> None:
    wire = openai_strict(form({**LOOSE_JSON, "required": []}).schema)
    assert wire["properties"]["b"] == {"type": "string"}


def test_the_embedded_models_grammar_has_the_null() -> None:
    grammar = llama_grammar(form(LOOSE_JSON).schema)
    assert grammar.count("| null") == 1


# -- if_exists="fill" and strict ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "kept"), [(int, "hello"), (int, 2.5), (bool, 1), (datetime, "2024-01-01"), (str, 5)]
)
def test_cells_that_a_filled_column_cannot_hold_are_refused(kind: Any, kept: Any) -> None:
    frame = pd.DataFrame({"t": ["p", "q"], "x": pd.Series([None, kept], dtype=object)})
    engine = lf.testing.FakeEngine('{"x": 1}')
    with pytest.raises(SchemaError, match=r"would keep .* in column 'x' \(row 1\)"):
        frame.llm.extract("t", {"x": kind}, model=engine, if_exists="fill")
    assert not engine.requests


def test_cells_that_it_can_hold_stay() -> None:
    frame = pd.DataFrame({"t": ["p", "q"], "x": [None, 7.0], "y": [None, "zzz"]})
    schema = {"x": int, "y": Literal["a", "b"]}
    engine = lf.testing.FakeEngine('{"x": 1, "y": "a"}')
    made = frame.llm.extract("t", schema, model=engine, if_exists="fill")
    assert (made.x.tolist(), str(made.x.dtype)) == ([1, 7], "Int64")
    assert made.y.cat.categories.tolist() == ["a", "b", "zzz"]


def test_details_are_columns_that_a_strict_schema_does_not_name() -> None:
    schema = pa.DataFrameSchema({"t": pa.Column(str), "n": pa.Column("Int64")}, strict=True)
    engine = lf.testing.FakeEngine('{"n": 1}')
    with pytest.raises(SchemaError, match="details=True adds 'llm_status'"):
        FRAME.llm.extract("t", schema, model=engine, details=True)
    assert not engine.requests
    assert schema.validate(asked(schema, {"n": 1})).n.tolist() == [1]

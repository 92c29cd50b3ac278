"""pandera's schemas as forms."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

pa = pytest.importorskip("pandera.pandas")

from llmframe.errors import SchemaError  # noqa: E402
from llmframe.schemas.forms import form, form_from  # noqa: E402


class Tickets(pa.DataFrameModel):
    label: pd.CategoricalDtype = pa.Field(
        dtype_kwargs={"categories": ["low", "high"], "ordered": True}
    )
    stars: int = pa.Field(ge=1, le=5, description="how good")
    share: float = pa.Field(in_range={"min_value": 0, "max_value": 1}, nullable=True)
    code: str = pa.Field(str_length={"min_value": 1, "max_value": 3}, str_matches="[A-Z]+")
    topic: str = pa.Field(isin=["bug", "praise"], alias="kind of")
    at: pd.DatetimeTZDtype = pa.Field(dtype_kwargs={"unit": "ns", "tz": "UTC"})
    day: pd.Timestamp = pa.Field(ge=pd.Timestamp("2020-01-01"))
    done: bool
    count: pd.UInt8Dtype = pa.Field(notin=[3])

    @pa.check("stars", element_wise=True)
    def odd(cls, value: int) -> bool:  # noqa: N805 - as pandera writes it
        if value == 4:
            raise RuntimeError("no fours")
        return value % 2 == 1


GOOD: dict[str, Any] = {
    "label": "low",
    "stars": 3,
    "share": None,
    "code": "ABC",
    "kind of": "bug",
    "at": "2024-01-01T12:00:00+02:00",
    "day": "2024-01-01",
    "done": True,
    "count": 4,
}


def test_columns_checks_and_descriptions_become_one_form() -> None:
    asked = form(Tickets)
    assert [(field.name, field.kind, field.nullable) for field in asked.fields] == [
        ("label", "category", False),
        ("stars", "int", False),
        ("share", "float", True),
        ("code", "str", False),
        ("kind of", "category", False),
        ("at", "datetime_utc", False),
        ("day", "datetime", False),
        ("done", "bool", False),
        ("count", "int", False),
    ]
    assert asked.fields[0].categories == ("low", "high")
    assert asked.fields[0].ordered
    assert not asked.fields[4].ordered
    assert not asked.bare
    assert asked.schema is not None
    assert asked.schema["properties"]["stars"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "description": "how good",
    }
    values = asked.check(GOOD).values
    assert values is not None
    assert values[:5] == ("low", 3, None, "ABC", "bug")
    assert values[5] == datetime(2024, 1, 1, 10, tzinfo=UTC)
    assert form(Tickets.to_schema()).normal == asked.normal


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", "mid"),
        ("stars", 0),
        ("stars", 2),
        ("stars", True),
        ("share", 1.5),
        ("code", "abc"),
        ("code", "ABCD"),
        ("kind of", "other"),
        ("at", "2024-01-01T12:00:00"),
        ("day", "2019-12-31"),
        ("done", 1),
        ("count", 256),
        ("count", -1),
        ("count", 3),
        ("code", None),
    ],
)
def test_each_check_is_held_on_each_row(name: str, value: object) -> None:
    failure = form(Tickets).check({**GOOD, name: value}).failure
    assert failure is not None
    assert failure.kind == "invalid_output"
    assert name in failure.message


def test_a_check_that_breaks_is_the_users_fault() -> None:
    failure = form(Tickets).check({**GOOD, "stars": 4}).failure
    assert failure is not None
    assert failure.kind == "user_code"
    assert "no fours" in failure.message


def test_a_schema_of_built_in_checks_needs_no_code() -> None:
    schema = pa.DataFrameSchema(
        {"a": pa.Column(int, pa.Check.gt(0)), "b": pa.Column(str, pa.Check.isin({"y", "x", "z"}))}
    )
    asked = form(schema)
    assert asked.code is None
    assert asked.fields[1].categories == ("x", "y", "z")  # a set has no order: sorted
    again = form_from(asked.stored())
    assert again.check({"a": 1, "b": "x"}).values == (1, "x")
    assert again.check({"a": 0, "b": "x"}).failure is not None
    with_code = form(Tickets)
    assert with_code.code == f"{__name__}:Tickets"
    assert form_from(with_code.stored()).check({**GOOD, "stars": 2}).failure is not None


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (pa.DataFrameSchema({"a": pa.Column(object)}), "'a' has the dtype"),
        (pa.DataFrameSchema({"a": pa.Column("category")}), "without categories"),
        (pa.DataFrameSchema({"a.*": pa.Column(int, regex=True)}), "no single name"),
        (pa.DataFrameSchema({}), "no columns"),
        (pa.DataFrameSchema, "Pass a DataFrameModel"),
    ],
)
def test_what_no_model_can_be_asked_for_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        form(schema)


def test_what_one_answer_cannot_show_is_kept_for_the_whole_frame() -> None:
    mean = pa.Check(lambda column: column.mean() > 0)
    paired = pa.Check(lambda frame: frame["a"] > frame["b"])
    schema = pa.DataFrameSchema(
        {"a": pa.Column(int, [pa.Check.gt(0), mean], unique=True), "b": pa.Column(int)},
        checks=[paired, pa.Check(lambda frame: False, raise_warning=True)],
        unique=["a", "b"],
    )
    whole = form(schema).whole
    assert whole is not None
    assert whole.checks == (("a", mean), (None, paired))
    assert whole.unique == (("a",), ("a", "b"))
    # Elsewhere the code of these checks is needed, and no other.
    assert form(schema).code is not None
    failure = form_from(form(schema).stored()).check({"a": 1, "b": 2}).failure
    assert failure is not None
    assert failure.kind == "needs_code"
    part = form(schema, have=["b"])
    assert [field.name for field in part.fields] == ["a"]
    assert part.whole is not None
    assert part.whole.unique == (("a",), ("a", "b"))
    alone = form(pa.DataFrameSchema({"a": pa.Column(int, pa.Check.gt(0))})).whole
    assert alone is not None
    assert not alone.joint


def test_the_declared_dtype_is_the_columns() -> None:
    asked = form(Tickets)
    assert {field.name: field.dtype for field in asked.fields} == {
        "label": None,
        "stars": "Int64",
        "share": "Float64",
        "code": "str",
        "kind of": "str",
        "at": "datetime64[ns, UTC]",
        "day": "datetime64[ns]",
        "done": "boolean",
        "count": "UInt8",
    }
    again = form_from(asked.stored())
    assert [field.dtype for field in again.fields] == [field.dtype for field in asked.fields]

"""Nested fields as Arrow columns: what they are, what they hold, and how they travel."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import pandas as pd
import pyarrow as pa
import pytest
from pydantic import AwareDatetime, BaseModel, Field
from typing_extensions import TypedDict

import llmframe as lf
from llmframe.arrow import arrow_type, arrow_value
from llmframe.schemas.forms import form, form_from
from llmframe.table_files import read_table


class Place(BaseModel):
    city: str
    zip: str | None = None


class Tree(BaseModel):
    name: str
    children: list[Tree]


class Partly(TypedDict):
    a: int
    b: NotRequired[str]


@dataclass
class Line:
    sku: str
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)]


PLACE = "struct<city: string, zip: string>"
Money = Annotated[Decimal, Field(max_digits=12, decimal_places=2)]


@pytest.mark.parametrize(
    ("type_", "arrow"),
    [
        (Place, PLACE),
        (Place | None, PLACE),
        (list[Place], f"list<item: {PLACE}>"),
        (list[Place | None], f"list<item: {PLACE}>"),
        (Line, "struct<sku: string, price: decimal128(8, 2)>"),
        (Partly, "struct<a: int64, b: string>"),
        (list[str], "list<item: string>"),
        (set[int], "list<item: int64>"),
        (tuple[float, float], "list<item: double>"),
        (tuple[int, ...], "list<item: int64>"),
        (list[Literal["a", "b"]], "list<item: string>"),
        (list[list[bool]], "list<item: list<item: bool>>"),
        (dict[str, int], "map<string, int64>"),
        (dict[int, list[Place]], f"map<string, list<item: {PLACE}>>"),
        (list[dt.date], "list<item: date32[day]>"),
        (list[dt.datetime], "list<item: timestamp[us]>"),
        (list[AwareDatetime], "list<item: timestamp[us, tz=UTC]>"),
        (list[dt.time], "list<item: time64[us]>"),
        (list[dt.timedelta], "list<item: duration[us]>"),
        (dt.date, "date32[day]"),
        (dt.time, "time64[us]"),
        (dt.timedelta, "duration[us]"),
        (bytes, "binary"),
        (Money, "decimal128(12, 2)"),
        (list[Money], "list<item: decimal128(12, 2)>"),
        # A Decimal without a bound on its digits is text where a list holds it.
        (list[Decimal], "list<item: string>"),
        (Decimal, None),
        (Annotated[Decimal, Field(max_digits=50, decimal_places=2)], None),
        (Annotated[Decimal, Field(decimal_places=2)], None),
        (int | str, None),
        (list[int | str], None),
        (tuple[int, str], None),
        (dict[str, Any], None),
        (list[Any], None),
        (Literal[1, "a"], None),
        (Tree, None),
        (list[Tree], None),
    ],
)
def test_what_a_field_is_in_arrow(type_: Any, arrow: str | None) -> None:
    asked = form({"x": type_})
    for each in (asked, form_from(json.loads(json.dumps(asked.stored())))):
        [field] = each.fields
        kind = arrow_type(field.schema, field.defs)
        assert (None if kind is None else str(kind)) == arrow


class Order(BaseModel):
    at: Place
    lines: list[Line]
    hours: dict[str, list[int]]
    due: dt.date
    sent: list[dt.datetime]
    total: Money
    exact: list[Decimal]
    one: int | str


ANSWER = {
    "at": {"city": "Oslo", "zip": "00501"},
    "lines": [{"sku": "a", "price": "12.30"}, {"sku": "b", "price": "0.5"}],
    "hours": {"mon": [8, 9007199254740993], "sun": []},
    "due": "2024-01-02",
    "sent": ["2024-01-02T03:04:05+01:00", "2024-01-02T03:04:05"],
    "total": "1234567890.12",
    "exact": ["0.12345678901234567890123456789012345678901"],
    "one": "x",
}
DF = pd.DataFrame({"t": ["good", "bad"]}, index=[7, 7])


def extracted(data: pd.DataFrame, **more: Any) -> pd.DataFrame:
    engine = lf.testing.FakeEngine(lf.testing.answers({"good": ANSWER}, default="no idea"))
    given = {"dtype_backend": "pyarrow", "repairs": 0, "errors": "coerce", **more}
    out: pd.DataFrame = data.llm.extract("t", Order, model=engine, **given)
    return out


def test_u160_nested_values_are_structs_lists_and_maps() -> None:
    out = extracted(DF)
    assert out.llm.status().tolist() == ["ok", "failed"]
    assert {name: str(dtype) for name, dtype in out.dtypes.iloc[1:].items()} == {
        "at": f"{PLACE}[pyarrow]",
        "lines": "list<item: struct<sku: string, price: decimal128(8, 2)>>[pyarrow]",
        "hours": "map<string, list<item: int64>>[pyarrow]",
        "due": "date32[day][pyarrow]",
        "sent": "list<item: timestamp[us]>[pyarrow]",
        "total": "decimal128(12, 2)[pyarrow]",
        "exact": "list<item: string>[pyarrow]",
        "one": "object",
    }
    assert out.iloc[1, 1:].isna().all()
    assert out["at"].struct.field("zip").iloc[0] == "00501"
    cells = out.iloc[0, 1:].to_dict()
    assert cells == {
        "at": {"city": "Oslo", "zip": "00501"},
        "lines": [
            {"sku": "a", "price": Decimal("12.30")},
            {"sku": "b", "price": Decimal("0.50")},
        ],
        "hours": [("mon", [8, 9007199254740993]), ("sun", [])],
        "due": dt.date(2024, 1, 2),
        "sent": [dt.datetime(2024, 1, 2, 2, 4, 5), dt.datetime(2024, 1, 2, 3, 4, 5)],
        "total": Decimal("1234567890.12"),
        "exact": ["0.12345678901234567890123456789012345678901"],
        "one": "x",
    }


def test_u140_the_types_follow_from_the_arguments_alone() -> None:
    full = extracted(DF[:1]).dtypes
    assert extracted(DF[1:]).dtypes.equals(full)
    assert extracted(DF[:0]).dtypes.equals(full)


def test_they_travel(tmp_path: Path) -> None:
    out = extracted(DF)
    assert pickle.loads(pickle.dumps(out)).equals(out)
    assert pd.concat([out, extracted(DF[:0]), extracted(DF[1:])]).dtypes.equals(out.dtypes)
    assert out.copy().dtypes.equals(out.dtypes)
    path = tmp_path / "x.parquet"
    out.to_parquet(path)
    ways = [read_table(path)]
    if int(pa.__version__.partition(".")[0]) >= 19:  # older ones trip over the types' names
        ways.append(pd.read_parquet(path, dtype_backend="pyarrow"))
    for back in ways:
        made = out.columns.difference(["t", "one"])
        assert back[made].dtypes.equals(out[made].dtypes)
        for name in made:
            assert back[name].isna().tolist() == [False, True], name
            assert back[name].iloc[0] == out[name].iloc[0], name


def test_in_a_prompt_they_read_as_the_same_json() -> None:
    engine = lf.testing.FakeEngine("fine")
    prompt = "{at} {lines} {hours}"
    texts = [
        extracted(DF[:1], dtype_backend=backend).llm.plan.map(prompt, model=engine).prompts
        for backend in (None, "pyarrow")
    ]
    assert '{"mon": [8, 9007199254740993], "sun": []}' in str(texts[0])
    assert str(texts[0]).replace('"0.5"', '"0.50"') == str(texts[1])


def test_filling_keeps_what_is_there_and_asks_the_rest() -> None:
    out = extracted(DF).reset_index(drop=True)
    places = lf.testing.FakeEngine({"at": {"city": "Rome", "zip": None}})
    given: dict[str, Any] = {"model": places, "if_exists": "fill", "dtype_backend": "pyarrow"}
    filled = out[["t", "at"]].llm.extract("t", {"at": Place}, **given)
    assert filled["at"].tolist() == [ANSWER["at"], {"city": "Rome", "zip": None}]
    assert filled["at"].dtype == out["at"].dtype
    # What the type does not hold is refused before anything is sent, as with other dtypes.
    asked = len(places.requests)
    odd = pd.DataFrame({"t": ["a", "b"], "at": [{"street": 1, "no": 2, "x": 3}, None]})
    with pytest.raises(lf.SchemaError, match=r"would keep \{'street': 1, .* cannot hold"):
        odd.llm.extract("t", {"at": Place}, **given)
    assert len(places.requests) == asked


def test_names_of_the_wire_and_of_the_class() -> None:
    class Aliased(BaseModel):
        name: str = Field(alias="Name of it")
        n: int = Field(alias="count")

    [field] = form({"x": Aliased}).fields
    checked = form({"x": Aliased}).check({"x": {"Name of it": "a", "count": 3}})
    assert checked.values is not None
    kind = arrow_type(field.schema, field.defs)
    assert arrow_value(kind, checked.values[0]) == {"Name of it": "a", "count": 3}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), True),
        (pa.int64(), 1.5),
        (pa.string(), 5),
        (pa.bool_(), 1),
        (pa.float64(), True),
        (pa.float64(), "x"),
        (pa.list_(pa.int64()), "12"),
        (pa.date32(), "2024-01-02"),
        (pa.timestamp("us"), dt.date(2024, 1, 2)),
        (pa.struct([("a", pa.int64())]), [("a", 1)]),
        (pa.struct([("a", pa.int64())]), {"b": 1, "c": 2}),
        (pa.map_(pa.string(), pa.int64()), {1: 2}),
    ],
)
def test_what_is_none_of_a_type_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r" is no | has other keys"):
        arrow_value(kind, value)


def test_clocks_and_halves_of_characters() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    noon = dt.datetime(2024, 1, 2, 12, tzinfo=zone)
    assert arrow_value(pa.timestamp("us"), noon) == dt.datetime(2024, 1, 2, 10)
    assert arrow_value(pa.timestamp("us", tz="UTC"), noon) == noon
    assert arrow_value(pa.time64("us"), dt.time(1, tzinfo=zone)) == dt.time(23)
    assert arrow_value(pa.string(), "bad \ud83d") == "bad ?"


def test_labels_of_several_are_lists_and_mixed_ones_objects() -> None:
    engine = lf.testing.FakeEngine({"label": ["a"]})
    given: dict[str, Any] = {"model": engine, "dtype_backend": "pyarrow"}
    out = DF.llm.classify("t", ["a", "b"], multi=True, **given)
    assert str(out["label"].dtype) == "list<item: string>[pyarrow]"
    mixed = lf.testing.FakeEngine({"label": ["1.5"]})
    out = DF.llm.classify("t", [1.5, "b"], multi=True, **(given | {"model": mixed}))
    assert out["label"].tolist() == [[1.5], [1.5]]
    assert out["label"].dtype == object


def test_a_file_that_pandas_did_not_write_keeps_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"a": [1]}), path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("a type that pandas does not know")

    monkeypatch.setattr(pd, "read_parquet", refuse)
    with pytest.raises(NotImplementedError, match="a type that pandas does not know"):
        read_table(path)

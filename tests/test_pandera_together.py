"""What a pandera schema says of several rows: asked again once, then failed, in every way to run.

The answers come from a script: text of the row → its first reply, and what it says when it is
told that this was wrong.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmframe as lf
from llmframe.requests import Request
from llmframe.results import Failure
from llmframe.testing import FakeBatchEngine, FakeEngine
from tests.servers.chat import ChatServer, Seen

pa = pytest.importorskip("pandera.pandas")

TOLD = "Your last answer was not valid."


def scripted(first: Mapping[str, Any], second: Mapping[str, Any] | None = None) -> Any:
    """An answer function for an engine, and the list of the texts it was sent."""
    told: list[str] = []

    def answer(request: Request) -> Any:
        text = " ".join(str(message["content"]) for message in request.messages)
        told.append(text)
        row = next(row for row in first if f"<{row}>" in text)
        return (second or {}).get(row, first[row]) if TOLD in text else first[row]

    return answer, told


def frame(rows: str, index: Any = None, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"<{row}>" for row in rows], **columns}, index=index)


def again(told: list[str]) -> list[str]:
    return [text for text in told if TOLD in text]


class Code(pa.DataFrameModel):
    code: str = pa.Field(unique=True)


def codes(**codes: str) -> dict[str, dict[str, str]]:
    return {row: {"code": code} for row, code in codes.items()}


def test_the_first_of_two_equal_values_stays_and_the_other_is_asked_again() -> None:
    answer, told = scripted(codes(a="x", b="y", c="x"), codes(c="z"))
    engine = FakeEngine(answer)
    df = frame("abc")
    out = df.llm.extract("t", Code, model=engine)
    assert out["code"].tolist() == ["x", "y", "z"]
    assert len(told) == 4
    (text,) = again(told)
    assert "<c>" in text
    assert 'code: has to be unique, and "x" is taken already; so are "y"' in text
    Code.validate(out)
    # The same call sends nothing and comes to the same; so does a join to other rows' order.
    rerun = df.llm.extract("t", Code, model=engine)
    assert rerun["code"].tolist() == ["x", "y", "z"]
    assert rerun.llm.status().tolist() == ["cached"] * 3
    assert df[::-1].llm.extract("t", Code, model=engine)["code"].tolist() == ["z", "y", "x"]
    assert len(told) == 4
    assert out.llm.trace(2).replies[1].asked is not None


def test_what_fails_again_is_a_failed_row_with_the_checks_words() -> None:
    answer, told = scripted(codes(a="x", b="y", c="x"))
    engine = FakeEngine(answer)
    df = frame("abc", index=["r", "r", "s"])
    with pytest.warns(lf.RowsFailedWarning, match=r'1 invalid_output.*retry="all" asks them'):
        out = df.llm.extract("t", Code, model=engine)
    assert out["code"].isna().tolist() == [False, False, True]
    assert out.llm.status().tolist() == ["ok", "ok", "failed"]
    assert len(told) == 4
    failures = out.llm.failures()
    assert failures.index.tolist() == ["s"]
    assert failures["message"].tolist() == [
        'code: has to be unique, and "x" is taken already; so are "y"'
    ]
    assert failures["attempts"].tolist() == [2]
    assert failures["raw"].tolist() == ['{"code": "x"}']
    Code.validate(out[out.llm.status() != "failed"])
    with pytest.warns(lf.RowsFailedWarning):
        rerun = df.llm.extract("t", Code, model=engine)
    assert rerun.llm.status().tolist() == ["cached", "cached", "failed"]
    assert len(told) == 4
    with pytest.warns(lf.RowsFailedWarning):
        df.llm.extract("t", Code, model=engine, retry="all")
    assert len(told) == 5
    with pytest.raises(lf.RowsFailed) as caught:
        df.llm.extract("t", Code, model=engine, errors="raise")
    assert caught.value.failures["position"].tolist() == [2]
    assert caught.value.result["code"].isna().sum() == 1


def test_without_repairs_nothing_is_asked_again_until_they_are_allowed() -> None:
    answer, told = scripted(codes(a="x", b="x"), codes(b="y"))
    engine = FakeEngine(answer)
    out = frame("ab").llm.extract("t", Code, model=engine, repairs=0, errors="coerce")
    assert out.llm.status().tolist() == ["ok", "failed"]
    assert len(told) == 2
    assert frame("ab").llm.plan.extract("t", Code, model=engine).requests == 1
    out = frame("ab").llm.extract("t", Code, model=engine)
    assert out["code"].tolist() == ["x", "y"]
    assert len(told) == 3


def test_a_second_answer_that_cannot_be_read_leaves_the_checks_words() -> None:
    answer, told = scripted(codes(a="x", b="x"), {"b": {"other": 1}})
    df, engine = frame("ab"), FakeEngine(answer)
    for _ in range(2):
        out = df.llm.extract("t", Code, model=engine, errors="coerce")
        assert out.llm.failures()["message"].str.contains("has to be unique").tolist() == [True]
    assert len(told) == 3


def test_a_second_try_without_an_answer_is_asked_again_by_the_same_call() -> None:
    answer, told = scripted(codes(a="x", b="x"), {"b": Failure("refused", "no")})
    df, engine = frame("ab"), FakeEngine(answer)
    job = df.llm.submit.extract("t", Code, model=engine, errors="coerce").wait()
    assert job.failures()["kind"].tolist() == ["refused"]
    assert len(told) == 3
    df.llm.extract("t", Code, model=engine, errors="coerce")
    assert len(again(told)) == 2


class Total(pa.DataFrameModel):
    price: float
    total: int
    note: str = pa.Field(isin=["few", "many"])

    @pa.dataframe_check(error="the total must not be below the price")
    def enough(cls, df: pd.DataFrame) -> pd.Series:  # noqa: N805
        return df["total"] >= df["price"]

    @pa.check("total", error="no total may be twice the mean")
    def even(cls, total: pd.Series) -> pd.Series:  # noqa: N805
        assert str(total.dtype) == "int64"
        assert isinstance(total.index, pd.RangeIndex)
        return total < 2 * total.mean()

    class Config:
        coerce = True


def totals(**totals: int) -> dict[str, dict[str, Any]]:
    return {row: {"total": total, "note": "few"} for row, total in totals.items()}


def test_checks_of_a_column_and_of_the_frame_see_what_the_frame_has_already() -> None:
    answer, told = scripted(totals(a=10, b=10, c=90), totals(b=20, c=12))
    index = pd.MultiIndex.from_tuples([("k", 1), ("k", 1), ("k", 2)])
    df = frame("abc", index=index, price=[1.5, 15.0, 2.0])
    out = df.llm.extract("t", Total, model=FakeEngine(answer))
    assert out["total"].tolist() == [10, 20, 12]
    assert out["price"].tolist() == df["price"].tolist()
    assert out.index.equals(index)
    by_row = {text[text.index("<") + 1]: text for text in again(told)}
    assert sorted(by_row) == ["b", "c"]
    assert 'the total must not be below the price, got {"total": 10' in by_row["b"]
    assert "total: no total may be twice the mean, got 90" in by_row["c"]
    assert all("15.0" not in text and '"price"' not in text for text in told)
    Total.validate(out.reset_index(drop=True))


@pytest.mark.parametrize(
    ("columns", "index", "words"),
    [
        ({"price": [1.0, "much"]}, None, "column 'price' of the frame breaks the check"),
        (
            {"price": [-1.0, -2.0]},
            ["p", "q"],
            "column 'price' of the frame breaks the check greater_than_or_equal_to(0) of "
            "DataFrameSchema in 2 rows: 'p', 'q'",
        ),
        ({"price": [1.0, 2.0], "id": [7, 7]}, None, "in 2 rows: 0, 1"),
    ],
)
def test_rows_that_break_the_schema_already_are_told_before_anything_is_sent(
    columns: dict[str, Any], index: Any, words: str
) -> None:
    answer, told = scripted(codes(a="x", b="y"))
    schema = pa.DataFrameSchema(
        {
            "price": pa.Column(float, pa.Check.ge(0)),
            "id": pa.Column(int, unique=True, required=False),
            "code": pa.Column(str),
        }
    )
    with pytest.raises(lf.SchemaError, match=re.escape(words)) as caught:
        frame("ab", index, **{"id": [1, 2], **columns}).llm.extract(
            "t", schema, model=FakeEngine(answer)
        )
    assert str(caught.value).endswith("Nothing was sent.")
    assert told == []


def test_a_row_that_is_not_asked_may_break_the_schema() -> None:
    answer, _ = scripted(codes(a="x"))
    schema = pa.DataFrameSchema({"t": pa.Column(str), "code": pa.Column(str)})
    df = pd.DataFrame({"t": ["<a>", None]})
    out = df.llm.extract("t", schema, model=FakeEngine(answer))
    assert out.llm.status().tolist() == ["ok", "skipped"]


def test_strict_and_ordered_are_held_against_the_frame_that_comes_back() -> None:
    engine = FakeEngine({"code": "x"})
    df = frame("a", price=[1.0])
    strict = {"price": pa.Column(float), "code": pa.Column(str)}
    with pytest.raises(lf.SchemaError, match=r"is strict, and the frame has 't'"):
        df.llm.extract("t", pa.DataFrameSchema(strict, strict=True), model=engine)
    strict["t"] = pa.Column(str)
    schema = pa.DataFrameSchema(strict, strict=True)
    schema.validate(df.llm.extract("t", schema, model=engine))
    with pytest.raises(lf.SchemaError, match=r"ordered as 'price', 'code', 't', while .* 't', 'pr"):
        df.llm.extract("t", pa.DataFrameSchema(strict, ordered=True), model=engine)
    ordered = {name: strict[name] for name in ("t", "price", "code")}
    schema = pa.DataFrameSchema(ordered, ordered=True)
    schema.validate(df.llm.extract("t", schema, model=engine))
    schema = pa.DataFrameSchema({"code": pa.Column(str)}, strict="filter")
    assert df.llm.extract("t", schema, model=engine).columns.tolist() == ["t", "price", "code"]
    with pytest.raises(lf.SchemaError, match="every column of the pandera schema"):
        df.llm.extract("t", pa.DataFrameSchema({"price": pa.Column(float)}), model=engine)


def test_the_index_of_the_schema_is_checked_where_the_frame_has_it() -> None:
    schema = pa.DataFrameSchema(
        {"code": pa.Column(str, unique=True)}, index=pa.Index(str, pa.Check.str_startswith("r"))
    )
    engine = FakeEngine({"code": "x"})
    with pytest.raises(lf.SchemaError, match=r"the index breaks the check .* in 1 row: 'b'"):
        frame("ab", index=["r1", "b"]).llm.extract("t", schema, model=engine)
    assert engine.requests == []
    frame("a", index=["r1"]).llm.extract("t", schema, model=engine)


def test_an_existing_column_is_an_output_where_the_user_says_so() -> None:
    engine = FakeEngine({"code": "x", "price": 2.0})
    schema = pa.DataFrameSchema({"price": pa.Column(float), "code": pa.Column(str)})
    df = frame("a", price=[1.0])
    assert df.llm.extract("t", schema, model=engine)["price"].tolist() == [1.0]
    replaced = df.llm.extract("t", schema, model=engine, if_exists="replace")
    assert replaced["price"].tolist() == [2.0]
    beside = df.llm.extract("t", schema, model=engine, into={"price": "price_llm"})
    assert beside[["price", "price_llm"]].values.tolist() == [[1.0, 2.0]]
    # What the prompt reads is no answer to it, whatever else is to be replaced.
    read = df.llm.map("{t} {price}", schema, model=engine, if_exists="replace")
    assert read["price"].tolist() == [1.0]
    # The same cell run twice.
    twice = df.llm.extract("t", schema, model=engine).llm.extract("t", schema, model=engine)
    assert twice.columns.tolist() == ["t", "price", "code"]


@pytest.mark.parametrize("errors", ["warn", "coerce"])
def test_a_check_that_names_no_row_is_told_and_blamed_on_none(errors: Any) -> None:
    schema = pa.DataFrameSchema(
        {
            "n": pa.Column(
                int,
                [
                    pa.Check(lambda n: bool(n.mean() > 3), error="the mean is too low"),
                    pa.Check(lambda n: n.nothing),
                ],
            )
        },
        name="Numbers",
    )
    engine = FakeEngine({"n": 1})
    told = r"does not meet Numbers: n: the mean is too low; n: .*it raised AttributeError: .*no row"
    with pytest.warns(UserWarning, match=told):
        out = frame("ab").llm.extract("t", schema, model=engine, errors=errors)
    assert out["n"].tolist() == [1, 1]
    assert len(engine.requests) == 2
    with pytest.raises(lf.RowsFailed, match="the mean is too low") as caught:
        frame("ab").llm.extract("t", schema, model=engine, errors="raise")
    assert len(caught.value.failures) == 0


def test_a_group_that_fails_is_asked_again_whole() -> None:
    schema = pa.DataFrameSchema(
        {
            "shop": pa.Column(str),
            "n": pa.Column(
                int,
                pa.Check(
                    lambda groups: pd.Series({name: n.sum() < 10 for name, n in groups.items()}),
                    groupby="shop",
                    error="a shop's sum must be below 10",
                ),
            ),
        }
    )
    answer, told = scripted(
        {row: {"n": n} for row, n in {"a": 9, "b": 9, "c": 4}.items()},
        {row: {"n": 2} for row in "ab"},
    )
    out = frame("abc", shop=["s", "s", "u"]).llm.extract("t", schema, model=FakeEngine(answer))
    assert out["n"].tolist() == [2, 2, 4]
    assert all("a shop's sum must be below 10" in text for text in again(told))
    assert len(told) == 5


def test_a_check_of_an_own_column_by_groups_of_an_answer_tells_none_of_its_values() -> None:
    schema = pa.DataFrameSchema(
        {
            "price": pa.Column(
                int,
                pa.Check(
                    lambda groups: pd.Series({kind: p.max() < 50 for kind, p in groups.items()}),
                    groupby="kind",
                    error="a kind has prices below 50",
                ),
            ),
            "kind": pa.Column(str),
        }
    )
    answer, told = scripted({"a": {"kind": "x"}, "b": {"kind": "y"}})
    df = frame("ab", price=[77, 5])
    out = df.llm.extract("t", schema, model=FakeEngine(answer), errors="coerce")
    assert out.llm.failures()["message"].tolist() == ["price: a kind has prices below 50"]
    assert len(told) == 3
    assert all("77" not in text for text in told)


def test_unique_together_with_what_the_frame_has_sends_none_of_it() -> None:
    class Slots(pa.DataFrameModel):
        day: str
        slot: int

        class Config:
            unique = ["day", "slot"]  # noqa: RUF012
            coerce = True

    answer, told = scripted(
        {row: {"slot": slot} for row, slot in {"a": 1, "b": 1, "c": 1, "d": 5}.items()},
        {"c": {"slot": 2}},
    )
    days = ["monday", "tuesday", "monday", "monday"]
    df = frame("abcd", day=days)
    out = df.llm.extract("t", Slots, model=FakeEngine(answer))
    assert out["slot"].tolist() == [1, 1, 2, 5]
    (text,) = again(told)
    assert "slot: has to be unique for one day, and 1 is taken already; so are 5" in text
    assert "monday" not in text
    Slots.validate(out)


def test_identical_rows_share_an_answer_and_cannot_be_unique() -> None:
    answer, told = scripted(codes(a="x"), codes(a="y"))
    df, engine = frame("aa"), FakeEngine(answer)
    out = df.llm.extract("t", Code, model=engine, errors="coerce")
    assert out.llm.status().tolist() == ["ok", "failed"]
    message = out.llm.failures()["message"].iloc[0]
    assert "taken by a row with the same prompt" in message
    assert "dedupe=False" in message
    assert len(told) == 1
    apart = df.llm.extract("t", Code, model=engine, dedupe=False)
    assert apart["code"].tolist() == ["x", "y"]


def test_kept_cells_have_their_values_first() -> None:
    answer, told = scripted(codes(a="x", b="y"), codes(a="z"))
    df = frame("ab", code=[None, "x"])
    out = df.llm.extract("t", Code, model=FakeEngine(answer), if_exists="fill")
    assert out["code"].tolist() == ["z", "x"]
    assert len(told) == 2


def test_a_series_and_names_of_the_users_own() -> None:
    answer, _ = scripted(codes(a="x", b="x"), codes(b="y"))
    out = frame("ab")["t"].llm.extract(Code, model=FakeEngine(answer))
    assert out.tolist() == ["x", "y"]
    answer, _ = scripted(codes(a="x", b="x"), codes(b="y"))
    out = frame("ab").llm.extract("t", Code, model=FakeEngine(answer), into="my")
    assert out["my_code"].tolist() == ["x", "y"]


def test_a_batch_goes_out_once_more() -> None:
    answer, told = scripted(codes(a="x", b="y", c="x", d="y"), codes(c="z", d="w"))
    engine = FakeBatchEngine(answer)
    with lf.set_options(poll_interval=0.02):
        out = frame("abcd").llm.extract("t", Code, model=engine)
        assert out["code"].tolist() == ["x", "y", "z", "w"]
        assert [count for _, count in engine.submits] == [3, 2]
        frame("abcd").llm.extract("t", Code, model=engine)
    assert len(engine.submits) == 2
    assert len(told) == 6


def test_the_second_round_is_within_the_budget() -> None:
    answer, told = scripted(codes(a="x", b="x"), codes(b="y"))
    engine = FakeEngine(answer)
    # A row reserves 0.66 and takes 0.04; with what it is told it would reserve 0.72.
    prices = {"fake/fake-1": (1000.0, 1000.0)}
    dear = pytest.raises(lf.BudgetError, match=r"US\$0\.7180")
    with lf.set_options(prices=prices), dear as caught:
        frame("ab").llm.extract("t", Code, model=engine, budget=0.76, concurrency=1)
    assert len(told) == 2
    assert caught.value.result["code"].tolist()[0] == "x"
    assert pd.isna(caught.value.result["code"].iloc[1])
    assert caught.value.result.llm.status().tolist() == ["ok", "pending"]
    assert frame("ab").llm.extract("t", Code, model=engine)["code"].tolist() == ["x", "y"]
    assert len(told) == 3


def test_a_job_in_parts_is_the_same() -> None:
    answer, told = scripted(codes(a="x", b="x", c="y"), codes(b="z"))
    df, engine = frame("abc"), FakeEngine(answer)
    job = df.llm.submit.extract("t", Code, model=engine)
    assert job.wait().join()["code"].tolist() == ["x", "z", "y"]
    assert job.status().counts["ok"] == 3
    assert job.report().repaired == 1
    # Any order, and fewer rows.
    assert job.join(df[::-1])["code"].tolist() == ["y", "z", "x"]
    assert job.join(df[1:])["code"].tolist() == ["z", "y"]
    assert len(told) == 4


def test_another_process_joins_with_the_schema(tmp_path: Path) -> None:
    answers = {"a": "x", "b": "x", "c": "x"}

    def answer(seen: Seen) -> Any:
        text = " ".join(str(message["content"]) for message in seen.body["messages"])
        row = text[text.index("<") + 1]
        return json.dumps({"code": "z" if TOLD in text and row == "b" else answers[row]})

    with ChatServer(answer=answer) as server:
        engine = lf.OpenAI("m", base_url=server.url, api_key="none")
        job = frame("abc").llm.submit.extract("t", Code, model=engine).wait()
        assert len(server.seen) == 5
        name = job.id
    script = f"""
        import warnings
        import pandas as pd, pandera.pandas as pa, llmframe as lf
        warnings.simplefilter("ignore")
        class Code(pa.DataFrameModel):
            code: str = pa.Field(unique=True)
        df = pd.DataFrame({{"t": ["<c>", "<b>", "<a>"]}})
        out = lf.job({name!r}).join(df)
        print(out.llm.failures()["kind"].tolist())
        out = lf.job({name!r}).join(df, schema=Code)
        print(out["code"].astype(object).where(out["code"].notna(), None).tolist())
        print(out.llm.failures()["message"].tolist())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == str(["needs_code"] * 3)
    assert lines[1] == "[None, 'z', 'x']"
    assert 'has to be unique, and "x" is taken already' in lines[2]


Letters = st.lists(st.sampled_from("xyz"), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(Letters, st.data())
def test_whatever_comes_the_frame_meets_the_schema_and_a_rerun_changes_nothing(
    first: list[str], data: st.DataObject
) -> None:
    second = data.draw(
        st.lists(st.sampled_from("xyzuvw"), min_size=len(first), max_size=len(first))
    )
    rows = "abcdef"[: len(first)]
    answer, told = scripted(
        {row: {"code": code} for row, code in zip(rows, first, strict=True)},
        {row: {"code": code} for row, code in zip(rows, second, strict=True)},
    )
    df, engine = frame(rows), FakeEngine(answer)
    out = df.llm.extract("t", Code, model=engine, errors="coerce")
    good = out[out.llm.status() != "failed"]
    assert good["code"].notna().all()
    Code.validate(good)
    assert len(told) == len(rows) + len(rows) - len(set(first))
    sent = len(told)
    rerun = df.llm.extract("t", Code, model=engine, errors="coerce")
    pd.testing.assert_series_equal(rerun["code"], out["code"])
    assert rerun.llm.failures().equals(out.llm.failures())
    assert len(told) == sent


class Typed(pa.DataFrameModel):
    i: pd.Int64Dtype
    u: pd.UInt8Dtype = pa.Field(nullable=True)
    f: pd.Float32Dtype
    b: pd.BooleanDtype
    s: str = pa.Field(isin=["one", "two"])
    k: pd.CategoricalDtype = pa.Field(dtype_kwargs={"categories": ["lo", "hi"], "ordered": True})
    at: pd.DatetimeTZDtype = pa.Field(dtype_kwargs={"unit": "us", "tz": "Europe/Berlin"})
    day: pd.Timestamp


TYPED = {
    "i": 2**53 + 1,
    "u": None,
    "f": 0.5,
    "b": True,
    "s": "one",
    "k": "hi",
    "at": "2024-07-01T12:00:00+00:00",
    "day": "2024-07-01T00:00:00",
}


def test_columns_take_the_declared_dtypes_so_that_the_schema_holds_without_coercion() -> None:
    out = frame("ab").llm.extract("t", Typed, model=FakeEngine(TYPED))
    Typed.validate(out)
    assert out["i"].tolist() == [2**53 + 1] * 2
    assert str(out["at"].iloc[0]) == "2024-07-01 14:00:00+02:00"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = frame("ab")[:0].llm.extract("t", Typed, model=FakeEngine(TYPED))
        failed = frame("ab").llm.extract("t", Typed, model=FakeEngine("no"))
    assert empty.dtypes.equals(out.dtypes)
    assert failed.dtypes.equals(out.dtypes)
    far = FakeEngine({**TYPED, "day": "3000-01-01T00:00:00"})
    out = frame("a").llm.extract("t", Typed, model=far, errors="coerce")
    assert "1678 to 2261" in out.llm.failures()["message"].iloc[0]


def test_arrow_dtypes_are_kept() -> None:
    arrow = pytest.importorskip("pyarrow")
    kinds = {
        "i": arrow.int32(),
        "s": arrow.string(),
        "f": arrow.float64(),
        "b": arrow.bool_(),
        "day": arrow.date32(),
        "at": arrow.timestamp("us", tz="UTC"),
    }
    schema = pa.DataFrameSchema(
        {name: pa.Column(pd.ArrowDtype(kind)) for name, kind in kinds.items()}
    )
    engine = FakeEngine(
        {"i": 3, "s": "x", "f": 0.5, "b": True, "day": "2024-01-02", "at": "2024-01-02T00:00:00Z"}
    )
    out = frame("ab").llm.extract("t", schema, model=engine)
    assert out.drop(columns="t").dtypes.tolist() == [pd.ArrowDtype(kind) for kind in kinds.values()]
    schema.validate(out)


def test_titles_and_descriptions_reach_the_model() -> None:
    class Told(pa.DataFrameModel):
        n: int = pa.Field(title="Number of stars", description="as the customer gave them")
        m: int = pa.Field(title="Months")

    sent: list[Any] = []

    def answer(seen: Seen) -> Any:
        sent.append(seen.body["response_format"]["json_schema"]["schema"]["properties"])
        return json.dumps({"n": 1, "m": 2})

    with ChatServer(answer=answer) as server:
        engine = lf.OpenAI("m", base_url=server.url, api_key="none")
        frame("a").llm.extract("t", Told, model=engine)
    assert sent[0]["n"]["description"] == "Number of stars: as the customer gave them"
    assert sent[0]["m"]["description"] == "Months"


CHILD = """
import os, sys, time
sys.path.insert(0, {root!r})
import llmframe as lf
from llmframe.requests import Request
from llmframe.testing import FakeBatchEngine
from tests.test_pandera_together import Code, TOLD, codes, frame, scripted
answer, told = scripted(codes(a="x", b="y", c="x"), codes(c="x"))

def slow(request: Request):
    reply = answer(request)
    if TOLD in told[-1]:
        engine._polls = 10**9
    return reply

engine = FakeBatchEngine(slow, directory={folder!r})
lf.set_options(poll_interval=0.02)
job = frame("abc").llm.submit.extract("t", Code, model=engine)
while len(engine.created) < 2:
    time.sleep(0.001)
os._exit(0)
"""


def test_a_second_batch_that_outlives_its_process_is_read_and_not_sent_again(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "provider")
    # The second batch is at the provider, and never done, when its process dies.
    code = CHILD.format(root=str(Path(__file__).parents[1]), folder=folder)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    answer, told = scripted(codes(a="no", b="no", c="no"))
    engine = FakeBatchEngine(answer, directory=folder)
    assert [batch.count for batch in engine.created] == [2, 1]
    with lf.set_options(poll_interval=0.02):
        out = frame("abc").llm.extract("t", Code, model=engine, errors="coerce")
        assert out["code"].astype(object).where(out["code"].notna(), None).tolist() == [
            "x",
            "y",
            None,
        ]
        # What it was told is known, so it is not told once more.
        out = frame("abc").llm.extract("t", Code, model=engine, errors="coerce")
        assert out.llm.failures()["attempts"].tolist() == [2]
    assert told == []
    assert engine.submits == []

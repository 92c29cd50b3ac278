"""Ten awkward frames: each row gets its own answer and the index comes back untouched."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import openai, statuses
from tests.servers.rows import by_schema
from tests.servers.scripted import Scripted, echo

pytest_plugins = ["tests.servers.plugin"]


def duplicate_labels() -> pd.DataFrame:
    return pd.DataFrame({"t": list("abcd")}, index=pd.Index([7, 7, 8, 7], name="id"))


def multi_index() -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples(
        [("fr", 1), ("fr", 1), ("de", 2), (None, 3)], names=["country", None]
    )
    return pd.DataFrame({"t": list("abcd")}, index=index)


def clock_change() -> pd.DataFrame:
    """02:30 happens twice in Berlin on this night; the instants differ, the labels look alike."""
    index = pd.date_range("2024-10-26 23:30", periods=5, freq="h", tz="UTC")
    index = index.tz_convert("Europe/Berlin").rename("when")
    return pd.DataFrame({"t": list("abcde")}, index=index)


def nan_labels() -> pd.DataFrame:
    return pd.DataFrame({"t": list("abcd")}, index=pd.Index([1.0, np.nan, np.nan, 2.0]))


def one_and_the_string_one() -> pd.DataFrame:
    return pd.DataFrame({"t": list("abcd")}, index=pd.Index([1, "1", True, 1.0], dtype=object))


def empty() -> pd.DataFrame:
    return pd.DataFrame({"t": pd.Series([], dtype=object), "k": pd.Series([], dtype="int8")})


def one_row() -> pd.DataFrame:
    return pd.DataFrame({"t": ["only"]}, index=pd.Index(["x"], dtype="string", name="n"))


def all_missing() -> pd.DataFrame:
    return pd.DataFrame({"t": pd.Series([None, np.nan, pd.NA], dtype=object)}, index=[2, 1, 0])


def column_called_llm() -> pd.DataFrame:
    return pd.DataFrame({"llm": ["x", "y"], "t": ["a", "b"], "map": [1, 2]})


FRAMES: list[Callable[[], pd.DataFrame]] = [
    duplicate_labels,
    multi_index,
    clock_change,
    nan_labels,
    one_and_the_string_one,
    empty,
    one_row,
    all_missing,
    column_called_llm,
]


def labels_of(index: pd.Index) -> list[tuple[type, Any]]:
    """Labels with their types: 1, True, 1.0 and "1" are four labels."""
    return [(type(label), repr(label)) for label in index]


def check(df: pd.DataFrame, out: pd.DataFrame, before: pd.DataFrame) -> None:
    pd.testing.assert_index_equal(out.index, before.index, exact=True)
    assert labels_of(out.index) == labels_of(before.index)
    assert list(out.index.names) == list(before.index.names)
    pd.testing.assert_frame_equal(out[list(before.columns)], before, check_freq=True)
    pd.testing.assert_frame_equal(df, before, check_freq=True)
    assert list(out.columns) == [*before.columns, "response"]
    asked = before["t"].notna()
    assert out["response"].notna().tolist() == asked.tolist()
    expected = [f"<{text}>" for text in before["t"][asked.to_numpy()]]
    assert out["response"].dropna().tolist() == expected
    assert statuses(out) == ["ok" if ask else "skipped" for ask in asked]
    pd.testing.assert_index_equal(out.llm.status().index, before.index, exact=True)


@pytest.mark.parametrize("make", FRAMES, ids=lambda make: make.__name__)
def test_each_row_its_own_answer(make: Callable[[], pd.DataFrame]) -> None:
    df, before = make(), make()
    engine = lf.testing.FakeEngine(lambda text: f"<{text}>")

    out = df.llm.map("{t}", model=engine)

    check(df, out, before)
    assert len(engine.requests) == int(before["t"].notna().sum())
    assert out["response"].dtype == ("str" if lf_pandas() >= 3 else "string")


def lf_pandas() -> int:
    """Major version of pandas."""
    return int(pd.__version__.split(".")[0])


@pytest.mark.parametrize("make", FRAMES, ids=lambda make: make.__name__)
def test_the_same_on_a_live_server(make: Callable[[], pd.DataFrame], serve: Any) -> None:
    server = serve(lambda seen: f"<{seen.prompt}>")
    df, before = make(), make()

    out = df.llm.map("{t}", model=openai(server), concurrency=3)

    check(df, out, before)
    assert server.count == int(before["t"].notna().sum())


@pytest.mark.parametrize("make", FRAMES, ids=lambda make: make.__name__)
def test_a_series_comes_back_as_a_series_on_the_same_index(
    make: Callable[[], pd.DataFrame],
) -> None:
    series = make()["t"]
    engine = lf.testing.FakeEngine(lambda text: f"<{text}>")

    out = series.llm.map("{}", model=engine)

    assert isinstance(out, pd.Series)
    pd.testing.assert_index_equal(out.index, series.index, exact=True)
    assert labels_of(out.index) == labels_of(series.index)
    asked = series.notna()
    assert out.dropna().tolist() == [f"<{text}>" for text in series[asked.to_numpy()]]
    assert out.notna().tolist() == asked.tolist()


@pytest.mark.parametrize("make", FRAMES, ids=lambda make: make.__name__)
def test_failures_stand_on_the_frames_own_labels(make: Callable[[], pd.DataFrame]) -> None:
    df = make()
    engine = lf.testing.FakeEngine(lambda text: "prose")

    out = df.llm.map("{t}", {"n": int}, model=engine, errors="coerce", repairs=0)

    failures = out.llm.failures()
    asked = df["t"].notna().to_numpy()
    pd.testing.assert_index_equal(failures.index, df.index[asked], exact=False)
    assert labels_of(failures.index) == labels_of(df.index[asked])
    assert failures["position"].tolist() == np.flatnonzero(asked).tolist()
    assert out["n"].dtype == "Int64"


@pytest.mark.parametrize("make", FRAMES, ids=lambda make: make.__name__)
def test_filter_keeps_the_labels_of_the_rows_it_keeps(
    make: Callable[[], pd.DataFrame], serve: Any
) -> None:
    keep = {"a", "c", "only", "b"}
    server = serve(lambda seen: by_schema(seen.schema, _bool=seen.prompt.split("|")[-2] in keep))
    df = make()

    told = (lf.RowsFailedWarning, lf.RowsSkippedWarning)
    with pytest.warns(told) if df["t"].isna().any() else contextlib.nullcontext():
        out = df.llm.filter("Is |{t}| one of them?", model=openai(server))

    mask = df["t"].isin(keep).to_numpy()
    pd.testing.assert_frame_equal(out, df[mask], check_freq=False)
    assert labels_of(out.index) == labels_of(df.index[mask])


@pytest.mark.parametrize(
    ("columns", "prompt"),
    [(["t", "t"], "{t}"), ([("a", "b"), ("a", "b")], "{a.b}")],
)
def test_a_duplicated_column_is_refused_before_anything_is_sent(
    columns: list[Any], prompt: str
) -> None:
    df = pd.DataFrame([["x", "y"]])
    df.columns = (
        pd.MultiIndex.from_tuples(columns) if isinstance(columns[0], tuple) else pd.Index(columns)
    )
    engine = lf.testing.FakeEngine(lambda text: text)

    with pytest.raises(lf.PromptError, match=r"twice|duplicate|more than one|2 columns"):
        df.llm.map(prompt, model=engine)

    assert list(engine.requests) == []


def test_a_categorical_an_interval_and_a_period_index_stay_what_they_are() -> None:
    engine = Scripted(echo)
    indexes = [
        pd.CategoricalIndex(["b", "a", "b"], categories=["b", "a", "z"], ordered=True, name="c"),
        pd.interval_range(0, 3),
        pd.period_range("2024-01", periods=3, freq="M"),
        pd.timedelta_range("1h", periods=3),
        pd.RangeIndex(10, 16, 2, name="r"),
        pd.Index([frozenset({1}), (1, 2), None], dtype=object, tupleize_cols=False),
    ]
    for index in indexes:
        df = pd.DataFrame({"t": ["a", "b", "c"]}, index=index)
        out = df.llm.map("{t}", model=engine)
        pd.testing.assert_index_equal(out.index, index, exact=True)
        assert out["response"].tolist() == ["a", "b", "c"]
        assert len(out.llm.failures()) == 0


def test_original_columns_come_back_bit_for_bit() -> None:
    df = pd.DataFrame(
        {
            "t": pd.Categorical(["a", "b", "a"], categories=["b", "a"], ordered=True),
            "f": np.array([0.1, np.nan, -0.0], dtype="float32"),
            "i": np.array([1, 2, 3], dtype="uint8"),
            "d": pd.to_datetime(["2024-03-31 01:30", None, "2024-03-31 03:30"]),
            "o": [{"x": [1]}, None, "s"],
            "m": pd.array([True, None, False], dtype="boolean"),
        }
    )
    before = pickle.loads(pickle.dumps(df))

    out = df.llm.map("{t} {i}", model=Scripted(echo))

    pd.testing.assert_frame_equal(out[list(df.columns)], before)
    assert np.signbit(out["f"].iloc[2])
    assert out["o"].iloc[0] == {"x": [1]}
    assert out["response"].tolist() == ["a 1", "b 2", "a 3"]

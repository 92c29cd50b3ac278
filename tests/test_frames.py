"""Rows out of a frame and columns into one: values, dtypes, labels, and what stays untouched."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
import time
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from llmframe.errors import PromptError, SchemaError
from llmframe.failures import FailedRow, failures_frame
from llmframe.frames import (
    STATUSES,
    Column,
    Table,
    attach,
    check_output,
    dtype_of,
    status_series,
    take,
    unfilled,
)
from llmframe.prompts import build
from llmframe.schemas.forms import Field

pa = pytest.importorskip("pyarrow")
PANDAS_3 = int(pd.__version__.split(".")[0]) >= 3
TEXT = "str" if PANDAS_3 else "string"


TEXT_FIELD = Field("out", "str")
KINDS = ("str", "int", "float", "bool", "category", "datetime", "datetime_utc", "date", "object")


def declared(kind):
    return Field("out", kind, ("b", "a") if kind == "category" else None)


def column(values, kind="str", name="out", **more):
    return Column(name, declared(kind), values, **more)


def rows(data, columns=(0,)):
    return list(Table(data).rows(columns))


def echo(data, template="{t}", into="out"):
    """What a verb does, with an engine that answers in capitals."""
    table = Table(data)
    prompt = build(template, table.names, table.index_names)
    cells = table.rows(prompt.columns)
    answers = [
        None
        if prompt.missing(cells[position]) != "none"
        else prompt.render(cells[position])[-1]["content"].upper()
        for position in range(table.count)
    ]
    return attach(data, [Column(into, TEXT_FIELD, answers)], job="j_1")


def assert_index_kept(out, data):
    pd.testing.assert_index_equal(out.index, data.index, exact=True)
    assert [*out.index.names] == [*data.index.names]
    for theirs, ours in zip(out.index.tolist(), data.index.tolist(), strict=True):
        assert type(theirs) is type(ours)


# Ten awkward frames ----------------------------------------------------------------------------


def clock_change():
    return pd.date_range("2024-10-27 00:30", periods=4, freq="h", tz="Europe/Berlin", name="when")


AWKWARD = {
    "duplicate labels": lambda: pd.DataFrame({"t": list("abc")}, index=[7, 7, 8]),
    "MultiIndex": lambda: pd.DataFrame(
        {"t": list("abcd")},
        index=pd.MultiIndex.from_tuples(
            [("x", 1), ("x", 1), ("y", 2), ("y", None)], names=["k", None]
        ),
    ),
    "tz over a clock change": lambda: pd.DataFrame({"t": list("abcd")}, index=clock_change()),
    "NaN labels": lambda: pd.DataFrame({"t": list("abc")}, index=[np.nan, 1.0, np.nan]),
    "labels 1 and '1'": lambda: pd.DataFrame({"t": list("abc")}, index=[1, "1", 1]),
    "empty": lambda: pd.DataFrame({"t": pd.Series([], dtype=object)}),
    "one row": lambda: pd.DataFrame({"t": ["a"]}, index=["r9"]),
    "all missing": lambda: pd.DataFrame({"t": [None, np.nan, pd.NA]}, index=list("xyz")),
    "a column called llm": lambda: pd.DataFrame({"llm": [1, 2], "t": ["a", "b"]}),
    "categorical index": lambda: pd.DataFrame(
        {"t": ["a", "b"]}, index=pd.CategoricalIndex(["u", "u"], categories=["v", "u"])
    ),
    "interval index": lambda: pd.DataFrame({"t": ["a", "b"]}, index=pd.interval_range(0, 2)),
    "filtered": lambda: pd.DataFrame({"t": list("abcd")}).iloc[[3, 1]],
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_frames_keep_their_index_and_their_answers(name):
    data = AWKWARD[name]()
    before = data.copy()
    out = echo(data)
    expected = [t.upper() if isinstance(t, str) else None for t in data["t"].tolist()]
    assert [None if pd.isna(v) else v for v in out["out"].tolist()] == expected
    assert str(out["out"].dtype) == TEXT
    assert_index_kept(out, data)
    assert [*out.columns] == [*data.columns, "out"]
    pd.testing.assert_frame_equal(out[[*data.columns]], before, check_freq=True)
    pd.testing.assert_frame_equal(data, before)


def test_duplicate_column_names_are_refused_where_they_are_used():
    data = pd.DataFrame([["a", "b", "c"]], columns=["t", "t", "u"])
    with pytest.raises(PromptError, match="2 columns are called 't'"):
        echo(data)
    out = echo(data, "{u}")
    assert [*out.columns] == ["t", "t", "u", "out"]
    assert out.iloc[0].tolist() == ["a", "b", "c", "C"]


def test_u052_duplicate_labels():
    data = pd.DataFrame({"t": ["a", "b", "c"]}, index=[7, 7, 8])
    out = echo(data)
    assert out["out"].tolist() == ["A", "B", "C"]
    assert out.index.tolist() == [7, 7, 8]


def test_u053_many_duplicate_labels():
    data = pd.DataFrame({"t": ["a"] * 30_000}, index=[1, 2, 3] * 10_000)
    start = time.process_time()
    out = echo(data)
    # Aligning by label would make 300 million pairs; this is far above and far below either.
    assert time.process_time() - start < 30
    assert len(out) == 30_000
    assert out["out"].eq("A").all()


def test_u064_filtered_frames():
    data = pd.DataFrame({"t": list("abcd")}).rename_axis("id").iloc[[1, 3]]
    out = echo(data)
    assert out.loc[1, "out"] == "B"
    assert out.loc[3, "out"] == "D"
    assert_index_kept(out, data)


def test_u066_the_index_keeps_labels_name_and_dtype():
    data = pd.DataFrame({"t": ["a", "b"]}, index=pd.Index(["r9", "r2"], name="id", dtype=object))
    assert_index_kept(echo(data), data)
    assert_index_kept(take(data, [True, False]), data.iloc[:1])
    assert_index_kept(status_series(data.index, ["ok", "failed"]), data)


# What stays untouched --------------------------------------------------------------------------


def everything(rows=2):
    return pd.DataFrame(
        {
            "t": pd.Series(["a", None], dtype=object),
            "s": pd.Series(["a", None], dtype="string"),
            "i8": pd.Series([1, 2], dtype="int8"),
            "i64": pd.Series([1, 2], dtype="int64"),
            "Int": pd.Series([9007199254740993, None], dtype="Int64"),
            "f32": pd.Series([0.1, np.nan], dtype="float32"),
            "b": pd.Series([True, False]),
            "c": pd.Series(["x", None], dtype="category"),
            "tz": pd.Series(pd.to_datetime(["2024-01-02", None])).dt.tz_localize("Europe/Berlin"),
            "p": pd.Series(pd.period_range("2024", periods=2, freq="M")),
            "sp": pd.arrays.SparseArray([0, 1]),
            "al": pd.Series([[1, 2], None], dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
            "o": pd.Series([{"a": 1}, [1]], dtype=object),
        }
    ).iloc[:rows]


@pytest.mark.parametrize("count", [2, 0])
def test_original_columns_bit_for_bit(count):
    data = everything(count)
    out = attach(data, [column(["x"] * count), column([1] * count, "int", "n")])
    pd.testing.assert_frame_equal(out[[*data.columns]], data, check_exact=True)
    assert out.dtypes[: len(data.columns)].tolist() == data.dtypes.tolist()
    assert [*out.columns] == [*data.columns, "out", "n"]
    if count:
        assert out["o"].iloc[0] is data["o"].iloc[0]


def test_u077_input_and_slice_are_left_alone():
    data = pd.DataFrame({"k": [0, 1, 2], "t": list("abc")})
    part = data[data.k > 0]
    out = echo(part)
    out["more"] = 1
    out.loc[1, "t"] = "changed"
    out.index.name = "renamed"
    out.attrs["x"] = 1
    assert part["t"].tolist() == ["b", "c"]
    assert data["t"].tolist() == ["a", "b", "c"]
    assert part.index.name is None
    assert part.attrs == {}
    assert [*part.columns] == ["k", "t"]


def test_a_fragmented_frame_gives_no_warning():
    data = pd.concat([pd.DataFrame({f"c{k}": [k]}) for k in range(150)], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(150):
            data[f"d{k}"] = k
    out = attach(data, [column(["x"]), column([1], "int", "n")])
    assert out.shape == (1, 302)


def test_u076_attrs_hold_the_job_and_survive():
    data = pd.DataFrame({"t": ["a", "b"]}, index=[7, 7])
    data.attrs = {"mine": {"a": [1]}, "llmframe": {"old": "j_0"}}
    out = echo(data)
    assert out.attrs == {"mine": {"a": [1]}, "llmframe": {"old": "j_0", "out": "j_1"}}
    assert data.attrs == {"mine": {"a": [1]}, "llmframe": {"old": "j_0"}}
    out.attrs["mine"]["a"].append(2)
    assert data.attrs["mine"] == {"a": [1]}
    assert attach(data, [column(["x", "y"])]).attrs == data.attrs


def test_u076_frames_travel(tmp_path):
    data = pd.DataFrame({"t": ["a", "b"]})
    out = attach(data, [column(["b", None], "category"), column([1, None], "int", "n")], job="j")
    repr(out), out._repr_html_()
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(out)), out)
    assert copy.deepcopy(out).attrs == out.attrs
    assert pd.concat([out, out]).shape == (4, 3)
    assert out.merge(out, on="t").shape == (2, 5)
    out.to_parquet(tmp_path / "x.parquet")
    back = pd.read_parquet(tmp_path / "x.parquet")
    assert back.attrs == out.attrs
    assert str(back["n"].dtype) == "Int64"
    assert back["out"].isna().tolist() == [False, True]
    multi = pd.DataFrame({("m", "x"): ["a"]})
    attach(multi, [column(["y"])], job="j").to_parquet(tmp_path / "y.parquet")


class Marked(pd.DataFrame):
    """A subclass as pandas documents it, with metadata of its own."""

    _metadata = ["mark"]  # noqa: RUF012 - pandas' own protocol

    @property
    def _constructor(self):
        return Marked


def test_subclasses_flags_and_metadata_are_kept():
    data = Marked({"t": ["a"]})
    data.mark = "kept"
    out = attach(data, [column(["x"])])
    assert type(out) is Marked
    assert out.mark == "kept"
    strict = pd.DataFrame({"t": ["a"]}).set_flags(allows_duplicate_labels=False)
    assert attach(strict, [column(["x"])]).flags.allows_duplicate_labels is False


# New columns -----------------------------------------------------------------------------------

DAY = dt.datetime.fromisoformat("2024-01-02")
NOON = dt.datetime(2024, 1, 2, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
VALUES = {
    "str": ["x", None, ""],
    "int": [9007199254740993, None, -(2**63)],
    "float": [0.1, None, 1e300],
    "bool": [True, None, False],
    "category": ["a", None, "b"],
    "datetime": [DAY, None, dt.datetime.fromisoformat("0001-01-01")],
    "datetime_utc": [NOON, None, NOON],
    "date": [dt.date(2024, 1, 2), None, dt.date(9999, 12, 31)],
    "object": [[1, 2], None, {"zip": "00501"}],
}
DTYPES = {
    "str": TEXT,
    "int": "Int64",
    "float": "Float64",
    "bool": "boolean",
    "category": "category",
    "datetime": "datetime64[us]",
    "datetime_utc": "datetime64[us, UTC]",
    "date": "datetime64[us]",
    "object": "object",
}
ARROW = {
    "str": "string[pyarrow]",
    "int": "int64[pyarrow]",
    "float": "double[pyarrow]",
    "bool": "bool[pyarrow]",
    "datetime": "timestamp[us][pyarrow]",
    "datetime_utc": "timestamp[us, tz=UTC][pyarrow]",
    "date": "date32[day][pyarrow]",
}
BACKENDS = {
    None: DTYPES,
    "numpy_nullable": DTYPES | {"str": "string"},
    "pyarrow": DTYPES | ARROW,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_depend_on_the_declaration_alone(kind, backend):
    def made(values):
        data = pd.DataFrame({"t": range(len(values))})
        return attach(data, [column(values, kind)], dtype_backend=backend)["out"]

    full, none, empty = made(VALUES[kind]), made([None] * 3), made([])
    assert str(full.dtype) == BACKENDS[backend][kind]
    assert full.dtype == none.dtype == empty.dtype == dtype_of(declared(kind), backend)
    assert full.isna().tolist() == [False, True, False]
    assert none.isna().all()
    back = [value for (value,) in rows(full)]
    if kind == "date" and backend != "pyarrow":
        assert back == [DAY, None, dt.datetime.fromisoformat("9999-12-31")]
    else:
        assert back == VALUES[kind]


def test_u081_large_integers_beside_a_failure():
    out = attach(pd.DataFrame({"t": [1, 2]}), [column([9007199254740993, None], "int")])
    assert str(out["out"].dtype) == "Int64"
    assert out["out"].iloc[0] == 9007199254740993
    assert out["out"].iloc[1] is pd.NA
    with pytest.warns(UserWarning, match="1 of 2 answers do not fit Int64"):
        out = attach(pd.DataFrame({"t": [1, 2]}), [column([2**63, 7], "int")])
    assert out["out"].tolist() == [pd.NA, 7]


def test_u082_optional_integers_through_parquet(tmp_path):
    out = attach(pd.DataFrame({"t": [1, 2]}), [column([3, None], "int")])
    out.to_parquet(tmp_path / "x.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), out)


def test_u137_null_text_is_na_and_not_a_word():
    out = attach(pd.DataFrame({"t": [1, 2]}), [column(["x", None])])
    assert out["out"].isna().tolist() == [False, True]


@pytest.mark.parametrize("count", [0, 2])
def test_u140_no_rows_or_none_succeeded(count):
    fields = [column([None] * count, "int", "n"), column([None] * count, "str", "s")]
    out = attach(pd.DataFrame({"t": ["a", "b"]}).iloc[:count], fields)
    assert out.dtypes.astype(str).tolist()[1:] == ["Int64", TEXT]
    assert len(out) == count


def test_u142_chunks_have_the_same_columns():
    chunks = [pd.DataFrame({"t": ["a", "b"]}), pd.DataFrame({"t": ["c"]})]
    outs = [
        attach(chunk, [column([1] * len(chunk), "int", "a"), column(values, "category", "b")])
        for chunk, values in zip(chunks, (["b", "a"], [None]), strict=True)
    ]
    both = pd.concat(outs)
    assert both.dtypes.tolist() == outs[0].dtypes.tolist()
    assert [*both.columns] == ["t", "a", "b"]


def test_categories_keep_the_declared_order():
    out = attach(pd.DataFrame({"t": [1]}), [column([None], "category")])
    assert out["out"].cat.categories.tolist() == ["b", "a"]
    assert not out["out"].cat.ordered
    scale = Field("out", "category", ("bad", "good"), ordered=True)
    out = attach(pd.DataFrame({"t": [1, 2]}), [Column("out", scale, ["good", "bad"])])
    assert out["out"].min() == "bad"


def test_u160_nested_values_stay_one_cell():
    addresses, tags = [{"city": "Holtsville", "zip": "00501"}, None], [["a", "b"], ["c", "d"]]
    out = attach(
        pd.DataFrame({"t": [1, 2]}),
        [column(addresses, "object", "addr"), column(tags, "object", "tags")],
    )
    assert out.shape == (2, 3)
    assert out["addr"].tolist() == addresses
    assert out["tags"].tolist() == tags
    text = attach(pd.DataFrame({"t": [1]}), [column(["00501"], "object")])
    assert text["out"].dtype == object


def test_u086_a_lone_surrogate_in_a_reply_does_not_break_the_frame():
    out = attach(pd.DataFrame({"t": [1, 2]}), [column(["bad \ud83d", None])])
    assert out["out"].iloc[0].startswith("bad ")
    assert failures_frame(out.index, [FailedRow(0, "x", "\ud83d")]).shape == (1, 6)


def test_datetimes_without_a_zone_are_utc():
    out = attach(pd.DataFrame({"t": [1]}), [column([NOON], "datetime")])
    assert out["out"].iloc[0] == pd.Timestamp("2024-01-02 10:00")


def test_wrong_lengths_and_backends_are_refused():
    with pytest.raises(ValueError, match="'out' has 1 values of 2"):
        attach(pd.DataFrame({"t": [1, 2]}), [column(["x"])])
    with pytest.raises(SchemaError, match="dtype_backend='arrow'"):
        attach(pd.DataFrame({"t": [1]}), [column(["x"])], dtype_backend="arrow")


def test_u123_columns_that_fit_any_column_index():
    multi = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("m", "x"), ("m", "y")]))
    multi.columns.names = ["outer", "inner"]
    out = attach(multi, [column(["z"])], job="j")
    assert [*out.columns] == [("m", "x"), ("m", "y"), ("out", "")]
    assert [*out.columns.names] == ["outer", "inner"]
    assert out["out"].tolist() == ["z"]
    assert out.attrs["llmframe"] == {"out": "j"}
    assert echo(multi, "{m.x}")["out"].tolist() == ["1"]
    for labels in (
        [0, 1],
        pd.CategoricalIndex(["p", "q"], name="kind"),
        pd.date_range("2024", periods=2),
        pd.Index([("m", 1), "x"], tupleize_cols=False),
    ):
        data = pd.DataFrame([[1, 2]], columns=labels)
        out = attach(data, [column(["z"])])
        assert out.columns.tolist() == [*data.columns.tolist(), "out"]
        assert out.columns.name == data.columns.name
        assert out["out"].tolist() == ["z"]
    flat = attach(pd.DataFrame({"t": [1]}), [column(["x"], name=("a", "b"))])
    assert flat.columns.tolist() == ["t", ("a", "b")]
    bare = attach(pd.DataFrame(index=[1]), [column(["x"], name=("a", "b"))])
    assert bare.columns.nlevels == 1
    assert [*attach(pd.DataFrame(index=[1, 1]), [column(["a", "b"])]).columns] == ["out"]


def test_series_in_series_out():
    data = pd.Series(["a", None], index=[7, 7], name="t")
    data.attrs = {"mine": 1}
    out = echo(data, "{}")
    assert isinstance(out, pd.Series)
    assert out.name == "out"
    assert out.iloc[0] == "A"
    assert out.isna().tolist() == [False, True]
    assert_index_kept(out, data)
    assert out.attrs == {"mine": 1, "llmframe": {"out": "j_1"}}
    two = attach(data, [column([1, 2], "int", "x"), column(["p", "q"], name="y")])
    assert [*two.columns] == ["x", "y"]
    assert [*attach(data, [column([1, 2], "int", "x")], series_ok=False).columns] == ["x"]
    assert echo(pd.Series(["a"]), "{} {0}").tolist() == ["A A"]


# Existing columns ------------------------------------------------------------------------------


def check(data, names, if_exists="raise", own=()):
    check_output(data, names, if_exists=if_exists, own=lambda name: name in own)


def test_u143_an_existing_column_is_refused():
    data = pd.DataFrame({"t": ["a"], "label": ["hand"]})
    with pytest.raises(SchemaError) as caught:
        check(data, ["label"])
    assert str(caught.value) == (
        "column 'label' exists and was not written by llmframe. "
        'if_exists="replace" or "fill", or into="label_llm".'
    )
    check(data, ["label_llm"])
    check(data, ["label"], own={"label"})
    check(data, ["label"], "replace")
    check(data["label"], ["label"])
    with pytest.raises(SchemaError, match='into="label_llm_"'):
        check(data.assign(label_llm=1), ["label"])
    with pytest.raises(SchemaError, match="two output columns are called 'x'"):
        check(data, ["x", "x"])
    with pytest.raises(SchemaError, match="2 columns are called 'label'"):
        check(pd.concat([data, data], axis=1), ["label"], "replace")
    with pytest.raises(SchemaError, match="if_exists='keep'; expected 'raise', 'replace'"):
        check(data, ["x"], "keep")
    multi = pd.DataFrame({("label", ""): ["x"]})
    with pytest.raises(SchemaError, match="column 'label' exists"):
        check(multi, ["label"])


def test_u143_a_replaced_column_stays_in_its_place():
    data = pd.DataFrame({"out": ["x", "y"], "t": [1, 2]}, index=[7, 7])
    out = attach(data, [column([3, None], "int"), column(["p", "q"], name="new")])
    assert [*out.columns] == ["out", "t", "new"]
    assert out.dtypes.astype(str).tolist() == ["Int64", "int64", TEXT]
    assert data["out"].tolist() == ["x", "y"]


def fill(existing, values, kind="str", series=False):
    data = existing.rename("out")
    data = data if series else data.to_frame().assign(t=1)
    ask = unfilled(data, ["out"])
    made = attach(data, [column(values, kind, fill=True)])
    return ask.tolist(), made if series else made["out"]


@pytest.mark.parametrize("series", [False, True])
def test_u144_filled_cells_are_kept(series):
    existing = pd.Series(["x", pd.NA], index=[7, 7], dtype=object)
    ask, out = fill(existing, ["never", "new"], series=series)
    assert ask == [False, True]
    assert out.tolist() == ["x", "new"]
    assert str(out.dtype) == TEXT


def test_filling_keeps_values_that_the_declared_dtype_cannot_hold():
    assert fill(pd.Series([3.0, np.nan]), [1, 2], "int")[1].tolist() == [3, 2]
    out = fill(pd.Series(["hand", None]), [None, "a"], "category")[1]
    assert out.tolist() == ["hand", "a"]
    assert out.cat.categories.tolist() == ["b", "a", "hand"]
    out = fill(pd.Series(["n/a", None, 2.5], dtype=object), [1, 7, 2], "int")[1]
    assert (out.dtype, out.tolist()) == (np.dtype(object), ["n/a", 7, 2.5])
    data = pd.DataFrame({"a": [1, None], "b": [None, 1]})
    assert unfilled(data, ["a", "b"]).tolist() == [True, True]
    assert unfilled(data, ["a", "new"]).tolist() == [True, True]
    assert unfilled(data, ["a"]).tolist() == [False, True]


# Rows out --------------------------------------------------------------------------------------

NS = pd.Timestamp("2024-01-02 00:00:00.000000001")
UTC_NIGHT = dt.datetime(2024, 1, 2, tzinfo=dt.UTC)


def arrow(values, kind):
    return pd.Series(values, dtype=pd.ArrowDtype(kind))


CELLS = {
    "object": (
        pd.Series(["a", None, np.float32(0.1), pd.NaT, NS, np.array([1.5])], dtype=object),
        ["a", None, 0.1, None, NS, [1.5]],
    ),
    "decimals": (pd.Series([Decimal("1.10"), Decimal("NaN")]), [Decimal("1.10"), None]),
    "string": (pd.Series(["a", None], dtype="string"), ["a", None]),
    "string python": (pd.Series(["a", None], dtype="string[python]"), ["a", None]),
    "string pyarrow": (pd.Series(["a", None], dtype="string[pyarrow]"), ["a", None]),
    "text": (pd.Series(["a", None]), ["a", None]),
    "Int64": (pd.Series([2**53 + 1, None], dtype="Int64"), [2**53 + 1, None]),
    "uint64": (pd.Series([2**64 - 1], dtype="uint64"), [2**64 - 1]),
    "float64": (pd.Series([0.5, np.nan]), [0.5, None]),
    "float32": (pd.Series([0.1, np.nan], dtype="float32"), [0.1, None]),
    "Float32": (pd.Series([0.1, None], dtype="Float32"), [0.1, None]),
    "bool": (pd.Series([True, False]), [True, False]),
    "boolean": (pd.Series([True, None], dtype="boolean"), [True, None]),
    "category": (pd.Series(["b", None, "a"], dtype="category"), ["b", None, "a"]),
    "category of times": (
        pd.Series(pd.to_datetime(["2024-01-02", None])).astype("category"),
        [DAY, None],
    ),
    "datetime": (pd.Series(pd.to_datetime(["2024-01-02", None])), [DAY, None]),
    "nanoseconds": (pd.Series([NS, pd.NaT], dtype="datetime64[ns]"), [NS, None]),
    "timezone": (
        pd.Series(pd.to_datetime(["2024-01-02", None])).dt.tz_localize("UTC"),
        [UTC_NIGHT, None],
    ),
    "timedelta": (pd.Series(pd.to_timedelta(["1s", None])), [dt.timedelta(seconds=1), None]),
    "period": (pd.Series([pd.Period("2024-01"), pd.NaT]), ["2024-01", None]),
    "interval": (pd.Series(pd.interval_range(0, 1)), ["(0, 1]"]),
    "sparse": (pd.Series(pd.arrays.SparseArray([np.nan, 1.0])), [None, 1.0]),
    "arrow int": (arrow([2**53 + 1, None], pa.int64()), [2**53 + 1, None]),
    "arrow float": (arrow([0.1, None], pa.float32()), [0.1, None]),
    "arrow list": (arrow([[1], None], pa.list_(pa.int64())), [[1], None]),
    "arrow vector": (arrow([[0.1], None], pa.list_(pa.float32())), [[0.1], None]),
    "arrow struct": (arrow([{"a": 1}, None], pa.struct([("a", pa.int8())])), [{"a": 1}, None]),
    "arrow map": (arrow([{"a": 1}, None], pa.map_(pa.string(), pa.int8())), [{"a": 1}, None]),
    "arrow time": (arrow([UTC_NIGHT, None], pa.timestamp("us", "UTC")), [UTC_NIGHT, None]),
    "arrow date": (arrow([dt.date(2024, 1, 2), None], pa.date32()), [dt.date(2024, 1, 2), None]),
    "arrow dictionary": (
        arrow(["a", None], pa.dictionary(pa.int32(), pa.string())),
        ["a", None],
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_plain_python_values(name):
    data, expected = CELLS[name]
    found = [cell for (cell,) in rows(data)]
    assert found == expected
    assert [type(cell) for cell in found] == [type(cell) for cell in expected]
    assert [cell for (cell,) in rows(data.to_frame())] == expected


def test_each_column_is_converted_by_itself():
    data = pd.DataFrame({"id": [2**53 + 1, 2], "x": [0.5, np.nan], "t": ["a", "b"]}, index=[5, 6])
    assert rows(data, (0, 1, 2, -1)) == [(2**53 + 1, 0.5, "a", 5), (2, None, "b", 6)]
    assert echo(data, "{id}")["out"].tolist() == ["9007199254740993", "2"]


def test_rows_in_any_order_and_number():
    data = pd.DataFrame({"a": range(10_000), "b": [str(k) for k in range(10_000)]})
    found = Table(data).rows((1, 0))
    assert len(found) == 10_000
    for position in (9_999, 0, 256, 255, 5_000, 9_999):
        assert found[position] == (str(position), position)
    assert found[1:3] == [("1", 1), ("2", 2)]
    assert list(Table(data).rows(())[:2]) == [(), ()]
    with pytest.raises(IndexError):
        found[10_000]


def test_labels():
    tuples = pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", "n"])
    table = Table(pd.DataFrame({"t": ["a", "b"]}, index=tuples))
    assert (table.label(1), table.label_text(1)) == (("y", 2), "y, 2")
    assert table.index_names == ("k", "n")
    assert list(table.rows((-2, -1, 0))) == [(1, "x", "a"), (2, "y", "b")]
    assert Table(pd.Series([1])).names == (0,)
    assert Table(pd.Series([1], name="t")).is_series


# Filter, status, failures ----------------------------------------------------------------------


def test_taken_rows_are_an_object_of_their_own():
    data = pd.DataFrame({"t": list("abc")}, index=[7, 7, 8])
    data.attrs["mine"] = 1
    for mask in ([True, False, True], np.array([True, False, True])):
        out = take(data, mask)
        assert out.index.tolist() == [7, 8]
        assert out.attrs == {"mine": 1}
        out["more"] = 1
        out.loc[8, "t"] = "x"
    whole = take(data, [True] * 3)
    whole.loc[8, "t"] = "x"
    assert data["t"].tolist() == ["a", "b", "c"]
    assert take(data["t"], [False] * 3).empty


def test_failures_keep_their_dtypes_when_empty():
    index = pd.Index(["a", "a", 1], name="id")
    one = failures_frame(index, [FailedRow(2, "refused", "no"), FailedRow(0, "timeout", "t", "r")])
    none = failures_frame(index, [])
    assert [*one.columns] == ["position", "kind", "message", "raw", "attempts", "request_id"]
    assert one.index.tolist() == [1, "a"]
    assert one.index.name == none.index.name == "id"
    assert one.dtypes.tolist() == none.dtypes.tolist()
    assert one["position"].tolist() == [2, 0]
    assert one["request_id"].isna().all()
    assert one["raw"].isna().tolist() == [True, False]


def test_status_is_categorical():
    out = status_series(pd.Index([7, 7]), ["ok", "in_doubt"])
    assert out.cat.categories.tolist() == [*STATUSES]
    assert out.tolist() == ["ok", "in_doubt"]
    assert status_series(pd.Index([]), []).dtype == out.dtype
    with pytest.raises(KeyError):
        status_series(pd.Index([7]), ["done"])


# Prompts over frames ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [object, "string"])
def test_u135_missing_cells_are_never_sent(dtype):
    data = pd.DataFrame({"c": pd.Series(["ACME", np.nan, None, pd.NA, pd.NaT], dtype=object)})
    data["c"] = data["c"].astype(dtype)
    out = echo(data, "Company: {c}")
    assert out["out"].isna().tolist() == [False, True, True, True, True]
    assert out["out"].iloc[0] == "COMPANY: ACME"


def test_u136_nullable_columns_in_a_template():
    data = pd.DataFrame({"n": pd.array([1, None], dtype="Int64")})
    data["s"] = pd.array(["x", None], dtype="string")
    assert echo(data, "{n} {s}")["out"].isna().tolist() == [False, True]


def test_u094_one_prompt_for_one_value_whatever_its_dtype():
    texts = {
        echo(pd.Series([1, None]).astype(dtype).to_frame("v"), "{v}")["out"].iloc[0]
        for dtype in ("float64", "Int64", "float32", "int64[pyarrow]", object)
    }
    assert texts == {"1"}

"""Public fault reports: answers on the wrong row, colliding keys, accessor and pandas quirks."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
import textwrap
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.results import Failure
from tests.servers.looking import all_warnings, kinds, openai, statuses
from tests.servers.rows import Reply, by_schema
from tests.servers.scripted import Scripted, echo, prompt_of

pytest_plugins = ["tests.servers.plugin"]


def test_u052_duplicate_labels() -> None:
    df = pd.DataFrame({"t": ["a", "b", "c"]}, index=[7, 7, 8])
    engine = lf.testing.FakeEngine(lambda text: text.upper())

    out = df.llm.map("{t}", model=engine)

    assert out["response"].tolist() == ["A", "B", "C"]
    pd.testing.assert_index_equal(out.index, df.index, exact=True)
    pd.testing.assert_frame_equal(out[["t"]], df)
    assert list(out.columns) == ["t", "response"]


def test_u052_duplicate_labels_on_a_live_server(serve: Any) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    df = pd.DataFrame({"t": ["a", "b", "c"]}, index=[7, 7, 8])

    out = df.llm.map("{t}", model=openai(server))

    assert out["response"].tolist() == ["A", "B", "C"]
    assert out.index.tolist() == [7, 7, 8]


def test_u052_failures_of_duplicate_labels_keep_their_position() -> None:
    df = pd.DataFrame({"t": ["a", "b", "c"]}, index=[7, 7, 8])
    engine = Scripted(lambda r: Failure("refused", "no") if prompt_of(r) == "b" else prompt_of(r))

    out = df.llm.map("{t}", model=engine, errors="coerce")

    failures = out.llm.failures()
    assert failures.index.tolist() == [7]
    assert failures["position"].tolist() == [1]
    assert out["response"].isna().tolist() == [False, True, False]
    assert statuses(out) == ["ok", "failed", "ok"]


@pytest.mark.slow
def test_u053_many_duplicate_labels_cost_no_more_than_unique_ones() -> None:
    rows = 30_000
    texts = [f"row {i}" for i in range(rows)]
    repeated = pd.DataFrame({"t": texts}, index=[i % 3 for i in range(rows)])
    unique = pd.DataFrame({"t": texts})

    def seconds(df: pd.DataFrame, model: str) -> float:
        began = time.perf_counter()
        out = df.llm.map("{t}", model=Scripted(echo, model=model, keep=False))
        took = time.perf_counter() - began
        assert out["response"].tolist() == texts
        pd.testing.assert_index_equal(out.index, df.index, exact=True)
        return took

    plain = seconds(unique, "unique")
    # The report saw minutes for seconds; twice and a half is noise on a shared machine.
    assert seconds(repeated, "repeated") < 2.5 * plain + 5


def test_u063_a_cut_connection_leaves_every_other_answer_on_its_row(serve: Any) -> None:
    server = serve(
        lambda seen: Reply(cut=True) if seen.prompt in ("row 2", "row 3") else seen.prompt
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(6)]})

    out = df.llm.map("{t}", model=openai(server), concurrency=2, errors="coerce")

    assert out["response"].isna().tolist() == [False, False, True, True, False, False]
    assert out["response"].dropna().tolist() == ["row 0", "row 1", "row 4", "row 5"]
    assert kinds(out) == {2: "connection", 3: "connection"}


def test_u064_a_filtered_frame_gets_its_own_answers() -> None:
    df = pd.DataFrame({"t": list("abcd")}).iloc[[1, 3]]
    df.index.name = "key"

    out = df.llm.map("{t}", model=Scripted(echo))

    assert out.loc[1, "response"] == "b"
    assert out.loc[3, "response"] == "d"
    pd.testing.assert_index_equal(out.index, df.index, exact=True)
    assert out.index.name == "key"


def test_u066_every_verb_gives_the_callers_index_back(serve: Any) -> None:
    def answer(seen: Any) -> str:
        if seen.schema is None:
            return seen.prompt
        return by_schema(seen.schema, _label="good", _bool=True)

    engine = openai(serve(answer))
    index = pd.Index(["r9", "r2"], name="id")
    df = pd.DataFrame({"t": ["x", "y"]}, index=index)

    frames = {
        "map": df.llm.map("{t}", model=engine),
        "classify": df.llm.classify("t", ["good", "bad"], model=engine),
        "extract": df.llm.extract("t", {"word": str}, model=engine),
        "filter": df.llm.filter("{t} is a letter", model=engine),
    }

    for verb, out in frames.items():
        pd.testing.assert_index_equal(out.index, index, exact=True, obj=verb)
        assert out.index.dtype == index.dtype
        assert out.index.name == "id"
        assert out["t"].tolist() == ["x", "y"], verb


def test_u068_each_failure_names_its_own_row(serve: Any) -> None:
    server = serve(
        lambda seen: Reply(
            status=400, code="content_filter", message=f"refused to read {seen.prompt}"
        )
    )
    df = pd.DataFrame({"t": ["one", "two", "three", "four"]}, index=list("wxyz"))

    out = df.llm.map("{t}", model=openai(server), concurrency=2, errors="coerce")

    failures = out.llm.failures()
    assert failures.index.tolist() == list("wxyz")
    for label, text in df["t"].items():
        assert f"refused to read {text}" in failures.loc[label, "message"]
    assert set(failures["kind"]) == {"content_filter"}


def test_u070_rows_may_be_sent_in_another_order_and_come_back_in_the_callers() -> None:
    df = pd.DataFrame({"t": ["B one", "A one", "B two", "A two"]}, index=[3, 1, 2, 0])

    out = df.llm.map("{t}", model=Scripted(echo))

    assert out["response"].tolist() == df["t"].tolist()
    assert out.index.tolist() == [3, 1, 2, 0]


def test_u074_the_accessor_sees_the_frame_as_it_is_now() -> None:
    df = pd.DataFrame({"t": ["a", "b", "c"]})
    engine = Scripted(echo)
    _ = df.llm  # pandas 2 caches the accessor on the frame

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas 3.1 announces the end of inplace=
        df.drop(index=0, inplace=True)
    df["t"] = ["B", "C"]
    out = df.llm.map("{t}", model=engine)

    assert out["response"].tolist() == ["B", "C"]
    assert engine.prompts == ["B", "C"]


def test_u074_the_accessor_does_not_keep_the_frame_alive() -> None:
    df = pd.DataFrame({"t": ["a"]})
    out = df.llm.map("{t}", model=Scripted(echo))
    seen = weakref.ref(df), weakref.ref(out)
    out.llm.status()

    gc.collect()
    gc.disable()
    try:
        del df, out
        alive = [ref() is not None for ref in seen]
    finally:
        gc.enable()

    assert alive == [False, False], "a reference cycle holds the frame"


def test_u076_attrs_hold_little_and_plain_data(tmp_path: Path) -> None:
    df = pd.DataFrame({"t": ["a", "b"], "k": [1, 2]})
    out = df.llm.map("{t}", model=Scripted(echo))

    assert set(out.attrs["llmframe"]) == {"response"}
    assert len(json.dumps(out.attrs)) < 500
    assert df.attrs == {}

    assert "response" in repr(out)
    pd.testing.assert_series_equal(
        pd.concat([out, out])["response"].iloc[2:], out["response"], check_index=True
    )
    merged = out.merge(pd.DataFrame({"k": [1, 2], "z": [8, 9]}), on="k")
    assert merged["response"].tolist() == ["a", "b"]
    pytest.importorskip("pyarrow")
    out.to_parquet(tmp_path / "out.parquet")
    back = pd.read_parquet(tmp_path / "out.parquet")
    assert back["response"].tolist() == ["a", "b"]
    assert copy.deepcopy(out).equals(out)


def test_u076_slices_stay_cheap_after_a_run() -> None:
    df = pd.DataFrame({"t": [f"row {i}" for i in range(2_000)]})
    out = df.llm.map("{t}", model=Scripted(echo))

    def thousand(frame: pd.DataFrame) -> float:
        began = time.perf_counter()
        for i in range(1_000):
            frame.iloc[i : i + 5]
        return time.perf_counter() - began

    # pandas deep-copies attrs at every slice, so what they hold is paid here.
    assert thousand(out) < 5 * thousand(df) + 2


def test_u077_nothing_of_the_callers_is_changed() -> None:
    df = pd.DataFrame({"t": ["a", "b", "c"], "k": [1, 0, 2]})
    before = df.copy(deep=True)
    sub = df[df.k > 0]
    sub_before = sub.copy(deep=True)

    with all_warnings() as caught:
        out = sub.llm.map("{t}", model=Scripted(echo))
        out.loc[0, "t"] = "changed"

    assert [str(w.message) for w in caught] == []
    pd.testing.assert_frame_equal(df, before)
    pd.testing.assert_frame_equal(sub, sub_before)
    assert list(out.columns) == ["t", "k", "response"]
    assert "response" not in df.columns


def _child(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_u079_importing_twice_and_reloading_is_silent() -> None:
    done = _child(
        """
        import importlib
        import pandas as pd
        import llmframe
        import llmframe as lf
        importlib.reload(llmframe)
        engine = llmframe.testing.FakeEngine(lambda text: text)
        print(pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=engine)["response"].tolist())
        """,
        "-W",
        "error",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['a']"
    assert done.stderr == ""


def test_u079_a_name_that_another_package_took_is_told() -> None:
    done = _child(
        """
        import warnings
        import pandas as pd

        @pd.api.extensions.register_dataframe_accessor("llm")
        class Foreign:
            def __init__(self, frame): pass
            def hello(self): return "foreign"

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import llmframe as lf
        for w in caught:
            print("WARNED", w.message)
        engine = lf.testing.FakeEngine(lambda text: text)
        print(lf.map(pd.DataFrame({"t": ["a"]}), "{t}", model=engine)["response"].tolist())
        """
    )
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stdout.splitlines() if line.startswith("WARNED")]
    assert any("llm" in line and "Foreign" in line for line in warned), done.stdout
    assert "lf.map" in warned[0] or "function" in warned[0]
    assert done.stdout.splitlines()[-1] == "['a']"


def test_u142_columns_do_not_depend_on_the_order_of_keys_in_replies() -> None:
    replies = {
        "one": '{"a": 1, "b": "x"}',
        "two": '{"b": "y", "a": 2}',
        "three": "nothing of the kind",
    }
    engine = Scripted(lambda r: next(v for k, v in replies.items() if prompt_of(r) == k))

    def run(rows: list[str]) -> pd.DataFrame:
        frame = pd.DataFrame({"t": rows})
        return frame.llm.map("{t}", {"a": int, "b": str}, model=engine, errors="coerce", repairs=0)

    frames = [run(["one"]), run(["two"]), run(["three"]), run(["two", "three", "one"])]
    for out in frames:
        assert list(out.columns) == ["t", "a", "b"]
        assert out.dtypes.equals(frames[0].dtypes)
    joined = pd.concat(frames[:3], ignore_index=True)
    assert joined["a"].tolist()[:2] == [1, 2]
    assert joined["b"].tolist()[:2] == ["x", "y"]
    assert pd.isna(joined["a"].iloc[2])

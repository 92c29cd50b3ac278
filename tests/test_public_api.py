"""The public contract: names, keywords, columns, dtypes, jobs, errors."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import enum
import inspect
import json
import pickle
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import pandas as pd
import pydantic
import pytest

import llmframe as lf
from llmframe.requests import Request
from llmframe.results import Failure
from llmframe.retold import judged
from tests.servers.looking import all_warnings, of, openai, statuses
from tests.servers.rows import MODEL, Reply, by_schema
from tests.servers.scripted import Scripted, echo, prompt_of

pytest_plugins = ["tests.servers.plugin"]

PANDAS_3 = int(pd.__version__.split(".")[0]) >= 3
TEXT = "str" if PANDAS_3 else "string"
COMMON = [
    *("model", "batch", "system", "examples", "into", "if_exists", "temperature", "max_tokens"),
    *("seed", "extra", "errors", "missing", "retry", "repairs", "budget", "cache", "dedupe"),
    *("flatten", "dtype_backend", "details", "progress", "concurrency"),
]
NAMES = [
    *("map", "classify", "extract", "filter", "judge", "compare", "Rubric", "audit"),
    *("jobs", "job", "purge", "set_options", "testing"),
    *("OpenAI", "Local", "LLMFrameError", "PromptError", "SchemaError", "ModelError"),
    *("BudgetError", "EngineError", "StoreError", "RowsFailed", "RowsFailedWarning"),
    *("RowsSkippedWarning", "__version__"),
]


@pytest.fixture
def df() -> pd.DataFrame:
    return pd.DataFrame({"t": ["a", "b", "c"], "k": [1, 2, 3]}, index=["x", "y", "z"])


@pytest.mark.parametrize("name", NAMES)
def test_the_package_has_every_promised_name(name: str) -> None:
    assert hasattr(lf, name)


@pytest.mark.parametrize("verb", ["map", "classify", "extract", "filter", "judge", "compare"])
def test_every_verb_has_the_common_keywords_and_no_others_by_accident(verb: str) -> None:
    accessor = pd.DataFrame({"t": ["a"]}).llm
    for function in (getattr(lf, verb), getattr(accessor, verb)):
        parameters = inspect.signature(function).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds
        absent = {"into", "if_exists"} if verb == "filter" else set()
        for keyword in set(COMMON) - absent:
            assert keyword in parameters, keyword
        assert parameters["model"].default is None
        assert parameters["repairs"].default == 1
        assert parameters["errors"].default == "warn"
        assert parameters["missing"].default == "skip"
        assert parameters["retry"].default == "transient"
        assert parameters["cache"].default is True
        assert parameters["dedupe"].default is True


@pytest.mark.parametrize("verb", ["map", "classify", "extract", "filter", "judge", "compare"])
def test_plan_and_submit_have_the_same_signatures(verb: str) -> None:
    accessor = pd.DataFrame({"t": ["a"]}).llm
    plain = inspect.signature(getattr(accessor, verb)).parameters
    for namespace, own in ((accessor.plan, ["pilot"]), (accessor.submit, [])):
        parameters = inspect.signature(getattr(namespace, verb)).parameters
        assert list(parameters) == [*plain, *own]


def test_every_exception_class_pickles_whole() -> None:
    details: dict[str, Any] = {
        "provider": "openai",
        "status": 429,
        "request_id": "req_1",
        "retryable": True,
        "result": pd.DataFrame({"a": [1]}),
        "failures": pd.DataFrame({"kind": ["refused"]}),
        "plan": {"cost": 4.1},
    }
    for name in NAMES:
        thing = getattr(lf, name)
        if not (inspect.isclass(thing) and issubclass(thing, lf.LLMFrameError)):
            continue
        error = thing("what, with the value; what to do", **details)
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is thing
            assert str(again) == str(error)
            assert set(vars(again)) == set(vars(error))
            assert again.status == 429
            pd.testing.assert_frame_equal(again.result, error.result)


def test_the_tree_of_exceptions() -> None:
    for name in ("PromptError", "SchemaError", "ModelError"):
        assert issubclass(getattr(lf, name), lf.LLMFrameError)
        assert issubclass(getattr(lf, name), ValueError)
    for name in ("BudgetError", "EngineError", "StoreError", "RowsFailed"):
        assert issubclass(getattr(lf, name), lf.LLMFrameError)
        assert not issubclass(getattr(lf, name), ValueError)
    assert issubclass(lf.RowsFailedWarning, UserWarning)
    assert issubclass(lf.RowsSkippedWarning, UserWarning)


def test_errors_that_really_happen_pickle_with_their_frames(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: Reply(status=401, message="no"))
    refusing = Scripted(lambda r: Failure("refused", "no"))

    with pytest.raises(lf.EngineError) as engine_error:
        df.llm.map("{t}", model=openai(server))
    with pytest.raises(lf.RowsFailed) as rows_failed:
        df.llm.map("{t}", model=refusing, errors="raise")
    with pytest.raises(lf.PromptError) as prompt_error:
        df.llm.map("{nope}", model=refusing)
    with pytest.raises(lf.BudgetError) as budget_error:
        df.llm.map("{t}", model=openai(server), budget=1.0)

    for caught in (engine_error, rows_failed, prompt_error, budget_error):
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert str(again) == str(caught.value)
    again = pickle.loads(pickle.dumps(engine_error.value))
    assert again.status == 401
    assert statuses(again.result) == ["pending"] * 3


def test_out_frames_pickle_copy_and_concat(df: pd.DataFrame) -> None:
    out = df.llm.map("{t}", model=Scripted(echo))
    for again in (pickle.loads(pickle.dumps(out)), copy.deepcopy(out), out.copy()):
        pd.testing.assert_frame_equal(again, out)
        assert again.attrs == out.attrs
        assert statuses(again) == statuses(out)


# Names and columns ---------------------------------------------------------------------------


def test_map_adds_response_last_and_into_renames_it(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    assert list(df.llm.map("{t}", model=engine).columns) == ["t", "k", "response"]
    assert list(df.llm.map("{t}", model=engine, into="say").columns) == ["t", "k", "say"]
    assert engine.count == 3, "the column's name is no part of the question"


def test_schema_fields_keep_their_names_or_take_a_prefix_or_are_mapped(df: pd.DataFrame) -> None:
    engine = Scripted(lambda r: '{"a": 1, "b": "x"}')
    schema = {"a": int, "b": str}

    def names(**call: Any) -> list[str]:
        return list(df.llm.map("{t}", schema, model=engine, **call).columns[2:])

    assert names() == ["a", "b"]
    assert names(into="x_") == ["x_a", "x_b"]
    assert names(into={"b": "text"}) == ["a", "text"]
    single = df.llm.map("{t}", {"a": int}, model=Scripted(lambda r: '{"a": 1}'), into="x_")
    assert list(single.columns[2:]) == ["x_a"]


def test_details_name_themselves_after_into(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    parts = ["status", "error", "tokens", "cost", "model", "finish"]

    plain = df.llm.map("{t}", model=engine, details=True)
    named = df.llm.map("{t}", model=engine, details=True, into="say")

    assert list(plain.columns[2:]) == ["response", *(f"llm_{part}" for part in parts)]
    assert list(named.columns[2:]) == ["say", *(f"say_{part}" for part in parts)]
    assert [str(s) for s in plain["llm_status"]] == ["ok"] * 3
    assert plain["llm_error"].isna().all()
    assert plain["llm_tokens"].tolist() == [10, 10, 10]
    assert plain["llm_cost"].tolist() == [0, 0, 0]
    assert plain["llm_model"].tolist() == ["m1"] * 3
    assert plain["llm_finish"].tolist() == ["stop"] * 3


def test_details_of_rows_that_share_a_request_add_up_to_what_was_spent() -> None:
    df = pd.DataFrame({"t": ["b", "a", "b", None, "b"]})
    job = df.llm.submit.map("{t}", model=lf.testing.FakeEngine(), details=True)
    out = job.wait().join(df)
    usage = job.status().usage
    assert usage is not None
    assert out["llm_tokens"].sum() == usage.input_tokens + usage.output_tokens
    assert (out["llm_tokens"] > 0).tolist()[:3] == [True, True, False]
    assert out["llm_tokens"].fillna(-1).tolist()[2:] == [0, -1, 0]
    assert out["llm_model"].notna().tolist() == [True, True, True, False, True]


def test_classify_adds_a_categorical_and_its_companions(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: by_schema(seen.schema, _label="bug") if seen.schema else "bug")
    labels = ["billing", "bug"]

    with pytest.warns(UserWarning, match="explain=True gives no probabilities"):
        out = df.llm.classify("t", labels, model=openai(server), explain=True, confidence=True)
    named = df.llm.classify("t", labels, model=openai(server), explain=True, into="topic")

    assert list(out.columns[2:]) == ["label", "label_confidence", "label_reason"]
    assert out["label"].dtype == pd.CategoricalDtype(labels, ordered=False)
    assert out["label"].tolist() == ["bug"] * 3
    assert out["label_confidence"].dtype == "Float64"
    assert out["label_confidence"].isna().all(), "a label that is explained is not scored"
    assert out["label_reason"].tolist() == ["because"] * 3
    assert list(named.columns[2:]) == ["topic", "topic_reason"]


def test_classify_multi_gives_lists(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: by_schema(seen.schema, _label=["bug", "billing"]))

    out = df.llm.classify("t", ["billing", "bug", "praise"], model=openai(server), multi=True)

    assert out["label"].dtype == object
    assert all(isinstance(labels, list) for labels in out["label"])
    assert all(sorted(labels) == ["billing", "bug"] for labels in out["label"])


def test_extract_adds_a_column_per_field(df: pd.DataFrame) -> None:
    engine = Scripted(lambda r: json.dumps({"word": "w", "n": 2}))
    out = df.llm.extract("t", {"word": str, "n": int}, model=engine)
    assert list(out.columns[2:]) == ["word", "n"]
    assert out["word"].dtype == TEXT
    assert out["n"].tolist() == [2, 2, 2]


def test_extract_from_several_columns_leaves_the_missing_ones_out() -> None:
    engine = Scripted(lambda r: '{"n": 1}')
    df = pd.DataFrame({"a": ["x", None], "b": ["y", "z"]})

    df.llm.extract(["a", "b"], {"n": int}, model=engine)

    asked = engine.prompts
    assert len(asked) == 2
    assert "a: x\nb: y" in asked[0]
    assert "b: z" in asked[1]
    assert "a:" not in asked[1]


def test_filter_keeps_rows_and_says_what_it_left_out(serve: Any) -> None:
    def answer(seen: Any) -> Reply | str:
        if "|bad|" in seen.prompt:
            return Reply(status=400, code="content_filter", message="no")
        return by_schema(seen.schema, _bool="|yes|" in seen.prompt)

    server = serve(answer)
    df = pd.DataFrame({"t": ["yes", "no", "bad", None, "yes"]}, index=[5, 6, 7, 8, 5])

    with all_warnings() as caught:
        out = df.llm.filter("|{t}| says yes", model=openai(server))

    assert out.index.tolist() == [5, 5]
    assert list(out.columns) == ["t"]
    told = " ".join(of(caught, UserWarning))
    assert "1" in told
    assert re.search("failed|content_filter", told)
    assert "skipped" in told

    kept = df.llm.filter("|{t}| says yes", model=openai(server), keep_failed=True, errors="coerce")
    assert 7 in kept.index.tolist()
    assert 6 not in kept.index.tolist()


def test_a_series_gives_a_series_and_several_columns_a_frame() -> None:
    engine = Scripted(lambda r: '{"a": 1, "b": "x"}')
    text = Scripted(echo, model="m2")
    s = pd.Series(["a", "b"], index=[4, 4], name="words")

    one = s.llm.map("say {}", model=text)
    two = s.llm.map("{}", {"a": int, "b": str}, model=engine)
    label = s.llm.classify(["say", "a", "b"], model=Scripted(lambda r: "a", model="m3"))

    assert isinstance(one, pd.Series)
    assert one.tolist() == ["say a", "say b"]
    assert one.index.tolist() == [4, 4]
    assert isinstance(two, pd.DataFrame)
    assert list(two.columns) == ["a", "b"]
    assert isinstance(label, pd.Series)
    assert label.dtype == pd.CategoricalDtype(["say", "a", "b"])
    assert s.tolist() == ["a", "b"]


def test_functions_and_pipe_are_the_same_verbs(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    by_accessor = df.llm.map("{t}", model=engine)
    pd.testing.assert_frame_equal(lf.map(df, "{t}", model=engine), by_accessor)
    pd.testing.assert_frame_equal(df.pipe(lf.map, "{t}", model=engine), by_accessor)
    assert lf.map(df["t"], "{}", model=engine).tolist() == ["a", "b", "c"]
    assert engine.count == 3


def test_plan_and_submit_called_directly_mean_map(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    assert df.llm.plan("{t}", model=engine).requests == 3
    assert engine.count == 0
    job = df.llm.submit("{t}", model=engine).wait()
    assert job.join(df)["response"].tolist() == ["a", "b", "c"]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    label: str


class Typed(TypedDict):
    x: float
    ok: bool


class Model(pydantic.BaseModel):
    color: Color
    size: Literal["s", "m", "l"]
    level: Literal[1, 2]
    on: dt.date
    at: dt.datetime
    zoned: pydantic.AwareDatetime
    tags: list[str]
    weight: float
    note: str | None


REPLY = {
    "color": "blue",
    "size": "m",
    "level": 2,
    "on": "2024-02-03",
    "at": "2024-02-03T04:05:06",
    "zoned": "2024-02-03T04:05:06+02:00",
    "tags": ["a"],
    "weight": 1.5,
    "note": None,
}


def test_dtypes_follow_the_schema(df: pd.DataFrame) -> None:
    engine = Scripted(lambda r: json.dumps(REPLY))
    out = df.llm.map("{t}", Model, model=engine)
    row = out.iloc[0]

    assert out["color"].dtype == pd.CategoricalDtype(["red", "blue"])
    assert row["color"] == "blue"
    assert out["size"].dtype == pd.CategoricalDtype(["s", "m", "l"])
    assert out["level"].dtype == "Int64"
    assert out["on"].dtype == "datetime64[us]"
    assert row["on"] == pd.Timestamp("2024-02-03")
    assert out["at"].dtype == "datetime64[us]"
    assert out["zoned"].dtype == "datetime64[us, UTC]"
    assert row["zoned"] == pd.Timestamp("2024-02-03T02:05:06", tz="UTC")
    assert out["tags"].dtype == object
    assert out["weight"].dtype == "Float64"
    assert out["note"].dtype == TEXT
    assert out["note"].isna().all()


@pytest.mark.parametrize(
    ("schema", "reply", "columns", "dtypes"),
    [
        (int, '{"response": 3}', ["response"], ["Int64"]),
        (bool, '{"response": true}', ["response"], ["boolean"]),
        (float, '{"response": 3}', ["response"], ["Float64"]),
        (Literal["u", "v"], '{"response": "v"}', ["response"], ["category"]),
        (Color, '{"response": "red"}', ["response"], ["category"]),
        (Point, '{"x": 3, "label": "p"}', ["x", "label"], ["Int64", TEXT]),
        (Typed, '{"x": 3, "ok": false}', ["x", "ok"], ["Float64", "boolean"]),
        (re.compile(r"\d{4}"), '{"response": "2024"}', ["response"], [TEXT]),
        (
            {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
                "required": ["n", "s"],
            },
            '{"n": 1, "s": "x"}',
            ["n", "s"],
            ["Int64", TEXT],
        ),
    ],
    ids=["int", "bool", "float", "Literal", "Enum", "dataclass", "TypedDict", "regex", "JSON"],
)
def test_any_kind_of_schema(
    df: pd.DataFrame, schema: Any, reply: str, columns: list[str], dtypes: list[str]
) -> None:
    engine = Scripted(lambda r: reply)

    out = df.llm.map("{t}", schema, model=engine)

    assert list(out.columns[2:]) == columns
    assert [str(out[name].dtype) for name in columns] == dtypes
    assert out[columns].notna().all().all()


def test_a_bare_type_is_read_from_a_bare_reply_too(df: pd.DataFrame) -> None:
    for schema, reply, value in ((int, "3", 3), (bool, "true", True), (float, "1.5", 1.5)):
        out = df.llm.map("{t}", schema, model=Scripted(lambda r, reply=reply: reply, model=reply))
        assert out["response"].tolist() == [value] * 3


@pytest.mark.parametrize(
    ("schema", "reply"),
    [
        ({"n": int}, '{"n": true}'),
        ({"n": int}, '{"n": 1.5}'),
        ({"n": int}, '{"n": 1, "n": 2}'),
        ({"n": int}, '{"m": 1}'),
        ({"n": int}, "[1]"),
        ({"x": float}, '{"x": NaN}'),
        ({"b": bool}, '{"b": 1}'),
        ({"s": str}, '{"s": 5}'),
        (re.compile(r"\d{4}"), '{"response": "24"}'),
    ],
)
def test_what_is_no_answer(df: pd.DataFrame, schema: Any, reply: str) -> None:
    engine = Scripted(lambda r: reply)
    out = df.llm.map("{t}", schema, model=engine, errors="coerce", repairs=0)
    assert statuses(out) == ["failed"] * 3
    assert set(out.llm.failures()["kind"]) == {"invalid_output"}


def test_whole_floats_and_number_strings_become_integers(df: pd.DataFrame) -> None:
    replies = {"a": '{"n": 3.0}', "b": '{"n": "3"}', "c": '{"n": 3}'}
    engine = Scripted(lambda r: replies[prompt_of(r)])
    out = df.llm.map("{t}", {"n": int}, model=engine)
    assert out["n"].tolist() == [3, 3, 3]
    assert engine.count == 3


def test_the_full_schema_is_checked_whatever_the_engine_says(df: pd.DataFrame) -> None:
    class Answer(pydantic.BaseModel):
        score: int = pydantic.Field(ge=1, le=5)
        names: list[str] = pydantic.Field(min_length=2, max_length=2)

        @pydantic.field_validator("names")
        @classmethod
        def no_bob(cls, names: list[str]) -> list[str]:
            if "Bob" in names:
                raise ValueError("Bob is not welcome")
            return names

    replies = {
        "a": '{"score": 9, "names": ["x", "y"]}',
        "b": '{"score": 5, "names": ["x", "y", "z"]}',
        "c": '{"score": 5, "names": ["x", "Bob"]}',
    }
    engine = Scripted(lambda r: replies[prompt_of(r)])

    out = df.llm.map("{t}", Answer, model=engine, errors="coerce", repairs=0)

    failures = out.llm.failures()
    assert set(failures["kind"]) == {"invalid_output"}
    assert "score" in failures.loc["x", "message"]
    assert "names" in failures.loc["y", "message"]
    assert "Bob is not welcome" in failures.loc["z", "message"]


def test_a_validator_that_breaks_is_the_users_code(df: pd.DataFrame) -> None:
    class Answer(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def broken(cls, n: int) -> int:
            return {}["missing key"]  # type: ignore[return-value]

    engine = Scripted(lambda r: '{"n": 1}')
    out = df.llm.map("{t}", Answer, model=engine, errors="coerce")

    assert set(out.llm.failures()["kind"]) == {"user_code"}
    assert "missing key" in out.llm.failures()["message"].iloc[0]
    assert engine.count == 3


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_dtype_backend_as_in_read_csv(df: pd.DataFrame, backend: str) -> None:
    if backend == "pyarrow":
        pytest.importorskip("pyarrow")
    engine = Scripted(lambda r: '{"n": 1, "s": "x", "f": 1.5, "b": true}')
    schema = {"n": int, "s": str, "f": float, "b": bool}

    out = df.llm.map("{t}", schema, model=engine, dtype_backend=backend)

    names = ["n", "s", "f", "b"]
    if backend == "pyarrow":
        assert all(isinstance(out[name].dtype, pd.ArrowDtype) for name in names)
    else:
        assert [str(out[n].dtype) for n in names] == ["Int64", "string", "Float64", "boolean"]
    assert out["n"].tolist() == [1, 1, 1]
    assert out["k"].dtype == df["k"].dtype


# What goes out -------------------------------------------------------------------------------


def test_the_body_of_a_request(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": ["a"]})

    df.llm.map(
        "Say {t}",
        model=openai(server),
        system="Be brief.",
        examples=pd.DataFrame({"t": ["x"], "response": ["y"]}),
        max_tokens=33,
        seed=5,
        extra={"top_p": 0.25, "user": "me"},
    )

    body = server.asked[0].body
    assert body["model"] == MODEL
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "Say a"},
    ]
    assert body["temperature"] == 0
    assert (body.get("max_tokens") or body.get("max_completion_tokens")) == 33
    assert body["seed"] == 5
    assert body["top_p"] == 0.25
    assert body["user"] == "me"
    assert not body.get("stream")


def test_an_example_that_is_the_row_itself_is_left_out_for_it(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": ["a", "b"]})

    df.llm.map("{t}", model=openai(server), examples=[({"t": "a"}, "A"), ({"t": "z"}, "Z")])

    sent = {seen.body["messages"][-1]["content"]: seen.body["messages"] for seen in server.asked}
    assert [m["content"] for m in sent["a"]] == ["z", "Z", "a"]
    assert [m["content"] for m in sent["b"]] == ["a", "A", "z", "Z", "b"]


def test_a_callable_gets_a_read_only_row_and_may_give_messages(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    seen: list[Any] = []

    def prompt(row: Any) -> list[dict[str, str]]:
        seen.append(dict(row))
        with pytest.raises(TypeError):
            row["t"] = "changed"
        return [
            {"role": "system", "content": "s"},
            {"role": "user", "content": f"{row['t']}{row['k']}"},
        ]

    out = df.llm.map(prompt, model=engine)

    assert out["response"].tolist() == ["a1", "b2", "c3"]
    assert seen[0] == {"t": "a", "k": 1}
    assert type(seen[0]["k"]) is int
    assert [m["role"] for m in engine.requests[0].messages] == ["system", "user"]


def test_floats_integers_and_text_that_say_the_same_are_one_prompt() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"v": pd.Series([1, 1.0, "1", np.int8(1), np.float32(1)], dtype=object)})

    out = df.llm.map("{v}", model=engine)

    assert engine.prompts == ["1"]
    assert out["response"].tolist() == ["1"] * 5


def test_the_default_model_comes_from_the_option_then_the_variable(
    df: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Scripted(echo)
    monkeypatch.setenv("LLMFRAME_MODEL", "openai/never")
    with lf.set_options(model=engine):
        assert df.llm.map("{t}")["response"].tolist() == ["a", "b", "c"]
    with pytest.raises(lf.ModelError, match="OPENAI_API_KEY"):
        df.llm.map("{t}")


def test_key_and_address_come_from_the_sdks_own_variables(
    df: pd.DataFrame, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)

    out = df.llm.map("{t}", model="openai/some-model")

    assert out["response"].tolist() == ["a", "b", "c"]
    assert server.asked[0].body["model"] == "some-model"
    assert server.asked[0].headers["authorization"] == "Bearer sk-from-the-environment"


def test_never_more_in_flight_than_asked_for_and_never_fewer_while_rows_remain(
    serve: Any,
) -> None:
    server = serve(lambda seen: Reply(by_schema(seen.schema), delay=0.05))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(500)]})

    class Answer(pydantic.BaseModel):
        one: str
        two: int
        three: bool

    out = df.llm.map("{t}", Answer, model=openai(server), concurrency=32)

    assert server.max_in_flight <= 32
    assert server.max_in_flight >= 24, "the slots were never full"
    assert server.count == 500
    assert statuses(out) == ["ok"] * 500


def test_the_first_row_goes_ahead_alone(serve: Any) -> None:
    alone: list[int] = []

    def answer(seen: Any) -> Reply:
        alone.append(seen.n)
        return Reply(seen.prompt, delay=0.3 if seen.n == 1 else 0)

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})

    df.llm.map("{t}", model=openai(server), concurrency=8)

    assert server.asked[0].prompt == "row 0"
    assert server.asked[1].at - server.asked[0].at >= 0.28
    assert server.count == 20


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_fatal_answer_to_the_first_row_ends_the_job_there(serve: Any, status: int) -> None:
    server = serve(lambda seen: Reply(status=status, message="The model `x` does not exist"))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(50)]})

    with pytest.raises(lf.EngineError) as caught:
        df.llm.map("{t}", model=openai(server))

    assert server.count == 1
    assert caught.value.status == status
    assert caught.value.request_id == "req_1"
    assert statuses(caught.value.result) == ["pending"] * 50


def test_transient_errors_are_tried_again_and_cost_no_row(serve: Any) -> None:
    def answer(seen: Any) -> Reply | str:
        if seen.tries == 1 and seen.n % 7 == 0:
            return Reply(status=503, message="overloaded")
        return seen.prompt

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(60)]})

    out = df.llm.map("{t}", model=openai(server), concurrency=8)

    assert out["response"].tolist() == df["t"].tolist()
    assert statuses(out) == ["ok"] * 60
    assert server.count > 60


def test_a_server_without_response_format_gets_the_schema_in_the_prompt(serve: Any) -> None:
    def answer(seen: Any) -> Reply | str:
        if "response_format" in seen.body:
            return Reply(
                status=400,
                code="unsupported_parameter",
                param="response_format",
                message="'response_format' of type 'json_schema' is not supported",
            )
        return '{"city": "Paris"}'

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})

    out = df.llm.map("{t}", {"city": str}, model=openai(server), concurrency=4)

    assert out["city"].tolist() == ["Paris"] * 20
    assert server.count <= 20 + 2
    said = json.dumps(server.asked[-1].body["messages"])
    assert "city" in said


# Cache, jobs, store --------------------------------------------------------------------------


def test_the_same_call_again_sends_nothing(df: pd.DataFrame, serve: Any) -> None:
    server = serve()
    first = df.llm.map("{t}", model=openai(server))
    second = df.llm.map("{t}", model=openai(server))

    assert server.count == 3
    pd.testing.assert_frame_equal(first, second)
    assert statuses(first) == ["ok"] * 3
    assert statuses(second) == ["cached"] * 3
    plan = df.llm.plan.map("{t}", model=openai(server))
    assert (plan.requests, plan.cached) == (0, 3)


def test_cache_false_asks_anew_and_once(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    df.llm.map("{t}", model=engine)
    df.llm.map("{t}", model=engine, cache=False)
    assert engine.count == 6
    df.llm.map("{t}", model=engine)
    assert engine.count == 6


def test_a_grown_frame_asks_only_the_new_rows(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    df.llm.map("{t}", model=engine)
    grown = pd.concat([df.iloc[::-1], pd.DataFrame({"t": ["d"], "k": [9]}, index=["w"])])

    out = grown.llm.map("{t}", model=engine)

    assert engine.prompts[3:] == ["d"]
    assert out["response"].tolist() == ["c", "b", "a", "d"]


def test_a_job_from_submit_to_join(serve: Any) -> None:
    gate = {"open": False}
    server = serve(lambda seen: seen.prompt if seen.n <= 3 or gate["open"] else Reply(hang=True))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(6)]}, index=list("abcdef"))

    job = df.llm.submit.map("{t}", model=openai(server, timeout=2), concurrency=1)
    server.wait_for(lambda: server.count >= 4)
    deadline = time.monotonic() + 60
    while job.status().ok < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    status = job.status()
    assert status.state == "running"
    assert (status.ok, status.failed, status.pending) == (3, 0, 3)
    early = job.join(df)
    assert early["response"].dropna().tolist() == ["row 0", "row 1", "row 2"]
    assert statuses(early) == ["ok"] * 3 + ["pending"] * 3

    gate["open"] = True
    assert job.wait() is job
    assert job.status().state == "done"
    shuffled = df.iloc[[4, 0, 2]].assign(extra=1)
    out = job.join(shuffled)
    assert out["response"].tolist() == ["row 4", "row 0", "row 2"]
    assert out.index.tolist() == ["e", "a", "c"]
    assert list(out.columns) == ["t", "extra", "response"]
    grown = pd.concat([df, pd.DataFrame({"t": ["row 99"]}, index=["z"])])
    with pytest.warns(UserWarning, match="1 of 7 rows of this frame are none that job"):
        assert statuses(job.join(grown))[-1] == "pending"
    assert job.join()["response"].tolist() == df["t"].tolist()


def test_wait_with_a_timeout_comes_back(serve: Any) -> None:
    server = serve(lambda seen: Reply(hang=True))
    df = pd.DataFrame({"t": ["a"]})
    job = df.llm.submit.map("{t}", model=openai(server))

    began = time.monotonic()
    try:
        job.wait(timeout=0.5)
    except TimeoutError as error:
        assert job.id in str(error)  # noqa: PT017 - either way it must come back
    assert time.monotonic() - began < 60  # and not what the engine waits for an answer
    job.cancel()
    job.wait(timeout=60)
    with pytest.warns(UserWarning, match="1 of 1 rows are without an answer: .* was canceled"):
        assert statuses(job.join(df)) == ["pending"]
    assert job.status().state == "canceled"


def test_a_job_on_the_fake_engine_is_found_and_not_listed() -> None:
    job = pd.DataFrame({"t": ["a"]}).llm.submit.map("{t}", model=lf.testing.FakeEngine()).wait()

    assert lf.job(job.id).status().state == "done"
    assert len(lf.jobs()) == 0


def test_jobs_are_found_again(df: pd.DataFrame) -> None:
    engine = Scripted(lambda r: Failure("refused", "no") if prompt_of(r) == "b" else prompt_of(r))
    with all_warnings():
        job = df.llm.submit.map("{t}", model=engine).wait()
        out = job.join(df)
    again = lf.job(job.id)

    assert re.fullmatch(r"j_\w+", job.id)
    assert job.id in repr(lf.jobs())
    assert job.id in repr(job)
    with pytest.warns(lf.RowsFailedWarning, match="1 refused"):
        assert again.join(df)["response"].equals(out["response"])
    assert again.failures().index.tolist() == ["y"]
    assert out.attrs["llmframe"] == {"response": job.id}
    assert "refused" in repr(again.report())


def test_a_finished_job_in_another_process(df: pd.DataFrame, serve: Any, home: Path) -> None:
    server = serve()
    job = df.llm.submit.map("Say {t}", {"say": str}, model=openai(serve_json(server))).wait()
    code = (
        "import pandas as pd, llmframe as lf\n"
        f"job = lf.job({job.id!r})\n"
        'df = pd.DataFrame({"t": ["c", "a", "new"]}, index=[1, 2, 3])\n'
        "out = job.join(df)\n"
        'print(out["say"].fillna("NA").tolist(), [str(s) for s in out.llm.status()])\n'
        "print(job.status().state, len(lf.jobs()))\n"
    )
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LLMFRAME_HOME": str(home), "PYTHONPATH": root, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "['said', 'said', 'NA'] ['ok', 'ok', 'pending']"
    assert lines[1] == "done 1"
    assert server.count == 3


def serve_json(server: Any) -> Any:
    server.rows = lambda seen: '{"say": "said"}'
    return server


def test_a_job_made_with_a_callable_needs_it_again(df: pd.DataFrame, home: Path) -> None:
    def prompt(row: Any) -> str:
        return f"{row['t']}!"

    engine = Scripted(echo)
    job = df.llm.submit.map(prompt, model=engine).wait()
    out = lf.job(job.id).join(df, prompt=prompt)
    assert out["response"].tolist() == ["a!", "b!", "c!"]
    assert engine.count == 3


def test_export_writes_the_joined_frame(df: pd.DataFrame, tmp_path: Path) -> None:
    engine = Scripted(lambda r: "=1+1" if prompt_of(r) == "a" else prompt_of(r))
    job = df.llm.submit.map("{t}", model=engine).wait()

    job.export(tmp_path / "out.csv")

    text = (tmp_path / "out.csv").read_text()
    back = pd.read_csv(tmp_path / "out.csv")
    assert back["response"].tolist() == ["'=1+1", "b", "c"]
    assert "'=1+1" in text


def test_an_awaited_job(df: pd.DataFrame) -> None:
    engine = Scripted(echo)

    async def main() -> pd.DataFrame:
        job = df.llm.submit.map("{t}", model=engine)
        await job
        return job.join(df)

    assert asyncio.run(main())["response"].tolist() == ["a", "b", "c"]


def test_trace_tells_what_was_put_right_in_reading(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine('Sure: {"stars": "3"}')
    out = df[:1].llm.extract("t", {"stars": int, "note": str | None}, model=engine)
    trace = out.llm.trace(position=0)
    assert trace.replies[0].kind == "ok"
    assert trace.replies[0].message == "found among other text; coerced stars, note"
    assert "ok: found among other text; coerced stars, note;" in str(trace)
    plain = lf.testing.FakeEngine('{"stars": 3}')
    out = df[:1].llm.extract("t", {"stars": int}, model=plain)
    assert not out.llm.trace(position=0).replies[0].message


def test_trace_numbers_replies_over_several_calls() -> None:
    df = pd.DataFrame({"t": ["x"]})
    engine = lf.testing.FakeEngine("no number")
    for _ in range(2):
        out = df.llm.map("{t}", int, model=engine, errors="coerce")
    trace = str(out.llm.trace(0))
    assert re.findall(r"^  reply (\d)", trace, re.MULTILINE) == ["1", "2", "3", "4"]
    assert re.findall(r"raw reply (\d)", trace) == ["1", "2", "3", "4"]
    html = out.llm.trace(0)._repr_html_()
    assert re.findall(r">Reply (\d)<", html) == ["1", "2", "3", "4"]


def test_trace_tells_how_a_cell_came_to_be(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: f"reply to {seen.prompt}")
    out = df.llm.map("Say {t}", model=openai(server), system="Be brief.")

    text = str(out.llm.trace("y"))

    assert "Say b" in text
    assert "reply to Say b" in text
    assert "Be brief." in text
    assert "Say a" not in text
    assert re.search(r"\b7\b", text)
    assert "req_" in text


def test_a_trace_as_text_is_cut_and_does_nothing_to_a_terminal() -> None:
    df = pd.DataFrame({"t": ["\x1b[2J\x1b[31m" + "word " * 200_000]})
    out = df.llm.map("{t}", model=lf.testing.FakeEngine(lambda text: text))
    trace = out.llm.trace(0)

    assert len(repr(trace)) < 50_000
    assert "more characters)" in repr(trace)
    assert "\x1b" not in repr(trace)
    assert trace.raw == df["t"][0]


def test_filtered_and_reset_frames_still_show_their_own_rows(df: pd.DataFrame) -> None:
    engine = Scripted(lambda r: Failure("refused", "no") if prompt_of(r) == "b" else prompt_of(r))
    out = df.llm.map("{t}", model=engine, errors="coerce")

    part = out[out["k"] > 1].reset_index(drop=True)

    assert statuses(part) == ["failed", "ok"]
    assert part.llm.failures().index.tolist() == [0]
    assert "c" in str(part.llm.trace(1))
    assert repr(part.llm.trace(part.index.to_numpy()[1])).startswith("Row 1: ")


def test_purge_deletes_for_good(df: pd.DataFrame, home: Path) -> None:
    engine = Scripted(lambda r: "planted-reply-7f3a")
    job = df.llm.submit.map("planted-prompt-91bc {t}", model=engine).wait()

    lf.purge(job=job.id)

    data = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"planted-reply-7f3a" not in data
    assert b"planted-prompt-91bc" not in data
    df.llm.map("planted-prompt-91bc {t}", model=engine)
    assert engine.count == 6


def test_keep_prompts_false_stores_no_prompt(df: pd.DataFrame, home: Path) -> None:
    engine = Scripted(lambda r: "fine")
    with lf.set_options(keep_prompts=False):
        out = df.llm.map("planted-prompt-91bc {t}", model=engine, system="planted-system-2e0d")
        assert out["response"].tolist() == ["fine"] * 3
    data = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"planted-prompt-91bc" not in data
    assert (
        df.llm.plan.map(
            "planted-prompt-91bc {t}", model=engine, system="planted-system-2e0d"
        ).cached
        == 3
    )


def test_the_store_is_the_users_alone(df: pd.DataFrame, home: Path) -> None:
    df.llm.map("{t}", model=Scripted(echo))
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    assert {path.stat().st_mode & 0o077 for path in files} == {0}


def test_one_more_run_replaces_what_the_verb_wrote_and_nothing_else(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    out = df.llm.map("{t}", model=engine)
    again = out.llm.map("{t} {k}", model=engine)
    assert list(again.columns) == ["t", "k", "response"]
    assert again["response"].tolist() == ["a 1", "b 2", "c 3"]
    with pytest.raises(lf.SchemaError, match="response"):
        df.assign(response="mine").llm.map("{t}", model=engine)


def test_budget_ends_a_run_and_keeps_what_is_paid(serve: Any) -> None:
    server = serve(lambda seen: Reply(seen.prompt, tokens=(10, 10)))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(100)]})
    # A request reserves what its prompt and max_tokens may cost; each really costs US$0.02.
    with lf.set_options(prices={f"openai/{MODEL}": (1_000.0, 1_000.0)}):
        plan = df.llm.plan.map("{t}", model=openai(server), max_tokens=10)
        assert plan.cost is not None
        with pytest.raises(lf.BudgetError):
            df.llm.map("{t}", model=openai(server), max_tokens=10, budget=plan.cost / 10)
        assert server.count == 0
        out = df.llm.map("{t}", model=openai(server), max_tokens=10, budget=plan.cost * 10)
        assert out["response"].notna().all()


def test_a_budget_is_never_passed(serve: Any) -> None:
    """The model answers far longer than planned; spent and reserved stay below the budget."""
    server = serve(lambda seen: Reply(seen.prompt, tokens=(5, 1_000)))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(200)]})
    price = 1_000.0
    with (
        lf.set_options(prices={f"openai/{MODEL}": (price, price)}),
        pytest.raises(lf.BudgetError) as caught,
    ):
        # 200 rows at ~US$1 each; the plan knows max_tokens and so refuses or stops on the way.
        df.llm.map("{t}", model=openai(server), max_tokens=1_000, budget=20.0, concurrency=4)

    spent = sum(server.answered.values()) * 1_005 * price / 1e6
    assert spent <= 20.0
    if server.count:
        assert int(caught.value.result["response"].notna().sum()) == server.count


# FakeEngine and the protocol -----------------------------------------------------------------


def test_the_fake_engine_is_deterministic_and_leaves_no_store(df: pd.DataFrame, home: Path) -> None:
    engine = lf.testing.FakeEngine(lambda text: text.upper())
    first = df.llm.map("{t}", model=engine)
    second = df.llm.map("{t}", model=engine)
    assert first["response"].tolist() == ["A", "B", "C"]
    assert second["response"].tolist() == ["A", "B", "C"]
    assert len(engine.requests) == 3
    other = lf.testing.FakeEngine(lambda text: text.upper())
    df.llm.map("{t}", model=other)
    assert len(other.requests) == 3, "two fakes must not share answers"


def test_the_fake_engine_knows_the_schema_without_an_answer(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine()
    out = df.llm.map("{t}", Model, model=engine)
    assert statuses(out) == ["ok"] * 3
    again = df.llm.map("{t}", Model, model=lf.testing.FakeEngine())
    pd.testing.assert_frame_equal(out, again)
    labels = df.llm.classify("t", ["p", "q"], model=lf.testing.FakeEngine())
    assert labels["label"].notna().all()
    assert set(labels["label"]) <= {"p", "q"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("garbage", "invalid_output"),
        ("empty", "empty_output"),
        ("truncate", "truncated"),
        ("refuse", "refused"),
        ("filter", "content_filter"),
        ("connection", "connection"),
        ("timeout", "timeout"),
        ("500", "provider_error"),
        ("drop", "no_result"),
    ],
)
def test_a_fault_that_stays_fails_its_row_and_one_that_passes_does_not(
    df: pd.DataFrame, fault: str, kind: str
) -> None:
    def on_b(times: int | None) -> Any:
        script = lf.testing.Fault(fault, times=times)
        return lambda request: script if "row b" in str(request.messages) else None

    lasting = lf.testing.FakeEngine({"n": 1}, faults=on_b(None))
    passing = lf.testing.FakeEngine({"n": 1}, faults=on_b(1))

    out = df.llm.map("row {t}", {"n": int}, model=lasting, errors="coerce")
    assert out["n"].isna().tolist() == [False, True, False]
    assert out.llm.failures()["kind"].tolist() == [kind]

    out = df.llm.map("row {t}", {"n": int}, model=passing, errors="coerce")
    final = kind in ("refused", "content_filter")
    assert out["n"].isna().tolist() == [False, final, False]


def test_duplicates_and_disorder_of_the_fake_change_nothing() -> None:
    df = pd.DataFrame({"t": [f"row {i}" for i in range(50)]})
    engine = lf.testing.FakeEngine(faults={"duplicate": 0.3, "reorder": 0.3, "conflict": 0.2})
    out = df.llm.map("{t}", model=engine)
    assert out["response"].tolist() == df["t"].tolist()
    assert statuses(out) == ["ok"] * 50


def test_a_fake_that_crashes_keeps_what_it_had_answered() -> None:
    df = pd.DataFrame({"t": [f"row {i}" for i in range(10)]})
    engine = lf.testing.FakeEngine(
        faults=lambda request: "crash" if "row 6" in str(request.messages) else None,
        concurrency=1,
    )
    with pytest.raises(lf.EngineError) as caught:
        df.llm.map("{t}", model=engine)
    assert caught.value.result["response"].dropna().tolist() == [f"row {i}" for i in range(6)]
    assert statuses(caught.value.result)[7:] == ["pending"] * 3


def test_any_object_with_the_protocol_is_an_engine(df: pd.DataFrame) -> None:
    engine = Scripted(echo)
    assert df.llm.map("{t}", model=engine)["response"].tolist() == ["a", "b", "c"]
    request = engine.requests[0]
    assert isinstance(request, Request)
    assert len(request.key) == 16
    assert request.position in (0, 1, 2)


def test_an_engine_that_answers_twice_drops_and_reorders(df: pd.DataFrame) -> None:
    from collections.abc import Iterator

    from llmframe.results import Result

    class Disorder(Scripted):
        def stream(self, source: Any, control: Any) -> Iterator[list[Result]]:
            for results in super().stream(source, control):
                stranger = Result(key=b"\0" * 16, text="not asked for", finish="stop")
                yield [stranger, *reversed(results), *results]

    out = df.llm.map("{t}", model=Disorder(echo))
    assert out["response"].tolist() == ["a", "b", "c"]
    assert statuses(out) == ["ok"] * 3


def test_importing_costs_no_sdk() -> None:
    code = (
        "import sys, llmframe\n"
        'heavy = ("openai", "anthropic", "xllamacpp", "vllm", "ray", "pandera", "aiohttp",'
        ' "httpx", "httpx2", "IPython", "torch")\n'
        "print([name for name in heavy if name in sys.modules])\n"
    )
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": root, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["map", "classify", "extract", "filter", "judge", "compare"])
@pytest.mark.parametrize("data", [pd.DataFrame, pd.Series])
def test_help_says_what_each_keyword_means(data: Any, verb: str) -> None:
    if (data, verb) == (pd.Series, "compare"):
        assert not hasattr(data.llm, verb)  # a Series holds one text, not two
        return
    holder = data.llm
    ways = [getattr(holder, verb), getattr(holder, "a" + verb)]
    ways += [
        getattr(way.fget(data(dtype=object).llm), verb) for way in (holder.plan, holder.submit)
    ]
    for way in [getattr(lf, verb), *ways]:
        arguments = (inspect.getdoc(way) or "").partition("Args:\n")[2].partition("\n\n")[0]
        described = re.findall(r"^ {4}(\w+): ", arguments, flags=re.MULTILINE)
        assert sorted(described) == sorted(set(inspect.signature(way).parameters) - {"self"})


@pytest.fixture
def answers() -> pd.Series:
    """The answers about a Series: one right, one failed, one skipped, one shared."""
    asked = pd.Series(["fine", "lost", None, "fine"], index=["a", "b", "c", "d"], name="t")
    fault = lf.testing.Fault("refuse", times=None)
    engine = lf.testing.FakeEngine(
        faults=lambda request: fault if "lost" in request.messages[-1]["content"] else None
    )
    return asked.llm.map("Of {}", model=engine, errors="coerce")


def test_a_series_of_answers_tells_what_became_of_its_rows(answers: pd.Series) -> None:
    assert statuses(answers) == ["ok", "failed", "skipped", "ok"]
    failed = answers.llm.failures()
    assert failed.index.tolist() == ["b"]
    assert failed["kind"].tolist() == ["refused"]
    assert failed["position"].tolist() == [1]
    assert "Of lost" in str(answers.llm.trace("b"))
    assert answers.llm.trace("a").raw == "Of fine"
    assert "missing" in str(answers.llm.trace(position=2))


def test_part_of_a_series_of_answers_tells_its_own_rows(answers: pd.Series) -> None:
    part = answers[["d", "b"]]
    assert statuses(part) == ["ok", "failed"]
    assert part.llm.failures()["position"].tolist() == [1]
    assert "Of lost" in str(part.llm.trace(position=1))


def test_a_column_of_a_frame_tells_the_same_as_the_frame(df: pd.DataFrame) -> None:
    engine = Scripted(lambda r: Failure("refused", "no") if prompt_of(r) == "b" else prompt_of(r))
    out = df.llm.map("{t}", model=engine, errors="coerce")
    pd.testing.assert_frame_equal(out["response"].llm.failures(), out.llm.failures())
    assert str(out["response"].llm.trace("y")) == str(out.llm.trace("y"))


def test_several_columns_about_a_series_tell_of_its_rows() -> None:
    asked = pd.Series(["fine", "lost"], index=["a", "b"], name="t")
    engine = lf.testing.FakeEngine({"spam": 0.9, "ham": 0.1}, choices=True)
    out = asked.llm.classify(["spam", "ham"], confidence=True, model=engine)
    assert statuses(out) == ["ok", "ok"]
    assert out.llm.failures().empty
    assert "lost" in str(out.llm.trace("b"))


def test_a_series_of_answers_on_other_labels_says_where_to_look(answers: pd.Series) -> None:
    with pytest.raises(lf.StoreError, match=r"found by their labels.*failures\(\)"):
        answers.reset_index(drop=True).llm.failures()
    twice = pd.Series(["x", "y", "z"], index=["a", "a", "b"]).llm.map(
        "{}", model=lf.testing.FakeEngine()
    )
    assert statuses(twice) == ["ok"] * 3
    with pytest.raises(lf.StoreError, match="once each"):
        twice[twice.index == "a"].llm.status()


def test_a_trace_of_scored_labels_tells_their_probabilities() -> None:
    labels = [f"label {n:02}" for n in range(12)]
    engine = lf.testing.FakeEngine(
        lambda text: {label: 0.89 if label == "label 03" else 0.01 for label in labels},
        choices=True,
    )
    job = pd.DataFrame({"t": ["x"]}).llm.submit.classify("t", labels, model=engine).wait()
    [reply] = job.trace(0).replies
    assert reply.text == "label 03"  # this engine writes the label too; others score it alone
    [reply] = judged(job.call, [reply._replace(text=None)])
    assert reply.text.splitlines()[:3] == [
        "probabilities of the labels, before any calibration:",
        "label 03: 0.890",
        "label 00: 0.010",
    ]
    assert reply.text.endswith("… and 2 more")


def test_no_more_is_in_flight_than_may_be(serve: Any) -> None:
    server = serve(lambda seen: seen.prompt if seen.n == 1 else Reply(hang=True))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})
    job = df.llm.submit.map("{t}", model=openai(server), concurrency=3)
    server.wait_for(lambda: server.count == 4)
    assert job._look().in_flight == 3
    job.cancel().wait(60)

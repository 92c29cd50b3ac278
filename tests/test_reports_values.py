"""Public fault reports: values that lose digits, text that JSON cannot carry, messy replies."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pydantic
import pytest

import llmframe as lf
from llmframe.results import Failure
from tests.servers.looking import kinds, openai, statuses
from tests.servers.rows import Reply
from tests.servers.scripted import Scripted, echo, prompt_of

pytest_plugins = ["tests.servers.plugin"]


def text_dtype(values: list[Any]) -> pd.Series:
    """What a text column must look like on the pandas at hand: str on 3, string on 2."""
    return pd.Series(values, dtype="str" if int(pd.__version__.split(".")[0]) >= 3 else "string")


def replying(replies: dict[str, str | Failure]) -> Scripted:
    """An engine that answers by the row's text."""
    return Scripted(lambda r: replies[prompt_of(r)])


def test_u081_a_missing_row_does_not_turn_ids_into_floats() -> None:
    engine = replying({"a": '{"id": 9007199254740993}', "b": Failure("refused", "no")})
    df = pd.DataFrame({"t": ["a", "b"]})

    out = df.llm.map("{t}", {"id": int}, model=engine, errors="coerce")

    assert out["id"].dtype == "Int64"
    assert out["id"].iloc[0] == 9007199254740993
    assert out["id"].iloc[1] is pd.NA


def test_u081_integers_keep_every_digit_on_the_way_out() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"id": pd.array([9007199254740993, None], dtype="Int64")})

    out = df.llm.map("{id}", model=engine)

    assert engine.prompts == ["9007199254740993"]
    assert out["response"].iloc[0] == "9007199254740993"


def test_u081_an_integer_beyond_64_bits_is_refused() -> None:
    engine = replying({"a": '{"id": 99999999999999999999999}', "b": '{"id": 1}'})
    df = pd.DataFrame({"t": ["a", "b"]})

    out = df.llm.map("{t}", {"id": int}, model=engine, errors="coerce", repairs=0)

    assert out["id"].dtype == "Int64"
    assert out["id"].isna().tolist() == [True, False]
    assert kinds(out) == {0: "invalid_output"}


def test_u082_an_optional_int_with_a_null(tmp_path: Path) -> None:
    class Answer(pydantic.BaseModel):
        n: Optional[int]  # noqa: UP045 - the spelling of the report

    engine = replying({"a": '{"n": 3}', "b": '{"n": null}'})
    df = pd.DataFrame({"t": ["a", "b"]})

    out = df.llm.map("{t}", Answer, model=engine)

    assert out["n"].dtype == "Int64"
    assert out["n"].iloc[0] == 3
    assert out["n"].isna().tolist() == [False, True]
    assert statuses(out) == ["ok", "ok"]
    pytest.importorskip("pyarrow")
    out.to_parquet(tmp_path / "n.parquet")
    pd.testing.assert_series_equal(pd.read_parquet(tmp_path / "n.parquet")["n"], out["n"])


def test_u085_line_separators_inside_text_survive(serve: Any) -> None:
    cell = "a\u2028b\x85c\x0cd\u2029e\x1ef\r\ng"
    server = serve(lambda seen: seen.prompt)
    df = pd.DataFrame({"t": [cell, "plain"]})

    first = df.llm.map("{t}", model=openai(server))
    second = df.llm.map("{t}", model=openai(server))

    assert server.prompts == [cell, "plain"]
    assert first["response"].tolist() == [cell, "plain"]
    assert second["response"].tolist() == [cell, "plain"]
    assert server.count == 2


def test_u086_a_lone_surrogate_fails_its_own_row(serve: Any) -> None:
    server = serve(lambda seen: seen.prompt)
    df = pd.DataFrame({"t": pd.Series(["ok", "bad \ud83d", "fine"], dtype=object)})
    fake = lf.testing.FakeEngine(lambda text: text)

    for engine in (openai(server), Scripted(echo), fake):
        for _ in range(2):
            out = df.llm.map("{t}", model=engine, errors="coerce")
            assert out["response"].tolist()[::2] == ["ok", "fine"]
            failure = out.llm.failures()
            assert failure.index.tolist() == [1]
            assert failure["kind"].tolist() == ["prompt_error"]
            assert "t" in failure["message"].iloc[0]
            failure["message"].iloc[0].encode()
    assert server.prompts == ["ok", "fine"]
    assert server.unreadable == []


@pytest.mark.slow
def test_u086_a_lone_surrogate_in_a_reply_fails_or_comes_whole(serve: Any) -> None:
    completion = json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "half \ud83d"},
                }
            ],
        }
    ).encode()
    server = serve(lambda seen: Reply(raw=completion) if seen.prompt == "bad" else "fine")
    df = pd.DataFrame({"t": ["good", "bad"]})

    for _ in range(2):
        out = df.llm.map("{t}", model=openai(server), errors="coerce")
        assert out["response"].iloc[0] == "fine"
        status = statuses(out)[1]
        assert (status == "failed") == bool(pd.isna(out["response"].iloc[1]))


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"a": 1}\n```',
        '```\n{"a":1}\n```',
        'json\n{"a":1}',
        '```JSON\n{"a":1}```',
        '\ufeff{"a": 1}\n',
    ],
)
def test_u088_json_in_a_fence(serve: Any, reply: str) -> None:
    server = serve(lambda seen: reply)
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", {"a": int}, model=openai(server))

    assert out["a"].tolist() == [1]
    assert statuses(out) == ["ok"]
    assert server.count == 1, "a reply that can be read was asked again"


def test_u090_prose_around_one_object_is_read_and_two_objects_are_not_guessed() -> None:
    engine = replying({"one": 'Sure! {"a":1}', "two": '{"a":1} or maybe {"a":2}'})
    df = pd.DataFrame({"t": ["one", "two"]})

    out = df.llm.map("{t}", {"a": int}, model=engine, errors="coerce", repairs=0)

    assert out["a"].iloc[0] == 1
    assert out["a"].isna().tolist() == [False, True]
    failures = out.llm.failures()
    assert failures["kind"].tolist() == ["invalid_output"]
    assert "ambiguous" in failures["message"].iloc[0] or "two" in failures["message"].iloc[0]


def test_u092_numpy_scalars_go_out_as_json(serve: Any) -> None:
    server = serve(lambda seen: seen.prompt)
    cell = {"n": np.int64(3), "b": np.bool_(True), "f": np.float32(0.1)}
    df = pd.DataFrame({"c": pd.Series([cell], dtype=object)})

    out = df.llm.map("{c}", model=openai(server), temperature=np.float64(0), seed=np.int64(7))

    assert json.loads(server.prompts[0]) == {"n": 3, "b": True, "f": 0.1}
    assert server.asked[0].body["temperature"] == 0
    assert server.asked[0].body["seed"] == 7
    assert statuses(out) == ["ok"]


def test_u092_numpy_columns_render_as_the_values_they_are() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame(
        {
            "i": np.array([3], dtype="int8"),
            "b": np.array([True]),
            "f": np.array([0.1], dtype="float32"),
            "g": np.array([2.0]),
        }
    )

    df.llm.map("{i} {b} {f} {g}", model=engine)

    assert engine.prompts[0].lower() == "3 true 0.1 2"


def test_u093_dates_decimals_and_uuids_render_as_text_and_bytes_are_refused() -> None:
    one = uuid.UUID("12345678-1234-5678-1234-567812345678")
    cells = [
        pd.Timestamp("2024-01-02 03:04", tz="UTC"),
        Decimal("1.10"),
        dt.date(2024, 1, 2),
        one,
        Path("a") / "b",
        b"x",
    ]
    df = pd.DataFrame({"cell": pd.Series(cells, dtype=object)})
    engine = Scripted(echo)

    out = df.llm.map("{cell}", model=engine, errors="coerce")

    assert out["response"].tolist()[1:5] == ["1.10", "2024-01-02", str(one), str(cells[4])]
    stamp = out["response"].iloc[0]
    assert dt.datetime.fromisoformat(stamp) == cells[0]
    assert stamp.startswith("2024-01-02T03:04")
    failures = out.llm.failures()
    assert failures.index.tolist() == [5]
    assert failures["kind"].tolist() == ["prompt_error"]
    assert "cell" in failures["message"].iloc[0]
    assert not any("b'x'" in prompt for prompt in engine.prompts)


def test_u093_the_same_values_inside_a_dict() -> None:
    cell = {"d": dt.date(2024, 1, 2), "m": Decimal("1.10"), "s": pd.Timestamp("2024-01-02")}
    df = pd.DataFrame({"c": pd.Series([cell], dtype=object)})
    engine = Scripted(echo)

    df.llm.map("{c}", model=engine)

    sent = json.loads(engine.prompts[0])
    assert sent["d"] == "2024-01-02"
    assert str(sent["m"]) in ("1.10", "1.1")
    assert sent["s"].startswith("2024-01-02")


def test_u094_no_request_holds_nan_or_infinity(serve: Any) -> None:
    server = serve(lambda seen: seen.prompt)
    cells = [{"x": float("nan")}, {"x": [1.0, float("nan")]}, {"x": float("inf")}, float("inf")]
    df = pd.DataFrame({"c": pd.Series(cells, dtype=object)})

    out = df.llm.map("{c}", model=openai(server), errors="coerce")

    assert server.unreadable == []
    assert out["response"].tolist()[:2] == ['{"x": null}', '{"x": [1, null]}']

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} went out as JSON")

    for prompt in server.prompts:
        if prompt.startswith("{"):
            json.loads(prompt, parse_constant=refuse)


def test_u094_nan_in_a_reply_is_no_number() -> None:
    engine = replying({"a": '{"x": NaN}', "b": '{"x": Infinity}', "c": '{"x": 1.5}'})
    df = pd.DataFrame({"t": ["a", "b", "c"]})

    out = df.llm.map("{t}", {"x": float}, model=engine, errors="coerce", repairs=0)

    assert out["x"].isna().tolist() == [True, True, False]
    assert set(kinds(out).values()) == {"invalid_output"}


def test_u106_strict_is_sent_and_a_wrong_reply_names_the_path(serve: Any) -> None:
    class Address(pydantic.BaseModel):
        city: str

    class Person(pydantic.BaseModel):
        name: str
        addr: Address

    server = serve(lambda seen: '{"name": "Ann", "addr": "Paris", "extra": 1}')
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", Person, model=openai(server), errors="coerce", repairs=0)

    wanted = server.asked[0].body["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["strict"] is True
    schema = wanted["json_schema"]["schema"]
    assert list(schema["properties"]) == ["name", "addr"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name", "addr"]
    failures = out.llm.failures()
    assert failures["kind"].tolist() == ["invalid_output"]
    assert "addr" in failures["message"].iloc[0]


def test_u116_a_think_block_is_not_the_answer(serve: Any) -> None:
    server = serve(lambda seen: '<think>maybe {"a":9}</think>{"a":1}')
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", {"a": int}, model=openai(server))

    assert out["a"].tolist() == [1]
    assert server.count == 1


def test_u116_reasoning_kept_apart_by_the_server_is_not_the_answer(serve: Any) -> None:
    server = serve(lambda seen: Reply('{"a": 1}', reasoning='perhaps {"a": 9}'))
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", {"a": int}, model=openai(server))

    assert out["a"].tolist() == [1]


def test_u137_a_null_text_is_missing_and_not_the_word_none() -> None:
    engine = replying({"a": '{"note": "hello"}', "b": '{"note": null}'})
    df = pd.DataFrame({"t": ["a", "b"]})

    out = df.llm.map("{t}", {"note": str | None}, model=engine)

    assert out["note"].isna().tolist() == [False, True]
    pd.testing.assert_series_equal(out["note"], text_dtype(["hello", None]), check_names=False)
    assert statuses(out) == ["ok", "ok"]


def test_u140_an_empty_frame_has_the_same_columns_and_dtypes() -> None:
    engine = replying({"a": '{"n": 1, "s": "x"}', "b": '{"n": 2, "s": "y"}'})
    df = pd.DataFrame({"t": ["a", "b"]})
    full = df.llm.map("{t}", {"n": int, "s": str}, model=engine)
    asked = engine.count

    empty = df.iloc[0:0].llm.map("{t}", {"n": int, "s": str}, model=engine)

    assert engine.count == asked
    assert len(empty) == 0
    assert list(empty.columns) == ["t", "n", "s"]
    assert empty.dtypes.equals(full.dtypes)
    assert empty["n"].dtype == "Int64"
    assert empty["s"].dtype == text_dtype(["x"]).dtype


def test_u140_an_all_failed_run_has_the_same_columns_and_dtypes() -> None:
    good = replying({"a": '{"n": 1, "s": "x"}', "b": '{"n": 2, "s": "y"}'})
    bad = Scripted(lambda r: Failure("refused", "no"), model="m2")
    df = pd.DataFrame({"t": ["a", "b"]})

    full = df.llm.map("{t}", {"n": int, "s": str}, model=good)
    failed = df.llm.map("{t}", {"n": int, "s": str}, model=bad, errors="coerce")

    assert failed.dtypes.equals(full.dtypes)
    assert failed[["n", "s"]].isna().all().all()
    assert len(failed) == 2


def test_u160_nested_values_stay_in_their_row(serve: Any) -> None:
    class Addr(pydantic.BaseModel):
        city: str
        zip: str

    class Person(pydantic.BaseModel):
        addr: Addr
        tags: list[str]

    reply = '{"addr": {"city": "Holtsville", "zip": "00501"}, "tags": ["a", "b"]}'
    server = serve(lambda seen: reply)
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", Person, model=openai(server))

    assert len(out) == 1
    assert list(out.columns) == ["t", "addr", "tags"]
    assert out["addr"].tolist() == [{"city": "Holtsville", "zip": "00501"}]
    assert out["tags"].tolist() == [["a", "b"]]
    assert out["addr"].dtype == object


def test_u160_flatten_gives_each_nested_field_a_column() -> None:
    class Addr(pydantic.BaseModel):
        city: str
        zip: str

    class Person(pydantic.BaseModel):
        addr: Addr
        tags: list[str]

    engine = replying({"x": '{"addr": {"city": "Holtsville", "zip": "00501"}, "tags": ["a"]}'})
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", Person, model=engine, flatten=True)

    assert len(out) == 1
    new = [name for name in out.columns if name != "t"]
    assert len(new) == 3
    zips = [name for name in new if str(name).endswith("zip")]
    assert len(zips) == 1
    assert out[zips[0]].tolist() == ["00501"]
    assert out["tags"].tolist() == [["a"]]


def test_u165_an_optional_date_takes_null_and_nothing_made_up() -> None:
    class Answer(pydantic.BaseModel):
        when: Optional[dt.date]  # noqa: UP045 - the spelling of the report

    engine = replying(
        {"a": '{"when": null}', "b": '{"when": "N/A"}', "c": '{"when": "2024-03-10"}'}
    )
    df = pd.DataFrame({"t": ["a", "b", "c"]})

    out = df.llm.map("{t}", Answer, model=engine, errors="coerce", repairs=0)

    assert out["when"].isna().tolist() == [True, True, False]
    assert out["when"].iloc[2] == pd.Timestamp("2024-03-10")
    assert out["when"].dtype == "datetime64[us]"
    assert statuses(out) == ["ok", "failed", "ok"]
    assert kinds(out) == {1: "invalid_output"}

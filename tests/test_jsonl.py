"""JSONL out and in: lines that anybody's batch runner reads, results from whatever ran them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.journal import Journal
from llmframe.testing import FakeBatchEngine, FakeEngine

LABELS = {"label": str, "score": int}


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"text": ["a\u2028b", "ü", "c", "d", "e", "f", "a\u2028b"]}, index=list("tuvwxyz")
    )


def completion(content: str, model: str = "m-1") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    }


def ok(line: dict[str, Any], content: str) -> dict[str, Any]:
    body = completion(content)
    response = {"status_code": 200, "request_id": "r-" + line["custom_id"], "body": body}
    return {"id": "b", "custom_id": line["custom_id"], "response": response, "error": None}


def written(tmp_path: Path, **options: Any) -> tuple[Path, list[dict[str, Any]]]:
    path = frame().llm.to_jsonl(
        tmp_path / "in.jsonl", "Look at {text}", LABELS, model=FakeEngine(), **options
    )
    data = path.read_bytes()
    assert data.isascii()
    return path, [json.loads(line) for line in data.splitlines()]


def test_lines_are_openais_and_ids_are_distinct(tmp_path: Path) -> None:
    _, lines = written(tmp_path, system="Be short.", max_tokens=50)
    assert len(lines) == 6  # of the two equal rows one is asked
    assert len({line["custom_id"] for line in lines}) == 6
    assert {line["url"] for line in lines} == {"/v1/chat/completions"}
    assert {line["method"] for line in lines} == {"POST"}
    body = lines[1]["body"]
    assert body["model"] == "fake-1"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["max_tokens"] == 50
    assert "stream" not in body
    assert body["response_format"]["type"] == "json_schema"


def test_results_join_by_id_with_the_checks_and_columns_of_map(tmp_path: Path) -> None:
    _, lines = written(tmp_path)
    good = json.dumps({"label": "x", "score": 3})
    error = {"error": {"message": "bad schema", "type": "BadRequestError", "code": 400}}
    results = [
        ok(lines[0], good),
        ok(lines[1], '{"label": "no score"}'),
        # vLLM: an object in an object, then plain text; OpenAI: in the body, and not run at all.
        {
            "custom_id": lines[2]["custom_id"],
            "response": {"status_code": 400, "body": None},
            "error": error,
        },
        {
            "custom_id": lines[3]["custom_id"],
            "response": {"status_code": 400, "body": None},
            "error": "URL was wrong",
        },
        {
            "custom_id": lines[4]["custom_id"],
            "response": {"status_code": 0, "request_id": "", "body": {}},
            "error": None,
        },
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in reversed(results))
    (tmp_path / "out.jsonl").write_bytes(f"{text}\nnot json\n\n".encode())
    data = frame().iloc[::-1]
    with pytest.warns() as told:
        out = data.llm.from_jsonl(tmp_path / "out.jsonl")
    said = " ".join(str(warning.message) for warning in told)
    assert "Line 6: no JSON" in said
    assert "5 of 7 rows are NA" in said
    assert out.index.tolist() == list("zyxwvut")
    assert out.loc["t", "label"] == out.loc["z", "label"] == "x"
    assert str(out["score"].dtype) == "Int64"
    failures = out.llm.failures()
    kinds = failures["kind"].to_dict()
    assert kinds == {
        "u": "invalid_output",
        "v": "invalid_request",
        "w": "invalid_request",
        "x": "provider_error",
        "y": "no_result",  # it has no line at all
    }
    assert "bad schema" in failures.loc["v", "message"]
    assert "URL was wrong" in failures.loc["w", "message"]
    assert "no reason given (status 0)" in failures.loc["x", "message"]
    assert failures.loc["y", "message"] == "out.jsonl has no line for this row"
    assert out.llm.status().tolist() == [
        "ok",
        "failed",
        "failed",
        "failed",
        "failed",
        "failed",
        "ok",
    ]


def test_u016_a_garbage_line_costs_that_line_alone(tmp_path: Path) -> None:
    _, lines = written(tmp_path)
    good = json.dumps({"label": "x", "score": 3})
    rows = [json.dumps(ok(line, good)) for line in lines]
    rows[1] = "not json"
    (tmp_path / "out.jsonl").write_text("\r\n".join([*rows, ""]))
    with pytest.warns() as told:
        out = frame().llm.from_jsonl(tmp_path / "out.jsonl")
    assert any("Line 2: no JSON" in str(warning.message) for warning in told)
    assert out["label"].isna().tolist() == [False, True, False, False, False, False, False]


def test_two_replies_to_one_row_are_told(tmp_path: Path) -> None:
    _, lines = written(tmp_path)
    texts = [json.dumps({"label": "x", "score": score}) for score in (3, 4)]
    rows = [ok(line, texts[0]) for line in lines]
    rows += [ok(lines[0], texts[0]), ok(lines[1], texts[1])]
    (tmp_path / "out.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.warns(UserWarning, match="1 a second time, 1 in conflict"):
        out = frame().llm.from_jsonl(tmp_path / "out.jsonl")
    assert out["score"].tolist() == [3] * 7
    # Read again, nothing is stored twice.
    with pytest.warns(UserWarning, match="a second time"):
        again = frame().llm.from_jsonl(tmp_path / "out.jsonl")
    assert again.llm.trace("u").attempts == 1


def test_results_without_a_key_map_are_refused(tmp_path: Path) -> None:
    path, lines = written(tmp_path)
    path.with_name("in.jsonl.keys.json").rename(tmp_path / "elsewhere")
    results = tmp_path / "out.jsonl"
    results.write_text(json.dumps(ok(lines[0], "{}")))
    with pytest.raises(lf.StoreError, match="pass keys="):
        frame().llm.from_jsonl(results)
    with pytest.raises(lf.RowsFailed):
        frame().llm.from_jsonl(results, keys=tmp_path / "elsewhere", errors="raise")


def test_what_came_by_file_is_not_asked_again(tmp_path: Path) -> None:
    engine = lf.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k")
    data = frame()
    path = data.llm.to_jsonl(tmp_path / "in.jsonl", "Look at {text}", model=engine)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (tmp_path / "out.jsonl").write_text("\n".join(json.dumps(ok(line, "seen")) for line in lines))
    assert data.llm.from_jsonl(tmp_path / "out.jsonl")["response"].eq("seen").all()
    assert data.llm.map("Look at {text}", model=engine)["response"].eq("seen").all()


PROMPT = "Look at {text}"


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_what_is_answered_is_written_only_when_told(tmp_path: Path) -> None:
    engine = lf.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k")
    data = frame()
    path = data.llm.to_jsonl(tmp_path / "in.jsonl", PROMPT, model=engine)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (tmp_path / "out.jsonl").write_text("\n".join(json.dumps(ok(x, "seen")) for x in lines[:4]))
    with pytest.warns(lf.RowsFailedWarning, match="2 no_result"):
        data.llm.from_jsonl(tmp_path / "out.jsonl")
    rest = data.llm.to_jsonl(tmp_path / "rest.jsonl", PROMPT, model=engine)
    assert ids(rest) == ids(path)[4:]
    (tmp_path / "out2.jsonl").write_text("\n".join(json.dumps(ok(x, "new")) for x in lines[4:]))
    out = data.llm.from_jsonl(tmp_path / "out2.jsonl")
    assert out["response"].tolist() == ["seen"] * 4 + ["new"] * 2 + ["seen"]
    assert out.llm.failures().empty
    with pytest.raises(lf.SchemaError, match="cache=False writes all"):
        data.llm.to_jsonl(tmp_path / "none.jsonl", PROMPT, model=engine)
    assert not (tmp_path / "none.jsonl").exists()
    # Asked anew: under ids of their own, so that the answers are not taken for the old ones.
    every = data.llm.to_jsonl(tmp_path / "all.jsonl", PROMPT, model=engine, cache=False)
    assert len(ids(every)) == 6
    assert not set(ids(every)) & set(ids(path))
    lines = [json.loads(line) for line in every.read_bytes().splitlines()]
    (tmp_path / "out3.jsonl").write_text("\n".join(json.dumps(ok(x, "anew")) for x in lines))
    assert data.llm.from_jsonl(tmp_path / "out3.jsonl")["response"].eq("anew").all()


def test_what_is_at_a_provider_is_left_out_and_stays_there(tmp_path: Path) -> None:
    engine = FakeBatchEngine("late", directory=tmp_path / "provider", polls=10**9)
    with lf.set_options(poll_interval=0.02):
        job = frame().iloc[:4].llm.submit.map(PROMPT, model=engine)
        job.wait(timeout=0.5)
        with pytest.warns(UserWarning, match="3 rows are on their way already"):
            path = frame().llm.to_jsonl(tmp_path / "in.jsonl", PROMPT, model=engine)
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert len(lines) == 2  # one is the canary's, three are in the batch
        (tmp_path / "out.jsonl").write_text("\n".join(json.dumps(ok(x, "seen")) for x in lines))
        out = frame().llm.from_jsonl(tmp_path / "out.jsonl")
        assert out.llm.status().value_counts().to_dict()["pending"] == 3
        [batch] = Journal.open().batches()
        keys = [key for _, _, key in Journal.open().lines(batch.tag)]
        assert Journal.open().held(keys) == set(keys)
        engine._polls = 0
        assert job.wait().join()["response"].eq("late").all()


def test_the_responses_api(tmp_path: Path) -> None:
    engine = lf.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k", endpoint="/v1/responses")
    path = frame().llm.to_jsonl(
        tmp_path / "in.jsonl", PROMPT, LABELS, model=engine, max_tokens=50, system="Be short."
    )
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert {line["url"] for line in lines} == {"/v1/responses"}
    body = lines[1]["body"]
    assert [item["role"] for item in body["input"]] == ["system", "user"]
    assert body["max_output_tokens"] == 50
    assert body["text"]["format"]["type"] == "json_schema"
    assert "messages" not in body
    said = {"type": "output_text", "text": json.dumps({"label": "x", "score": 3})}
    message = {"type": "message", "role": "assistant", "content": [said]}
    reply = {"object": "response", "status": "completed", "model": "m-1", "output": [message]}
    rows = [
        {"custom_id": x["custom_id"], "response": {"status_code": 200, "body": reply}}
        for x in lines
    ]
    (tmp_path / "out.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert frame().llm.from_jsonl(tmp_path / "out.jsonl")["score"].tolist() == [3] * 7


def test_anthropics_shape(tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    engine = lf.Anthropic("claude-haiku-4-5", api_key="k")
    path = frame().llm.to_jsonl(
        tmp_path / "in.jsonl", PROMPT, model=engine, max_tokens=50, system="Be short."
    )
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert {tuple(line) for line in lines} == {("custom_id", "params")}
    params = lines[1]["params"]
    assert params["model"] == "claude-haiku-4-5"
    assert params["max_tokens"] == 50
    assert params["messages"] == [{"role": "user", "content": "Look at ü"}]

    def ran(line: dict[str, Any], kind: str, **more: Any) -> str:
        result = {"type": kind, **more}
        return json.dumps({"custom_id": line["custom_id"], "result": result})

    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5-1",
        "content": [{"type": "text", "text": "seen"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 1},
    }
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "too odd"}}
    rows = [ran(line, "succeeded", message=message) for line in lines[:3]]
    rows += [ran(lines[3], "errored", error=error), ran(lines[4], "expired")]
    (tmp_path / "out.jsonl").write_text("\n".join(rows))
    with pytest.warns(lf.RowsFailedWarning):
        out = frame().llm.from_jsonl(tmp_path / "out.jsonl")
    assert out["response"].eq("seen").tolist()[:3] == [True] * 3
    kinds = out.llm.failures()["kind"].tolist()
    assert kinds == ["invalid_request", "expired", "no_result"]


def test_the_first_reply_that_passes_the_checks_holds_in_whichever_file_it_is(
    tmp_path: Path,
) -> None:
    _, lines = written(tmp_path)
    good, other = (json.dumps({"label": "x", "score": score}) for score in (3, 4))
    bad = json.dumps({"label": "x", "score": "much"})

    def put(name: str, *rows: dict[str, Any]) -> Path:
        # One request_id for all, as of a runner that names none of its own.
        said = [{**row, "response": {**row["response"], "request_id": "r"}} for row in rows]
        (tmp_path / name).write_text("\n".join(map(json.dumps, said)))
        return tmp_path / name

    first = put("1.jsonl", ok(lines[0], bad), ok(lines[1], bad), ok(lines[1], good))
    with pytest.warns() as told:
        out = frame().llm.from_jsonl(first)
    assert not [w for w in told if "left out" in str(w.message)]
    assert out["score"].tolist()[1] == 3
    assert out.llm.failures()["kind"].tolist()[0] == "invalid_output"
    # The same line once more says nothing new; a good one does, and a better one comes too late.
    rest = [ok(line, good) for line in lines]
    second = put("2.jsonl", ok(lines[0], bad), *rest, ok(lines[0], other))
    with pytest.warns(UserWarning, match=r"left out: 1 in conflict\.$"):
        out = frame().llm.from_jsonl(second)
    assert out["score"].tolist() == [3] * 7
    assert out.llm.failures().empty
    assert out.llm.trace("u").attempts == 2


def test_requests_are_replaced_only_when_told_and_their_key_map_is_kept(tmp_path: Path) -> None:
    path, lines = written(tmp_path)
    before = path.read_bytes()
    assert written(tmp_path)[1] == lines  # a cell that is run twice
    with pytest.raises(FileExistsError, match="overwrite=True"):
        frame().llm.to_jsonl(path, "Another {text}", model=FakeEngine())
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"in.jsonl", "in.jsonl.keys.json"}
    for prompt in ("Another {text}", "A third {text}"):
        frame().llm.to_jsonl(path, prompt, model=FakeEngine(), overwrite=True)
    assert path.read_bytes() != before
    # A batch that ran on the first lines comes back.
    good = json.dumps({"label": "x", "score": 3})
    (tmp_path / "out.jsonl").write_text("\n".join(json.dumps(ok(x, good)) for x in lines))
    assert frame().llm.from_jsonl(tmp_path / "out.jsonl")["score"].tolist() == [3] * 7


def test_lines_need_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for model in ("openai/gpt-4.1-mini", "anthropic/claude-haiku-4-5"):
        for batch in (None, True):
            path = tmp_path / f"{model[:4]}{batch}.jsonl"
            frame().llm.to_jsonl(path, PROMPT, model=model, batch=batch)
            assert len(ids(path)) == 6
        with pytest.raises(lf.ModelError, match="no API key"):
            frame().llm.plan.map(PROMPT, model=model)


def test_files_that_are_not_there_or_of_others_are_told_by_name(tmp_path: Path) -> None:
    path, lines = written(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder '.*nowhere'"):
        frame().llm.to_jsonl(tmp_path / "nowhere" / "in.jsonl", PROMPT, model=FakeEngine())
    results = tmp_path / "out.jsonl"
    with pytest.raises(FileNotFoundError, match=r"out\.jsonl"):
        frame().llm.from_jsonl(results)
    results.write_text("")
    with pytest.raises(lf.StoreError, match="no line with an id"):
        frame().llm.from_jsonl(results)
    results.write_text("\n".join(json.dumps(ok(line, "{}")) for line in lines))
    with pytest.raises(lf.StoreError, match="is not there"):
        frame().llm.from_jsonl(results, keys=tmp_path / "nope.json")
    for wrong in (path, results):
        with pytest.raises(lf.StoreError, match="is no key map"):
            frame().llm.from_jsonl(results, keys=wrong)
    with pytest.raises(lf.StoreError, match=r"keys='.*in\.jsonl\.keys\.json'"):
        frame().llm.from_jsonl(results, keys=path)
    other = frame().llm.to_jsonl(tmp_path / "other.jsonl", "Another {text}", model=FakeEngine())
    with pytest.raises(lf.StoreError, match="knows none of the lines"):
        frame().llm.from_jsonl(results, keys=f"{other}.keys.json")

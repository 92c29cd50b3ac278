"""Public fault reports: cut-offs, one bad row, blank-but-ok rows, hopeless errors, resuming."""

from __future__ import annotations

import re
import socket
import time
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage
from tests.servers.looking import KEY, all_warnings, kinds, of, openai, statuses
from tests.servers.rows import MODEL, Reply
from tests.servers.scripted import Scripted, prompt_of

pytest_plugins = ["tests.servers.plugin"]


def limit_of(body: dict[str, Any]) -> int | None:
    """The token ceiling a request asked for, under either of its two names."""
    return body.get("max_completion_tokens") or body.get("max_tokens")


def test_u021_a_cut_reply_is_truncated_and_not_broken_json(serve: Any) -> None:
    server = serve(lambda seen: Reply('{"a": "abc', finish="length", tokens=(5, 97)))
    df = pd.DataFrame({"t": ["x"]}, index=["row"])

    with pytest.warns(lf.RowsFailedWarning, match="truncated"):
        out = df.llm.map("{t}", {"a": str}, model=openai(server), max_tokens=16, details=True)

    failures = out.llm.failures()
    assert failures["kind"].tolist() == ["truncated"]
    assert failures["raw"].tolist() == ['{"a": "abc']
    assert out["a"].isna().all()
    assert out["llm_finish"].tolist() == ["length"]
    assert int(out["llm_tokens"].iloc[0]) >= 97


def test_a_row_that_fills_the_window_is_asked_once() -> None:
    cut = Result(b"", text='{"a": "abc', finish="window", usage=Usage(5, 97))
    engine = lf.testing.FakeEngine(lambda request: cut)
    df = pd.DataFrame({"t": ["x"]})

    with pytest.warns(lf.RowsFailedWarning, match=r"1 truncated\.") as warned:
        out = df.llm.map("{t}", {"a": str}, model=engine, repairs=3)

    assert len(engine.requests) == 1
    assert "max_tokens" not in str(warned[0].message)
    assert "fill the window" in out.llm.failures()["message"].iloc[0]
    assert int(out.llm.failures()["attempts"].iloc[0]) == 1
    assert out.llm.status().tolist() == ["failed"]


def test_u022_a_row_that_is_always_cut_is_asked_once_more_at_most_and_with_more_room(
    serve: Any,
) -> None:
    server = serve(
        lambda seen: (
            Reply('{"a": "abc', finish="length") if seen.prompt == "long" else '{"a": "fine"}'
        )
    )
    df = pd.DataFrame({"t": ["short", "long"]})

    out = df.llm.map(
        "{t}", {"a": str}, model=openai(server), max_tokens=16, errors="coerce", repairs=3
    )

    assert out["a"].isna().tolist() == [False, True]
    limits = [limit_of(seen.body) for seen in server.asked if seen.prompt == "long"]
    assert 1 <= len(limits) <= 2
    assert limits == sorted(set(limits)), "asked again at the same budget"


def test_u022_more_room_saves_the_row(serve: Any) -> None:
    server = serve(
        lambda seen: (
            Reply('{"a": "ab', finish="length")
            if (limit_of(seen.body) or 0) <= 16
            else '{"a": "abc"}'
        )
    )
    df = pd.DataFrame({"t": ["x"]})

    out = df.llm.map("{t}", {"a": str}, model=openai(server), max_tokens=16)

    assert out["a"].tolist() == ["abc"]
    assert server.count == 2


def test_u024_tokens_of_failed_rows_are_in_the_books(serve: Any) -> None:
    # Input tokens are 0 so that the sum reads the same whether a report shows both or the total.
    server = serve(
        lambda seen: (
            Reply("fine", tokens=(0, 10))
            if seen.prompt == "fine"
            else Reply("cut", finish="length", tokens=(0, 97))
        )
    )
    df = pd.DataFrame({"t": ["fine", "cut"]})

    job = df.llm.submit.map("{t}", model=openai(server), max_tokens=16, errors="coerce")
    report = repr(job.wait().report())

    spent = 10 + 97 * (server.count - 1)
    assert re.search(rf"(?<!\d){spent}(?!\d)", report), report


def test_u027_a_prompt_over_the_window_fails_alone() -> None:
    def answer(request: Request) -> str | Failure:
        words = len(prompt_of(request).split())
        if words > 64:
            return Failure("prompt_too_long", f"the prompt needs {words} tokens of 64 allowed")
        return prompt_of(request)

    engine = Scripted(answer)
    df = pd.DataFrame({"t": ["short", "w " * 500, "short too"]})

    with pytest.warns(lf.RowsFailedWarning, match=r"1 of 3 rows.*prompt_too_long"):
        out = df.llm.map("{t}", model=engine)

    assert out["response"].tolist()[::2] == ["short", "short too"]
    assert pd.isna(out["response"].iloc[1])
    failures = out.llm.failures()
    assert failures["kind"].tolist() == ["prompt_too_long"]
    assert "500" in failures["message"].iloc[0]
    assert "64" in failures["message"].iloc[0]
    assert sum(len(prompt) > 100 for prompt in engine.prompts) == 1


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_u027_the_same_on_a_live_server_wherever_the_long_row_stands(serve: Any, bad: int) -> None:
    server = serve(
        lambda seen: (
            Reply(
                status=400,
                code="context_length_exceeded",
                param="messages",
                message=(
                    "This model's maximum context length is 64 tokens. However, your messages "
                    "resulted in 500 tokens."
                ),
            )
            if len(seen.prompt) > 100
            else seen.prompt
        )
    )
    texts = ["one", "two", "three"]
    texts[bad] = "w " * 500
    df = pd.DataFrame({"t": texts})

    out = df.llm.map("{t}", model=openai(server), errors="coerce")

    assert out["response"].isna().tolist() == [i == bad for i in range(3)]
    assert kinds(out) == {bad: "prompt_too_long"}
    assert server.count == 3


def test_u029_one_refused_row_costs_one_request(serve: Any) -> None:
    server = serve(
        lambda seen: (
            Reply(status=400, message="row 3 is not acceptable")
            if seen.prompt == "row 3"
            else seen.prompt
        )
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(5)]})

    with pytest.warns(lf.RowsFailedWarning, match="1 of 5"):
        out = df.llm.map("{t}", model=openai(server), concurrency=1)

    assert server.count == 5
    assert out["response"].dropna().tolist() == ["row 0", "row 1", "row 2", "row 4"]
    failures = out.llm.failures()
    assert failures.index.tolist() == [3]
    assert failures["kind"].tolist() == ["invalid_request"]
    assert "row 3 is not acceptable" in failures["message"].iloc[0]
    assert failures["request_id"].tolist() == ["req_4"]


@pytest.mark.parametrize("bad", ["a", "b", "c"])
def test_u030_a_content_filter_is_one_rows_business(serve: Any, bad: str) -> None:
    server = serve(
        lambda seen: (
            Reply(status=400, code="content_filter", message="The response was filtered")
            if seen.prompt == bad
            else seen.prompt
        )
    )
    df = pd.DataFrame({"t": ["a", "b", "c"]}, index=["a", "b", "c"])

    out = df.llm.map("{t}", model=openai(server), errors="coerce")

    assert kinds(out) == {bad: "content_filter"}
    assert out["response"].dropna().tolist() == [t for t in "abc" if t != bad]
    assert server.prompts.count(bad) == 1


def test_u030_a_filtered_completion_is_the_same_kind(serve: Any) -> None:
    server = serve(
        lambda seen: Reply("part of", finish="content_filter") if seen.prompt == "b" else "fine"
    )
    df = pd.DataFrame({"t": ["a", "b"]})

    out = df.llm.map("{t}", model=openai(server), errors="coerce")

    assert kinds(out) == {1: "content_filter"}
    assert out["response"].isna().tolist() == [False, True]
    assert server.prompts.count("b") == 1


def test_u031_a_missing_cell_can_refuse_the_call() -> None:
    engine = lf.testing.FakeEngine(lambda text: text)
    df = pd.DataFrame({"a": ["x", None, "z"]})

    with pytest.raises(lf.PromptError, match="a"):
        df.llm.map("Say {a}", model=engine, missing="raise")

    assert list(engine.requests) == []


def test_u031_a_row_that_cannot_be_rendered_fails_alone() -> None:
    def prompt(row: dict[str, Any]) -> str:
        return "Say " + row["a"].upper()

    engine = Scripted(prompt_of)
    df = pd.DataFrame({"a": ["x", 5, "z"]}, dtype=object)

    with pytest.warns(lf.RowsFailedWarning, match="prompt_error"):
        out = df.llm.map(prompt, model=engine)

    assert out["response"].tolist()[::2] == ["Say X", "Say Z"]
    assert kinds(out) == {1: "prompt_error"}
    assert sorted(engine.prompts) == ["Say X", "Say Z"]


def result_or_error(df: pd.DataFrame, engine: Any) -> tuple[pd.DataFrame, Any]:
    """The frame, and the error it came with where the run was ended."""
    try:
        return df.llm.map("{t}", model=engine), None
    except lf.EngineError as error:
        return error.result, error


def five_rows_two_bad() -> tuple[pd.DataFrame, Scripted]:
    bad = {"b", "d"}
    engine = Scripted(
        lambda r: (
            Result(
                key=r.key,
                text="I will not",
                finish="refusal",
                usage=Usage(4, 2),
                request_id=f"req_{prompt_of(r)}",
                failure=Failure("refused", f"refused {prompt_of(r)}"),
            )
            if prompt_of(r) in bad
            else prompt_of(r).upper()
        )
    )
    return pd.DataFrame({"t": list("abcde")}, index=list("vwxyz")), engine


def test_u039_warn_is_the_default_and_keeps_the_evidence() -> None:
    df, engine = five_rows_two_bad()

    with pytest.warns(lf.RowsFailedWarning, match=r"2 of 5 rows.*refused"):
        out = df.llm.map("{t}", model=engine)

    assert out["response"].isna().tolist() == [False, True, False, True, False]
    failures = out.llm.failures()
    assert list(failures.columns) == [
        "position",
        "kind",
        "message",
        "raw",
        "attempts",
        "request_id",
    ]
    assert failures.index.tolist() == ["w", "y"]
    assert failures["position"].tolist() == [1, 3]
    assert failures["message"].tolist() == ["refused b", "refused d"]
    assert failures["raw"].tolist() == ["I will not", "I will not"]
    assert failures["attempts"].tolist() == [1, 1]
    assert failures["request_id"].tolist() == ["req_b", "req_d"]


def test_u039_coerce_is_silent() -> None:
    df, engine = five_rows_two_bad()

    with all_warnings() as caught:
        out = df.llm.map("{t}", model=engine, errors="coerce")

    assert of(caught, UserWarning) == []
    assert len(out.llm.failures()) == 2


def test_u039_raise_comes_after_everything_is_stored() -> None:
    df, engine = five_rows_two_bad()

    with pytest.raises(lf.RowsFailed, match="2 of 5") as caught:
        df.llm.map("{t}", model=engine, errors="raise")

    assert caught.value.result["response"].tolist()[::2] == ["A", "C", "E"]
    assert caught.value.failures.index.tolist() == ["w", "y"]
    asked = engine.count
    df.llm.map("{t}", model=engine, errors="coerce")
    assert engine.count == asked, "finished rows were not kept"


def test_u039_every_call_warns_again() -> None:
    df, engine = five_rows_two_bad()
    for _ in range(2):
        with pytest.warns(lf.RowsFailedWarning, match="2 of 5"):
            df.llm.map("{t}", model=engine)


def test_u040_broken_json_is_asked_again_and_the_retry_shows(serve: Any) -> None:
    server = serve(
        lambda seen: '{"label": ' if seen.n == 1 else Reply('{"label":"x"}', tokens=(9, 4))
    )
    df = pd.DataFrame({"t": ["row"]})

    job = df.llm.submit.map("{t}", {"label": str}, model=openai(server))
    out = job.wait().join(df)

    assert out["label"].tolist() == ["x"]
    assert statuses(out) == ["ok"]
    assert server.count == 2
    assert server.asked[1].last != "row", "the model was not told what was wrong"
    assert re.search(r"repair", repr(job.report()), re.IGNORECASE)
    trace = str(out.llm.trace(0))
    assert '{"label": ' in trace
    assert '{"label":"x"}' in trace


@pytest.mark.parametrize("kind", ["invalid_output", "refused"])
def test_u042_a_stored_failure_never_comes_back_clean(kind: str) -> None:
    def answer(request: Request) -> str | Failure:
        if "bad" not in str(request.messages):
            return '{"n": 1}'
        return "no number" if kind == "invalid_output" else Failure("refused", "no")

    engine = Scripted(answer)
    df = pd.DataFrame({"t": ["good", "bad"]})

    first = df.llm.map("{t}", {"n": int}, model=engine, errors="coerce")
    asked = engine.count
    with pytest.warns(lf.RowsFailedWarning, match="1 of 2"):
        second = df.llm.map("{t}", {"n": int}, model=engine)

    for out in (first, second):
        assert out["n"].isna().tolist() == [False, True]
        assert kinds(out) == {1: kind}
    assert statuses(second) == ["cached", "failed"]
    if kind == "refused":
        assert engine.count == asked, "what was refused is asked again only when told"
        df.llm.map("{t}", {"n": int}, model=engine, errors="coerce", retry="all")
        assert engine.count == asked + 1
    else:
        assert engine.count > asked


def test_u043_a_failed_request_is_not_an_empty_answer(serve: Any) -> None:
    def answer(seen: Any) -> Reply | str:
        row = seen.body["messages"][0]["content"] if seen.prompt == "" else seen.prompt
        if "broken" in row:
            return Reply(status=500, message="internal")
        return "" if "mute" in str(seen.body["messages"]) else "fine"

    server = serve(answer)
    df = pd.DataFrame({"t": ["fine", "broken", "mute"]})

    out = df.llm.map("{t}", model=openai(server), errors="coerce")

    assert out["response"].isna().tolist() == [False, True, True]
    assert kinds(out) == {1: "provider_error", 2: "empty_output"}


def test_u043_a_run_in_which_every_row_failed_says_so(serve: Any) -> None:
    server = serve(lambda seen: Reply(status=500, message="internal"))
    df = pd.DataFrame({"t": ["a", "b", "c"]})

    with all_warnings() as caught:
        out, error = result_or_error(df, openai(server))

    if error is None:
        assert any("3 of 3" in text for text in of(caught, lf.RowsFailedWarning))
    else:
        assert error.retryable
        assert "500" in str(error) or "internal" in str(error)
    assert out["response"].isna().all()
    assert len(out) == 3
    assert "ok" not in statuses(out)


def test_u048_the_second_call_sends_only_what_timed_out(serve: Any) -> None:
    slow = {"row 1", "row 3"}
    server = serve(lambda seen: Reply(hang=True) if seen.prompt in slow else seen.prompt)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(5)]})
    engine = openai(server, timeout=0.4)

    first = df.llm.map("{t}", model=engine, errors="coerce")
    assert first["response"].isna().tolist() == [False, True, False, True, False]
    assert set(kinds(first).values()) == {"timeout"}

    slow.clear()
    sent = server.count
    second = df.llm.map("{t}", model=engine)

    assert server.count - sent == 2
    assert second["response"].tolist() == df["t"].tolist()
    assert statuses(second) == ["cached", "ok", "cached", "ok", "cached"]


def test_u107_a_schema_that_is_not_applied_stops_the_run_early(serve: Any) -> None:
    server = serve(lambda seen: "Well, let me think about this one for a while.")
    df = pd.DataFrame({"t": [f"row {i}" for i in range(1_000)]})

    with pytest.raises(lf.EngineError, match=r"invalid_output|schema") as caught:
        df.llm.map("{t}", {"label": str}, model=openai(server), concurrency=8, repairs=0)

    # The breaker looks after 100 answers; what was in flight by then comes on top.
    assert server.count <= 100 + 3 * 8
    result = caught.value.result
    assert len(result) == 1_000
    assert statuses(result).count("pending") >= 1_000 - server.count
    assert result["label"].isna().all()


def test_u107_coerce_means_go_on_whatever_the_quality(serve: Any) -> None:
    server = serve(lambda seen: "prose")
    df = pd.DataFrame({"t": [f"row {i}" for i in range(200)]})

    out = df.llm.map(
        "{t}", {"label": str}, model=openai(server), errors="coerce", repairs=0, concurrency=8
    )

    assert statuses(out) == ["failed"] * 200


def test_u118_an_answer_filed_under_reasoning_is_no_answer(serve: Any) -> None:
    server = serve(lambda seen: Reply(None, reasoning='{"a": 1}'))
    df = pd.DataFrame({"t": ["x", "y"]})

    out = df.llm.map("{t}", {"a": int}, model=openai(server), errors="coerce")

    assert out["a"].isna().all()
    failures = out.llm.failures()
    assert len(failures) == 2
    assert all("reasoning" in message for message in failures["message"])


def test_u133_a_cut_answer_is_asked_again_when_the_limit_rises(serve: Any) -> None:
    def answer(seen: Any) -> Reply | str:
        if seen.prompt == "long" and (limit_of(seen.body) or 0) < 500:
            return Reply("half an ans", finish="length")
        return f"answer to {seen.prompt}"

    server = serve(answer)
    df = pd.DataFrame({"t": ["short", "long"]})

    first = df.llm.map("{t}", model=openai(server), max_tokens=16, errors="coerce")
    assert kinds(first) == {1: "truncated"}
    sent = server.count
    second = df.llm.map("{t}", model=openai(server), max_tokens=1_000)

    assert server.prompts[sent:] == ["long"]
    assert second["response"].tolist() == ["answer to short", "answer to long"]


def test_u152_no_quota_ends_the_run_at_once(serve: Any) -> None:
    concurrency = 4

    def answer(seen: Any) -> Reply | str:
        if seen.n <= 3:
            return seen.prompt
        return Reply(
            status=429,
            code="insufficient_quota",
            message="You exceeded your current quota, please check your plan and billing details.",
        )

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(200)]})

    with pytest.raises(lf.EngineError, match="quota") as caught:
        df.llm.map("{t}", model=openai(server), concurrency=concurrency)

    assert server.count <= 3 + 2 * concurrency
    assert caught.value.status == 429
    assert not caught.value.retryable
    result = caught.value.result
    assert int(result["response"].notna().sum()) == 3
    assert statuses(result).count("pending") == 197

    server.rows = lambda seen: seen.prompt
    sent = server.count
    out = df.llm.map("{t}", model=openai(server), concurrency=concurrency)
    assert server.count - sent == 197
    assert out["response"].tolist() == df["t"].tolist()


def test_u153_a_filter_message_that_says_retry_is_not_retried(serve: Any) -> None:
    server = serve(
        lambda seen: (
            Reply(
                status=400,
                code="content_filter",
                message="Rate of unsafe content too high. Please modify your prompt and retry.",
            )
            if seen.prompt == "bad"
            else seen.prompt
        )
    )
    df = pd.DataFrame({"t": ["good", "bad"]})

    out = df.llm.map("{t}", model=openai(server), errors="coerce")

    assert server.prompts.count("bad") == 1
    assert kinds(out) == {1: "content_filter"}


@pytest.mark.slow
def test_u154_a_server_that_is_down_is_not_asked_500_times() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = lf.OpenAI(MODEL, base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(500)]})

    began = time.monotonic()
    with pytest.raises(lf.EngineError) as caught:
        df.llm.map("{t}", model=engine)

    assert time.monotonic() - began < 60
    assert caught.value.retryable
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert set(statuses(caught.value.result)) <= {"pending", "failed"}
    assert statuses(caught.value.result).count("pending") >= 490


def test_u158_parameters_that_a_model_refuses_are_adapted_on_the_first_row(serve: Any) -> None:
    def answer(seen: Any) -> Reply | str:
        if "max_tokens" in seen.body:
            return Reply(
                status=400,
                code="unsupported_parameter",
                param="max_tokens",
                message=(
                    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                    "'max_completion_tokens' instead."
                ),
            )
        if "temperature" in seen.body:
            return Reply(
                status=400,
                code="unsupported_value",
                param="temperature",
                message="Unsupported value: 'temperature' does not support 0 with this model.",
            )
        return '{"a": 1}'

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(30)]})

    out = df.llm.map("{t}", {"a": int}, model=openai(server), concurrency=8)

    assert out["a"].tolist() == [1] * 30
    # Two parameters, found out by the canary before the others are sent.
    assert server.count <= 30 + 3


def test_u158_a_value_the_user_gave_is_never_dropped(serve: Any) -> None:
    server = serve(
        lambda seen: (
            Reply(
                status=400,
                code="unsupported_value",
                param="temperature",
                message="Unsupported value: 'temperature' does not support 0.7 with this model.",
            )
            if "temperature" in seen.body
            else seen.prompt
        )
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(30)]})

    with pytest.raises(lf.EngineError, match="temperature"):
        df.llm.map("{t}", model=openai(server), temperature=0.7)

    assert server.count <= 3
    assert all(seen.body["temperature"] == 0.7 for seen in server.asked)


@pytest.mark.parametrize(
    "reply",
    [
        Reply("I'm sorry, I can't help with that."),
        Reply(None, refusal="I'm sorry, I can't help with that."),
    ],
    ids=["as content", "as message.refusal"],
)
def test_u166_a_refusal_is_not_broken_json(serve: Any, reply: Reply) -> None:
    server = serve(lambda seen: reply if seen.prompt == "bad" else '{"a": 1}')
    df = pd.DataFrame({"t": ["good", "bad"]})

    out = df.llm.map("{t}", {"a": int}, model=openai(server), errors="coerce")

    assert kinds(out) == {1: "refused"}
    assert server.prompts.count("bad") == 1
    failure = out.llm.failures().iloc[0]
    assert "can't help with that" in f"{failure['raw']} {failure['message']}"


REFUSAL = "the grammar backend refuses the request: feature not supported: minLength"


def test_u005_a_backend_that_refuses_the_schema_is_one_error_and_not_n_rows() -> None:
    broken = [True]
    engine = Scripted(
        lambda request: Failure("invalid_request", REFUSAL) if broken[0] else '{"a": "x"}'
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(200)]})
    with pytest.raises(lf.EngineError) as caught:
        df.llm.map("{t}", {"a": str}, model=engine)
    assert str(caught.value) == (
        f"{REFUSAL}. 0 of 200 rows are answered and kept; "
        f"the same call would be refused again, until that is mended."
    )
    assert len(engine.requests) <= 2 * engine.limits.concurrency
    assert set(caught.value.result.llm.status()) == {"pending"}
    broken[0] = False  # another version of the backend
    engine.requests.clear()
    out = df.llm.map("{t}", {"a": str}, model=engine)
    assert (out["a"].tolist(), len(engine.requests)) == (["x"] * 200, 200)


@pytest.mark.parametrize("bad", [0, 7, 49])
def test_u005_a_single_row_that_is_refused_still_fails_alone(bad: int) -> None:
    engine = Scripted(
        lambda request: (
            Failure("invalid_request", REFUSAL)
            if prompt_of(request) == f"row {bad}"
            else '{"a": "x"}'
        )
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(50)]})
    with pytest.warns(lf.RowsFailedWarning, match="1 invalid_request"):
        out = df.llm.map("{t}", {"a": str}, model=engine)
    assert out.llm.failures()["position"].tolist() == [bad]
    assert out["a"].isna().sum() == 1
    df.llm.map("{t}", {"a": str}, model=engine, errors="coerce")
    assert len(engine.requests) == 50  # it was stored as refused, and is not asked again


def test_u005_rows_refused_for_reasons_of_their_own_fail_one_by_one() -> None:
    engine = Scripted(lambda request: Failure("invalid_request", f"bad: {prompt_of(request)}"))
    df = pd.DataFrame({"t": ["one", "two", "three"]})
    with pytest.warns(lf.RowsFailedWarning, match="3 invalid_request"):
        df.llm.map("{t}", model=engine)


def test_u005_refusals_after_an_answer_are_the_rows_own() -> None:
    engine = Scripted(
        lambda request: (
            "fine" if prompt_of(request) == "row 0" else Failure("invalid_request", "no")
        ),
        concurrency=1,
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(9)]})
    with pytest.warns(lf.RowsFailedWarning, match="8 invalid_request"):
        df.llm.map("{t}", model=engine)

"""Anthropic live, against its emulator on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from typing import Any

import anthropic
import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.anthropic import Anthropic
from llmframe.engines.base import BatchEngine, Engine
from llmframe.engines.live import background_loop
from llmframe.errors import ModelError
from llmframe.requests import Sampling
from llmframe.results import Failure, Result
from tests.servers.anthropic import KEY, AnthropicServer, Asked, Reply, error, message
from tests.servers.feeding import Control, Feed, ask, drive, requests

PLANTED = "sk-ant-planted-0123456789abcdef"
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}},
    "required": ["label"],
    "additionalProperties": False,
}


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def engine_at(server: AnthropicServer, **options: Any) -> Anthropic:
    return Anthropic("claude-x", base_url=server.url, **{"api_key": server.key, **options})


def failed(result: Result) -> Failure:
    assert result.failure is not None
    return result.failure


# --- asking


def test_every_row_gets_its_own_answer_and_never_too_many_at_once(server: AnthropicServer) -> None:
    server.delay = 0.005
    results = drive(engine_at(server), requests(f"row {n}" for n in range(100)), limit=8)
    assert [r.text for _, r in sorted(results.items())] == [f"row {n}" for n in range(100)]
    assert server.max_in_flight == 8


def test_it_is_a_live_engine_and_with_batch_a_batch_engine(server: AnthropicServer) -> None:
    live, batch = engine_at(server), engine_at(server, batch=True)
    assert isinstance(live, Engine)
    assert not isinstance(live, BatchEngine)
    assert isinstance(batch, BatchEngine)
    assert isinstance(batch, Anthropic)
    assert live.identity() == batch.identity()
    assert (live.limits.max_requests, batch.limits.max_requests) == (None, 100_000)
    assert batch.limits.max_bytes == 240_000_000
    assert repr(batch).endswith("batch=True)")


def test_the_version_is_the_sdks(server: AnthropicServer) -> None:
    sdk = anthropic.Anthropic(api_key=KEY)
    ask(engine_at(server))
    sent = server.asked[0].headers
    assert sent["anthropic-version"] == sdk.default_headers["anthropic-version"]
    assert not [name for name in sent if name.lower().startswith("x-stainless")]


def test_headers_of_the_users_win(server: AnthropicServer) -> None:
    engine = engine_at(server, headers={"Anthropic-Version": "2023-06-01", "anthropic-beta": "b"})
    result = ask(engine, sampling=Sampling(temperature=0.5))
    assert result.failure is None
    assert server.asked[0].headers["anthropic-version"] == "2023-06-01"
    assert server.asked[0].headers["anthropic-beta"] == "b"
    assert server.asked[0].body["temperature"] == 0.5


def test_a_temperature_that_is_refused_is_not_dropped(server: AnthropicServer) -> None:
    engine = engine_at(server, headers={"anthropic-version": "2026-10-21"})
    failure = failed(ask(engine, sampling=Sampling(temperature=0.5)))
    assert (failure.kind, failure.param) == ("invalid_request", "temperature")
    assert len(server.asked) == 1
    assert ask(engine).failure is None
    assert "temperature" not in server.asked[-1].body


def test_a_seed_is_refused_before_it_is_sent(server: AnthropicServer) -> None:
    assert "seed" in failed(ask(engine_at(server), sampling=Sampling(seed=3))).message
    assert server.asked == []


def test_a_schema_goes_into_the_prompt_where_it_is_refused(server: AnthropicServer) -> None:
    server.refuse = {"output_config"}
    server.answer = {"label": "x"}
    engine = engine_at(server)
    with pytest.warns(UserWarning, match="goes into the prompt") as caught:
        results = drive(engine, requests(map(str, range(20)), schema=SCHEMA), limit=4)
    assert len(caught) == 1
    assert all(result.failure is None for result in results.values())
    assert '"label"' in str(server.asked[-1].body["system"])
    # No more than the first handful was refused.
    assert sum("output_config" in asked.body for asked in server.asked) <= 4


def test_a_schema_that_is_refused_itself_is_the_rows_failure(server: AnthropicServer) -> None:
    server.script.append(error(400, "output_config.format.schema: bad thing is not supported"))
    assert failed(ask(engine_at(server), schema=SCHEMA)).kind == "invalid_request"
    assert len(server.asked) == 1


def test_a_smaller_limit_is_learned_where_the_user_gave_none(server: AnthropicServer) -> None:
    words = "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for m"
    server.script.append(error(400, words))
    engine = engine_at(server)
    assert ask(engine).failure is None
    assert [asked.body["max_tokens"] for asked in server.asked] == [8192, 4096]


@pytest.mark.parametrize(
    ("reply", "kind", "fatal"),
    [
        (error(401, "invalid x-api-key"), "invalid_request", True),
        (error(402, "no"), "rate_limited", True),
        (error(400, "Your credit balance is too low"), "rate_limited", True),
        (error(404, "model: claude-x"), "invalid_request", True),
        (error(413, "too large"), "request_too_large", False),
        (error(500, "oops"), "provider_error", False),
        (error(529, "Overloaded"), "provider_error", False),
        (Reply(message("x", stop="refusal")), "refused", False),
        (Reply(message("x", stop="max_tokens")), "truncated", False),
        (Reply(message([])), "empty_output", False),
        (Reply(cut=True), "connection", False),
    ],
)
def test_verdicts(server: AnthropicServer, reply: Reply, kind: str, fatal: bool) -> None:
    server.script.append(reply)
    failure = failed(ask(engine_at(server)))
    assert (failure.kind, failure.fatal) == (kind, fatal)


def test_a_429_is_waited_out_and_costs_no_row(server: AnthropicServer) -> None:
    server.script.extend(error(429, "slow down", retry_after="0") for _ in range(3))
    results = drive(engine_at(server), requests(map(str, range(12))), limit=2)
    assert all(result.failure is None for result in results.values())
    assert len(server.asked) == 15


def test_a_budget_of_requests_that_is_told_is_kept(server: AnthropicServer) -> None:
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2999-01-01T00:00:00Z",
    }
    server.answer = lambda asked: Reply(message("x"), headers=headers)
    engine = engine_at(server)
    control = Control(1)
    stream = engine.stream(Feed(requests("ab"), closed=True), control)
    next(stream)
    assert engine.limiter.wait() > 1e6
    control.mode = "abort"
    list(stream)
    assert len(server.asked) == 1


def test_thinking_is_kept_apart(server: AnthropicServer) -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "42"}]
    server.answer = lambda asked: Reply(message(blocks))
    result = ask(engine_at(server))
    assert (result.text, result.reasoning) == ("42", "hm")


# --- configuration


def test_no_key_says_what_to_do() -> None:
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY"):
        Anthropic("claude-x")
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY"):
        Anthropic("claude-x", api_key=" ")


def test_the_sdks_variables_count(server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    df = pd.DataFrame({"t": ["a", "b"]})
    assert df.llm.map("{t}", model="anthropic/claude-x")["response"].tolist() == ["a", "b"]
    assert ask(Anthropic("claude-y")).text == "hello"
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    assert ask(Anthropic("claude-y")).text == "hello"


def test_without_the_sdk_it_says_what_to_install() -> None:
    code = """
        import sys
        sys.modules["anthropic"] = None
        import llmframe as lf
        try:
            lf.Anthropic("claude-x", api_key="sk-ant-x")
        except lf.ModelError as error:
            assert "pip install anthropic" in str(error), error
            print("said")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "said\n", done.stderr


def test_importing_the_engine_loads_no_sdk() -> None:
    code = "import llmframe, sys; llmframe.Anthropic; assert 'anthropic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": ""}, "model=''"),
        ({"timeout": 0}, "timeout=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"base_url": "nowhere"}, "http"),
        ({"base_url": "http://127.0.0.1:9/v1"}, "leave /v1 out"),
        ({"headers": {"x": "a\nb"}}, "line break"),
        ({"client": object()}, "client=object"),
        ({"max_batch_requests": 100_001}, "100,000"),
        ({"max_batch_bytes": 300_000_000}, "256,000,000"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Anthropic(**{"model": "claude-x", "api_key": PLANTED, **given})


def test_a_gateway_behind_a_path(server: AnthropicServer) -> None:
    server.prefix = "/anthropic"
    assert ask(engine_at(server)).text == "hello"
    assert engine_at(server).identity()["base_url"] == server.url


def test_a_planted_key_is_found_nowhere(
    server: AnthropicServer, caplog: pytest.LogCaptureFixture, home: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    password, header = "pw-planted-77f0e3d9", "hdr-planted-a81b6cc2"
    server.accounts = {PLANTED: "org-1"}

    def answer(asked: Asked) -> Any:
        if asked.text == "bad":
            return error(400, f"saw {dict(asked.headers)} {password}")
        return asked.text

    server.answer = answer
    found = []
    for batch in (False, True):
        engine = Anthropic(
            "claude-x",
            base_url=server.url.replace("//", f"//me:{password}@"),
            api_key=PLANTED,
            headers={"X-Gateway": header},
            batch=batch,
        )
        df = pd.DataFrame({"t": ["a", "bad"]})
        with lf.set_options(poll_interval=0.01), pytest.warns(lf.RowsFailedWarning) as caught:
            out = df.llm.map("{t}", model=engine, cache=False)
        found += [repr(engine), pickle.dumps(engine), pickle.dumps(out), repr(vars(engine))]
        found += [str(warning.message) for warning in caught]
        found += [out.llm.failures().to_csv(), json.dumps(dict(engine.identity()))]
        server.accounts = {}
        try:
            df.llm.map("{t} {t}", model=engine, progress=False)
        except lf.EngineError as refused:
            found += [
                repr(refused),
                pickle.dumps(refused),
                "".join(traceback.format_exception(refused)),
            ]
        else:
            pytest.fail("a key that is refused ends the job")
        server.accounts = {PLANTED: "org-1"}
    found += [caplog.text, *(path.read_bytes() for path in home.rglob("*") if path.is_file())]
    assert any(PLANTED in str(asked.headers) for asked in server.asked)
    for text in found:
        data = text if isinstance(text, bytes) else text.encode()
        for secret in (PLANTED, password, header):
            assert secret.encode() not in data, data[:200]


def test_a_pickled_engine_reads_the_key_anew(
    server: AnthropicServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for batch in (False, True):
        copy = pickle.loads(pickle.dumps(engine_at(server, batch=batch)))
        assert type(copy) is type(engine_at(server, batch=batch))
        assert copy.limits == engine_at(server, batch=batch).limits
        assert ask(copy).text == "hello"


def test_an_exception_of_ours_shows_no_key_in_its_frames() -> None:
    try:
        Anthropic("", api_key=PLANTED, headers={"x": PLANTED}, base_url=f"http://u:{PLANTED}@h")
    except ModelError as error:
        frames = list(traceback.walk_tb(error.__traceback__))[1:]
        assert frames
        for frame, _ in frames:
            assert PLANTED not in repr(frame.f_locals)


# --- clients of the user's own


@pytest.fixture(params=[anthropic.Anthropic, anthropic.AsyncAnthropic], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, server: AnthropicServer) -> Iterator[Any]:
    made = request.param(
        base_url=server.url, api_key=KEY, default_headers={"X-Mine": "1"}, max_retries=2
    )
    yield made
    if isinstance(made, anthropic.Anthropic):
        made.close()
    else:
        asyncio.run_coroutine_threadsafe(made.close(), background_loop()).result(5)


def test_requests_go_through_the_users_client(server: AnthropicServer, client: Any) -> None:
    engine = Anthropic("claude-x", client=client, headers={"X-Too": "2"})
    results = drive(engine, requests(f"row {n}" for n in range(20)), limit=4)
    assert sorted(str(r.text) for r in results.values()) == sorted(f"row {n}" for n in range(20))
    headers = server.asked[0].headers
    assert (headers["x-mine"], headers["x-too"]) == ("1", "2")
    server.script.extend([error(500, "oops"), Reply(cut=True)])
    seen = len(server.asked)
    for kind in ("provider_error", "connection"):
        first = next(iter(engine.stream(Feed(requests(["x"]), closed=True), Control(1))))[0]
        assert failed(first).kind == kind
    assert len(server.asked) == seen + 2  # one try each: the run decides what is sent again
    engine.close()


def test_batches_go_through_the_users_client(server: AnthropicServer, client: Any) -> None:
    engine = Anthropic("claude-x", client=client, batch=True)
    df = pd.DataFrame({"t": ["a", "b", "c"]})
    with lf.set_options(poll_interval=0.01):
        assert df.llm.map("{t}", model=engine)["response"].tolist() == ["a", "b", "c"]
    # The first row went ahead alone, live: the canary.
    assert sum(len(batch["rows"]) for batch in server.batches.values()) == 2
    engine.close()


# --- frame to frame


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
def test_every_verb(server: AnthropicServer, batch: bool) -> None:
    def answer(asked: Asked) -> Any:
        schema = asked.body.get("output_config", {}).get("format", {}).get("schema")
        if schema is None:
            return asked.text.upper()
        if "city" in schema["properties"]:
            return {"city": "Bonn", "size": 3}
        return {name: "bug" for name in schema["properties"]}

    server.answer = answer
    engine = engine_at(server, batch=batch)
    df = pd.DataFrame({"t": ["it broke", "still broken"]}, index=[7, 7])
    with lf.set_options(poll_interval=0.01):
        assert df.llm.map("{t}", model=engine)["response"].tolist() == ["IT BROKE", "STILL BROKEN"]
        out = df.llm.classify("t", ["bug", "billing"], model=engine)
        assert out["label"].tolist() == ["bug", "bug"]
        out = df.llm.extract("t", {"city": str, "size": int}, model=engine)
    assert out["city"].tolist() == ["Bonn", "Bonn"]
    assert out["size"].tolist() == [3, 3]
    assert out.index.tolist() == [7, 7]
    assert bool(server.batches) == batch


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
def test_u004_bounds_move_into_words_and_hold_here(server: AnthropicServer, batch: bool) -> None:
    from typing import Annotated

    import pydantic

    class Rating(pydantic.BaseModel):
        score: Annotated[int, pydantic.Field(ge=1, le=5)]
        tags: Annotated[list[str], pydantic.Field(max_length=3)]

    replies = {"good": {"score": 5, "tags": ["a"]}, "high": {"score": 9, "tags": []}}
    server.answer = lambda asked: replies[asked.text.split()[0]]
    df = pd.DataFrame({"t": ["good", "high"]})
    engine = engine_at(server, batch=batch)
    with lf.set_options(poll_interval=0.01), pytest.warns(lf.RowsFailedWarning):
        out = df.llm.map("{t}", schema=Rating, model=engine, repairs=0)
    assert out["score"].tolist()[0] == 5
    assert out["score"].isna().tolist() == [False, True]
    failures = out.llm.failures()
    assert failures["kind"].tolist() == ["invalid_output"]
    assert "score" in failures["message"].tolist()[0]


def test_live_and_batch_answers_are_one(server: AnthropicServer) -> None:
    df = pd.DataFrame({"t": ["a", "b"]})
    df.llm.map("{t}", model=engine_at(server))
    out = df.llm.map("{t}", model=engine_at(server, batch=True))
    assert out["response"].tolist() == ["a", "b"]
    assert server.batches == {}

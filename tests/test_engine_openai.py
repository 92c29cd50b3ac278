"""The OpenAI engine against a scripted server on loopback."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import openai
import pytest

from llmframe.engines import http
from llmframe.engines.base import Engine
from llmframe.engines.openai import OpenAI
from llmframe.errors import ModelError
from llmframe.requests import Request, Sampling
from llmframe.results import Failure, Result
from tests.servers.chat import ChatServer, Rate, Reply, Seen, completion, error
from tests.servers.feeding import Control, Feed, ask, drive, requests
from tests.servers.looking import complaints

KEY = "sk-planted-0123456789abcdef"
SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "label": {"type": "string"}},
    "required": ["reason", "label"],
    "additionalProperties": False,
}
DEAD = "http://127.0.0.1:9"
"""The discard port: nothing listens there."""


def texts(count: int) -> list[Request]:
    return requests(f"row {number}" for number in range(count))


def failed(result: Result) -> Failure:
    assert result.failure is not None
    return result.failure


# --- asking -------------------------------------------------------------------------------


def test_every_row_gets_its_own_answer() -> None:
    with ChatServer(lambda seen: seen.text.upper()) as server:
        results = drive(OpenAI("m", base_url=server.url), texts(200))
    assert [result.text for _, result in sorted(results.items())] == [
        f"ROW {number}" for number in range(200)
    ]
    one = next(iter(results.values()))
    assert (one.finish, one.model, one.request_id) == ("stop", "m", "chatcmpl-1")
    assert one.usage is not None
    assert one.usage.input_tokens == 10
    assert one.latency is not None
    assert one.latency > 0


def test_it_is_an_engine() -> None:
    engine = OpenAI("m", base_url="http://127.0.0.1:1/v1")
    assert isinstance(engine, Engine)
    assert engine.limits.concurrency == 32
    assert OpenAI("m", base_url="http://127.0.0.1:1/v1", concurrency=5).limits.concurrency == 5


def test_u111_hundreds_at_once() -> None:
    """One client, no more sockets than requests; queueing here does not use up the timeout."""
    with ChatServer(delay=0.2) as server:
        engine = OpenAI("m", base_url=server.url, timeout=3.0)
        results = drive(engine, texts(500), limit=100)
        assert all(result.failure is None for result in results.values())
        assert server.max_in_flight <= 100
        assert server.connections <= 100
        # One place: 30 rows of 0.2 s queue for longer than the timeout of any of them.
        engine = OpenAI("m", base_url=server.url, timeout=1.0)
        results = drive(engine, texts(10), limit=1)
        assert all(result.failure is None for result in results.values())


def test_connections_are_kept_and_given_back() -> None:
    with ChatServer() as server:
        engine = OpenAI("m", base_url=server.url)
        drive(engine, texts(50), limit=4)
        drive(engine, texts(50), limit=4)
        assert server.connections <= 4
        engine.close()
        engine.close()
        deadline = time.monotonic() + 60
        while server.sockets and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.sockets == 0
        assert ask(engine).text == "ok"  # and opens again when used


def test_an_engine_that_is_dropped_gives_its_connections_back() -> None:
    with ChatServer() as server:
        ask(OpenAI("m", base_url=server.url))
        deadline = time.monotonic() + 60
        while server.sockets and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.sockets == 0


def test_several_threads_share_an_engine() -> None:
    with ChatServer(lambda seen: seen.text) as server:
        engine = OpenAI("m", base_url=server.url)
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda: counts.append(len(drive(engine, texts(60), limit=4))))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [60, 60, 60]
        assert server.max_in_flight <= 12


async def test_under_a_running_loop() -> None:
    with ChatServer() as server:
        assert ask(OpenAI("m", base_url=server.url)).text == "ok"


# --- faults -------------------------------------------------------------------------------


def test_a_server_that_hangs() -> None:
    with ChatServer(Reply(hang=True)) as server:
        failure = failed(ask(OpenAI("m", base_url=server.url, timeout=0.3)))
    assert (failure.kind, failure.retryable, failure.maybe_paid) == ("timeout", True, True)
    assert "timeout=0.3" in failure.message


def test_a_connection_cut_in_the_middle() -> None:
    with ChatServer(Reply(completion("x" * 500), cut=True)) as server:
        failure = failed(ask(OpenAI("m", base_url=server.url)))
    assert (failure.kind, failure.retryable, failure.maybe_paid) == ("connection", True, True)


def test_u154_nobody_listens() -> None:
    """Every row says so, with what to look at; sending slows down, so that a breaker can open."""
    engine = OpenAI("m", base_url=f"{DEAD}/v1")
    failure = failed(ask(engine))
    assert (failure.kind, failure.retryable, failure.maybe_paid) == ("connection", True, False)
    assert "127.0.0.1:9" in failure.message
    assert "running" in failure.message
    feed, control = Feed(texts(500)), Control(8)
    count = 0
    for batch in engine.stream(feed, control):
        count += len(batch)
        if count >= 32:  # as many as a breaker looks at
            control.mode = "abort"
    assert count < 100
    assert not engine.limiter.free


def test_a_server_that_dies_in_between() -> None:
    server = ChatServer(delay=0.02)
    with server:
        feed, control = Feed(texts(400)), Control(8)
        engine = OpenAI("m", base_url=server.url)
        good = bad = 0
        for batch in engine.stream(feed, control):
            for result in batch:
                if result.failure is None:
                    good += 1
                elif result.failure.kind == "connection":
                    bad += 1
            if good >= 40:
                server.stop()
            if bad >= 10:
                control.mode = "abort"
    assert good >= 40
    assert bad >= 10


@pytest.mark.parametrize(
    ("reply", "kind", "fatal"),
    [
        (error(401, code="invalid_api_key"), "invalid_request", True),
        (error(402), "invalid_request", True),
        (error(403), "invalid_request", True),
        (
            error(404, "The model `m` does not exist", code="model_not_found"),
            "invalid_request",
            True,
        ),
        (error(429, code="insufficient_quota"), "rate_limited", True),
        (error(400, "no"), "invalid_request", False),
        (error(413), "request_too_large", False),
        (error(422), "invalid_request", False),
        (error(500), "provider_error", False),
        (error(503), "provider_error", False),
    ],
)
def test_statuses(reply: Reply, kind: str, fatal: bool) -> None:
    with ChatServer(reply) as server:
        failure = failed(ask(OpenAI("m", base_url=server.url)))
        assert len(server.seen) == 1  # retries are the run's business
    assert (failure.kind, failure.fatal, failure.status) == (kind, fatal, reply.status)


def test_a_redirect_is_not_followed_with_the_key() -> None:
    with ChatServer() as other:
        moved = Reply({}, 307, {"location": f"{other.url}/chat/completions"})
        with ChatServer(moved) as server:
            failure = failed(ask(OpenAI("m", base_url=server.url, api_key=KEY)))
        assert other.seen == []
    assert failure.fatal
    assert other.url.removesuffix("/v1") in failure.message


def test_u152_no_quota_stops_sending_nothing_more_than_a_window() -> None:
    script = [Reply(completion("ok"))] * 3
    with ChatServer(error(429, code="insufficient_quota"), script=script, delay=0.01) as server:
        engine = OpenAI("m", base_url=server.url)
        control, good, final = Control(8), 0, 0
        for batch in engine.stream(Feed(texts(200)), control):
            for result in batch:
                good += result.failure is None
                if result.failure is not None and result.failure.fatal:
                    assert "quota" in result.failure.message
                    final += 1
                    control.mode = "drain"
        assert good == 3
        assert 1 <= final <= 16
        assert len(server.seen) <= 3 + 16


def test_u153_a_filtered_row_is_asked_once() -> None:
    words = "Content management policy. Please modify your prompt and retry."
    with ChatServer(error(400, words, code="content_filter")) as server:
        result = ask(OpenAI("m", base_url=server.url))
        assert failed(result).kind == "content_filter"
        assert len(server.seen) == 1


# --- rate limits --------------------------------------------------------------------------


def test_u113_a_flood_is_brought_down_to_the_servers_rate() -> None:
    with ChatServer(limit=Rate(per_second=10, burst=4)) as server:
        results = drive(OpenAI("m", base_url=server.url), texts(40))
        assert all(result.failure is None for result in results.values())
        assert server.statuses[200] == 40
        assert server.statuses[429] <= 32 + 15


def test_u114_one_huge_row_among_small_ones() -> None:
    def cost(seen: Seen) -> float:
        return len(seen.text)

    rows = requests(["x" * 20] * 5 + ["x" * 180] + ["x" * 20] * 5)
    limit = Rate(per_second=200, burst=200, cost=cost, headers=True)
    with ChatServer(limit=limit) as server:
        results = drive(OpenAI("m", base_url=server.url), rows, limit=4)
        assert all(result.failure is None for result in results.values())
        assert server.statuses[429] <= 8


def test_retry_after_holds_every_worker() -> None:
    script = [error(429, headers={"retry-after": "0.5"})]
    with ChatServer(script=script) as server:
        results = drive(OpenAI("m", base_url=server.url), texts(20), limit=1)
        assert len(results) == 20
        assert server.seen[1].at - server.seen[0].at >= 0.5


def test_a_long_retry_after_can_be_aborted() -> None:
    with ChatServer(error(429, headers={"retry-after": "86400"})) as server:
        engine, control = OpenAI("m", base_url=server.url), Control(4)
        feed = Feed(texts(30))
        for batch in engine.stream(feed, control):
            if any(failed(result).kind == "rate_limited" for result in batch):
                assert failed(batch[0]).retry_after == 86400
                control.mode = "abort"
        assert engine.limiter.held > 80000
        assert len(server.seen) <= 4


def test_scattered_server_errors_do_not_slow_the_rest() -> None:
    def answer(seen: Seen) -> Any:
        number = int(seen.text.split()[1])
        return error(500) if number % 33 == 0 and seen.attempt == 1 else "ok"

    with ChatServer(answer) as server:
        engine = OpenAI("m", base_url=server.url)
        results = drive(engine, texts(300), tries=3)
        assert all(result.failure is None for result in results.values())
        assert engine.limiter.free


# --- what a server takes ------------------------------------------------------------------


def test_temperature_zero_unless_asked() -> None:
    with ChatServer() as server:
        engine = OpenAI("m", base_url=server.url)
        ask(engine)
        ask(engine, sampling=Sampling(temperature=0.7, seed=3, max_tokens=9, extra={"top_p": 0.5}))
        first, second = (seen.body for seen in server.seen)
    assert first["temperature"] == 0
    assert "max_tokens" not in first
    assert (second["temperature"], second["seed"], second["max_tokens"]) == (0.7, 3, 9)
    assert second["top_p"] == 0.5


def test_u158_refused_parameters_are_left_out_once_and_for_all() -> None:
    """A burst of refusals adapts once, and is said once."""
    items = requests([f"row {n}" for n in range(60)], sampling=Sampling(max_tokens=5))
    with ChatServer(refuse=["temperature", "max_tokens"], delay=0.02) as server:
        engine = OpenAI("m", base_url=server.url)
        with pytest.warns(UserWarning, match="temperature") as caught:
            results = drive(engine, items, limit=8)
        assert len(caught) == 1
        assert all(result.failure is None for result in results.values())
        assert server.statuses[400] <= 2 * 8
        last = server.seen[-1].body
        assert "temperature" not in last
        assert last["max_completion_tokens"] == 5
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            drive(engine, items[:3])
        assert server.statuses[400] <= 2 * 8


def test_the_canary_pays_for_what_is_learned() -> None:
    items = requests([f"row {n}" for n in range(30)], sampling=Sampling(max_tokens=5))
    with ChatServer(refuse=["temperature", "max_tokens"]) as server:
        engine = OpenAI("m", base_url=server.url)
        with pytest.warns(UserWarning, match="temperature"):
            drive(engine, items[:1])
        drive(engine, items[1:])
        assert server.statuses == {400: 2, 200: 30}


def test_a_temperature_of_the_users_is_sent_or_refused() -> None:
    with ChatServer(refuse=["temperature"]) as server:
        result = ask(OpenAI("m", base_url=server.url), sampling=Sampling(temperature=0.0))
        assert len(server.seen) == 1
    assert failed(result).kind == "invalid_request"
    assert failed(result).param == "temperature"


def test_a_schema_goes_into_the_prompt_where_it_is_refused() -> None:
    dialects = pytest.importorskip("llmframe.schemas.dialects")
    answer = {"reason": "r", "label": "l"}
    with ChatServer(answer, refuse=["response_format"]) as server:
        engine = OpenAI("m", base_url=server.url)
        with pytest.warns(UserWarning, match="the schema goes into the prompt") as caught:
            result = ask(engine, schema=SCHEMA)
        assert len(caught) == 1
        assert result.text == json.dumps(answer)
        ask(engine, schema=SCHEMA)
        assert server.statuses == {400: 1, 200: 2}
        assert server.seen[0].body["response_format"]["json_schema"]["strict"] is True
        system = server.seen[-1].body["messages"][0]
        assert system == {"role": "system", "content": dialects.plain(SCHEMA)}


def test_a_schema_that_is_refused_itself_is_the_rows_failure() -> None:
    pytest.importorskip("llmframe.schemas.dialects")
    words = "Invalid schema for response_format 'response'"
    with ChatServer(error(400, words, param="response_format")) as server:
        result = ask(OpenAI("m", base_url=server.url), schema=SCHEMA)
        assert len(server.seen) == 1
    assert "Invalid schema" in failed(result).message


def test_a_notice_never_ends_a_job() -> None:
    with ChatServer(refuse=["temperature"]) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(OpenAI("m", base_url=server.url)).text == "ok"


def test_labels_are_scored_where_the_server_shows_probabilities() -> None:
    def entry(text: str, p: float) -> dict[str, Any]:
        return {"token": text, "logprob": math.log(p), "bytes": list(text.encode())}

    tokens = [
        entry('{"label":"', 1.0) | {"top_logprobs": []},
        entry("bug", 0.7) | {"top_logprobs": [entry("bug", 0.7), entry("bill", 0.3)]},
        entry('"}', 1.0) | {"top_logprobs": []},
    ]
    reply = completion('{"label":"bug"}', logprobs={"content": tokens})
    with ChatServer(Reply(reply)) as server:
        result = ask(OpenAI("m", base_url=server.url), choices=("bug", "billing"))
        assert server.seen[0].body["logprobs"] is True
        assert server.seen[0].body["top_logprobs"] == 20
    assert result.choice_logprobs == pytest.approx((math.log(0.7), math.log(0.3)))


@pytest.mark.parametrize("refuse", [["logprobs"], []], ids=["refused", "ignored"])
def test_labels_are_generated_where_it_does_not(refuse: list[str]) -> None:
    with ChatServer("bug", refuse=refuse) as server:
        engine = OpenAI("m", base_url=server.url)
        for _ in range(2):
            result = ask(engine, choices=("bug", "billing"))
            assert (result.text, result.choice_logprobs) == ("bug", None)
        assert "logprobs" not in server.seen[-1].body
        assert len(server.seen) == 2 + len(refuse)


def test_a_body_that_cannot_be_made_costs_one_row() -> None:
    items = texts(3)
    bad = Request(b"bad", 3, ({"role": "user", "content": "\ud800"},))
    with ChatServer() as server:
        results = drive(OpenAI("m", base_url=server.url), [*items, bad])
    assert failed(results[b"bad"]).kind == "invalid_request"
    assert "surrogate" in failed(results[b"bad"]).message
    assert sum(result.failure is None for result in results.values()) == 3


# --- configuration ------------------------------------------------------------------------


def test_no_key_says_what_to_do() -> None:
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        OpenAI("gpt-4.1-mini")
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        OpenAI("gpt-4.1-mini", api_key=" ")


def test_the_sdks_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer(key=KEY) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
        assert ask(OpenAI("m", headers={"X-Team": "blue", "authorization": f"Bearer {KEY}"})).text
        headers = server.seen[0].headers
    assert headers["openai-organization"] == "org-1"
    assert headers["openai-project"] == "proj-1"
    assert headers["x-team"] == "blue"
    assert headers.getall("authorization") == [f"Bearer {KEY}"]  # type: ignore[attr-defined]


def test_a_key_from_a_file_is_stripped() -> None:
    with ChatServer(key=KEY) as server:
        assert ask(OpenAI("m", base_url=server.url, api_key=f"{KEY}\n")).text == "ok"


def test_a_server_of_ones_own_needs_no_key() -> None:
    with ChatServer() as server:
        assert ask(OpenAI("m", base_url=server.url)).text == "ok"
        assert ask(OpenAI("m", base_url=server.url, api_key="")).text == "ok"


def test_user_and_query_of_a_url_are_used_and_not_shown() -> None:
    with ChatServer() as server:
        place = server.url.removeprefix("http://")
        engine = OpenAI("m", base_url=f"http://me:hunter22@{place}/?api-version=7#x")
        assert ask(engine).text == "ok"
        assert server.seen[0].headers["authorization"].startswith("Basic ")
        assert engine.identity()["base_url"] == server.url
        assert "hunter22" not in repr(engine)


def test_identity() -> None:
    engine = OpenAI("m", base_url="http://LOCALHOST:8000/v1/", revision="r2", api_key=KEY)
    assert engine.identity() == {
        "provider": "openai",
        "base_url": "http://localhost:8000/v1",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "revision": "r2",
    }
    assert OpenAI("m", api_key=KEY).identity()["base_url"] == "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": ""}, "model"),
        ({"base_url": "localhost:8000"}, "http"),
        ({"base_url": "ftp://x/v1"}, "http"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": math.inf}, "timeout"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"endpoint": "/v1/embeddings"}, "/v1/embeddings"),
        ({"batch": True, "max_batch_bytes": 0}, "max_batch_bytes=0"),
        ({"batch": True, "client": openai.AsyncOpenAI(api_key="sk-fake")}, "batch=True"),
        ({"client": object()}, "openai.OpenAI"),
        ({"headers": {"X-A": "b\r\nX-C: d"}}, "X-A"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], words: str) -> None:
    fields = {"model": "m", "base_url": "http://127.0.0.1:1/v1", **given}
    with pytest.raises(ModelError, match=words):
        OpenAI(fields.pop("model"), **fields)


def test_known_by_name_at_openai() -> None:
    engine = OpenAI("o4-mini", api_key=KEY)
    assert engine.official
    assert not engine._features.temperature
    assert not OpenAI("o4-mini", api_key=KEY, base_url="http://127.0.0.1:1/v1").official
    assert not OpenAI("m", api_key=KEY, base_url="https://notapi.openai.com.example/v1").official


# --- secrets ------------------------------------------------------------------------------


def test_a_planted_key_is_found_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    found: list[str] = []
    echo = error(400, f"Incorrect API key provided: {KEY}. Header was 'Bearer {KEY}'")
    replies: list[Any] = [
        echo,
        error(401, f"Incorrect API key provided: {KEY[:12]}****cdef"),
        Reply(f"key {KEY}".encode(), 500),
        Reply(hang=True),
        Reply(completion(), cut=True),
        Reply({}, 302, {"location": f"https://x:{KEY}@other/?k={KEY}"}),
    ]
    with ChatServer(script=replies) as server:
        engine = OpenAI(
            "m", base_url=server.url, api_key=KEY, headers={"X-Api-Key": KEY}, timeout=0.3
        )
        for _ in replies:
            result = ask(engine)
            found += [repr(result), failed(result).message]
    dead = OpenAI("m", base_url=f"http://u:{KEY}@127.0.0.1:9/v1", api_key=KEY)
    found.append(repr(ask(dead)))
    found += [repr(engine), str(vars(pickle.loads(pickle.dumps(engine)))), repr(engine.identity())]
    found += [pickle.dumps(engine).decode("latin1"), caplog.text]
    for text in found:
        assert "planted" not in text


def test_an_exception_in_the_engine_tells_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"Authorization: Bearer {KEY}")

    with ChatServer() as server:
        engine = OpenAI("m", base_url=server.url, api_key=KEY)
        monkeypatch.setattr(engine, "_read", broken)
        result = ask(engine)
    assert failed(result).kind == "provider_error"
    assert KEY not in repr(result)


def test_a_pickled_engine_reads_the_key_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer(key=KEY, refuse=["temperature"]) as server:
        engine = OpenAI("m", base_url=server.url, api_key=KEY, timeout=7.0, revision="r")
        with pytest.warns(UserWarning, match="temperature"):
            ask(engine)
        data = pickle.dumps(engine)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        again = pickle.loads(data)
        assert (again.timeout, again.identity()) == (7.0, engine.identity())
        server.seen.clear()
        with pytest.warns(UserWarning, match="temperature"):
            assert ask(again).text == "ok"
        assert len(server.seen) == 1  # what was learned travels, the key does not


def test_an_unpickled_engine_without_a_key_says_so() -> None:
    again = pickle.loads(pickle.dumps(OpenAI("gpt-4.1-mini", api_key=KEY)))
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        ask(again)


# --- proxies and certificates -------------------------------------------------------------


def test_u112_loopback_is_never_proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, DEAD)
        monkeypatch.setenv(name.lower(), DEAD)
    with ChatServer() as server:
        assert ask(OpenAI("m", base_url=server.url)).text == "ok"


def test_u112_an_error_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"http://user:{KEY}@127.0.0.1:9"
    monkeypatch.setenv("http_proxy", proxy)
    failure = failed(ask(OpenAI("m", base_url="http://llm.example/v1")))
    assert failure.kind == "connection"
    assert "proxy http://127.0.0.1:9" in failure.message
    assert KEY not in failure.message


def test_u112_a_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        assert ask(OpenAI("m", base_url="http://llm.example/v1")).text == "ok"
        assert proxy.seen[0].headers["host"] == "llm.example"


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        ("https://llm.example/v1", {"https_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://llm.example/v1", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("https://llm.example/v1", {"http_proxy": "http://p:3128"}, None),
        ("https://llm.example/v1", {"all_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://llm.example/v1", {"https_proxy": "http://p", "no_proxy": "llm.example"}, None),
        ("http://127.0.0.1:1/v1", {"http_proxy": "http://p"}, None),
        ("http://[::1]:1/v1", {"http_proxy": "http://p"}, None),
        ("http://localhost:1/v1", {"http_proxy": "http://p"}, None),
    ],
)
def test_which_proxy(
    url: str, variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert http.proxy_for(url) == proxy


def test_a_socks_proxy_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(ModelError, match="client="):
        ask(OpenAI("m", base_url="https://llm.example/v1"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate of our own for 127.0.0.1, and a server's context with it."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the openssl command to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


def test_u112_a_private_certificate(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, context = certificate
    with ChatServer(ssl=context) as server:
        failure = failed(ask(OpenAI("m", base_url=server.url)))
        assert failure.fatal
        assert "SSL_CERT_FILE" in failure.message
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert ask(OpenAI("m", base_url=server.url)).text == "ok"


# --- the process --------------------------------------------------------------------------


PYTHONPATH = str(Path(__file__).parents[1])


def python(code: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **env},
        check=False,
    )


def test_nothing_is_said_at_exit() -> None:
    """No open session, no pending task, even where nobody closes anything."""
    with ChatServer() as server:
        code = """
        import os
        from llmframe.engines.openai import OpenAI
        from tests.servers.feeding import Control, Feed, ask, requests
        engine = OpenAI("m", base_url=os.environ["URL"])
        print(ask(engine).text)
        stream = engine.stream(Feed(requests(map(str, range(50)))), Control(8))
        print(len(next(stream)) > 0)
        """
        done = python(code, "-X", "dev", "-W", "error", URL=server.url)
    said = complaints(done.stderr)
    assert (done.stdout, said, done.returncode) == ("ok\nTrue\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_an_engine_in_a_forked_child_has_connections_of_its_own() -> None:
    with ChatServer(lambda seen: seen.text) as server:
        code = """
        import os
        from llmframe.engines.openai import OpenAI
        from tests.servers.feeding import ask, drive, requests
        engine = OpenAI("m", base_url=os.environ["URL"])
        assert ask(engine, "parent").text == "parent"
        child = os.fork()
        if child == 0:
            good = [ask(engine, f"child {n}").text == f"child {n}" for n in range(5)]
            os._exit(0 if all(good) else 1)
        good = [ask(engine, f"parent {n}").text == f"parent {n}" for n in range(5)]
        print(os.waitpid(child, 0)[1], all(good))
        """
        done = python(code, "-W", "error", "-W", "ignore::DeprecationWarning", URL=server.url)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_importing_the_engine_loads_no_sdk() -> None:
    code = """
    import sys
    import llmframe.engines.openai
    print([name for name in ("openai", "aiohttp", "httpx", "httpx2") if name in sys.modules])
    """
    assert python(code).stdout == "[]\n"


def test_many_threads_may_be_the_first_to_need_the_sdk() -> None:
    code = """
    import threading
    from llmframe.engines.openai import OpenAI
    made = []
    def work():
        made.append(OpenAI("m", base_url="http://127.0.0.1:9/v1"))
    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(made))
    """
    done = python(code, "-W", "error")
    assert (done.stdout, done.stderr) == ("8\n", "")


def test_tracebacks_hold_no_key() -> None:
    with pytest.raises(ModelError) as caught:
        OpenAI("m", base_url=f"ftp://u:{KEY}@host/v1", api_key=KEY)
    assert KEY not in "".join(traceback.format_exception(caught.value))

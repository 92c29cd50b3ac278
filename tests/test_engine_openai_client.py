"""Clients of the user's own: every request goes through them, one try each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from llmframe.engines.live import background_loop
from llmframe.engines.openai import OpenAI
from llmframe.engines.openai_settings import settings
from llmframe.results import Failure, Result
from tests.servers.chat import ChatServer, Reply, completion, error
from tests.servers.feeding import Control, Feed, ask, drive, requests

KEY = "sk-planted-0123456789abcdef"
KINDS = [openai.OpenAI, openai.AsyncOpenAI]


def failed(result: Result) -> Failure:
    assert result.failure is not None
    return result.failure


@pytest.fixture(params=KINDS, ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes clients of one kind, and closes them in the end."""
    made = []

    def make(**fields: Any) -> Any:
        made.append(request.param(**fields))
        return made[-1]

    yield make
    for client in made:
        if isinstance(client, openai.OpenAI):
            client.close()
        else:
            asyncio.run_coroutine_threadsafe(client.close(), background_loop()).result(5)


def once(engine: OpenAI) -> Result:
    """One try, whatever comes of it."""
    return next(iter(engine.stream(Feed(requests(["hello"]), closed=True), Control(1))))[0]


def test_requests_go_through_it(kind: Any) -> None:
    with ChatServer(lambda seen: seen.text, key=KEY) as server:
        client = kind(base_url=server.url, api_key=KEY, default_headers={"X-Mine": "1"})
        engine = OpenAI("m", client=client, headers={"X-Too": "2"})
        results = drive(engine, requests(f"row {n}" for n in range(60)), limit=8)
        assert sorted(str(result.text) for result in results.values()) == sorted(
            f"row {n}" for n in range(60)
        )
        assert server.max_in_flight <= 8
        headers = server.seen[0].headers
        assert headers["x-mine"] == "1"
        assert headers["x-too"] == "2"
        assert "x-stainless-lang" in headers
        assert server.seen[0].body["temperature"] == 0
        assert engine.identity()["base_url"] == server.url
        assert next(iter(results.values())).request_id == "chatcmpl-1"


def test_one_try_each_and_the_same_verdicts(kind: Any) -> None:
    script = [
        error(500),
        error(429, headers={"retry-after": "0.01"}),
        error(400, f"bad key {KEY}", code="content_filter"),
        error(401),
        Reply(completion("half"), cut=True),
    ]
    with ChatServer(script=script) as server:
        engine = OpenAI("m", client=kind(base_url=server.url, api_key=KEY))
        failures = [failed(once(engine)) for _ in script]
        assert len(server.seen) == len(script)
    assert [failure.kind for failure in failures] == [
        "provider_error",
        "rate_limited",
        "content_filter",
        "invalid_request",
        "connection",
    ]
    assert failures[1].retry_after == 0.01
    assert all(KEY not in failure.message for failure in failures)
    assert KEY not in repr(engine)


def test_refused_parameters_are_left_out(kind: Any) -> None:
    with ChatServer(refuse=["temperature"]) as server:
        engine = OpenAI("m", client=kind(base_url=server.url, api_key=KEY))
        with pytest.warns(UserWarning, match="temperature"):
            assert ask(engine).text == "ok"


def test_timeouts_and_dead_servers(kind: Any) -> None:
    with ChatServer(Reply(hang=True)) as server:
        engine = OpenAI("m", client=kind(base_url=server.url, api_key=KEY), timeout=0.3)
        assert failed(ask(engine)).kind == "timeout"
    engine = OpenAI("m", client=kind(base_url="http://127.0.0.1:9/v1", api_key=KEY))
    assert failed(ask(engine)).kind == "connection"


def test_abort_does_not_wait_for_the_reply(kind: Any) -> None:
    with ChatServer(Reply(hang=True)) as server:
        engine = OpenAI("m", client=kind(base_url=server.url, api_key=KEY))
        control = Control(3)
        threading.Timer(0.3, lambda: setattr(control, "mode", "abort")).start()
        results = [r for b in engine.stream(Feed(requests("abc")), control) for r in b]
        assert [failed(result).kind for result in results] == ["canceled"] * 3


def test_the_client_stays_the_users(kind: Any) -> None:
    with ChatServer() as server:
        client = kind(base_url=server.url, api_key=KEY)
        engine = OpenAI("m", client=client)
        ask(engine)
        engine.close()
        assert not client.is_closed()
        assert ask(engine).text == "ok"


async def test_an_async_client_that_is_bound_to_the_callers_loop() -> None:
    """As in a notebook: the client was awaited in a cell, then handed in, then awaited again."""
    with ChatServer(lambda seen: seen.text) as server:
        client = openai.AsyncOpenAI(base_url=server.url, api_key=KEY)
        message: Any = {"role": "user", "content": "mine"}
        reply = await client.chat.completions.create(model="m", messages=[message])
        assert reply.choices[0].message.content == "mine"
        engine = OpenAI("m", client=client)
        results = drive(engine, requests(f"row {n}" for n in range(20)), limit=4)
        assert all(result.failure is None for result in results.values())
        reply = await client.chat.completions.create(model="m", messages=[message])
        assert reply.choices[0].message.content == "mine"
        engine.close()
        await client.close()


def test_a_pool_of_the_users_own_is_used(kind: Any) -> None:
    """Proxies and certificates of a company live in it."""
    with ChatServer() as server:
        sync = isinstance(kind(base_url=server.url, api_key=KEY), openai.OpenAI)
        pool = openai.DefaultHttpxClient if sync else openai.DefaultAsyncHttpxClient
        mine: Any = pool(headers={"X-Pool": "mine"})
        engine = OpenAI("m", client=kind(base_url=server.url, api_key=KEY, http_client=mine))
        assert ask(engine).text == "ok"
        assert server.seen[0].headers["x-pool"] == "mine"


def test_connections_are_given_back() -> None:
    with ChatServer() as server:
        engine = OpenAI("m", client=openai.AsyncOpenAI(base_url=server.url, api_key=KEY))
        ask(engine)
        engine.close()
        deadline = time.monotonic() + 60
        while server.sockets and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.sockets == 0


def test_headers_that_the_sdk_leaves_out_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its default headers hold an object that means "none", where no organisation is set.
    assert set(settings(api_key="sk-a").headers) == {"Authorization"}
    monkeypatch.setenv("OPENAI_ORG_ID", "org-a")
    assert settings(api_key="sk-a").headers["OpenAI-Organization"] == "org-a"

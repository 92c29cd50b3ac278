"""The witness of the other tests counts right."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.servers.rows import Reply, RowServer

pytest_plugins = ["tests.servers.plugin"]

GONE = (OSError, http.client.HTTPException)


def ask(server: RowServer, *texts: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    request = urllib.request.Request(
        server.url + "/chat/completions",
        data=json.dumps({"model": "m", "messages": messages}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)["choices"][0]["message"]


def test_it_counts_requests_rows_and_tries(serve: Any) -> None:
    server = serve(lambda row: row.prompt[::-1])
    for _ in range(3):
        assert ask(server, "abc")["content"] == "cba"
    assert ask(server, "abc", "bad", "say it again")["content"] == "cba"
    assert server.count == 4
    assert server.answered == {"abc": 4}
    assert [row.tries for row in server.asked] == [1, 2, 3, 4]
    assert server.asked[3].last == "say it again"


def test_it_fails_on_demand(serve: Any) -> None:
    server = serve(lambda row: Reply(status=429, message="slow", headers={"retry-after": "9"}))
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, "abc")
    assert caught.value.code == 429
    assert caught.value.headers["retry-after"] == "9"
    assert json.load(caught.value)["error"]["message"] == "slow"
    assert server.answered == {}
    server.rows = lambda row: Reply(cut=True)
    with pytest.raises(GONE):
        ask(server, "abc")


def test_it_refuses_what_strict_json_does_not_know(serve: Any) -> None:
    server = serve()
    for text in ("\ud83d", float("nan")):
        with pytest.raises(urllib.error.HTTPError):
            ask(server, text)  # type: ignore[arg-type]
    assert len(server.unreadable) == 2
    assert server.count == 0


def test_it_dies_in_mid_run(serve: Any) -> None:
    server = serve()
    ask(server, "abc")
    server.die()
    server.stop()
    with pytest.raises(GONE):
        ask(server, "abc")

"""Anthropic's engine against servers that others wrote: mock-ai-api and llmock."""

from __future__ import annotations

import time

import pytest

from llmframe.engines.anthropic import Anthropic
from llmframe.engines.base import Line
from llmframe.errors import EngineError
from llmframe.requests import custom_id
from llmframe.testing import requests
from tests.servers.feeding import drive
from tests.servers.feeding import requests as simple

MODEL = "claude-3-5-haiku-20241022"

pytest_plugins = ["tests.servers.peers"]
pytestmark = pytest.mark.slow


@pytest.fixture(params=["mock_ai_api", "llmock"])
def peer(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A server's name and the address of its Anthropic side."""
    name: str = request.param
    url: str = request.getfixturevalue(name)()
    return name, url + ("/anthropic" if name == "llmock" else "")


def test_live(peer: tuple[str, str]) -> None:
    engine = Anthropic(MODEL, base_url=peer[1], api_key="sk-ant-fake")
    results = drive(engine, simple(f"row {n}" for n in range(50)))
    assert len(results) == 50
    for result in results.values():
        assert result.failure is None
        assert result.text
        assert result.finish == "stop"
        assert result.usage is not None
        assert result.usage.output_tokens > 0
    engine.close()


def test_batches(peer: tuple[str, str]) -> None:
    name, url = peer
    engine = Anthropic(MODEL, base_url=url, api_key="sk-ant-fake", batch=True)
    asked = requests([f"row {n}" for n in range(20)])
    lines = [Line(custom_id(r.position, r.key, 1), (r,)) for r in asked]
    notes: dict[str, str] = {}
    batch = engine.submit(lines, "tag", notes.__setitem__)
    assert batch.count == 20
    assert [found.id for found in engine.find("tag", notes, 20)] == [batch.id]
    assert engine.find("tag", notes, 19) == []
    if name == "llmock":  # the other says that it runs until somebody reads its results
        deadline = time.monotonic() + 60
        while engine.poll(batch).state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.2)
    results = {id_: result for id_, _, result in engine.fetch(batch)}
    assert results.keys() == {line.custom_id for line in lines}
    assert {result.key for result in results.values()} == {request.key for request in asked}
    assert all(result.failure is None and result.text for result in results.values())
    assert engine.poll(batch).state == "done"
    engine.cancel(batch)
    if name == "llmock":
        with pytest.raises(EngineError):  # it has no way to delete one
            engine.delete(batch)
    else:
        engine.delete(batch)
        assert engine.poll(batch).state == "gone"

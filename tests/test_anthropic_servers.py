"""Anthropic's engine against servers that others wrote: mock-ai-api and llmock."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmframe.engines.anthropic import Anthropic
from llmframe.engines.base import Line
from llmframe.errors import EngineError
from llmframe.requests import custom_id
from llmframe.testing import requests
from tests.servers.feeding import drive
from tests.servers.feeding import requests as simple

MODEL = "claude-3-5-haiku-20241022"

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start() -> Iterator[Callable[..., str]]:
    """``start(program, *options)``; ``{}`` in an option is the port. The server's address."""
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *options: str) -> str:
        program = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
        if program is None:
            pytest.skip(f"{name} is not installed")
        port = free_port()
        command = [program, *(option.format(port) for option in options)]
        quiet = subprocess.DEVNULL
        running.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return url
            except urllib.error.HTTPError:
                return url
            except OSError:
                assert time.monotonic() < deadline, f"{name} did not start"
                time.sleep(0.1)

    yield start
    for process in running:
        process.terminate()
        process.wait(10)


def mock_ai_api(start: Callable[..., str]) -> str:
    return start("mock-ai-api", "--openai-port", str(free_port()), "--anthropic-port", "{}")


def llmock(start: Callable[..., str]) -> str:
    return start("llmock", "serve", "--port", "{}", "--log-level", "error") + "/anthropic"


@pytest.mark.parametrize("peer", [mock_ai_api, llmock])
def test_live(start: Callable[..., str], peer: Callable[..., str]) -> None:
    engine = Anthropic(MODEL, base_url=peer(start), api_key="sk-ant-fake")
    results = drive(engine, simple(f"row {n}" for n in range(50)))
    assert len(results) == 50
    for result in results.values():
        assert result.failure is None
        assert result.text
        assert result.finish == "stop"
        assert result.usage is not None
        assert result.usage.output_tokens > 0
    engine.close()


@pytest.mark.parametrize("peer", [mock_ai_api, llmock])
def test_batches(start: Callable[..., str], peer: Callable[..., str]) -> None:
    engine = Anthropic(MODEL, base_url=peer(start), api_key="sk-ant-fake", batch=True)
    asked = requests([f"row {n}" for n in range(20)])
    lines = [Line(custom_id(r.position, r.key, 1), (r,)) for r in asked]
    notes: dict[str, str] = {}
    batch = engine.submit(lines, "tag", notes.__setitem__)
    assert batch.count == 20
    assert [found.id for found in engine.find("tag", notes, 20)] == [batch.id]
    assert engine.find("tag", notes, 19) == []
    if peer is llmock:  # the other says that it runs until somebody reads its results
        deadline = time.monotonic() + 30
        while engine.poll(batch).state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.2)
    results = {id_: result for id_, _, result in engine.fetch(batch)}
    assert results.keys() == {line.custom_id for line in lines}
    assert {result.key for result in results.values()} == {request.key for request in asked}
    assert all(result.failure is None and result.text for result in results.values())
    assert engine.poll(batch).state == "done"
    engine.cancel(batch)
    if peer is llmock:
        with pytest.raises(EngineError):  # it has no way to delete one
            engine.delete(batch)
    else:
        engine.delete(batch)
        assert engine.poll(batch).state == "gone"

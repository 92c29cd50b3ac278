"""Fixtures of the black-box tests: a store of their own, and servers that end with the test."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmframe as lf
from tests.servers.plain import MODEL, PlainServer, Reply, Seen

KEY = "sk-loopback-test"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh store; no provider variable of the machine reaches the test."""
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_ORG_ID",
        "OPENAI_PROJECT_ID",
        "LLMFRAME_MODEL",
        "LLMFRAME_CONCURRENCY",
        "LLMFRAME_PROGRESS",
    ):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("LLMFRAME_HOME", str(folder))
    with lf.set_options(home=folder, progress=False):
        yield folder


@pytest.fixture
def serve() -> Iterator[Callable[..., PlainServer]]:
    """``serve(answer)`` starts a `PlainServer` that ends with the test."""
    running: list[PlainServer] = []

    def start(answer: Callable[[Seen], str | Reply] | None = None, **options: Any) -> PlainServer:
        server = PlainServer(answer or (lambda seen: seen.prompt), **options)
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


def openai(server: PlainServer, **options: Any) -> Any:
    """``lf.OpenAI`` at `server`."""
    options.setdefault("api_key", KEY)
    return lf.OpenAI(MODEL, base_url=server.base_url, **options)


@contextlib.contextmanager
def all_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Every warning of the block, none filtered."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def of(caught: list[warnings.WarningMessage], category: type[Warning]) -> list[str]:
    """Messages of one category."""
    return [str(w.message) for w in caught if issubclass(w.category, category)]


def kinds(out: Any) -> dict[Any, str]:
    """Failure kind by index label."""
    failures = out.llm.failures()
    return dict(zip(failures.index, failures["kind"], strict=True))


def statuses(out: Any) -> list[str]:
    """Row statuses in row order."""
    return [str(status) for status in out.llm.status()]

"""Short names for what the black-box tests look at."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import llmframe as lf
from tests.servers.rows import MODEL, RowServer

KEY = "sk-loopback-test"


def openai(server: RowServer, **options: Any) -> Any:
    """``lf.OpenAI`` at `server`."""
    options.setdefault("api_key", KEY)
    return lf.OpenAI(MODEL, base_url=server.url, **options)


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


def complaints(stderr: str) -> str:
    """What a process in Python's development mode said on stderr.

    Without asyncio's remark that a step took more than 0.1 s: on a busy machine any may.
    """
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("Executing <"))

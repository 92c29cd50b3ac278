"""The fixture `serve`; a test file takes it by ``pytest_plugins = ["tests.servers.plugin"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.rows import RowServer, Script


@pytest.fixture
def serve() -> Iterator[Callable[..., RowServer]]:
    """``serve(script)`` starts a `RowServer` that ends with the test."""
    running: list[RowServer] = []

    def start(script: Script = lambda row: row.prompt, **options: Any) -> RowServer:
        running.append(RowServer(script, **options))
        return running[-1]

    yield start
    for server in running:
        server.stop()

"""The emulators leave no socket behind, whatever is being connected when they stop."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers.anthropic import AnthropicServer
from tests.servers.openai_batches import BatchServer


@pytest.mark.parametrize("make", [AnthropicServer, BatchServer])
@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_is_made_in_the_moment_of_the_stop(
    make: Callable[[], Any], turns: int
) -> None:
    clients: list[socket.socket] = []

    async def connect_and_stop() -> None:
        # In the server's own loop, so that it stops so many turns of it later.
        clients.append(socket.create_connection((address.hostname, address.port)))
        for _ in range(turns):
            await asyncio.sleep(0)
        server._done.set()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with make() as server:
            address = urlsplit(server.url)
            asyncio.run_coroutine_threadsafe(connect_and_stop(), server._loop)
            server._thread.join(60)
        gc.collect()
    for client in clients:
        client.close()
    assert [str(one.message) for one in caught] == []

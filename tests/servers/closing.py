"""The end of an emulator: no connection stays open, whatever is being made when it stops."""

from __future__ import annotations

import asyncio

from aiohttp import web

__all__ = ["close"]


async def close(runner: web.AppRunner, server: asyncio.Server) -> None:
    """Stop serving, and cut what is open."""
    loop = asyncio.get_running_loop()
    # A listener that is closed while a connection is on its way from it leaves that one's socket
    # to the garbage collector, so it first stops to accept.
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    # Turns of the loop, not time: on a loaded machine one turn may take any time.
    for _ in range(20):
        await asyncio.sleep(0)
    server.close()
    assert runner.server is not None
    connections = list(runner.server.connections)
    await runner.cleanup()
    for connection in connections:
        if connection.transport is not None:
            connection.transport.abort()
    await asyncio.sleep(0)

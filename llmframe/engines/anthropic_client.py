"""Requests through an Anthropic client: one of the user's, or one with credentials that change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit

import orjson

from llmframe.engines import background
from llmframe.engines.http import Reply
from llmframe.engines.sdk_client import SdkClient

__all__ = ["Client"]


class Client(SdkClient):
    """The API through `anthropic.Anthropic` or `anthropic.AsyncAnthropic`, as `SdkClient` does it.

    The SDK holds bodies and answers whole in memory.

    Args:
        client: The SDK client.
        headers: Further headers of every request.
        timeout: Seconds for one request.
    """

    def __init__(self, client: Any, headers: Mapping[str, str], timeout: float) -> None:
        import anthropic
        from anthropic import _base_client

        super().__init__(anthropic, "Anthropic", client, headers, timeout)
        # A raw response is asked for by its class; the library that has it changed in 1.0.
        names = vars(_base_client)
        self._raw = (names["httpx2"] if "httpx2" in names else names["httpx"]).Response

    async def post(self, body: bytes) -> Reply:
        """Send one request; see `Transport.post`."""
        return await self._send("POST", "/v1/messages", body)

    def call(
        self,
        method: str,
        url: str,
        *,
        body: IO[bytes] | None = None,
        into: IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request from a thread that may wait; see `llmframe.engines.rest.Rest.call`."""
        data = None
        if body is not None:
            body.seek(0)
            data = body.read()
        parts = urlsplit(url)
        base = urlsplit(str(self._client.base_url)).path.rstrip("/")
        path = parts.path.removeprefix(base) + (f"?{parts.query}" if parts.query else "")
        coroutine = self._send(method, path, data, headers)
        reply = asyncio.run_coroutine_threadsafe(coroutine, background.background_loop()).result()
        if into is None or reply.status != 200:
            return reply
        into.write(reply.body)
        return Reply(reply.status, reply.headers, b"")

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        sent = {**self._headers, **(headers or {})}
        options: dict[str, Any] = {"max_retries": 0, "timeout": self._timeout}
        call: dict[str, Any] = {"cast_to": self._raw, "options": {**options, "headers": sent}}
        if body is not None:
            call["body"] = orjson.loads(body)
        make = {
            "GET": self._client.get,
            "POST": self._client.post,
            "DELETE": self._client.delete,
        }[method]
        return await self._reply(lambda: make(path, **call))

"""Requests through an SDK client: the user's proxies, certificates, credentials."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from typing import IO, Any, NoReturn
from urllib.parse import urlsplit

import orjson

from llmframe.engines import background
from llmframe.engines.http import Reply, Transport, Unsent
from llmframe.results import Failure

__all__ = ["Client"]


class Client(Transport):
    """The API through `anthropic.Anthropic` or `anthropic.AsyncAnthropic`, one try each.

    An async client with the SDK's own connection pool gets a pool of its own here, since one
    that was used in a notebook's loop fails in any other. With a pool that the user made it is
    used as it is, in the background loop. The SDK holds bodies and answers whole in memory.

    Args:
        client: The user's client; it stays theirs and is not closed.
        headers: Further headers of every request.
        timeout: Seconds for one request.
    """

    def __init__(self, client: Any, headers: Mapping[str, str], timeout: float) -> None:
        import anthropic
        from anthropic import _base_client

        self._async = isinstance(client, anthropic.AsyncAnthropic)
        self._timeout = timeout
        self._headers = dict(headers)
        options: dict[str, Any] = {"max_retries": 0, "timeout": timeout}
        own: Any = None
        pool = getattr(client, "_client", None)
        if self._async and type(pool).__name__ == "AsyncHttpxClientWrapper":
            own = options["http_client"] = anthropic.DefaultAsyncHttpxClient()
        self._client = client.with_options(**options)
        # A raw response is asked for by its class; the library that has it changed in 1.0.
        names = vars(_base_client)
        self._raw = (names["httpx2"] if "httpx2" in names else names["httpx"]).Response
        self._end: Callable[[], object] | None = None
        if own is not None:
            close = own.aclose
            loop = background.background_loop()
            self._end = weakref.finalize(
                self, background.close_later, loop, close, background.at_exit(close)
            )

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
        import anthropic

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
        try:
            if self._async:
                response = await make(path, **call)
            else:
                response = await background.in_thread(lambda: make(path, **call))
        except anthropic.APIStatusError as error:
            response = error.response
        except anthropic.APITimeoutError:
            message = f"no answer within timeout={self._timeout:g} s"
            failure = Failure("timeout", message, retryable=True, maybe_paid=True)
            raise Unsent(failure) from None
        except anthropic.APIConnectionError as error:
            # The cause says what broke; its text may name a URL with credentials.
            cause = type(error.__cause__ or error).__name__
            message = f"the client could not reach its server: {cause}. Is it running?"
            raise Unsent(Failure("connection", message, retryable=True)) from None
        except anthropic.AnthropicError as error:
            self._unusable(error)
        return Reply(response.status_code, response.headers, response.content)

    def _unusable(self, error: Exception) -> NoReturn:
        message = f"the client cannot be used: {type(error).__name__}"
        raise Unsent(Failure("invalid_request", message, fatal=True)) from None

    def close(self) -> None:
        """Close the pool that was made here; the client itself stays open."""
        if self._end is not None:
            self._end()

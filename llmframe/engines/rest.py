"""Single blocking requests to a server, for batch APIs: bodies come from files and go into files.

There are a handful for thousands of rows, so each has a connection of its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import IO, Any, Final

from llmframe.engines.background import background_loop
from llmframe.engines.http import _CONNECT, Http, Reply, Unsent

__all__ = ["Rest"]

_PIECE: Final = 1 << 18


class Rest(Http):
    """Requests of any method, from threads that may wait; not from the background loop.

    Args:
        url: Where the API is, for messages and proxies.
        headers: Of every request, the secret ones too.
        timeout: Seconds without a byte from the server. A whole upload may take longer.
    """

    def call(
        self,
        method: str,
        url: str,
        *,
        body: IO[bytes] | None = None,
        into: IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request, once.

        Args:
            method: Such as ``"GET"``.
            url: Where it goes; the headers go with it.
            body: An open file, sent as a stream from its start.
            into: Where a good answer's body goes, as a stream; the reply's own is empty then.
            headers: Further ones.

        Raises:
            Unsent: No answer came, or none to its end.
        """
        coroutine = self._call(method, url, body, into, headers or {})
        return asyncio.run_coroutine_threadsafe(coroutine, background_loop()).result()

    async def _call(
        self,
        method: str,
        url: str,
        body: IO[bytes] | None,
        into: IO[bytes] | None,
        headers: Mapping[str, str],
    ) -> Reply:
        import aiohttp
        from yarl import URL

        options: dict[str, Any] = {"allow_redirects": False}
        if self._proxy:
            options["proxy"] = self._proxy
        if body is not None:
            body.seek(0, 2)
            # Told beforehand: a body in chunks is refused by some gateways.
            options["headers"] = {"Content-Length": str(body.tell())}
            body.seek(0)
            options["data"] = _pieces(body)
        secure = url.startswith("https")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=self._timeout)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context() if secure else True)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector,
                    headers={"Content-Type": "application/json", **self._headers, **headers},
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=timeout,
                ) as session,
                session.request(method, URL(url, encoded=True), **options) as response,
            ):
                if into is None or response.status != 200:
                    return Reply(response.status, response.headers, await response.read())
                async for piece in response.content.iter_chunked(_PIECE):
                    into.write(piece)
                return Reply(response.status, response.headers, b"")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unsent(self._failure(error)) from None


async def _pieces(body: IO[bytes]) -> Any:
    while piece := body.read(_PIECE):
        yield piece

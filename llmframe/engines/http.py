"""One connection pool to one server, for the live engines: aiohttp in the background loop.

Knows proxies, certificates, timeouts and what a broken connection means; nothing of what is
said over it. No header, body or URL with credentials in it ever gets into a message.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import urllib.request
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from llmframe.engines import background
from llmframe.errors import ModelError
from llmframe.results import Failure

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Http", "Reply", "Transport", "Unsent", "is_loopback", "proxy_for", "public_url"]

_CONNECT: Final = 15.0
"""Seconds to reach a server, before one starts to wait for it."""
_KEEP: Final = 4.5
"""Seconds an idle connection is kept: below the 5 s after which uvicorn and Node close theirs,
so that no request goes out on a connection that is just being closed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response, whole. `headers` are looked up in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unsent(Exception):  # noqa: N818 - a verdict that travels, not an error that escapes
    """No response came; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Transport(ABC):
    """What carries a body to the server: `Http`, or a client that the user made."""

    @abstractmethod
    async def post(self, body: bytes) -> Reply:
        """Send one request.

        Raises:
            Unsent: No response came.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; from any thread, as often as you like."""


def public_url(url: str) -> str:
    """The URL without user, password, query and fragment: what may be shown and hashed.

    Examples:
        >>> public_url("https://me:secret@Example.com/v1/?key=1")
        'https://example.com/v1'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme.lower(), _host(parts), parts.path.rstrip("/"), "", ""))


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2].lower()


def is_loopback(host: str | None) -> bool:
    """Whether a host name means this machine."""
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL, or None; never one for this machine.

    ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` count, in either case (and
    the system's settings on macOS and Windows).
    """
    parts = urlsplit(url)
    host = parts.hostname
    if host is None or is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class Http(Transport):
    """A pool of kept-alive connections, made in the background loop when first used.

    There are never more connections than requests in flight: the pool itself sets no limit,
    since a request that waited in it would use up its own timeout. `live.stream` bounds them.

    Args:
        url: Where every request goes.
        headers: Of every request, the secret ones too.
        timeout: Seconds for one request, from sending to the last byte.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        self._url = url
        self._headers = dict(headers)
        self._timeout = timeout
        self._place = public_url(url)
        self._proxy = proxy_for(url)
        if self._proxy and urlsplit(self._proxy).scheme not in {"http", "https"}:
            raise ModelError(
                f"the environment names the proxy {public_url(self._proxy)} for {self._place}; "
                f"only http:// proxies work here. Pass client= with a transport of your own."
            )
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], object] | None = None
        self._post: Callable[..., Any] | None = None
        self._faults: tuple[type[Exception], ...] = ()

    def _open(self, loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
        import aiohttp
        from yarl import URL

        secure = self._url.startswith("https")
        # A context of our own: aiohttp makes its at import, before SSL_CERT_FILE may be set.
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_KEEP,
            ssl=ssl.create_default_context() if secure else True,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            headers={**self._headers, "Content-Type": "application/json"},
            # Replies are small: unpacking them costs more than it saves on the wire.
            skip_auto_headers=("Accept-Encoding",),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=_CONNECT),
        )
        url = URL(self._url, encoded=True)
        # A redirected POST would arrive as a GET, or carry the key to another host.
        options: dict[str, Any] = {"allow_redirects": False}
        if self._proxy:
            options["proxy"] = self._proxy

        def post(body: bytes) -> Any:
            return session.post(url, data=body, **options)

        self._session, self._loop, self._post = session, loop, post
        self._faults = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
        self._end = weakref.finalize(
            self, background.close_later, loop, session.close, background.at_exit(session.close)
        )
        return post

    async def post(self, body: bytes) -> Reply:
        """Send one request; see `Transport.post`."""
        loop = asyncio.get_running_loop()
        post = self._post
        if post is None or self._loop is not loop:  # first use, or a forked child
            post = self._open(loop)
        try:
            async with post(body) as response:
                return Reply(response.status, response.headers, await response.read())
        except self._faults as error:
            raise Unsent(self._failure(error)) from None

    def _failure(self, error: Exception) -> Failure:
        """The verdict on an exception; built from its class, since its text may hold the key."""
        import aiohttp

        place = self._place
        if self._proxy:
            place += f" through the proxy {public_url(self._proxy)} (set by the environment)"
        match error:
            case aiohttp.ConnectionTimeoutError():
                message = f"could not connect to {place} within {_CONNECT:g} s"
                return Failure("timeout", message, retryable=True)
            case TimeoutError():
                message = f"no answer from {place} within timeout={self._timeout:g} s"
                return Failure("timeout", message, retryable=True, maybe_paid=True)
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
                reason = getattr(error, "certificate_error", error)
                reason = getattr(reason, "verify_message", "") or type(reason).__name__
                message = (
                    f"the certificate of {place} is not trusted ({reason}). Set SSL_CERT_FILE "
                    f"to a file with its authority's certificate."
                )
                return Failure("connection", message, fatal=True)
            case aiohttp.ClientHttpProxyError():
                message = f"{place}: the proxy answered {error.status}"
                fatal = error.status in (401, 403, 407)
                return Failure("connection", message, retryable=not fatal, fatal=fatal)
            case aiohttp.ClientConnectorError():
                lookup = isinstance(error.os_error, socket.gaierror)
                reason = "no such host" if lookup else os.strerror(error.errno or 0)
                message = f"cannot connect to {place}: {reason.lower()}. Is the server running?"
                return Failure("connection", message, retryable=True)
            case aiohttp.InvalidURL() | ValueError():
                message = f"{place} cannot be asked: {type(error).__name__} in its URL or a header"
                return Failure("connection", message, fatal=True)
        message = f"the connection to {place} broke: {type(error).__name__}"
        return Failure("connection", message, retryable=True, maybe_paid=True)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        end, self._post = self._end, None
        if end is not None:
            end()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a connection pool does not pickle")

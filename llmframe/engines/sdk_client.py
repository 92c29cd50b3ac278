"""Requests through an SDK client: the user's proxies, certificates, credentials."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from llmframe.engines import background, homes
from llmframe.engines.http import Reply, Transport, Unsent
from llmframe.errors import ModelError
from llmframe.results import Failure

__all__ = ["SdkClient", "seen"]

_seen_in: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Connection pool → the process it was first seen in."""


def seen(client: Any) -> None:
    """A client comes into use: it is of this process, and no forked child speaks on its sockets.

    Two processes on one connection would read each other's answers.
    """
    if (pool := getattr(client, "_client", None)) is not None:
        _seen_in.setdefault(pool, os.getpid())


class SdkClient(Transport):
    """Requests through a client of OpenAI's or Anthropic's SDK, one try each.

    An async client with the SDK's own connection pool gets a pool of its own here, since one
    that was used in a notebook's loop fails in any other. A pool that the user made holds their
    settings and is used as it is, in the loop where it lives (`llmframe.engines.homes`). A
    blocking client has a pool of its own in a forked child.

    Args:
        sdk: The SDK.
        name: Its client class, such as ``"OpenAI"``.
        client: The user's client; it stays theirs and is not closed.
        headers: Further headers of every request.
        timeout: Seconds for one request.
    """

    def __init__(
        self, sdk: ModuleType, name: str, client: Any, headers: Mapping[str, str], timeout: float
    ) -> None:
        self._sdk: Any = sdk
        self._error: type[Exception] = getattr(sdk, f"{name}Error")
        self._async = isinstance(client, getattr(sdk, f"Async{name}"))
        self._headers = dict(headers)
        self._timeout = timeout
        options: dict[str, Any] = {"max_retries": 0, "timeout": timeout}
        own: Any = None
        self._pool = homes.own_pool(client)
        pool = getattr(client, "_client", None)
        if self._async and self._pool is None:
            own = options["http_client"] = sdk.DefaultAsyncHttpxClient()
        elif pool is not None and _seen_in.setdefault(pool, os.getpid()) != os.getpid():
            if type(pool).__name__ != "SyncHttpxClientWrapper":
                raise ModelError(
                    "client= was made before this process was forked, and its connections belong "
                    "to the parent. Make the client, and the engine, in this process."
                )
            options["http_client"] = type(pool)()
        self._client = client.with_options(**options)
        self._end: Callable[[], object] | None = None
        if own is not None:
            close = own.aclose
            loop = background.background_loop()
            self._end = weakref.finalize(
                self, background.close_later, loop, close, background.at_exit(close)
            )

    async def _reply(self, call: Callable[[], Any]) -> Reply:
        """What the server says to a call of the client, be it an answer or an error."""
        sdk = self._sdk
        try:
            if self._async:
                answer = await homes.in_home(self._pool, call)
            else:
                answer = await background.in_thread(call)
            response = getattr(answer, "http_response", answer)
        except sdk.APIStatusError as error:
            response = error.response
        except sdk.APITimeoutError:
            message = f"no answer within timeout={self._timeout:g} s"
            failure = Failure("timeout", message, retryable=True, maybe_paid=True)
            raise Unsent(failure) from None
        except sdk.APIConnectionError as error:
            # The cause says what broke; its text may name a URL with credentials.
            cause = type(error.__cause__ or error).__name__
            message = f"the client could not reach its server: {cause}. Is it running?"
            raise Unsent(Failure("connection", message, retryable=True)) from None
        except homes.HomeLostError:
            message = (
                "the event loop that the async client passed as client= was used in has ended, "
                "and its connections with it. Make a new client in the loop that awaits the call, "
                "or pass one that is not async"
            )
            failure = Failure("connection", message, fatal=True, maybe_paid=True)
            raise Unsent(failure) from None
        except self._error as error:
            message = f"the client cannot be used: {type(error).__name__}"
            raise Unsent(Failure("invalid_request", message, fatal=True)) from None
        return Reply(response.status_code, response.headers, response.content)

    def close(self) -> None:
        """Close the pool that was made here; the client itself stays open."""
        if self._end is not None:
            self._end()

"""Requests through an SDK client that the user made: their proxies, certificates, credentials."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from llmframe.engines import background
from llmframe.engines.http import Reply, Transport, Unsent
from llmframe.results import Failure

__all__ = ["Client"]


class Client(Transport):
    """Requests through `openai.OpenAI` or `openai.AsyncOpenAI`, one try each.

    An async client with the SDK's own connection pool gets a pool of its own here, since one
    that was used in a notebook's loop fails in any other. With a pool that the user made it is
    used as it is, in the background loop.

    Args:
        client: The user's client; it stays theirs and is not closed.
        headers: Further headers of every request.
        timeout: Seconds for one request.
        endpoint: ``"/v1/chat/completions"`` or ``"/v1/responses"``.
    """

    def __init__(
        self,
        client: Any,
        headers: Mapping[str, str],
        timeout: float,
        endpoint: str = "/v1/chat/completions",
    ) -> None:
        import openai

        self._async = isinstance(client, openai.AsyncOpenAI)
        self._timeout = timeout
        self._headers = dict(headers)
        options: dict[str, Any] = {"max_retries": 0, "timeout": timeout}
        own: Any = None
        pool = getattr(client, "_client", None)
        if self._async and type(pool).__name__ == "AsyncHttpxClientWrapper":
            own = options["http_client"] = openai.DefaultAsyncHttpxClient()
        sdk = client.with_options(**options)
        responses = endpoint == "/v1/responses"
        self._asked = "input" if responses else "messages"
        self._create = (
            sdk.responses if responses else sdk.chat.completions
        ).with_raw_response.create
        self._end: Callable[[], object] | None = None
        if own is not None:
            close = own.aclose
            loop = background.background_loop()
            self._end = weakref.finalize(
                self, background.close_later, loop, close, background.at_exit(close)
            )

    async def post(self, body: bytes) -> Reply:
        """Send one request; see `Transport.post`."""
        import openai

        fields = orjson.loads(body)
        call = {
            "model": fields.pop("model"),
            self._asked: fields.pop(self._asked),
            "extra_body": fields,
            "extra_headers": self._headers or None,
        }
        try:
            if self._async:
                raw = await self._create(**call)
            else:
                raw = await background.in_thread(lambda: self._create(**call))
            response = raw.http_response
        except openai.APIStatusError as error:
            response = error.response
        except openai.APITimeoutError:
            message = f"no answer within timeout={self._timeout:g} s"
            failure = Failure("timeout", message, retryable=True, maybe_paid=True)
            raise Unsent(failure) from None
        except openai.APIConnectionError as error:
            # The cause says what broke; its text may name a URL with credentials.
            cause = type(error.__cause__ or error).__name__
            message = f"the client could not reach its server: {cause}. Is it running?"
            raise Unsent(Failure("connection", message, retryable=True)) from None
        except openai.OpenAIError as error:
            message = f"the client cannot be used: {type(error).__name__}"
            raise Unsent(Failure("invalid_request", message, fatal=True)) from None
        return Reply(response.status_code, response.headers, response.content)

    def close(self) -> None:
        """Close the pool that was made here; the client itself stays open."""
        if self._end is not None:
            self._end()

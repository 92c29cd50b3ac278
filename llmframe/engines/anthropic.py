"""Anthropic: Messages live, and Message Batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from llmframe.engines.anthropic_batch import MAX_BYTES, MAX_REQUESTS, Batches, Caller
from llmframe.engines.anthropic_bodies import (
    DEFAULT_LIMIT,
    Bodies,
    Features,
    refused,
    reply_most,
)
from llmframe.engines.anthropic_settings import settings
from llmframe.engines.anthropic_wire import from_wire, limit_headers
from llmframe.engines.base import Batch, BatchStatus, Line
from llmframe.engines.http import Transport
from llmframe.engines.sdk_settings import Settings
from llmframe.engines.server import ServerEngine
from llmframe.errors import ModelError
from llmframe.requests import Request
from llmframe.results import Result

__all__ = ["Anthropic", "AnthropicBatch"]

_HOUR: Final = "1h"
"""Batches run for longer than the five minutes for which a cache lives by default."""


class Anthropic(ServerEngine[Features]):
    """Anthropic's models: live, many requests at once, or with ``batch=True`` at half the price.

    No temperature is sent unless you give one, since the API refuses it by default; ``seed=`` is
    not in the API. The constant start of the prompt is marked for the prompt cache.

    Args:
        model: The model's name, such as ``"claude-haiku-4-5"``.
        base_url: Where the API is, without ``/v1``; else ``ANTHROPIC_BASE_URL``, else Anthropic.
        api_key: The key; else ``ANTHROPIC_API_KEY`` and what else the SDK looks up. A server of
            your own needs none.
        batch: Message Batches in place of live requests: half the price, answers within a day.
        timeout: Seconds for one request; waiting for its turn does not count.
        headers: Further headers of every request, such as ``anthropic-beta``.
        concurrency: Requests in flight at once (32).
        revision: Free text that goes into every key: for weights that change behind one name.
        client: An `anthropic.Anthropic` or `anthropic.AsyncAnthropic` of your own, through which
            every request goes. The SDK holds a whole batch in memory.
        max_batch_requests: Requests in one batch, at most (100,000).
        max_batch_bytes: Bytes in one batch, at most (240 MB).
        cleanup: Delete a batch at the provider once the store has a result of each of its rows;
            where one has none, it stays.

    Raises:
        ModelError: No key, no SDK, or a value that cannot be used; nothing was sent.

    Examples:
        >>> engine = Anthropic("claude-haiku-4-5", base_url="http://127.0.0.1:8000")
        >>> engine
        Anthropic('claude-haiku-4-5', base_url='http://127.0.0.1:8000')
        >>> engine.close()
    """

    name = "anthropic"
    _title = "Anthropic"
    _example = "claude-haiku-4-5"
    _usual_endpoint = "/v1/messages"
    _adaptations = 5
    _batch_size = (MAX_REQUESTS, MAX_BYTES)
    _largest_batch = (MAX_REQUESTS, 256_000_000)
    _gather = staticmethod(settings)
    _read = staticmethod(from_wire)
    _refused = staticmethod(refused)
    _limit_headers = staticmethod(limit_headers)

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        batch: bool = False,
        timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
        concurrency: int | None = None,
        revision: str = "",
        client: Any = None,
        max_batch_requests: int | None = None,
        max_batch_bytes: int | None = None,
        cleanup: bool = False,
    ) -> None:
        self.model, self.base_url = model, ""  # what `repr` needs, should anything be raised
        found = settings(client, base_url, api_key, headers)
        # First, since debuggers and notebooks print the locals of a frame that raised.
        del base_url, api_key, headers
        if batch and type(self) is Anthropic:
            # One name and one signature for both lanes: what a user changes is `batch=` alone.
            self.__class__ = AnthropicBatch
        super().__init__(
            model,
            found,
            endpoint="/v1/messages",
            batch=batch,
            timeout=timeout,
            concurrency=concurrency,
            revision=revision,
            max_batch_requests=max_batch_requests,
            max_batch_bytes=max_batch_bytes,
            cleanup=cleanup,
        )
        # The API takes no request without a limit.
        self.limits = replace(
            self.limits,
            seed=False,
            temperature=False,
            reply=self._features.limit,
            reply_most=reply_most(model),
        )

    def _start(self, found: Settings, features: Features) -> None:
        super()._start(found, features)
        self._bodies = Bodies(self.model)

    def batched(self) -> AnthropicBatch:
        """The same engine with ``batch=True``.

        Raises:
            ModelError: It is of a class of the user's own.
        """
        if type(self) is not Anthropic:
            raise ModelError(
                f"{type(self).__name__} has no batches. Pass lf.Anthropic(…, batch=True)."
            )
        return self._as(AnthropicBatch, batch=True)

    def _guess(self, found: Settings) -> Features:
        return Features(limit=min(DEFAULT_LIMIT, reply_most(self.model) or DEFAULT_LIMIT))

    def _through(self, client: Any) -> Transport:
        from llmframe.engines.anthropic_client import Client

        return Client(client, self._settings.headers, self.timeout)

    def marked(self, request: Request) -> str:
        """The constant start of a prompt that is marked for the prompt cache; may be empty."""
        return self._bodies.marked(request, self._features)

    def _encode(self, request: Request, features: Features) -> bytes:
        return self._bodies.encode(request, features)

    def _lost(self, seen: Features, learned: Features) -> str | None:
        if not seen.output_format or learned.output_format:
            return None
        return (
            f"{self.model} at {self.base_url} takes no output_config.format: the schema goes "
            f"into the prompt, and replies are checked here."
        )

    def accepts(self, schema: Mapping[str, Any]) -> None:
        """Look whether a schema can be put on the wire.

        Raises:
            SchemaError: It cannot; nothing was sent.
        """
        from llmframe.schemas import dialects

        dialects.anthropic(schema)


class AnthropicBatch(Anthropic):
    """Anthropic with ``batch=True``: a `BatchEngine`, and live too where that is wanted."""

    distinct_counts = True  # the list shows no tag

    def _start(self, found: Settings, features: Features) -> None:
        super()._start(found, features)
        self._caller: Caller | None = None
        self._batches = Batches(self._calls, found.url, self._encoded, self.scrub)

    def _encoded(self, request: Request) -> bytes:
        return self._bodies.encode(request, self._features, ttl=_HOUR)

    def _calls(self) -> Caller:
        self._check()
        found = self._settings
        if found.client is not None:
            return cast(Caller, self._open())  # the user's client carries both
        if self._caller is None:
            from llmframe.engines.rest import Rest

            self._caller = Rest(found.root, found.headers, self.timeout)
        return self._caller

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, batch=True)"

    @property
    def account(self) -> str:
        """The organisation, once an answer has named it; else empty."""
        return self._batches.account

    def live(self) -> Anthropic:
        """The same engine with ``batch=False``.

        Raises:
            ModelError: It is of a class of the user's own.
        """
        if type(self) is not AnthropicBatch:
            raise ModelError(f"{type(self).__name__} answers in batches. Leave batch=False out.")
        return self._as(Anthropic, batch=False)

    def probe(self, request: Request) -> Result | None:
        """The same request live; what it teaches holds for the batches too."""
        return self._probed(request)

    def size(self, request: Request) -> int:
        """Encoded bytes of the request's line."""
        return self._batches.size(request)

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        """Create a batch; see `Batches.submit`."""
        return self._batches.submit(lines, tag, note)

    def find(self, tag: str, notes: Mapping[str, str], count: int) -> list[Batch]:
        """Batches that may be this intent's; see `Batches.find`."""
        return self._batches.find(tag, notes, count)

    def poll(self, batch: Batch) -> BatchStatus:
        """Where the batch stands; see `Batches.poll`."""
        return self._batches.poll(batch)

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        """Results of a batch that has ended; see `Batches.fetch`."""
        return self._batches.fetch(batch)

    def cancel(self, batch: Batch) -> None:
        """Ask the provider to stop; see `Batches.cancel`."""
        self._batches.cancel(batch)

    def delete(self, batch: Batch) -> None:
        """Delete the batch at the provider; see `Batches.delete`."""
        self._batches.delete(batch)

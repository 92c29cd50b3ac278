"""Anthropic: Messages live, and Message Batches.

The `anthropic` SDK configures (environment, key, base_url, API version); the hot path is aiohttp
and orjson, since the SDK's own request path costs ten times the wire. A client object that the
user hands in is used as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from llmframe.engines import live
from llmframe.engines.anthropic_batch import MAX_BYTES, MAX_REQUESTS, Batches, Caller
from llmframe.engines.anthropic_bodies import Bodies, Features, refused
from llmframe.engines.anthropic_settings import Settings, settings
from llmframe.engines.anthropic_wire import from_wire, limit_headers
from llmframe.engines.base import Batch, BatchStatus, Control, Limits, Line, Source
from llmframe.engines.http import Http, Transport, Unsent
from llmframe.engines.limiter import Limiter, Outcome
from llmframe.engines.redaction import scrub
from llmframe.errors import ModelError
from llmframe.requests import Request
from llmframe.results import Failure, Result

__all__ = ["Anthropic", "AnthropicBatch"]

_log = logging.getLogger("llmframe")

_MESSAGES: Final = "/v1/messages"
_ADAPTATIONS: Final = 5
"""Times that one request is changed to what its server takes: each of `Features` once."""
_HOUR: Final = "1h"
"""Batches run for longer than the five minutes for which a cache lives by default."""


class Anthropic:
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
        cleanup: Delete a batch at the provider after a verified join.

    Raises:
        ModelError: No key, no SDK, or a value that cannot be used; nothing was sent.

    Examples:
        >>> engine = Anthropic("claude-haiku-4-5", base_url="http://127.0.0.1:8000")
        >>> engine
        Anthropic('claude-haiku-4-5', base_url='http://127.0.0.1:8000')
        >>> engine.close()
    """

    name = "anthropic"

    def __new__(cls, *args: Any, batch: bool = False, **options: Any) -> Anthropic:
        """An engine, or with `batch` a batch engine."""
        return object.__new__(AnthropicBatch if batch and cls is Anthropic else cls)

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
        if not model or not isinstance(model, str):
            raise ModelError(f"model={model!r}: expected a name, such as 'claude-haiku-4-5'.")
        if not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
            raise ModelError(f"timeout={timeout!r}: expected seconds above 0, such as 600.")
        if concurrency is not None and concurrency < 1:
            raise ModelError(f"concurrency={concurrency!r}: expected a number of requests above 0.")
        for name, value, most in (
            ("max_batch_requests", max_batch_requests, MAX_REQUESTS),
            ("max_batch_bytes", max_batch_bytes, 256_000_000),
        ):
            if value is not None and not 1 <= value <= most:
                raise ModelError(f"{name}={value!r}: expected 1 to {most:,}, Anthropic's limit.")
        self.timeout = float(timeout)
        self.revision = revision
        self.cleanup = cleanup
        self.limits = Limits(
            concurrency=int(concurrency or Limits().concurrency),
            max_requests=int(max_batch_requests or MAX_REQUESTS) if batch else None,
            max_bytes=int(max_batch_bytes or MAX_BYTES) if batch else None,
        )
        self._start(found, Features())
        self._check()

    def _check(self) -> None:
        if self._settings.fault is not None:
            raise ModelError(self._settings.fault)
        if self._settings.official and not self._settings.has_key:
            raise ModelError(
                "no API key for Anthropic. Set ANTHROPIC_API_KEY, or pass "
                "lf.Anthropic(model, api_key=…) (a key does not travel in a pickle); for a server "
                "of your own, pass base_url=."
            )

    def _start(self, found: Settings, features: Features) -> None:
        self._settings = found
        self.base_url = found.base_url
        self.limiter = Limiter()
        self._features = features
        self._bodies = Bodies(self.model)
        self._notices: list[str] = []
        self._said: set[str] = set()
        self._transport: Transport | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r}, base_url={self.base_url!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but keys, headers and what is open."""
        return {
            "model": self.model,
            "timeout": self.timeout,
            "revision": self.revision,
            "cleanup": self.cleanup,
            "limits": self.limits,
            "base_url": self.base_url,
            "features": self._features,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As made with the same arguments here: the key is read from this environment."""
        features = state.pop("features")
        base_url = state.pop("base_url")
        self.__dict__.update(state)
        self._start(settings(None, base_url, None, None), features)

    def identity(self) -> Mapping[str, str]:
        """What this engine adds to a key, live and in batches alike; never a secret."""
        return {
            "provider": self.name,
            "base_url": self.base_url,
            "endpoint": _MESSAGES,
            "model": self.model,
            "revision": self.revision,
        }

    def scrub(self, text: str) -> str:
        """The text with every secret of this engine, and all that looks like one, taken out."""
        return scrub(text, self._settings.secrets)

    def accepts(self, schema: Mapping[str, Any]) -> None:
        """Look whether a schema can be put on the wire.

        Raises:
            SchemaError: It cannot; nothing was sent.
        """
        from llmframe.schemas import dialects

        dialects.anthropic(schema)

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives live, as `llmframe.engines.live.stream` does."""
        self._check()
        self._open()
        with contextlib.closing(live.stream(source, control, self)) as results:
            for batch in results:
                self._speak()
                yield batch

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with self._opening:
            transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def tokens(self, request: Request) -> int:
        """Estimate of a request's tokens, as Anthropic counts them against its limit."""
        characters = sum(len(str(message["content"])) for message in request.messages)
        return characters // 4 + (request.sampling.max_tokens or 16)

    async def answer(self, request: Request) -> Result:
        """Send one request, adapted to what the server takes; runs in the background loop."""
        limiter = self.limiter
        for _ in range(_ADAPTATIONS):
            features = self._features
            try:
                body = self._bodies.encode(request, features)
            except ValueError as error:
                failure = Failure("invalid_request", self.scrub(str(error)))
                return Result(request.key, failure=failure)
            transport = self._transport or self._open()
            ticket = limiter.start(self.tokens(request) if limiter.counts_tokens else 0)
            outcome: Outcome = "other"
            headers: Mapping[str, str] | None = None
            started = time.perf_counter()
            try:
                reply = await transport.post(body)
                headers = limit_headers(reply.headers)
                result = from_wire(
                    request,
                    reply.status,
                    reply.headers,
                    reply.body,
                    latency=time.perf_counter() - started,
                    scrub=self.scrub,
                )
                outcome = _outcome(result.failure)
            except Unsent as error:
                outcome = "failed"
                latency = time.perf_counter() - started
                return Result(request.key, failure=error.failure, latency=latency)
            finally:
                limiter.finish(ticket, outcome, headers)
            failure_ = result.failure
            learned = refused(failure_, request, features) if failure_ is not None else None
            if learned is None:
                return result
            self._learn(features, learned)
        return result

    def _open(self) -> Transport:
        with self._opening:
            if self._transport is None:
                self._transport = self._made()
            return self._transport

    def _made(self) -> Transport:
        found = self._settings
        if found.client is None:
            return Http(found.url(_MESSAGES), found.headers, self.timeout)
        from llmframe.engines.anthropic_client import Client

        return Client(found.client, found.headers, self.timeout)

    def _learn(self, seen: Features, learned: Features) -> None:
        """Keep what a refusal taught; of a burst of them, only the first changes anything."""
        if self._features is not seen:
            return
        self._features = learned
        if seen.output_format and not learned.output_format:
            self._notice(
                "output_format",
                f"{self.model} at {self.base_url} takes no output_config.format: the schema goes "
                f"into the prompt, and replies are checked here.",
            )

    def _notice(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            self._notices.append(text)

    def _speak(self) -> None:
        """Warn in the driver's thread: in the loop, ``-W error`` would break a worker."""
        while self._notices:
            text = self._notices.pop(0)
            try:
                warnings.warn(text, UserWarning, stacklevel=3)
            except UserWarning:  # a notice must not end a paid job
                _log.warning(text)


class AnthropicBatch(Anthropic):
    """Anthropic with ``batch=True``: a `BatchEngine`, and live too where that is wanted."""

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
        return f"Anthropic({self.model!r}, base_url={self.base_url!r}, batch=True)"

    @property
    def account(self) -> str:
        """The organisation, once an answer has named it; else empty."""
        return self._batches.account

    def probe(self, request: Request) -> Result | None:
        """The same request live; what it teaches holds for the batches too."""
        self._check()
        future = asyncio.run_coroutine_threadsafe(self.answer(request), live.background_loop())
        result = future.result()
        self._speak()
        return result

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


def _outcome(failure: Failure | None) -> Outcome:
    if failure is None:
        return "ok"
    if failure.kind == "rate_limited":
        return "other" if failure.fatal else "limited"
    return "failed" if failure.kind == "provider_error" else "other"

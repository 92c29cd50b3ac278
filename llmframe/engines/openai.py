"""OpenAI, and every server that speaks its protocol: live, and as provider batches.

The `openai` SDK configures (environment, key, base_url, organisation, project); the hot path is
aiohttp and orjson, since the SDK's own request path costs ten times the wire. A client object
that the user hands in is used as it is.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from llmframe.engines import live
from llmframe.engines.base import Control, Limits, Source
from llmframe.engines.http import Http, Transport, Unsent
from llmframe.engines.limiter import Limiter, Outcome
from llmframe.engines.openai_batch import MAX_BYTES, MAX_REQUESTS, BatchCalls
from llmframe.engines.openai_bodies import Bodies, Features, features_of, refused
from llmframe.engines.openai_settings import Settings, scrub, settings
from llmframe.engines.openai_wire import from_wire
from llmframe.errors import ModelError
from llmframe.requests import Request
from llmframe.results import Failure, Result

__all__ = ["OpenAI", "OpenAIBatch"]

_log = logging.getLogger("llmframe")

_CHAT: Final = "/v1/chat/completions"
_RESPONSES: Final = "/v1/responses"
_ADAPTATIONS: Final = 6
"""Times that one request is changed to what its server takes: each of `Features` once."""


class OpenAI:
    """An OpenAI-compatible server, asked live, many requests at once.

    Args:
        model: The model's name at the server, such as ``"gpt-4.1-mini"``.
        base_url: Where the server is, ``/v1`` included; else ``OPENAI_BASE_URL``, else OpenAI.
        api_key: The key; else ``OPENAI_API_KEY``. A server of your own needs none.
        batch: Provider batches in place of live requests: an `OpenAIBatch`.
        timeout: Seconds for one request; waiting for its turn does not count.
        headers: Further headers of every request.
        concurrency: Requests in flight at once (32).
        endpoint: Path of the API: ``"/v1/chat/completions"`` or ``"/v1/responses"``.
        revision: Free text that goes into every key: for weights that change behind one name.
        client: An `openai.OpenAI` or `openai.AsyncOpenAI` of your own, through which every
            request goes.
        max_batch_requests: Requests in one provider batch, at most (50,000, as OpenAI takes).
        max_batch_bytes: Bytes in one provider batch, at most (200 MB, as OpenAI takes).
        cleanup: Delete a batch's files at the provider after a verified join.

    Raises:
        ModelError: No key, or a value that cannot be used; nothing was sent.

    Examples:
        >>> engine = OpenAI("my-model", base_url="http://127.0.0.1:8000/v1")
        >>> engine
        OpenAI('my-model', base_url='http://127.0.0.1:8000/v1')
        >>> engine.close()
    """

    name = "openai"

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
        endpoint: str = _CHAT,
        revision: str = "",
        client: Any = None,
        max_batch_requests: int | None = None,
        max_batch_bytes: int | None = None,
        cleanup: bool = False,
    ) -> None:
        found = settings(endpoint, client, base_url, api_key, headers)
        # First, since debuggers and notebooks print the locals of a frame that raised.
        del base_url, api_key, headers
        if not model or not isinstance(model, str):
            raise ModelError(f"model={model!r}: expected a name, such as 'gpt-4.1-mini'.")
        if endpoint not in {_CHAT, _RESPONSES}:
            raise ModelError(f"endpoint={endpoint!r}: expected {_CHAT!r} or {_RESPONSES!r}.")
        for name, most in (("requests", max_batch_requests), ("bytes", max_batch_bytes)):
            if most is not None and most < 1:
                raise ModelError(f"max_batch_{name}={most!r}: expected a number above 0.")
        if not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
            raise ModelError(f"timeout={timeout!r}: expected seconds above 0, such as 600.")
        if concurrency is not None and concurrency < 1:
            raise ModelError(f"concurrency={concurrency!r}: expected a number of requests above 0.")
        self.model = model
        self.timeout = float(timeout)
        self.endpoint = endpoint
        self.revision = revision
        self.cleanup = cleanup
        self.limits = Limits(
            concurrency=int(concurrency or Limits().concurrency),
            choices=endpoint == _CHAT and not batch,
            max_requests=max_batch_requests or (MAX_REQUESTS if batch else None),
            max_bytes=max_batch_bytes or (MAX_BYTES if batch else None),
        )
        self._client = client
        if batch:
            # One name and one signature for both lanes: what a user changes is `batch=` alone.
            self.__class__ = OpenAIBatch
        self._start(found, features_of(model, found.official))
        self._check()

    def _check(self) -> None:
        if self._settings.fault is not None:
            raise ModelError(self._settings.fault)
        if self.official and not self._settings.has_key:
            raise ModelError(
                "no API key for OpenAI. Set OPENAI_API_KEY, or pass lf.OpenAI(model, api_key=…) "
                "(a key does not travel in a pickle); for a server of your own, pass base_url=."
            )

    def _start(self, found: Settings, features: Features) -> None:
        self._settings = found
        self.base_url = found.base_url
        self.official = found.official
        self.limiter = Limiter()
        if self.endpoint == _RESPONSES:
            features = replace(
                features, limit="max_output_tokens", limit_settled=True, top_logprobs=0
            )
        self._features = features
        self._bodies = Bodies(self.model, responses=self.endpoint == _RESPONSES)
        self._notices: list[str] = []
        self._said: set[str] = set()
        self._transport: Transport | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"OpenAI({self.model!r}, base_url={self.base_url!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but keys, headers and what is open."""
        return {
            "model": self.model,
            "timeout": self.timeout,
            "endpoint": self.endpoint,
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
        self._client = None
        self._start(settings(self.endpoint, None, base_url, None, None), features)

    def identity(self) -> Mapping[str, str]:
        """What this engine adds to a key: the server without user or query, never a secret."""
        return {
            "provider": self.name,
            "base_url": self.base_url,
            "endpoint": self.endpoint,
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

        dialects.openai_strict(schema)

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives, as `llmframe.engines.live.stream` does."""
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
        """Estimate of a request's tokens, as OpenAI counts them against its limit."""
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
                headers = reply.headers
                result = from_wire(
                    request,
                    reply.status,
                    headers,
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
                self._look_at(request, result, reply.body, features)
                return result
            self._learn(features, learned)
        return result

    def _open(self) -> Transport:
        with self._opening:
            if self._transport is None:
                if self._client is None:
                    self._transport = Http(self._settings.url, self._settings.headers, self.timeout)
                else:
                    from llmframe.engines.openai_client import Client

                    self._transport = Client(
                        self._client, self._settings.headers, self.timeout, self.endpoint
                    )
            return self._transport

    def _look_at(self, request: Request, result: Result, body: bytes, features: Features) -> None:
        """Learn from an answer what no error says."""
        if (
            request.sampling.temperature is None
            and not features.temperature
            and "temperature" not in self._said
        ):
            self._notice(
                "temperature",
                f"{self.model} takes no temperature=0, so none is sent: the same call may get "
                f"other answers another time.",
            )
        if (
            request.choices is not None
            and features.top_logprobs
            and result.failure is None
            and b'"top_logprobs"' not in body
        ):
            self._learn(features, replace(features, top_logprobs=0))

    def _learn(self, seen: Features, learned: Features) -> None:
        """Keep what a refusal taught; of a burst of them, only the first changes anything."""
        if self._features is not seen:
            return
        self._features = learned
        if seen.response_format and not learned.response_format:
            self._notice(
                "response_format",
                f"{self.base_url} refuses response_format for {self.model}: the schema goes into "
                f"the prompt, and replies are checked here.",
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


class OpenAIBatch(OpenAI, BatchCalls):
    """OpenAI's Batch API, or that of a service that imitates it: what ``batch=True`` makes.

    Half the price, within a day. Its keys are those of the live engine, which it is too:
    `probe` and `stream` ask live.

    Examples:
        >>> engine = OpenAI("my-model", base_url="http://127.0.0.1:8000/v1", batch=True)
        >>> engine
        OpenAI('my-model', base_url='http://127.0.0.1:8000/v1', batch=True)
        >>> engine.limits.max_requests, engine.limits.max_bytes
        (50000, 200000000)
    """

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, batch=True)"

    def _check(self) -> None:
        super()._check()
        if self._client is not None:
            import openai

            if not isinstance(self._client, openai.OpenAI):
                raise ModelError("batch=True takes an openai.OpenAI as client=, not an async one.")

    def _start(self, found: Settings, features: Features) -> None:
        super()._start(found, features)
        self._begin()

    def probe(self, request: Request) -> Result | None:
        """As `BatchCalls.probe`; warns of what it taught."""
        result = super().probe(request)
        self._speak()
        return result

    def _encoded(self, request: Request) -> bytes:
        return self._bodies.encode(request, self._features)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        super().close()
        self._end()


def _outcome(failure: Failure | None) -> Outcome:
    if failure is None:
        return "ok"
    if failure.kind == "rate_limited":
        return "other" if failure.fatal else "limited"
    return "failed" if failure.kind == "provider_error" else "other"

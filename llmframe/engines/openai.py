"""OpenAI, and every server that speaks its protocol: live chat completions.

The `openai` SDK configures (environment, key, base_url, organisation, project); the hot path is
aiohttp and orjson, since the SDK's own request path costs ten times the wire. A client object
that the user hands in is used as it is.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from llmframe.engines import live
from llmframe.engines.base import Control, Limits, Source
from llmframe.engines.http import Http, Transport, Unsent, public_url
from llmframe.engines.limiter import Limiter, Outcome
from llmframe.engines.openai_bodies import Bodies, Features, features_of, refused
from llmframe.engines.openai_wire import from_wire
from llmframe.errors import ModelError
from llmframe.requests import Request
from llmframe.results import Failure, Result

__all__ = ["OpenAI"]

_log = logging.getLogger("llmframe")

_CHAT: Final = "/v1/chat/completions"
_NO_KEY: Final = "none-needed"
_ADAPTATIONS: Final = 6
"""Times that one request is changed to what its server takes: each of `Features` once."""
_importing = threading.Lock()
_SECRET: Final = re.compile(r"\b(sk-|Bearer\s+)[^\s'\",;]+", re.IGNORECASE)
_SECRET_NAMES: Final = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)


class OpenAI:
    """An OpenAI-compatible server, asked live, many requests at once.

    Args:
        model: The model's name at the server, such as ``"gpt-4.1-mini"``.
        base_url: Where the server is, ``/v1`` included; else ``OPENAI_BASE_URL``, else OpenAI.
        api_key: The key; else ``OPENAI_API_KEY``. A server of your own needs none.
        batch: Provider batches in place of live requests.
        timeout: Seconds for one request; waiting for its turn does not count.
        headers: Further headers of every request.
        concurrency: Requests in flight at once (32).
        endpoint: Path of the API; ``"/v1/chat/completions"``.
        revision: Free text that goes into every key: for weights that change behind one name.
        client: An `openai.OpenAI` or `openai.AsyncOpenAI` of your own, through which every
            request goes.
        max_batch_requests: Requests in one provider batch, at most.
        max_batch_bytes: Bytes in one provider batch, at most.
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
        if not model or not isinstance(model, str):
            raise ModelError(f"model={model!r}: expected a name, such as 'gpt-4.1-mini'.")
        if batch:
            raise ModelError(
                "batch=True: OpenAI's Batch API is not in this version. Leave it out to run live."
            )
        if endpoint != _CHAT:
            raise ModelError(f"endpoint={endpoint!r} is not in this version; it takes {_CHAT!r}.")
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
            choices=True,
            max_requests=max_batch_requests,
            max_bytes=max_batch_bytes,
        )
        self._client = client
        self._settings(base_url, api_key, headers)
        self._check_key()
        self._start()

    def _check_key(self) -> None:
        if self.official and not self._has_key:
            raise ModelError(
                "no API key for OpenAI. Set OPENAI_API_KEY, or pass lf.OpenAI(model, api_key=…) "
                "(a key does not travel in a pickle); for a server of your own, pass base_url=."
            )

    def _settings(
        self, base_url: str | None, api_key: str | None, headers: Mapping[str, str] | None
    ) -> None:
        """Where requests go and what they carry, as the SDK would have it."""
        user, base_url = _split_user(base_url)
        sdk, self._has_key = _sdk_client(self._client, base_url, api_key)
        self.base_url = public_url(str(sdk.base_url))
        parts = urlsplit(str(sdk.base_url))
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ModelError(
                f"base_url={self.base_url!r}: expected http:// or https:// and a host."
            )
        self.official = f".{parts.hostname}".endswith(".api.openai.com")  # regions too
        path = parts.path.rstrip("/") + self.endpoint.removeprefix("/v1")
        self._url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        sent: dict[str, str] = {}
        if self._client is None:
            # What the SDK says of itself and of the platform is left out: it costs time per row.
            sent = {
                name: str(value)
                for name, value in sdk.default_headers.items()
                if name.lower() not in _OF_THE_SDK and not name.lower().startswith("x-stainless")
            }
            sent |= sdk.auth_headers
            if user and not self._has_key:
                sent["Authorization"] = "Basic " + b64encode(user.encode()).decode()
            sdk.close()
        for name, value in (headers or {}).items():
            sent = {known: v for known, v in sent.items() if known.lower() != name.lower()}
            sent[name] = str(value)
        for name, value in sent.items():
            if not value.isascii() or re.search(r"[\r\n\0]", value):
                raise ModelError(
                    f"the header {name!r} holds a line break or a non-ASCII character."
                )
        self._headers = sent
        key = getattr(self._client, "api_key", None)
        own = [str(value) for value in (headers or {}).values()]
        self._secrets = _secrets(sent, user, key if isinstance(key, str) else "", own)

    def _start(self) -> None:
        self.limiter = Limiter()
        self._features = features_of(self.model, self.official)
        self._bodies = Bodies(self.model)
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
        self.__dict__.update(state)
        self._client = None
        self._settings(self.base_url, None, None)
        self._start()
        self._features = features

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
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SECRET.sub(r"\1***", text)

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives, as `llmframe.engines.live.stream` does."""
        self._check_key()
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
                    self._transport = Http(self._url, self._headers, self.timeout)
                else:
                    from llmframe.engines.openai_client import Client

                    self._transport = Client(self._client, self._headers, self.timeout)
            return self._transport

    def _look_at(self, request: Request, result: Result, body: bytes, features: Features) -> None:
        """Learn from an answer what no error says."""
        if request.sampling.temperature is None and not features.temperature:
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


_OF_THE_SDK: Final = {"accept", "content-type", "user-agent"}


def _outcome(failure: Failure | None) -> Outcome:
    if failure is None:
        return "ok"
    if failure.kind == "rate_limited":
        return "other" if failure.fatal else "limited"
    return "failed" if failure.kind == "provider_error" else "other"


def _split_user(base_url: str | None) -> tuple[str, str | None]:
    """``user:password`` of a URL, and the URL without."""
    if base_url is None:
        return "", None
    parts = urlsplit(base_url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return "", base_url
    return unquote(user), urlunsplit((parts.scheme, host, parts.path, parts.query, ""))


def _secrets(
    headers: Mapping[str, str], user: str, key: str, own: Sequence[str]
) -> tuple[str, ...]:
    """What must never be shown: keys, telling headers and the user's own, longest first."""
    found = {user, user.partition(":")[2], key, *own}
    for name, value in headers.items():
        if _SECRET_NAMES.search(name):
            found |= {value, value.rpartition(" ")[2]}
    # A short one is no secret, and taking "a" out of every message would say more than it hides.
    return tuple(sorted((one for one in found if len(one) >= 6 and one != _NO_KEY), key=len)[::-1])


def _sdk_client(client: Any, base_url: str | None, api_key: str | None) -> tuple[Any, bool]:
    """An SDK client for what it knows: the user's own, or one from arguments and environment."""
    # Two threads that import the SDK at once can see it half loaded.
    with _importing:
        import openai

        make: Callable[..., Any] = openai.OpenAI
    if client is not None:
        if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
            kind = type(client).__name__
            raise ModelError(f"client={kind}: expected an openai.OpenAI or openai.AsyncOpenAI.")
        return client, True
    if api_key is None or api_key.strip():
        key = None if api_key is None else api_key.strip()
        with contextlib.suppress(openai.OpenAIError):
            sdk = make(api_key=key, base_url=base_url, max_retries=0)
            if sdk.api_key:
                return sdk, True
    return make(api_key=_NO_KEY, base_url=base_url, max_retries=0), False

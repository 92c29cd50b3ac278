"""What the live engines of HTTP APIs share: from their arguments to one request and its answer.

The provider's SDK configures (environment, key, base_url); the hot path is aiohttp and orjson,
since an SDK's own request path costs ten times the wire. A client object that the user hands in
is used as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, asdict, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from llmframe.engines import homes, live, sdk_client
from llmframe.engines.arguments import check_whole, is_seconds
from llmframe.engines.base import Control, Limits, Source
from llmframe.engines.http import Http, Transport, Unsent
from llmframe.engines.limiter import Limiter, Outcome
from llmframe.engines.redaction import scrub
from llmframe.engines.sdk_settings import Settings
from llmframe.errors import ModelError, warn_user
from llmframe.requests import Request
from llmframe.results import Failure, Result

__all__ = ["ServerEngine"]

_log = logging.getLogger("llmframe")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


E = TypeVar("E", bound="ServerEngine[Any]")
F = TypeVar("F", bound=_Dataclass)
"""What a server takes, as far as it is known: the `Features` of an engine."""


class ServerEngine(ABC, Generic[F]):
    """An engine at the end of an HTTP API; its arguments are those of `OpenAI` and `Anthropic`."""

    name: str
    _title: str
    """The class as a user writes it, and the provider."""
    _example: str
    """A model's name, for messages."""
    _usual_endpoint: str
    """The path that goes without saying."""
    endpoint = revision = ""  # what `repr` needs, should anything be raised
    cleanup = False
    _adaptations: int
    """Times that one request is changed to what its server takes: each of the features once."""
    _batch_size: tuple[int, int]
    """Requests and bytes of a batch where the user names none."""
    _largest_batch: tuple[float, float] = (math.inf, math.inf)
    _gather: Callable[..., Settings]
    """Where requests go, by base_url and what else the user gives."""
    _read: Callable[..., Result]
    """What a response says."""
    _refused: Callable[[Failure, Request, F], F | None]
    """The features without what the server refused; None where it was not ours to change."""
    _limit_headers: Callable[[Mapping[str, str]], Mapping[str, str]] = staticmethod(lambda it: it)
    """Rate-limit headers in the words that the limiter reads."""

    def __init__(
        self,
        model: str,
        found: Settings,
        *,
        endpoint: str,
        batch: bool,
        timeout: float,
        concurrency: int | None,
        revision: str,
        max_batch_requests: int | None,
        max_batch_bytes: int | None,
        cleanup: bool,
    ) -> None:
        if not model or not isinstance(model, str):
            raise ModelError(f"model={model!r}: expected a name, such as {self._example!r}.")
        if not is_seconds(timeout):
            raise ModelError(f"timeout={timeout!r}: expected seconds above 0, such as 600.")
        if not isinstance(revision, str):
            raise ModelError(f"revision={revision!r}: expected text, such as '2026-11'.")
        for name, flag in (("batch", batch), ("cleanup", cleanup)):
            if not isinstance(flag, bool):
                raise ModelError(f"{name}={flag!r}: expected True or False.")
        most_requests, most_bytes = self._largest_batch
        check_whole("concurrency", concurrency, math.inf)
        check_whole("max_batch_requests", max_batch_requests, most_requests)
        check_whole("max_batch_bytes", max_batch_bytes, most_bytes)
        self.model = model
        self.timeout = float(timeout)
        self.endpoint = endpoint
        self.revision = revision
        self.cleanup = cleanup
        usual_requests, usual_bytes = self._batch_size
        self._batch_size = (
            int(max_batch_requests or usual_requests),
            int(max_batch_bytes or usual_bytes),
        )
        features = self._guess(found)
        self.limits = Limits(
            concurrency=int(concurrency or Limits().concurrency),
            choices=self._scores(features),
            max_requests=self._batch_size[0] if batch else None,
            max_bytes=self._batch_size[1] if batch else None,
        )
        self._start(found, features)
        self._check()

    def _check(self) -> None:
        """Raise where the engine cannot be used: a key does not travel in a pickle."""
        if self._settings.fault is not None:
            raise ModelError(self._settings.fault)
        if self.official and not self._settings.has_key:
            raise ModelError(
                f"no API key for {self._title}. Set {self._title.upper()}_API_KEY, or pass "
                f"lf.{self._title}(model, api_key=…) (a key does not travel in a pickle); for a "
                f"server of your own, pass base_url=."
            )

    def _start(self, found: Settings, features: F) -> None:
        """Nothing is open and nothing said; also after unpickling."""
        self._settings = found
        self.base_url = found.base_url
        self.official = found.official
        self.limiter = Limiter()
        self._features = features
        self._notices: list[str] = []
        self._said: set[str] = set()
        self._transport: Transport | None = None
        self._opened = os.getpid()
        self._opening = threading.Lock()
        self._twin: Any = None
        self._pool = homes.own_pool(found.client)
        sdk_client.seen(found.client)
        self.enter()

    def _as(self, kind: type[E], *, batch: bool) -> E:
        """This engine live or in batches: the same settings, key and client."""
        if self._twin is None:
            twin = object.__new__(kind)
            twin.__dict__.update(self.__dict__)
            requests, most = self._batch_size if batch else (None, None)
            twin.limits = replace(self.limits, max_requests=requests, max_bytes=most)
            twin._start(self._settings, self._features)
            twin._check()
            self._twin, twin._twin = twin, self
        return cast(E, self._twin)

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The user's event loop in which calls go out; None: llmframe's own."""
        return homes.home_of(self._pool)

    def enter(self) -> None:
        """A call begins in this thread; see `llmframe.engines.homes`."""
        if self._pool is not None:
            homes.settle(self._pool)

    @abstractmethod
    def _guess(self, found: Settings) -> F:
        """What the server takes, before anything was sent."""

    def _scores(self, features: F) -> bool:
        """Whether the probability of each label is to be had."""
        return False

    @abstractmethod
    def _through(self, client: Any) -> Transport:
        """What carries requests through an SDK client."""

    @abstractmethod
    def _encode(self, request: Request, features: F) -> bytes:
        """The body of a request.

        Raises:
            ValueError: It cannot be asked.
        """

    def _look_at(self, request: Request, result: Result, body: bytes, features: F) -> None:
        """Learn from an answer what no error says."""

    @abstractmethod
    def _lost(self, seen: F, learned: F) -> str | None:
        """What to tell the user of a feature that the server turned out not to have."""

    def __repr__(self) -> str:
        usual = {"", self._usual_endpoint}
        more = f", endpoint={self.endpoint!r}" if self.endpoint not in usual else ""
        more += f", revision={self.revision!r}" if self.revision else ""
        more += ", cleanup=True" if self.cleanup else ""
        return f"{self._title}({self.model!r}, base_url={self.base_url!r}{more})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but keys, headers and what is open."""
        return {
            "model": self.model,
            "timeout": self.timeout,
            "endpoint": self.endpoint,
            "revision": self.revision,
            "cleanup": self.cleanup,
            "limits": self.limits,
            "_batch_size": self._batch_size,
            "base_url": self.base_url,
            "features": self._features,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As made with the same arguments here: the key is read from this environment."""
        features = state.pop("features")
        base_url = state.pop("base_url")
        self.__dict__.update(state)
        self._start(self._gather(base_url=base_url), features)

    def identity(self) -> Mapping[str, str]:
        """What this engine adds to a key, live and in batches alike; never a secret."""
        return {
            "provider": self.name,
            "base_url": self.base_url,
            "endpoint": self.endpoint,
            "model": self.model,
            "revision": self.revision,
        }

    def made(self) -> dict[str, Any] | None:
        """Arguments that make this engine again in another process, with a key from there.

        Returns:
            Plain JSON without secrets; ``key`` says whether the environment has to bring one.
            None where a key, headers or a client were given: those are stored nowhere, and no
            other key is for this server.
        """
        found, key = self._settings, None
        if self.official:
            key = True  # whatever key is there is for this provider; its account is looked at
        elif found.client is None:
            here = self._gather(base_url=self.base_url)
            if _same(found, here):
                key = here.has_key
            elif _same(found, self._gather(base_url=self.base_url, api_key="")):
                key = False
        if key is None:
            return None
        return {
            "key": key,
            "base_url": self.base_url,
            "timeout": self.timeout,
            "concurrency": self.limits.concurrency,
            "revision": self.revision,
            "max_batch_requests": self._batch_size[0],
            "max_batch_bytes": self._batch_size[1],
            "cleanup": self.cleanup,
        }

    @property
    def has_key(self) -> bool:
        """Whether it has a key, or a client that brings one."""
        return self._settings.has_key

    def scrub(self, text: str) -> str:
        """The text with every secret of this engine, and all that looks like one, taken out."""
        return scrub(text, self._settings.secrets)

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
        """Estimate of a request's tokens, as providers count them against their limits."""
        characters = sum(len(str(message["content"])) for message in request.messages)
        return characters // 4 + (request.sampling.max_tokens or 16)

    def learned(self) -> Mapping[str, Any]:
        """What the server takes, as far as its refusals have told."""
        return asdict(self._features)

    def learn(self, known: Mapping[str, Any]) -> None:
        """Take over what another process learned of the same server."""
        names = {name for name in asdict(self._features) if name in known}
        self._features = replace(self._features, **{name: known[name] for name in names})

    async def answer(self, request: Request) -> Result:
        """Send one request, adapted to what the server takes; runs in the background loop."""
        limiter = self.limiter
        for _ in range(self._adaptations):
            features = self._features
            try:
                body = self._encode(request, features)
            except ValueError as error:
                failure = Failure("invalid_request", self.scrub(str(error)))
                return Result(request.key, failure=failure)
            transport = self._open()
            ticket = limiter.start(self.tokens(request) if limiter.counts_tokens else 0)
            outcome: Outcome = "other"
            headers: Mapping[str, str] | None = None
            started = time.perf_counter()
            try:
                reply = await transport.post(body)
                headers = self._limit_headers(reply.headers)
                result = self._read(
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
            learned = self._refused(failure_, request, features) if failure_ is not None else None
            if learned is None:
                self._look_at(request, result, reply.body, features)
                return result
            self._learn(features, learned)
        return result

    def _probed(self, request: Request) -> Result:
        """One request asked live, for a batch engine; what it teaches holds for batches too."""
        self._check()
        future = asyncio.run_coroutine_threadsafe(self.answer(request), live.background_loop())
        result = future.result()
        self._speak()
        return result

    def _open(self) -> Transport:
        if self._transport is not None and self._opened == os.getpid():
            return self._transport
        with self._opening:
            # A forked child has none of its parent's threads, and must not speak on its sockets.
            if self._transport is None or self._opened != os.getpid():
                found = self._settings
                if found.client is None:
                    self._transport = Http(found.url(self.endpoint), found.headers, self.timeout)
                else:
                    self._transport = self._through(found.client)
                self._opened = os.getpid()
            return self._transport

    def _learn(self, seen: F, learned: F) -> None:
        """Keep what a refusal taught; of a burst of them, only the first changes anything."""
        if self._features is not seen:
            return
        self._features = learned
        lost = self._lost(seen, learned)
        if lost is not None:
            self._notice(lost)

    def _notice(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._notices.append(text)

    def _speak(self) -> None:
        """Warn in the driver's thread: in the loop, ``-W error`` would break a worker."""
        while self._notices:
            text = self._notices.pop(0)
            try:
                warn_user(text)
            except UserWarning:  # a notice must not end a paid job
                _log.warning(text)


def _same(one: Settings, other: Settings) -> bool:
    return (one.root, one.headers) == (other.root, other.headers)


def _outcome(failure: Failure | None) -> Outcome:
    if failure is None:
        return "ok"
    if failure.kind == "rate_limited":
        return "other" if failure.fatal else "limited"
    return "failed" if failure.kind == "provider_error" else "other"

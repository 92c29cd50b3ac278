"""A scripted OpenAI-compatible chat server on loopback, which counts what it sees.

```python
with ChatServer(answer="billing") as server:
    engine = OpenAI("m", base_url=server.url)
    ...
    assert server.max_in_flight <= 32
    assert server.seen[0].body["temperature"] == 0
```

What a request gets is the first of these that applies:

1. `server.refuse`: a request that has one of these parameters gets a 400 that names it;
2. `server.limit`: a `Rate` (token bucket), which answers 429 when it is empty;
3. `server.script`: replies used up one by one, in order of arrival;
4. `server.answer`: a text, a JSON value (dumped), a `Reply`, or a function of the `Seen` request
   that returns one of these.

All of them may be changed while the server runs. It lives in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.servers.closing import close

__all__ = ["ChatServer", "Rate", "Reply", "Seen", "completion", "error"]


@dataclass
class Seen:
    """One request as it arrived. `attempt` counts requests with the same messages, from 1."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    path: str
    at: float
    attempt: int

    @property
    def text(self) -> str:
        """Content of the last message."""
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(part["text"] for part in content)


@dataclass
class Reply:
    """What to answer. `body`: JSON value, or raw bytes."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False
    """Never answer."""
    until: threading.Event | None = None
    """Answer once it is set."""
    cut: bool = False
    """Close the connection in the middle of the answer."""


@dataclass
class Rate:
    """A token bucket: `per_second` units a second, at most `burst` saved up.

    A request costs 1, or what `cost` says. ``retry_after=False`` keeps silent about how long.
    `headers=True` states what is left in ``x-ratelimit-…-tokens`` with every reply.
    """

    per_second: float
    burst: float
    cost: Callable[[Seen], float] = lambda seen: 1.0
    retry_after: bool = True
    headers: bool = False
    _level: float = -1.0
    _at: float = 0.0

    def take(self, seen: Seen) -> tuple[bool, dict[str, str]]:
        now = time.monotonic()
        if self._level < 0:
            self._level, self._at = self.burst, now
        self._level = min(self.burst, self._level + (now - self._at) * self.per_second)
        self._at = now
        cost = self.cost(seen)
        passes = cost <= self._level + 1e-9
        if passes:
            self._level -= cost
        told: dict[str, str] = {}
        if self.headers:
            told = {
                "x-ratelimit-limit-tokens": f"{self.burst:.0f}",
                "x-ratelimit-remaining-tokens": f"{self._level:.0f}",
                "x-ratelimit-reset-tokens": f"{(self.burst - self._level) / self.per_second:.3f}s",
            }
        if not passes and self.retry_after:
            told["retry-after"] = f"{(cost - self._level) / self.per_second:.3f}"
        return passes, told


def completion(
    content: Any = "ok",
    *,
    finish: str | None = "stop",
    model: str = "m-1",
    usage: tuple[int, int] | None = (10, 5),
    logprobs: Any = None,
    **message: Any,
) -> dict[str, Any]:
    """Body of a chat completion; further keywords go into the message."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": finish,
                "logprobs": logprobs,
            }
        ],
    }
    if usage is not None:
        prompt, output = usage
        body["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }
    return body


def error(
    status: int,
    message: str = "no",
    *,
    code: str | None = None,
    param: str | None = None,
    type: str = "invalid_request_error",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An error reply in OpenAI's shape."""
    body = {"error": {"message": message, "type": type, "param": param, "code": code}}
    return Reply(body, status, headers or {})


class ChatServer:
    """The server; a context manager.

    Args:
        answer: See the module.
        delay: Seconds that each answer takes.
        slots: Requests served at once; the others wait for a slot. None: all.
        refuse: Parameters refused by a 400.
        limit: A rate limit.
        script: Replies for the first requests.
        key: The only API key that is let in; None: anybody.
        ssl: An `ssl.SSLContext` to serve https.

    Attributes:
        url: The base_url, ``/v1`` included.
        seen: Every request, in order of arrival.
        in_flight, max_in_flight: Requests being answered, now and at most.
        sockets, max_sockets: Connections open, now and at most.
        connections: Connections ever opened.
        statuses: How often each status was answered.
    """

    def __init__(
        self,
        answer: Any = "ok",
        *,
        delay: float = 0.0,
        slots: int | None = None,
        refuse: Iterable[str] = (),
        limit: Rate | None = None,
        script: Iterable[Reply] = (),
        key: str | None = None,
        ssl: Any = None,
    ) -> None:
        self.answer = answer
        self.delay = delay
        self.slots = slots
        self.refuse = set(refuse)
        self.limit = limit
        self.script = deque(script)
        self.key = key
        self.seen: list[Seen] = []
        self.in_flight = self.max_in_flight = 0
        self.sockets = self.max_sockets = self.connections = 0
        self.statuses: Counter[int] = Counter()
        self.url = ""
        self._ssl = ssl
        self._asked: Counter[str] = Counter()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> ChatServer:
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the test server did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop at once, cutting what is open."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(60)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._slots = asyncio.Semaphore(self.slots) if self.slots else None
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        counted = self._counted(runner.server)
        server = await self._loop.create_server(counted, "127.0.0.1", 0, ssl=self._ssl)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._ssl else ''}://127.0.0.1:{port}/v1"
        self._ready.set()
        await self._done.wait()
        await close(runner, server)

    def _counted(self, factory: Any) -> Callable[[], Any]:
        """The protocol factory, with every connection counted."""

        def make() -> Any:
            protocol = factory()
            made, lost = protocol.connection_made, protocol.connection_lost

            def connection_made(transport: Any) -> None:
                self.connections += 1
                self.sockets += 1
                self.max_sockets = max(self.max_sockets, self.sockets)
                made(transport)

            def connection_lost(error: Any) -> None:
                self.sockets -= 1
                lost(error)

            return _Counted(protocol, connection_made, connection_lost)

        return make

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            body = json.loads(await request.read())
            said = json.dumps(body.get("messages"))
            self._asked[said] += 1
            seen = Seen(body, request.headers, request.path, time.monotonic(), self._asked[said])
            self.seen.append(seen)
            reply, told = self._choose(seen)
            if self._slots is not None:
                async with self._slots:
                    await asyncio.sleep(reply.delay or self.delay)
            else:
                await asyncio.sleep(reply.delay or self.delay)
            if reply.hang:
                await asyncio.Event().wait()
            while reply.until is not None and not reply.until.is_set():
                await asyncio.sleep(0.005)
            return await self._send(request, reply, told)
        finally:
            self.in_flight -= 1

    def _choose(self, seen: Seen) -> tuple[Reply, dict[str, str]]:
        told: dict[str, str] = {}
        if self.key is not None and seen.headers.get("authorization") != f"Bearer {self.key}":
            return error(401, "Incorrect API key provided", code="invalid_api_key"), told
        for name in sorted(self.refuse):
            if name in seen.body:
                words = f"Unsupported parameter: '{name}' is not supported with this model."
                return error(400, words, code="unsupported_parameter", param=name), told
        if self.limit is not None:
            passes, told = self.limit.take(seen)
            if not passes:
                words = "Rate limit reached for requests"
                return error(429, words, code="rate_limit_exceeded", headers=told), told
        answer: Any = self.script.popleft() if self.script else self.answer
        if callable(answer):
            answer = answer(seen)
        if isinstance(answer, Reply):
            return answer, told
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return Reply(completion(text, model=seen.body.get("model", "m"))), told

    async def _send(
        self, request: web.Request, reply: Reply, told: dict[str, str]
    ) -> web.StreamResponse:
        self.statuses[reply.status] += 1
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"content-type": "application/json", **told, **reply.headers}
        if reply.cut:
            response = web.StreamResponse(status=reply.status, headers=headers)
            response.content_length = len(data) + 100
            await response.prepare(request)
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        return web.Response(status=reply.status, body=data, headers=headers)


class _Counted(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol; two calls go through the counter."""

    def __init__(self, inner: Any, made: Callable[[Any], None], lost: Callable[[Any], None]):
        self.data_received = inner.data_received
        self.eof_received = inner.eof_received
        self.pause_writing = inner.pause_writing
        self.resume_writing = inner.resume_writing
        self.connection_made = made  # type: ignore[method-assign, assignment]
        self.connection_lost = lost  # type: ignore[method-assign, assignment]

"""A small chat-completions server on loopback whose every answer is scripted by the test.

It knows nothing of llmframe: it counts what arrives (requests, in flight at once, sockets) and
answers what the test's function says, which is what makes its counts a witness.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "test-model"


@dataclass
class Seen:
    """One request as it arrived.

    Attributes:
        n: 1 for the first request of the server, and so on.
        tries: How many times this conversation's first user message was seen, this one included.
        prompt: Text of the first user message: the row.
        last: Text of the last message: the row, or what a repair tells.
        body: The decoded body.
        headers: Lower-case header names.
    """

    n: int
    tries: int
    prompt: str
    last: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema in ``response_format``, where the request has one."""
        wanted = self.body.get("response_format") or {}
        return (wanted.get("json_schema") or {}).get("schema")


@dataclass(frozen=True)
class Reply:
    """What to send back; an ``error`` or a status above 399 makes it an error reply."""

    text: str | None = "ok"
    status: int = 200
    code: str | None = None
    message: str = "scripted error"
    param: str | None = None
    finish: str = "stop"
    tokens: tuple[int, int] | None = (7, 3)
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    refusal: str | None = None
    reasoning: str | None = None
    cut: bool = False
    hang: bool = False
    raw: bytes | None = None
    model: str = MODEL


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def by_schema(schema: Mapping[str, Any], text: str = "because", **values: Any) -> str:
    """A JSON answer that fits `schema`: `values` by field, else the enum's first value, or a text.

    Args:
        schema: An object schema as it arrived on the wire.
        text: What free string fields hold.
        **values: Values by field name. ``_label`` goes to the first field that has an enum, or
            that holds an array of them; ``_bool`` to the first boolean field.
    """
    label, flag = values.pop("_label", None), values.pop("_bool", None)
    answer: dict[str, Any] = {}
    for name, field_schema in schema["properties"].items():
        resolved = _resolve(schema, field_schema)
        kinds = resolved.get("type")
        if name in values:
            answer[name] = values[name]
        elif kinds == "array":
            answer[name] = list(label) if isinstance(label, list | tuple) else []
        elif "enum" in resolved:
            answer[name] = label if label is not None else resolved["enum"][0]
        elif kinds == "boolean":
            answer[name] = bool(flag)
        elif kinds in ("integer", "number"):
            answer[name] = 1
        else:
            answer[name] = text
    return json.dumps(answer)


def _resolve(root: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in part:
        target: Any = root
        for step in part["$ref"].lstrip("#/").split("/"):
            target = target[step]
        return target
    return part


class PlainServer:
    """Chat completions at `base_url`, answered by `answer(seen) -> str | Reply`.

    Args:
        answer: The script; called on the server's thread, so it may keep counts without a lock.
        tls: A server-side SSL context, for an https address.
        strict: Whether a body that a strict JSON parser refuses (NaN, Infinity, invalid UTF-8)
            is answered 400 and kept in `unreadable`.
    """

    def __init__(
        self,
        answer: Callable[[Seen], str | Reply] = lambda seen: seen.prompt,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.unreadable: list[bytes] = []
        self.other: list[str] = []
        self.answered: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.sockets = 0
        self.most_sockets = 0
        self._tries: Counter[str] = Counter()
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._serve, name="plain-server", daemon=True)
        self._thread.start()
        if not self._ready.wait(20):
            raise RuntimeError("the test server did not come up")

    @property
    def base_url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}/v1"

    @property
    def count(self) -> int:
        """Chat requests that arrived."""
        return len(self.seen)

    @property
    def prompts(self) -> list[str]:
        """First user message of each request, in the order of arrival."""
        return [seen.prompt for seen in self.seen]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Block until `condition` holds; fails the test after `seconds`."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"nothing after {seconds} s; {self.count} requests arrived")
            time.sleep(0.005)

    def stop(self) -> None:
        """Refuse new connections and cut the open ones, as a server that died does; idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(20)

    def __enter__(self) -> PlainServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_route("*", "/{rest:.*}", self._elsewhere)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        # A short wait at the end: handlers that hang on purpose must not hold up the test.
        site = web.TCPSite(
            runner, "127.0.0.1", 0, ssl_context=self._tls, shutdown_timeout=0.05, backlog=1024
        )
        await site.start()
        self.port = runner.addresses[0][1]
        self._count_sockets(runner)
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def _count_sockets(self, runner: web.AppRunner) -> None:
        server = runner.server
        assert server is not None
        made, lost = server.connection_made, server.connection_lost

        def connection_made(handler: Any, transport: Any) -> None:
            self.sockets += 1
            self.most_sockets = max(self.most_sockets, self.sockets)
            made(handler, transport)

        def connection_lost(handler: Any, error: BaseException | None = None) -> None:
            self.sockets -= 1
            lost(handler, error)

        server.connection_made = connection_made  # type: ignore[method-assign]
        server.connection_lost = connection_lost  # type: ignore[method-assign]

    async def _elsewhere(self, request: web.Request) -> web.Response:
        self.other.append(f"{request.method} {request.path}")
        return web.json_response({"error": {"message": "no such route"}}, status=404)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        try:
            body = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
            body_text = json.dumps(body, ensure_ascii=False)
            body_text.encode("utf-8")
        except ValueError:
            self.unreadable.append(data)
            return web.json_response({"error": {"message": "not strict JSON"}}, status=400)
        users = [m for m in body["messages"] if m["role"] == "user"]
        # With examples the row is the last user message before any assistant turn of a repair;
        # a conversation is told apart by all of its messages up to the first repair, so the
        # count of tries goes by the longest common part: the row's own text.
        prompt = _text(users[-1]) if len(users) == 1 else self._row(body["messages"])
        self._tries[prompt] += 1
        seen = Seen(
            n=len(self.seen) + 1,
            tries=self._tries[prompt],
            prompt=prompt,
            last=_text(body["messages"][-1]),
            body=body,
            headers={name.lower(): value for name, value in request.headers.items()},
            at=time.monotonic(),
        )
        self.seen.append(seen)
        reply = self.answer(seen)
        if isinstance(reply, str):
            reply = Reply(text=reply)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.hang:
            await asyncio.sleep(3600)
        if reply.cut:
            transport = request.transport
            if transport is not None:
                transport.abort()
            return web.Response()
        if reply.raw is not None:
            return web.Response(
                body=reply.raw, status=reply.status, content_type="application/json"
            )
        headers = {"x-request-id": f"req_{seen.n}", **reply.headers}
        if reply.status >= 400:
            error = {"message": reply.message, "type": "scripted", "code": reply.code}
            return web.json_response(
                {"error": {**error, "param": reply.param}}, status=reply.status, headers=headers
            )
        self.answered[prompt] += 1
        return web.json_response(self._completion(seen, reply), headers=headers)

    def _row(self, messages: list[dict[str, Any]]) -> str:
        """The row's text where there are examples or a repair: the newest user text seen before.

        A repair repeats the conversation and adds to it, so the row is the last user message
        that an earlier request ended with; without one this is a first try.
        """
        for message in reversed(messages[:-1]):
            if message["role"] == "user" and self._tries[_text(message)]:
                return _text(message)
        return _text(messages[-1])

    def _completion(self, seen: Seen, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.refusal is not None:
            message["refusal"] = reply.refusal
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        completion: dict[str, Any] = {
            "id": f"chatcmpl-{seen.n}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": reply.model,
            "choices": [
                {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
            ],
        }
        if reply.tokens is not None:
            sent, got = reply.tokens
            completion["usage"] = {
                "prompt_tokens": sent,
                "completion_tokens": got,
                "total_tokens": sent + got,
            }
        return completion


@contextlib.contextmanager
def plain(answer: Callable[[Seen], str | Reply] = lambda seen: seen.prompt) -> Any:
    """A `PlainServer` until the end of the block."""
    server = PlainServer(answer)
    try:
        yield server
    finally:
        server.stop()

"""Anthropic's Messages and Message Batches on loopback, with the ways in which they go wrong.

```python
with AnthropicServer() as server:                      # echoes the last message's text
    engine = Anthropic("m", base_url=server.url, api_key=server.key)
```

What a request gets, live or as a row of a batch, is the first of these that applies:

1. what the API itself refuses: sampling parameters under version 2026-10-21, keywords that its
   schemas do not take, `refuse`d parameters, unknown models where `models` is set;
2. `server.script`: replies for the first live requests;
3. `server.answer`: a text, a JSON value (dumped), a `Reply`, or a function of `Asked` to one.

A batch runs when it is created and is told to be in progress for `polls` looks. All attributes may
be changed while the server runs. It lives in a thread of its own; ``python -m
tests.servers.anthropic`` serves until it is killed, and prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.servers.closing import close

__all__ = ["KEY", "AnthropicServer", "Asked", "Reply", "error", "message"]

KEY = "sk-ant-loopback-test"
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KEYWORDS = {
    "minimum",
    "maximum",
    "multipleOf",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "maxItems",
}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass
class Asked:
    """One request: its body (a row's ``params``), headers, and its custom_id in a batch."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    custom_id: str | None = None

    @property
    def text(self) -> str:
        """Text of the last message."""
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(part["text"] for part in content)


@dataclass
class Reply:
    """What to answer: a status and a body; of a batch row, `result` as it stands in the file.

    `lines` says how often a batch row's line stands there.
    """

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False
    result: dict[str, Any] | None = None
    lines: int = 1


def message(text: Any = "ok", *, stop: str = "end_turn", usage: Any = None, **more: Any) -> Any:
    """Body of a Message; `text` may be a list of blocks."""
    blocks = text if isinstance(text, list) else [{"type": "text", "text": text}]
    return {
        "id": f"msg_{random.getrandbits(64):016x}",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 10, "output_tokens": 5},
        **more,
    }


def error(status: int, words: str = "no", *, code: str | None = None, **headers: str) -> Reply:
    """An error reply in Anthropic's shape."""
    told: dict[str, Any] = {"type": _TYPES.get(status, "api_error"), "message": words}
    if code is not None:
        told["details"] = {"error_code": code}
    body = {"type": "error", "error": told, "request_id": f"req_{random.getrandbits(48):012x}"}
    return Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


class AnthropicServer:
    """The server; a context manager.

    Attributes:
        answer, script, delay: See the module; `delay` seconds for each live answer.
        refuse: Parameters that are not permitted.
        models: The models that exist; None: any.
        accounts: Organisation by API key; others get 401.
        polls: Looks that find a new batch in progress.
        creates: What happens to the first, second … create: ``"lost"`` (created, and the
            connection cut), ``"late"`` (created, and a 500), ``"unavailable"`` (503, not
            created), ``"busy"`` (429), ``"large"`` (413), None: nothing.
        results_url: ``"absolute"``, ``"relative"``, ``"foreign"`` (another host's) or None.
        prefix: Path before ``/v1``, as behind a gateway.
        drop, twice: Custom ids, or functions of one, whose line is missing or doubled.
        noise: Raw lines put between the results, such as ``b""``.
        newline: Between the lines.
        cut: Downloads of results that break off half-way.
        zipped: Results are sent as gzip.
        lists: Batches can be listed.
        window: Seconds until a batch expires.
        archived: Batches whose results are archived.
        asked: Every live request.
        calls: Method and path of every call.
        batches: The batches by id, in order of their creation.
    """

    def __init__(self, answer: Any = None, **options: Any) -> None:
        self.answer: Any = (lambda asked: asked.text) if answer is None else answer
        self.script: deque[Reply] = deque()
        self.delay = 0.0
        self.refuse: set[str] = set()
        self.models: set[str] | None = None
        self.accounts = {KEY: "org-1"}
        self.polls = 1
        self.creates: deque[str | None] = deque()
        self.results_url: str | None = "absolute"
        self.prefix = ""
        self.drop: Any = ()
        self.twice: Any = ()
        self.noise: Iterable[bytes] = ()
        self.newline = b"\n"
        self.cut = 0
        self.zipped = False
        self.lists = True
        self.archived: set[str] = set()
        self.window = 86_400.0
        self.max_requests = 100_000
        self.max_bytes = 256_000_000
        for name, value in options.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.key = next(iter(self.accounts))
        self.asked: list[Asked] = []
        self.calls: list[tuple[str, str]] = []
        self.batches: dict[str, dict[str, Any]] = {}
        self.in_flight = self.max_in_flight = 0
        self.root = ""
        self._lines: dict[str, int] = {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        """The base_url."""
        return self.root + self.prefix

    def __enter__(self) -> AnthropicServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, port: int = 0) -> None:
        self._port = port
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the test server did not start")

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(60)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        app = web.Application(client_max_size=1 << 29)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        server = await self._loop.create_server(runner.server, "127.0.0.1", self._port)
        self.root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._done.wait()
        await close(runner, server)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(self.prefix)
        self.calls.append((request.method, path))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            reply = await self._route(request, path)
            if isinstance(reply, web.StreamResponse):
                return reply
            if reply.delay or (self.delay and path == "/v1/messages"):
                await asyncio.sleep(reply.delay or self.delay)
            if reply.cut:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            told = {"content-type": "application/json", "request-id": "req_live", **reply.headers}
            told["anthropic-organization-id"] = self._account(request) or "org-unknown"
            return web.Response(status=reply.status, body=body, headers=told)
        finally:
            self.in_flight -= 1

    def _account(self, request: web.Request) -> str | None:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "")
        return self.accounts.get(given.removeprefix("Bearer "))

    async def _route(self, request: web.Request, path: str) -> Any:
        account = self._account(request)
        if account is None:
            return error(401, "invalid x-api-key")
        if not request.headers.get("anthropic-version"):
            return error(400, "anthropic-version: header is required")
        if not request.path.startswith(self.prefix) or not path.startswith("/v1/messages"):
            return error(404, "Not found")
        place = path.removeprefix("/v1/messages").strip("/").split("/")
        match request.method, place:
            case "POST", [""]:
                return self._live(Asked(json.loads(await request.read()), request.headers))
            case "POST", ["batches"]:
                return self._create(await request.read(), request.headers, account)
            case "GET", ["batches"] if self.lists:
                return self._list(request.query, account)
            case method, ["batches", id_, *more]:
                batch = self.batches.get(id_)
                if batch is None or batch["account"] != account:
                    return error(404, f"Message Batch {id_} not found")
                return await self._one(request, method, batch, more)
        return error(405, "Method not allowed")

    def _live(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        refusal = self._refusal(asked)
        if refusal is not None:
            return error(400 if not refusal.startswith("model:") else 404, refusal)
        if self.script:
            return self.script.popleft()
        return self._reply(asked)

    def _reply(self, asked: Asked) -> Reply:
        answer = self.answer(asked) if callable(self.answer) else self.answer
        if isinstance(answer, Reply):
            return answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return Reply({**message(text), "model": asked.body.get("model", "m-1")})

    def _refusal(self, asked: Asked) -> str | None:
        """What the API has against a body, or None."""
        body = asked.body
        for name in ("model", "max_tokens", "messages"):
            if name not in body:
                return f"{name}: Field required"
        if self.models is not None and body["model"] not in self.models:
            return f"model: {body['model']}"
        if body.get("stream") and asked.custom_id:
            return "stream: not supported in batches"
        for name in sorted(self.refuse & body.keys()):
            return f"{name}: Extra inputs are not permitted"
        if asked.headers["anthropic-version"] >= "2026-10-21":
            for name in ("temperature", "top_p", "top_k"):
                if name in body:
                    return f"{name}: this parameter is not supported in this API version"
        if "seed" in body:
            return "seed: Extra inputs are not permitted"
        known = {"model", "max_tokens", "messages", "system", "output_config", "temperature"}
        known |= {"thinking", "tools", "tool_choice", "metadata", "stop_sequences", "service_tier"}
        for name in sorted(body.keys() - known - {"top_p", "top_k", "stream", "cache_control"}):
            return f"{name}: Extra inputs are not permitted"
        schema = body.get("output_config", {}).get("format", {}).get("schema")
        found = sorted(_words(schema) & _KEYWORDS)
        if found:
            return f"output_config.format.schema: property '{found[0]}' is not supported"
        if schema is not None and schema.get("additionalProperties") is not False:
            return "output_config.format.schema: additionalProperties must be false"
        marks = json.dumps(body).count('"cache_control"')
        if marks > 4:
            return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
        return None

    def _create(self, data: bytes, headers: Mapping[str, str], account: str) -> Reply:
        fate = self.creates.popleft() if self.creates else None
        if fate == "unavailable":
            return error(503, "unavailable")
        if fate == "busy":
            return error(429, "too many batches", retry_after="0")
        rows = json.loads(data).get("requests")
        if fate == "large" or len(rows) > self.max_requests or len(data) > self.max_bytes:
            return error(413, "Request exceeds the maximum size")
        for place, row in enumerate(rows):
            if not _ID.fullmatch(row["custom_id"]):
                at = f"requests.{place}.custom_id"
                return error(400, f"{at}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        ids = [row["custom_id"] for row in rows]
        if len(set(ids)) < len(ids):
            return error(400, "requests: custom_id must be unique")
        batch = self.add(rows, headers, account)
        if fate == "late":
            return error(500, "Internal server error")
        return Reply(self._shown(batch), cut=fate == "lost")

    def add(self, rows: Any, headers: Mapping[str, str], account: str = "org-1") -> dict[str, Any]:
        """Make a batch, as `create` does; a test makes another client's so."""
        results = []
        for row in rows:
            asked = Asked(row["params"], headers, row["custom_id"])
            results.append((row["custom_id"], self._result(asked)))
        batch = {
            "id": f"msgbatch_{len(self.batches):04d}{random.getrandbits(32):08x}",
            "account": account,
            "created": time.time(),
            "rows": rows,
            "results": results,
            "polls": self.polls,
            "canceled": None,
        }
        self.batches[batch["id"]] = batch
        return batch

    def _result(self, asked: Asked) -> dict[str, Any]:
        refusal = self._refusal(asked)
        reply = error(400, refusal) if refusal is not None else self._reply(asked)
        if reply.lines != 1 and asked.custom_id:
            self._lines[asked.custom_id] = reply.lines
        if reply.result is not None:
            return reply.result
        if reply.status != 200:
            return {"type": "errored", "error": reply.body}
        return {"type": "succeeded", "message": reply.body}

    def _shown(self, batch: dict[str, Any]) -> dict[str, Any]:
        ended = batch["polls"] <= 0
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        for _, result in batch["results"]:
            kind = result["type"] if ended else "processing"
            counts[kind if kind in counts else "errored"] += 1
        path = f"{self.prefix}/v1/messages/batches/{batch['id']}/results"
        urls = {
            "absolute": self.root + path,
            "relative": path,
            "bare": path.removeprefix(self.prefix),
            "foreign": "https://api.anthropic.com" + path,
        }
        archived = batch["id"] in self.archived
        show = ended and self.results_url is not None and not archived
        state = "ended" if ended else "canceling" if batch["canceled"] else "in_progress"
        return {
            "id": batch["id"],
            "type": "message_batch",
            "processing_status": state,
            "request_counts": counts,
            "created_at": _time(batch["created"]),
            "expires_at": _time(batch["created"] + self.window),
            "ended_at": _time(batch["created"] + 60) if ended else None,
            "cancel_initiated_at": batch["canceled"],
            "archived_at": _time(batch["created"] + 29 * 86400) if archived else None,
            "results_url": urls[self.results_url or ""] if show else None,
        }

    def _list(self, query: Mapping[str, str], account: str) -> Reply:
        shown = [
            self._shown(batch)
            for batch in reversed(self.batches.values())
            if batch["account"] == account
        ]
        ids = [batch["id"] for batch in shown]
        if "after_id" in query:
            shown = shown[ids.index(query["after_id"]) + 1 :]
        limit = int(query.get("limit", 20))
        page = shown[:limit]
        return Reply(
            {
                "data": page,
                "has_more": len(shown) > limit,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
            }
        )

    async def _one(
        self, request: web.Request, method: str, batch: dict[str, Any], more: list[str]
    ) -> Any:
        ended = batch["polls"] <= 0
        if method == "GET" and not more:
            shown = self._shown(batch)
            batch["polls"] -= 1
            return Reply(shown)
        if method == "POST" and more == ["cancel"]:
            if ended:
                return error(400, "Message Batch has already ended and cannot be canceled")
            batch["canceled"] = _time(time.time())
            half = len(batch["results"]) // 2
            batch["results"][half:] = [
                (id_, {"type": "canceled"}) for id_, _ in batch["results"][half:]
            ]
            return Reply(self._shown(batch))
        if method == "DELETE":
            if not ended:
                return error(400, "Message Batch is still processing")
            del self.batches[batch["id"]]
            return Reply({"id": batch["id"], "type": "message_batch_deleted"})
        if method == "GET" and more == ["results"]:
            if not ended or batch["id"] in self.archived:
                return error(404, f"Results of Message Batch {batch['id']} not available")
            return await self._send(request, self.lines(batch))
        return error(404, "Not found")

    def lines(self, batch: dict[str, Any]) -> bytes:
        """The results file: shuffled, with what was asked for."""
        results = list(batch["results"])
        random.Random(batch["id"]).shuffle(results)
        lines = list(self.noise)
        for id_, result in results:
            if _applies(self.drop, id_):
                continue
            record = {"custom_id": id_, "result": result}
            # Raw U+2028 and the like stand in the file as they are.
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")
            lines += [line] * (2 if _applies(self.twice, id_) else self._lines.get(id_, 1))
        return self.newline.join(lines)

    async def _send(self, request: web.Request, data: bytes) -> web.StreamResponse:
        headers = {"content-type": "application/x-jsonl"}
        if self.zipped:
            data, headers["content-encoding"] = gzip.compress(data), "gzip"
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        if self.cut > 0:
            self.cut -= 1
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            await asyncio.sleep(0.01)
            request.transport.abort()
            return response
        for start in range(0, len(data), 1 << 20):
            await response.write(data[start : start + (1 << 20)])
        await response.write_eof()
        return response


def _applies(rule: Any, custom_id: str) -> bool:
    return bool(rule(custom_id)) if callable(rule) else custom_id in rule


def _words(schema: Any) -> set[str]:
    """Keywords of a schema, names of properties left out."""
    if isinstance(schema, list):
        return set().union(*map(_words, schema))
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for name, value in schema.items():
        if name in {"properties", "$defs"}:
            found |= set().union(*map(_words, value.values()))
        elif name not in {"enum", "const"}:
            found |= _words(value)
    return found


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--polls", type=int, default=1)
    given = parser.parse_args()
    server = AnthropicServer(polls=given.polls)
    server.start(given.port)
    print(server.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

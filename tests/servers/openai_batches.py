"""OpenAI's files and batches on loopback, over real HTTP, with every way to go wrong.

```python
with BatchServer(answer=lambda body: body["messages"][-1]["content"]) as server:
    server.plans = [Plan(end="expired", done=0.5), Plan()]
    engine = OpenAI("m", base_url=server.url, api_key="sk-a", batch=True)
    ...
    assert len(server.batches) == 2
```

Each batch that is created takes the next of `server.plans`, then `server.plan`. Rows are answered
by `answer`, a function of the body: a text, or a `Row` for anything else. Live requests to
``/v1/chat/completions`` and ``/v1/responses`` are answered by the same function.

It lives in a thread of its own. As a program, ``python -m tests.servers.openai_batches``, it prints
its URL and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.servers.closing import close

__all__ = ["BatchServer", "Plan", "Row", "chat_of", "response_of"]

MOST_BYTES = 200_000_000


@dataclass
class Row:
    """What one line of a batch is answered with.

    Attributes:
        text: Of the message.
        status: HTTP status of the row; 0 with an empty body is one of the shapes that occur.
        body: In place of the completion.
        error: The line's own error; with `response=False` there is no response at all.
        response: Whether there is one.
        finish: Why it stopped.
        message: Further fields of the message.
        usage: Whether usage is told.
        lines: How often its line stands in the results.
        tokens: Input and output tokens that it tells.
        logprobs: Of the tokens of the text, as a chat completion has them.
    """

    text: str | None = "ok"
    status: int = 200
    body: Any = None
    error: Any = None
    response: bool = True
    finish: str = "stop"
    message: Mapping[str, Any] = field(default_factory=dict)
    usage: bool = True
    lines: int = 1
    tokens: tuple[int, int] = (20, 10)
    logprobs: list[dict[str, Any]] | None = None


@dataclass
class Plan:
    """What happens to one batch.

    Attributes:
        create: ``"ok"``; ``"lost"``: created, then the connection is reset; ``"500"``: created,
            then 500; ``"429"``, ``"503"``: refused; ``"no_file"``: refused since the file is not
            found; ``"hang"``: created, never answered; ``"stall"``: neither.
        retry_after: Header of a 429.
        words: Statuses that the looks see one after another, before `end`.
        end: The last status.
        errors: With ``end="failed"``: ``(code, message, line)`` of each error.
        done: Share of the rows that are answered, where it expires or is cancelled.
        listed: Rows that are not answered stand in the error file.
        lag: Looks that see `end` before they see the files' ids.
        hidden: Looks that get a 404 since the batch is too new.
        empty_ids: Files that are not there are ``""``, not null.
        drop: Share of the rows that get no line.
        twice: Share of the rows that get two lines.
        conflict: The second lines say something else.
        garbage: Lines that are no JSON, and blank ones, stand in the output.
        string_body: Bodies are JSON in a string.
        crlf, last_newline, raw: How lines end, and whether non-ASCII is written as it is.
        gzip: The content is sent packed.
        cuts: Downloads that are cut in the middle of a line.
        ranges: A download can be taken up where it was cut.
        foreign: Lines with ids that nobody sent.
        counts: Told in place of the real counts.
        window: Seconds until it expires.
    """

    create: str = "ok"
    retry_after: str | None = None
    words: list[str] = field(default_factory=lambda: ["validating", "in_progress"])
    end: str = "completed"
    errors: list[tuple[str, str, int | None]] = field(default_factory=list)
    done: float = 1.0
    listed: bool = True
    lag: int = 0
    hidden: int = 0
    empty_ids: bool = False
    drop: float = 0.0
    twice: float = 0.0
    conflict: bool = False
    garbage: bool = False
    string_body: bool = False
    crlf: bool = False
    last_newline: bool = True
    raw: bool = True
    gzip: bool = False
    cuts: int = 0
    ranges: bool = True
    foreign: int = 0
    counts: dict[str, int] | None = None
    window: float = 86400.0


@dataclass
class Stored:
    """One batch at the provider."""

    record: dict[str, Any]
    plan: Plan
    account: str
    looks: int = 0
    hidden: int = 0
    lag: int = 0
    rows: int = 0
    ended: str | None = None
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class File:
    """One file at the provider."""

    id: str
    name: str
    purpose: str
    data: bytes
    account: str
    plan: Plan = field(default_factory=Plan)
    created_at: int = field(default_factory=lambda: int(time.time()))

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.data),
            "created_at": self.created_at,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


def chat_of(row: Row, model: str, name: str = "chatcmpl-1") -> dict[str, Any]:
    """The body of a chat completion."""
    body: dict[str, Any] = {
        "id": name,
        "object": "chat.completion",
        "created": 1,
        "model": f"{model}-2026-01-01",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": row.text, **row.message},
                "finish_reason": row.finish,
                "logprobs": None if row.logprobs is None else {"content": row.logprobs},
            }
        ],
    }
    if row.usage:
        body["usage"] = {
            "prompt_tokens": row.tokens[0],
            "completion_tokens": row.tokens[1],
            "total_tokens": sum(row.tokens),
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        }
    return body


def response_of(row: Row, model: str, name: str = "resp_1") -> dict[str, Any]:
    """The body of a response."""
    incomplete = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(row.finish)
    content: list[dict[str, Any]] = [{"type": "output_text", "text": row.text, "annotations": []}]
    if row.logprobs is not None:
        content[0]["logprobs"] = row.logprobs
    if row.message.get("refusal"):
        content = [{"type": "refusal", "refusal": row.message["refusal"]}]
    return {
        "id": name,
        "object": "response",
        "status": "incomplete" if incomplete else "completed",
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "error": None,
        "model": f"{model}-2026-01-01",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": content},
        ],
        "usage": {
            "input_tokens": row.tokens[0],
            "output_tokens": row.tokens[1],
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": sum(row.tokens),
        },
    }


def _echo(body: Mapping[str, Any]) -> str:
    messages = body.get("messages") or body.get("input")
    content = messages[-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class BatchServer:
    """The server; a context manager.

    Args:
        answer: Answers a row by its body; the prompt itself by default.
        accounts: Organisation by key; any key is let in, and is ``org-1``'s, where None.

    Attributes:
        url: The base_url, ``/v1`` included.
        files, batches: What is kept, by id, in order of creation.
        plans: What happens to the next batches; `plan` to those after.
        calls: How often each ``METHOD /path`` was called, ids left out.
        live: Bodies of the live requests.
        refuse: Parameters that a live request and a row are refused for.
        fail_next: Statuses that the next calls (but live ones) get, whatever they are.
        slots: Batches that may be open at once; the others fail with ``token_limit_exceeded``.
        page: Batches on one page of a list, at most.
        most_bytes: Bytes in an uploaded file, at most.
        metadata: Whether metadata is taken; with False it is refused.
        lists: Whether batches can be listed.
        headers: Of every call, in order.
        asked: How often each custom_id was answered in a batch.
        on_create, on_content: Called, in the server's thread, when a batch was created, and
            when results are asked for.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any] = _echo,
        *,
        accounts: Mapping[str, str] | None = None,
    ) -> None:
        self.answer = answer
        self.accounts = accounts
        self.files: dict[str, File] = {}
        self.batches: dict[str, Stored] = {}
        self.plans: list[Plan] = []
        self.plan = Plan()
        self.calls: Counter[str] = Counter()
        self.keys: set[str] = set()  # every key that a request came with
        self.live: list[dict[str, Any]] = []
        self.refuse: set[str] = set()
        self.fail_next: list[int] = []
        self.slots: int | None = None
        self.page = 100
        self.most_bytes = MOST_BYTES
        self.metadata = True
        self.lists = True
        self.headers: list[Mapping[str, str]] = []
        self.asked: Counter[str] = Counter()
        self.on_create: Callable[[Stored], None] = lambda stored: None
        self.on_content: Callable[[File], None] = lambda file: None
        self.url = ""
        self._numbers = itertools.count(1)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> BatchServer:
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
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(60)

    def lines(self, batch: str) -> list[dict[str, Any]]:
        """The input lines of a batch."""
        data = self.files[self.batches[batch].record["input_file_id"]].data
        return [json.loads(line) for line in data.split(b"\n") if line.strip()]

    def wait_for(self, what: Callable[[], bool], seconds: float = 60) -> None:
        """Return when `what` is true."""
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s; calls: {dict(self.calls)}"
            time.sleep(0.01)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        app = web.Application(client_max_size=1 << 30, middlewares=[self._guard])
        routes = app.router
        routes.add_post("/v1/files", self._upload)
        routes.add_get("/v1/files", self._list_files)
        routes.add_get("/v1/files/{id}", self._file)
        routes.add_delete("/v1/files/{id}", self._delete_file)
        routes.add_get("/v1/files/{id}/content", self._content)
        routes.add_post("/v1/batches", self._create)
        routes.add_get("/v1/batches", self._list)
        routes.add_get("/v1/batches/{id}", self._retrieve)
        routes.add_post("/v1/batches/{id}/cancel", self._cancel)
        routes.add_post("/v1/chat/completions", self._ask)
        routes.add_post("/v1/responses", self._ask)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        server = await self._loop.create_server(runner.server, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self._ready.set()
        await self._done.wait()
        await close(runner, server)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        place = request.match_info.get("id")
        path = request.path.replace(place, "ID") if place else request.path
        self.calls[f"{request.method} {path}"] += 1
        self.headers.append(dict(request.headers))
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.keys.add(key)
        if self.accounts is not None and key not in self.accounts:
            return _error(401, f"Incorrect API key provided: {key}", code="invalid_api_key")
        if self.fail_next and not path.endswith(("/completions", "/responses")):
            return _error(self.fail_next.pop(0), "The server had an error")
        response = await handler(request)
        if not response.prepared:
            response.headers["openai-organization"] = self._account(request)
            response.headers["x-request-id"] = f"req_{next(self._numbers)}"
        return response

    def _account(self, request: web.Request) -> str:
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return "org-1" if self.accounts is None else self.accounts[key]

    async def _upload(self, request: web.Request) -> web.Response:
        if not request.content_type.startswith("multipart/"):
            return _error(400, "expected multipart/form-data")
        name, purpose, data = "", "", b""
        async for part in await request.multipart():
            if part.name == "file":
                name, data = part.filename or "", bytes(await part.read())
            elif part.name == "purpose":
                purpose = await part.text()
            else:
                await part.release()
        if not purpose.startswith("batch"):
            return _error(400, f"Invalid purpose {purpose!r}", param="purpose")
        if not name.endswith(".jsonl"):
            return _error(400, "Invalid file format. Must be .jsonl", param="file")
        if len(data) > self.most_bytes:
            return _error(400, "File is too large.", param="file")
        file = self._keep(name, purpose, data, self._account(request))
        return web.json_response(file.record())

    def _keep(
        self, name: str, purpose: str, data: bytes, account: str, plan: Plan | None = None
    ) -> File:
        file = File(f"file-{next(self._numbers):06d}", name, purpose, data, account, plan or Plan())
        self.files[file.id] = file
        return file

    def _mine(self, kept: Mapping[str, Any], request: web.Request) -> Any:
        found = kept.get(request.match_info["id"])
        return found if found is not None and found.account == self._account(request) else None

    async def _file(self, request: web.Request) -> web.Response:
        file = self._mine(self.files, request)
        return (
            _error(404, "No such File object") if file is None else web.json_response(file.record())
        )

    async def _delete_file(self, request: web.Request) -> web.Response:
        file = self._mine(self.files, request)
        if file is None:
            return _error(404, "No such File object")
        del self.files[file.id]
        return web.json_response({"id": file.id, "object": "file", "deleted": True})

    async def _list_files(self, request: web.Request) -> web.Response:
        files = [f.record() for f in self.files.values() if f.account == self._account(request)]
        return web.json_response({"object": "list", "data": files[::-1], "has_more": False})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        file = self._mine(self.files, request)
        if file is None:
            return _error(404, "No such File object")
        self.on_content(file)
        data, plan, status = file.data, file.plan, 200
        wanted = request.headers.get("Range")
        if wanted and plan.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return _error(416, "range not satisfiable")
            data, status = data[start:], 206
        response = web.StreamResponse(status=status)
        response.content_type = "application/octet-stream"
        if plan.gzip:
            data = gzip.compress(data)
            response.headers["Content-Encoding"] = "gzip"
        response.enable_chunked_encoding()
        await response.prepare(request)
        if plan.cuts:
            plan.cuts -= 1
            await response.write(data[: len(data) // 2])
            await asyncio.sleep(0.01)
            assert request.transport is not None
            request.transport.abort()
            return response
        for start in range(0, len(data), 1 << 16):
            await response.write(data[start : start + (1 << 16)])
        await response.write_eof()
        return response

    async def _create(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        plan = self.plans.pop(0) if self.plans else self.plan
        headers = {} if plan.retry_after is None else {"retry-after": plan.retry_after}
        if plan.create == "stall":
            self.calls["stalled"] += 1
            await asyncio.Event().wait()
        if plan.create in {"429", "503"}:
            return _error(int(plan.create), "Rate limit reached for batches", headers=headers)
        file = self.files.get(asked.get("input_file_id") or "")
        if plan.create == "no_file" or file is None or file.account != self._account(request):
            return _error(400, f"Cannot find file {asked.get('input_file_id')}")
        if asked.get("metadata") and not self.metadata:
            return _error(400, "Unknown parameter: 'metadata'.", param="metadata")
        if asked.get("completion_window") != "24h":
            return _error(400, "Invalid completion_window", param="completion_window")
        now = int(time.time())
        name = f"batch_{next(self._numbers):06d}"
        empty = "" if plan.empty_ids else None
        record = {
            "id": name,
            "object": "batch",
            "endpoint": asked["endpoint"],
            "input_file_id": file.id,
            "completion_window": "24h",
            "status": "validating",
            "output_file_id": empty,
            "error_file_id": empty,
            "errors": None,
            "created_at": now,
            "expires_at": now + int(plan.window),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": asked.get("metadata"),
        }
        stored = Stored(record, plan, self._account(request), hidden=plan.hidden, lag=plan.lag)
        open_ = sum(1 for other in self.batches.values() if other.ended is None)
        if self.slots is not None and open_ >= self.slots:
            stored.plan = Plan(
                words=["validating"],
                end="failed",
                errors=[("token_limit_exceeded", "Enqueued token limit reached for m.", None)],
            )
        self.batches[name] = stored
        self.on_create(stored)
        if plan.create == "hang":
            await asyncio.Event().wait()
        if plan.create == "lost":
            assert request.transport is not None
            request.transport.abort()
        if plan.create == "500":
            return _error(500, "The server had an error while processing your request")
        return web.json_response(record)

    async def _list(self, request: web.Request) -> web.Response:
        if not self.lists:
            return _error(404, "Not Found")
        names = [n for n, b in self.batches.items() if b.account == self._account(request)][::-1]
        after = request.query.get("after")
        if after:
            names = names[names.index(after) + 1 :]
        limit = min(int(request.query.get("limit", "20")), self.page)
        data = [self.batches[name].record for name in names[:limit]]
        more = len(names) > limit
        return web.json_response({"object": "list", "data": data, "has_more": more})

    async def _retrieve(self, request: web.Request) -> web.Response:
        stored = self._mine(self.batches, request)
        if stored is None:
            return _error(404, f"No batch found with id '{request.match_info['id']}'")
        if stored.hidden > 0:
            stored.hidden -= 1
            return _error(404, "No batch found")
        self._look(stored)
        return web.json_response(stored.record)

    async def _cancel(self, request: web.Request) -> web.Response:
        stored = self._mine(self.batches, request)
        if stored is None:
            return _error(404, "No batch found")
        if stored.ended is not None:
            return _error(409, f"Cannot cancel a batch with status '{stored.ended}'.")
        if stored.record["status"] != "cancelling":
            done = min(stored.plan.done, 0.5)
            stored.plan = Plan(**{**vars(stored.plan), "end": "cancelled", "done": done})
            stored.plan.words, stored.looks = ["cancelling"], 0
            stored.record["status"] = "cancelling"
        return web.json_response(stored.record)

    def _look(self, stored: Stored) -> None:
        if stored.ended is None:
            words = stored.plan.words
            if stored.looks < len(words):
                stored.record["status"] = words[stored.looks]
                stored.looks += 1
                return
            self._finish(stored)
        elif stored.lag > 0:
            stored.lag -= 1
        if stored.ended is not None and stored.lag <= 0:
            stored.record |= stored.files

    def _finish(self, stored: Stored) -> None:
        plan, record = stored.plan, stored.record
        stored.ended = record["status"] = plan.end
        record[f"{plan.end}_at"] = int(time.time())
        stored.files = {}
        lines = self.lines(record["id"])
        stored.rows = len(lines)
        if plan.end == "failed":
            data = [
                {"code": code, "message": message, "line": line, "param": None}
                for code, message, line in plan.errors
            ]
            record["errors"] = {"object": "list", "data": data}
            return
        faults = self._faults(lines, record["endpoint"])
        if faults:
            record["status"], record["errors"] = "failed", {"object": "list", "data": faults}
            return
        dice = random.Random(record["id"])
        good, bad = [], []
        for line in dice.sample(lines, len(lines)):
            place = len(good) + len(bad)
            if place >= plan.done * len(lines) and plan.end != "completed":
                if plan.listed:
                    code = "batch_expired" if plan.end == "expired" else "batch_cancelled"
                    said = {"code": code, "message": "This request could not be executed."}
                    bad.append(self._line(line, Row(response=False, error=said), plan))
                continue
            if dice.random() < plan.drop:
                continue
            self.asked[line["custom_id"]] += 1
            row = self._answered(line["body"])
            target = good if row.status == 200 and row.error is None else bad
            target += [self._line(line, row, plan) for _ in range(row.lines)]
            if dice.random() < plan.twice:
                again = Row("something else") if plan.conflict else row
                target.append(self._line(line, again, plan))
        completed, failed = len(good), len(bad)
        for number in range(plan.foreign):
            good.append(self._line({**lines[0], "custom_id": f"foreign-{number}"}, Row(), plan))
        if plan.garbage:
            good[1:1] = [b"not json", b""]
            good.append(b"")
        record["request_counts"] = plan.counts or {
            "total": len(lines),
            "completed": completed,
            "failed": failed,
        }
        end = b"\r\n" if plan.crlf else b"\n"
        for name, rows in (("output_file_id", good), ("error_file_id", bad)):
            if rows:
                data = end.join(rows) + (end if plan.last_newline else b"")
                file = self._keep(f"{name}.jsonl", "batch_output", data, stored.account, plan)
                stored.files[name] = file.id

    def _faults(self, lines: list[dict[str, Any]], endpoint: str) -> list[dict[str, Any]]:
        """What makes a provider refuse a whole file."""
        seen: set[str] = set()
        faults = []
        models = {line["body"].get("model") for line in lines}
        for number, line in enumerate(lines, 1):
            code = ""
            if line["custom_id"] in seen:
                code = "duplicate_custom_id"
            elif line["url"] != endpoint:
                code = "url_mismatch"
            elif line["method"] != "POST":
                code = "invalid_method"
            seen.add(line["custom_id"])
            if code:
                faults.append({"code": code, "message": code, "line": number, "param": None})
        if len(models) > 1:
            faults.append({"code": "model_mismatch", "message": "models", "line": 1})
        if len(lines) > 50_000:
            faults.append({"code": "too_many_tasks", "message": "too many", "line": None})
        if not lines:
            faults.append({"code": "empty_file", "message": "empty", "line": None})
        return faults

    def _answered(self, body: dict[str, Any]) -> Row:
        for name in sorted(self.refuse):
            if name in body:
                words = f"Unsupported parameter: '{name}' is not supported with this model."
                fault = {
                    "message": words,
                    "type": "invalid_request_error",
                    "param": name,
                    "code": "unsupported_parameter",
                }
                return Row(status=400, body={"error": fault})
        said = self.answer(body)
        return said if isinstance(said, Row) else Row(said)

    def _line(self, line: Mapping[str, Any], row: Row, plan: Plan) -> bytes:
        name = f"batch_req_{next(self._numbers)}"
        response = None
        if row.response:
            make = response_of if line["url"].endswith("responses") else chat_of
            body = row.body
            if body is None:
                body = make(row, line["body"]["model"], f"x-{name}")
            if plan.string_body:
                body = json.dumps(body)
            response = {"status_code": row.status, "request_id": f"req-{name}", "body": body}
            if row.status == 0:
                response["request_id"] = ""
        told = {
            "id": name,
            "custom_id": line["custom_id"],
            "response": response,
            "error": row.error,
        }
        return json.dumps(told, ensure_ascii=not plan.raw).encode()

    async def _ask(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.live.append(body)
        row = self._answered(body)
        if row.status != 200:
            return web.json_response(row.body or {}, status=row.status or 500)
        make = response_of if request.path.endswith("responses") else chat_of
        return web.json_response(row.body or make(row, body["model"]))


def _error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return web.json_response(body, status=status, headers=headers)


def main() -> None:
    """Run until killed; the URL is the first line of the output."""
    with BatchServer() as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""The chat server as a frame sees it: which row asked, how often, and what it was told.

It knows nothing of llmframe: it counts what arrives and answers what the test's function says,
which is what makes its counts a witness.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.servers import chat

MODEL = "test-model"


@dataclass(frozen=True)
class Row:
    """One request as it arrived.

    Attributes:
        n: 1 for the server's first request, and so on.
        tries: How many times this row was asked, this request included.
        prompt: The row's own text: the last user message of its first request.
        last: Text of the last message: the row, or what a repair tells.
        body: The decoded body.
        headers: By name, whatever its case.
        at: Seconds, monotonic.
    """

    n: int
    tries: int
    prompt: str
    last: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    at: float

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema in ``response_format``, where the request has one."""
        wanted = self.body.get("response_format") or {}
        return (wanted.get("json_schema") or {}).get("schema")


@dataclass(frozen=True)
class Reply:
    """What to send back; a status above 399 makes it an error in OpenAI's shape.

    `raw` is a whole body; `hang` never answers, `until` once it is set; `cut` ends the connection
    in mid-answer.
    """

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
    until: threading.Event | None = None
    raw: bytes | None = None


Script = Callable[[Row], str | Reply]


class RowServer(chat.ChatServer):
    """A chat server that is running once it is made.

    Args:
        script: What each request gets; called on the server's thread, so it may count freely.
        tls: A server-side context, for an https address.

    Attributes:
        rows: The script; may be changed while it runs.
        asked: Every request, in the order of arrival.
        answered: How often each row got an answer (not an error).
        unreadable: Bodies that a strict JSON parser refuses (NaN, lone surrogates); answered 400.
    """

    def __init__(
        self, script: Script = lambda row: row.prompt, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(self._reply, ssl=tls)
        self.rows = script
        self.asked: list[Row] = []
        self.answered: Counter[str] = Counter()
        self.unreadable: list[str] = []
        self._tries: Counter[str] = Counter()
        self.__enter__()

    @property
    def count(self) -> int:
        """Requests that arrived."""
        return len(self.asked)

    @property
    def prompts(self) -> list[str]:
        """The row of each request, in the order of arrival."""
        return [row.prompt for row in self.asked]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Block until `condition` holds; fails the test after `seconds`."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"nothing after {seconds} s; {self.count} requests arrived")
            time.sleep(0.005)

    def die(self) -> None:
        """Go away in mid-run: refuse new connections and cut the open ones; does not wait."""
        self._loop.call_soon_threadsafe(self._done.set)

    def _reply(self, seen: chat.Seen) -> chat.Reply:
        if not _strict(seen.body):
            self.unreadable.append(repr(seen.body))
            return chat.error(400, "not strict JSON")
        prompt = self._row_of(seen.body["messages"])
        self._tries[prompt] += 1
        row = Row(
            n=len(self.asked) + 1,
            tries=self._tries[prompt],
            prompt=prompt,
            last=_text(seen.body["messages"][-1]),
            body=seen.body,
            headers=seen.headers,
            at=seen.at,
        )
        self.asked.append(row)
        said = self.rows(row)
        reply = Reply(text=said) if isinstance(said, str) else said
        if reply.status < 400 and not (reply.cut or reply.hang):
            self.answered[prompt] += 1
        return _wire(row, reply)

    def _row_of(self, messages: list[dict[str, Any]]) -> str:
        # A repair repeats the conversation and adds to it, so its row is the newest user message
        # that an earlier request ended with; where there is none, this is a first try.
        for message in reversed(messages[:-1]):
            if message["role"] == "user" and self._tries[_text(message)]:
                return _text(message)
        return _text(messages[-1])


def _wire(row: Row, reply: Reply) -> chat.Reply:
    headers = {"x-request-id": f"req_{row.n}", **reply.headers}
    if reply.status >= 400:
        wire = chat.error(
            reply.status, reply.message, code=reply.code, param=reply.param, headers=headers
        )
        wire.delay, wire.hang, wire.cut = reply.delay, reply.hang, reply.cut
        return wire
    message: dict[str, Any] = {}
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    body: Any = reply.raw
    if body is None:
        body = chat.completion(
            reply.text, finish=reply.finish, model=MODEL, usage=reply.tokens, **message
        )
    return chat.Reply(
        body,
        reply.status,
        headers,
        delay=reply.delay,
        hang=reply.hang,
        until=reply.until,
        cut=reply.cut,
    )


def _strict(body: Any) -> bool:
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def by_schema(schema: Mapping[str, Any], text: str = "because", **values: Any) -> str:
    """A JSON answer that fits `schema`.

    Args:
        schema: An object schema as it arrived on the wire.
        text: What free string fields hold.
        **values: Values by field name. ``_label`` goes to the fields that have an enum (or an
            array, where it is a list); ``_bool`` to the boolean ones.
    """
    label, flag = values.pop("_label", None), values.pop("_bool", None)
    answer: dict[str, Any] = {}
    for name, part in schema["properties"].items():
        field_schema = _resolve(schema, part)
        if name in values:
            answer[name] = values[name]
        elif field_schema.get("type") == "array":
            answer[name] = list(label) if isinstance(label, list | tuple) else []
        elif "enum" in field_schema:
            answer[name] = label if label is not None else field_schema["enum"][0]
        elif field_schema.get("type") == "boolean":
            answer[name] = bool(flag)
        elif field_schema.get("type") in ("integer", "number"):
            answer[name] = 1
        else:
            answer[name] = text
    return json.dumps(answer)


def _resolve(root: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in part:
        return part
    target: Any = root
    for step in part["$ref"].removeprefix("#/").split("/"):
        target = target[step]
    return target

"""Message Batches: create, find again, look, read, cancel, delete; a thread of a lane waits in it.

Anthropic's batches carry no tag. So what is newest in the list is noted before a batch is
created, and one whose answer was lost is one of those that came after it, with as many requests.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, Final, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import orjson

from llmframe.engines import anthropic_lines as wire
from llmframe.engines.anthropic_wire import failure_of, unix_time
from llmframe.engines.base import Batch, BatchStatus, Line
from llmframe.engines.http import Reply, Unsent
from llmframe.errors import EngineError
from llmframe.requests import Request, parse_custom_id
from llmframe.results import Result

__all__ = ["MAX_BYTES", "MAX_REQUESTS", "Batches", "Caller"]

MAX_REQUESTS: Final = 100_000
MAX_BYTES: Final = 240_000_000
"""Of the 256 MB that are allowed: whether those are 10⁶ or 2²⁰ bytes, nobody says."""

_PATH: Final = "/v1/messages/batches"
_PAGE: Final = 100
_IN_MEMORY: Final = 1 << 22
_ENVELOPE: Final = len(b'{"custom_id":"","params":},') + 64
"""Bytes that a request's line has around its params, at most."""
_DELETED: Final = "it was deleted"


class Caller(Protocol):
    """What carries a request: `llmframe.engines.rest.Rest`, or the user's client."""

    def call(
        self,
        method: str,
        url: str,
        *,
        body: IO[bytes] | None = None,
        into: IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request, once."""


class Batches:
    """The batches of one account.

    Args:
        open: Gives what carries requests.
        url: Full URL of an API path.
        encode: Body of a request as it stands in a batch.
        scrub: Takes secrets out of a provider's words.

    Attributes:
        account: The organisation, once an answer has named it; else empty.
    """

    def __init__(
        self,
        open: Callable[[], Caller],
        url: Callable[[str], str],
        encode: Callable[[Request], bytes],
        scrub: Callable[[str], str],
    ) -> None:
        self.account = ""
        self._open = open
        self._url = url
        self._encode = encode
        self._scrub = scrub
        self._creating = threading.Lock()
        self._results: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._tags: dict[str, str] = {}
        # Keys of requests whose id at the provider does not say them.
        self._keys: dict[str, bytes] = {}

    def size(self, request: Request) -> int:
        """Encoded bytes of the request's line, at most."""
        try:
            return len(self._encode(request)) + _ENVELOPE
        except ValueError:  # `submit` says what is wrong
            return _ENVELOPE

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        """Create a batch; see `BatchEngine.submit`. Sent once, whatever happens.

        Raises:
            EngineError: It was refused (``status`` 4xx), or may have been created all the same.
        """
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            count = self._write(file, lines)
            # Two creates at once would each find the other's batch after its cursor.
            with self._creating:
                newest = self._newest()
                note("cursor", newest[0]["id"] if newest else "")
                note("cursor_at", str(newest[0].get("created_at")) if newest else "")
                if self.account:
                    note("account", self.account)
                read = self._ask("POST", self._url(_PATH), body=file)
        try:
            batch = wire.batch_of(read, tag, count, time.time())
        except KeyError:
            raise self._error("the answer to creating a batch names no id", None, True) from None
        self._tags[batch.id] = tag
        return batch

    def _write(self, file: IO[bytes], lines: Iterable[Line]) -> int:
        count = 0
        file.write(b'{"requests":[')
        for line in lines:
            for part, request in enumerate(line.requests):
                id_ = wire.line_id(line.custom_id, part)
                parsed = parse_custom_id(id_)
                if parsed is None or parsed[1] != request.key:
                    self._keys[id_] = request.key
                try:
                    params = self._encode(request)
                except ValueError as error:
                    # Nothing was sent, and what cannot be encoded is the same in every row.
                    raise self._error(str(error), 400) from None
                file.write(b"," if count else b"")
                file.write(wire.entry(id_, params))
                count += 1
        file.write(b"]}")
        return count

    def find(self, tag: str, notes: Mapping[str, str], count: int) -> list[Batch]:
        """Batches that came after the noted cursor and have `count` requests, the oldest first.

        Raises:
            EngineError: The list cannot be read.
        """
        if "cursor" not in notes:
            return []  # it ended before anything was sent
        since = unix_time(notes.get("cursor_at"))
        found: list[Batch] = []
        after = ""
        while True:
            page = self._page(_PAGE, after)
            for read in page.get("data") or []:
                batch = wire.batch_of(read, tag, count, 0.0)
                # The cursor itself may have been deleted since.
                if batch.id == notes["cursor"] or (since is not None and batch.created_at < since):
                    return found[::-1]
                # What was created here for another intent is not this one's.
                known = self._tags.get(batch.id, tag)
                if known == tag and sum(wire.counts_of(read).values()) == count:
                    found.append(batch)
            after = str(page.get("last_id") or "")
            if not page.get("has_more") or not after:
                return found[::-1]

    def poll(self, batch: Batch) -> BatchStatus:
        """Where the batch stands.

        Raises:
            EngineError: Not to be seen now, or (401, 403, 404) by this account.
        """
        if batch.id in self._deleted:
            return BatchStatus("gone", total=batch.count, message=_DELETED)
        read = self._ask("GET", self._of(batch))
        if isinstance(read.get("results_url"), str):
            self._results[batch.id] = read["results_url"]
        return wire.status_of(read)

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        """Results in the provider's order, after all of them have been downloaded to a file.

        Raises:
            EngineError: They cannot be read now, or are cut short.
        """
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            self._download(batch, file)
            file.seek(0)
            for _, record in wire.lines(file):
                id_ = record["custom_id"]
                key = self._keys.get(id_)
                result = wire.result(record, batch.id, key=key, scrub=self._scrub)
                yield *wire.part_of(id_), result

    def _download(self, batch: Batch, file: IO[bytes]) -> None:
        if batch.id not in self._results:
            self.poll(batch)
        try:
            self._ask("GET", self._where(batch), into=file, accept="application/x-jsonl")
        except EngineError as error:
            if error.status != 404 or self.poll(batch).state != "gone":
                raise
            # The next look says that it is gone, which is not to be another account's.
            raise self._error("the results are no longer there", None, True) from None

    def _where(self, batch: Batch) -> str:
        """URL of the results: the provider's own, where that is the server we know.

        Behind a gateway the provider's address would see the gateway's key.
        """
        ours = urlsplit(self._of(batch))
        told = urlsplit(self._results.get(batch.id, ""))
        own = told.netloc == ours.netloc and told.scheme == ours.scheme
        prefix = urlsplit(self._url("")).path
        if told.path and (own or not told.netloc):
            # A relative path may or may not repeat what stands before /v1.
            path = told.path if told.path.startswith(prefix) else prefix + told.path
            query = told.query or ours.query
            return urlunsplit((ours.scheme, ours.netloc, path, query, ""))
        return urlunsplit(ours._replace(path=ours.path + "/results"))

    def cancel(self, batch: Batch) -> None:
        """Ask the provider to stop; nothing where it has ended.

        Raises:
            EngineError: It cannot be asked.
        """
        if batch.id in self._deleted:
            return
        try:
            self._ask("POST", self._of(batch, "/cancel"))
        except EngineError as error:
            if error.status not in {400, 409} or self.poll(batch).state == "running":
                raise

    def delete(self, batch: Batch) -> None:
        """Delete the batch and its results; nothing where it is gone.

        Raises:
            EngineError: It has not ended, or cannot be deleted now.
        """
        try:
            self._ask("DELETE", self._of(batch))
        except EngineError as error:
            if error.status != 404:
                raise
        self._deleted.add(batch.id)
        self._results.pop(batch.id, None)

    def _of(self, batch: Batch, more: str = "") -> str:
        return self._url(f"{_PATH}/{quote(batch.id, safe='')}{more}")

    def _newest(self) -> list[dict[str, Any]]:
        """The newest batch, if there is one."""
        try:
            found = self._page(1).get("data")
        except EngineError as error:
            if error.status not in {404, 405}:
                raise
            return []  # a service without a list: `find` will say so, should it come to that
        return found if isinstance(found, list) else []

    def _page(self, limit: int, after: str = "") -> dict[str, Any]:
        parts = urlsplit(self._url(_PATH))
        query = [parts.query, f"limit={limit}", f"after_id={quote(after)}" if after else ""]
        return self._ask("GET", urlunsplit(parts._replace(query="&".join(filter(None, query)))))

    def _ask(
        self,
        method: str,
        url: str,
        *,
        body: IO[bytes] | None = None,
        into: IO[bytes] | None = None,
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """One request, once; the decoded answer, empty where it is none."""
        try:
            reply = self._open().call(method, url, body=body, into=into, headers={"Accept": accept})
        except Unsent as error:
            failure = error.failure
            raise self._error(failure.message, None, not failure.fatal) from None
        self.account = reply.headers.get("anthropic-organization-id") or self.account
        read: Any = None
        with contextlib.suppress(orjson.JSONDecodeError):
            read = orjson.loads(reply.body)
        if not 200 <= reply.status < 300:
            failure = failure_of(reply.status, reply.headers, read, reply.body, scrub=self._scrub)
            request_id = reply.headers.get("request-id")
            raise self._error(
                failure.message, reply.status, failure.retryable, request_id, failure.retry_after
            )
        if isinstance(read, dict):
            return read
        if into is None and method != "DELETE":
            message = f"answered {reply.status} with what is no JSON object"
            raise self._error(message, None, retryable=True)
        return {}

    def _error(
        self,
        message: str,
        status: int | None,
        retryable: bool = False,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> EngineError:
        words = message if message.endswith((".", "?", "…")) else message + "."
        return EngineError(
            f"Anthropic: {words}",
            provider="anthropic",
            status=status,
            retryable=retryable,
            request_id=request_id,
            retry_after=retry_after,
        )

"""OpenAI's Batch API behind the `BatchEngine` protocol, and that of services that imitate it.

A batch is a file of lines and a record that names it. What may be there without our knowing is
found again by the file's id, which is noted before the batch is created, then by the tag in the
batch's metadata.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import IO, Any, Final
from urllib.parse import urlsplit

from llmframe.engines import openai_batch_wire as wire
from llmframe.engines.base import Batch, BatchStatus, Limits, Line
from llmframe.engines.openai_files import Remote, file_missing, listing
from llmframe.engines.sdk_settings import Settings
from llmframe.errors import EngineError, sentence
from llmframe.requests import Request
from llmframe.results import Result

__all__ = ["MAX_BYTES", "MAX_REQUESTS", "BatchCalls"]

_log = logging.getLogger("llmframe")

MAX_REQUESTS: Final = 50_000
MAX_BYTES: Final = 200_000_000
_APPEARS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait, time after time, for a file that was just uploaded and is not found."""
_LAG: Final = 5
"""Looks that a batch which is over is given to name the files it counts answers for."""
_PAGE: Final = 100
_PAGES: Final = 1000
_KEPT: Final = 8
"""Uploaded files remembered, of which no batch was made."""


class BatchCalls(ABC):
    """The batch half of an engine that asks live too.

    Attributes:
        sleep: Waits between tries; tests hand in one of their own.
    """

    name: str
    model: str
    endpoint: str
    timeout: float
    limits: Limits
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    _settings: Settings

    def _begin(self) -> None:
        """Nothing is open, nothing known; also after unpickling and in a forked child."""
        self._remote: Remote | None = None
        self._account: str | None = None
        self._lagging: Counter[str] = Counter()
        self._unused: dict[bytes, str] = {}
        self._state = threading.Lock()
        self._service = wire.service_for(urlsplit(self._settings.base_url).hostname)

    @abstractmethod
    def scrub(self, text: str) -> str:
        """The text without secrets."""

    @abstractmethod
    def _check(self) -> None:
        """Raise where the engine cannot be used: a key does not travel in a pickle."""

    @abstractmethod
    def _encoded(self, request: Request) -> bytes:
        """The body of a request as JSON: what would be sent live."""

    @property
    def account(self) -> str:
        """Organisation and project that the key belongs to, as the provider's headers say.

        Asked for once, since keys are changed and accounts are not; empty where nothing is said.
        """
        if self._account is None:
            try:
                answer = self._files.ask("listing batches", listing(1, None), tries=1)
            except EngineError:
                return ""  # what is wrong will be told by the call that matters
            names = (answer.headers.get(f"openai-{name}") for name in ("organization", "project"))
            self._account = "/".join(name for name in names if name)
        return self._account

    @property
    def _files(self) -> Remote:
        with self._state:
            if self._remote is None:
                self._check()
                self._remote = Remote(
                    self.name,
                    self._settings,
                    self._settings.client,
                    self.timeout,
                    self.scrub,
                    self.sleep,
                )
            return self._remote

    def size(self, request: Request) -> int:
        """Bytes of the request's line, as it is uploaded.

        Raises:
            EngineError: The request cannot be sent at all.
        """
        return wire.line_size(self.endpoint, self._body(request))

    def _body(self, request: Request) -> bytes:
        try:
            return wire.ascii_json(self._encoded(request))
        except ValueError as error:
            raise EngineError(
                f"{sentence(self.scrub(str(error)))} Nothing was sent.",
                provider=self.name,
                status=400,
            ) from None

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        """Write and upload the file, note its id, create the batch.

        Raises:
            EngineError: 413 where it is too large; any other refusal with the provider's words;
                `retryable` without a status or with one of 5xx: it may have been created.
        """
        with tempfile.TemporaryFile() as file:
            count, digest = self._write(lines, file)
            kept = self._unused.pop(digest, None)
            if kept is not None:
                # A create that was refused, or never arrived, left its file there.
                note("file", kept)
                try:
                    return self._create(kept, tag, count, digest, appears=())
                except EngineError as error:
                    if not file_missing(error):
                        raise
            name = f"llmframe-{tag}.jsonl"
            uploaded = self._uploaded(file, name)
        note("file", uploaded)
        return self._create(uploaded, tag, count, digest, appears=_APPEARS)

    def _uploaded(self, file: IO[bytes], name: str) -> str:
        try:
            return self._files.upload(file, name, self._service.purpose)
        except EngineError as error:
            if error.status == 400 and "too large" in str(error).lower():
                error.status = 413  # OpenAI's word for it, where a proxy says 413
            raise

    def _write(self, lines: Iterable[Line], file: IO[bytes]) -> tuple[int, bytes]:
        count = size = 0
        digest = hashlib.blake2b(digest_size=16)
        for line in lines:
            parts = len(line.requests)
            for part, request in enumerate(line.requests):
                try:
                    name = wire.wire_id(line.custom_id, request, part, parts)
                except ValueError as error:
                    raise EngineError(sentence(error), provider=self.name, status=400) from None
                data = wire.line(name, self.endpoint, self._body(request))
                count += 1
                size += len(data)
                digest.update(data)
                file.write(data)
        most, largest = self.limits.max_requests, self.limits.max_bytes
        if (most is not None and count > most) or (largest is not None and size > largest):
            raise EngineError(
                f"a batch of {count:,} requests and {size:,} bytes: one may hold {most:,} and "
                f"{largest:,}. Nothing was sent.",
                provider=self.name,
                status=413,
            )
        file.flush()
        return count, digest.digest()

    def _create(
        self, file: str, tag: str, count: int, digest: bytes, appears: tuple[float, ...]
    ) -> Batch:
        """Create the batch, in one try: a second could make a second batch.

        Only what surely made none is tried again: a file that is not found yet, metadata refused.
        """
        options: dict[str, Any] = {"metadata": {wire.TAG: tag}}
        pauses = list(appears)

        def create(client: Any) -> Any:
            return client.batches.with_raw_response.create(
                input_file_id=file,
                endpoint=self.endpoint,
                completion_window=self._service.window,
                **options,
            )

        while True:
            try:
                read = wire.unwrapped(self._files.ask("creating a batch", create, tries=1).read)
                break
            except EngineError as error:
                if file_missing(error) and pauses:
                    self.sleep(pauses.pop(0))
                elif error.status in {400, 422} and "metadata" in str(error) and options:
                    options = {}
                else:
                    self._keep(digest, file, error)
                    raise
        batch = wire.batch_of(read, tag, count, time.time())
        if batch is None:
            raise EngineError(
                "creating a batch: it was taken, and the answer has no id.",
                provider=self.name,
                retryable=True,
            )
        return batch

    def _keep(self, digest: bytes, file: str, error: EngineError) -> None:
        """Remember a file that the next try of the same lines can use."""
        if error.retryable:
            self._unused[digest] = file
            while len(self._unused) > _KEPT:
                del self._unused[next(iter(self._unused))]

    def find(self, tag: str, notes: Mapping[str, str], count: int) -> list[Batch]:
        """Batches of the noted file; else those with the tag.

        Raises:
            EngineError: They cannot be listed.
        """
        by_file, by_tag = [], []
        for read in self._listed(notes):
            theirs = wire.tag_of(read)
            batch = wire.batch_of(read, tag, count, time.time())
            if batch is None or theirs not in {None, tag}:
                continue
            if notes.get("file") and read.get("input_file_id") == notes["file"]:
                by_file.append(batch)
            elif theirs == tag:
                by_tag.append(batch)
        return by_file or by_tag

    def _listed(self, notes: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Every batch that is no older than the noted file; all of them where none is noted."""
        since = self._files.created_at(notes["file"]) if notes.get("file") else 0.0
        after, seen, newest = None, set(), 0.0
        for _ in range(_PAGES):
            read = self._files.ask("listing batches", listing(_PAGE, after)).read
            data = read.get("data") if isinstance(read, dict) else None
            if not isinstance(data, list):
                raise EngineError(
                    "listing batches: the answer holds no list.", provider=self.name, status=404
                )
            batches = [one for one in map(wire.unwrapped, data) if isinstance(one.get("id"), str)]
            yield from batches
            after = batches[-1]["id"] if batches else None
            if not read.get("has_more") or after is None or after in seen:
                return
            seen.add(after)
            first, last = (wire.created_at(batches[place]) for place in (0, -1))
            newest = newest or first
            if 0 < last < min(since, newest):  # the newest come first, and these are older
                return

    def poll(self, batch: Batch) -> BatchStatus:
        """Where the batch stands.

        Raises:
            EngineError: It cannot be looked up.
        """
        read = self._record(batch)
        status = wire.status_of(read, self._service, self.scrub)
        return self._readable(batch, status, read) if status.state == "done" else status

    def _record(self, batch: Batch) -> dict[str, Any]:
        read = wire.unwrapped(
            self._files.ask(
                "looking up a batch", lambda c: c.batches.with_raw_response.retrieve(batch.id)
            ).read
        )
        if not read:
            raise EngineError(
                "looking up a batch: the answer holds none.", provider=self.name, retryable=True
            )
        return read

    def _readable(self, batch: Batch, status: BatchStatus, read: Mapping[str, Any]) -> BatchStatus:
        """A batch that is over, by what can be read of it."""
        output, errors = wire.files_of(read)
        counted = (status.done > 0 and output is None) or (status.failed > 0 and errors is None)
        if counted:
            # Some name their files later than they say that they are done.
            self._lagging[batch.id] += 1
            if self._lagging[batch.id] <= _LAG:
                return replace(status, state="running")
        self._lagging.pop(batch.id, None)
        named = [file for file in (output, errors) if file is not None]
        there = [self._files.exists(file) for file in named]
        if named and not any(there):
            return replace(status, state="gone", message="its result files are deleted or expired")
        if not all(there) or (status.done > 0 and output is None):
            # Rows without a line may be among the answers that were paid and cannot be read.
            return replace(status, missing="lost")
        return status

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        """The lines of the output file, then of the error file.

        Raises:
            EngineError: They cannot be read.
        """
        for file in wire.files_of(self._record(batch)):
            if file is not None:
                yield from self._lines(batch, file)

    def _lines(self, batch: Batch, file: str) -> Iterator[tuple[str, int, Result]]:
        try:
            with self._files.download(file) as copy:
                # A file's own lines end at b"\n" only; a text may hold U+2028 and its like.
                for number, data in enumerate(copy, 1):
                    found = wire.read_line(data, self.scrub, batch.choices, batch.schema)
                    if isinstance(found, wire.BadLine):
                        why = f"line {number} of {file}, batch {batch.id}: {found.why}"
                        _log.warning("%s; its row counts as not answered", why)
                    elif found is not None:
                        yield found
        except EngineError as error:
            if error.status not in {404, 410}:
                raise
            _log.warning("file %s of batch %s is not there any more", file, batch.id)

    def cancel(self, batch: Batch) -> None:
        """Ask the provider to stop; what is answered by then can be read.

        Raises:
            EngineError: It was not taken.
        """
        try:
            self._files.ask(
                "cancelling a batch", lambda c: c.batches.with_raw_response.cancel(batch.id)
            )
        except EngineError as error:
            if error.status not in {400, 409}:
                raise
            word = str(self._record(batch).get("status") or "").lower()
            if word not in self._service.states and word != "cancelling":
                raise

    def delete(self, batch: Batch) -> None:
        """Delete the input and the results; the batch's record stays, with no text in it.

        Raises:
            EngineError: They are not deleted.
        """
        read = self._record(batch)
        for file in (read.get("input_file_id"), *wire.files_of(read)):
            if isinstance(file, str) and file:
                self._files.delete(file)

    def _end(self) -> None:
        with self._state:
            remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

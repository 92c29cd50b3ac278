"""Calls of the files and batches endpoints through the `openai` SDK, one or a few tries each.

The SDK and not the engine's own connections: these are a few calls a batch, and through it a
client of the user's (proxies, certificates, Azure's credentials) works here too. Its retries
are off: it would send a create again without saying so, and sleep for as long as a server asks.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson

from llmframe.engines.headers import retry_after
from llmframe.engines.http import proxy_for
from llmframe.engines.openai_wire import failure_of
from llmframe.engines.sdk_settings import Settings
from llmframe.errors import EngineError, sentence

__all__ = ["Answer", "Remote", "file_missing", "listing"]

_TRIES: Final = 4
_PAUSE: Final = 0.5
_LONGEST: Final = 30.0
"""Seconds of a pause here; what asks for more is left to the lane, which can be stopped."""
_CONNECT: Final = 15.0
"""Seconds to reach a server, as for live requests."""
_CHUNK: Final = 1 << 16


class Answer:
    """A decoded answer, None where it is no JSON, and its headers."""

    def __init__(self, read: Any, headers: Mapping[str, str]) -> None:
        self.read = read
        self.headers = headers


class Remote:
    """One account's files and batches.

    Args:
        name: Of the engine, for messages.
        found: Where they are and what every request carries.
        client: The user's own `openai.OpenAI`, or None.
        timeout: Seconds without a byte before a request is given up.
        scrub: Takes secrets out of a provider's words.
        sleep: Waits; tests hand in one of their own.
    """

    def __init__(
        self,
        name: str,
        found: Settings,
        client: Any,
        timeout: float,
        scrub: Callable[[str], str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name = name
        self._settings = found
        self._given = client
        self._timeout = timeout
        self._scrub = scrub
        self.sleep = sleep
        self._sdk: Any = None
        self._process = 0
        self._lock = threading.Lock()

    def ask(self, what: str, call: Callable[[Any], Any], tries: int = _TRIES) -> Answer:
        """Make one call.

        Args:
            what: It does, for messages.
            call: Given ``client``, makes the call ``with_raw_response``.
            tries: How often; more than one only for what may be done twice.

        Raises:
            EngineError: It failed; `retryable` where the same may pass later.
        """
        tried = 0
        while True:
            tried += 1
            answer, error = self._once(what, call)
            if error is None:
                assert answer is not None
                return answer
            pause = max(_PAUSE * 2**tried, error.retry_after or 0.0)
            # 409 here says that a batch is over already, not that somebody was faster.
            passing = error.retryable and error.status != 409
            if not passing or tried >= tries or pause > _LONGEST:
                raise error
            self.sleep(pause)

    def _once(
        self, what: str, call: Callable[[Any], Any]
    ) -> tuple[Answer | None, EngineError | None]:
        import openai

        try:
            response = call(self._open()).http_response
        except openai.OpenAIError as error:
            return None, self._error(what, error)
        try:
            read = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            read = None
        return Answer(read, response.headers), None

    def _error(self, what: str, error: Any) -> EngineError:
        """Ours for the SDK's, which holds the request and the key in it."""
        import openai

        where = f"{what} at {self._settings.base_url}"
        if isinstance(error, openai.APIStatusError):
            response = error.response
            with contextlib.suppress(Exception):  # the body of a stream is not read yet
                response.read()
            body = b""
            with contextlib.suppress(Exception):
                body = response.content
            try:
                read = orjson.loads(body)
            except orjson.JSONDecodeError:
                read = None
            failure = failure_of(error.status_code, response.headers, read, body, scrub=self._scrub)
            wait = failure.retry_after
            return EngineError(
                f"{where} failed: {sentence(failure.message)}",
                provider=self._name,
                status=error.status_code,
                request_id=error.request_id,
                retryable=failure.retryable,
                code=failure.code,
                param=failure.param,
                retry_after=retry_after(response.headers) if wait is None else wait,
            )
        if isinstance(error, openai.APITimeoutError):
            said = f"no answer within {self._timeout:g} s"
        elif isinstance(error, openai.APIConnectionError):
            said = f"the connection broke ({type(error.__cause__ or error).__name__})"
        else:
            said = f"the client cannot be used ({type(error).__name__})"
        return EngineError(
            f"{where} failed: {said}.",
            provider=self._name,
            retryable=isinstance(error, openai.APIConnectionError),
        )

    def upload(self, file: IO[bytes], name: str, purpose: str) -> str:
        """Upload a file, as a stream; returns its id.

        Raises:
            EngineError: It was not taken.
        """

        def create(client: Any) -> Any:
            file.seek(0)
            return client.files.with_raw_response.create(
                file=(name, file, "application/octet-stream"), purpose=purpose
            )

        read = self.ask("uploading a batch's file", create).read
        found = read.get("id") if isinstance(read, dict) else None
        if not isinstance(found, str) or not found:
            raise EngineError(
                f"uploading a batch's file at {self._settings.base_url}: the answer has no id. "
                f"Does this server have a Batch API?",
                provider=self._name,
            )
        return found

    def exists(self, file: str) -> bool:
        """Whether a file can be read. It is asked for twice: some services serve no record."""
        try:
            self.ask("looking up a file", lambda c: c.files.with_raw_response.retrieve(file))
            return True
        except EngineError as error:
            if error.status not in {404, 405, 410}:
                raise
        with tempfile.TemporaryFile() as nowhere:
            fault = self._copy(file, nowhere, 1)
        if fault is None or fault.status is None:
            return True
        if fault.status in {404, 410}:
            return False
        raise fault

    def created_at(self, file: str) -> float:
        """When a file was made, by the provider's clock; 0 where that cannot be known."""
        try:
            read = self.ask(
                "looking up a file", lambda c: c.files.with_raw_response.retrieve(file)
            ).read
        except EngineError:
            return 0.0
        value = read.get("created_at") if isinstance(read, dict) else None
        return float(value) if isinstance(value, int | float) else 0.0

    def delete(self, file: str) -> None:
        """Delete a file; one that is not there is no error."""
        try:
            self.ask("deleting a file", lambda c: c.files.with_raw_response.delete(file))
        except EngineError as error:
            if error.status not in {404, 410}:
                raise

    @contextlib.contextmanager
    def download(self, file: str) -> Iterator[IO[bytes]]:
        """A file, downloaded whole, to be read from its start.

        A connection that is cut is taken up again where it broke, or from the start where the
        server takes no ranges.

        Raises:
            EngineError: It cannot be had.
        """
        with tempfile.TemporaryFile() as copy:
            tried = 0
            while True:
                before = copy.tell()
                error = self._copy(file, copy)
                if error is None:
                    break
                tried = 1 if copy.tell() > before else tried + 1  # it goes on, if slowly
                if not error.retryable or tried >= _TRIES:
                    raise error
                self.sleep(min(_PAUSE * 2**tried, _LONGEST))
            copy.seek(0)
            yield copy

    def _copy(self, file: str, copy: IO[bytes], most: int | None = None) -> EngineError | None:
        """Append what is missing of a file; None when it is whole (or has `most` bytes)."""
        import openai

        what = "downloading a batch's results"
        start = copy.tell()
        # Packed, the place where it broke would not be known.
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            with self._open().files.with_streaming_response.content(
                file, extra_headers=headers
            ) as response:
                raw = response.http_response
                if start and raw.status_code != 206:
                    copy.seek(0)
                    copy.truncate()
                chunks = response.iter_bytes(_CHUNK)
                while True:
                    try:
                        chunk = next(chunks, None)
                    except Exception as error:  # the HTTP library's own, whichever it is
                        cut = type(error).__name__
                        break
                    if chunk is None or (most is not None and copy.tell() >= most):
                        return None
                    copy.write(chunk)
                packed = raw.headers.get("content-encoding", "identity") != "identity"
        except openai.OpenAIError as error:
            fault = self._error(what, error)
            if fault.status != 416:
                return fault
            cut, packed = "a range was refused", True
        if packed:
            copy.seek(0)
            copy.truncate()
        return EngineError(f"{what}: it broke off ({cut}).", provider=self._name, retryable=True)

    def _open(self) -> Any:
        with self._lock:
            if self._sdk is None or self._process != os.getpid():
                # A forked child that used its parent's connections would read its answers.
                self._sdk, self._process = self._made(), os.getpid()
            return self._sdk

    def _made(self) -> Any:
        import openai

        found = self._settings
        timeout = openai.Timeout(self._timeout, connect=min(_CONNECT, self._timeout))
        if self._given is not None:
            return self._given.with_options(
                max_retries=0, timeout=timeout, default_headers=found.headers
            )
        secure = found.base_url.startswith("https")
        # The environment's proxies as for live requests; one that the SDK's HTTP library cannot
        # use would end it at its making, even for a server on this machine.
        pool = openai.DefaultHttpxClient(
            trust_env=False,
            proxy=proxy_for(found.root),
            verify=ssl.create_default_context() if secure else True,
            timeout=timeout,
        )
        weakref.finalize(self, pool.close)
        return openai.OpenAI(
            api_key=found.headers.get("Authorization", "").rpartition(" ")[2] or "none-needed",
            base_url=found.base_url,
            max_retries=0,
            timeout=timeout,
            default_headers=found.headers,
            default_query=dict(parse_qsl(urlsplit(found.root).query)),
            http_client=pool,
        )

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._lock:
            sdk, self._sdk = self._sdk, None
        if sdk is not None and self._given is None:
            sdk.close()


def listing(limit: int, after: str | None) -> Callable[[Any], Any]:
    """The call for one page of the batches, the newest first."""
    options: dict[str, Any] = (
        {"limit": limit} if after is None else {"limit": limit, "after": after}
    )
    return lambda client: client.batches.with_raw_response.list(**options)


def file_missing(error: EngineError) -> bool:
    """Whether a create was refused since its file is not there, or not there yet."""
    text = str(error).lower()
    return (
        error.status in {400, 404}
        and "file" in text
        and ("not find" in text or "not found" in text or "no such" in text or "not exist" in text)
    )

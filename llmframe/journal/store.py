"""`Journal`: the store as the rest of llmframe sees it."""

from __future__ import annotations

import atexit
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from llmframe import options
from llmframe.errors import StoreError
from llmframe.interrupts import held_off
from llmframe.journal import batches, files, forks, jobs, owners, purge, replies, schema
from llmframe.journal.values import CHUNK, BatchRecord, Entry, JobRecord, Tally
from llmframe.journal.writer import InlineWriter, ThreadWriter, Writer

__all__ = ["Journal"]


class Journal:
    """Requests, claims, replies, jobs and batches, safe across threads, processes and crashes.

    Made by `Journal.open` or `Journal.memory`. A method that returns has its effect on disk; only
    `record` queues, and `flush` waits for it. All raise `StoreError` where the file cannot be
    used. Nothing here knows a secret: what callers hand over is stored as it is.

    Attributes:
        path: The file, or None for one in memory.
    """

    path: Path | None

    def __init__(self, path: Path | None) -> None:
        """Use `open` or `memory`."""
        self.path = path
        self._process = owners.Process.current()
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: Writer
        if path is None:
            db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            schema.create(db)
            self._writer = InlineWriter(db, self._store)
            # Nobody closes a journal in memory, and Python 3.13 warns of what nobody closes.
            weakref.finalize(self, db.close)
        else:
            self._writer = ThreadWriter(
                self._connect,
                self._store,
                lambda db: owners.beat(db, self._process),
                lambda: bool(self._process.runs),
                owners.BEAT,
                lambda error: files.unusable(path, error),
            )
        forks.watch(self)

    @classmethod
    def open(cls, home: Path | None = None) -> Journal:
        """The journal in the folder `home`: one object a process, opened again after a fork.

        Args:
            home: Default: `llmframe.options.home`.

        Raises:
            StoreError: The folder or the file cannot be used; the message says what to do.
        """
        home = (options.home() if home is None else Path(home).expanduser()).absolute()
        with forks.registry:
            journal = _opened.get(home)
            if journal is None:
                journal = cls(files.claim_home(home))
                journal._writer.call(lambda db: owners.reap(db, journal._process))
                files.warn_of_network(home)
                _opened[home] = journal
            return journal

    @classmethod
    def memory(cls) -> Journal:
        """A journal that lives and dies with the object; a forked child gets a copy."""
        return cls(None)

    # -- requests, claims, replies ---------------------------------------------------------

    def head(self, text: str) -> int:
        """Store the part that all requests of a call share, once.

        Args:
            text: JSON: system text, examples, schema, sampling.

        Returns:
            Its number, for `claim`.
        """
        keep = _keep_prompts()
        return self._writer.call(lambda db: replies.head(db, text, keep))

    def keep(self, head: int, requests: Sequence[tuple[bytes, bytes]]) -> None:
        """Store requests that nobody sends yet, so that another process may.

        Args:
            head: From `head`.
            requests: ``(key, tail)``, as `claim` takes them. Nothing is stored under
                ``keep_prompts=False``.
        """
        if _keep_prompts():
            self._writer.call(lambda db: replies.keep(db, head, requests))

    def claim(
        self,
        head: int,
        requests: Sequence[tuple[bytes, bytes | None]],
        job: str = "",
        again: bool = False,
        *,
        seen: Sequence[int] | None = None,
    ) -> list[bool]:
        """Store requests and claim them for this process's run of `job`, in one transaction.

        A claim ends with the reply (`record`), with `release` or `leave`, or with its owner's
        death: at once where the process can be seen to be gone, else after 30 s without a beat.

        Args:
            head: From `head`.
            requests: ``(key, tail)``; the tail is the row's own part of the prompt, or None.
                Not stored under ``keep_prompts=False``.
            job: Names the run. A key that another run has claimed is not given out twice, be
                that run in this process or in another.
            again: Claim answered keys too.
            seen: How many replies to each key the caller knows of; default none. A key that has
                got more in the meantime is not given: its answer is there to be read.

        Returns:
            For each request: True, it is this run's to send; False, another run has it or has
            answered it: look at `replies` again, later or now.
        """
        if not requests:
            return []
        keep = _keep_prompts()
        return self._writer.call(
            lambda db: replies.claim(db, self._process, head, requests, job, seen, again, keep)
        )

    def record(self, entries: Sequence[Entry]) -> None:
        """Append replies; the claims of their keys end. Committed within 50 ms or 256 rows.

        Raises:
            StoreError: Storing failed the last time. What was handed over is kept and tried
                again, but nothing more should be paid for.
        """
        self._writer.add([replies.row_of(entry) for entry in entries])

    def release(self, keys: Sequence[bytes]) -> None:
        """Give back claims of this process that were not sent."""
        self._writer.call(lambda db: replies.release(db, self._process, keys))

    def leave(self, job: str = "") -> None:
        """End this process's run of `job`: its live claims are free, it drives no more."""
        self._writer.call(lambda db: owners.leave(db, self._process, job))

    def flush(self) -> None:
        """Return when everything recorded so far is on disk."""
        self._writer.flush()

    def replies(self, keys: Sequence[bytes]) -> dict[bytes, list[Entry]]:
        """Every reply to each of `keys`, in the order they came; unanswered keys are left out.

        What this process has recorded is always among them.
        """
        self._writer.flush()
        found: dict[bytes, list[Entry]] = {}
        for marks, part in replies.batched(keys):
            with self._read() as db:
                entries = replies.read(db, marks, part)
            for entry in entries:
                found.setdefault(entry.key, []).append(entry)
        return found

    def tally(self, keys: Sequence[bytes], since: float) -> dict[bytes, Tally]:
        """The replies to each of `keys`, counted, which is cheaper than reading them.

        Args:
            keys: Of the requests; those without a reply are left out.
            since: Unix seconds from which on a reply is new.
        """
        self._writer.flush()
        found: dict[bytes, Tally] = {}
        for marks, part in replies.batched(keys):
            with self._read() as db:
                found |= replies.tally(db, marks, part, since)
        return found

    def held(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of `keys` that a living run (also of this process) or a provider's batch has."""
        with self._read() as db:
            return replies.held(db, self._process, keys)

    def prompt(self, key: bytes) -> tuple[str, bytes] | None:
        """Shared part and tail of a request; None where they are not stored."""
        with self._read() as db:
            return replies.prompt(db, key)

    # -- jobs ------------------------------------------------------------------------------

    def create_job(self, job: JobRecord) -> None:
        """Store a new job.

        Raises:
            StoreError: There is one of that id.
        """
        self._writer.call(lambda db: jobs.create(db, job))

    def update_job(self, id: str, **fields: Any) -> None:
        """Change fields of `JobRecord`. Any state but ``"running"`` also leaves the job.

        Raises:
            StoreError: No such job.
            TypeError: No such field.
        """
        self._writer.call(lambda db: jobs.update(db, self._process, id, fields))

    def forget_job(self, id: str) -> None:
        """A job that never came to anything is not listed; replies and batches are left alone."""
        self._writer.call(lambda db: jobs.forget(db, self._process, id))

    def job(self, id: str) -> JobRecord | None:
        """The job of that id."""
        with self._read() as db:
            return next(iter(jobs.load(db, self._process, id)), None)

    def jobs(self) -> list[JobRecord]:
        """All jobs, the newest first."""
        with self._read() as db:
            return jobs.load(db, self._process)

    def prove(self, id: str, mark: bytes, proof: Mapping[str, Any]) -> None:
        """Store that a job's engine has succeeded with what `mark` stands for."""
        self._writer.call(lambda db: jobs.prove(db, id, mark, proof))

    def proof(self, mark: bytes) -> Mapping[str, Any] | None:
        """The latest of what `prove` stored for `mark`, by any job."""
        with self._read() as db:
            return jobs.proof(db, mark)

    def drive(self, id: str) -> bool:
        """Become the one driver of a job, until `leave` or a final state.

        Returns:
            False while a living run drives it, in another process or already in this one.

        Raises:
            StoreError: No such job.
        """
        return self._writer.call(lambda db: jobs.drive(db, self._process, id))

    def save_rows(
        self, job: str, keys: bytes, status: bytes, labels: Sequence[str] | None, start: int
    ) -> None:
        """Store what rows a job has; the same rows again replace what was there.

        Args:
            job: Its id.
            keys: 16 bytes a row.
            status: 1 byte a row, in the caller's code.
            labels: The index label of each row as text, or None.
            start: Position of the first of them, a multiple of `llmframe.journal.CHUNK`.

        Raises:
            ValueError: The lengths do not fit, or `start` is none.
        """
        self._writer.call(lambda db: jobs.save_rows(db, job, keys, status, labels, start))

    def rows(self, job: str) -> Iterator[tuple[int, bytes, bytes, list[str] | None]]:
        """The rows of a job in order, as ``(start, keys, status, labels)``, 4,096 at a time."""
        start = 0
        while True:
            with self._read() as db:
                chunk = jobs.row_chunk(db, job, start)
            if chunk is None:
                return
            yield chunk
            start = chunk[0] + CHUNK

    # -- batches ---------------------------------------------------------------------------

    def open_batch(
        self, job: str, tag: str, count: int, account: str, lines: Sequence[tuple[str, int, bytes]]
    ) -> None:
        """Store the intent to send a batch, before anything of it is sent.

        The live claims of its keys become the batch's: those never pass on by time.

        Args:
            job: Id of the job that owns it.
            tag: Finds it again at the provider; unique in this journal.
            count: Lines in it.
            account: The provider's organisation or project.
            lines: ``(custom_id, part, key)`` of each request.

        Raises:
            StoreError: The tag is taken, or another run has claimed one of the keys.
        """
        self._writer.call(
            lambda db: batches.start(db, self._process, job, tag, count, account, lines)
        )

    def note(self, tag: str, name: str, value: str) -> None:
        """Commit one remote side effect (a file id, a list cursor) before the next is made."""
        self._writer.call(lambda db: batches.note(db, tag, name, value))

    def submitted(
        self, tag: str, provider_id: str, created_at: float, state: str = "submitted"
    ) -> None:
        """The provider has taken the batch. `created_at` is in Unix seconds, by its clock."""
        self._writer.call(lambda db: batches.submitted(db, tag, provider_id, created_at, state))

    def batch_state(self, tag: str, state: str) -> None:
        """Change a batch's state.

        ``"closed"`` is the end, once every result is recorded: its lines are dropped and keys
        that got no reply are free again. Any other word leaves it open.
        """
        self._writer.call(lambda db: batches.set_state(db, tag, state))

    def batches(self, job: str | None = None, open_only: bool = True) -> list[BatchRecord]:
        """Batches of a job, or of all jobs, the oldest first."""
        with self._read() as db:
            return batches.find(db, job, open_only)

    def lines(self, tag: str) -> list[tuple[str, int, bytes]]:
        """``(custom_id, part, key)`` of each request of a batch that is not closed."""
        with self._read() as db:
            return batches.lines(db, tag)

    # -- the end ---------------------------------------------------------------------------

    def purge(self, *, job: str | None = None, older_than: float | None = None) -> int:
        """Delete for good, and write the file anew so that nothing of it is left on its pages.

        Args:
            job: A job, with the prompts and replies that no other job uses.
            older_than: Age in seconds: jobs made before that, and every prompt and reply from
                before that which no younger job uses.

        Returns:
            Number of requests deleted, with all their replies.

        Raises:
            ValueError: Not exactly one of the two is given.
            StoreError: No such job, or it still runs or has an open batch.
        """
        self._writer.flush()
        count = self._writer.call(lambda db: purge.purge(db, self._process, job, older_than))
        path = self.path
        if path is not None:
            self._writer.call(lambda db: purge.compact(db, path), alone=True)
        return count

    def close(self) -> None:
        """Store what is queued, give back this process's claims, let go of the file.

        For tests, as all runs of the process share the journal and its end closes it. Used again,
        it opens its file again.

        Raises:
            StoreError: Something could not be stored.
        """
        with forks.registry:
            for home in [home for home, journal in _opened.items() if journal is self]:
                del _opened[home]
        try:
            if self._process.runs:
                self._writer.call(lambda db: owners.leave_all(db, self._process))
        finally:
            with self._reading:
                self._close_reader()
            self._writer.close()

    # -- inside ----------------------------------------------------------------------------

    def _store(self, db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        replies.store(db, self._process, rows)

    def _connect(self) -> sqlite3.Connection:
        assert self.path is not None
        # Checked again: this may be a forked child, long after the start.
        return files.connect(files.claim_home(self.path.parent))

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        if isinstance(self._writer, InlineWriter):
            with self._writer.database:
                yield self._writer.db
            return
        assert self.path is not None
        with self._reading:
            try:
                if self._reader is None:
                    self._writer.call(lambda db: None)  # makes or checks the file
                    self._reader = files.connect(self.path, read_only=True)
                yield self._reader
            except sqlite3.Error as error:
                raise files.unusable(self.path, error) from error

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def before_fork(self) -> None:
        """Let go of the file, and hold every lock."""
        self._reading.acquire()
        self._close_reader()
        self._writer.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on; the file is opened again when needed."""
        self._writer.after_fork_in_parent()
        self._reading.release()

    def after_fork_in_child(self) -> None:
        """Start afresh: what the parent queued and claimed stays the parent's."""
        self._reading = threading.Lock()
        parent, self._process = self._process, owners.Process.current()
        self._writer.reset()
        if isinstance(self._writer, InlineWriter):
            # In a copy of the memory nobody will ever answer what the parent has claimed.
            self._writer.call(lambda db: owners.leave_all(db, parent))


def _keep_prompts() -> bool:
    return options.get_options().keep_prompts is not False


_opened: Final[dict[Path, Journal]] = {}


@atexit.register
def _at_exit() -> None:
    with held_off():
        for journal in list(_opened.values()):
            with suppress(StoreError):  # nobody is left to be told
                journal.close()

"""The one thread of a process that writes to the journal.

Callers hand over rows and tasks; the thread commits them in groups, because a commit waits for
the disk and a row does not. The lock of the file is held only while a group is written, never
while one gathers, so other processes get their turn.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from llmframe.errors import StoreError

__all__ = ["GROUP", "PAUSE", "InlineWriter", "ThreadWriter", "Writer"]

GROUP: Final = 256
"""Rows that are committed without waiting for more."""
PAUSE: Final = 0.05
"""Seconds a row waits for others to be committed with."""
RETRY: Final = 1.0
"""Seconds between two tries to store rows that could not be stored."""

T = TypeVar("T")
Row = tuple[Any, ...]
Work = Callable[[sqlite3.Connection], T]
Store = Callable[[sqlite3.Connection, Sequence[Row]], None]


class Writer(Protocol):
    """What the journal needs of either writer."""

    def call(self, work: Work[T], *, alone: bool = False) -> T:
        """Run `work` in a transaction (`alone`: outside of any), return once it is on disk."""

    def add(self, rows: Sequence[Row]) -> None:
        """Store `rows` soon."""

    def flush(self) -> None:
        """Return when every row handed over so far is on disk."""

    def close(self) -> None:
        """Store what is left and let go of the file."""

    def before_fork(self) -> None:
        """Nobody uses the database until one of the two below."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def reset(self) -> None:
        """Start afresh in the forked child."""


class _Task(Generic[T]):
    __slots__ = ("_done", "_error", "_value", "alone", "work")

    def __init__(self, work: Work[T], alone: bool) -> None:
        self.work = work
        self.alone = alone
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: T | None = None

    def finish(self, value: T | None = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._done.set()

    def wait(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


_Outcome = tuple[_Task[Any], Any, Exception | None]


def _transaction(db: sqlite3.Connection, work: Work[T]) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        value = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite itself rolls back on a full disk
            db.execute("ROLLBACK")
        raise
    return value


class ThreadWriter:
    """Writes to a file, from one thread, in groups.

    Args:
        connect: Opens the file.
        store: Writes rows inside an open transaction.
        beat: Called inside a transaction every `interval` seconds while `busy()`.
        busy: Whether there is anything to keep alive.
        interval: Seconds between two beats.
        failed: Makes the error that callers get from what SQLite said.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        store: Store,
        beat: Work[None],
        busy: Callable[[], bool],
        interval: float,
        failed: Callable[[sqlite3.Error], StoreError],
    ) -> None:
        self._connect = connect
        self._store = store
        self._beat = beat
        self._busy = busy
        self._interval = interval
        self._failed = failed
        self.reset()

    def reset(self) -> None:
        """Start afresh, as after a fork: what the parent queued, the parent writes."""
        self.database = threading.Lock()
        self._queue = threading.Condition(threading.Lock())
        self._rows: list[Row] = []
        self._first = 0.0
        self._writing = False
        self._tasks: list[_Task[Any]] = []
        self._error: StoreError | None = None
        self._retry_at = 0.0
        self._beat_at = time.monotonic() + self._interval
        self._closing = False
        self._thread: threading.Thread | None = None
        self._db: sqlite3.Connection | None = None

    # -- what callers use ------------------------------------------------------------------

    def call(self, work: Work[T], *, alone: bool = False) -> T:
        """As `Writer.call`.

        Raises:
            StoreError: It could not be stored; nothing of it is.
        """
        task = _Task(work, alone)
        with self._queue:
            self._tasks.append(task)
            self._wake()
        return task.wait()

    def add(self, rows: Sequence[Row]) -> None:
        """As `Writer.add`.

        Raises:
            StoreError: The last try to write failed. The rows are kept and tried again.
        """
        with self._queue:
            if not self._rows:
                self._first = time.monotonic()
            before = len(self._rows)
            self._rows.extend(rows)
            if before == 0 or before < GROUP <= len(self._rows):
                self._wake()
            if self._error is not None:
                raise self._error

    def flush(self) -> None:
        """As `Writer.flush`; costs nothing where nothing is queued."""
        with self._queue:
            idle = not self._rows and not self._writing
        if not idle:
            self.call(lambda db: None)

    def close(self) -> None:
        """As `Writer.close`; a later call opens the file again.

        Raises:
            StoreError: Some rows could not be stored.
        """
        with self._queue:
            self._closing = True
            self._queue.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._queue:
            rows, self._rows = self._rows, []
            tasks, self._tasks = self._tasks, []
            self._closing = False
            self._thread = None
        if rows or tasks:  # the thread died with the interpreter, or could not write
            self._commit(rows, tasks)
        self.disconnect()
        if self._rows and self._error is not None:
            raise self._error

    def disconnect(self) -> None:
        """Close the connection; the next group opens it again."""
        with self.database:
            self._close_database()

    def _close_database(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- around a fork ---------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait for the group in hand, then let go of the file.

        A child would inherit SQLite's notes of the locks that this process holds on the file,
        and believe it holds them itself. So at the moment of a fork there are none.
        """
        self.database.acquire()
        self._queue.acquire()
        self._close_database()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._queue.release()
        self.database.release()

    # -- the thread ------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is None and not self._closing:
            thread = threading.Thread(target=self._loop, name="llmframe-journal", daemon=True)
            thread.start()
            self._thread = thread
        self._queue.notify_all()

    def _due(self) -> float:
        """When the thread has something to do, by the monotonic clock; 0: now."""
        if self._tasks or self._closing:
            return 0.0
        due = self._beat_at if self._busy() else float("inf")
        if self._rows:
            ready = 0.0 if len(self._rows) >= GROUP else self._first + PAUSE
            due = min(due, max(ready, self._retry_at))
        return due

    def _loop(self) -> None:
        queue = self._queue
        while True:
            with queue:
                while (pause := self._due() - time.monotonic()) > 0:
                    queue.wait(None if pause == float("inf") else pause)
                if self._closing and not self._tasks and not self._rows:
                    return
                rows, self._rows = self._rows, []
                tasks, self._tasks = self._tasks, []
                self._writing = True
            try:
                self._commit(rows, tasks)
            finally:
                with queue:
                    self._writing = False
                    stuck = self._closing and bool(self._rows)
            if stuck:
                return

    def _commit(self, rows: list[Row], tasks: list[_Task[Any]]) -> None:
        done: list[_Outcome] = []
        beating = time.monotonic() >= self._beat_at and self._busy()
        try:
            with self.database:
                if self._db is None:
                    self._db = self._connect()
                db = self._db
                grouped = [task for task in tasks if not task.alone]
                if rows or grouped or beating:
                    done = self._group(db, rows, grouped, beating)
                rows = []
                done += [self._one(db, task) for task in tasks if task.alone]
        except Exception as error:
            # The rows are somebody's paid replies: they stay queued until they are on disk.
            failure = self._as_store_error(error)
            with self._queue:
                if rows:
                    self._rows[:0] = rows
                    self._first = time.monotonic()
                self._retry_at = self._beat_at = time.monotonic() + RETRY
                self._error = failure
            for task in tasks:
                task.finish(error=failure)
            return
        with self._queue:
            self._error = None
            self._retry_at = 0.0
        for task, value, failed in done:
            task.finish(value, failed)

    def _as_store_error(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, sqlite3.Error):
            return self._failed(error)
        return StoreError(f"the journal's writer failed: {type(error).__name__}: {error}")

    def _group(
        self, db: sqlite3.Connection, rows: list[Row], tasks: list[_Task[Any]], beating: bool
    ) -> list[_Outcome]:
        def together(db: sqlite3.Connection) -> list[_Outcome]:
            if rows:
                self._store(db, rows)
            if beating:
                self._beat(db)
            return [(task, task.work(db), None) for task in tasks]

        try:
            done = _transaction(db, together)
        except sqlite3.Error:
            raise  # the disk or the file, so everybody's trouble
        except Exception:
            # A task of its own accord, such as an unknown job; the others are not to suffer. Not
            # by savepoints: they cost each page of every group a copy.
            tasks, apart = [], tasks
            done = _transaction(db, together)
            done += [self._one(db, task) for task in apart]
        if beating:
            self._beat_at = time.monotonic() + self._interval
        return done

    def _one(self, db: sqlite3.Connection, task: _Task[Any]) -> _Outcome:
        try:
            return task, task.work(db) if task.alone else _transaction(db, task.work), None
        except sqlite3.Error as error:
            return task, None, self._failed(error)
        except Exception as error:
            return task, None, error


class InlineWriter:
    """Writes to a database in memory, at once, in the thread that calls.

    Args:
        db: The database; whoever reads it takes `database` first.
        store: Writes rows inside an open transaction.
    """

    def __init__(self, db: sqlite3.Connection, store: Store) -> None:
        self.db = db
        self._store = store
        self.database = threading.Lock()
        weakref.finalize(self, db.close)

    def call(self, work: Work[T], *, alone: bool = False) -> T:
        """As `Writer.call`."""
        with self.database:
            return work(self.db) if alone else _transaction(self.db, work)

    def add(self, rows: Sequence[Row]) -> None:
        """As `Writer.add`."""
        self.call(lambda db: self._store(db, rows))

    def flush(self) -> None:
        """As `Writer.flush`."""

    def close(self) -> None:
        """As `Writer.close`: the memory goes with the object."""

    def before_fork(self) -> None:
        """Keep other threads out of the database, so that the child's copy is whole."""
        self.database.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.database.release()

    def reset(self) -> None:
        """Start afresh in a forked child."""
        self.database = threading.Lock()

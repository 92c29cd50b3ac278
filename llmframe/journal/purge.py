"""Deleting for good: prompts, replies, labels, and the pages they stood on."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from llmframe.errors import StoreError
from llmframe.journal.jobs import unknown
from llmframe.journal.owners import Process, living, reap

__all__ = ["compact", "purge"]


def purge(
    db: sqlite3.Connection, process: Process, job: str | None, older_than: float | None
) -> int:
    """As `Journal.purge`, but for the pages: see `compact`."""
    reap(db, process)
    if job is not None and older_than is None:
        reason = _open(db, process, job)
        if reason is not None:
            raise StoreError(f"job {job!r} {reason}. Wait for it or cancel it, then purge it.")
        if db.execute("SELECT 1 FROM job WHERE id = ?", (job,)).fetchone() is None:
            raise unknown(job)
        jobs, doomed = [job], set(_keys(db, job))
    elif job is None and older_than is not None:
        cutoff = time.time() - older_than
        old = db.execute("SELECT id FROM job WHERE created < ?", (cutoff,)).fetchall()
        jobs = [name for (name,) in old if _open(db, process, name) is None]
        doomed = {
            key
            for (key,) in db.execute(
                "SELECT key FROM request WHERE state = 0 AND NOT EXISTS"
                " (SELECT 1 FROM reply WHERE request = request.id AND at >= ?)",
                (cutoff,),
            )
        }
    else:
        raise ValueError(
            f"purge(job={job!r}, older_than={older_than!r}): say one of the two, a job's id or an "
            f"age in seconds."
        )
    for name in jobs:
        db.execute("DELETE FROM job_rows WHERE job = ?", (name,))
        db.execute("DELETE FROM batch WHERE job = ?", (name,))
        db.execute("DELETE FROM job WHERE id = ?", (name,))
    for (name,) in db.execute("SELECT DISTINCT job FROM job_rows").fetchall():
        doomed.difference_update(_keys(db, name))
    return _delete(db, doomed)


def _open(db: sqlite3.Connection, process: Process, job: str) -> str | None:
    """Why the job cannot be forgotten yet: what is paid for would be lost in silence."""
    row = db.execute("SELECT driver FROM job WHERE id = ?", (job,)).fetchone()
    owners = living(db, process)
    if row is not None and row[0] in owners:
        return f"is running ({owners[row[0]]})"
    batch = db.execute(
        "SELECT tag FROM batch WHERE job = ? AND state != 'closed' LIMIT 1", (job,)
    ).fetchone()
    return None if batch is None else f"has an open batch at the provider ({batch[0]})"


def _keys(db: sqlite3.Connection, job: str) -> Iterator[bytes]:
    for (keys,) in db.execute("SELECT keys FROM job_rows WHERE job = ?", (job,)):
        yield from (keys[at : at + 16] for at in range(0, len(keys), 16))


def _delete(db: sqlite3.Connection, doomed: set[bytes]) -> int:
    db.execute("CREATE TEMP TABLE doomed (request INTEGER PRIMARY KEY, head INTEGER)")
    db.executemany(
        # What somebody has claimed in the meantime is about to be answered for them.
        "INSERT INTO doomed SELECT id, head FROM request WHERE key = ? AND state = 0",
        ((key,) for key in doomed),
    )
    count = int(db.execute("SELECT count(*) FROM doomed").fetchone()[0])
    db.execute("DELETE FROM reply WHERE request IN (SELECT request FROM doomed)")
    db.execute("DELETE FROM request WHERE id IN (SELECT request FROM doomed)")
    db.execute(
        "DELETE FROM head WHERE id IN (SELECT head FROM doomed)"
        " AND id NOT IN (SELECT head FROM request WHERE head IS NOT NULL)"
    )
    db.execute("DROP TABLE doomed")
    return count


def compact(db: sqlite3.Connection, path: Path) -> None:
    """Write the file anew without what was deleted, outside of any transaction.

    A deleted row's bytes stay in free pages, in pages that were split, in the write-ahead log,
    and in the copies that migrations made.

    Raises:
        StoreError: Another process still reads the old pages.
    """
    db.execute("VACUUM")
    # The answer's first column is 1 where a reader held on for longer than the busy timeout.
    if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise StoreError(
            f"deleted, but another process still reads the old pages in {path}-wal. End it, then "
            f"purge again to remove them too."
        )
    for copy in path.parent.glob(f"{path.name}.v*"):
        copy.unlink()

"""The tables, the format's version, and the way from an older one."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llmframe.errors import StoreError

__all__ = ["APPLICATION_ID", "MIGRATIONS", "VERSION", "create", "prepare"]

APPLICATION_ID: Final = 0x6C6C6D66  # "llmf"
VERSION: int = 2

MIGRATIONS: Mapping[int, tuple[str, ...]] = {
    1: ("ALTER TABLE reply ADD COLUMN cache_write_1h_tokens INTEGER",),
}
"""From each older version, the statements that lead to the one after it."""

PATIENCE: Final = 30.0
"""Seconds to wait for another process that is creating or migrating the file."""

# A reply's body must never sit in a WITHOUT ROWID table: random keys would then move whole
# bodies about (36 against 14 µs a row at a million rows). So rows are appended under small
# integer ids, and only the 16-byte keys are in random order, in the index of `key`.
_TABLES: Final = """
CREATE TABLE owner (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, host TEXT NOT NULL, boot TEXT NOT NULL,
    pid INTEGER NOT NULL, started INTEGER NOT NULL, beat REAL NOT NULL
);
CREATE TABLE head (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, json TEXT NOT NULL);
CREATE TABLE request (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, head INTEGER, tail BLOB,
    state INTEGER NOT NULL, owner INTEGER, batch INTEGER
);
CREATE INDEX request_open ON request (owner) WHERE state = 1;
CREATE TABLE reply (
    id INTEGER PRIMARY KEY, request INTEGER NOT NULL, attempt INTEGER NOT NULL,
    lane TEXT NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, message TEXT, finish TEXT,
    model TEXT, request_id TEXT, input_tokens INTEGER, output_tokens INTEGER,
    cached_tokens INTEGER, cache_write_tokens INTEGER, reasoning_tokens INTEGER, cost REAL,
    latency REAL, maybe_paid INTEGER NOT NULL, asked TEXT, scores BLOB, vector BLOB, text TEXT,
    reasoning TEXT, cache_write_1h_tokens INTEGER
);
CREATE INDEX reply_request ON reply (request);
CREATE TABLE batch (
    id INTEGER PRIMARY KEY, job TEXT NOT NULL, tag TEXT NOT NULL UNIQUE, count INTEGER NOT NULL,
    account TEXT NOT NULL, state TEXT NOT NULL, opened REAL NOT NULL, provider_id TEXT,
    created_at REAL, notes TEXT NOT NULL
);
CREATE INDEX batch_job ON batch (job);
CREATE TABLE line (
    batch INTEGER NOT NULL, custom_id TEXT NOT NULL, part INTEGER NOT NULL,
    request INTEGER NOT NULL, PRIMARY KEY (batch, custom_id, part)
) WITHOUT ROWID;
CREATE TABLE job (
    id TEXT PRIMARY KEY, created REAL NOT NULL, driver INTEGER, state TEXT NOT NULL,
    call TEXT NOT NULL, engine TEXT NOT NULL, count INTEGER NOT NULL, salt TEXT NOT NULL,
    budget REAL, error TEXT, finished REAL, counts TEXT NOT NULL, spent REAL
);
CREATE TABLE job_rows (
    job TEXT NOT NULL, start INTEGER NOT NULL, keys BLOB NOT NULL, status BLOB NOT NULL,
    labels TEXT, PRIMARY KEY (job, start)
) WITHOUT ROWID;
"""


def create(db: sqlite3.Connection) -> None:
    """Make the tables inside the transaction that is open on `db`."""
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def prepare(db: sqlite3.Connection, path: Path, journal_mode: str) -> None:
    """Make the file behind `db` a journal of this version, ready to write to.

    Args:
        db: A connection in autocommit mode.
        path: Its file, for the messages and for the copy that a migration makes.
        journal_mode: ``"WAL"``, or ``"TRUNCATE"`` where memory cannot be shared between hosts.

    Raises:
        StoreError: The file is no journal, a newer one, damaged, or in use by an older llmframe.
    """
    db.execute("PRAGMA page_size = 8192")  # counts only before the first page is written
    # Before anything is changed: somebody else's database must not even be turned to WAL.
    version = _version(db, path)
    if 0 < version < VERSION:
        _migrate(db, path)
    _switch(db, path, journal_mode)
    if version == 0:
        db.execute("BEGIN IMMEDIATE")
        if _version(db, path) == 0:  # another process may have been first
            create(db)
        db.execute("COMMIT")
    # A commit that a reader has seen must survive a power cut; costs 0.4 µs a row in groups.
    db.execute("PRAGMA synchronous = FULL")


def _version(db: sqlite3.Connection, path: Path) -> int:
    # One snapshot: between two reads another process may have made the tables.
    alone = not db.in_transaction
    if alone:
        db.execute("BEGIN")
    try:
        ours = _pragma(db, "application_id")
        empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        version = _pragma(db, "user_version")
    finally:
        if alone and db.in_transaction:
            db.execute("COMMIT")
    if ours == 0 and empty:
        return 0
    if ours != APPLICATION_ID or version < 1:
        raise StoreError(
            f"{path} is an SQLite database of another program, not a journal of llmframe. "
            f"Move it away, or choose another folder: lf.set_options(home=…)."
        )
    if version > VERSION:
        raise StoreError(
            f"the journal {path} has format {version}, written by a newer llmframe; this one "
            f"reads up to {VERSION}. Update it: pip install -U llmframe."
        )
    return version


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _switch(db: sqlite3.Connection, path: Path, mode: str) -> None:
    # SQLite gives up at once, whatever the busy timeout, where two processes switch together
    # (each would wait for the other); so the waiting is done here.
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            (now,) = db.execute(f"PRAGMA journal_mode = {mode}").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            now = "locked"
        if now.upper() == mode:
            return
        if time.monotonic() > deadline:
            raise StoreError(
                f"the journal {path} cannot be set to journal_mode={mode} (it is {now}): another "
                f"process is using it. End that process, then try again."
            )
        time.sleep(0.02)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    # A process of the older version must not go on writing its own format, and only leaving WAL
    # proves that nobody else has the file open.
    _switch(db, path, "DELETE")
    # Kept between the two transactions, as SQLite copies nothing out of one that writes.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("COMMIT")
    version = _version(db, path)
    if version < VERSION:  # else another process was first
        _copy(db, path.with_name(f"{path.name}.v{version}"))
        db.execute("BEGIN")
        try:
            for step in range(version, VERSION):
                for statement in MIGRATIONS[step]:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    db.execute("PRAGMA locking_mode = NORMAL")
    _version(db, path)  # the lock goes with the next read


def _copy(db: sqlite3.Connection, target: Path) -> None:
    # Through SQLite: opening and closing the file by hand would drop this process's locks on it.
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    copy = sqlite3.connect(target)
    try:
        db.backup(copy)
    finally:
        copy.close()

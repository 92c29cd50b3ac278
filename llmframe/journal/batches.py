"""Provider batches: the intent before anything is sent, until every line is checked off."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from llmframe.errors import StoreError
from llmframe.journal.owners import Process, living
from llmframe.journal.values import BatchRecord

__all__ = ["find", "lines", "note", "set_state", "start", "submitted"]

_COLUMNS: Final = tuple(field.name for field in fields(BatchRecord))


def start(
    db: sqlite3.Connection,
    process: Process,
    job: str,
    tag: str,
    count: int,
    account: str,
    lines: Sequence[tuple[str, int, bytes]],
) -> None:
    """As `Journal.open_batch`."""
    try:
        number = db.execute(
            "INSERT INTO batch (job, tag, count, account, state, opened, notes)"
            " VALUES (?, ?, ?, ?, 'intent', ?, '{}')",
            (job, tag, count, account, time.time()),
        ).lastrowid
    except sqlite3.IntegrityError as error:
        raise StoreError(f"there is a batch {tag!r} already. Make a new tag.") from error
    db.executemany(
        "INSERT INTO request (key, state) VALUES (?, 0) ON CONFLICT (key) DO NOTHING",
        ((key,) for _, _, key in lines),
    )
    # In this transaction live claims, which pass on by time, become claims that do not.
    own = set(process.runs.values())
    others = ", ".join(str(owner) for owner in living(db, process) if owner not in own)
    taken = db.executemany(
        f"UPDATE request SET state = 2, owner = NULL, batch = {number} WHERE key = ?"
        f" AND (state < 2 AND (owner IS NULL OR owner NOT IN ({others})) OR batch = {number})",
        ((key,) for _, _, key in lines),
    ).rowcount
    if taken != len(lines):
        raise StoreError(
            f"batch {tag!r}: {len(lines) - taken} of {len(lines)} requests are claimed by another "
            f"process. Claim them before they are packed."
        )
    db.executemany(
        "INSERT INTO line (batch, custom_id, part, request)"
        f" SELECT {number}, ?, ?, id FROM request WHERE key = ?",
        lines,
    )


def note(db: sqlite3.Connection, tag: str, name: str, value: str) -> None:
    """Add one remote side effect to the batch's notes."""
    row = db.execute("SELECT notes FROM batch WHERE tag = ?", (tag,)).fetchone()
    if row is None:
        raise _unknown(tag)
    notes = {**json.loads(row[0]), name: value}
    db.execute("UPDATE batch SET notes = ? WHERE tag = ?", (json.dumps(notes), tag))


def submitted(
    db: sqlite3.Connection, tag: str, provider_id: str, created_at: float, state: str
) -> None:
    """The provider has it."""
    changed = db.execute(
        "UPDATE batch SET state = ?, provider_id = ?, created_at = ? WHERE tag = ?",
        (state, provider_id, created_at, tag),
    ).rowcount
    if changed == 0:
        raise _unknown(tag)


def set_state(db: sqlite3.Connection, tag: str, state: str) -> None:
    """Change the state; ``"closed"`` drops the lines and ends the claims that are left."""
    row = db.execute("SELECT id FROM batch WHERE tag = ?", (tag,)).fetchone()
    if row is None:
        raise _unknown(tag)
    db.execute("UPDATE batch SET state = ? WHERE id = ?", (state, row[0]))
    if state == "closed":
        db.execute(
            "UPDATE request SET state = 0, batch = NULL WHERE state = 2 AND batch = ?"
            " AND id IN (SELECT request FROM line WHERE batch = ?)",
            (row[0], row[0]),
        )
        db.execute("DELETE FROM line WHERE batch = ?", row)


def _unknown(tag: str) -> StoreError:
    return StoreError(f"no batch {tag!r} in this journal. Was its job purged?")


def find(db: sqlite3.Connection, job: str | None, open_only: bool) -> list[BatchRecord]:
    """Batches of one job, or of all, the oldest first."""
    return [
        BatchRecord(**{**dict(zip(_COLUMNS, row, strict=True)), "notes": json.loads(row[-1])})
        for row in db.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM batch WHERE (? IS NULL OR job = ?)"
            " AND (NOT ? OR state != 'closed') ORDER BY id",
            (job, job, open_only),
        )
    ]


def lines(db: sqlite3.Connection, tag: str) -> list[tuple[str, int, bytes]]:
    """``(custom_id, part, key)`` of each request of an open batch."""
    return db.execute(
        "SELECT custom_id, part, key FROM line JOIN request ON request.id = line.request"
        " WHERE line.batch = (SELECT id FROM batch WHERE tag = ?)",
        (tag,),
    ).fetchall()

"""Jobs, who drives them, and the rows they are made of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from llmframe.errors import StoreError
from llmframe.journal.owners import Process, ensure, leave, living
from llmframe.journal.values import CHUNK, JobRecord

__all__ = [
    "create",
    "drive",
    "forget",
    "load",
    "proof",
    "prove",
    "row_chunk",
    "save_rows",
    "update",
]

_COLUMNS: Final = tuple(field.name for field in fields(JobRecord) if field.name != "driver")
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)}, driver FROM job"


def _stored(name: str, value: Any) -> Any:
    return json.dumps(dict(value)) if name == "counts" else value


def create(db: sqlite3.Connection, job: JobRecord) -> None:
    """Store a new job."""
    values = [_stored(name, getattr(job, name)) for name in _COLUMNS]
    marks = ", ".join("?" * len(_COLUMNS))
    try:
        db.execute(f"INSERT INTO job ({', '.join(_COLUMNS)}) VALUES ({marks})", values)
    except sqlite3.IntegrityError as error:
        raise StoreError(f"there is a job {job.id!r} already. Make a new id.") from error


def update(db: sqlite3.Connection, process: Process, job: str, changes: Mapping[str, Any]) -> None:
    """Change fields of a job; a job that runs no more is driven no more."""
    known = [name for name in _COLUMNS if name not in {"id", "created"}]
    for name in changes:
        if name not in known:
            raise TypeError(f"a job has no field {name!r} to change; there are {', '.join(known)}.")
    if changes:
        assignments = ", ".join(f"{name} = ?" for name in changes)
        values = [_stored(name, value) for name, value in changes.items()]
        if db.execute(f"UPDATE job SET {assignments} WHERE id = ?", (*values, job)).rowcount == 0:
            raise unknown(job)
    if changes.get("state", "running") != "running":
        leave(db, process, job)


def prove(db: sqlite3.Connection, job: str, mark: bytes, proof: Mapping[str, Any]) -> None:
    """Store with a job that its engine has succeeded; a job that is not stored has no place."""
    row = db.execute("SELECT engine FROM job WHERE id = ?", (job,)).fetchone()
    if row is not None:
        engine = json.loads(row[0]) | {"proof": {"mark": mark.hex(), **proof}}
        db.execute("UPDATE job SET engine = ? WHERE id = ?", (json.dumps(engine), job))


def proof(db: sqlite3.Connection, mark: bytes) -> dict[str, Any] | None:
    """The latest proof of a mark, of whatever job."""
    like = f'%"{mark.hex()}"%'
    rows = db.execute("SELECT engine FROM job WHERE engine LIKE ?", (like,)).fetchall()
    found = [json.loads(engine).get("proof") for (engine,) in rows]
    return max(filter(None, found), key=lambda one: float(one["at"]), default=None)


def forget(db: sqlite3.Connection, process: Process, job: str) -> None:
    """As `Journal.forget_job`."""
    leave(db, process, job)
    db.execute("DELETE FROM job_rows WHERE job = ?", (job,))
    db.execute("DELETE FROM job WHERE id = ?", (job,))


def unknown(job: str) -> StoreError:
    """The error for a job that is not there."""
    return StoreError(f"no job {job!r} in this journal. lf.jobs() lists what there is.")


def load(db: sqlite3.Connection, process: Process, job: str | None = None) -> list[JobRecord]:
    """One job, or all of them, the newest first."""
    where, values = ("", ()) if job is None else (" WHERE id = ?", (job,))
    rows = db.execute(f"{_SELECT}{where} ORDER BY created DESC, rowid DESC", values).fetchall()
    owners = living(db, process) if rows else {}
    records = []
    for *row, driver in rows:
        stored = dict(zip(_COLUMNS, row, strict=True))
        stored["counts"] = json.loads(stored["counts"])
        records.append(JobRecord(**stored, driver=owners.get(driver)))
    return records


def drive(db: sqlite3.Connection, process: Process, job: str) -> bool:
    """Make this process's run of `job` its driver, unless a living run is."""
    row = db.execute("SELECT driver FROM job WHERE id = ?", (job,)).fetchone()
    if row is None:
        raise unknown(job)
    if row[0] is not None and row[0] in living(db, process):
        return False
    db.execute("UPDATE job SET driver = ? WHERE id = ?", (ensure(db, process, job), job))
    return True


def save_rows(
    db: sqlite3.Connection,
    job: str,
    keys: bytes,
    status: bytes,
    labels: Sequence[str] | None,
    start: int,
) -> None:
    """As `Journal.save_rows`."""
    if start % CHUNK:
        raise ValueError(f"start={start}: expected a multiple of {CHUNK}.")
    if len(keys) != 16 * len(status) or (labels is not None and len(labels) != len(status)):
        raise ValueError(
            f"{len(keys)} bytes of keys, {len(status)} of status and "
            f"{'no' if labels is None else len(labels)} labels: expected 16 bytes, 1 byte and "
            f"1 label a row."
        )
    db.executemany(
        "INSERT OR REPLACE INTO job_rows (job, start, keys, status, labels) VALUES (?, ?, ?, ?, ?)",
        [
            (
                job,
                start + at,
                keys[16 * at : 16 * (at + CHUNK)],
                status[at : at + CHUNK],
                None if labels is None else json.dumps(list(labels[at : at + CHUNK])),
            )
            for at in range(0, len(status), CHUNK)
        ],
    )


def row_chunk(
    db: sqlite3.Connection, job: str, start: int
) -> tuple[int, bytes, bytes, list[str] | None] | None:
    """The first stored chunk of rows at or after `start`."""
    row = db.execute(
        "SELECT start, keys, status, labels FROM job_rows WHERE job = ? AND start >= ?"
        " ORDER BY start LIMIT 1",
        (job, start),
    ).fetchone()
    if row is None:
        return None
    return row[0], row[1], row[2], None if row[3] is None else json.loads(row[3])

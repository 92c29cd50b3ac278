"""Who holds what: this process's runs, and whether another owner is alive.

A claim belongs to a *run*: one job in one process. Two runs in one process keep out of each
other's way exactly as two processes do.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = [
    "BEAT",
    "STALE",
    "Process",
    "alive",
    "beat",
    "ensure",
    "leave",
    "leave_all",
    "living",
    "reap",
]

BEAT: Final = 5.0
"""Seconds between two beats."""
STALE: Final = 30.0
"""Seconds without a beat after which an owner that cannot be looked at counts as dead."""

_PROC = Path("/proc")


def monotonic() -> float:
    """Seconds; on one boot of one machine the same clock in every process."""
    return time.monotonic()


@dataclass(slots=True)
class Process:
    """This process, as owner of claims.

    Attributes:
        host: Name of the host, and of the process-id namespace: two containers may share a
            boot, and yet not see each other's processes.
        boot: Id of this boot of the machine; empty where the system has none. Processes that
            share it share the monotonic clock too.
        pid: Process id.
        started: When the process started, in the kernel's ticks: pids are used again.
        runs: Owner id by job, of the runs that may hold something.
    """

    host: str
    boot: str
    pid: int
    started: int
    runs: dict[str, int] = field(default_factory=dict)
    _seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def current(cls) -> Process:
        """The process that calls."""
        pid = os.getpid()
        started, _ = _process(pid)
        return cls(
            host=f"{socket.gethostname()} {_link('self/ns/pid')}".strip(),
            boot=f"{_text('sys/kernel/random/boot_id')} {_link('self/ns/time')}".strip(),
            pid=pid,
            started=started,
        )

    def sees(self, owner: int, beat: float) -> bool:
        """Whether `beat` has changed within `STALE` seconds of being looked at.

        Two machines share no clock, so an age cannot be told from the stored time; what can is
        that it stands still.
        """
        now = monotonic()
        last, since = self._seen.get(owner, (None, now))
        if last != beat:
            since = now
        self._seen[owner] = (beat, since)
        return now - since <= STALE


def _text(name: str) -> str:
    try:
        return (_PROC / name).read_text().strip()
    except OSError:
        return ""


def _link(name: str) -> str:
    try:
        return os.readlink(_PROC / name)
    except OSError:
        return ""


def _process(pid: int) -> tuple[int, str]:
    """Start in ticks and state letter of a process; ``(0, "")`` where there is none."""
    # The name in the second field may hold blanks and parentheses.
    fields = _text(f"{pid}/stat").rpartition(")")[2].split()
    return (int(fields[19]), fields[0]) if len(fields) > 19 else (0, "")


_OWNER: Final = "SELECT id, job, host, boot, pid, started, beat FROM owner"


def alive(process: Process, owner: tuple[int, str, str, str, int, int, float]) -> bool:
    """Whether the run behind a row of `owner` may still send and record."""
    number, job, host, boot, pid, started, beat = owner
    if process.runs.get(job) == number:
        return True
    if boot and boot == process.boot:
        if host == process.host:
            start, state = _process(pid)
            if start != started or state in "ZX":  # gone, another process by now, or a zombie
                return False
            if state not in "Tt":
                # It runs: a writer thread kept from its beat by a long call under the GIL must
                # not cost a second payment. A stopped one (Ctrl-Z) goes by its beat.
                return True
        return monotonic() - beat <= STALE
    return process.sees(number, beat)


def ensure(db: sqlite3.Connection, process: Process, job: str) -> int:
    """Owner id of this process's run of `job`, with a fresh beat; stored where it is not.

    Ids are random: a number that a rolled-back transaction gave out must not become another
    process's.
    """
    number = process.runs.get(job)
    if number is None:
        number = process.runs[job] = secrets.randbits(62)
    db.execute(
        "INSERT INTO owner (id, job, host, boot, pid, started, beat) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET beat = excluded.beat",
        (number, job, process.host, process.boot, process.pid, process.started, monotonic()),
    )
    return number


def beat(db: sqlite3.Connection, process: Process) -> None:
    """Say that this process lives; runs that hold nothing any more are forgotten."""
    for job, number in list(process.runs.items()):
        holds = db.execute(
            "SELECT EXISTS (SELECT 1 FROM request WHERE owner = ? AND state = 1)"
            " OR EXISTS (SELECT 1 FROM job WHERE id = ? AND driver = ?)",
            (number, job, number),
        ).fetchone()[0]
        if holds:
            ensure(db, process, job)
        else:
            db.execute("DELETE FROM owner WHERE id = ?", (number,))
            del process.runs[job]


def leave(db: sqlite3.Connection, process: Process, job: str) -> None:
    """End this process's run of `job`: its live claims are free, and it drives no more."""
    if job in process.runs:  # `beat` forgets it: what is popped here, no rollback would undo
        _free(db, process.runs[job])


def leave_all(db: sqlite3.Connection, process: Process) -> None:
    """End every run of `process`."""
    for job in list(process.runs):
        leave(db, process, job)


def reap(db: sqlite3.Connection, process: Process) -> None:
    """Pass on the live claims of the dead. Claims of a batch stay: it may yet be fetched."""
    for owner in db.execute(_OWNER).fetchall():
        if not alive(process, owner):
            _free(db, owner[0])


def _free(db: sqlite3.Connection, number: int) -> None:
    db.execute(
        "UPDATE request SET state = 0, owner = NULL WHERE owner = ? AND state = 1", (number,)
    )
    db.execute("UPDATE job SET driver = NULL WHERE driver = ?", (number,))
    db.execute("DELETE FROM owner WHERE id = ?", (number,))


def living(db: sqlite3.Connection, process: Process) -> dict[int, str]:
    """Owner id → ``"pid 4242 on myhost"`` of every run that is alive."""
    return {
        owner[0]: f"pid {owner[4]} on {owner[2].partition(' ')[0]}"
        for owner in db.execute(_OWNER).fetchall()
        if alive(process, owner)
    }

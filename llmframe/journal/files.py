"""Where the journal lies: the folder, who may write to it, and the file system under it."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from pathlib import Path
from typing import Final

from llmframe.errors import StoreError, warn_user
from llmframe.journal.schema import prepare

__all__ = [
    "BUSY",
    "NAME",
    "claim_home",
    "connect",
    "network_file_system",
    "unusable",
    "warn_of_network",
]

NAME: Final = "journal.sqlite"
BUSY: Final = 30.0
"""Seconds SQLite waits for another process's lock."""

MOUNTS = Path("/proc/mounts")

# Where one host cannot map what another writes, WAL's shared index is wrong and loses commits.
# 9p and virtiofs: a Windows or host folder seen from inside a virtual machine or container.
_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "drvfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs"}
    | {"nfs4", "ocfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"}
)


def claim_home(home: Path) -> Path:
    """Make `home` (0700) and the journal's file in it (0600) where they are missing.

    Returns:
        The file's path.

    Raises:
        StoreError: The folder cannot be made or written to, or somebody else could write to it.
            A folder that exists is never chmod-ed: its owner may have had a reason.
    """
    path = home / NAME
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_strangers(home, "folder")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            _refuse_strangers(path, "file")
            if not path.is_file():
                raise StoreError(
                    f"{path} is no file. Move it away, or choose another folder: "
                    f"lf.set_options(home=…)."
                ) from None
    except OSError as error:
        raise StoreError(
            f"the journal cannot be kept in {home}: {error.strerror or error}. Choose a folder "
            f"that you can write to: lf.set_options(home=…) or LLMFRAME_HOME."
        ) from error
    return path


def _refuse_strangers(path: Path, what: str) -> None:
    if not hasattr(os, "geteuid"):  # Windows: the profile folder's own access list protects it
        return
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise StoreError(
            f"the {what} {path} belongs to user {status.st_uid}, and you are user "
            f"{os.geteuid()}. Choose a folder of your own: lf.set_options(home=…) or "
            f"LLMFRAME_HOME."
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(
            f"the {what} {path} can be written to by others (mode {mode:04o}), so its replies "
            f"cannot be trusted. Run: chmod go-w {path}"
        )


def network_file_system(path: Path) -> str | None:
    """Type of the network file system that holds `path`, such as ``"nfs4"``; None: a local one.

    Only Linux says so in a file; elsewhere the answer is None.
    """
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    path = path.resolve()
    best, found = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks and the like stand as octal escapes in this file.
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1]))
        # `>=`: of two file systems mounted on one folder, the later covers the earlier.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), fields[2]
    return found if found in _NETWORK or found.startswith("fuse.") else None


def warn_of_network(home: Path) -> None:
    """Say once a process that a journal in `home` lies where it should not."""
    kind = network_file_system(home)
    if kind is not None:
        warn_user(
            f"the journal lies on a network file system ({kind}): {home}. It is slower there and "
            f"two hosts may disturb each other. Set a local folder: lf.set_options(home=…) or "
            f"LLMFRAME_HOME.",
            RuntimeWarning,
        )


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the journal's file; transactions are the caller's own.

    Args:
        path: From `claim_home`.
        read_only: For reading a file that is known to be prepared.

    Raises:
        StoreError: It is no journal, a newer one, damaged, locked or unreadable.
    """
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(
            path,
            timeout=BUSY,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        if read_only:
            db.execute("PRAGMA query_only = ON")
        else:
            kind = network_file_system(path)
            prepare(db, path, "WAL" if kind is None else "TRUNCATE")
        # The index of keys is read at random places: 28 MB of it at a million rows.
        db.execute("PRAGMA cache_size = -65536")
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, sqlite3.Error):
            raise unusable(path, error) from error
        raise
    return db


def unusable(path: Path | None, error: sqlite3.Error) -> StoreError:
    """The `StoreError` for what SQLite said of the file at `path`."""
    text = str(error)
    if "locked" in text or "busy" in text:
        advice = "Another process keeps it locked: wait for it or end it, then try again."
    elif "full" in text:
        advice = "Free some space, then run the same call again: what is stored is kept."
    elif "malformed" in text or "not a database" in text:
        advice = "Restore it from a backup, or move it away: its replies are then asked again."
    else:
        advice = "Check the folder, or choose another: lf.set_options(home=…) or LLMFRAME_HOME."
    return StoreError(f"the journal {path or 'in memory'} cannot be used: {text}. {advice}")

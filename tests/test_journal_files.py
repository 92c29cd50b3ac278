"""Where the journal may lie, which files it opens, and how it moves to a newer format."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmframe.errors import StoreError
from llmframe.journal import Entry, Journal, files, schema
from llmframe.results import Usage

KEY = bytes(16)
REPLY = Entry(KEY, 1, "live", 1.0, "ok", text="kept")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A home that is not there yet; what is opened in it is closed."""
    place = tmp_path / "new" / "home"
    yield place
    if (place / files.NAME).exists():
        with suppress(StoreError):
            Journal.open(place).close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pragma(path: Path, name: str) -> object:
    db = sqlite3.connect(path)
    try:
        return db.execute(f"PRAGMA {name}").fetchone()[0]
    finally:
        db.close()


# -- the folder ------------------------------------------------------------------------------


def test_everything_made_is_the_owners_alone(place: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal.open(place)
        journal.record([REPLY])
        journal.flush()
    finally:
        os.umask(before)
    assert mode(place) == 0o700
    assert {path.name: mode(path) for path in place.iterdir()} == {
        "journal.sqlite": 0o600,
        "journal.sqlite-wal": 0o600,
        "journal.sqlite-shm": 0o600,
    }


def test_the_file_is_set_up_as_promised(place: Path) -> None:
    path = Journal.open(place).path
    assert path == place / "journal.sqlite"
    assert pragma(path, "page_size") == 8192
    assert pragma(path, "journal_mode") == "wal"
    assert pragma(path, "application_id") == schema.APPLICATION_ID
    assert pragma(path, "user_version") == schema.VERSION
    assert Journal.open(place)._writer._db.execute("PRAGMA synchronous").fetchone() == (2,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o722])
def test_a_folder_that_others_can_write_to_is_refused_and_left_as_it_is(
    tmp_path: Path, bits: int
) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(bits)
    with pytest.raises(StoreError, match=r"can be written to by others .*chmod go-w"):
        Journal.open(home)
    assert mode(home) == bits
    assert list(home.iterdir()) == []


def test_a_folder_that_others_can_read_will_do(tmp_path: Path) -> None:
    home = tmp_path / "readable"
    home.mkdir()
    home.chmod(0o755)
    Journal.open(home).close()
    assert (mode(home), mode(home / "journal.sqlite")) == (0o755, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_or_file_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "theirs"
    home.mkdir(0o700)
    os.chown(home, 12345, -1)
    with pytest.raises(StoreError, match=r"folder .* belongs to user 12345"):
        Journal.open(home)
    os.chown(home, 0, -1)
    (home / "journal.sqlite").touch(0o600)
    os.chown(home / "journal.sqlite", 12345, -1)
    with pytest.raises(StoreError, match=r"file .* belongs to user 12345"):
        Journal.open(home)


def test_a_file_that_others_can_write_to_is_refused(place: Path) -> None:
    Journal.open(place).close()
    (place / "journal.sqlite").chmod(0o666)
    with pytest.raises(StoreError, match=r"file .* can be written to by others"):
        Journal.open(place)
    (place / "journal.sqlite").chmod(0o600)


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"cannot be kept in .*lf\.set_options\(home="):
            Journal.open(home)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_a_home_that_cannot_be_written_to(tmp_path: Path) -> None:
    home = tmp_path / "readonly"
    home.mkdir(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        Journal.open(home)


def test_a_folder_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "home" / "journal.sqlite").mkdir(parents=True, mode=0o700)
    (tmp_path / "home").chmod(0o700)
    with pytest.raises(StoreError, match="is no file"):
        Journal.open(tmp_path / "home")


# -- the file --------------------------------------------------------------------------------


def test_no_database_at_all(place: Path) -> None:
    place.mkdir(parents=True, mode=0o700)
    (place / "journal.sqlite").write_bytes(b"these are the notes of my thesis\n" * 400)
    (place / "journal.sqlite").chmod(0o600)
    with pytest.raises(StoreError, match=r"not a database.*move it away"):
        Journal.open(place)
    assert (place / "journal.sqlite").read_bytes().startswith(b"these are the notes")


def test_a_damaged_journal(place: Path) -> None:
    journal = Journal.open(place)
    journal.record([REPLY])
    journal.close()
    path = place / "journal.sqlite"
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"malformed.*backup"):
        Journal.open(place).replies([KEY])


def test_another_programs_database_is_not_touched(place: Path) -> None:
    place.mkdir(parents=True, mode=0o700)
    path = place / "journal.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="of another program"):
        Journal.open(place)
    assert path.read_bytes() == before


def test_a_newer_journal_is_not_touched(place: Path) -> None:
    Journal.open(place).close()
    path = place / "journal.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"format 7.*reads up to 2.*pip install -U"):
        Journal.open(place)
    assert path.read_bytes() == before
    path.unlink()


def test_a_file_cut_off_while_it_was_made_is_made_again(place: Path) -> None:
    # Dead between WAL and the tables: a header, no application id, nothing in it.
    place.mkdir(parents=True, mode=0o700)
    db = sqlite3.connect(place / "journal.sqlite")
    db.execute("PRAGMA page_size = 8192")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    (place / "journal.sqlite").chmod(0o600)
    Journal.open(place).record([REPLY])
    assert Journal.open(place).replies([KEY]) == {KEY: [REPLY]}


@pytest.mark.slow
def test_processes_that_open_a_new_home_at_once(place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from llmframe.journal import Entry, Journal\n"
        "sys.stdin.read(1); journal = Journal.open(Path(sys.argv[1]))\n"
        "journal.record([Entry(bytes([int(sys.argv[2])]) * 16, 1, 'live', 0.0, 'ok')])\n"
        "journal.flush()"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, place, str(n)], stdin=subprocess.PIPE)
        for n in range(6)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.close()
    assert [child.wait(60) for child in children] == [0] * 6
    assert len(Journal.open(place).replies([bytes([n]) * 16 for n in range(6)])) == 6


# -- network file systems --------------------------------------------------------------------


def test_on_a_network_file_system_it_says_so_once_and_shares_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my nfs" / "home"
    mounts = tmp_path / "mounts"
    point = str(tmp_path / "my nfs").replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {point} nfs4 rw 0 0\nbroken\n")
    monkeypatch.setattr(files, "MOUNTS", mounts)
    with pytest.warns(RuntimeWarning, match=r"\(nfs4\).*home=") as caught:
        journal = Journal.open(home)
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)
    journal.record([REPLY])
    assert journal.replies([KEY]) == {KEY: [REPLY]}
    assert not (home / "journal.sqlite-wal").exists()
    journal.close()
    # Copied to a local disk, it is a local journal.
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "none")
    local = Journal.open(home)
    assert pragma(local.path, "journal_mode") == "wal"  # type: ignore[arg-type]
    assert local.replies([KEY]) == {KEY: [REPLY]}
    local.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/x", "nfs"),
        ("/home/other", None),
        ("/mnt/cloud/deep/down", "fuse.rclone"),
        ("/mnt/cloud/local/x", None),  # an ext4 mounted below it
        ("/homely", None),
        ("/over", "cifs"),  # mounted over another
    ],
)
def test_the_innermost_mount_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str | None
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /home/me nfs rw 0 0\nc /mnt/cloud fuse.rclone rw 0 0\n"
        "d /mnt/cloud/local ext4 rw 0 0\ne /over ext4 rw 0 0\nf /over cifs rw 0 0\n"
    )
    monkeypatch.setattr(files, "MOUNTS", mounts)
    assert files.network_file_system(Path(path)) == kind


# -- migration -------------------------------------------------------------------------------


@pytest.fixture
def old(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of format 2 with a reply in it, before a llmframe that has format 4."""
    journal = Journal.open(place)
    journal.record([REPLY])
    journal.close()
    steps = {
        2: ("ALTER TABLE reply ADD COLUMN extra TEXT", "UPDATE reply SET extra = 'from 2'"),
        3: ("UPDATE reply SET extra = extra || ', from 3'",),
    }
    monkeypatch.setattr(schema, "VERSION", 4)
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    return place


def test_an_older_journal_is_copied_and_brought_up(old: Path) -> None:
    journal = Journal.open(old)
    assert journal.replies([KEY]) == {KEY: [REPLY]}
    assert journal.path is not None
    assert pragma(journal.path, "user_version") == 4
    assert pragma(journal.path, "journal_mode") == "wal"
    db = sqlite3.connect(journal.path)
    assert db.execute("SELECT extra FROM reply").fetchall() == [("from 2, from 3",)]
    db.close()
    copy = old / "journal.sqlite.v2"
    assert mode(copy) == 0o600
    assert pragma(copy, "user_version") == 2
    db = sqlite3.connect(copy)
    assert db.execute("SELECT text FROM reply").fetchall() == [("kept",)]
    db.close()


def test_a_journal_of_format_1_opens(place: Path) -> None:
    paid = REPLY._replace(usage=Usage(9, 5, 2, 4))
    journal = Journal.open(place)
    journal.record([paid])
    journal.close()
    db = sqlite3.connect(place / "journal.sqlite")
    db.executescript("ALTER TABLE reply DROP COLUMN cache_write_1h_tokens; PRAGMA user_version = 1")
    db.close()
    journal = Journal.open(place)
    hour = REPLY._replace(usage=Usage(9, 5, 2, 4, cache_write_1h_tokens=3))
    journal.record([hour])
    journal.flush()
    assert journal.replies([KEY]) == {KEY: [paid, hour]}


def test_a_migration_that_fails_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", {**good, 3: ("UPDATE nowhere SET x = 1",)})
    with pytest.raises(StoreError, match="nowhere"):
        Journal.open(old)
    path = old / "journal.sqlite"
    assert pragma(path, "user_version") == 2
    db = sqlite3.connect(path)
    assert "extra" not in [row[1] for row in db.execute("PRAGMA table_info(reply)")]
    db.close()
    monkeypatch.setattr(schema, "MIGRATIONS", good)
    assert Journal.open(old).replies([KEY]) == {KEY: [REPLY]}


def test_no_migration_under_the_feet_of_another_process(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "PATIENCE", 0.1)
    other = sqlite3.connect(old / "journal.sqlite")
    other.execute("SELECT * FROM reply").fetchall()
    with pytest.raises(StoreError, match="another process is using it"):
        Journal.open(old)
    assert other.execute("PRAGMA user_version").fetchone() == (2,)
    other.close()
    assert Journal.open(old).replies([KEY]) == {KEY: [REPLY]}

"""Several processes on one journal: crashes, races, forks, owners that die or fall silent."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmframe.journal import Entry, JobRecord, Journal, owners
from llmframe.journal.owners import Process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def reply(n: int, text: str = "") -> Entry:
    return Entry(key(n), 1, "live", 1.0, "ok", text=text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def journal(home: Path) -> Iterator[Journal]:
    made = Journal.open(home)
    yield made
    made.close()


@contextmanager
def child(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code` on the journal in `args[0]`; killed at the end."""
    imports = (
        "import os, sys, time, random\nfrom pathlib import Path\n"
        "from llmframe.journal import Entry, JobRecord, Journal\n"
        "key = lambda n: n.to_bytes(16, 'big')\n"
        "journal = Journal.open(Path(sys.argv[1]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", imports + code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


# -- SIGKILL ---------------------------------------------------------------------------------

LOOP = """
head, n = journal.head("{}"), int(sys.argv[2])
while True:
    keys = [key(n + i) for i in range(20)]
    journal.claim(head, [(k, b"tail " * 50) for k in keys], "j_child")
    journal.record([Entry(k, 1, "live", 1.0, "ok", text=k.hex() * 20) for k in keys[:17]])
    journal.flush()
    print(n, flush=True)  # what is printed is promised
    n += 20
"""


def test_sigkill_loses_nothing_that_was_flushed(home: Path) -> None:
    chance = random.Random(7)
    for round_ in range(5):
        start = round_ * 1_000_000
        with child(LOOP, home, start) as process:
            first = line(process)
            time.sleep(chance.uniform(0.0, 0.25))
            process.kill()
            assert process.stdout is not None
            printed = (first + "\n" + process.stdout.read()).split("\n")[:-1]
            db = sqlite3.connect(home / "journal.sqlite")
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            claimed = [row[0] for row in db.execute("SELECT key FROM request WHERE state = 1")]
            db.close()
            # Not yet waited for, so that the child is a zombie: dead, and with an entry in /proc.
            journal = Journal.open(home)
            promised = [key(int(n) + i) for n in printed for i in range(17)]
            found = journal.replies(promised)
            assert [found[k][0].text for k in promised] == [k.hex() * 20 for k in promised]
            assert set(claimed) >= {key(int(n) + i) for n in printed for i in (17, 18, 19)}
            assert journal.held(claimed) == set()
            again = journal.claim(journal.head("{}"), [(k, b"") for k in claimed], "j_next")
            assert again == [True] * len(claimed)
            journal.close()


def test_a_dead_driver_is_replaced_and_seen_as_dead(home: Path) -> None:
    code = (
        "journal.create_job(JobRecord('j_a', created=1.0)); print(journal.drive('j_a'), flush=True)"
        "; sys.stdin.read()"
    )
    with child(code, home) as process:
        assert line(process) == "True"
        journal = Journal.open(home)
        job = journal.job("j_a")
        assert job is not None
        assert job.driver is not None
        assert job.driver.startswith(f"pid {process.pid} on ")
        assert not journal.drive("j_a")
        process.kill()
        process.wait()
        job = journal.job("j_a")
        assert job is not None
        assert (job.state, job.driver) == ("running", None)
        assert journal.drive("j_a")
        journal.close()


def test_a_batch_of_a_dead_process_stays(home: Path) -> None:
    code = (
        "journal.claim(journal.head('{}'), [(key(1), b'')], 'j_a')\n"
        "journal.open_batch('j_a', 't1', 1, '', [('a', 0, key(1))]); print('open', flush=True)"
        "; sys.stdin.read()"
    )
    with child(code, home) as process:
        assert line(process) == "open"
        process.kill()
        process.wait()
        journal = Journal.open(home)
        assert journal.held([key(1)]) == {key(1)}
        assert journal.claim(1, [(key(1), b"")], "j_b", again=True) == [False]
        assert [(b.tag, b.state) for b in journal.batches("j_a")] == [("t1", "intent")]
        assert journal.lines("t1") == [("a", 0, key(1))]
        journal.close()


# -- races -----------------------------------------------------------------------------------

RACE = """
head, order, won = journal.head("{}"), list(range(400)), []
random.Random(int(sys.argv[2])).shuffle(order)
print("ready", flush=True)
sys.stdin.readline()
for start in range(0, 400, 16):
    part = order[start:start + 16]
    lost = []
    for n, ours in zip(part, journal.claim(head, [(key(n), b"x") for n in part], sys.argv[2])):
        (won if ours else lost).append(n)
        if ours:
            journal.record([Entry(key(n), 1, "live", 1.0, "ok", text=sys.argv[2])])
    time.sleep(0.002)  # so that the other gets a turn
    while len(journal.replies([key(n) for n in lost])) < len(lost):
        time.sleep(0.001)
print(*won)
found = journal.replies([key(n) for n in range(400)])
print(len(found), sum(map(len, found.values())))
"""


def test_two_processes_with_the_same_rows_send_each_once(home: Path) -> None:
    with child(RACE, home, 1) as first, child(RACE, home, 2) as second:
        for process in (first, second):
            assert line(process) == "ready"
        won = []
        for process in (first, second):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in (first, second):
            won.append([int(n) for n in line(process).split()])
            assert line(process) == "400 400"
    assert sorted(won[0] + won[1]) == list(range(400))


# -- owners ----------------------------------------------------------------------------------


@contextmanager
def run_elsewhere(home: Path, **where: object) -> Iterator[Journal]:
    """A journal on the same file that takes itself for another process."""
    other = Journal(home / "journal.sqlite")
    other._process = replace(Process.current(), runs={}, **where)  # type: ignore[arg-type]
    yield other
    other._process.runs.clear()  # it dies rather than say goodbye
    other.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of every process, to be set; nobody beats in the meantime."""
    now = [1000.0]
    monkeypatch.setattr(owners, "monotonic", lambda: now[0])
    monkeypatch.setattr(owners, "BEAT", 3600.0)
    return now


HERE = Process.current()


@pytest.mark.skipif(not HERE.boot, reason="the system has no boot id")
@pytest.mark.parametrize(
    ("where", "waits"),
    [
        ({"pid": 2**22 + 1}, False),  # no such process
        ({"started": HERE.started + 1}, False),  # the pid is another process's by now
        ({"host": "container 7"}, True),  # its processes cannot be looked at
        ({"boot": "another boot"}, True),  # another machine, or this one before a power cut
        ({"boot": ""}, True),  # a system without boot ids
    ],
)
def test_claims_of_the_dead_pass_on(
    home: Path, clock: list[float], where: dict[str, object], waits: bool
) -> None:
    journal = Journal.open(home)
    head = journal.head("{}")
    request = [(key(1), b"")]
    with run_elsewhere(home, **where) as other:
        assert other.claim(head, request, "j_a") == [True]
        if waits:
            assert journal.claim(head, request, "j_b") == [False]
            clock[0] += 29
            assert journal.claim(head, request, "j_b") == [False]
            assert journal.held([key(1)]) == {key(1)}
            clock[0] += 2
        assert journal.held([key(1)]) == set()
        assert journal.claim(head, request, "j_b") == [True]
        # The one taken for dead answers after all: kept, and the new claim stands.
        other.record([reply(1, "late")])
        other.flush()
        assert journal.held([key(1)]) == {key(1)}
        journal.record([reply(1, "mine")])
        assert [entry.text for entry in journal.replies([key(1)])[key(1)]] == ["late", "mine"]
    journal.close()


@pytest.mark.parametrize("where", [{"host": "container 7"}, {"boot": "another boot"}])
def test_who_beats_lives(home: Path, clock: list[float], where: dict[str, object]) -> None:
    journal = Journal.open(home)
    head = journal.head("{}")
    with run_elsewhere(home, **where) as other:
        other.claim(head, [(key(1), b"")], "j_a")
        for n in range(2, 8):
            clock[0] += 20
            other.claim(head, [(key(n), b"")], "j_a")  # each claim is a beat too
            assert journal.claim(head, [(key(1), b"")], "j_b") == [False]
    journal.close()


def test_a_clock_that_jumps_kills_nobody(
    home: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(home)
    head = journal.head("{}")
    with run_elsewhere(home, boot="another boot") as other:
        other.claim(head, [(key(1), b"")], "j_a")
        for jump in (1e9, -1e9):
            monkeypatch.setattr(time, "time", lambda jump=jump: 1.7e9 + jump)
            assert journal.claim(head, [(key(1), b"")], "j_b") == [False]
    journal.close()


@pytest.mark.skipif(not HERE.boot, reason="the system shows no processes")
def test_a_process_that_runs_lives_and_one_that_is_stopped_goes_by_its_beat(
    home: Path, clock: list[float]
) -> None:
    code = (
        "journal.claim(journal.head('{}'), [(key(1), b'')], 'j_a'); print('claimed', flush=True)"
        "; sys.stdin.read()"
    )
    journal = Journal.open(home)
    with child(code, home) as process:
        assert line(process) == "claimed"
        clock[0] = time.monotonic() + 1000  # kept from its beat, by a long call under the GIL
        assert journal.held([key(1)]) == {key(1)}
        process.send_signal(signal.SIGSTOP)
        until(lambda: owners._process(process.pid)[1] == "T")
        clock[0] = time.monotonic() + 1000
        assert journal.held([key(1)]) == set()
        assert journal.claim(1, [(key(1), b"")], "j_b") == [True]
    journal.close()


def test_an_idle_process_beats_while_it_holds_something(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "BEAT", 0.02)
    journal = Journal.open(home)
    journal.create_job(JobRecord("j_b", created=1.0))
    db = sqlite3.connect(home / "journal.sqlite")

    def beats() -> dict[str, float]:
        return dict(db.execute("SELECT job, beat FROM owner").fetchall())

    journal.claim(journal.head("{}"), [(key(1), b"")], "j_a")
    journal.drive("j_b")
    first = beats()
    assert set(first) == {"j_a", "j_b"}
    until(lambda: all(beats().get(job, 0) > first[job] for job in first))
    journal.record([reply(1)])
    until(lambda: set(beats()) == {"j_b"})
    journal.update_job("j_b", state="done")
    until(lambda: beats() == {})
    until(lambda: not journal._process.runs)
    db.close()
    journal.close()


# -- forks -----------------------------------------------------------------------------------


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child, which ends without any clean-up; its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Python 3.12 warns of every fork under threads; that is what is tested here.
forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@forks
def test_a_forked_child_opens_the_journal_for_itself(journal: Journal, home: Path) -> None:
    head = journal.head("{}")
    journal.claim(head, [(key(1), b""), (key(2), b"")], "j_a")
    journal.record([reply(1, "parent's")])  # queued: the parent's to write, once

    def work() -> None:
        assert Journal.open(home) is journal
        assert journal.claim(head, [(key(2), b""), (key(3), b"")], "j_a") == [False, True]
        journal.record([reply(3, "child's")])
        journal.flush()
        assert journal.held([key(2)]) == {key(2)}

    assert ended_well(fork(work))
    journal.record([reply(2, "parent's")])
    found = journal.replies([key(n) for n in (1, 2, 3)])
    assert {k: [e.text for e in entries] for k, entries in found.items()} == {
        key(1): ["parent's"],
        key(2): ["parent's"],
        key(3): ["child's"],
    }


@forks
def test_the_childs_locks_are_its_own(journal: Journal) -> None:
    # Inherited, SQLite would believe that the child holds the parent's locks. Then the parent, on
    # closing as the last one, removes the log that the child still writes to.
    read, write = os.pipe()
    journal.record([reply(0)])
    journal.flush()

    def work() -> None:
        journal.record([reply(1)])
        journal.flush()
        assert os.read(read, 1) == b"x"
        for n in range(2, 50):
            journal.record([reply(n)])
            journal.flush()

    pid = fork(work)
    until(lambda: key(1) in journal.replies([key(1)]))
    journal.close()
    os.write(write, b"x")
    assert ended_well(pid)
    os.close(read)
    os.close(write)
    assert len(journal.replies([key(n) for n in range(50)])) == 50


@forks
def test_forks_while_threads_read_and_write(journal: Journal) -> None:
    head = journal.head("{}")
    stop = threading.Event()
    errors: list[BaseException] = []
    counts = [0, 0]

    def work(lane: int) -> None:
        try:
            while not stop.is_set():
                n = 1_000_000 * (lane + 1) + counts[lane]
                assert journal.claim(head, [(key(n), b"")], f"j_{lane}") == [True]
                journal.record([reply(n)])
                assert journal.replies([key(n)])
                counts[lane] += 1
        except BaseException as error:
            errors.append(error)

    def in_child(n: int) -> None:
        assert journal.claim(head, [(key(n), b"")], "j_child") == [True]
        journal.record([reply(n)])
        journal.flush()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(2)]
    for thread in threads:
        thread.start()
    pids = []
    for n in range(12):
        pids.append(fork(lambda n=n: in_child(n)))  # type: ignore[misc]
        time.sleep(0.02)
    assert all(ended_well(pid) for pid in pids)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    keys = [key(n) for n in range(12)]
    keys += [key(1_000_000 * (lane + 1) + n) for lane in range(2) for n in range(counts[lane])]
    found = journal.replies(keys)
    assert len(found) == len(keys)
    assert all(len(entries) == 1 for entries in found.values())


@forks
def test_a_memory_journal_is_copied_into_the_child() -> None:
    journal = Journal.memory()
    head = journal.head("{}")
    journal.claim(head, [(key(1), b""), (key(2), b"")], "j_a")
    journal.record([reply(1)])

    def work() -> None:
        assert set(journal.replies([key(1)])) == {key(1)}
        assert journal.claim(head, [(key(2), b"")], "j_a") == [True]  # nobody else will
        journal.record([reply(2)])
        assert set(journal.replies([key(2)])) == {key(2)}

    assert ended_well(fork(work))
    assert journal.replies([key(2)]) == {}
    assert journal.held([key(2)]) == {key(2)}


def test_what_is_queued_at_the_end_of_the_process_is_stored(home: Path) -> None:
    with child("journal.record([Entry(key(1), 1, 'live', 1.0, 'ok')])", home) as process:
        assert process.wait(60) == 0
    journal = Journal.open(home)
    assert set(journal.replies([key(1)])) == {key(1)}
    journal.close()

"""The journal's own promises, on disk and in memory alike."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llmframe import options
from llmframe.errors import StoreError
from llmframe.journal import CHUNK, Entry, JobRecord, Journal, new_job_id
from llmframe.results import Usage


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def reply(n: int, kind: str = "ok", **more: object) -> Entry:
    fields = {"attempt": 1, "lane": "live", "at": 1e9, "kind": kind, "text": f"reply {n}"}
    return Entry(key=key(n), **{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture(params=["file", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    made = Journal.open(tmp_path / "home") if request.param == "file" else Journal.memory()
    yield made
    made.close()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Journal]:
    made = Journal.open(tmp_path / "home")
    yield made
    made.close()


# -- replies ---------------------------------------------------------------------------------


def test_a_reply_comes_back_as_it_was(journal: Journal) -> None:
    whole = Entry(
        key=key(1),
        attempt=2,
        lane="batch",
        at=1_700_000_000.25,
        kind="invalid_output",
        message="'x' is no int",
        finish="length",
        text='{"a": "x\x00y ✓ 𝄞"}',
        scores=(-0.1, -math.inf, 1e-300),
        vector=(0.25, -1.0, 3.141592653589793),
        model="m-2025",
        request_id="req_1",
        usage=Usage(7, 6, 5, 4, 3, 2),
        cost=0.0,
        latency=0.5,
        maybe_paid=True,
        asked="answer with an int",
        reasoning="hmm",
    )
    bare = Entry(key=key(2), attempt=1, lane="live", at=0.0, kind="ok")
    journal.record([whole, bare])
    assert journal.replies([key(1), key(2), key(3)]) == {key(1): [whole], key(2): [bare]}


def test_u042_a_failure_stays_a_failure(journal: Journal) -> None:
    journal.record([reply(1, "refused", text=None, message="the model refused")])
    (entry,) = journal.replies([key(1)])[key(1)]
    assert (entry.kind, entry.message, entry.text) == ("refused", "the model refused", None)


def test_u086_a_lone_surrogate_is_kept_and_keeps_nothing_else_out(journal: Journal) -> None:
    entries = [reply(1), reply(2, text="bad \ud83d", asked="\udc00"), reply(3)]
    journal.record(entries)
    found = journal.replies([key(1), key(2), key(3)])
    assert [found[key(n)][0] for n in (1, 2, 3)] == entries


def test_values_that_sqlite_cannot_bind_keep_nothing_out(journal: Journal) -> None:
    odd = reply(2, finish={"why": "stop"}, cost=np.float32(0.5), usage=Usage(2**70, 1))
    journal.record([reply(1), odd, reply(3)])
    found = journal.replies([key(1), key(2), key(3)])
    assert len(found) == 3
    assert found[key(2)][0].finish == "{'why': 'stop'}"
    assert found[key(2)][0].cost == 0.5


def test_every_attempt_is_kept_in_the_order_it_came(journal: Journal) -> None:
    journal.record([reply(1, "timeout", attempt=1), reply(2), reply(1, attempt=2, text="late")])
    journal.record([reply(1, attempt=2, text="second")])
    assert [entry.text for entry in journal.replies([key(1)])[key(1)]] == [
        "reply 1",
        "late",
        "second",
    ]


def test_any_number_of_keys(journal: Journal) -> None:
    count = 40_000  # more than SQLite takes parameters
    journal.record([reply(n) for n in range(0, count, 1000)])
    assert set(journal.replies([key(n) for n in range(count)])) == {
        key(n) for n in range(0, count, 1000)
    }
    assert journal.replies([]) == {}


def test_records_are_committed_without_a_flush(stored: Journal) -> None:
    stored.record([reply(1)])
    other = sqlite3.connect(stored.path)  # type: ignore[arg-type]
    deadline = time.monotonic() + 60
    while other.execute("SELECT count(*) FROM reply").fetchone()[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    other.close()


# -- claims ----------------------------------------------------------------------------------


def test_a_key_is_claimed_once(journal: Journal) -> None:
    head = journal.head("{}")
    assert journal.claim(head, [(key(1), b"a"), (key(2), None)], "j_a") == [True, True]
    assert journal.claim(head, [(key(2), b"b"), (key(3), b"c")], "j_b") == [False, True]
    assert journal.claim(head, [(key(1), b"a")], "j_a") == [False]  # it knows that it has it
    assert journal.held([key(1), key(2), key(3), key(4)]) == {key(1), key(2), key(3)}
    assert journal.claim(head, []) == []


def test_a_key_that_stands_twice_in_one_claim_is_sent_once(journal: Journal) -> None:
    head = journal.head("{}")
    assert journal.claim(head, [(key(1), b""), (key(1), b""), (key(2), b"")]) == [True, False, True]


def test_an_answered_key_is_claimed_only_by_who_knows_the_answer(journal: Journal) -> None:
    head = journal.head("{}")
    request = [(key(1), b"x")]
    journal.claim(head, request, "j_a")
    journal.record([reply(1, "timeout")])
    journal.flush()
    assert journal.claim(head, request, "j_b") == [False]
    assert journal.claim(head, request, "j_b", seen=[1]) == [True]
    journal.record([reply(1, attempt=2)])
    journal.flush()
    assert journal.claim(head, request, "j_c", seen=[1]) == [False]  # somebody was faster
    assert journal.claim(head, request, "j_c", again=True) == [True]


def test_release_and_leave_give_claims_back(journal: Journal) -> None:
    head = journal.head("{}")
    journal.claim(head, [(key(n), b"") for n in range(4)], "j_a")
    journal.claim(head, [(key(9), b"")], "j_b")
    journal.release([key(0)])
    assert journal.held([key(n) for n in range(10)]) == {key(1), key(2), key(3), key(9)}
    journal.leave("j_a")
    assert journal.held([key(n) for n in range(10)]) == {key(9)}
    assert journal.claim(head, [(key(1), b"")], "j_b") == [True]


def test_threads_claim_each_key_once(journal: Journal) -> None:
    head = journal.head("{}")
    keys = [key(n) for n in range(600)]
    won: list[bytes] = []

    def run(job: str) -> None:
        for start in range(0, len(keys), 10):
            part = keys[start : start + 10]
            granted = journal.claim(head, [(k, b"") for k in part], job)
            for k, ours in zip(part, granted, strict=True):
                if ours:
                    won.append(k)
                    journal.record([Entry(k, 1, "live", 0.0, "ok", text=job)])
            missing = set(part)
            while missing:
                missing -= journal.replies(list(missing)).keys()

    threads = [threading.Thread(target=run, args=(f"j_{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == keys
    assert all(len(entries) == 1 for entries in journal.replies(keys).values())


# -- prompts ---------------------------------------------------------------------------------


def test_the_prompt_is_stored_once_and_found_by_key(journal: Journal) -> None:
    head = journal.head('{"system": "Be brief"}')
    assert journal.head('{"system": "Be brief"}') == head != journal.head("{}")
    journal.claim(head, [(key(1), b"Hello")])
    assert journal.prompt(key(1)) == ('{"system": "Be brief"}', b"Hello")
    assert journal.prompt(key(2)) is None


def test_a_prompt_is_kept_before_anybody_sends_it(journal: Journal) -> None:
    head = journal.head('{"system": "Be brief"}')
    journal.claim(head, [(key(1), b"claimed")])
    journal.keep(head, [(key(1), b"other"), (key(2), b"Hello")])
    assert journal.prompt(key(1)) == ('{"system": "Be brief"}', b"claimed")
    assert journal.prompt(key(2)) == ('{"system": "Be brief"}', b"Hello")
    assert journal.held([key(1), key(2)]) == {key(1)}
    assert journal.claim(head, [(key(2), b"Hello")]) == [True]


def test_keep_prompts_false_stores_none(stored: Journal) -> None:
    with options.set_options(keep_prompts=False):
        head = stored.head("a secret system text")
        stored.claim(head, [(key(1), b"a secret row"), (key(2), b"a secret row")])
        stored.keep(head, [(key(3), b"a secret row")])
    assert stored.prompt(key(1)) is None
    stored.release([key(1)])
    assert b"secret" not in on_disk(stored)
    assert stored.head("a secret system text") == head
    stored.claim(head, [(key(1), b"a row")])
    assert stored.prompt(key(1)) == ("a secret system text", b"a row")


def on_disk(journal: Journal) -> bytes:
    assert journal.path is not None
    return b"".join(path.read_bytes() for path in journal.path.parent.iterdir())


# -- jobs ------------------------------------------------------------------------------------


def test_jobs(journal: Journal) -> None:
    first = JobRecord("j_a", created=1.0, call='{"verb": "map"}', count=3, salt="s", budget=2.5)
    second = JobRecord("j_b", created=2.0)
    journal.create_job(first)
    journal.create_job(second)
    assert journal.jobs() == [second, first]
    assert journal.job("j_c") is None
    journal.update_job("j_a", state="done", finished=3.0, counts={"ok": 3}, spent=0.25)
    found = journal.job("j_a")
    assert found is not None
    assert (found.state, found.finished, found.counts, found.spent) == (
        "done",
        3.0,
        {"ok": 3},
        0.25,
    )
    with pytest.raises(StoreError, match="'j_a' already"):
        journal.create_job(first)
    with pytest.raises(StoreError, match="no job 'j_c'"):
        journal.update_job("j_c", state="done")
    with pytest.raises(TypeError, match="no field 'stat'"):
        journal.update_job("j_a", stat="done")


def test_one_error_does_not_undo_the_others(stored: Journal) -> None:
    # Tasks of several threads are committed together; a wrong one must fail alone.
    stored.create_job(JobRecord("j_a", created=1.0))
    errors: list[Exception] = []
    gate = threading.Barrier(8)

    def run(n: int) -> None:
        gate.wait()
        try:
            stored.create_job(JobRecord("j_a" if n % 2 else f"j_{n}", created=1.0))
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    with stored._writer.database:  # they all queue up behind this
        for thread in threads:
            thread.start()
        stored.record([reply(1)])
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert len(errors) == 4
    assert {job.id for job in stored.jobs()} == {"j_a", "j_0", "j_2", "j_4", "j_6"}
    assert len(stored.replies([key(1)])[key(1)]) == 1


def test_one_run_drives_a_job(journal: Journal) -> None:
    journal.create_job(JobRecord("j_a", created=1.0))
    with pytest.raises(StoreError, match="no job"):
        journal.drive("j_b")
    assert journal.drive("j_a")
    assert not journal.drive("j_a")
    job = journal.job("j_a")
    assert job is not None
    assert job.driver is not None
    assert f"pid {os.getpid()} on " in job.driver
    journal.claim(journal.head("{}"), [(key(1), b"")], "j_a")
    journal.update_job("j_a", spent=1.0)
    assert not journal.drive("j_a")
    journal.update_job("j_a", state="interrupted")
    assert journal.held([key(1)]) == set()
    assert journal.drive("j_a")


def test_job_ids() -> None:
    ids = {new_job_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(i) == 10 and i.startswith("j_") and i[2:].isalnum() for i in ids)


def test_rows_of_a_job(journal: Journal) -> None:
    count = 2 * CHUNK + 5
    keys = b"".join(key(n) for n in range(count))
    status = bytes(n % 7 for n in range(count))
    labels = [f"row {n} ✓" for n in range(count)]
    journal.save_rows("j_a", keys, status, labels, 0)
    journal.save_rows("j_b", keys[:16], b"\x01", None, 0)
    chunks = list(journal.rows("j_a"))
    assert [chunk[0] for chunk in chunks] == [0, CHUNK, 2 * CHUNK]
    assert b"".join(chunk[1] for chunk in chunks) == keys
    assert b"".join(chunk[2] for chunk in chunks) == status
    assert [label for chunk in chunks for label in chunk[3] or []] == labels
    assert list(journal.rows("j_b")) == [(0, keys[:16], b"\x01", None)]
    tail = slice(CHUNK * 2, None)
    journal.save_rows("j_a", keys[CHUNK * 32 :], bytes(5), labels[tail], CHUNK * 2)
    assert b"".join(chunk[2] for chunk in journal.rows("j_a")) == status[: 2 * CHUNK] + bytes(5)
    with pytest.raises(ValueError, match="multiple of"):
        journal.save_rows("j_a", b"", b"", None, 1)
    with pytest.raises(ValueError, match="16 bytes, 1 byte"):
        journal.save_rows("j_a", keys[:16], b"ab", None, 0)


# -- batches ---------------------------------------------------------------------------------


def batch_lines(*numbers: int) -> list[tuple[str, int, bytes]]:
    return [(f"{n}-{key(n).hex()}-1", 0, key(n)) for n in numbers]


def test_a_batch_from_intent_to_closed(journal: Journal) -> None:
    head = journal.head("{}")
    journal.claim(head, [(key(n), b"") for n in (1, 2, 3)], "j_a")
    journal.open_batch("j_a", "t1", 3, "org", batch_lines(1, 2, 3))
    (intent,) = journal.batches("j_a")
    assert (intent.state, intent.provider_id, intent.notes) == ("intent", None, {})
    journal.note("t1", "file", "f1")
    journal.note("t1", "cursor", "b0")
    journal.submitted("t1", "batch_1", 17.5)
    (sent,) = journal.batches()
    assert (sent.tag, sent.job, sent.account, sent.count) == ("t1", "j_a", "org", 3)
    assert (sent.state, sent.provider_id, sent.created_at) == ("submitted", "batch_1", 17.5)
    assert sent.notes == {"file": "f1", "cursor": "b0"}
    assert sorted(journal.lines("t1")) == batch_lines(1, 2, 3)

    journal.leave("j_a")  # the process goes; the batch does not
    assert journal.held([key(1), key(2), key(3)]) == {key(1), key(2), key(3)}
    assert journal.claim(head, [(key(1), b"")], "j_b", again=True) == [False]

    journal.batch_state("t1", "done")
    journal.record([reply(1, lane="batch")])
    journal.flush()
    assert journal.held([key(1), key(2), key(3)]) == {key(2), key(3)}
    journal.batch_state("t1", "closed")
    assert journal.held([key(2), key(3)]) == set()
    assert journal.batches("j_a") == []
    assert [batch.state for batch in journal.batches("j_a", open_only=False)] == ["closed"]
    assert journal.lines("t1") == []


def test_a_batch_takes_no_key_of_another_run(tmp_path: Path, stored: Journal) -> None:
    head = stored.head("{}")
    stored.claim(head, [(key(1), b"")], "j_a")
    stored.open_batch("j_a", "t1", 1, "", batch_lines(1))
    with pytest.raises(StoreError, match="1 of 2 requests are claimed"):
        stored.open_batch("j_b", "t2", 2, "", batch_lines(1, 2))
    assert [batch.tag for batch in stored.batches()] == ["t1"]
    assert stored.held([key(2)]) == set()
    with pytest.raises(StoreError, match="'t1' already"):
        stored.open_batch("j_b", "t1", 1, "", batch_lines(3))
    for call in (
        lambda: stored.note("t9", "a", "b"),
        lambda: stored.submitted("t9", "a", 0.0),
        lambda: stored.batch_state("t9", "closed"),
    ):
        with pytest.raises(StoreError, match="no batch 't9'"):
            call()


# -- purge -----------------------------------------------------------------------------------


def job_with_rows(journal: Journal, job: str, numbers: range, created: float) -> None:
    journal.create_job(JobRecord(job, created=created, call=f'{{"secret": "{job}"}}'))
    labels = [f"secret label {n}" for n in numbers]
    journal.save_rows(job, b"".join(map(key, numbers)), bytes(len(numbers)), labels, 0)
    head = journal.head(f"secret system text of {job}")
    requests = [(key(n), b"secret prompt %d" % n) for n in numbers]
    for request, ours in zip(requests, journal.claim(head, requests, job), strict=True):
        if ours:
            n = int.from_bytes(request[0], "big")
            journal.record([reply(n, text=f"secret reply {n}", at=created)])
    journal.update_job(job, state="done")


def test_purge_of_a_job_leaves_what_others_use(journal: Journal) -> None:
    job_with_rows(journal, "j_a", range(0, 300), 1.0)
    job_with_rows(journal, "j_b", range(200, 400), 2.0)
    assert journal.purge(job="j_a") == 200
    assert [job.id for job in journal.jobs()] == ["j_b"]
    assert list(journal.rows("j_a")) == []
    assert set(journal.replies([key(n) for n in range(400)])) == {key(n) for n in range(200, 400)}
    assert journal.prompt(key(0)) is None
    assert journal.prompt(key(250)) is not None
    with pytest.raises(StoreError, match="no job 'j_a'"):
        journal.purge(job="j_a")


def test_nothing_of_what_is_purged_is_left_on_disk(stored: Journal) -> None:
    job_with_rows(stored, "j_a", range(0, 2000), 1.0)
    job_with_rows(stored, "j_b", range(5000, 5010), time.time())
    stored.path.with_name("journal.sqlite.v0").write_bytes(b"secret copy")  # type: ignore[union-attr]
    stored.flush()
    with stored._writer.database:  # some builds of SQLite blank out by default, some do not
        stored._writer._db.execute("PRAGMA secure_delete = OFF")  # type: ignore[union-attr]
    assert b"secret reply 77" in on_disk(stored)
    assert stored.purge(job="j_a") == 2000
    left = on_disk(stored)
    for secret in (b"secret prompt 1", b"secret reply 77", b"secret label 7", b"of j_a", b"copy"):
        assert secret not in left
    assert b"secret prompt 5001" in left
    assert set(stored.replies([key(5001)])) == {key(5001)}


def test_purge_by_age(journal: Journal) -> None:
    job_with_rows(journal, "j_old", range(0, 10), time.time() - 1000)
    job_with_rows(journal, "j_new", range(8, 20), time.time())
    journal.record([reply(99, at=time.time() - 1000), reply(98, at=time.time())])
    journal.claim(journal.head("{}"), [(key(50), b"")], "j_run")
    assert journal.purge(older_than=500) == 9  # 0 to 7, and 99
    assert [job.id for job in journal.jobs()] == ["j_new"]
    left = set(journal.replies([key(n) for n in range(100)]))
    assert left == {*map(key, range(8, 20)), key(98)}
    assert journal.held([key(50)]) == {key(50)}


def test_purge_refuses_what_is_under_way(journal: Journal) -> None:
    job_with_rows(journal, "j_a", range(3), 1.0)
    journal.drive("j_a")
    with pytest.raises(StoreError, match=r"is running \(pid"):
        journal.purge(job="j_a")
    assert journal.purge(older_than=0) == 0
    journal.leave("j_a")
    journal.open_batch("j_a", "t1", 1, "", batch_lines(7))
    with pytest.raises(StoreError, match=r"open batch at the provider \(t1\)"):
        journal.purge(job="j_a")
    journal.batch_state("t1", "closed")
    assert journal.purge(job="j_a") == 3
    for wrong in ({}, {"job": "j_a", "older_than": 1.0}):
        with pytest.raises(ValueError, match="say one of the two"):
            journal.purge(**wrong)  # type: ignore[arg-type]


# -- the end, and trouble on the way ---------------------------------------------------------


def test_one_journal_a_folder_and_it_opens_again(tmp_path: Path) -> None:
    first = Journal.open(tmp_path / "home")
    assert Journal.open(tmp_path / "home") is first
    first.claim(first.head("{}"), [(key(1), b""), (key(2), b"")], "j_a")
    first.record([reply(1)])
    first.close()
    second = Journal.open(tmp_path / "home")
    assert second is not first
    assert second.held([key(1), key(2)]) == set()
    assert set(second.replies([key(1), key(2)])) == {key(1)}
    first.record([reply(2)])  # closed, and used again all the same
    first.close()
    assert set(second.replies([key(1), key(2)])) == {key(1), key(2)}
    second.close()


def test_a_full_disk_loses_nothing(stored: Journal) -> None:
    writer = stored._writer
    stored.head("{}")
    with writer.database:
        pages = writer._db.execute("PRAGMA page_count").fetchone()[0]  # type: ignore[union-attr]
        writer._db.execute(f"PRAGMA max_page_count = {pages + 1}")  # type: ignore[union-attr]
    stored.record([reply(n, text="x" * 5000) for n in range(50)])
    with pytest.raises(StoreError, match=r"full.*Free some space"):
        stored.flush()
    with pytest.raises(StoreError, match="full"):
        stored.claim(1, [(key(99), b"")])
    with pytest.raises(StoreError, match="full"):
        stored.record([reply(50)])
    with writer.database:
        writer._db.execute("PRAGMA max_page_count = 1000000")  # type: ignore[union-attr]
    stored.flush()
    assert len(stored.replies([key(n) for n in range(60)])) == 51
    stored.record([reply(51)])
    assert stored.held([key(99)]) == set()


def test_a_locked_journal_says_so_and_goes_on(
    stored: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored._writer.database:
        stored._writer._db.execute("PRAGMA busy_timeout = 50")  # type: ignore[union-attr]
    other = sqlite3.connect(stored.path, isolation_level=None)  # type: ignore[arg-type]
    other.execute("BEGIN IMMEDIATE")
    stored.record([reply(1)])
    with pytest.raises(StoreError, match="locked"):
        stored.flush()
    other.execute("ROLLBACK")
    stored.flush()
    assert set(stored.replies([key(1)])) == {key(1)}
    other.close()

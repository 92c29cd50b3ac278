"""Lanes: packing, intents, checking off, adoption, and every way a batch can end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import lane_runner
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lane_runner import SmallRun, make_lane

from llmframe.engines.base import Line
from llmframe.errors import EngineError, StoreError
from llmframe.journal import Entry, Journal
from llmframe.lanes import Clock, Lane
from llmframe.lanes.checkoff import CheckOff
from llmframe.lanes.packs import Packer
from llmframe.requests import custom_id
from llmframe.results import Result, Usage
from llmframe.testing import FakeBatchEngine, ListSource, Switch, drive, requests


def rows(n):
    return requests([f"row {i}" for i in range(n)])


def right(run, asked):
    """Each row has the answer to its own prompt."""
    return run.answers == {request.key: request.messages[-1]["content"] for request in asked}


def answered(n=12, *, journal=None, lane_options=None, **options):
    engine = FakeBatchEngine(**options)
    lane = make_lane(engine, journal or Journal.memory(), **(lane_options or {}))
    asked = rows(n)
    run = SmallRun(lane, asked)()
    assert right(run, asked)
    assert lane.journal.batches("j_test") == []
    return engine, lane, run


# Packing


def test_u149_packs_by_number():
    engine, _, _ = answered(11, max_requests=5)
    assert [count for _, count in engine.submits] == [5, 5, 1]


def test_u148_packs_by_encoded_bytes_not_characters():
    texts = ["x" * 300, "漢" * 50] * 5
    engine = FakeBatchEngine(max_bytes=1000)
    asked = requests(texts)
    run = SmallRun(make_lane(engine, Journal.memory()), asked)()
    assert right(run, asked)
    assert all(
        sum(map(engine.size, batch)) <= 1000
        for batch in [asked[i : i + 2] for i in range(0, 10, 2)]
    )
    assert [count for _, count in engine.submits] == [2] * 5


def test_the_first_batch_is_small():
    engine, _, _ = answered(40, lane_options={"first": 10}, max_requests=25)
    assert [count for _, count in engine.submits] == [10, 25, 5]


def test_a_row_over_the_limit_fails_alone():
    asked = requests(["short", "long" * 500, "short too"])
    run = SmallRun(make_lane(FakeBatchEngine(max_bytes=1000), Journal.memory()), asked)()
    assert run.final == {asked[1].key: "request_too_large"}
    assert len(run.answers) == 2


def test_a_provider_that_takes_less_than_it_says_gets_halves():
    small = FakeBatchEngine(max_requests=3)
    lane = make_lane(small, Journal.memory())
    lane.limits = replace(lane.limits, max_requests=16)
    asked = rows(16)
    assert right(SmallRun(lane, asked)(), asked)
    created = [batch.count for batch in small.created]
    assert max(created) <= 3
    assert sum(created) == 16


@given(
    sizes=st.lists(st.integers(1, 60), max_size=60),
    most=st.integers(1, 12),
    first=st.integers(1, 20),
)
def test_packs_keep_order_and_limits(sizes, most, first):
    asked = requests(["x" * size for size in sizes])
    packer = Packer(lambda r: len(r.messages[0]["content"]), most, 50, first)
    too_large = [r for r in asked if packer.add(r) is not None]
    packer.finish()
    sizes_of = {r.key: len(r.messages[0]["content"]) for r in asked}
    packs = [[key for _, _, key in pack.lines] for pack in packer.ready]
    assert [r.key for r in asked if r not in too_large] == [key for pack in packs for key in pack]
    assert all(sizes_of[r.key] > 50 for r in too_large)
    assert all(sum(map(sizes_of.__getitem__, pack)) <= 50 for pack in packs)
    assert all(len(pack) <= (most if i else min(first, most)) for i, pack in enumerate(packs))


def test_u054_ids_are_unique_whatever_the_labels():
    engine, _, _ = answered(3)
    [record] = engine._shelf.all()
    ids = [custom_id for custom_id, _, _ in record["results"]]
    assert len(set(ids)) == 3
    assert all(len(i) <= 64 and i.replace("-", "").isalnum() for i in ids)


def test_one_key_is_never_twice_in_a_batch():
    [request] = rows(1)
    packer = Packer(lambda r: 1, 10)
    packer.add(request)
    packer.add(replace(request, attempt=2))
    packer.finish()
    assert [len(pack.lines) for pack in packer.ready] == [1, 1]


# Checking off


def test_u065_results_are_joined_by_id_in_whatever_order_they_come():
    _, _, run = answered(50, max_requests=20)
    assert [result.key for result in run.results] != [request.key for request in rows(50)]


def test_u038_a_row_without_a_line_is_asked_again():
    engine, lane, run = answered(10, faults={"drop": 0.3})
    missing = [result for result in run.results if result.failure]
    assert {result.failure.kind for result in missing} == {"no_result"}
    first, *again = (count for _, count in engine.submits)
    assert first == 10
    assert lane.counts["missing"] == len(missing) == sum(again) > 0


def test_u045_an_expired_batch_keeps_its_answers_and_resumes_the_rest():
    engine, lane, run = answered(12, batch_faults=["expired"])
    first, second = (count for _, count in engine.submits)
    assert (first, second) == (12, 6)
    assert Counter(r.failure.kind for r in run.results if r.failure) == {"expired": 6}
    assert lane.counts["missing"] == 3


def test_of_two_lines_for_a_row_the_first_counts():
    engine = FakeBatchEngine(faults=["duplicate", "duplicate", "conflict"])
    lane = make_lane(engine, Journal.memory())
    asked = rows(12)
    run = SmallRun(lane, asked)()
    assert (lane.counts["duplicates"], lane.counts["conflicts"]) == (2, 1)
    assert len(run.results) == 12
    fetched = [result.text for _, _, result in engine.fetch(engine.created[0])]
    assert run.answers[asked[2].key] == next(text for text in fetched if "row 2" in text)


def test_ids_that_nobody_sent_are_left_out_and_counted():
    _, lane, run = answered(12, batch_faults=["foreign"])
    assert lane.counts["unknown_ids"] == 6
    assert len(run.results) == 12


def test_a_read_that_is_cut_goes_on_without_giving_anything_twice():
    engine, lane, run = answered(12, batch_faults=["cut"])
    assert len(engine.submits) == 1
    assert len(run.results) == 12
    assert lane.counts["duplicates"] == 0


def test_check_off_tells_a_second_read_from_a_second_line():
    check = CheckOff(
        [("a", 0, bytes(16)), ("b", 0, bytes(range(16)))], {bytes(range(16)): {"known"}}
    )
    check.start()
    assert check.result("a", 0, Result(b"?" * 16, text="1")) == Result(bytes(16), text="1")
    check.start()
    assert check.result("a", 0, Result(bytes(16), text="1")) is None
    assert check.result("b", 0, Result(bytes(range(16)), text="2", request_id="known")) is None
    assert check.counts == {}
    assert check.result("a", 0, Result(bytes(16), text="other")) is None
    assert check.result("c", 0, Result(bytes(16), text="1")) is None
    assert check.counts == {"conflicts": 1, "unknown_ids": 1}
    assert check.missing("no_result") == []


# How batches end


def test_u014_a_full_queue_waits_and_fails_no_row():
    engine, lane, run = answered(
        20, max_requests=5, batch_faults=[None, "queue_full", "queue_full"]
    )
    assert all(result.failure is None for result in run.results)
    assert lane.counts["requeued"] == 2
    assert [count for _, count in engine.submits] == [5] * 6


def test_a_pack_larger_than_the_whole_queue_is_halved():
    engine, _, _ = answered(16, batch_faults=["queue_full", "queue_full"])
    counts = [count for _, count in engine.submits]
    assert counts[0] == 16
    assert max(counts[2:]) <= 8
    assert sum(batch.count for batch in engine.created) == sum(counts)


def test_a_full_queue_after_a_restart_goes_back_to_the_run():
    journal = Journal.memory()
    engine = FakeBatchEngine(batch_faults=["queue_full"])
    asked = rows(4)
    left_after_submit(engine, journal, asked)
    again = SmallRun(make_lane(engine, journal), asked)()
    assert right(again, asked)
    assert Counter(r.failure.kind for r in again.results if r.failure) == {"rate_limited": 4}


def test_too_many_requests_at_submit_wait():
    engine, lane, run = answered(10, max_requests=5, batch_faults=["too_many", None, "too_many"])
    assert all(result.failure is None for result in run.results)
    assert len(engine.created) == 2
    assert lane.counts["never_created"] == 0


@pytest.mark.parametrize(("asked_for", "waited"), [(300.0, 300), (10**6, 900), (None, 30)])
def test_a_refused_create_waits_as_long_as_it_is_asked_to(asked_for, waited):
    engine = FakeBatchEngine(batch_faults=["too_many"])
    lane = make_lane(engine, Journal.memory())
    submit, times = engine.submit, []

    def refused(lines, tag, note):
        times.append(lane.clock.now)
        try:
            return submit(lines, tag, note)
        except EngineError as error:
            error.retry_after = asked_for
            raise

    engine.submit = refused
    assert right(SmallRun(lane, rows(3))(), rows(3))
    assert waited <= times[1] - times[0] < waited + 30


def test_a_poll_that_is_refused_waits_as_long_as_it_is_asked_to():
    engine = FakeBatchEngine(polls=0)
    lane = make_lane(engine, Journal.memory())
    poll, times = engine.poll, []

    def refused(batch):
        times.append(lane.clock.now)
        if len(times) == 1:
            raise EngineError("slow down.", status=429, retryable=True, retry_after=300.0)
        return poll(batch)

    engine.poll = refused
    assert right(SmallRun(lane, rows(3))(), rows(3))
    assert 300 <= times[1] - times[0] <= 601


def test_u020_a_batch_that_never_ends_is_given_up_an_hour_after_its_window():
    engine = FakeBatchEngine(batch_faults=["stuck"])
    lane = make_lane(engine, Journal.memory())
    ends, poll = lane.clock.now + 600, engine.poll
    engine.poll = lambda batch: replace(poll(batch), expires_at=ends, message="in_progress")
    with pytest.raises(EngineError, match="still 'in_progress' an hour after its window"):
        SmallRun(lane, rows(3))()
    assert lane.clock.now > ends + 3600
    assert [record.state for record in lane.journal.batches()] == ["submitted"]


def test_a_rejected_batch_ends_the_job():
    engine = FakeBatchEngine(batch_faults=["rejected"])
    results = drive(make_lane(engine, Journal.memory()), rows(3))
    assert [(r.failure.kind, r.failure.fatal) for r in results] == [("invalid_request", True)] * 3
    assert "invalid_json_line" in results[0].failure.message


def test_a_batch_that_is_gone_is_lost_and_not_sent_again():
    engine = FakeBatchEngine(batch_faults=["gone"])
    run = SmallRun(make_lane(engine, Journal.memory()), rows(3))()
    assert set(run.final.values()) == {"lost"}
    assert len(engine.submits) == 1


def test_a_refused_poll_is_the_wrong_account_and_never_gone():
    journal = Journal.memory()
    engine = FakeBatchEngine(batch_faults=["unauthorized"])
    with pytest.raises(StoreError, match="Use the key"):
        drive(make_lane(engine, journal), rows(3))
    assert len(journal.batches("j_test")) == 1


def test_a_poll_that_fails_never_loses_the_batch():
    engine, _, _ = answered(3, batch_faults=["poll_error"])
    assert len(engine.submits) == 1


def test_a_batch_of_another_account_is_refused_before_anything_is_sent():
    journal = Journal.memory()
    journal.open_batch("j_test", "tag", 1, "theirs", [("id", 0, bytes(16))])
    engine = FakeBatchEngine(account="ours")
    with pytest.raises(StoreError, match="belongs to the account 'theirs'"):
        drive(make_lane(engine, journal), rows(3))
    assert engine.submits == []


def test_u035_a_cancelled_batch_keeps_its_answers_and_its_usage():
    journal = Journal.memory()
    engine = FakeBatchEngine(polls=3)
    asked = rows(4)
    left_after_submit(engine, journal, asked)
    make_lane(engine, journal).cancel()
    again = SmallRun(make_lane(engine, journal), asked)()
    assert len(again.answers) == 2
    assert set(again.final.values()) == {"canceled"}
    usage = sum((result.usage for result in again.results if result.usage), Usage())
    assert usage.input_tokens == 2 * 2


def test_a_definite_refusal_ends_the_job_and_frees_the_rows():
    journal = Journal.memory()
    engine = FakeBatchEngine()

    def refuse(lines, tag, note):
        raise EngineError("no such model.", status=400)

    engine.submit = refuse
    with pytest.raises(EngineError, match="no such model"):
        drive(make_lane(engine, journal), rows(3))
    assert journal.batches("j_test") == []
    assert journal.held([request.key for request in rows(3)]) == set()


def test_a_provider_that_takes_nothing_ends_the_job_after_a_while():
    engine = FakeBatchEngine(batch_faults=["unavailable"] * 100)
    with pytest.raises(EngineError, match="has taken no batch for 600 s") as caught:
        drive(make_lane(engine, Journal.memory()), rows(3))
    assert caught.value.retryable


def test_cleanup_deletes_what_is_stored():
    engine, _, _ = answered(4, max_requests=2, lane_options={"cleanup": True})
    assert engine.created == []


def test_cleanup_leaves_the_batch_whose_results_are_not_all_there():
    dropped = [True]
    engine = FakeBatchEngine(max_requests=2)
    fetch = engine.fetch

    def short(batch):
        for result in fetch(batch):
            if result[2].text == "row 1" and dropped:
                dropped.clear()
                continue
            yield result

    engine.fetch = short
    SmallRun(make_lane(engine, Journal.memory(), cleanup=True), rows(4))()
    assert [batch.count for batch in engine.created] == [2]  # not the next, nor that of its rest


# The prompt cache


def primed(marked, n, ends_after=0.0):
    """What a lane did, in order: ``(seconds, "submit" or "read", rows)``."""
    engine = FakeBatchEngine(max_requests=120)
    lane = make_lane(engine, Journal.memory())
    if marked is not None:
        engine.marked = lambda request: marked
    submit, poll, fetch = engine.submit, engine.poll, engine.fetch
    start, did = lane.clock.now, []

    def noted(what, call):
        def told(batch, *more):
            made = call(batch, *more)
            count = made.count if what == "submit" else batch.count
            did.append((lane.clock.now - start, what, count))
            return made

        return told

    def slow(batch):
        status = poll(batch)
        early = batch.count == 1 and lane.clock.now - start < ends_after
        return replace(status, state="running") if early else status

    engine.submit, engine.poll, engine.fetch = noted("submit", submit), slow, noted("read", fetch)
    asked = rows(n)
    assert right(SmallRun(lane, asked)(), asked)
    return did


def test_one_row_writes_a_long_start_to_the_cache_before_the_others_go():
    did = primed("a long start", 241)
    assert [(what, count) for _, what, count in did[:2]] == [("submit", 1), ("read", 1)]
    assert sorted(count for _, what, count in did if what == "submit") == [1, 1, 119, 120]


def test_the_others_wait_ten_minutes_for_it_and_no_longer():
    did = primed("a long start", 240, ends_after=5000.0)
    assert did[0][1:] == ("submit", 1)
    assert did[1][1] == "submit"
    assert 600 <= did[1][0] < 700
    assert did[-1][1:] == ("read", 1)


@pytest.mark.parametrize(("marked", "n"), [("a long start", 99), ("", 240), (None, 240)])
def test_where_it_does_not_pay_no_row_goes_ahead(marked, n):
    assert primed(marked, n)[0][1:] == ("submit", min(n, 120))


# Lost answers


def test_a_lost_answer_is_adopted_and_nothing_is_sent_twice():
    engine, lane, _ = answered(12, max_requests=5, batch_faults=[None, "lost_answer"])
    assert lane.counts["adopted"] == 1
    assert [batch.count for batch in engine.created] == [5, 5, 2]


def test_a_failed_submit_is_searched_for_and_then_sent_again():
    engine, lane, run = answered(12, max_requests=5, batch_faults=[None, "unavailable"])
    assert lane.counts["never_created"] == 1
    assert all(result.failure is None for result in run.results)
    assert [batch.count for batch in engine.created] == [5, 5, 2]


def test_a_minute_and_three_empty_lists_pass_before_a_batch_counts_as_never_created():
    engine = FakeBatchEngine(batch_faults=["unavailable"])
    lane = make_lane(engine, Journal.memory())
    start = lane.clock.now
    found, searches, times = engine.find, [], []
    engine.find = lambda *intent: searches.append(lane.clock.now) or found(*intent)
    submit = engine.submit
    engine.submit = lambda *args: times.append(lane.clock.now) or submit(*args)
    drive(lane, rows(3))
    assert len(searches) >= 3
    assert times[1] - times[0] >= 60
    assert searches[-1] - start >= 60


def test_nothing_is_sent_while_an_intent_is_in_doubt():
    journal = Journal.memory()
    journal.open_batch("j_test", "tag", 1, "", [("0-a-1", 0, bytes(16))])
    engine = FakeBatchEngine()
    lane = make_lane(engine, journal)
    states = []
    find = engine.find
    engine.find = lambda *intent: states.append(len(engine.submits)) or find(*intent)
    results = drive(lane, rows(2))
    assert states
    assert set(states) == {0}
    assert [r.failure.kind for r in results if r.key == bytes(16)] == ["no_result"]
    assert len(results) == 3


def test_where_the_provider_cannot_list_nothing_is_sent_again_unless_told():
    journal = Journal.memory()
    engine = FakeBatchEngine(batch_faults=["unavailable"], can_list=False)
    asked = rows(3)
    with pytest.raises(EngineError, match=r"resume\(resend=True\)"):
        SmallRun(make_lane(engine, journal), asked)()
    assert engine.created == []
    run = SmallRun(make_lane(engine, journal, resend=True), asked)()
    assert right(run, asked)


def test_a_found_batch_with_other_rows_is_not_ours():
    engine = FakeBatchEngine(batch_faults=[None, "unavailable"])
    [other] = requests(["other"], engine={"a": "b"})
    foreign = engine.submit([Line("other", (other,))], "not-ours", lambda name, value: None)
    find = engine.find

    def by_count(tag, notes, count):  # as for a provider whose batches carry no tag
        return find(tag, notes, count) or [foreign]

    engine.find = by_count
    lane = make_lane(engine, Journal.memory())
    asked = rows(3)
    run = SmallRun(lane, asked)()
    assert right(run, asked)
    assert lane.counts["adopted"] == 1
    assert [batch.count for batch in engine.created] == [1, 3]


def test_where_batches_carry_no_tag_no_two_open_intents_have_one_count():
    journal = Journal.memory()
    for place, count in enumerate((5, 4)):
        lines = [(f"{place}-{i}", 0, bytes([place, i] * 8)) for i in range(count)]
        journal.open_batch(f"j_{place}", f"tag-{place}", count, "", lines)
    engine = FakeBatchEngine(max_requests=5)
    asked = rows(12)
    plain = SmallRun(make_lane(engine, journal), asked)()
    assert right(plain, asked)
    assert [batch.count for batch in engine.created] == [5, 5, 2]
    engine = FakeBatchEngine(max_requests=5)
    engine.distinct_counts = True
    asked = requests([f"other {i}" for i in range(12)])
    assert right(SmallRun(make_lane(engine, journal), asked)(), asked)
    assert [batch.count for batch in engine.created] == [3, 2, 3, 2, 2]


# Leaving and coming back


def left_after_submit(engine, journal, asked):
    """A run that is interrupted once its first batch is created."""
    switch = Switch()
    submit = engine.submit

    def then_abort(*args):
        batch = submit(*args)
        switch.mode = "abort"
        return batch

    engine.submit = then_abort
    run = SmallRun(make_lane(engine, journal, clock=Clock()), asked, switch)()
    engine.submit = submit
    assert run.results == []
    while journal.batches("j_test")[0].provider_id is None:  # its thread ends on its own
        time.sleep(0.001)


def test_u047_u120_a_batch_goes_on_without_us_and_is_read_later():
    journal = Journal.memory()
    engine = FakeBatchEngine()
    asked = rows(5)
    left_after_submit(engine, journal, asked)
    [record] = journal.batches("j_test")
    assert record.provider_id == engine.created[0].id
    again = SmallRun(make_lane(engine, journal), asked)()
    assert right(again, asked)
    assert len(engine.created) == 1


def test_drain_sends_nothing_more_and_reads_what_is_open():
    engine = FakeBatchEngine(max_requests=5)
    lane = make_lane(engine, Journal.memory())
    switch = Switch()
    submit = engine.submit

    def then_drain(*args):
        switch.mode = "drain"
        return submit(*args)

    engine.submit = then_drain
    results = [r for rs in lane.stream(ListSource(rows(12)), switch) for r in rs]
    assert len(engine.created) == 1
    assert len(results) == 5
    assert lane.journal.batches("j_test") == []


def test_replies_that_were_stored_before_a_crash_are_not_given_again():
    journal = Journal.memory()
    engine = FakeBatchEngine(polls=0)
    asked = rows(4)
    lines = [Line(custom_id(r.position, r.key, 1), (r,)) for r in asked]
    journal.open_batch(
        "j_test", "tag", 4, "", [(line.custom_id, 0, line.requests[0].key) for line in lines]
    )
    batch = engine.submit(lines, "tag", lambda name, value: None)
    journal.submitted("tag", batch.id, batch.created_at)
    _, _, stored = next(engine.fetch(batch))
    journal.record(
        [Entry(stored.key, 1, "batch", 0.0, "ok", text=stored.text, request_id=stored.request_id)]
    )
    run = SmallRun(make_lane(engine, journal), asked)()
    assert right(run, asked)
    assert stored.key not in {result.key for result in run.results}
    assert len(journal.replies([stored.key])[stored.key]) == 1


def test_a_row_that_failed_before_a_crash_is_asked_again_once():
    journal = Journal.memory()
    engine = FakeBatchEngine(polls=0, batch_faults=["expired"])
    asked = rows(4)
    lines = [Line(custom_id(r.position, r.key, 1), (r,)) for r in asked]
    journal.open_batch(
        "j_test", "tag", 4, "", [(line.custom_id, 0, line.requests[0].key) for line in lines]
    )
    batch = engine.submit(lines, "tag", lambda name, value: None)
    journal.submitted("tag", batch.id, batch.created_at)
    journal.record(
        Entry(
            r.key,
            1,
            "batch",
            0.0,
            r.failure.kind if r.failure else "ok",
            text=r.text,
            request_id=r.request_id,
        )
        for _, _, r in engine.fetch(batch)
    )
    run = SmallRun(make_lane(engine, journal), asked)()
    assert right(run, asked)
    assert [batch.count for batch in engine.created] == [4, 2]


def test_two_streams_of_one_lane_leave_each_other_alone():
    engine = FakeBatchEngine(polls=2)
    lane = make_lane(engine, Journal.memory())
    first = lane.stream(ListSource(rows(3)), Switch())
    got = [next(first)]
    assert drive(lane, []) == []
    got += first
    assert sum(map(len, got)) == 3


def test_the_poll_interval_comes_from_the_options_or_the_engine(monkeypatch):
    monkeypatch.setenv("LLMFRAME_POLL_INTERVAL", "7")
    assert Lane(FakeBatchEngine(), Journal.memory(), "j").poll_interval == 7
    monkeypatch.delenv("LLMFRAME_POLL_INTERVAL")
    engine = FakeBatchEngine()
    assert Lane(engine, Journal.memory(), "j").poll_interval == engine.poll_interval < 1
    del engine.poll_interval  # as of an engine that says nothing
    assert Lane(engine, Journal.memory(), "j").poll_interval == 30


def test_a_stuck_batch_is_looked_at_no_oftener_than_the_interval():
    engine = FakeBatchEngine(polls=50)
    lane = make_lane(engine, Journal.memory())
    times = []
    poll = engine.poll
    engine.poll = lambda batch: times.append(lane.clock.now) or poll(batch)
    drive(lane, rows(2))
    pauses = [after - before for before, after in pairwise(times)]
    assert len(pauses) == 50
    assert all(30 <= pause <= 61 for pause in pauses)
    assert len({round(pause, 3) for pause in pauses}) > 10


# A process that is killed


KILLS = ["before create", "before the answer", "polling", "before results", "mid-results"]


def child(home, provider, kill_at):
    return subprocess.run(
        [sys.executable, lane_runner.__file__, home, provider, kill_at],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("kill_at", KILLS)
def test_a_killed_process_loses_nothing_and_pays_nothing_twice(kill_at, tmp_path):
    home, provider = tmp_path / "home", tmp_path / "provider"
    home.mkdir(mode=0o700)
    killed = child(home, provider, kill_at)
    assert killed.returncode == -9, killed.stderr
    again = child(home, provider, "never")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("12 ")
    engine = FakeBatchEngine(directory=provider)
    assert sorted(batch.count for batch in engine.created) == [2, 5, 5]
    sent = [line[0] for record in engine._shelf.all() for line in record["results"]]
    assert len(set(sent)) == 12
    journal = Journal.open(home)
    replies = journal.replies([request.key for request in rows(12)])
    assert [entry.kind for entries in replies.values() for entry in entries].count("ok") == 12
    assert journal.batches("j_test") == []
    journal.close()

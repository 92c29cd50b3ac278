"""Anthropic's Message Batches, from the lane's side and a frame's, against the emulator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import anthropic_runner
import pandas as pd
import pytest
from lane_runner import FastClock, SmallRun, make_lane

import llmframe as lf
from llmframe.engines.anthropic import Anthropic
from llmframe.engines.base import Batch, Line
from llmframe.errors import EngineError, StoreError
from llmframe.journal import Journal
from llmframe.lanes import Lane
from llmframe.requests import Sampling, custom_id
from llmframe.testing import Switch, requests
from tests.servers.anthropic import KEY, AnthropicServer, Asked, Reply, error, message


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with lf.set_options(poll_interval=0.01):
        yield


def engine_at(server: AnthropicServer, **options: Any) -> Any:
    options = {"base_url": server.url, "api_key": server.key, "batch": True, **options}
    return Anthropic("claude-x", **options)


def rows(count: int) -> list[Any]:
    return requests([f"row {i}" for i in range(count)])


def lines_of(asked: list[Any]) -> list[Line]:
    return [Line(custom_id(r.position, r.key, r.attempt), (r,)) for r in asked]


def answered(server: AnthropicServer, count: int = 12, **options: Any) -> tuple[Any, SmallRun]:
    """`count` rows through a lane, whose clock does not make us wait."""
    lane = make_lane(engine_at(server, **options), Journal.memory())
    return lane, SmallRun(lane, rows(count))()


def sent(server: AnthropicServer) -> Counter[str]:
    """How often each row was sent, by its text, in all batches of the job's."""
    return Counter(
        row["params"]["messages"][-1]["content"]
        for batch in server.batches.values()
        for row in batch["rows"]
    )


def everything(run: SmallRun, count: int = 12) -> bool:
    asked = {request.key: request.messages[-1]["content"] for request in rows(count)}
    return run.answers == asked


def counts(server: AnthropicServer) -> list[int]:
    return [len(batch["rows"]) for batch in server.batches.values()]


# --- packing and the way out


def test_packs_by_requests_and_by_bytes(server: AnthropicServer) -> None:
    _, run = answered(server, max_batch_requests=5)
    assert everything(run)
    assert counts(server) == [5, 5, 2]
    server.batches.clear()
    engine = engine_at(server)
    _, run = answered(server, max_batch_bytes=3 * engine.size(rows(12)[0]) - 1)
    assert everything(run)
    assert counts(server) == [2] * 6


def test_sizes_hold_what_is_sent(server: AnthropicServer) -> None:
    engine = engine_at(server)
    asked = requests(["x", "漢" * 500, "\u2028\x00" * 50])
    engine.submit(lines_of(asked), "t", lambda name, value: None)
    [batch] = server.batches.values()
    for request, row in zip(asked, batch["rows"], strict=True):
        encoded = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(encoded) + 1 <= engine.size(request)


def test_a_row_over_the_limit_fails_alone(server: AnthropicServer) -> None:
    server.answer = "ok"
    df = pd.DataFrame({"t": ["small", "x" * 20_000, "also small"]})
    with pytest.warns(lf.RowsFailedWarning):
        out = df.llm.map("{t}", model=engine_at(server, max_batch_bytes=10_000))
    assert out.llm.failures()["kind"].tolist() == ["request_too_large"]
    assert out["response"].isna().tolist() == [False, True, False]


def test_a_batch_that_is_too_large_after_all_is_halved(server: AnthropicServer) -> None:
    server.creates.append("large")
    _, run = answered(server)
    assert everything(run)
    assert counts(server) == [6, 6]


def test_u058_ids_are_short_safe_and_say_nothing_of_the_row(server: AnthropicServer) -> None:
    labels = ["x" * 80 + "1", "x" * 80 + "2", "a/b c"]
    df = pd.DataFrame({"t": ["a", "b", "c"]}, index=labels)
    out = df.llm.map("{t}", model=engine_at(server))
    assert out["response"].to_dict() == dict(zip(labels, "abc", strict=True))
    ids = [row["custom_id"] for batch in server.batches.values() for row in batch["rows"]]
    assert len(set(ids)) == 2  # the first row went ahead alone, live
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", id_) and "x" not in id_ for id_ in ids)


def test_what_is_marked_for_the_cache_lives_an_hour(server: AnthropicServer) -> None:
    df = pd.DataFrame({"t": ["a", "b"]})
    system = "You sort tickets. " * 200
    usage = {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 900}
    server.answer = lambda asked: Reply(message("x", usage=usage))
    plan = df.llm.plan.map("{t}", system=system, model=engine_at(server))
    assert plan.marked == len(system) // 4 + 4
    assert df.llm.plan.map("{t}", system="Short.", model=engine_at(server)).marked == 0
    out = df.llm.map("{t}", system=system, model=engine_at(server), details=True)
    for batch in server.batches.values():
        for row in batch["rows"]:
            [block] = row["params"]["system"]
            assert block["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert len(out) == 2
    live = Anthropic("claude-x", base_url=server.url, api_key=KEY)
    df.llm.map("{t}", system=system, model=live, cache=False)
    assert server.asked[0].body["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_a_request_that_cannot_be_encoded_is_refused_before_anything_is_sent(
    server: AnthropicServer,
) -> None:
    df = pd.DataFrame({"t": ["a", "b"]})
    with pytest.raises(lf.EngineError, match="messages"):
        df.llm.map("{t}", extra={"messages": []}, model=engine_at(server))
    assert server.batches == {}


# --- the way back


@pytest.mark.parametrize("kind", ["absolute", "relative", "bare", "foreign"])
@pytest.mark.parametrize("prefix", ["", "/anthropic"])
def test_wherever_the_results_are_said_to_be(
    server: AnthropicServer, kind: str, prefix: str
) -> None:
    server.results_url, server.prefix = kind, prefix
    _, run = answered(server, 4)
    assert everything(run, 4)


def test_an_ended_batch_that_names_no_results(server: AnthropicServer) -> None:
    server.results_url = None
    _, run = answered(server, 4)
    assert everything(run, 4)


def test_u016_noise_between_the_results(
    server: AnthropicServer, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = b'{"custom_id":"9-' + b"f" * 32 + b'-1","result":{"type":"canceled"}}'
    server.noise = [b"", b"no json", b"[]", b'{"custom_id": null}', foreign]
    server.newline = b"\r\n"
    lane, run = answered(server)
    assert everything(run)
    assert lane.counts["unknown_ids"] == 1
    assert "line 2 of a batch's results" in caplog.text


@pytest.mark.parametrize("zipped", [False, True])
def test_a_download_that_is_cut_is_taken_up_again(server: AnthropicServer, zipped: bool) -> None:
    server.zipped, server.cut = zipped, 2
    lane, run = answered(server, 40)
    assert everything(run, 40)
    assert counts(server) == [40]
    assert len(run.results) == 40
    assert lane.counts["duplicates"] == 0


def test_u085_any_text_comes_back_as_it_was(server: AnthropicServer) -> None:
    texts = ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg", "nul \x00", "😀", "x" * 10_000_000]
    engine = engine_at(server)
    batch = engine.submit(lines_of(requests(texts)), "t", lambda name, value: None)
    while engine.poll(batch).state == "running":
        pass
    found = {i: result.text for i, _, result in engine.fetch(batch)}
    assert [found[line.custom_id] for line in lines_of(requests(texts))] == texts


def test_lines_that_are_missing_or_twice(server: AnthropicServer) -> None:
    gone: set[str] = set()

    def once(custom_id: str) -> bool:
        position = custom_id.split("-")[0]
        first = position in {"1", "5"} and position not in gone
        gone.update({position} if first else ())
        return first

    server.drop = once
    server.twice = lambda custom_id: custom_id.startswith("3-")
    lane, run = answered(server)
    assert everything(run)
    assert (lane.counts["missing"], lane.counts["duplicates"]) == (2, 1)
    assert sent(server) == Counter({f"row {i}": 2 if i in {1, 5} else 1 for i in range(12)})


def test_transient_rows_are_asked_again_and_no_other(server: AnthropicServer) -> None:
    kinds = {"row 0": 529, "row 1": 500, "row 2": 429}
    seen: Counter[str] = Counter()

    def answer(asked: Asked) -> Any:
        seen[asked.text] += 1
        status = kinds.get(asked.text)
        return error(status, "later") if status and seen[asked.text] == 1 else asked.text

    server.answer = answer
    _, run = answered(server)
    assert everything(run)
    assert sum(sent(server).values()) == 15


def test_an_unknown_type_of_result_is_a_failure_and_not_an_answer(server: AnthropicServer) -> None:
    server.answer = lambda asked: Reply(result={"type": "paused", "message": message("no")})
    engine = engine_at(server)
    batch = engine.submit(lines_of(rows(1)), "t", lambda name, value: None)
    while engine.poll(batch).state == "running":
        pass
    [(_, _, result)] = engine.fetch(batch)
    assert result.failure.kind == "provider_error"
    assert result.text is None


def test_u015_a_cancelled_batch_keeps_what_was_done(server: AnthropicServer) -> None:
    server.polls = 3
    engine = engine_at(server)
    batch = engine.submit(lines_of(rows(6)), "t", lambda name, value: None)
    with pytest.raises(EngineError):
        engine.delete(batch)  # it still runs
    engine.cancel(batch)
    while (status := engine.poll(batch)).state == "running":
        pass
    assert (status.done, status.failed, status.missing) == (3, 3, "canceled")
    kinds = Counter(r.failure and r.failure.kind for _, _, r in engine.fetch(batch))
    assert kinds == {None: 3, "canceled": 3}
    engine.cancel(batch)


def test_u045_an_expired_batch_keeps_its_answers_and_resumes_the_rest(
    server: AnthropicServer,
) -> None:
    seen: set[str] = set()

    def answer(asked: Asked) -> Any:
        new = asked.text not in seen and asked.text in {"row 1", "row 4"}
        seen.add(asked.text)
        return Reply(result={"type": "expired"}) if new else asked.text

    server.answer = answer
    _, run = answered(server)
    assert everything(run)
    assert counts(server) == [12, 2]


def test_u019_the_providers_words_are_in_the_rows_error(server: AnthropicServer) -> None:
    words = "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens"
    server.answer = lambda asked: error(400, words) if asked.text == "bad" else asked.text
    df = pd.DataFrame({"t": ["good", "bad", "fine"]}, index=["r1", "r2", "r3"])
    with pytest.warns(lf.RowsFailedWarning):
        out = df.llm.map("{t}", model=engine_at(server))
    failures = out.llm.failures()
    assert failures.index.tolist() == ["r2"]
    assert words in failures["message"].tolist()[0]
    assert out["response"].tolist()[::2] == ["good", "fine"]


def test_u046_no_credit_keeps_what_is_paid_and_a_rerun_sends_the_rest(
    server: AnthropicServer,
) -> None:
    broke = {"b", "c"}
    words = "Your credit balance is too low to access the Anthropic API."
    server.answer = lambda asked: error(400, words) if asked.text in broke else asked.text
    df = pd.DataFrame({"t": ["a", "b", "c"]})
    engine = engine_at(server)
    with pytest.raises(lf.EngineError, match="credit balance is too low") as caught:
        df.llm.map("{t}", model=engine)
    out = caught.value.result
    assert out["response"].fillna("-").tolist() == ["a", "-", "-"]
    before = sent(server)
    broke.clear()
    out = df.llm.map("{t}", model=engine)
    assert out["response"].tolist() == ["a", "b", "c"]
    assert sent(server) - before == Counter(["b", "c"])


def test_usage_counts_what_the_cache_gave(server: AnthropicServer) -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 90,
    }
    server.answer = lambda asked: Reply(message("x", usage=usage))
    engine = engine_at(server)
    batch = engine.submit(lines_of(rows(1)), "t", lambda name, value: None)
    while engine.poll(batch).state == "running":
        pass
    [(_, _, result)] = engine.fetch(batch)
    assert (result.usage.input_tokens, result.usage.cached_tokens) == (1000, 900)
    assert result.usage.cache_write_tokens == 90


# --- states, accounts


def test_archived_results_are_gone(server: AnthropicServer) -> None:
    engine = engine_at(server)
    batch = engine.submit(lines_of(rows(2)), "t", lambda name, value: None)
    while engine.poll(batch).state == "running":
        pass
    server.archived.add(batch.id)
    with pytest.raises(EngineError) as caught:
        list(engine.fetch(batch))
    assert caught.value.retryable  # so that the next look says the rest
    assert engine.poll(batch).state == "gone"


def test_u_archived_rows_are_lost_and_not_sent_again(server: AnthropicServer) -> None:
    engine = engine_at(server)
    journal = Journal.memory()
    lane = make_lane(engine, journal)
    engine_poll = engine.poll

    def poll(batch: Batch) -> Any:
        server.archived.add(batch.id)
        return engine_poll(batch)

    engine.poll = poll
    run = SmallRun(lane, rows(3))()
    assert set(run.final.values()) == {"lost"}
    assert counts(server) == [3]


@pytest.mark.slow
@pytest.mark.parametrize("account", ["another", "none"])
def test_another_accounts_key_never_sends_anything_again(
    server: AnthropicServer, tmp_path: Path, account: str
) -> None:
    server.accounts = {KEY: "org-1", "sk-ant-another": "org-2"}
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    killed = child(server, home, "polling")
    assert killed.returncode == -9, killed.stderr
    created = len(server.batches)
    journal = Journal.open(home)
    key = "sk-ant-another" if account == "another" else "sk-ant-unknown"
    lane = make_lane(engine_at(server, api_key=key), journal)
    with pytest.raises(StoreError, match="to this account"):
        SmallRun(lane, rows(12))()
    journal.close()
    assert len(server.batches) == created
    assert everything(rerun(server, home))
    assert sum(sent(server).values()) == 12


def test_the_account_is_known_from_the_first_answer(server: AnthropicServer) -> None:
    engine = engine_at(server)
    assert engine.account == ""
    notes: dict[str, str] = {}
    engine.submit(lines_of(rows(1)), "t", notes.__setitem__)
    assert engine.account == notes["account"] == "org-1"


def test_a_look_that_fails_loses_nothing(server: AnthropicServer) -> None:
    engine = engine_at(server)
    batch = engine.submit(lines_of(rows(1)), "t", lambda name, value: None)
    server.stop()
    with pytest.raises(EngineError) as caught:
        engine.poll(batch)
    assert (caught.value.retryable, caught.value.status) == (True, None)


def test_a_full_queue_waits_and_fails_no_row(server: AnthropicServer) -> None:
    server.creates.extend(["busy", "busy"])
    _, run = answered(server)
    assert everything(run)
    assert counts(server) == [12]


# --- never twice


@pytest.mark.parametrize("fate", ["lost", "late"])
def test_a_create_whose_answer_was_lost_is_found(server: AnthropicServer, fate: str) -> None:
    server.creates.extend([None, fate])
    lane, run = answered(server, max_batch_requests=5)
    assert everything(run)
    assert counts(server) == [5, 5, 2]
    assert lane.counts["adopted"] == 1


def test_a_create_that_failed_is_sent_again(server: AnthropicServer) -> None:
    server.creates.append("unavailable")
    lane, run = answered(server)
    assert everything(run)
    assert counts(server) == [12]
    assert lane.counts["never_created"] == 1


def test_a_service_that_cannot_list_is_never_paid_twice_in_silence(
    server: AnthropicServer,
) -> None:
    server.lists = False
    _, run = answered(server, 4)
    assert everything(run, 4)
    server.creates.append("late")
    with pytest.raises(EngineError, match="resend=True"):
        answered(server, 5)
    assert counts(server) == [4, 5]


def test_a_create_is_sent_once(server: AnthropicServer) -> None:
    server.creates.append("late")
    engine = engine_at(server)
    with pytest.raises(EngineError) as caught:
        engine.submit(lines_of(rows(2)), "t", lambda name, value: None)
    assert caught.value.retryable
    assert server.calls.count(("POST", "/v1/messages/batches")) == 1


def test_find_reads_page_after_page_down_to_the_cursor(server: AnthropicServer) -> None:
    engine = engine_at(server)
    some = [{"custom_id": "a", "params": {}}]
    version = {"anthropic-version": "2023-06-01"}
    server.add(some * 7, version)["created"] -= 3600
    server.add(some * 3, version)
    notes: dict[str, str] = {}
    batch = engine.submit(lines_of(rows(7)), "t", notes.__setitem__)
    later = [server.add(some * (7 if i == 5 else 3), version)["id"] for i in range(250)]
    assert [b.id for b in engine.find("t", notes, 7)] == [batch.id, later[5]]
    assert engine.find("t", notes, 8) == []
    assert engine.find("t", {}, 7) == []
    # The newest of then may be deleted by now: its time still ends the search.
    del server.batches[notes["cursor"]]
    assert [b.id for b in engine.find("t", notes, 7)] == [batch.id, later[5]]


def child(server: AnthropicServer, home: Path, kill_at: str) -> Any:
    program = [sys.executable, anthropic_runner.__file__, str(home), server.url, kill_at]
    return subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)


def rerun(server: AnthropicServer, home: Path) -> SmallRun:
    """The same call again, in a process that knows nothing of the first."""
    journal = Journal.open(home)
    lane = make_lane(engine_at(server, max_batch_requests=5), journal)
    try:
        return SmallRun(lane, rows(12))()
    finally:
        journal.close()


KILLS = [
    "before anything",
    "before create",
    "before the answer",
    "polling",
    "before results",
    "mid-results",
    "between rounds",
]


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", KILLS)
def test_a_killed_process_loses_nothing_and_pays_nothing_twice(
    server: AnthropicServer, kill_at: str, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()

    def answer(asked: Asked) -> Any:
        seen[asked.text] += 1
        return error(529, "busy") if asked.text == "row 3" and seen["row 3"] == 1 else asked.text

    server.answer = answer
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    killed = child(server, home, kill_at)
    assert killed.returncode == -9, killed.stderr
    assert everything(rerun(server, home))
    assert len(server.batches) <= 4  # as many as without the kill
    assert sent(server) == Counter({f"row {i}": 1 for i in range(12)}) + Counter(["row 3"])


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before ours", "after ours", "both"])
def test_a_foreign_batch_of_the_same_count(
    server: AnthropicServer, when: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    assert child(server, home, "before the answer").returncode == -9
    assert counts(server) == [5, 5]
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "theirs"}]}
    theirs = [{"custom_id": f"theirs-{i}", "params": params} for i in range(5)]
    version = {"anthropic-version": "2023-06-01"}
    ours = list(server.batches)[1]
    if when != "before ours":
        server.add(theirs, version)
    if when != "after ours":
        mine = server.batches.pop(ours)
        server.add(theirs, version)["created"] = mine["created"]
        server.batches[ours] = mine
        mine["created"] += 1
    assert everything(rerun(server, home))
    assert {text: n for text, n in sent(server).items() if text != "theirs"} == {
        f"row {i}": 1 for i in range(12)
    }


def lost(server: AnthropicServer, journal: Journal, job: str, fate: str) -> None:
    """A job of five rows that is left when its first create has brought no answer."""
    server.creates.append(fate)
    engine, switch = engine_at(server), Switch()
    submit = engine.submit

    def leave(*args: Any) -> Any:
        switch.mode = "abort"
        return submit(*args)

    def unreachable(*args: Any) -> Any:
        raise ConnectionError("not searched for by this stream")

    engine.submit, engine.find = leave, unreachable
    lane = Lane(engine, journal, job, clock=FastClock(), poll_interval=30.0)
    SmallRun(lane, requests([f"{job} {i}" for i in range(5)]), switch)()
    while lane.busy:
        time.sleep(0.01)
    journal.leave("j_test")


def test_of_two_lost_answers_each_finds_its_own_batch(server: AnthropicServer) -> None:
    journal = Journal.memory()
    lost(server, journal, "j_none", "unavailable")
    lost(server, journal, "j_ours", "lost")
    assert counts(server) == [4]  # five of j_none may be there
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "theirs"}]}
    for count in (5, 4):
        theirs = [{"custom_id": f"theirs-{i}", "params": params} for i in range(count)]
        server.add(theirs, {"anthropic-version": "2023-06-01"})
    adopted = {}
    for job in ("j_none", "j_ours"):
        lane = Lane(engine_at(server), journal, job, clock=FastClock(), poll_interval=30.0)
        asked = requests([f"{job} {i}" for i in range(5)])
        assert SmallRun(lane, asked)().answers == {r.key: r.messages[-1]["content"] for r in asked}
        adopted[job] = lane.counts["adopted"], lane.counts["never_created"]
    assert adopted == {"j_none": (1, 1), "j_ours": (1, 0)}  # the foreign one of five, and ours
    rows = {text: times for text, times in sent(server).items() if text != "theirs"}
    assert rows == {f"{job} {i}": 1 for job in ("j_none", "j_ours") for i in range(5)}


def test_a_foreign_batch_stays_in_doubt_in_the_next_process(server: AnthropicServer) -> None:
    journal = Journal.memory()
    lost(server, journal, "j_ours", "lost")
    [ours] = server.batches
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "theirs"}]}
    theirs = [{"custom_id": f"theirs-{i}", "params": params} for i in range(5)]
    foreign = server.add(theirs, {"anthropic-version": "2023-06-01"})
    foreign["created"], foreign["polls"] = server.batches[ours]["created"] - 0.5, 10**6
    asked = requests([f"j_ours {i}" for i in range(5)])

    def stream(*, leaves: bool) -> SmallRun:
        engine, switch = engine_at(server), Switch()
        poll = engine.poll

        def look(batch: Batch) -> Any:
            switch.mode = "abort" if leaves else "run"
            return poll(batch)

        engine.poll = look
        lane = Lane(engine, journal, "j_ours", clock=FastClock(), poll_interval=30.0)
        run = SmallRun(lane, asked, switch)()
        lane.cancel()
        while lane.busy:
            time.sleep(0.01)
        return run

    stream(leaves=True)
    assert foreign["canceled"] is None  # it is not known to be ours
    foreign["polls"] = 0
    answers = stream(leaves=False).answers
    assert answers == {r.key: r.messages[-1]["content"] for r in asked}
    assert len(server.batches) == 2


def test_u020_a_batch_that_never_ends(server: AnthropicServer) -> None:
    server.polls, server.window = 10**6, -7200
    with pytest.raises(EngineError, match="still 'in_progress' an hour after its window"):
        answered(server)
    assert counts(server) == [12]


@pytest.mark.slow
def test_two_processes_with_one_job(server: AnthropicServer, home: Path) -> None:
    code = f"""
        import pandas as pd, llmframe as lf
        lf.set_options(poll_interval=0.05)
        engine = lf.Anthropic("claude-x", base_url={server.url!r}, api_key={KEY!r}, batch=True)
        df = pd.DataFrame({{"t": [f"row {{i}}" for i in range(20)]}})
        print(df.llm.map("{{t}}", model=engine, progress=False)["response"].tolist()[-1])
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    both = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=100)[0] for process in both] == ["row 19\n"] * 2
    live = Counter(asked.text for asked in server.asked)  # the canary of whoever came first
    assert sent(server) + live == Counter({f"row {i}": 1 for i in range(20)})


# --- what is refused, at the price of one request


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ({"temperature": 0.5}, {}, "temperature"),
        ({}, {"models": {"other"}}, "no such model"),
        ({"extra": {"odd": 1}}, {}, "odd"),
    ],
)
def test_u158_a_job_that_must_fail_pays_next_to_nothing(
    server: AnthropicServer, given: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    for name, value in options.items():
        setattr(server, name, value)
    engine = engine_at(server, headers={"anthropic-version": "2026-10-21"})
    result = engine.probe(requests(["x"], sampling=Sampling(**given))[0])
    assert words in result.failure.message
    assert len(server.asked) == 1
    assert server.batches == {}


def test_what_a_probe_learns_holds_for_the_batches(server: AnthropicServer) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    server.refuse = {"output_config"}
    engine = engine_at(server)
    asked = requests(["x", "y"], schema=schema)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert engine.probe(asked[0]).failure is None
    assert len(caught) == 1
    engine.submit(lines_of(asked), "t", lambda name, value: None)
    [batch] = server.batches.values()
    assert all("output_config" not in row["params"] for row in batch["rows"])
    assert all('"a"' in str(row["params"]["system"]) for row in batch["rows"])


# --- the emulator is one to the SDK as well


def test_the_sdk_reads_what_the_engine_wrote(server: AnthropicServer) -> None:
    engine = engine_at(server)
    batch = engine.submit(lines_of(rows(3)), "t", lambda name, value: None)
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as sdk:
        while sdk.messages.batches.retrieve(batch.id).processing_status != "ended":
            pass
        texts = {}
        for line in sdk.messages.batches.results(batch.id):
            assert line.result.type == "succeeded"
            texts[line.custom_id] = line.result.message.content[0].text
        assert texts == {f"{i}-{rows(3)[i].key.hex()}-1": f"row {i}" for i in range(3)}
        assert [b.id for b in sdk.messages.batches.list()] == [batch.id]
        made = sdk.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
        )
        assert made.content[0].text == "hi"
        with pytest.raises(anthropic.NotFoundError):
            sdk.messages.batches.retrieve("msgbatch_nope")
        sdk.messages.batches.delete(batch.id)
    # Deleted by somebody else: by all that can be known, another account's.
    with pytest.raises(EngineError) as caught:
        engine.poll(batch)
    assert caught.value.status == 404
    engine.delete(batch)
    assert engine.poll(batch).state == "gone"

"""Votes of a judge one after another: who is asked again, what it saves, what it never loses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from statistics import median_low
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmframe as lf
from llmframe import reopened, submits
from llmframe.calls import call_from
from llmframe.panels import Votes
from llmframe.requests import Request
from llmframe.results import Failure
from tests.servers.looking import all_warnings, of, openai, statuses
from tests.servers.openai_batches import BatchServer
from tests.servers.rows import Reply

pytest_plugins = ["tests.servers.plugin"]

RUBRIC = "Is the answer right and complete?"
SAID: dict[str, list[int]] = {
    "row-a": [4, 4, 1, 1, 1],  # alike at once
    "row-b": [4, 5, 4, 4, 1],  # certain after four
    "row-c": [1, 5, 3, 3, 2],  # certain after four, in the middle
    "row-d": [1, 5, 2, 4, 3],  # open to the end
}
ASKED = {"row-a": 2, "row-b": 4, "row-c": 4, "row-d": 5}
SCORES = [4, 4, 3, 3]


def scored(score: Any) -> dict[str, Any]:
    return {"reason": "Because.", "score": score}


def voting(request: Request) -> Any:
    """The vote that the row's own list has at that place, which the seed tells."""
    text = str(request.messages[-1]["content"])
    said = next(said for row, said in SAID.items() if row in text)[request.sampling.seed or 0]
    return said if isinstance(said, Failure) else scored(said)


def asked_of(engine: Any) -> dict[str, int]:
    """How many different requests each row was asked."""
    keys = {r.key: str(r.messages[-1]["content"]) for r in engine.requests}
    return dict(sorted(Counter(next(r for r in ASKED if r in t) for t in keys.values()).items()))


@pytest.fixture
def df() -> pd.DataFrame:
    return pd.DataFrame({"t": list(SAID)}, index=[7, 7, "x", 9])


# -- the rule ------------------------------------------------------------------------------------


def ended(marks: list[int], votes: int, failed: int, least: int) -> bool:
    """Whether a row may stop, by going through everything that the other votes may say."""
    if len(marks) < least or 2 * len(marks) <= len(marks) + failed:
        return False
    if len(set(marks)) == 1:
        return True
    left = votes - failed - len(marks)
    return (
        len({median_low([*marks, *rest]) for rest in itertools.product((1, 2, 3), repeat=left)})
        == 1
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_vote_is_asked_in_vain_and_none_is_missing(data: Any) -> None:
    votes = data.draw(st.integers(2, 6))
    least = data.draw(st.integers(2, votes))
    panel = Votes("int", (1, 2, 3), votes, explain=False, least=least if least < votes else 0)
    marks = data.draw(st.lists(st.sampled_from([1, 2, 3, None]), max_size=votes))
    given_ = [mark for mark in marks if mark is not None]
    failed, left = len(marks) - len(given_), votes - len(marks)

    wanted = panel.more([None if mark is None else (mark,) for mark in marks])

    if not panel.sequential:
        assert wanted == left
    elif votes - failed <= votes // 2:
        assert wanted == 0, "it has failed, whatever the others say"
    else:
        shortest = next(
            (
                more
                for more in range(left + 1)
                if any(
                    ended([*given_, *next_], votes, failed, least)
                    for next_ in itertools.combinations_with_replacement((1, 2, 3), more)
                )
            ),
            left,
        )
        assert wanted == shortest


def test_labels_and_criteria_are_each_settled() -> None:
    labels = Votes("category", ("bad", "fair", "good"), 5, explain=False, least=2)
    assert labels.more(()) == 2
    assert labels.more([("bad",), ("good",)]) == 2
    assert labels.more([("bad",), ("good",), ("fair",), ("fair",)]) == 0
    both = Votes("int", (1, 2, 3), 5, ("facts", "tone"), (0.5, 0.5), explain=True, least=2)
    assert both.more([("why", 3, 1), ("why", 3, 1)]) == 0
    assert both.more([("why", 3, 1), ("why", 3, 2)]) == 2, "one of the criteria is open"


# -- live ----------------------------------------------------------------------------------------


def test_only_rows_whose_votes_differ_are_asked_again(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(voting)
    job = df.llm.submit.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
    out = job.result()

    assert asked_of(engine) == ASKED
    assert len(engine.requests) == 15
    assert out["score"].tolist() == SCORES
    assert out["score_votes"].tolist() == [SAID[row][: ASKED[row]] for row in SAID]
    assert out["score_spread"].iloc[0] == 0.0
    assert out.index.equals(df.index)
    assert statuses(out) == ["ok"] * 4
    report = job.report()
    assert (report.votes, report.votes_spared) == (15, 5)
    assert "15 of 20 asked, 5 (25%) spared" in str(report)
    assert "15 of 20 asked" in report._repr_html_()
    assert job.status().counts["ok"] == 4
    assert job._run is not None
    progress = job._run.progress(watched=True)
    assert progress.done == 4
    assert {position for position, _ in progress.latest} <= set(range(4)), "rows, not requests"

    again = df.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
    assert len(engine.requests) == 15
    pd.testing.assert_frame_equal(out, again)
    assert statuses(again) == ["cached"] * 4
    empty = df.iloc[:0].llm.judge(RUBRIC, answer="t", n=(2, 5), model=engine)
    assert empty.dtypes.equals(out.dtypes)


def test_the_keys_are_those_of_votes_asked_at_once(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(voting)
    in_turn = df.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
    at_once = df.llm.judge(RUBRIC, answer="t", n=5, seed=0, model=engine)
    assert len(engine.requests) == 20, "the votes that were paid are used"
    # Where votes differed, and the row stopped all the same, more could not change its score.
    assert at_once["score"].tolist() == [1, *in_turn["score"].iloc[1:]]
    after = df.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
    assert len(engine.requests) == 20
    pd.testing.assert_frame_equal(after, in_turn)  # whatever else is stored
    more = df.llm.judge(RUBRIC, answer="t", n=(3, 5), seed=0, model=engine)
    assert len(engine.requests) == 20
    assert [len(votes) for votes in more["score_votes"]] == [5, 4, 4, 5]


def test_two_equal_numbers_are_one(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(voting)
    both = df.llm.judge(RUBRIC, answer="t", n=(3, 3), seed=0, model=engine)
    pd.testing.assert_frame_equal(both, df.llm.judge(RUBRIC, answer="t", n=3, seed=0, model=engine))
    assert len(engine.requests) == 12


def test_the_plan_says_the_least_and_the_most(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(voting)
    with lf.set_options(prices={"fake/fake-1": (100.0, 100.0)}):
        plan = df.llm.plan.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
        all_at_once = df.llm.plan.judge(RUBRIC, answer="t", n=5, seed=0, model=engine)
        assert (plan.requests, plan.requests_most) == (8, 20)
        assert plan.cost_most == all_at_once.cost == all_at_once.cost_most
        assert plan.cost == pytest.approx(all_at_once.cost * 2 / 5)
        assert plan.cost_limit == all_at_once.cost_limit
        assert "8 to 20 requests, nothing sent" in str(plan)
        assert "2 to 5 votes a row, at temperature 1" in str(plan)
        assert "with all votes" in str(plan)
        assert "with all votes" in plan._repr_html_()
        assert "with all votes" not in str(all_at_once)
        assert "20 requests, nothing sent" in str(all_at_once)
        assert not engine.requests
        df.llm.judge(RUBRIC, answer="t", n=2, seed=0, model=engine)
        half = df.llm.plan.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
        # Of three rows whose votes differ two more, all in all three; the fourth needs none.
        assert (half.cached, half.requests, half.requests_most) == (1, 6, 9)


def test_a_pilot_counts_the_votes_of_whole_rows() -> None:
    many = pd.DataFrame({"t": [f"{row} {k}" for row in SAID for k in range(10)]})
    engine = lf.testing.FakeEngine(voting)
    with lf.set_options(prices={"fake/fake-1": (100.0, 100.0)}):
        plan = many.llm.plan.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine, pilot=10)
        bought = len(engine.requests)
        assert plan.pilot == plan.sample == 10
        assert plan.spent == pytest.approx(plan.cost_most / 150 * bought, rel=0.3)
        many.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
        assert len(engine.requests) == 150, "the pilot's votes are used"
        job = many.llm.submit.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine).wait()
        assert job.report().votes == 150
        rest = plan.spent / bought * (150 - bought)
        assert plan.interval[0] <= rest <= plan.interval[1]


def test_failed_votes_are_asked_in_their_places_stead(df: pd.DataFrame) -> None:
    no = Failure("refused", "no")
    said: dict[str, list[Any]] = {
        "row-a": [no, 4, 4, 5, 5],  # a third vote for the one that failed
        "row-b": [no, no, 4, 4, 4],  # more than half of those asked have to be there
        "row-c": [no, no, 4, no, 4],
        "row-d": [5, 5, no, no, no],
    }

    def answer(request: Request) -> Any:
        text = str(request.messages[-1]["content"])
        vote = next(v for row, v in said.items() if row in text)[request.sampling.seed or 0]
        return vote if isinstance(vote, Failure) else scored(vote)

    engine = lf.testing.FakeEngine(answer)
    with all_warnings() as caught:
        out = df.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)

    assert asked_of(engine) == {"row-a": 3, "row-b": 5, "row-c": 5, "row-d": 2}
    assert out["score"].fillna(0).tolist() == [4, 4, 0, 5]
    assert out["score_votes"].tolist() == [[None, 4, 4], [None, None, 4, 4, 4], None, [5, 5]]
    assert statuses(out) == ["ok", "ok", "failed", "ok"]
    assert "vote 1 of at most 5" in out.llm.failures()["message"].iloc[0]
    told = of(caught, lf.RowsFailedWarning)
    assert any("2 of 4 rows are scored although some of their votes failed" in t for t in told)


def test_a_row_that_cannot_be_scored_any_more_is_not_asked_on() -> None:
    engine = lf.testing.FakeEngine(Failure("refused", "no"))
    out = pd.DataFrame({"t": ["row-a"]}).llm.judge(
        RUBRIC, answer="t", n=(3, 5), model=engine, errors="coerce"
    )
    assert out["score"].isna().all()
    assert len(engine.requests) == 3


def test_identical_rows_share_their_votes_unless_told_otherwise() -> None:
    same = pd.DataFrame({"t": ["row-d", "row-d", None]})
    shared = lf.testing.FakeEngine(voting)
    with all_warnings():
        job = same.llm.submit.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=shared)
        out = job.result()
    assert len(shared.requests) == 5
    assert out["score"].tolist()[:2] == [3, 3]
    assert statuses(out) == ["ok", "ok", "skipped"]
    assert (job.report().votes, job.report().votes_spared) == (5, 0)

    votes = lf.testing.FakeEngine(lf.testing.in_turn(*map(scored, [4, 4, 1, 5, 2, 3, 4])))
    out = same.llm.judge(RUBRIC, answer="t", n=(2, 5), dedupe=False, concurrency=1, model=votes)
    assert [len(own) for own in out["score_votes"][:2]] == [2, 5]


def test_on_a_series_awaited_and_with_binary_scores() -> None:
    said: Any = pd.Series(list(SAID), name="t")
    engine = lf.testing.FakeEngine(lambda request: scored(voting(request)["score"] > 3))
    keywords: dict[str, Any] = {"scale": "binary", "n": (2, 3), "seed": 0, "model": engine}
    out = said.llm.judge(RUBRIC, **keywords)
    assert [len(votes) for votes in out["score_votes"]] == [2, 2, 3, 3]
    assert out["score"].tolist() == [True, True, False, False]
    frame = said.to_frame()
    asked = len(engine.requests)
    awaited = asyncio.run(frame.llm.ajudge(RUBRIC, answer="t", **keywords))
    assert awaited["score_votes"].tolist() == out["score_votes"].tolist()
    assert len(engine.requests) == asked == 10


def test_a_budget_holds_over_all_votes(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(voting)
    with lf.set_options(prices={"fake/fake-1": (100.0, 100.0)}):
        call: dict[str, Any] = {"answer": "t", "n": (2, 5), "seed": 0, "model": engine}
        plan = df.llm.plan.judge(RUBRIC, max_tokens=100, **call)
        with pytest.raises(lf.BudgetError, match="Nothing was sent"):
            df.llm.judge(RUBRIC, max_tokens=100, budget=plan.cost / 2, **call)
        assert not engine.requests
        with pytest.raises(lf.BudgetError) as stopped:
            df.llm.judge(RUBRIC, max_tokens=100, budget=plan.cost * 1.02, concurrency=1, **call)
        out = stopped.value.result
        assert 8 <= len(engine.requests) < 15
        assert out["score"].isna().any(), "a row whose votes are not all there has no score"
        out = df.llm.judge(RUBRIC, max_tokens=100, **call)
    assert out["score"].tolist() == SCORES
    assert asked_of(engine) == ASKED
    assert len(engine.requests) == 15


@pytest.mark.parametrize(
    ("n", "told"),
    [
        ((1, 5), "2 or more"),
        ((5, 3), "at least"),
        ((2, 3, 4), "such as"),
        ((2, 101), "from 1 to 100"),
        ((2.0, 5), "such as"),
        ((True, 5), "such as"),
        ([2, 5], "such as"),
        ("2-5", "such as"),
    ],
)
def test_what_is_no_pair_of_numbers_is_refused(df: pd.DataFrame, n: Any, told: str) -> None:
    engine = lf.testing.FakeEngine(voting)
    with pytest.raises(ValueError, match=told):
        df.llm.judge(RUBRIC, answer="t", n=n, model=engine)
    assert not engine.requests


def test_an_audit_takes_the_same_number_of_votes_from_every_row(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(voting)
    with pytest.raises(TypeError, match="one number"):
        lf.audit(df, RUBRIC, answer="t", n=(2, 5), model=engine)  # type: ignore[call-overload]
    assert not engine.requests


def test_a_stored_call_is_the_call(df: pd.DataFrame) -> None:
    job = df.llm.submit.judge(
        RUBRIC, answer="t", n=(2, 5), seed=0, model=lf.testing.FakeEngine(voting)
    ).wait()
    read = call_from(job.call.stored(job.call.bind(list(df.columns), [None])))
    assert read.panel == job.call.panel
    assert read.panel is not None
    assert read.panel.sequential


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whenever_it_stops_it_goes_on_and_asks_no_vote_twice(data: Any) -> None:
    no = Failure("refused", "no")
    votes = st.lists(st.sampled_from([1, 2, 3, no]), min_size=6, max_size=6)
    said = data.draw(st.lists(votes, min_size=1, max_size=5))
    least = data.draw(st.integers(2, 5))
    stops = data.draw(st.lists(st.integers(1, 12), max_size=3))
    panel = Votes("int", (1, 2, 3), 6, explain=False, least=least)
    expected = []
    for own in said:
        asked = 0
        while more := panel.more([None if v is no else (v,) for v in own[:asked]]):
            asked += more
        expected.append(own[:asked])
    sent: Counter[tuple[int, int]] = Counter()
    left = 0

    def answer(request: Request) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            return Failure("provider_error", "closed", fatal=True)
        row = int(str(request.messages[-1]["content"]).split("row-")[1].split()[0])
        seed = request.sampling.seed or 0
        sent[row, seed] += 1
        vote = said[row][seed]
        return vote if isinstance(vote, Failure) else {"score": vote}

    engine = lf.testing.FakeEngine(answer)
    df = pd.DataFrame({"t": [f"row-{k} ." for k in range(len(said))]})

    def judge() -> Any:
        return df.llm.judge(
            RUBRIC,
            answer="t",
            scale=(1, 3),
            explain=False,
            n=(least, 6),
            seed=0,
            concurrency=1,
            errors="coerce",
            model=engine,
        )

    for stop in stops:
        left = stop
        with contextlib.suppress(lf.EngineError):
            judge()
        assert sent.total() <= sum(stops)
    left = 1000
    out = judge()

    assert set(sent.values()) <= {1}
    for row, own in enumerate(expected):
        assert sum(asked_row == row for asked_row, _ in sent) == len(own)
        marks = [vote for vote in own if vote is not no]
        if 2 * len(marks) > len(own):
            assert out["score"][row] == median_low(marks)
            assert out["score_votes"][row] == [None if v is no else v for v in own]
        else:
            assert out["score"].isna()[row]


# -- a server, and processes that end ------------------------------------------------------------


def reply(seen: Any) -> str:
    said = next(said for row, said in SAID.items() if row in seen.prompt)
    return json.dumps(scored(said[seen.body["seed"]]))


def test_over_http_another_process_comes_to_the_same(serve: Any, df: pd.DataFrame) -> None:
    server = serve(reply)
    call: dict[str, Any] = {"answer": "t", "n": (2, 5), "seed": 0}
    job = df.llm.submit.judge(RUBRIC, model=openai(server), **call).wait()
    here, report = job.join(), job.report()
    assert server.count == 15
    assert here["score"].tolist() == SCORES
    submits._live.clear()  # as a process finds it that has nothing but the store
    reopened._calls.clear()

    again = lf.job(job.id)
    assert again is not job
    pd.testing.assert_frame_equal(again.join(df.iloc[::-1]).iloc[::-1], here)
    assert again.status().counts == job.status().counts
    assert (again.report().votes, again.report().votes_spared) == (15, 5)
    assert again.failures().empty
    assert report.votes == 15
    assert server.count == 15


def test_a_job_that_was_stopped_goes_on_and_pays_nothing_twice(
    serve: Any, df: pd.DataFrame
) -> None:
    server = serve(lambda seen: reply(seen) if seen.n <= 9 else Reply(status=401))
    call: dict[str, Any] = {"answer": "t", "n": (2, 5), "seed": 0}
    with pytest.raises(lf.EngineError) as stopped:
        df.llm.judge(RUBRIC, model=openai(server, concurrency=1), **call)
    out = stopped.value.result
    assert out["score"].notna().tolist() == [True, False, False, False]
    (job,) = lf.jobs()
    assert job.status().pending == 3
    server.rows, before = reply, server.count
    out = df.llm.judge(RUBRIC, model=openai(server, concurrency=1), **call)
    assert server.count - before == 15 - 9
    assert out["score"].tolist() == SCORES


def test_two_calls_at_once_share_every_vote(serve: Any, df: pd.DataFrame) -> None:
    server = serve(lambda seen: Reply(text=reply(seen), delay=0.02))
    call: dict[str, Any] = {"answer": "t", "n": (2, 5), "seed": 0}
    jobs = [df.llm.submit.judge(RUBRIC, model=openai(server), **call) for _ in range(2)]
    first, second = (job.result() for job in jobs)
    assert first["score"].tolist() == second["score"].tolist() == SCORES
    assert first["score_votes"].tolist() == second["score_votes"].tolist()
    assert server.count == 15


CHILD = """
import json, sys
import pandas as pd, llmframe as lf
task = json.loads(sys.argv[1])
engine = lf.OpenAI("test-model", base_url=task["url"], api_key="sk-child", concurrency=2)
df = pd.DataFrame({"t": [f"{row} {k}" for k in range(10) for row in task["rows"]]})
df.llm.judge(task["rubric"], answer="t", n=(2, 5), seed=0, model=engine, progress=False)
"""


@pytest.mark.slow
def test_a_killed_process_loses_at_most_what_was_in_flight(serve: Any, home: Path) -> None:
    held = threading.Event()

    def until_killed(seen: Any) -> Any:
        if seen.n > 70:  # by then second and further votes are under way
            held.set()
            return Reply(hang=True)
        return reply(seen)

    server = serve(until_killed)
    task = {"url": server.url, "rows": list(SAID), "rubric": RUBRIC}
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LLMFRAME_"))}
    env |= {"LLMFRAME_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps(task)],
        stderr=subprocess.DEVNULL,
        env=env,
    )
    try:
        assert held.wait(60)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    server.rows = reply
    many = pd.DataFrame({"t": [f"{row} {k}" for k in range(10) for row in SAID]})
    before = server.count
    out = many.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=openai(server, concurrency=2))
    assert out["score"].tolist() == SCORES * 10
    # 70 were answered; of these at most as many as were on their way had not been stored.
    assert 150 - 70 <= server.count - before <= 150 - 70 + 2 * 2


# -- batches -------------------------------------------------------------------------------------


def test_in_batches_each_round_is_a_batch_of_the_rows_that_are_open(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeBatchEngine(voting)
    with lf.set_options(poll_interval=0.02):
        out = df.llm.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
    assert out["score"].tolist() == SCORES
    assert [len(votes) for votes in out["score_votes"]] == list(ASKED.values())
    # The first vote went ahead live; then 7, two more of three rows, and one more of one.
    assert [count for _, count in engine.submits] == [7, 6, 1]
    assert Counter(r.key for r in engine.requests).most_common(1)[0][1] == 1


def test_finish_asks_the_votes_that_are_left_live(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeBatchEngine(voting, polls=1_000_000)
    with lf.set_options(poll_interval=0.02):
        job = df.llm.submit.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
        while not job._batches():
            threading.Event().wait(0.02)
        job.finish()
    out = job.join()
    assert out["score"].tolist() == SCORES
    assert [len(votes) for votes in out["score_votes"]] == list(ASKED.values())
    assert len(engine.created) == 1


def answer_line(body: dict[str, Any]) -> str:
    text = body["messages"][-1]["content"]
    said = next(said for row, said in SAID.items() if row in text)
    return json.dumps(scored(said[body["seed"]]))


def test_openai_batches_that_another_process_goes_on_with(df: pd.DataFrame) -> None:
    with BatchServer(answer=answer_line) as server, lf.set_options(poll_interval=0.05):
        engine: Any = lf.OpenAI("m", base_url=server.url, api_key="sk-a", batch=True)
        server.plan.words = ["in_progress"] * 1_000_000
        job = df.llm.submit.judge(RUBRIC, answer="t", n=(2, 5), seed=0, model=engine)
        while not server.batches:
            threading.Event().wait(0.02)
        while not job._batches():
            threading.Event().wait(0.02)
        assert job._run is not None
        job._run.stop("abort")  # as the death of its process, with the first round at the provider
        job._done.wait(10)
        submits._live.clear()
        reopened._calls.clear()
        for stored in server.batches.values():
            stored.plan.words = []
        server.plan.words = []

        again = lf.job(job.id)
        assert again is not job
        # Votes that were never sent have no prompt in the store, but others of their rows have.
        again.resume(model=engine).wait()
        out = again.join(df)
    assert out["score"].tolist() == SCORES
    assert [len(votes) for votes in out["score_votes"]] == list(ASKED.values())
    assert len(server.batches) == 3
    assert again.status().state == "done"


@pytest.mark.local_model
def test_the_embedded_model_votes_in_turn(local_model: Any) -> None:
    df = pd.DataFrame({"t": ["Paris is the capital of France.", "asdf jkl"]})
    job = df.llm.submit.judge(
        "Is it a true sentence?",
        answer="t",
        scale="binary",
        explain=False,
        n=(2, 4),
        seed=1,
        model=lf.Local(),
    )
    out = job.result()
    report = job.report()
    assert report.votes + report.votes_spared == 8
    assert report.votes == sum(map(len, out["score_votes"])) >= 4

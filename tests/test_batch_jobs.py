"""Jobs of provider batches, over the fake provider: rounds, restarts, money, and their ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe import exits
from llmframe.lanes import Twin
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage
from llmframe.testing import FakeBatchEngine

PROMPT = "Say it louder: {text}"
PRICES = {"fake/fake-1": (1.0, 10.0)}


@pytest.fixture(autouse=True)
def quick() -> Any:
    """Polls and lingers of a test's length."""
    with lf.set_options(poll_interval=0.02):
        yield


def frame(count: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"row {i}" for i in range(count)]})


def asked(engine: FakeBatchEngine) -> Counter[str]:
    """How often each row was sent, by the text of the row."""
    return Counter(str(r.messages[0]["content"]).split(": ")[1] for r in engine.requests)


def loud(text: str) -> str:
    return text.split(": ")[1].upper()


def test_a_batch_is_the_same_call() -> None:
    engine = FakeBatchEngine(loud)
    out = frame().llm.map(PROMPT, model=engine, batch=True)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(6)]
    # The first row is the canary: live, and never sent again.
    assert [count for _, count in engine.submits] == [5]
    assert set(asked(engine).values()) == {1}
    lanes = [
        e.lane for r in engine.store.replies([q.key for q in engine.requests]).values() for e in r
    ]
    assert Counter(lanes) == {"live": 1, "batch": 5}


def test_u158_a_refused_parameter_costs_one_request_and_no_upload() -> None:
    refused = Failure("invalid_request", "temperature is not supported", param="temperature")
    engine = FakeBatchEngine(refused)
    with pytest.raises(lf.EngineError, match="temperature is not supported"):
        frame().llm.map(PROMPT, model=engine, batch=True)
    assert engine.submits == []
    assert len(engine.requests) == 1


def test_without_a_live_twin_the_first_batch_is_one_row() -> None:
    engine = FakeBatchEngine(loud, probe=False)
    out = frame().llm.map(PROMPT, model=engine)
    assert out["response"].notna().all()
    assert [count for _, count in engine.submits] == [1, 5]


def test_a_proven_engine_needs_no_canary() -> None:
    engine = FakeBatchEngine(loud)
    frame(3).llm.map(PROMPT, model=engine)
    frame(6).llm.map(PROMPT, model=engine)
    assert [count for _, count in engine.submits] == [2, 3]


def test_rounds_send_what_failed_in_a_smaller_batch() -> None:
    told: list[str] = []

    def answer(request: Request) -> Any:
        text = request.messages[0]["content"].split(": ")[1]
        if text == "row 2" and request.attempt == 1:
            return "not a number"
        if len(request.messages) > 1:
            told.append(request.messages[-1]["content"])
        if text == "row 3" and request.attempt == 1:
            return Result(b"", text='{"resp', finish="length", usage=Usage(5, 5))
        if text == "row 4" and request.attempt < 3:
            return Failure("no_result", "no line", retryable=True)
        return 7

    engine = FakeBatchEngine(answer)
    out = frame().llm.map(PROMPT, int, model=engine, max_tokens=16)
    assert out["response"].tolist() == [7] * 6
    assert [count for _, count in engine.submits] == [5, 3, 1]
    assert len(told) == 1
    assert "not a number" in told[0] or "JSON" in told[0]
    longer = [r.sampling.max_tokens for r in engine.requests if "row 3" in str(r.messages)]
    assert longer == [16, 64]


@pytest.mark.parametrize("fault", ["cut", "poll_error", "foreign", "lost_answer"])
def test_trouble_on_the_way_costs_nothing(fault: str) -> None:
    engine = FakeBatchEngine(loud, batch_faults=[fault])
    out = frame().llm.map(PROMPT, model=engine)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(6)]
    assert set(asked(engine).values()) == {1}


def test_u045_an_expired_batch_keeps_what_it_answered() -> None:
    engine = FakeBatchEngine(loud, batch_faults=["expired"])
    out = frame(9).llm.map(PROMPT, model=engine)
    assert out["response"].notna().all()
    assert [count for _, count in engine.submits] == [8, 4]


def test_u015_a_cancelled_job_keeps_what_was_done() -> None:
    engine = FakeBatchEngine(loud, polls=1_000)
    job = frame(9).llm.submit.map(PROMPT, model=engine)
    _until(lambda: engine.created)
    job.cancel()
    _until(lambda: job.status().state == "canceled")
    counts = job.status().counts
    assert (counts["ok"], counts["pending"]) == (5, 4)  # the canary, and half of the batch
    with pytest.warns(UserWarning, match="4 of 9 rows are without an answer: .* was canceled"):
        assert job.join()["response"].notna().sum() == 5
    assert len(job.failures()) == 0  # they are pending: the same call sends them
    engine._polls = 0
    assert frame(9).llm.map(PROMPT, model=engine)["response"].notna().all()
    assert [count for _, count in engine.submits] == [8, 4]


def test_finish_live_asks_the_last_rows_with_the_same_keys() -> None:
    engine = FakeBatchEngine(loud, polls=1_000)
    job = frame(9).llm.submit.map(PROMPT, model=engine)
    _until(lambda: engine.created)
    job.finish(live=True)
    assert job.status().state == "done"
    assert job.join()["response"].tolist() == [f"ROW {i}" for i in range(9)]
    keys = Counter(request.key for request in engine.requests)
    assert max(keys.values()) == 2  # asked in the batch that was cancelled, then live
    assert len(keys) == 9
    assert len(engine.submits) == 1
    assert job.status().counts["ok"] == 9


def test_u120_an_interrupt_leaves_the_batch_and_says_how_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeBatchEngine(loud, polls=3)
    job = frame(5).llm.submit.map(PROMPT, model=engine)
    _until(lambda: engine.created)
    run_wait = job._done.wait

    def interrupted(seconds: float | None = None) -> bool:
        monkeypatch.setattr(job._done, "wait", run_wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(job._done, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        job.wait()
    message = str(caught.value)
    assert engine.created[0].id in message
    assert f'lf.job("{job.id}").wait()' in message
    assert "cancel()" in message
    # The same object, in the same kernel, comes back to it.
    assert job.wait().join()["response"].notna().all()
    assert len(engine.submits) == 1


def test_u047_the_same_call_in_a_new_run_joins_the_stored_batch() -> None:
    engine = FakeBatchEngine(loud, polls=1_000_000)
    first = frame(9).llm.submit.map(PROMPT, model=engine)
    _until(lambda: engine.created)
    first._run.stop("abort")  # as the death of its process
    first._done.wait(60)
    engine._polls = 0
    # Another frame: what is not in the batch goes out, what is in it is waited for.
    out = frame(12).llm.map(PROMPT, model=engine)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(12)]
    assert [count for _, count in engine.submits] == [8, 3]
    assert set(asked(engine).values()) == {1}
    assert first.join()["response"].notna().all()


def test_u054_repeated_labels_get_ids_of_their_own() -> None:
    data = pd.DataFrame({"text": ["a", "b", "a"]}, index=[7, 7, 8])
    engine = FakeBatchEngine(loud)
    out = data.llm.map(PROMPT, model=engine, dedupe=False)
    assert out["response"].tolist() == ["A", "B", "A"]
    assert out.index.tolist() == [7, 7, 8]
    assert len(engine.submits) == 1


def test_u065_shuffled_results_join_by_id() -> None:
    outs = [
        frame(40).llm.map(PROMPT, model=FakeBatchEngine(loud, seed=seed, max_requests=16))
        for seed in (1, 2)
    ]
    pd.testing.assert_series_equal(outs[0]["response"], outs[1]["response"])
    assert outs[0]["response"].tolist() == [f"ROW {i}" for i in range(40)]


def test_u148_batches_split_by_bytes() -> None:
    data = pd.DataFrame({"text": ["é" * 100 + str(i) for i in range(10)]})
    engine = FakeBatchEngine(loud, max_bytes=1500)
    out = data.llm.map(PROMPT, model=engine)
    assert out["response"].notna().all()
    assert len(engine.submits) > 4


def test_u149_more_rows_than_a_batch_holds() -> None:
    engine = FakeBatchEngine(loud, max_requests=5)
    out = frame(11).llm.map(PROMPT, model=engine)
    assert out["response"].notna().all()
    assert [count for _, count in engine.submits] == [5, 5]


def test_u038_a_row_without_a_line_fails_by_name() -> None:
    def answer(request: Request) -> Any:
        return (
            Failure("no_result", "no line", retryable=True)
            if "row 2" in str(request.messages)
            else "x"
        )

    with pytest.warns(lf.RowsFailedWarning, match="1 no_result"):
        out = frame(3).llm.map(PROMPT, model=FakeBatchEngine(answer))
    failures = out.llm.failures()
    assert failures["kind"].tolist() == ["no_result"]
    assert failures.index.tolist() == [2]


def test_u011_a_batch_of_failures_only_ends_with_its_reasons() -> None:
    def answer(text: str) -> Any:
        return "fine" if "row 0" in text else Failure("refused", f"no word about {text[-5:]}")

    with pytest.warns(lf.RowsFailedWarning, match="3 of 4 rows are NA: 3 refused"):
        out = frame(4).llm.map(PROMPT, model=FakeBatchEngine(answer))
    messages = out.llm.failures()["message"].tolist()
    assert messages == [f"no word about row {i}" for i in (1, 2, 3)]


def test_u012_a_line_without_a_reason_may_pass_in_the_next_round() -> None:
    def answer(request: Request) -> Any:
        if "row 2" in str(request.messages) and request.attempt == 1:
            return Failure("provider_error", "no reason given (status 0)", retryable=True)
        return "fine"

    engine = FakeBatchEngine(answer)
    assert frame(3).llm.map(PROMPT, model=engine)["response"].tolist() == ["fine"] * 3
    assert [count for _, count in engine.submits] == [2, 1]


def test_u068_each_rejected_row_is_named() -> None:
    refused = Failure("refused", "the model will not")
    data = pd.DataFrame({"text": list("abcd")}, index=list("wxyz"))
    with pytest.warns(lf.RowsFailedWarning, match="4 of 4 rows"):
        out = data.llm.map(PROMPT, model=FakeBatchEngine(refused, max_requests=2))
    assert out.llm.failures().index.tolist() == list("wxyz")


def test_u046_no_credit_in_mid_batch_keeps_the_answers_and_a_rerun_sends_the_rest() -> None:
    broke = [True]

    def answer(text: str) -> Any:
        if broke[0] and ("row 2" in text or "row 3" in text):
            return Failure("provider_error", "credit balance is too low", fatal=True, status=402)
        return loud(text)

    engine = FakeBatchEngine(answer)
    with pytest.raises(lf.EngineError, match="credit balance is too low") as caught:
        frame(4).llm.map(PROMPT, model=engine)
    assert caught.value.result["response"].notna().sum() == 2
    broke[0] = False
    assert frame(4).llm.map(PROMPT, model=engine)["response"].notna().all()
    assert [count for _, count in engine.submits] == [3, 2]


def test_an_error_leaves_the_batches_that_run_and_says_how_to_come_back() -> None:
    broke = [True]

    def answer(text: str) -> Any:
        if broke[0] and "row 2" in text:
            return Failure("provider_error", "credit balance is too low", fatal=True, status=402)
        return loud(text)

    # The first batch (rows 1 to 3) ends with a fatal row; the second never ends.
    engine = FakeBatchEngine(answer, max_requests=3, batch_faults=[None, "stuck"])
    with pytest.raises(lf.EngineError, match="credit balance is too low") as caught:
        frame(7).llm.map(PROMPT, model=engine)
    left = engine.created[1]
    [name] = {record.job for record in engine.store.batches()}
    assert f'1 batch goes on at fake ({left.id}): lf.job("{name}").wait()' in str(caught.value)
    done = caught.value.result["response"].notna().tolist()
    assert done == [True, True, False, True, False, False, False]
    job = lf.job(name)
    assert job.status().state == "failed"
    for record in engine._shelf.all():
        engine._shelf.put({**record, "fault": None})
    # Waiting reads what is there and sends nothing; the same call sends the rest.
    assert job.wait().status().state == "failed"
    assert [count for _, count in engine.submits] == [3, 3]
    with pytest.warns(lf.RowsFailedWarning, match="1 of 7 rows .* credit balance is too low"):
        done = job.join()["response"].notna().tolist()
    assert done == [True, True, False, True, True, True, True]
    broke[0] = False
    assert frame(7).llm.map(PROMPT, model=engine)["response"].notna().all()
    assert [count for _, count in engine.submits] == [3, 3, 1]


def test_answers_that_are_no_use_end_the_job_while_a_batch_still_runs() -> None:
    engine = FakeBatchEngine("no number", max_requests=120, batch_faults=[None, "stuck"])
    with pytest.raises(lf.EngineError, match=r"answers are no use.*1 batch goes on at fake"):
        frame(241).llm.map(PROMPT, int, model=engine, repairs=0)
    assert len(engine.created) == 2


def test_an_error_that_nobody_has_heard_is_told_before_the_job_is_taken_up() -> None:
    fatal = Failure("provider_error", "no credit", fatal=True, status=402)
    engine = FakeBatchEngine(
        lambda text: fatal if "row 2" in text else "x",
        max_requests=3,
        batch_faults=[None, "stuck"],
    )
    job = frame(9).llm.submit.map(PROMPT, model=engine)
    _until(lambda: job.status().state == "failed")
    for _ in range(2):
        with pytest.raises(lf.EngineError, match="no credit"):
            job.result()


def test_u134_another_batch_size_asks_nothing_again() -> None:
    data = frame(20)
    engine = FakeBatchEngine(loud, max_requests=4, batch_faults=[None, "unauthorized"])
    with pytest.raises(lf.StoreError):
        data.llm.map(PROMPT, model=engine)
    engine.limits = FakeBatchEngine(max_requests=7).limits
    for record in engine._shelf.all():
        engine._shelf.put({**record, "fault": None})
    assert data.llm.map(PROMPT, model=engine)["response"].notna().all()
    assert set(asked(engine).values()) == {1}


def test_u020_a_batch_that_never_ends_is_waited_for_as_long_as_asked() -> None:
    engine = FakeBatchEngine(loud, batch_faults=["stuck"])
    job = frame(4).llm.submit.map(PROMPT, model=engine)
    job.wait(timeout=0.5)
    assert job.status().state == "running"
    assert len(engine.submits) == 1
    assert job._batch_ids() == [engine.created[0].id]
    for record in engine._shelf.all():
        engine._shelf.put({**record, "fault": None})
    assert job.wait().join()["response"].notna().all()
    assert len(engine.submits) == 1


def _until(true: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)


# -- money -----------------------------------------------------------------------------------


def priced(text: str) -> Result:
    """A reply of 100 tokens in and 10 out, 50 of the input from the cache."""
    return Result(b"", text=loud(text), finish="stop", usage=Usage(100, 10, 50, 10, 0, 5))


def test_u036_the_plan_sends_nothing_and_shows_both_prices() -> None:
    engine = FakeBatchEngine(loud)
    with lf.set_options(prices=PRICES):
        plan = frame(1000).llm.plan.map(PROMPT, model=engine, max_tokens=100)
        with pytest.raises(lf.BudgetError, match="Nothing was sent") as caught:
            frame(1000).llm.map(PROMPT, model=engine, max_tokens=100, budget=0.1)
    assert engine.requests == []
    assert plan.batch
    assert plan.requests == 1000
    assert plan.expected == plan.cost_batch
    assert "cost as a batch" in repr(plan)
    assert caught.value.plan.requests == 1000


def test_the_plan_uses_the_stated_batch_price_and_says_where_there_is_none() -> None:
    engine = FakeBatchEngine(loud)

    def plan(price: Any) -> Any:
        with lf.set_options(prices={"fake/fake-1": price}):
            return frame(1000).llm.plan.map(PROMPT, model=engine, max_tokens=100)

    rates = {"input": 1.0, "output": 10.0, "batch_input": 0.4, "batch_output": 4.0}
    stated, unknown = plan(rates), plan((1.0, 10.0))
    assert stated.cost_batch == pytest.approx(stated.cost * 0.4)
    assert "as a batch" in " ".join(stated.advice)
    assert not any("no batch price" in sentence for sentence in stated.advice)
    assert unknown.cost_batch == unknown.cost
    [said] = unknown.advice
    assert "no batch price is known for fake/fake-1: it is counted at the live price" in said
    assert '"batch_input"' in said
    with lf.set_options(prices={"openai/m": (1.0, 10.0)}):
        half = frame(9).llm.plan.map(PROMPT, model=lf.OpenAI("m", api_key="sk-x", batch=True))
    assert half.cost_batch == half.cost / 2
    assert "assumed to be half of yours" in " ".join(half.advice)


def test_the_advice_names_the_cheaper_path() -> None:
    from llmframe.advice import path

    said = path(200_000, 90.0, 45.0, concurrency=32, batched=False, in_process=False)
    assert said is not None
    assert "US$45.00 as a batch" in said
    assert "the batch fits" in said
    assert "own GPU" in said
    said = path(100, 0.2, 0.1, concurrency=32, batched=True, in_process=False)
    assert said is not None
    assert "live fits" in said
    assert path(100, 0.0, 0.0, concurrency=4, batched=False, in_process=True) is None


def test_a_budget_holds_over_all_rounds_and_a_larger_one_pays_the_rest() -> None:
    # Without a limit a row reserves 4,096 tokens out, is expected to take 150, and takes 400.
    engine = FakeBatchEngine(Result(b"", text="x", finish="stop", usage=Usage(100, 400)))
    with lf.set_options(prices=PRICES):
        with pytest.raises(lf.BudgetError, match="only the rest") as caught:
            frame(20).llm.map(PROMPT, model=engine, budget=0.06)
        done = caught.value.result["response"].notna().sum()
        sent = len(engine.requests)
        assert 0 < done == sent < 20
        assert sent * 0.0041 <= 0.06
        out = frame(20).llm.map(PROMPT, model=engine, budget=1.0)
    assert out["response"].notna().all()
    assert len(engine.requests) == 20


def test_what_is_at_the_provider_counts_in_a_later_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    # From Python 3.12 on a script's `submit` waits that long for rows that the budget holds back.
    monkeypatch.setattr(exits, "_QUIET", 0.1)
    engine = FakeBatchEngine(priced, polls=1_000_000)
    with lf.set_options(prices=PRICES):
        first = frame(5).llm.submit.map(PROMPT, model=engine)
        _until(lambda: engine.created)
        first._run.stop("abort")
        first._done.wait(60)
        # A row reserves 0.041, and four are in the batch: there is no room for a fifth.
        job = frame(10).llm.submit.map(PROMPT, model=engine, budget=0.2)
        job.wait(timeout=0.5)
        assert [count for _, count in engine.submits] == [4]
        engine._polls = 0
        assert job.wait().join()["response"].notna().all()
    assert set(asked(engine).values()) == {1}


def test_u035_what_a_cancelled_or_expired_batch_answered_is_counted() -> None:
    engine = FakeBatchEngine(priced, batch_faults=["expired"])
    with lf.set_options(prices=PRICES):
        job = frame(5).llm.submit.map(PROMPT, model=engine).wait()
    assert job.status().usage.input_tokens == 500
    assert job.status().cost == pytest.approx(5 * 200e-6)


def test_the_report_compares_and_shows_the_cache() -> None:
    engine = FakeBatchEngine(lambda text: priced(text))
    with lf.set_options(prices=PRICES):
        report = frame(5).llm.submit.map(PROMPT, model=engine).wait().report()
    assert report.estimate is not None
    assert report.estimate > 0
    assert "expected US$" in repr(report)
    assert report.status.usage.cached_tokens > 0
    written = report.status.usage.cache_write_tokens
    assert f"{written} tokens, {written // 2} of them for an hour" in repr(report)


def test_what_the_cache_saved() -> None:
    from llmframe.costs import Price, Rate, cache_savings

    price = Price(
        Rate(1.0), Rate(10.0), cached=Rate(0.1), cache_write=Rate(1.25), cache_write_1h=Rate(2.0)
    )
    hour = Usage(100, 10, 50, 10, cache_write_1h_tokens=10)
    assert cache_savings(price, hour) == pytest.approx((50 * 0.9 - 10.0) / 1e6)
    assert cache_savings(price, Usage(100, 10, 50, 10)) == pytest.approx((50 * 0.9 - 2.5) / 1e6)
    assert cache_savings(price, Usage(100, 10)) == 0.0
    assert cache_savings(None, Usage(100, 10, 50)) == 0.0


def test_a_pilot_buys_rows_that_the_call_keeps() -> None:
    engine = FakeBatchEngine(priced)
    with lf.set_options(prices=PRICES):
        plan = frame(100).llm.plan.map(PROMPT, model=engine, pilot=10)
        assert plan.pilot == 10
        assert plan.spent == pytest.approx(10 * 200e-6)
        assert plan.interval == pytest.approx((90 * 200e-6, 90 * 200e-6))
        assert plan.requests == 90
        assert engine.submits == []
        assert frame(100).llm.map(PROMPT, model=engine)["response"].notna().all()
    assert set(asked(engine).values()) == {1}


# -- another process -------------------------------------------------------------------------

CHILD = """
import os, signal, sys, time
import pandas as pd
import llmframe as lf
from llmframe import exits
from llmframe.testing import FakeBatchEngine

def loud(text):
    return text.split(": ")[1].upper()

def frame(count):
    return pd.DataFrame({{"text": [f"row {{i}}" for i in range(count)]}})

def engine(**options):
    return FakeBatchEngine(loud, directory={folder!r}, **options)

lf.set_options(poll_interval=0.02)
PROMPT = "Say it louder: {{text}}"
"""


class Elsewhere:
    """Runs code in processes of their own, over one provider on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, code: str, status: int = 0) -> str:
        text = CHILD.format(folder=str(self.folder)) + textwrap.dedent(code)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", text],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout.strip()

    def engine(self, **options: Any) -> FakeBatchEngine:
        return FakeBatchEngine(loud, directory=self.folder, **options)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "provider")


def counts(engine: FakeBatchEngine) -> list[int]:
    return [batch.count for batch in engine.created]


def test_u047_submit_and_exit_then_the_same_call_submits_nothing(elsewhere: Elsewhere) -> None:
    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine()
    assert counts(engine) == [8]
    assert lf.job(name).status().state == "detached"
    out = frame(9).llm.map(PROMPT, model=engine)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(9)]
    assert counts(engine) == [8]
    assert engine.submits == []
    assert engine.requests == []


def test_a_job_is_taken_up_by_id_in_another_process(elsewhere: Elsewhere) -> None:
    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine()
    with lf.set_options(model=engine):
        job = lf.job(name).wait()
    assert job.status().state == "done"
    assert job.status().counts["ok"] == 9
    shuffled = frame(9).sample(frac=1, random_state=1)
    out = job.join(shuffled)
    assert out["response"].tolist() == [text.upper() for text in shuffled["text"]]
    assert counts(engine) == [8]


def test_the_table_says_what_is_true_of_jobs_that_others_left(
    elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    from llmframe.cli import main

    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine(polls=10**9)
    [batch] = engine.created
    [row] = lf.jobs().rows()
    # The canary is answered; the batch is at the provider.
    assert row[:2] + row[5:9] == (name, "detached", "9", "1", "0", "1 of 1 batches")
    assert f"1 batch at fake ({batch.id} 8 requests, since " in repr(lf.job(name).status())
    assert main(["show", name]) == 0
    shown = capsys.readouterr().out
    assert "1 of 9 rows answered" in shown
    assert f"waiting for  1 batch at fake ({batch.id} 8 requests" in shown
    # Another call reads its batch.
    other = frame(9).llm.submit.map(PROMPT, model=engine)
    _until(lambda: lf.job(name).status().reader == other.id)
    assert lf.job(name).status().state == "running"
    engine._polls = 0
    other.wait()
    for job in (other, lf.job(name)):
        assert job.status().state == "done"
        assert job.status().ok + job.status().cached == 9
    assert f"done (taken over by {other.id})" in repr(lf.jobs())


def test_a_job_that_ended_early_counts_what_others_answered_since() -> None:
    broke = [True]
    bad = Failure("provider_error", "no credit", fatal=True, status=402)
    engine = FakeBatchEngine(lambda text: bad if broke[0] and "row 2" in text else loud(text))
    first = frame(4).llm.submit.map(PROMPT, model=engine)
    with pytest.raises(lf.EngineError):
        first.result()
    assert (first.status().ok, first.status().pending) == (3, 1)
    broke[0] = False
    frame(4).llm.map(PROMPT, model=engine)
    assert (first.status().ok, first.status().pending) == (4, 0)
    assert first.status().state == "failed"


def test_rounds_go_on_in_another_process_where_prompts_are_stored(elsewhere: Elsewhere) -> None:
    name = elsewhere(
        """
        engine = engine(polls=10**9, batch_faults=["expired"])
        print(frame(9).llm.submit.map(PROMPT, model=engine).id)
        """
    )
    engine = elsewhere.engine()
    job = lf.job(name).resume(model=engine).wait()
    assert job.join(frame(9))["response"].tolist() == [f"ROW {i}" for i in range(9)]
    assert counts(engine) == [8, 4]
    assert [str(r.messages[0]["content"])[:5] for r in engine.requests] == ["Say i"] * 4


def test_a_killed_process_between_create_and_answer(elsewhere: Elsewhere) -> None:
    elsewhere(
        """
        class Dies(FakeBatchEngine):
            def submit(self, lines, tag, note):
                super().submit(lines, tag, note)
                os.kill(os.getpid(), signal.SIGKILL)

        frame(9).llm.map(PROMPT, model=Dies(loud, directory=engine()._shelf.directory))
        """,
        status=-9,
    )
    [job] = lf.jobs()
    with pytest.warns(UserWarning, match="8 of 9 rows are without an answer: 1 batch at fake"):
        out = job.join(frame(9))
    assert out.llm.status().value_counts().to_dict()["in_doubt"] == 8
    engine = elsewhere.engine()
    out = frame(9).llm.map(PROMPT, model=engine)
    assert out["response"].notna().all()
    assert counts(engine) == [8]


def test_a_killed_submitter_leaves_rows_that_nobody_has_claimed(elsewhere: Elsewhere) -> None:
    elsewhere(
        """
        class Dies(FakeBatchEngine):
            def submit(self, lines, tag, note):
                batch = super().submit(lines, tag, note)
                if len(self.submits) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return batch

        frame(900).llm.map(PROMPT, model=Dies(
            loud, directory=engine()._shelf.directory, max_requests=100, polls=10**9))
        """,
        status=-9,
    )
    [found] = lf.jobs()
    engine = elsewhere.engine(max_requests=100)
    with pytest.warns(UserWarning, match="The same call on the frame sends them") as told:
        job = lf.job(found.id).resume(model=engine).wait()
    [said] = [str(warning.message) for warning in told]
    never = int(said.split()[0])
    assert said.startswith(f"{never} requests of job {job.id} were never sent")
    assert 0 < never < 700
    with pytest.warns(UserWarning, match=f"{never} of 900 rows are without an answer"):
        states = job.join(frame(900)).llm.status().value_counts()
    assert (states["ok"], states["pending"]) == (900 - never, never)
    assert lf.job(job.id).status().state == "interrupted"
    # Whoever waits for it later, elsewhere, hears of them too.
    again = elsewhere(
        f"""
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            lf.job({job.id!r}).wait()
        print(*[warning.message for warning in told])
        """
    )
    assert again.startswith(f"{never} rows of job {job.id} are without an answer")
    assert "The same call" in again
    fresh = elsewhere.engine()
    assert frame(900).llm.map(PROMPT, model=fresh)["response"].tolist() == [
        f"ROW {i}" for i in range(900)
    ]
    assert len(fresh.requests) == never
    assert sum(counts(engine)) == 899  # and one canary, which holds in the other processes too


def test_two_processes_one_job(elsewhere: Elsewhere) -> None:
    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine(polls=10**9)
    job = lf.job(name).resume(model=engine)
    said = elsewhere(
        f"""
        lf.set_options(model=engine())
        job = lf.job({name!r})
        try:
            job.resume()
        except lf.StoreError as error:
            print(error)
        import contextlib
        from llmframe import watching
        watching._COUNT = 0.1
        with lf.set_options(progress=True), contextlib.redirect_stderr(sys.stdout):
            print(job.wait(timeout=1.5).status().state)
        """
    )
    assert "is driven by pid" in said
    assert f"1 of 9 rows, 0 tokens, waiting for 1 batch at fake ({engine.created[0].id} " in said
    assert "running" in said.splitlines()
    engine._polls = 0
    assert job.wait().status().state == "done"
    assert counts(engine) == [8]


def test_another_account_is_refused(elsewhere: Elsewhere) -> None:
    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    other = elsewhere.engine(account="somebody-else")
    with pytest.raises(lf.StoreError, match="belongs to the account 'fake-account'"):
        lf.job(name).resume(model=other).wait()
    with pytest.raises(lf.StoreError, match="belongs to the account 'fake-account'"):
        frame(9).llm.map(PROMPT, model=other)
    with pytest.raises(lf.StoreError, match="model='fake-1' \\(here 'fake-2'\\)"):
        lf.job(name).resume(model=elsewhere.engine(model="fake-2"))
    assert frame(9).llm.map(PROMPT, model=elsewhere.engine())["response"].notna().all()
    assert counts(other) == [8]


def test_a_live_call_does_not_wait_for_a_batch_that_nobody_reads(elsewhere: Elsewhere) -> None:
    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine()
    live = Twin(engine)
    live.store = None
    with pytest.raises(lf.StoreError, match=f"8 of these rows .* job {name}"):
        frame(9).llm.map(PROMPT, model=live)
    lf.job(name).resume(model=engine).wait()
    assert frame(9).llm.map(PROMPT, model=live)["response"].notna().all()
    assert len(engine.requests) == 0


def test_finish_live_in_another_process(elsewhere: Elsewhere) -> None:
    name = elsewhere("print(frame(9).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine(polls=10**9)
    job = lf.job(name).finish(live=True, model=engine)
    assert job.join(frame(9))["response"].tolist() == [f"ROW {i}" for i in range(9)]
    assert counts(engine) == [8]
    assert len(engine.requests) == 4


def test_resend_where_batches_cannot_be_listed(elsewhere: Elsewhere) -> None:
    name = elsewhere(
        """
        engine = engine(batch_faults=["lost_answer"], can_list=False)
        job = frame(9).llm.submit.map(PROMPT, model=engine)
        print(job.wait().id)
        """
    )
    engine = elsewhere.engine(can_list=False)
    with pytest.raises(lf.EngineError, match="resend=True"):
        lf.job(name).resume(model=engine).wait()
    job = lf.job(name).resume(model=engine, resend=True).wait()
    assert job.join(frame(9))["response"].notna().all()
    assert counts(engine) == [8, 8]


# -- the terminal ----------------------------------------------------------------------------


def test_watch_and_export_in_a_terminal(
    elsewhere: Elsewhere, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from llmframe.cli import main

    name = elsewhere("print(frame(3).llm.submit.map(PROMPT, model=engine(polls=10**9)).id)")
    engine = elsewhere.engine()
    assert main(["watch", name]) == 1
    assert f"llmframe watch {name} --model NAME" in capsys.readouterr().err
    with lf.set_options(model=engine):
        assert main(["watch", name]) == 0
    assert "3 of 3 rows answered" in capsys.readouterr().out
    assert main(["export", name, str(tmp_path / "out.csv")]) == 0
    shown = pd.read_csv(tmp_path / "out.csv")
    assert shown["response"].tolist() == ["ROW 0", "ROW 1", "ROW 2"]
    assert main(["jobs"]) == 0
    assert name in capsys.readouterr().out


def test_map_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from llmframe.cli import main

    path = tmp_path / "in.csv"
    frame(3).to_csv(path, index=False)
    with lf.set_options(model=FakeBatchEngine(loud)):
        assert main(["map", str(path), "--prompt", PROMPT, "--into", "said"]) == 0
        assert main(["map", str(path), "--prompt", "{nothing}"]) == 1
    written = capsys.readouterr()
    assert written.out.strip() == str(tmp_path / "in.out.csv")
    assert "no column 'nothing'" in written.err
    said = pd.read_csv(tmp_path / "in.out.csv")
    assert said["said"].tolist() == ["ROW 0", "ROW 1", "ROW 2"]

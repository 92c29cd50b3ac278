"""The loop, over the fake engine: every row ends with its own answer or its own failure."""

import threading
import time
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

import llmframe as lf
from llmframe import stocks
from llmframe.results import Failure
from llmframe.testing import FakeEngine, Fault

pytestmark = pytest.mark.filterwarnings("ignore::llmframe.RowsFailedWarning")


def frame(count):
    return pd.DataFrame({"t": [f"row {i}" for i in range(count)]})


def upper(text):
    return text.upper()


def asked(engine):
    return Counter(request.messages[-1]["content"] for request in engine.requests)


def test_every_row_gets_its_own_answer_and_the_same_call_sends_nothing():
    df, engine = frame(500), FakeEngine(upper)
    out = df.llm.map("{t}", model=engine)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(500)]
    again = df.llm.map("{t}", model=engine)
    assert len(engine.requests) == 500
    pd.testing.assert_frame_equal(again, out, check_flags=False)
    assert set(out.llm.status()) == {"ok"}
    assert set(again.llm.status()) == {"cached"}


@pytest.mark.parametrize("fault", ["drop", "duplicate", "reorder", "429", "503", "connection"])
def test_a_passing_fault_costs_no_row(fault):
    df, engine = frame(200), FakeEngine(upper, faults={fault: 0.1}, latency=0.001)
    out = df.llm.map("{t}", model=engine)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(200)]


def test_u070_rows_that_begin_alike_are_asked_together_and_come_back_in_their_places():
    texts = [f"{document * 400} question {i}" for i in range(50) for document in "BA"]
    df, engine = pd.DataFrame({"t": texts}), FakeEngine(upper)
    engine.limits = replace(engine.limits, prefixes=True)
    rubric = "Answer. " * 500  # longer than what rows are compared by
    out = df.llm.map(f"{rubric}{{t}}", model=engine)
    seen = [request.messages[-1]["content"].removeprefix(rubric)[0] for request in engine.requests]
    assert seen == ["A"] * 50 + ["B"] * 50
    assert out["response"].tolist() == [(rubric + text).upper() for text in texts]
    assert out["t"].tolist() == texts


def test_u070_samples_of_one_row_are_asked_side_by_side(monkeypatch):
    monkeypatch.setattr(stocks, "_WINDOW", 30)
    texts = ["b", "c", "a"] * 20
    engine = FakeEngine(upper)
    engine.limits = replace(engine.limits, prefixes=True)
    out = lf.map(pd.DataFrame({"t": texts}), "{t}", model=engine, dedupe=False, temperature=1.0)
    seen = "".join(request.messages[-1]["content"] for request in engine.requests)
    # Window by window: a frame of any length begins to be asked at once.
    assert seen == ("a" * 10 + "b" * 10 + "c" * 10) * 2
    assert out["response"].tolist() == [text.upper() for text in texts]


def test_garbage_is_asked_again_with_the_error_told():
    df, engine = frame(50), FakeEngine({"n": 3}, faults={"garbage": 0.2})
    out = df.llm.map("{t}", {"n": int}, model=engine)
    assert out["n"].tolist() == [3] * 50
    told = [r for r in engine.requests if r.attempt == 2]
    assert told
    assert all(r.messages[-2]["role"] == "assistant" for r in told)


def test_a_repair_is_tried_as_often_as_asked():
    engine = FakeEngine("no json", in_process=True)
    out = frame(1).llm.map("{t}", {"n": int}, model=engine, repairs=3)
    assert len(engine.requests) == 4
    failed = out.llm.failures()
    assert failed["kind"].tolist() == ["invalid_output"]
    assert failed["attempts"].tolist() == [4]


def test_a_cut_reply_is_asked_once_more_with_a_larger_limit():
    engine = FakeEngine({"n": 1}, faults={"truncate": 1.0})
    out = frame(1).llm.map("{t}", {"n": int}, model=engine)
    first, second = (request.sampling.max_tokens for request in engine.requests)
    assert second == 4 * first
    assert out["n"].tolist() == [1]


def test_a_reply_that_is_cut_twice_is_not_asked_a_third_time():
    engine = FakeEngine({"n": 1}, faults=lambda request: Fault("truncate", times=9))
    out = frame(1).llm.map("{t}", {"n": int}, model=engine, max_tokens=5)
    assert [request.sampling.max_tokens for request in engine.requests] == [5, 20]
    assert out.llm.failures()["kind"].tolist() == ["truncated"]


def test_a_crash_keeps_what_is_finished_and_the_next_call_sends_the_rest():
    df = frame(300)
    crash = [None] * 150 + ["crash"]
    engine = FakeEngine(upper, faults=crash, concurrency=8, latency=0.0005)
    with pytest.raises(lf.EngineError) as caught:
        df.llm.map("{t}", model=engine)
    done = caught.value.result["response"].notna().sum()
    assert 100 < done < 160
    out = df.llm.map("{t}", model=engine)
    assert out["response"].notna().all()
    assert max(asked(engine).values()) <= 2


def test_a_fatal_answer_ends_the_job_with_the_rest_pending():
    engine = FakeEngine(upper, faults=[None] * 40 + ["401"] * 9999, in_process=False)
    with pytest.raises(lf.EngineError) as caught:
        frame(5000).llm.map("{t}", model=engine, concurrency=8)
    status = Counter(caught.value.result.llm.status())
    assert status["ok"] + status["pending"] == 5000
    assert len(engine.requests) < 200


def test_a_server_that_comes_back_after_an_outage_gets_the_rest():
    seen, down = [], []

    def fault(request):
        seen.append(request)
        if len(seen) == 21:
            down.append(time.monotonic() + 1.5)
        return "connection" if down and time.monotonic() < down[0] else None

    engine = FakeEngine(upper, faults=fault, in_process=False, concurrency=40, latency=0.001)
    out = frame(300).llm.map("{t}", model=engine)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(300)]


def test_nonsense_ends_the_job_after_a_hundred_answers():
    engine = FakeEngine("I would rather talk about the weather.")
    with pytest.raises(lf.EngineError, match="schema is not being applied"):
        frame(5000).llm.map("{t}", {"n": int}, model=engine, concurrency=8)
    assert len(engine.requests) < 400


def test_nonsense_is_the_users_business_under_coerce():
    engine = FakeEngine("I would rather talk about the weather.")
    out = frame(150).llm.map("{t}", {"n": int}, model=engine, errors="coerce", repairs=0)
    assert out["n"].isna().all()
    assert len(engine.requests) == 150


def test_the_canary_goes_alone():
    engine = FakeEngine(upper, in_process=False, latency=0.02)
    frame(20).llm.map("{t}", model=engine, concurrency=8)
    first = engine.requests[0]
    assert first.position == 0
    assert engine.in_flight_max <= 8


def test_a_refused_parameter_is_paid_once():
    def refuse(request):
        return Failure("invalid_request", "no temperature", param="temperature")

    engine = FakeEngine(refuse, in_process=False)
    with pytest.raises(lf.EngineError, match="no temperature"):
        frame(500).llm.map("{t}", model=engine)
    assert len(engine.requests) == 1


def test_identical_rows_share_one_request_unless_told():
    df = pd.DataFrame({"t": ["a", "a", "b"]})
    engine = FakeEngine(upper)
    assert df.llm.map("{t}", model=engine)["response"].tolist() == ["A", "A", "B"]
    assert len(engine.requests) == 2
    engine = FakeEngine(upper)
    df.llm.map("{t}", model=engine, dedupe=False)
    assert len(engine.requests) == 3


def test_cache_false_asks_every_row_anew():
    engine = FakeEngine(upper)
    for _ in range(2):
        frame(3).llm.map("{t}", model=engine, cache=False)
    assert len(engine.requests) == 6


def test_what_the_provider_refused_is_asked_again_only_when_told():
    engine = FakeEngine(upper, faults=lambda request: Fault("refuse", times=9))
    df = frame(4)
    df.llm.map("{t}", model=engine)
    df.llm.map("{t}", model=engine)
    assert len(engine.requests) == 4
    df.llm.map("{t}", model=engine, retry="all")
    assert len(engine.requests) == 8


def test_two_threads_share_the_work():
    engine = FakeEngine(upper, latency=0.001)
    df, outs = frame(300), []
    threads = [
        threading.Thread(target=lambda: outs.append(df.llm.map("{t}", model=engine)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine.requests) == 300
    for out in outs:
        assert out["response"].tolist() == [f"ROW {i}" for i in range(300)]


def test_the_budget_stops_before_it_is_passed_and_a_larger_one_pays_the_rest():
    df = frame(200)
    engine = FakeEngine(upper, in_process=False)
    with lf.set_options(prices={"fake/fake-1": (1000.0, 1000.0)}):
        with pytest.raises(lf.BudgetError, match="Nothing was sent") as caught:
            df.llm.map("{t}", model=engine, budget=0.001)
        assert not engine.requests
        assert caught.value.plan.requests == 200
        wordy = FakeEngine("word " * 200, in_process=False)
        with pytest.raises(lf.BudgetError, match="is kept") as caught:
            df.llm.map("{t}", model=wordy, max_tokens=260, budget=32, concurrency=4)
        paid = len(wordy.requests)
        assert caught.value.result["response"].notna().sum() == paid
        assert 100 < paid < 130
        out = df.llm.map("{t}", model=wordy, max_tokens=260, budget=100)
        assert out["response"].notna().all()
        assert len(wordy.requests) == 200


def test_a_budget_without_a_price_is_refused():
    engine = FakeEngine(upper, in_process=False)
    with pytest.raises(lf.BudgetError, match="no price is known"):
        frame(2).llm.map("{t}", model=engine, budget=1.0)
    assert not engine.requests

"""Batches that do not come to a good end: bounded rounds, bounded patience, and what is said.

Over real HTTP: what was sent is the emulators' count.
"""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from lane_runner import SmallRun, make_lane

import llmframe as lf
from llmframe.errors import EngineError
from llmframe.journal import Journal
from llmframe.lanes import doubts, patience
from llmframe.testing import requests
from tests.servers.anthropic import AnthropicServer, Asked, error
from tests.servers.openai_batches import BatchServer, Plan, Row

PROMPT = "Say it: {text}"


def frame(count: int = 12) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"row {i}" for i in range(count)]})


def said(count: int = 12) -> list[str]:
    return [f"Say it: row {i}" for i in range(count)]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with lf.set_options(poll_interval=0.02):
        yield


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


def engine(server: BatchServer, **options: Any) -> Any:
    made = lf.OpenAI("m", base_url=server.url, api_key="sk-a", batch=True, **options)
    made.sleep = lambda seconds: None  # between tries of one call
    return made


def rounds(server: BatchServer) -> list[int]:
    return [stored.rows for stored in server.batches.values()]


# -- rows that are rate-limited --------------------------------------------------------------

SLOW = {"message": "Rate limit reached", "code": "rate_limit_exceeded", "type": "requests"}


@pytest.fixture(params=["openai", "anthropic"])
def limited(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """An engine whose row 3 is rate-limited in each batch, and what counts its rounds."""
    if request.param == "openai":

        def row(body: dict[str, Any]) -> Any:
            text = body["messages"][-1]["content"]
            return Row(status=429, body={"error": SLOW}) if text.endswith(" 3") else text

        with BatchServer(answer=row) as openai:
            yield engine(openai), lambda: rounds(openai)
    else:

        def answer(asked: Asked) -> Any:
            return error(429, "slow down") if asked.text.endswith(" 3") else asked.text

        with AnthropicServer(answer=answer) as anthropic:
            made = lf.Anthropic("m", base_url=anthropic.url, api_key=anthropic.key, batch=True)
            yield made, lambda: [len(batch["rows"]) for batch in anthropic.batches.values()]


def test_rate_limited_rows_of_a_batch_are_bounded(
    limited: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model, sent = limited
    with pytest.warns(lf.RowsFailedWarning, match="1 rate_limited"):
        out = frame().llm.map(PROMPT, model=model)
    assert sent() == [11, 1, 1, 1]
    [failure] = out.llm.failures().to_dict("records")
    assert (failure["kind"], failure["position"], failure["attempts"]) == ("rate_limited", 3, 4)
    assert out["response"].isna().sum() == 1
    lines = [line for line in caplog.messages if "rate-limited" in line]
    assert len(lines) == 4
    assert "rows that were rate-limited: 1; no batch is sent for" in lines[0]


def test_another_process_sees_the_rate_limited_row_as_failed(limited: tuple[Any, Any]) -> None:
    model, sent = limited
    with pytest.warns(lf.RowsFailedWarning):
        frame().llm.map(PROMPT, model=model)
    gc.collect()
    with pytest.warns(lf.RowsFailedWarning, match="1 rate_limited"):
        out = lf.jobs()[0].join(frame())
    assert out.llm.status().value_counts()["failed"] == 1
    with pytest.warns(lf.RowsFailedWarning):  # and the same call asks that row again
        frame().llm.map(PROMPT, model=model)
    assert sent() == [11, 1, 1, 1, 1, 1, 1, 1]


def test_pauses_between_such_rounds_grow(
    server: BatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []
    limited = Row(status=429, body={"error": SLOW})
    server.answer = lambda body: limited if len(server.batches) < 4 else "ok"
    lane = make_lane(engine(server), Journal.memory())
    server.on_create = lambda stored: times.append(lane.clock.time())
    SmallRun(lane, requests(["a"]))()
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(pause >= least for pause, least in zip(pauses, (30, 60, 120), strict=True))
    told = [line.rpartition("for ")[2] for line in caplog.messages if "rate-limited" in line]
    assert told == ["30 s", "60 s", "120 s"]


# -- two different replies to one row --------------------------------------------------------


def test_conflicting_lines_are_counted_and_said(
    server: BatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.plan = Plan(twice=1.0, conflict=True)
    out = frame().llm.map(PROMPT, model=engine(server))
    assert out["response"].tolist() == said()
    gc.collect()  # the verb's own job is gone
    for job in (lf.jobs()[0], lf.job(lf.jobs()[0].id)):
        assert (job.report().conflicts, job.report().paid_twice) == (11, 11)
    assert re.search(r"conflict +11\n", str(lf.jobs()[0].report()))
    [line] = [line for line in caplog.messages if "two different replies" in line]
    assert line.endswith("two different replies: 11; the first one is kept")


def test_lines_that_stand_there_twice_are_no_conflict(server: BatchServer) -> None:
    server.plan = Plan(twice=1.0)
    job = frame().llm.submit.map(PROMPT, model=engine(server)).wait()
    assert job.join()["response"].tolist() == said()
    assert (job.report().conflicts, job.report().paid_twice) == (0, 0)


# -- a batch that cannot be read, or looked up -----------------------------------------------


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour, and ten minutes, are a second and a fifth of it."""
    monkeypatch.setattr(patience, "_TRIED", {"looked up": 0.6, "read": 0.2})


def test_a_download_that_is_always_cut(
    server: BatchServer, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    server.plan = Plan(cuts=10**6, ranges=False)
    with pytest.raises(lf.EngineError, match=r"could not be read, \d+ times in ") as caught:
        frame().llm.map(PROMPT, model=engine(server))
    [batch] = server.batches
    message = str(caught.value)
    assert caught.value.retryable
    assert f"batch {batch} at openai could not be read" in message
    assert "What was read before is kept, and its answers stay at the provider." in message
    assert f"1 batch goes on at openai ({batch})" in message
    assert caught.value.result["response"].notna().sum() == 1  # the one that went ahead
    lines = [line for line in caplog.messages if "is tried again in" in line]
    assert len(lines) >= 2
    assert f"batch {batch} at openai could not be read; it is tried again in" in lines[0]
    for file in server.files.values():
        file.plan.cuts = 0
    out = frame().llm.map(PROMPT, model=engine(server))
    assert out["response"].tolist() == said()
    assert rounds(server) == [11]


def test_a_batch_that_can_never_be_looked_up(
    server: BatchServer, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    server.on_create = lambda stored: server.fail_next.extend([503] * 1000)
    with pytest.raises(lf.EngineError, match="could not be looked up, ") as caught:
        frame().llm.map(PROMPT, model=engine(server))
    assert (caught.value.retryable, caught.value.status) == (True, 503)
    assert any("could not be looked up; it is tried again" in line for line in caplog.messages)
    server.fail_next.clear()
    assert frame().llm.map(PROMPT, model=engine(server))["response"].tolist() == said()
    assert rounds(server) == [11]


def test_looks_that_fail_now_and_then_do_not_add_up(server: BatchServer, hurried: None) -> None:
    server.plan = Plan(words=["in_progress"] * 40)
    model = engine(server)
    poll, looks = model.poll, itertools.count()

    def every_second(batch: Any) -> Any:
        if next(looks) % 2:
            raise EngineError("busy", provider="openai", status=503, retryable=True)
        return poll(batch)

    model.poll = every_second
    assert frame().llm.map(PROMPT, model=model)["response"].tolist() == said()
    assert next(looks) > 80


def test_a_batch_in_doubt_that_can_never_be_looked_for(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doubts, "_TRIED", 100.0)
    server.plans = [Plan(create="lost")]
    server.on_create = lambda stored: server.fail_next.extend([503] * 10_000)
    journal = Journal.memory()
    with pytest.raises(EngineError, match="could not list its batches 11 times") as caught:
        SmallRun(make_lane(engine(server), journal), requests(["a"]))()
    assert caught.value.retryable
    assert any("it is looked for again in 10 s" in line for line in caplog.messages)
    server.fail_next.clear()
    assert list(
        SmallRun(make_lane(engine(server), journal), requests(["a"]))().answers.values()
    ) == ["a"]
    assert rounds(server) == [1]

"""The tuning loop on engines whose knee is known."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from servers.chat import ChatServer

import llmframe as lf
from llmframe import tuning as tuning_loop
from llmframe.engines.base import Limits
from llmframe.errors import ModelError
from llmframe.results import Result, Usage
from llmframe.testing import FakeBatchEngine
from llmframe.tuning import Trial, choose


class Clock:
    """The time that engines here take, whatever else the machine does."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture
def by_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_loop, "time", CLOCK)


class Knee:
    """Works on as many rows at once as are let in, but on no more than `room`."""

    name = "knee"
    model = "knee-1"

    def __init__(self, room: int) -> None:
        self.limits = Limits(concurrency=4, in_process=True)
        self.room = room

    def identity(self):
        return {"room": str(self.room)}

    def stream(self, source, control):
        while (taken := source.take(control.limit)) is not None:
            CLOCK.now += 0.03 * len(taken) / min(control.limit, self.room)
            if taken:
                yield [
                    Result(request.key, text="ok", finish="stop", usage=Usage(10, 2), latency=0.01)
                    for request in taken
                ]

    def close(self):
        pass


def at(n: int, rate: float, **more: Any) -> Trial:
    given = {"kv_cache": None, "preemptions": None, "noise": 0.0, "rows": 64}
    return Trial(n, rate, 1.0, 1.0, 1.0, **{**given, **more})


def test_the_smallest_that_is_as_quick_as_the_best():
    curve = [at(8, 500.0), at(16, 900.0), at(32, 985.0), at(64, 1000.0)]
    assert choose(curve) == (32, 0.05)
    assert choose([at(8, 500.0), at(16, 900.0, noise=0.1), at(32, 985.0)])[0] == 16


def test_memory_pressure_goes_one_step_back():
    rising = [at(8, 500.0), at(16, 900.0)]
    assert choose([*rising, at(32, 1500.0, preemptions=3)])[0] == 16
    assert choose([*rising, at(32, 1500.0, kv_cache=0.97)])[0] == 16
    assert choose([at(8, 500.0, preemptions=1)])[0] == 8


def test_it_stops_at_the_knee_and_gives_the_engine_to_use(by_clock):
    df = pd.DataFrame({"t": [f"row {i}" for i in range(600)]})
    engine = Knee(room=8)
    tuning = lf.tune(df, "{t}", model=engine, start=2, stop=256)
    assert tuning.curve.index.tolist()[:4] == [2, 4, 8, 16]
    assert tuning.best == 8, tuning
    assert tuning.engine.limits.concurrency == tuning.best
    assert engine.limits.concurrency == 4
    rate = tuning.curve["tokens_per_second"]
    assert rate[tuning.best] >= (1 - tuning.noise) * rate.max()
    assert f"concurrency={tuning.best}: the knee: " in repr(tuning)
    assert len(lf.jobs()) == 0, "nothing is kept"


def test_a_servers_engine_keeps_its_key():
    df = pd.DataFrame({"t": [f"row {i}" for i in range(64)]})
    with ChatServer(answer=lambda seen: "ok") as server:
        engine = lf.OpenAI("fake-1", base_url=server.url, api_key="sk-fake-tuned")
        tuning = lf.tune(df, "{t}", model=engine, start=2, stop=8)
        assert isinstance(tuning.engine, lf.OpenAI)
        assert tuning.engine.limits.concurrency == tuning.best
        df.llm.map("Once more: {t}", model=tuning.engine)
        assert server.seen[-1].headers["Authorization"] == "Bearer sk-fake-tuned"


def test_a_curve_that_still_rises_says_so(by_clock):
    df = pd.DataFrame({"t": [f"row {i}" for i in range(64)]})
    tuning = lf.tune(df, "{t}", model=Knee(room=1000), start=2, stop=8)
    assert tuning.best == 8
    assert "still rises at stop=8" in tuning.why


def test_what_cannot_be_tuned_is_said():
    df = pd.DataFrame({"t": ["a", "b", "c"]})
    with pytest.raises(ModelError, match="nothing to tune"):
        lf.tune(df, "{t}", model=FakeBatchEngine())
    with pytest.raises(ValueError, match="3 rows are too few"):
        lf.tune(df, "{t}", model=Knee(8))
    with pytest.raises(ValueError, match="start=8, stop=8"):
        lf.tune(df, "{t}", model=Knee(8), start=8, stop=8)

"""Money, over real HTTP: the canary, the pilot, the budget, and what a batch asks for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.openai import OpenAI
from tests.servers.openai_batches import BatchServer, Row

KEY = "sk-money"


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with lf.set_options(poll_interval=0.02):
        yield


def frame(count: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(count)]})


def batches(server: BatchServer, **options: Any) -> OpenAI:
    engine = OpenAI("m", base_url=server.url, api_key=KEY, batch=True, **options)
    engine.sleep = lambda seconds: None  # type: ignore[attr-defined]
    return engine


def lines(server: BatchServer) -> list[dict[str, Any]]:
    """The bodies of every line of every batch."""
    return [line["body"] for name in server.batches for line in server.lines(name)]


# -- the canary ------------------------------------------------------------------------------

KILLED = """
import os, signal
import pandas as pd
import llmframe as lf
from llmframe.journal import Journal

Journal.open_batch = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
df = pd.DataFrame({{"t": [f"row {{i}}" for i in range(6)]}})
df.llm.map("{{t}}", model=lf.OpenAI("m", base_url={url!r}, api_key={key!r}, batch=True))
"""


def test_a_canary_answered_before_a_kill_is_not_bought_again(server: BatchServer) -> None:
    server.refuse = {"temperature"}  # what the canary learns holds in the next process too
    code = KILLED.format(url=server.url, key=KEY)
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(server.live) == 2  # with a temperature, and without
    out = frame().llm.map("{t}", model=batches(server))
    assert out["response"].tolist() == frame()["t"].tolist()
    assert len(server.live) == 2
    assert len(lines(server)) == 5
    assert not any("temperature" in body for body in lines(server))
    frame(9).llm.map("Other: {t}", model=batches(server))
    assert len(server.live) == 2, "the same engine, schema and parameters, and another prompt"
    frame(9).llm.map("Other: {t}", model=batches(server), seed=1)
    assert len(server.live) > 2, "other parameters"


@pytest.mark.parametrize("batch", ["yes", 1, "no"])
def test_batch_is_true_or_false(server: BatchServer, batch: Any) -> None:
    with pytest.raises(ValueError, match=r"batch=.*expected True or False"):
        frame().llm.map("{t}", model="openai/m", batch=batch)
    with pytest.raises(lf.ModelError, match=r"batch=.*expected True or False"):
        OpenAI("m", base_url=server.url, api_key=KEY, batch=batch)
    with pytest.raises(lf.ModelError, match=r"batch=.*expected True or False"):
        lf.Anthropic("m", base_url=server.url, api_key=KEY, batch=batch)
    assert not server.calls


# -- the pilot -------------------------------------------------------------------------------

PRICES = {"openai/m": {"input": 1.0, "output": 10.0, "batch_input": 0.5, "batch_output": 5.0}}
ROW = (20 * 1.0 + 10 * 10.0) / 1e6
"""US$ of a row live, by the usage that the server tells."""


def test_the_same_pilot_again_buys_nothing(server: BatchServer) -> None:
    df = frame(60)
    with lf.set_options(prices=PRICES):
        plans = [df.llm.plan.map("{t}", model=batches(server), pilot=20) for _ in range(3)]
        assert len(server.live) == 20
        grown = frame(61).llm.plan.map("{t}", model=batches(server), pilot=20)
        more = df.llm.plan.map("{t}", model=batches(server), pilot=25)
    assert [plan.pilot for plan in plans] == [20, 0, 0]
    assert [plan.sample for plan in plans] == [20, 20, 20]
    assert [plan.requests for plan in plans] == [40, 40, 40]
    assert [plan.spent for plan in plans] == [pytest.approx(20 * ROW), 0, 0]
    for plan in plans:
        assert plan.interval == pytest.approx((40 * ROW / 2, 40 * ROW / 2))
    assert "nothing bought" in repr(plans[1])
    assert "20 rows of a pilot sent" in repr(plans[0])
    assert grown.pilot == 0
    assert (more.pilot, len(server.live)) == (5, 25)


def test_a_failed_row_of_a_pilot_is_not_bought_again(server: BatchServer) -> None:
    server.answer = lambda body: Row("cut", finish="length")
    with lf.set_options(prices=PRICES):
        first = frame(9).llm.plan.map("{t}", model=batches(server), pilot=3, max_tokens=5)
        sent = len(server.live)
        again = frame(9).llm.plan.map("{t}", model=batches(server), pilot=3, max_tokens=5)
    assert (first.pilot, again.pilot) == (3, 0)
    assert len(server.live) == sent
    assert again.interval == pytest.approx(first.interval)


@pytest.mark.parametrize(("pilot", "said"), [(10**6, "at most 1,000"), (6, "all, live"), (-1, "")])
def test_a_pilot_is_no_way_to_buy_everything(server: BatchServer, pilot: int, said: str) -> None:
    with pytest.raises(ValueError, match=f"pilot={pilot}.*{said}"):
        frame(6).llm.plan.map("{t}", model=batches(server), pilot=pilot)
    assert not server.live

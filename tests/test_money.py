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
from tests.servers.openai_batches import BatchServer

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

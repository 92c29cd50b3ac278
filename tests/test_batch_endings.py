"""Jobs in OpenAI batches that end early, in this process or by Ctrl-C in one of its own.

Over real HTTP: what was sent, cancelled and paid is the emulator's count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.openai_batches import BatchServer, Plan, Row

PROMPT = "Say it: {text}"
NEVER = 10**6


def frame(count: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"row {i}" for i in range(count)]})


def said(count: int = 6) -> list[str]:
    return [f"Say it: row {i}" for i in range(count)]


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running, lf.set_options(poll_interval=0.05):
        yield running


def engine(server: BatchServer, **options: Any) -> Any:
    return lf.OpenAI("m", base_url=server.url, api_key="sk-a", batch=True, **options)


def goes_on(server: BatchServer) -> None:
    """Let the batches that never end come to their ends."""
    for stored in server.batches.values():
        stored.plan.words.clear()


def paid(server: BatchServer) -> list[int]:
    """How often each row was asked, in batches and live."""
    return sorted(server.asked.values())


def test_no_credit_in_one_batch_does_not_wait_for_the_others(server: BatchServer) -> None:
    no_credit = {"message": "You exceeded your quota", "code": "insufficient_quota"}
    broke = [True]

    def answer(body: dict[str, Any]) -> Any:
        prompt = body["messages"][-1]["content"]
        return (
            Row(status=429, body={"error": no_credit}) if broke[0] and "row 2" in prompt else prompt
        )

    server.answer = answer
    server.plans = [Plan(), Plan(words=["in_progress"] * NEVER)]
    with pytest.raises(lf.EngineError, match="exceeded your quota") as caught:
        frame(7).llm.map(PROMPT, model=engine(server, max_batch_requests=3))
    running = list(server.batches)[1]
    assert f"1 batch goes on at openai ({running})" in str(caught.value)
    assert server.calls["POST /v1/batches/ID/cancel"] == 0
    broke[0] = False
    goes_on(server)
    out = frame(7).llm.map(PROMPT, model=engine(server, max_batch_requests=3))
    assert out["response"].tolist() == said(7)
    assert [stored.rows for stored in server.batches.values()] == [3, 3, 1]
    assert paid(server) == [1] * 5 + [2]  # the refused row alone

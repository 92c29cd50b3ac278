"""50,000 rows on an engine that fails in mid-run.

Each ends in minutes, not in the hours that 50,000 failures take, with one error that says what to
do; everything finished is kept and the rest is pending.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.results import Failure
from tests.servers.looking import all_warnings, of, openai, statuses
from tests.servers.rows import Reply
from tests.servers.scripted import Scripted, prompt_of

pytest_plugins = ["tests.servers.plugin"]
pytestmark = pytest.mark.slow

ROWS = 50_000
GOOD = 2_000
CONCURRENCY = 32
BOUND = 180.0


@pytest.fixture(scope="module")
def df() -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(ROWS)]})


def ends_with_one_error(df: pd.DataFrame, **call: Any) -> lf.EngineError:
    """The error of the run; checks the bound, the number of warnings and the result's shape."""
    began = time.monotonic()
    with all_warnings() as caught, pytest.raises(lf.EngineError) as error:
        df.llm.map("{t}", **call)
    took = time.monotonic() - began

    assert took < BOUND
    told = of(caught, UserWarning)
    assert told == [], "the error says it all"
    result = error.value.result
    pd.testing.assert_index_equal(result.index, df.index, exact=True)
    message = str(error.value)
    assert len(message) < 1_000, "one message, not a list of rows"
    assert len(message.splitlines()) < 12
    return error.value


def test_a_server_that_dies_in_mid_run(df: pd.DataFrame, serve: Any) -> None:
    server = serve()
    dead = False

    def answer(seen: Any) -> Reply | str:
        nonlocal dead
        if seen.n > GOOD and not dead:
            dead = True
            server.die()
        return Reply(cut=True) if dead else seen.prompt

    server.rows = answer
    error = ends_with_one_error(df, model=openai(server), concurrency=CONCURRENCY)

    assert error.retryable
    assert "the same call sends the rest" in str(error)
    assert re.search(r"127\.0\.0\.1", str(error))
    states = Counter(statuses(error.result))
    answered = sum(server.answered.values())
    # An answer that was on the wire when the server died may have been lost.
    assert answered - CONCURRENCY <= states["ok"] <= answered
    assert states["failed"] <= 2 * CONCURRENCY + 2
    assert states["pending"] >= ROWS - answered - 2 * CONCURRENCY - 2
    kept = error.result["response"]
    assert kept[kept.notna()].equals(df["t"][kept.notna()].astype(kept.dtype).rename("response"))


def test_a_key_that_is_revoked_in_mid_run(df: pd.DataFrame, serve: Any) -> None:
    server = serve(
        lambda seen: (
            seen.prompt
            if seen.n <= GOOD
            else Reply(status=401, code="invalid_api_key", message="Incorrect API key provided")
        )
    )

    error = ends_with_one_error(df, model=openai(server), concurrency=CONCURRENCY)

    assert error.status == 401
    assert not error.retryable
    assert error.provider == "openai"
    assert "key" in str(error)
    assert "OPENAI_API_KEY" in str(error) or "api_key" in str(error)
    assert server.count <= GOOD + 2 * CONCURRENCY
    states = Counter(statuses(error.result))
    assert states == {"ok": GOOD, "pending": ROWS - GOOD}

    server.rows = lambda seen: seen.prompt
    before = server.count
    few = df.iloc[:GOOD]
    again = few.llm.map("{t}", model=openai(server, api_key="sk-new"), concurrency=CONCURRENCY)
    assert again["response"].tolist() == few["t"].tolist()
    assert server.count - before <= 2 * CONCURRENCY, "finished rows were sent again"


def test_a_model_that_answers_nonsense(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: "blah blah, I think, blah")

    error = ends_with_one_error(
        df, schema={"label": str, "n": int}, model=openai(server), concurrency=CONCURRENCY
    )

    # 100 answers, each with a repair, and what was in flight by then.
    assert server.count <= 2 * 100 + 4 * CONCURRENCY
    assert "invalid_output" in str(error)
    states = Counter(statuses(error.result))
    assert states["ok"] == 0
    assert states["pending"] >= ROWS - server.count
    assert error.result["label"].isna().all()
    assert error.result["n"].dtype == "Int64"


def test_a_model_that_turns_to_nonsense_after_good_answers(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: '{"n": 1}' if seen.n <= GOOD else "blah")

    error = ends_with_one_error(
        df, schema={"n": int}, model=openai(server), concurrency=CONCURRENCY, repairs=0
    )

    states = Counter(statuses(error.result))
    assert states["ok"] == GOOD
    assert states["failed"] < 1_000
    assert states["pending"] == ROWS - GOOD - states["failed"]


def test_a_model_that_refuses_everything(df: pd.DataFrame, serve: Any) -> None:
    server = serve(lambda seen: Reply(None, refusal="I can't help with that."))

    error = ends_with_one_error(df, model=openai(server), concurrency=CONCURRENCY)

    assert "refused" in str(error)
    assert server.count <= 100 + 4 * CONCURRENCY


def test_an_engine_in_this_process_that_dies(df: pd.DataFrame) -> None:
    answered = 0

    def answer(request: Any) -> str | Failure:
        nonlocal answered
        if answered >= GOOD:
            return Failure("engine_lost", "the engine's process is gone", fatal=True)
        answered += 1
        return prompt_of(request)

    error = ends_with_one_error(df, model=Scripted(answer, keep=False))

    assert "the engine's process is gone" in str(error)
    states = Counter(statuses(error.result))
    assert states == {"ok": GOOD, "pending": ROWS - GOOD}


def test_an_engine_in_this_process_that_raises(df: pd.DataFrame) -> None:
    answered = 0

    def answer(request: Any) -> str:
        nonlocal answered
        if answered >= GOOD:
            raise RuntimeError("CUDA error: out of memory")
        answered += 1
        return prompt_of(request)

    error = ends_with_one_error(df, model=Scripted(answer, keep=False))

    assert "CUDA error: out of memory" in str(error)
    states = Counter(statuses(error.result))
    # The list being made when it was raised never reached the run.
    assert GOOD - 64 <= states["ok"] <= GOOD
    assert states["pending"] == ROWS - states["ok"]

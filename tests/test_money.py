"""Money, over real HTTP: the canary, the pilot, the budget, and what a batch asks for."""

from __future__ import annotations

import math
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


@pytest.mark.parametrize("batch", [False, True])
def test_rows_of_a_canary_that_ended_the_job_are_asked_again(
    server: BatchServer, batch: bool
) -> None:
    said = {"error": {"message": "Your organization must be verified", "type": "invalid_request"}}
    server.answer = lambda body: Row(status=400, body=said)
    engine = OpenAI("m", base_url=server.url, api_key=KEY, batch=batch)
    for _ in range(2):
        with pytest.raises(lf.EngineError, match="must be verified") as caught:
            frame().llm.map("{t}", model=engine)
        assert caught.value.result.llm.status().tolist() == ["pending"] * 6
    server.answer = lambda body: body["messages"][-1]["content"]
    out = frame().llm.map("{t}", model=engine)
    assert out["response"].tolist() == frame()["t"].tolist()


def test_a_row_that_is_refused_alone_stays_refused(server: BatchServer) -> None:
    def answer(body: dict[str, Any]) -> Row:
        text = body["messages"][-1]["content"]
        said = {"error": {"message": "not this one", "type": "invalid_request"}}
        return Row(status=400, body=said) if text == "row 0" else Row(text)

    server.answer = answer
    for asked in (2, 0):  # the row itself and another one ahead; then nothing at all
        before = len(server.live)
        with pytest.warns(lf.RowsFailedWarning, match="1 of 6 rows are NA: 1 invalid_request"):
            frame().llm.map("{t}", model=batches(server))
        assert len(server.live) == before + asked
    assert len(lines(server)) == 4


def test_useless_answers_are_told_before_the_rest_is_uploaded(server: BatchServer) -> None:
    server.answer = lambda body: Row('{"a": 9}')
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 5}}}
    seen: list[int] = []
    server.on_create = lambda stored: seen.append(len(server.live))
    said = r"first 3 rows are no use \(invalid_output"
    for repairs in (1, 0):
        before = len(server.live)
        with pytest.warns(lf.RowsFailedWarning), pytest.warns(UserWarning, match=said):
            frame(9).llm.map(f"{repairs} {{t}}", schema, model=batches(server), repairs=repairs)
        assert seen[-2 if repairs else -1] - before == 3 * (1 + repairs)
    bad = len(server.live) + 1  # a row, whose repair passes
    server.answer = lambda body: Row('{"a": 9}' if len(server.live) <= bad else '{"a": 5}')
    out = frame(9).llm.map("Mended: {t}", schema, model=batches(server))
    assert out["a"].tolist() == [5] * 9


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


# -- the budget ------------------------------------------------------------------------------


def spent(server: BatchServer, answer: Any) -> float:
    """US$ by the emulator's own books: what was asked live, and what ran in batches."""
    total = 0.0
    for bodies, factor in ((server.live, 1.0), (lines(server), 0.5)):
        for body in bodies:
            into, out = answer(body).tokens
            total += (into * 1.0 + out * 10.0) * factor / 1e6
    return total


def wordy(most: int) -> Any:
    """A model that would write `most` tokens, and keeps to its limit."""

    def answer(body: dict[str, Any]) -> Row:
        limit = body.get("max_tokens") or body.get("max_output_tokens") or 10**9
        cut = most > limit
        return Row("so", finish="length" if cut else "stop", tokens=(40, min(most, limit)))

    return answer


@pytest.mark.parametrize("lane", ["live", "batch"])
def test_a_budget_without_max_tokens_is_never_passed(server: BatchServer, lane: str) -> None:
    server.answer = wordy(3_000)
    df, batch = frame(100), lane == "batch"
    engine = OpenAI("m", base_url=server.url, api_key=KEY, batch=batch)
    with lf.set_options(prices=PRICES):
        plan = df.llm.plan.map("{t}", model=engine, budget=1.0)
        assert plan.max_tokens == 4096
        assert "max_tokens=4096 is sent" in " ".join(plan.advice)
        with pytest.raises(lf.BudgetError, match="only the rest") as caught:
            df.llm.map("{t}", model=engine, budget=1.0, concurrency=8)
        first = len(server.live) + len(lines(server))
        assert 0.8 < spent(server, server.answer) <= 1.0
        assert all(body["max_tokens"] == 4096 for body in [*server.live, *lines(server)])
        assert caught.value.result["response"].notna().sum() == first
        # A larger budget, and none, pay only the rest.
        with pytest.raises(lf.BudgetError, match="only the rest"):
            df.llm.map("{t}", model=engine, budget=1.3)
        assert first < len(server.live) + len(lines(server)) < 100
        assert spent(server, server.answer) <= 1.3
        out = df.llm.map("{t}", model=engine)
    assert out["response"].notna().all()
    assert len(server.live) + len(lines(server)) == 100
    assert "max_tokens" not in [*server.live, *lines(server)][-1]


def test_a_row_cut_off_under_a_budget_goes_again_with_a_larger_limit(server: BatchServer) -> None:
    def answer(body: dict[str, Any]) -> Row:
        long = body["messages"][-1]["content"] == "row 3"
        return wordy(9_000 if long else 50)(body)

    server.answer = answer
    with lf.set_options(prices=PRICES):
        out = frame().llm.map("{t}", model=batches(server), budget=5.0)
    assert out["response"].notna().all()
    sent = [body["max_tokens"] for body in [*server.live, *lines(server)]]
    assert sorted(sent) == [4096] * 6 + [4 * 4096]


def test_a_larger_limit_that_the_model_refuses_leaves_the_row_truncated(
    server: BatchServer,
) -> None:
    said = "max_tokens is too large: 16384. This model supports at most 4096 completion tokens"

    def answer(body: dict[str, Any]) -> Row:
        if body["max_tokens"] > 4096:
            error = {"message": said, "type": "invalid_request_error", "param": "max_tokens"}
            return Row(status=400, body={"error": error})
        return wordy(9_000 if body["messages"][-1]["content"] == "row 3" else 50)(body)

    server.answer = answer
    with lf.set_options(prices=PRICES), pytest.warns(lf.RowsFailedWarning, match="1 truncated"):
        out = frame().llm.map("{t}", model=batches(server), budget=5.0)
    [failure] = out.llm.failures().to_dict("records")
    assert failure["kind"] == "truncated"
    assert "16384 is refused" in failure["message"]


def test_a_budget_learns_what_the_estimate_left_out(server: BatchServer) -> None:
    """Ten times the tokens that the text seems to have, and no heed to the limit."""
    server.answer = lambda body: Row("so", tokens=(400, 150))
    df = frame(200)
    with lf.set_options(prices=PRICES), pytest.raises(lf.BudgetError, match="only the rest"):
        df.llm.map("{t}", model=batches(server), max_tokens=60, budget=0.08)
    assert 0.05 < spent(server, server.answer) <= 0.08


def test_answers_that_may_have_been_charged_count(server: BatchServer) -> None:
    """A request that ends in a server error may have been answered, and charged."""
    server.answer = lambda body: Row(status=500, body={"error": {"message": "down"}})
    engine = OpenAI("m", base_url=server.url, api_key=KEY)
    with lf.set_options(prices=PRICES):
        for _ in range(2):  # what the first call may have paid counts in the second
            with pytest.raises(lf.BudgetError, match="may have been charged"):
                frame(2).llm.map("{t}", model=engine, max_tokens=100, budget=0.0025)
    assert len(server.live) == 2


def test_the_limit_in_extra_is_what_a_row_reserves(server: BatchServer) -> None:
    server.answer = lambda body: Row("so", tokens=(20, 1_000))
    extra = {"max_completion_tokens": 1_000}
    engine = OpenAI("m", base_url=server.url, api_key=KEY)
    with lf.set_options(prices=PRICES), pytest.raises(lf.BudgetError, match="only the rest"):
        frame(30).llm.map("{t}", model=engine, extra=extra, budget=0.1)
    assert 5 < len(server.live) <= 9
    assert all("max_tokens" not in body for body in server.live)


# -- scores in batches -----------------------------------------------------------------------


def token(text: str, share: float, **others: float) -> dict[str, Any]:
    def entry(text: str, share: float) -> dict[str, Any]:
        return {"token": text, "bytes": list(text.encode()), "logprob": math.log(share)}

    return entry(text, share) | {"top_logprobs": [entry(t, p) for t, p in others.items()]}


def sure(body: dict[str, Any]) -> Row:
    """Says bug, and how sure it is where it is asked."""
    asked = body.get("logprobs") or "message.output_text.logprobs" in body.get("include", ())
    tokens = [token('{"label": "', 1.0), token("bug", 0.75, billing=0.25), token('"}', 1.0)]
    return Row('{"label": "bug"}', logprobs=tokens if asked and body["top_logprobs"] else None)


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses"])
def test_a_batch_asks_for_the_scores_that_live_asks_for(server: BatchServer, endpoint: str) -> None:
    server.answer = sure
    out = frame().llm.classify(
        "t", ["billing", "bug"], confidence=True, model=batches(server, endpoint=endpoint)
    )
    assert out["label"].tolist() == ["bug"] * 6
    assert out["label_confidence"].tolist() == pytest.approx([0.75] * 6)
    live = OpenAI("m", base_url=server.url, api_key=KEY, endpoint=endpoint)
    again = frame().llm.classify("t", ["billing", "bug"], confidence=True, model=live, cache=False)
    assert again["label_confidence"].tolist() == pytest.approx([0.75] * 6)
    assert len(lines(server)) == 5
    assert all(body in server.live for body in lines(server)), "word for word the same request"


def test_scores_are_read_by_whoever_takes_the_job_up(server: BatchServer) -> None:
    server.answer = sure
    engine = batches(server)
    job = frame().llm.submit.classify("t", ["billing", "bug"], confidence=True, model=engine)
    server.wait_for(lambda: len(server.batches) == 1)
    job._run.stop("abort")
    job._done.wait(60)
    out = frame().llm.classify("t", ["billing", "bug"], confidence=True, model=batches(server))
    assert out["label_confidence"].tolist() == pytest.approx([0.75] * 6)
    assert len(server.batches) == 1


def test_confidence_that_cannot_be_had_is_said(server: BatchServer) -> None:
    claude = lf.Anthropic("m", base_url=server.url.removesuffix("/v1"), api_key=KEY, batch=True)
    with pytest.warns(UserWarning, match="anthropic/m gives no probabilities"):
        frame().llm.plan.classify("t", ["billing", "bug"], confidence=True, model=claude)
    reasoning = OpenAI("o4-mini", api_key=KEY, batch=True)
    with pytest.warns(UserWarning, match="openai/o4-mini gives no probabilities"):
        frame().llm.plan.classify("t", ["billing", "bug"], confidence=True, model=reasoning)
    assert not server.calls
    server.answer = lambda body: Row('{"label": "bug"}')
    with pytest.warns(UserWarning, match="NA for 6 of 6 labels"):
        frame().llm.classify("t", ["billing", "bug"], confidence=True, model=batches(server))

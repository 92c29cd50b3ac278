"""How calls end that cannot go on: the words fit, and what could have been known costs nothing.

Over real HTTP: what was asked is the emulators' count.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.testing import FakeBatchEngine
from tests.servers.anthropic import AnthropicServer, Asked, Reply, error, message
from tests.servers.openai_batches import BatchServer

PROMPT = "Say it: {text}"
SENDS = "the same call sends the rest."
REFUSED = "the same call would be refused again, until that is mended."


def frame(count: int = 4) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"row {i}" for i in range(count)]})


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with lf.set_options(poll_interval=0.02):
        yield


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as running:
        yield running


@pytest.fixture(params=[False, True], ids=["live", "batch"])
def batch(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def engine(server: AnthropicServer, model: str = "claude-next", **options: Any) -> Any:
    return lf.Anthropic(model, base_url=server.url, api_key=server.key, **options)


def limits(server: AnthropicServer, text: str) -> list[int]:
    """The token limits that a row was sent with, in the order in which it was."""
    asked = [(one.body, one.text) for one in server.asked]
    for made in server.batches.values():
        for row in made["rows"]:
            asked.append((row["params"], row["params"]["messages"][-1]["content"]))
    return [body["max_tokens"] for body, said in asked if said.endswith(text)]


# -- what is said of the same call -----------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (error(400, "temperature: not supported by this model"), REFUSED),
        (error(404, "model: claude-next"), REFUSED),
        (error(400, "output_config.format.schema: bad"), REFUSED),
        (error(401, "invalid x-api-key"), SENDS),
        (error(403, "not allowed"), SENDS),
        (error(400, "Your credit balance is too low"), SENDS),
    ],
)
def test_the_words_fit_what_the_same_call_would_do(
    server: AnthropicServer, fault: Reply, told: str, batch: bool
) -> None:
    server.answer = fault
    with pytest.raises(lf.EngineError) as caught:
        frame().llm.map(PROMPT, model=engine(server, batch=batch))
    assert str(caught.value).endswith(f"0 of 4 rows are answered and kept; {told}")
    assert ".." not in str(caught.value)
    assert len(server.asked) == 1
    assert not server.batches


def test_a_seed_that_the_api_has_not_is_refused_before_there_is_a_job(
    server: AnthropicServer, batch: bool
) -> None:
    model = engine(server, batch=batch)
    for call in (frame().llm.map, frame().llm.submit.map, frame().llm.plan.map):
        with pytest.raises(lf.ModelError, match=r"seed=7: there is none in the API of anthropic"):
            call(PROMPT, model=model, seed=7)
    assert len(lf.jobs()) == 0
    assert (server.asked, server.calls) == ([], [])


# -- replies that are cut off, where nobody named a limit ------------------------------------


def cut_below(enough: int) -> Any:
    def answer(asked: Asked) -> Any:
        if asked.text.endswith("row 2") and asked.body["max_tokens"] < enough:
            return Reply(message("row", stop="max_tokens"))
        return asked.text

    return answer


def test_a_cut_reply_is_asked_once_more_with_a_larger_limit(
    server: AnthropicServer, batch: bool
) -> None:
    server.answer = cut_below(10_000)
    out = frame().llm.map(PROMPT, model=engine(server, batch=batch))
    assert out["response"].tolist() == [f"Say it: row {i}" for i in range(4)]
    assert limits(server, "row 2") == [8192, 32768]
    assert limits(server, "row 1") == [8192]


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ("claude-3-haiku-20240307", [4096]),
        ("claude-3-5-haiku-latest", [8192]),
        ("claude-opus-4-1", [8192, 32000]),
        ("claude-opus-4-5", [8192, 32768]),
    ],
)
def test_the_larger_limit_is_no_larger_than_the_models(
    server: AnthropicServer, model: str, sent: list[int]
) -> None:
    server.answer = cut_below(10**9)
    with pytest.warns(lf.RowsFailedWarning, match="1 truncated"):
        out = frame().llm.map(PROMPT, model=engine(server, model))
    assert limits(server, "row 2") == sent
    [failure] = out.llm.failures().to_dict("records")
    assert (failure["kind"], failure["attempts"]) == ("truncated", len(sent))
    del out
    gc.collect()  # and for another process it is at its end as well
    with pytest.warns(lf.RowsFailedWarning, match="1 truncated"):
        joined = lf.jobs()[0].join(frame())
    assert joined.llm.status().tolist().count("failed") == 1


def test_a_limit_that_turns_out_too_large_leaves_the_row_truncated(
    server: AnthropicServer,
) -> None:
    cut = cut_below(10**9)

    def answer(asked: Asked) -> Any:
        if asked.body["max_tokens"] > 16_000:
            return error(400, "max_tokens: 32768 > 16000, which is the maximum allowed")
        return cut(asked)

    server.answer = answer
    with pytest.warns(lf.RowsFailedWarning, match="1 truncated"):
        out = frame().llm.map(PROMPT, model=engine(server))
    assert limits(server, "row 2") == [8192, 32768]
    assert "max_tokens=32768 is refused" in out.llm.failures()["message"].item()


def test_a_limit_of_the_users_own_is_left_alone(server: AnthropicServer) -> None:
    server.answer = cut_below(10**9)
    with pytest.warns(lf.RowsFailedWarning, match="1 truncated"):
        frame().llm.map(PROMPT, model=engine(server), extra={"max_tokens": 100})
    assert limits(server, "row 2") == [100]


def test_a_reply_that_fills_the_window_is_not_asked_again(
    server: AnthropicServer, batch: bool
) -> None:
    server.answer = lambda asked: (
        Reply(message("row", stop="model_context_window_exceeded"))
        if "row 2" in asked.text
        else asked.text
    )
    with pytest.warns(lf.RowsFailedWarning, match="1 truncated"):
        out = frame().llm.map(PROMPT, model=engine(server, batch=batch))
    assert limits(server, "row 2") == [8192], "a larger limit is cut at the same place"
    [failure] = out.llm.failures().to_dict("records")
    assert (failure["kind"], failure["raw"]) == ("truncated", "row")
    assert "context window" in failure["message"]


def test_another_process_reports_the_kinds_of_failures_too(server: AnthropicServer) -> None:
    server.answer = lambda asked: (
        Reply(message("no", stop="refusal"))
        if "row 2" in asked.text
        else Reply(message("row", stop="model_context_window_exceeded"))
        if asked.text[-1] in "13"
        else asked.text
    )
    with pytest.warns(lf.RowsFailedWarning):
        frame().llm.map(PROMPT, model=engine(server))
    gc.collect()  # as for another process: the job itself is gone
    report = lf.jobs()[0].report()
    assert list(report.kinds.items()) == [("truncated", 2), ("refused", 1)]
    assert "failed: truncated" in repr(report)


# -- live or in batches: the call says -------------------------------------------------------


def test_batch_false_asks_a_batch_engine_live(server: AnthropicServer) -> None:
    given = engine(server, batch=True)
    out = frame().llm.map(PROMPT, model=given, batch=False)
    assert out["response"].tolist() == [f"Say it: row {i}" for i in range(4)]
    assert (len(server.asked), len(server.batches)) == (4, 0)
    # Under the same keys; and with nothing said the engine is what it was made as.
    assert set(frame().llm.map(PROMPT, model=given).llm.status()) == {"cached"}
    frame().llm.map("again {text}", model=given)
    assert (len(server.asked), len(server.batches)) == (4, 1)


def test_batch_false_is_openais_word_too() -> None:
    with BatchServer() as server:
        given = lf.OpenAI("m", base_url=server.url, api_key="sk-a", batch=True)
        plan = frame().llm.plan.map(PROMPT, model=given, batch=False)
        job = frame().llm.submit.map(PROMPT, model=given, batch=False).wait()
        assert (job.status().ok, job.status().batches) == (4, 0)
        assert (len(server.live), len(server.batches), plan.requests) == (4, 0, 4)
        live = given.live()
        assert type(live) is lf.OpenAI
        assert (live.limits.max_requests, live.batched()) == (None, given)


def test_batch_false_and_an_engine_that_only_answers_live_for_a_canary() -> None:
    given = FakeBatchEngine(lambda text: text.upper())
    out = frame().llm.map("{text}", model=given, batch=False)
    assert out["response"].tolist() == [f"ROW {i}" for i in range(4)]
    assert given.submits == []


def test_a_turn_that_pauses_for_the_providers_tool_is_not_asked_again(
    server: AnthropicServer, batch: bool
) -> None:
    server.answer = lambda asked: (
        Reply(message("so far", stop="pause_turn")) if "row 2" in asked.text else asked.text
    )
    with pytest.warns(lf.RowsFailedWarning, match="1 invalid_request"):
        out = frame().llm.map(PROMPT, model=engine(server, batch=batch))
    assert len(limits(server, "row 2")) == 1
    [failure] = out.llm.failures().to_dict("records")
    assert "Leave the tool out of extra=" in failure["message"]
    assert failure["raw"] == "so far"

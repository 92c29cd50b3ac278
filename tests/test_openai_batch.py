"""OpenAI's Batch API behind the engine: states, files, faults, money; over real HTTP."""

from __future__ import annotations

import json
import logging
import pickle
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.base import Batch, BatchEngine, Line
from llmframe.engines.openai import OpenAI, OpenAIBatch
from llmframe.errors import EngineError, ModelError, StoreError
from llmframe.journal import Journal
from llmframe.requests import Request, Sampling, custom_id
from llmframe.testing import requests
from tests.lane_runner import SmallRun, make_lane
from tests.servers.openai_batches import BatchServer, Plan, Row, chat_of, response_of

KEY = "sk-batch-secret-1"
NASTY = 'a\u2028b\x85c\x0cd\x1ee \u2603 \U0001f600 "quoted" \\ \x00 end'


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


def engine_at(server: BatchServer, **options: Any) -> OpenAIBatch:
    options.setdefault("api_key", KEY)
    engine = OpenAI("m", base_url=server.url, batch=True, **options)
    assert isinstance(engine, OpenAIBatch)
    engine.sleep = lambda seconds: None
    return engine


class Ran:
    """A few rows through a lane and the journal, as a run would send them."""

    def __init__(
        self, engine: Any, texts: list[str], journal: Journal | None = None, **options: Any
    ) -> None:
        self.asked = requests(texts)
        self.journal = journal or Journal.memory()
        self.lane = make_lane(engine, self.journal, **options)
        self.run = SmallRun(self.lane, self.asked)()

    @property
    def texts(self) -> list[str | None]:
        return [self.run.answers.get(request.key) for request in self.asked]

    @property
    def final(self) -> list[str | None]:
        return [self.run.final.get(request.key) for request in self.asked]

    def failures(self) -> list[Any]:
        return [result.failure for result in self.run.results if result.failure is not None]


def texts_of(count: int) -> list[str]:
    return [f"row {i}" for i in range(count)]


def submitted(engine: OpenAIBatch, count: int = 4, tag: str = "tag-1") -> Batch:
    return engine.submit(lines_of(requests(texts_of(count))), tag, lambda name, value: None)


def lines_of(asked: list[Request]) -> list[Line]:
    return [Line(custom_id(r.position, r.key, r.attempt), (r,)) for r in asked]


def ended(engine: OpenAIBatch, batch: Batch) -> Any:
    for _ in range(50):
        status = engine.poll(batch)
        if status.state != "running":
            return status
    raise AssertionError("the batch never ended")


def test_one_name_for_both_lanes(server: BatchServer) -> None:
    live = OpenAI("m", base_url=server.url, api_key=KEY)
    batch = engine_at(server)
    assert isinstance(batch, BatchEngine)
    assert not isinstance(live, BatchEngine)
    assert dict(batch.identity()) == dict(live.identity())
    assert isinstance(pickle.loads(pickle.dumps(batch)), OpenAIBatch)
    assert KEY not in repr(batch)


def test_the_whole_call(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    df = pd.DataFrame({"t": [*texts_of(5), NASTY]}, index=[7, 7, 8, None, "x", "y"])
    with lf.set_options(poll_interval=0.01):
        out = df.llm.map("{t}", model="openai/m", batch=True, progress=False)
    assert out["response"].tolist() == df["t"].tolist()
    live = df.llm.map("{t}", model="openai/m", progress=False)
    assert [str(status) for status in live.llm.status()] == ["cached"] * 6
    assert {tuple(b.record["metadata"]) for b in server.batches.values()} == {("llmframe",)}
    rows = [line["custom_id"] for name in server.batches for line in server.lines(name)]
    assert len(rows) + len(server.live) == 6


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses"])
def test_lines_and_results(server: BatchServer, endpoint: str) -> None:
    engine = engine_at(server, endpoint=endpoint)
    ran = Ran(engine, [*texts_of(4), NASTY])
    assert ran.texts == [*texts_of(4), NASTY]
    [batch] = server.batches.values()
    assert batch.record["endpoint"] == endpoint
    data = server.files[batch.record["input_file_id"]].data
    assert data.isascii()
    lines = [json.loads(line) for line in data.decode().splitlines()]
    assert [line["url"] for line in lines] == [endpoint] * 5
    usages = {result.usage for result in ran.run.results}
    [usage] = usages
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (20, 10, 4)
    assert {result.model for result in ran.run.results} == {"m-2026-01-01"}


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses"])
def test_the_prompt_cache_is_told_where_the_constant_start_ends(
    server: BatchServer, endpoint: str
) -> None:
    chat = endpoint.endswith("completions")
    make, counts = (chat_of, "prompt_tokens") if chat else (response_of, "input_tokens")
    usage = {
        counts: 2000,
        "completion_tokens" if chat else "output_tokens": 10,
        f"{counts}_details": {"cached_tokens": 1500, "cache_write_tokens": 0},
    }
    written = {**usage, f"{counts}_details": {"cached_tokens": 0, "cache_write_tokens": 1500}}

    usages = chain([written], repeat(usage))  # the live row writes, and the batch's rows read
    server.answer = lambda body: Row(body={**make(Row(), body["model"]), "usage": next(usages)})
    df, system = pd.DataFrame({"t": texts_of(4)}), "You sort tickets. " * 300
    engine = engine_at(server, endpoint=endpoint, prompt_cache=True)
    prices = {"input": 10.0, "output": 0.0, "cached_input": 1.0, "cache_write": 12.5}
    prices |= {"batch_input": 5.0, "batch_output": 0.0}
    with lf.set_options(poll_interval=0.01, prices={"openai/m": prices}):
        plan = df.llm.plan.map("{t}", system=system, model=engine)
        assert plan.marked == len(system) // 4 + 4
        assert "at the start of each prompt are marked" in repr(plan)
        report = df.llm.submit.map("{t}", system=system, model=engine).wait().report()
    [name] = server.batches
    bodies = [server.live[0], *(line["body"] for line in server.lines(name))]
    assert len(bodies) == 4
    for body in bodies:
        [block] = body["messages" if chat else "input"][0]["content"]
        assert block["text"] == system
        assert block["prompt_cache_breakpoint"] == {"mode": "explicit"}
        assert body["prompt_cache_options"] == {"mode": "explicit"}
    assert len({body["prompt_cache_key"] for body in bodies}) == 1
    read, write = 3 * 1500 * (5.0 - 0.5), 1500 * (10.0 - 12.5)
    assert report.saved == pytest.approx((read + write) / 1e6)
    assert re.search(r"from the prompt cache\s+4,500 tokens", repr(report))
    assert re.search(r"into the prompt cache\s+1,500 tokens", repr(report))
    assert re.search(r"the cache saved\s+US\$0\.0165", repr(report))


def test_one_row_goes_ahead_to_write_the_cache(server: BatchServer) -> None:
    df, system = pd.DataFrame({"t": texts_of(102)}), "You sort tickets. " * 300
    with lf.set_options(poll_interval=0.01):
        out = df.llm.map("{t}", system=system, model=engine_at(server, prompt_cache=True))
    assert out["response"].tolist() == df["t"].tolist()
    assert [len(server.lines(name)) for name in server.batches] == [1, 100]
    assert len(server.live) == 1


def test_where_the_prompt_cache_is_told(server: BatchServer, tmp_path: Path) -> None:
    df, system = pd.DataFrame({"t": texts_of(2)}), "You sort tickets. " * 300

    def marked(model: str, text: str = system, **options: Any) -> int:
        engine = OpenAI(model, api_key=KEY, **options)
        return df.llm.plan.map("{t}", system=text, model=engine).marked

    official = {"base_url": "https://api.openai.com/v1"}
    assert marked("gpt-5.6", **official) > 1000
    assert marked("gpt-5.6", **official, batch=True) > 1000
    assert marked("gpt-5.6", "Short.", **official) == 0
    assert marked("gpt-5.6", **official, prompt_cache=False) == 0
    assert marked("gpt-4.1", **official) == 0
    assert marked("gpt-5.6", base_url=server.url) == 0
    assert marked("gpt-4.1", base_url=server.url, prompt_cache=True) > 1000
    again = pickle.loads(pickle.dumps(OpenAI("m", base_url=server.url, prompt_cache=True)))
    assert df.llm.plan.map("{t}", system=system, model=again).marked > 1000
    path = df.llm.to_jsonl(tmp_path / "in.jsonl", "{t}", system=system, model=again)
    assert all('"prompt_cache_breakpoint"' in line for line in path.read_text().splitlines())
    with pytest.raises(lf.ModelError, match="prompt_cache='yes'"):
        marked("gpt-5.6", base_url=server.url, prompt_cache="yes")


def test_marks_that_are_refused_are_left_out_and_this_is_said(server: BatchServer) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if "prompt_cache_options" not in body:
            return "ok"
        fault = {"message": "Unknown parameter: 'prompt_cache_options'.", "code": None}
        return Row(status=400, body={"error": {**fault, "type": "invalid_request_error"}})

    server.answer = answer
    df, system = pd.DataFrame({"t": texts_of(3)}), "You sort tickets. " * 300
    with (
        lf.set_options(poll_interval=0.01),
        pytest.warns(UserWarning, match="refuses marks for the prompt cache: m gets none"),
    ):
        out = df.llm.map("{t}", system=system, model=engine_at(server, prompt_cache=True))
    assert out["response"].tolist() == ["ok"] * 3
    assert len(server.live) == 2


def test_u011_completed_without_an_output_file(server: BatchServer) -> None:
    fault = {"message": "max_tokens is too large", "type": "invalid_request_error", "code": None}
    server.answer = lambda body: Row(status=400, body={"error": fault})
    ran = Ran(engine_at(server), texts_of(3))
    assert ran.final == ["invalid_request"] * 3
    assert all("max_tokens is too large" in failure.message for failure in ran.failures())


def test_u012_status_0_and_counts_that_say_nothing(server: BatchServer) -> None:
    seen: set[str] = set()

    def once(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        if text == "row 2" and text not in seen:
            seen.add(text)
            return Row(status=0, body={})
        return text

    server.answer = once
    server.plan = Plan(counts={"total": 3, "completed": 3, "failed": 0})
    ran = Ran(engine_at(server), texts_of(3))
    [failure] = ran.failures()
    assert (failure.kind, failure.retryable) == ("provider_error", True)
    assert failure.message == "no reason given (status 0)"
    assert ran.texts == texts_of(3)
    assert [len(server.lines(name)) for name in server.batches] == [3, 1]


def test_u014_a_full_queue_fails_no_row(server: BatchServer) -> None:
    server.slots = 1
    ran = Ran(engine_at(server, max_batch_requests=2), texts_of(6))
    assert ran.texts == texts_of(6)
    assert ran.failures() == []
    assert ran.lane.counts["requeued"] >= 1
    assert set(server.asked.values()) == {1}


def test_u014_files_of_a_refused_batch_are_removed_if_asked(server: BatchServer) -> None:
    server.slots = 1
    ran = Ran(engine_at(server, max_batch_requests=2, cleanup=True), texts_of(6))
    assert ran.texts == texts_of(6)
    assert server.files == {}


@pytest.mark.parametrize("listed", [True, False])
def test_u015_u035_a_cancelled_batch_keeps_what_was_done(server: BatchServer, listed: bool) -> None:
    server.plan = Plan(end="cancelled", done=0.5, listed=listed)
    ran = Ran(engine_at(server), texts_of(2))
    assert sorted(filter(None, ran.final)) == ["canceled"]
    [text] = [text for text in ran.texts if text is not None]
    assert text in texts_of(2)
    [usage] = [result.usage for result in ran.run.results if result.usage is not None]
    assert usage.input_tokens + usage.output_tokens == 30


@pytest.mark.parametrize("listed", [True, False])
def test_u045_of_an_expired_batch_only_the_rest_is_sent(server: BatchServer, listed: bool) -> None:
    server.plans = [Plan(end="expired", done=0.5, listed=listed)]
    ran = Ran(engine_at(server), texts_of(6))
    assert ran.texts == texts_of(6)
    assert [len(server.lines(name)) for name in server.batches] == [6, 3]
    assert {failure.kind for failure in ran.failures()} == {"expired"}


def test_expired_and_cancelled_without_any_file(server: BatchServer) -> None:
    server.plans = [
        Plan(end="expired", done=0, listed=False, empty_ids=True),
        Plan(end="cancelled", done=0, listed=False),
    ]
    ran = Ran(engine_at(server), texts_of(2))
    assert ran.final == ["canceled"] * 2
    assert [failure.kind for failure in ran.failures()] == ["expired"] * 2 + ["canceled"] * 2


@pytest.mark.parametrize(
    "code",
    [
        "invalid_json_line",
        "duplicate_custom_id",
        "url_mismatch",
        "model_mismatch",
        "empty_file",
        "too_many_tasks",
        "model_not_found",
        "something_new",
    ],
)
def test_a_batch_that_fails_ends_the_job_with_its_code(server: BatchServer, code: str) -> None:
    server.plan = Plan(end="failed", errors=[(code, "what the provider says", 3)])
    engine = engine_at(server)
    status = ended(engine, submitted(engine))
    assert (status.state, status.queue_full) == ("rejected", False)
    assert status.message == f"{code}: what the provider says (line 3)"


def test_u016_u085_lines_that_are_no_lines(
    server: BatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.plans = [Plan(garbage=True, crlf=True, last_newline=False, foreign=2)]
    texts = [NASTY, *texts_of(3)]
    with caplog.at_level(logging.WARNING, "llmframe"):
        ran = Ran(engine_at(server), texts)
    assert ran.texts == texts
    assert "line 2 of file-" in caplog.text
    assert ran.lane.counts["unknown_ids"] == 2
    assert len(server.batches) == 1


def test_u019_the_providers_words_reach_the_row(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "max_tokens: 999999 > 8192, which is the maximum for this model"

    def answer(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["content"] == "bad":
            fault = {"message": words, "type": "invalid_request_error", "param": "max_tokens"}
            return Row(status=400, body={"error": fault})
        return "fine"

    server.answer = answer
    df = pd.DataFrame({"t": ["a", "bad", "c"]}, index=["first", "second", "third"])
    with lf.set_options(poll_interval=0.01):
        out = df.llm.map("{t}", model=engine_at(server), progress=False, errors="coerce")
    failures = out.llm.failures()
    assert failures.index.tolist() == ["second"]
    assert words in failures.loc["second", "message"]


def test_u020_a_batch_that_never_ends(server: BatchServer) -> None:
    server.plan = Plan(words=["in_progress"] * 10**4, window=-7200)
    words = "batch batch_.* is still 'in_progress' an hour after"
    with pytest.raises(EngineError, match=words):
        SmallRun(make_lane(engine_at(server), Journal.memory()), requests(["a", "b"]))()
    assert len(server.batches) == 1


def test_u054_u058_ids_are_short_safe_and_distinct(server: BatchServer) -> None:
    long = ["x" * 80 + "1", "x" * 80 + "2", "a/b c", "é"]
    df = pd.DataFrame({"t": ["a", "b", "c", "a"]}, index=long)
    with lf.set_options(poll_interval=0.01):
        out = df.llm.map("{t}", model=engine_at(server), progress=False, dedupe=False)
    assert out["response"].tolist() == ["a", "b", "c", "a"]
    ids = [line["custom_id"] for name in server.batches for line in server.lines(name)]
    assert len(set(ids)) == len(ids) == 4 - len(server.live)
    assert all(len(i) <= 64 and i.replace("-", "").isalnum() and i.isascii() for i in ids)


def test_u065_results_in_any_order_over_two_files(server: BatchServer) -> None:
    server.answer = lambda body: (
        Row(status=503) if body["messages"][-1]["content"] in fail else _text(body)
    )
    fail = {"row 1", "row 3"}
    engine = engine_at(server)
    batch = submitted(engine, 5)
    ended(engine, batch)
    results = {result.key: result for _, _, result in engine.fetch(batch)}
    for request in requests(texts_of(5)):
        text = request.messages[-1]["content"]
        assert results[request.key].text == (None if text in fail else text)


def _text(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def test_u148_packed_by_encoded_bytes(server: BatchServer) -> None:
    texts = [f"{i} " + ("漢" * 40 if i % 2 else "x" * 200) for i in range(10)]
    engine = engine_at(server, max_batch_bytes=1000)
    ran = Ran(engine, [*texts, "漢" * 400])
    assert ran.texts == [*texts, None]
    assert ran.final[-1] == "request_too_large"
    sizes = [len(server.files[b.record["input_file_id"]].data) for b in server.batches.values()]
    assert max(sizes) <= 1000
    assert len(sizes) > 2
    for request in requests(texts):
        [line] = lines_of([request])
        assert engine.size(request) >= len(_written(server, line.custom_id))


def _written(server: BatchServer, name: str) -> bytes:
    return next(
        line
        for file in server.files.values()
        for line in file.data.split(b"\n")
        if name.encode() in line
    )


def test_u148_a_file_that_the_provider_finds_too_large(server: BatchServer) -> None:
    server.most_bytes = 1000
    ran = Ran(engine_at(server), texts_of(20))
    assert ran.texts == texts_of(20)
    assert set(server.asked.values()) == {1}


def test_u149_more_rows_than_a_batch_holds(server: BatchServer) -> None:
    ran = Ran(engine_at(server, max_batch_requests=5), texts_of(11))
    assert ran.texts == texts_of(11)
    assert [len(server.lines(name)) for name in server.batches] == [5, 5, 1]


def test_u158_what_a_probe_teaches_holds_for_the_lines(server: BatchServer) -> None:
    server.refuse = {"max_tokens", "temperature"}
    engine = engine_at(server)
    asked = [replace(r, sampling=Sampling(max_tokens=50)) for r in requests(texts_of(5))]
    with pytest.warns(UserWarning, match="takes no temperature"):
        probed = engine.probe(asked[0])
    assert probed is not None
    assert probed.text == "row 0"
    batch = engine.submit(lines_of(asked), "tag-1", lambda name, value: None)
    for line in server.lines(batch.id):
        assert line["body"]["max_completion_tokens"] == 50
        assert "temperature" not in line["body"]
    ended(engine, batch)
    assert [result.failure for _, _, result in engine.fetch(batch)] == [None] * 5


def test_ids_that_lag(server: BatchServer) -> None:
    server.plan = Plan(lag=3)
    ran = Ran(engine_at(server), texts_of(3))
    assert ran.texts == texts_of(3)
    assert len(server.batches) == 1


def test_answers_that_are_counted_and_never_shown_are_lost_not_sent_again(
    server: BatchServer,
) -> None:
    server.plan = Plan(lag=10**6)
    ran = Ran(engine_at(server), texts_of(3))
    assert ran.final == ["lost"] * 3
    assert len(server.batches) == 1


def test_results_that_are_gone_are_lost_not_sent_again(server: BatchServer) -> None:
    engine = engine_at(server)
    batch = submitted(engine)
    ended(engine, batch)
    engine.delete(batch)
    other = engine_at(server)
    assert other.poll(batch).state == "gone"


def test_one_file_of_two_is_gone(server: BatchServer) -> None:
    server.answer = lambda body: Row(status=400) if _text(body) == "row 1" else _text(body)
    engine = engine_at(server)
    batch = submitted(engine)
    ended(engine, batch)
    del server.files[server.batches[batch.id].record["output_file_id"]]
    status = engine.poll(batch)
    assert (status.state, status.missing) == ("done", "lost")
    assert len(list(engine.fetch(batch))) == 1


@pytest.mark.parametrize(
    "plan",
    [
        Plan(string_body=True),
        Plan(gzip=True),
        Plan(crlf=True, last_newline=False),
        Plan(raw=False),
        Plan(words=["validating", "in_progress", "finalizing", "finalizing", "paused?"]),
        Plan(words=[]),
        Plan(hidden=1),
    ],
    ids=["string", "gzip", "crlf", "escaped", "words", "at once", "404 after create"],
)
def test_shapes_that_occur(
    server: BatchServer, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lane's clock runs fast here, and a busy machine would outlast the minute of grace.
    monkeypatch.setattr("llmframe.lanes.patience.SETTLED", 1e6)
    server.plan = plan
    ran = Ran(engine_at(server), [*texts_of(4), NASTY])
    assert ran.texts == [*texts_of(4), NASTY]
    assert len(server.batches) == 1


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_download_that_is_cut(server: BatchServer, ranges: bool, packed: bool) -> None:
    server.plan = Plan(cuts=2, ranges=ranges and not packed, gzip=packed)
    texts = [f"row {i} " + "x" * 50_000 for i in range(8)]
    ran = Ran(engine_at(server), texts)
    assert ran.texts == texts
    assert ran.lane.counts["duplicates"] == 0


def test_a_line_of_ten_megabytes(server: BatchServer) -> None:
    server.answer = lambda body: "y" * 10_000_000
    ran = Ran(engine_at(server), ["one"])
    [text] = ran.texts
    assert text is not None
    assert len(text) == 10_000_000


def test_dropped_and_doubled_lines(server: BatchServer) -> None:
    server.plans = [Plan(drop=0.2, twice=0.3), Plan(twice=1.0, conflict=True)]
    ran = Ran(engine_at(server), texts_of(40))
    assert ran.texts == texts_of(40)
    assert ran.lane.counts["missing"] > 0
    assert ran.lane.counts["duplicates"] > 0
    assert ran.lane.counts["conflicts"] > 0
    assert (
        sum(len(server.lines(name)) for name in server.batches) == 40 + ran.lane.counts["missing"]
    )


@pytest.mark.slow
def test_no_row_of_thousands_is_paid_twice(server: BatchServer) -> None:
    """3 % fail and may pass later, 1 % have no line, 2 % have two, 1 % are invalid at first."""
    paid: Counter[str] = Counter()
    tried: Counter[str] = Counter()

    def answer(body: dict[str, Any]) -> Any:
        text = next(m["content"] for m in body["messages"] if m["content"].startswith("row "))
        number = int(text.removeprefix("row "))
        tried[text] += 1
        if number % 33 == 0 and tried[text] == 1:
            return Row(status=503)
        if number % 100 == 1 and tried[text] == 1:
            return "not a number"
        paid[text] += 1
        return json.dumps({"response": number})

    server.answer = answer
    server.plan = Plan(drop=0.01, twice=0.02)
    df = pd.DataFrame({"t": texts_of(6000)})
    engine = engine_at(server, max_batch_requests=2500)
    with lf.set_options(poll_interval=0.05):
        out = df.llm.map("{t}", int, model=engine, progress=False)
    assert out["response"].tolist() == list(range(6000))
    assert set(paid.values()) == {1}
    rows = sum(len(server.lines(name)) for name in server.batches) + len(server.live)
    assert rows < 6000 * 1.07


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (Row("", message={"refusal": "I will not"}), "refused"),
        (Row('{"a":', finish="length"), "truncated"),
        (Row(None, finish="content_filter"), "content_filter"),
        (Row(None), "empty_output"),
        (Row(body={}), "provider_error"),
        (Row(body={"error": {"message": "no", "code": "server_error"}}), "provider_error"),
        (Row(error={"code": "invalid_request", "message": "bad"}), "invalid_request"),
        (Row(response=False, error="a plain string"), "invalid_request"),
        (Row(response=False), "provider_error"),
        (Row(status=429), "rate_limited"),
        (Row(status=500), "provider_error"),
    ],
)
def test_rows_that_are_no_answers(server: BatchServer, row: Row, kind: str) -> None:
    server.answer = lambda body: row
    engine = engine_at(server)
    batch = submitted(engine, 1)
    ended(engine, batch)
    [(_, _, result)] = engine.fetch(batch)
    assert result.failure is not None
    assert result.failure.kind == kind
    assert not result.failure.maybe_paid


@pytest.mark.parametrize("create", ["lost", "500"])
@pytest.mark.parametrize("page", [100, 2])
def test_a_create_without_an_answer_is_found(server: BatchServer, create: str, page: int) -> None:
    server.page = page
    engine = engine_at(server, max_batch_requests=2)
    server.plans = [Plan(), Plan(create=create), Plan()]
    ran = Ran(engine, texts_of(6))
    assert ran.texts == texts_of(6)
    assert len(server.batches) == 3
    assert ran.lane.counts["adopted"] == 1
    assert set(server.asked.values()) == {1}


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_search_ends_where_batches_are_older_than_the_file(
    server: BatchServer, newest_first: bool
) -> None:
    engine = engine_at(server)
    notes: dict[str, str] = {}
    for number in range(40):
        submitted(engine, 1, f"old-{number}")
    for age, stored in enumerate(reversed(server.batches.values()), 1):
        stored.record["created_at"] -= 100 * age
    wanted = engine.submit(lines_of(requests(["a"])), "tag-1", notes.__setitem__)
    submitted(engine, 1, "new")
    if not newest_first:
        server.batches = dict(reversed(server.batches.items()))
    server.page = 2
    server.calls.clear()
    assert engine.find("tag-1", notes, 1) == [wanted]
    pages = server.calls["GET /v1/batches"]
    assert pages < 4 if newest_first else pages == 21


def test_a_create_that_made_nothing_uses_its_file_again(server: BatchServer) -> None:
    server.plans = [Plan(create="503"), Plan(create="429"), Plan()]
    ran = Ran(engine_at(server), texts_of(3))
    assert ran.texts == texts_of(3)
    assert len(server.batches) == 1
    assert server.calls["POST /v1/files"] == 1
    assert ran.lane.counts["never_created"] == 1


def test_metadata_is_refused(server: BatchServer) -> None:
    server.metadata = False
    server.plans = [Plan(), Plan(create="lost")]  # the first is refused, and made without it
    ran = Ran(engine_at(server), texts_of(3))
    assert ran.texts == texts_of(3)
    assert len(server.batches) == 1
    assert ran.lane.counts["adopted"] == 1


def test_a_batch_that_cannot_be_listed_is_never_sent_again_in_silence(server: BatchServer) -> None:
    server.lists = False
    server.plans = [Plan(create="lost")]
    with pytest.raises(EngineError, match=r"job\.resume\(resend=True\)"):
        Ran(engine_at(server), texts_of(3))
    assert len(server.batches) == 1


def test_a_batch_with_another_tag_is_not_taken_for_ours(server: BatchServer) -> None:
    engine = engine_at(server)
    notes: dict[str, str] = {}
    engine.submit(lines_of(requests(["a"])), "tag-1", notes.__setitem__)
    assert engine.find("tag-2", notes, 1) == []
    assert len(engine.find("tag-1", {}, 1)) == 1


def test_a_file_that_is_not_found_yet(server: BatchServer) -> None:
    engine = engine_at(server)
    server.plans = [Plan(create="no_file"), Plan(create="no_file"), Plan()]
    waited: list[float] = []
    engine.sleep = waited.append
    submitted(engine)
    assert waited == [1.0, 2.0]
    server.plan = Plan(create="no_file")
    with pytest.raises(EngineError, match="Cannot find file") as caught:
        submitted(engine)
    assert caught.value.status == 400
    assert server.calls["POST /v1/batches"] == 3 + 5


def test_calls_that_may_be_made_twice_are(server: BatchServer) -> None:
    engine = engine_at(server)
    waited: list[float] = []
    engine.sleep = waited.append
    server.fail_next = [503, 500]
    batch = submitted(engine)  # the upload
    server.fail_next = [429, 503, 500]
    assert engine.poll(batch).state == "running"
    server.fail_next = [500] * 4
    with pytest.raises(EngineError) as caught:
        engine.poll(batch)
    assert caught.value.retryable
    assert len(waited) == 8
    assert len(server.batches) == 1


def test_a_long_retry_after_is_not_slept(server: BatchServer) -> None:
    engine = engine_at(server)
    server.plans = [Plan(create="429", retry_after="300")]
    engine.sleep = lambda seconds: pytest.fail("slept")
    with pytest.raises(EngineError) as caught:
        submitted(engine)
    assert (caught.value.status, caught.value.retryable) == (429, True)
    assert caught.value.retry_after == 300


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_look_that_is_refused_is_the_wrong_account(server: BatchServer, status: int) -> None:
    engine = engine_at(server)
    lane = make_lane(engine, Journal.memory())
    poll = engine.poll

    def refused(batch: Batch) -> Any:
        poll(batch)
        raise EngineError("no", status=status)

    engine.poll = refused  # type: ignore[method-assign]
    if status == 404:  # not one that was just made
        batch_of = engine.submit
        engine.submit = lambda *given: _older(batch_of(*given))  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="nothing was sent"):
        SmallRun(lane, requests(texts_of(2)))()
    assert len(server.batches) == 1


def _older(batch: Batch) -> Batch:
    return Batch(batch.id, batch.tag, batch.count, batch.created_at - 3600)


def test_another_accounts_key_on_reopening(server: BatchServer) -> None:
    server.accounts = {KEY: "org-a", "sk-other-key": "org-b", "sk-rotated-key": "org-a"}
    server.plan = Plan(words=["in_progress"] * 10**6)
    journal = Journal.memory()
    lane = make_lane(engine_at(server), journal)
    run = SmallRun(lane, requests(texts_of(3)))
    run.switch.mode = "run"
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    server.wait_for(lambda: server.calls["GET /v1/batches/ID"] >= 2)
    run.switch.mode = "abort"
    thread.join(60)
    assert not thread.is_alive()
    [record] = journal.batches("j_test")
    assert record.account == "org-a"

    with pytest.raises(StoreError, match="org-b"):
        Ran(engine_at(server, api_key="sk-other-key"), texts_of(3), journal)
    assert len(server.batches) == 1

    for stored in server.batches.values():
        stored.plan.words.clear()
    ran = Ran(engine_at(server, api_key="sk-rotated-key"), texts_of(3), journal)
    assert ran.texts == texts_of(3)
    assert len(server.batches) == 1


def test_files_are_deleted_after_a_verified_join(server: BatchServer) -> None:
    server.answer = lambda body: Row(status=400) if _text(body) == "row 1" else _text(body)
    ran = Ran(engine_at(server, cleanup=True), texts_of(3))
    assert ran.texts == ["row 0", None, "row 2"]
    assert server.files == {}
    kept = Ran(engine_at(server), ["another"])
    assert kept.texts == ["another"]
    assert len(server.files) == 2


def test_cancel_through_the_engine(server: BatchServer) -> None:
    server.plan = Plan(words=["in_progress"] * 10**6)
    engine = engine_at(server)
    batch = submitted(engine, 6)
    assert engine.poll(batch).state == "running"
    engine.cancel(batch)
    engine.cancel(batch)
    status = ended(engine, batch)
    assert (status.state, status.missing) == ("done", "canceled")
    kinds = [r.failure.kind if r.failure else "ok" for _, _, r in engine.fetch(batch)]
    assert sorted(kinds) == ["canceled"] * 3 + ["ok"] * 3
    engine.cancel(batch)


def test_a_client_of_the_users_is_used(server: BatchServer) -> None:
    import openai

    with openai.OpenAI(api_key="sk-their-key", base_url=server.url) as client:
        engine = OpenAI("m", client=client, batch=True, headers={"x-team": "blue"})
        ran = Ran(engine, texts_of(3))
        assert ran.texts == texts_of(3)
        assert engine.probe(requests(["hello"])[0]) is not None
        engine.close()
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-their-key"}
    assert {headers["x-team"] for headers in server.headers} == {"blue"}


def test_no_secret_leaves(server: BatchServer, caplog: pytest.LogCaptureFixture) -> None:
    server.accounts = {"sk-somebody-else": "org"}
    engine = engine_at(server, headers={"x-gateway-key": "gw-secret-777"})
    with caplog.at_level(logging.DEBUG), pytest.raises(EngineError) as caught:
        submitted(engine)
    assert caplog.text
    assert caught.value.status == 401
    error: BaseException | None = caught.value
    assert error.__context__ is None or KEY not in repr(error.__context__)
    shown = f"{caught.value!r}{caught.value}{pickle.dumps(caught.value)!r}{caplog.text}"
    assert KEY not in shown
    assert "gw-secret-777" not in shown
    assert KEY.encode() not in pickle.dumps(engine)


def test_a_key_that_did_not_travel_is_missed_before_anything_is_sent() -> None:
    engine = OpenAI("m", api_key=KEY, batch=True)
    copy: Any = pickle.loads(pickle.dumps(engine))
    with pytest.raises(ModelError, match="no API key"):
        submitted(copy)


def test_the_account_is_asked_for_once(server: BatchServer) -> None:
    server.accounts = {KEY: "org-a"}
    engine = engine_at(server)
    assert [engine.account, engine.account] == ["org-a", "org-a"]
    assert server.calls["GET /v1/batches"] == 1
    assert engine_at(server, api_key="sk-unknown").account == ""


def test_times_are_the_providers(server: BatchServer) -> None:
    batch = submitted(engine_at(server))
    assert abs(batch.created_at - time.time()) < 60

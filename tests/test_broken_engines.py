"""Engines that break the protocol, and what else once hung or lost a row."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.base import Control, Limits, Source
from llmframe.journal import Journal
from llmframe.requests import Request
from llmframe.results import Result
from llmframe.testing import FakeEngine

Stream = Callable[[Source, Control], Iterator[list[Result]]]


class Custom:
    """An engine that is nothing but its stream."""

    name, model = "custom", "m"

    def __init__(self, stream: Stream, *, choices: bool = False) -> None:
        self.limits = Limits(concurrency=4, choices=choices, in_process=True)
        self.stream = stream
        self.store = Journal.memory()

    def identity(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def answer(request: Request, **more: Any) -> Result:
    return Result(request.key, request.messages[-1]["content"].upper(), "stop", **more)


def frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(rows)]})


def test_a_row_lost_by_an_engine_that_yields_nothing_while_idle() -> None:
    lost: list[Request] = []

    def stream(source: Source, control: Control) -> Iterator[list[Result]]:
        while (taken := source.take(4)) is not None:
            kept = []
            for request in taken:
                if request.position == 3 and not lost:
                    lost.append(request)
                else:
                    kept.append(answer(request))
            yield kept
            time.sleep(0.005)

    out = frame(20).llm.map("{t}", model=Custom(stream))
    assert out["response"].notna().all()


def test_an_engine_that_ends_its_stream_early_and_loses_rows() -> None:
    def stream(source: Source, control: Control) -> Iterator[list[Result]]:
        taken = source.take(3) or []
        yield [answer(request) for request in taken[1:] or taken]

    out = frame(60).llm.map("{t}", model=Custom(stream), errors="coerce")
    assert out["response"].notna().sum() >= 40


@pytest.mark.parametrize("scores", [(-1.0,), (-1.0, -2.0, -3.0)])
def test_scores_that_do_not_match_the_labels_are_no_answer(scores: tuple[float, ...]) -> None:
    def stream(source: Source, control: Control) -> Iterator[list[Result]]:
        while (taken := source.take(4)) is not None:
            yield [Result(r.key, None, "stop", choice_logprobs=scores) for r in taken]
            time.sleep(0.002)

    engine = Custom(stream, choices=True)
    out = frame(3).llm.classify("t", ["a", "b"], model=engine, errors="coerce", repairs=0)
    assert out["label"].isna().all()
    assert set(out.llm.failures()["kind"]) == {"invalid_output"}


@pytest.mark.parametrize("labels", [[0.5, 1.5], [1, "two"]])
@pytest.mark.parametrize("scored", [False, True])
def test_floats_and_mixed_labels_come_back_as_they_are(labels: list[Any], scored: bool) -> None:
    engine = FakeEngine(choices=scored)
    out = frame(8).llm.classify("t", labels, model=engine, confidence=scored)
    assert out["label"].notna().all()
    assert all(any(value is label for label in labels) or value in labels for value in out["label"])
    assert {type(value) for value in out["label"]} <= {type(label) for label in labels}


@pytest.mark.parametrize("reply", ['{"label":"Spam","label":"Ham"}', '{"category":"Spam"}'])
def test_a_label_in_a_reply_that_is_no_answer_is_none(reply: str) -> None:
    engine = FakeEngine(lambda text: reply)
    out = frame(1).llm.classify("t", ["Spam", "Ham"], model=engine, errors="coerce", repairs=0)
    assert out["label"].isna().all()


def test_a_label_matches_in_either_unicode_form() -> None:
    engine = FakeEngine(lambda text: "caf\u00e9")
    out = frame(1).llm.classify("t", ["cafe\u0301", "tea"], model=engine)
    assert out["label"].tolist() == ["cafe\u0301"]


@pytest.mark.parametrize("age", [-1, float("nan"), float("inf")])
def test_an_age_that_is_none_deletes_nothing(age: float) -> None:
    with pytest.raises(ValueError, match="Nothing was deleted"):
        lf.purge(older_than=age)
    with pytest.raises(TypeError, match="days"):
        lf.purge(older_than="1d")  # type: ignore[arg-type]


def test_labels_set_by_hand_are_not_taken_for_the_models() -> None:
    engine = FakeEngine({"label": "a"})
    out = frame(2).llm.classify("t", ["a", "b"], model=engine)
    again = out.llm.classify("t", ["a", "b"], model=engine)
    assert again["label"].tolist() == ["a", "a"]
    out = out.drop(columns="label")
    out["label"] = ["mine", "too"]
    with pytest.raises(lf.SchemaError, match="changed since"):
        out.llm.classify("t", ["a", "b"], model=engine)


def test_a_variable_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMFRAME_CONCURRENCY", "-3")
    with pytest.raises(ValueError, match="LLMFRAME_CONCURRENCY"):
        frame(2).llm.map("{t}", model=FakeEngine())


def test_a_job_looks_the_same_in_another_process(home: Any) -> None:
    def stream(source: Source, control: Control) -> Iterator[list[Result]]:
        while (taken := source.take(4)) is not None:
            yield [Result(r.key, '{"n": 3}', "stop") for r in taken]

    engine = Custom(stream)
    del engine.store  # the user's own store, which the other process reads
    df = frame(2)
    job = df.llm.submit.map("{t}", {"n": int}, model=engine, dtype_backend="pyarrow", details=True)
    here = job.wait().join()
    code = (
        "import sys, pandas as pd, llmframe as lf\n"
        "df = pd.DataFrame({'t': ['row 0', 'row 1']})\n"
        "out = lf.job(sys.argv[1]).join(df)\n"
        "print([*out.columns], [str(t) for t in out.dtypes])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, job.id], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"{[*here.columns]} {[str(t) for t in here.dtypes]}"

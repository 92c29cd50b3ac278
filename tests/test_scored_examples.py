"""Examples for a model whose labels are scored: in the words that are scored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

import llmframe as lf

DESCRIBED = {"bug": "something is broken", "question": None}


def said(labels: Any, examples: Any, *, small: bool, **more: Any) -> list[str]:
    """What the examples answer, as the model reads them."""
    engine = lf.testing.FakeEngine(choices=True)
    engine.limits = replace(engine.limits, calibrate=small, in_process=True)
    out = pd.DataFrame({"t": ["It crashes."]}).llm.classify(
        "t", labels, examples=examples, model=engine, **more
    )
    messages = out.llm.trace(0).messages
    return [message["content"] for message in messages if message["role"] == "assistant"]


def test_a_small_model_reads_the_choices_that_are_scored() -> None:
    examples = [("It fails.", "bug"), ("How?", " Question.")]
    assert said(DESCRIBED, examples, small=True) == [
        "Category: bug, something is broken",
        "Category: question",
    ]


@pytest.mark.parametrize("more", [{"explain": True}, {"multi": True}])
def test_where_it_writes_it_reads_json(more: dict[str, Any]) -> None:
    answer = {"multi": ["bug"], "explain": {"label": "bug", "reason": "It does not run."}}
    found = said(DESCRIBED, [("It fails.", answer[next(iter(more))])], small=True, **more)
    assert found[0].startswith("{")


def test_a_larger_model_reads_json_as_it_writes_it() -> None:
    assert said(DESCRIBED, [("It fails.", "bug")], small=False) == ['{"label": "bug"}']


@pytest.mark.parametrize(("labels", "answer"), [([1, 2], 2), ([True, False], False), ([0.5, 2], 2)])
def test_labels_that_are_no_text(labels: list[Any], answer: Any) -> None:
    assert said(labels, [("x", answer)], small=True) == [f"Category: {answer}"]


def test_the_lead_is_that_of_the_engines_that_score() -> None:
    from llmframe import shots
    from llmframe.engines import local_server, vllm_requests

    assert shots._LEAD == local_server.LEAD == vllm_requests.LEAD

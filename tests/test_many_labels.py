"""Five hundred labels of sixty characters, on each engine."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.local import Local
from llmframe.errors import PromptError
from llmframe.label_prompts import instructions
from llmframe.labels import Labels, coded, labels, labels_from
from tests.servers.anthropic import AnthropicServer
from tests.servers.looking import openai
from tests.test_schemas_judged import anthropic_faults, openai_faults

pytest_plugins = ["tests.servers.plugin"]

LABELS = [
    f"Complaint number {n:03d} about {'a parcel that did not arrive in time'}"[:60]
    for n in range(500)
]
DF = pd.DataFrame({"t": ["mark-a", "mark-b"]})


def answering(replies: dict[str, Any]) -> Any:
    def answer(seen: Any) -> str:
        said = json.dumps(seen.body["messages"])
        return json.dumps(next(reply for mark, reply in replies.items() if mark in said))

    return answer


def test_few_or_short_labels_are_asked_for_as_they_are():
    for spec in (
        LABELS[:250],
        [f"{n} " + "x" * 54 for n in range(260)],  # 15,000 characters at most
        list(range(600)),
    ):
        known = labels(spec)
        assert coded(known) is known
        assert known.written == known.texts
        assert "codes" not in known.stored()
    assert coded(labels(LABELS[:251])).codes is not None


def test_codes_are_told_and_read_back():
    known = coded(labels({**dict.fromkeys(LABELS), LABELS[6]: "it came broken"}))
    assert known.written[:2] == ("L001", "L002")
    system, _, _ = instructions(known)
    assert f"\n- L001: {LABELS[0]}\n" in system
    assert f"\n- L007: {LABELS[6]} (it came broken)\n" in system
    assert system.endswith("Answer with the code of the category that fits best.")
    several, _, _ = instructions(known, multi=True)
    assert several.endswith("Answer with the codes of all that fit; none may.")
    assert known.form().fields[0].categories == known.codes
    again = labels_from(json.loads(json.dumps(known.stored())))
    for each in (known, again):
        assert each.own("L500") == LABELS[499]
        assert each.own(["L002", "L001"]) == [LABELS[1], LABELS[0]]
        assert each.match(" l003.") == 2
        assert each.match(LABELS[2].upper()) == 2  # the label where its code was asked for
        assert each.match("L501") is None
    assert again == known


def test_no_code_reads_as_a_label():
    texts = ["l001", *LABELS, "C-501", "K 9"]
    known: Labels = coded(labels(texts))
    assert known.codes is not None
    assert known.match("l001") == 0
    assert known.match("C-501") == 501
    assert {known.match(code) for code in known.codes} == set(range(503))
    assert [known.match(code) for code in known.codes] == list(range(503))


def test_openai_and_its_imitators_get_codes(serve: Any) -> None:
    server = serve(answering({"mark-a": {"label": "L007"}, "mark-b": {"label": LABELS[1]}}))
    out = DF.llm.classify("t", LABELS, model=openai(server))
    assert out["label"].tolist() == [LABELS[6], LABELS[1]]
    assert out["label"].dtype == pd.CategoricalDtype(LABELS)
    assert server.count == 2
    wire = server.asked[0].schema
    assert openai_faults(wire) == []
    allowed = wire["properties"]["label"]["enum"]
    assert (len(allowed), allowed[0], allowed[-1]) == (500, "L001", "L500")
    again = lf.job(out.attrs["llmframe"]["label"]).join(DF)
    assert again["label"].equals(out["label"])


def test_a_code_that_is_none_is_asked_again_and_fails(serve: Any) -> None:
    server = serve(answering({"mark-a": {"label": "L501"}, "mark-b": {"label": "L500"}}))
    with pytest.warns(lf.RowsFailedWarning):
        out = DF.llm.classify("t", LABELS, model=openai(server))
    assert out["label"].tolist()[1] == LABELS[499]
    assert out.llm.failures()["kind"].tolist() == ["invalid_output"]
    assert server.count == 3


def test_several_and_reasons_and_numbers(serve: Any) -> None:
    server = serve(answering({"mark": {"label": ["L002", "L001"]}}))
    out = DF.llm.classify("t", LABELS, multi=True, model=openai(server))
    assert out["label"].tolist() == [[LABELS[1], LABELS[0]]] * 2
    listed = DF.llm.classify("t", LABELS, multi=True, model=openai(server), dtype_backend="pyarrow")
    assert str(listed["label"].dtype) == "list<item: string>[pyarrow]"

    server = serve(answering({"mark": {"reason": "late", "label": "L003"}}))
    out = DF.llm.classify("t", LABELS, explain=True, model=openai(server))
    assert out["label"].tolist() == [LABELS[2]] * 2
    assert out["label_reason"].tolist() == ["late"] * 2

    server = serve(answering({"mark": {"label": "L003"}}))
    numbers = [10**60 + n for n in range(300)]
    mixed: list[Any] = ["none of these", *numbers]
    out = DF.llm.classify("t", mixed, model=openai(server))
    assert out["label"].tolist() == [numbers[1]] * 2


def test_examples_are_told_in_codes(serve: Any) -> None:
    server = serve(answering({"mark": {"label": "L003"}}))
    DF.llm.classify("t", LABELS, examples=[("late", LABELS[4])], model=openai(server))
    told = json.dumps(server.asked[0].body["messages"][:-1])
    assert "L005" in told.replace(f"- L005: {LABELS[4]}", "")
    with pytest.raises(PromptError, match="is none of the labels"):
        DF.llm.classify("t", LABELS, examples=[("late", "late")], model=openai(server))


def test_anthropic_gets_codes() -> None:
    with AnthropicServer() as server:
        server.answer = lambda asked: {"label": "L010" if "mark-a" in asked.text else "L500"}
        engine = lf.Anthropic("claude-x", base_url=server.url, api_key=server.key)
        out = DF.llm.classify("t", LABELS, model=engine)
    assert out["label"].tolist() == [LABELS[9], LABELS[499]]
    from llmframe.schemas.dialects import anthropic

    form = coded(labels(LABELS)).form()
    assert form.schema is not None
    assert anthropic_faults(anthropic(form.schema)) == []


def test_an_engine_in_the_process_is_asked_for_the_labels_themselves() -> None:
    engine = lf.testing.FakeEngine(LABELS[3])
    out = DF.llm.classify("t", LABELS, model=engine)
    assert out["label"].tolist() == [LABELS[3]] * 2


@pytest.mark.slow
def test_the_embedded_model_scores_them_and_writes_them(local_model: Any) -> None:
    engine = Local(local_model, n_ctx=2048)
    # One row, and none to calibrate by: to score 500 labels takes the model a minute.
    out = DF.head(1).llm.classify("t", LABELS, model=engine, confidence=True, calibration="none")
    assert (out.llm.status() == "ok").all()
    assert out["label_confidence"].between(0.002, 1).all()
    from llmframe.requests import Sampling
    from llmframe.schemas.reading import read
    from llmframe.testing import drive, requests

    form = labels(LABELS).form()  # as with multi=True, where nothing is scored
    sampling = Sampling(max_tokens=60)
    [result] = drive(engine, requests(["x"], form.schema, sampling=sampling))
    assert read(form, result).values is not None

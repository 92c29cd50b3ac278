"""`classify` that may leave a row without a label: not sure enough, or none of the labels fits."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.calls import call_from
from llmframe.labels import labels
from llmframe.requests import Request
from tests.servers.looking import all_warnings, statuses

LABELS = ["bug", "question"]
SURE = {"It crashes": 0.95, "Hm": 0.6, "Why?": 0.1, "Well": 0.45}


@pytest.fixture
def df() -> pd.DataFrame:
    return pd.DataFrame({"t": list(SURE)}, index=list("wxyz"))


def scoring(asked: list[str] | None = None) -> lf.testing.FakeEngine:
    def answer(text: str) -> dict[str, float]:
        if asked is not None:
            asked.append(text)
        sure = next(share for said, share in SURE.items() if said in text)
        return {"bug": sure, "question": 1 - sure}

    return lf.testing.FakeEngine(answer, choices=True)


def test_unsure_rows_have_no_label_and_keep_their_confidence(df: pd.DataFrame) -> None:
    with all_warnings() as seen:
        out = df.llm.classify("t", LABELS, unsure_below=0.8, model=scoring())
    assert [str(one.message) for one in seen] == [
        "2 of 4 rows have no label: less than 0.8 sure. Their confidence is in 'label_confidence'."
    ]
    assert out["label"].isna().tolist() == [False, True, False, True]
    assert out["label"].dropna().tolist() == ["bug", "question"]
    assert out["label"].dtype == pd.CategoricalDtype(LABELS)
    assert out["label_confidence"].round(2).tolist() == [0.95, 0.6, 0.9, 0.55]
    assert statuses(out) == ["ok"] * 4
    assert out.llm.failures().empty


def test_another_threshold_asks_nothing_again(df: pd.DataFrame) -> None:
    asked: list[str] = []
    engine = scoring(asked)
    df.llm.classify("t", LABELS, unsure_below=0.8, errors="coerce", model=engine)
    before = len(asked)
    out = df.llm.classify("t", LABELS, unsure_below=0.5, model=engine)
    assert len(asked) == before
    assert out["label"].tolist() == ["bug", "bug", "question", "question"]
    assert df.llm.plan.classify("t", LABELS, model=engine).requests == 0


def test_coerce_leaves_the_warning_out(df: pd.DataFrame) -> None:
    with all_warnings() as seen:
        df.llm.classify("t", LABELS, unsure_below=0.8, errors="coerce", model=scoring())
    assert not seen


def test_a_finished_job_knows_its_threshold(df: pd.DataFrame) -> None:
    engine = scoring()
    job = df.llm.submit.classify("t", LABELS, unsure_below=0.8, errors="coerce", model=engine)
    job.wait()
    stored = call_from(job.call.stored(job.call.bind(["t"], [None])))
    assert stored.unsure_below == 0.8
    assert job.join(df)["label"].isna().sum() == 2


@pytest.mark.parametrize("given", [0, 1.5, True, "0.8", float("nan")])
def test_what_is_no_probability_is_refused(df: pd.DataFrame, given: Any) -> None:
    with pytest.raises(ValueError, match="unsure_below="):
        df.llm.classify("t", LABELS, unsure_below=given, model=scoring())


@pytest.mark.parametrize("more", [{"explain": True}, {"multi": True}, {}])
def test_without_probabilities_nothing_could_be_unsure(
    df: pd.DataFrame, more: dict[str, Any]
) -> None:
    engine = scoring() if more else lf.testing.FakeEngine({"label": "bug"})
    with pytest.raises(ValueError, match="without the probabilities of the labels"):
        df.llm.classify("t", LABELS, unsure_below=0.8, model=engine, **more)


def test_other_is_one_more_label_and_the_model_is_told_of_it(df: pd.DataFrame) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> dict[str, str]:
        seen.append(request)
        crashes = "crashes" in request.messages[-1]["content"]
        return {"label": "bug" if crashes else "none of these"}

    out = df.llm.classify("t", LABELS, other=True, model=lf.testing.FakeEngine(answer))
    assert out["label"].tolist() == ["bug"] + ["none of these"] * 3
    assert out["label"].cat.categories.tolist() == [*LABELS, "none of these"]
    assert "- none of these" in seen[0].messages[0]["content"]


def test_other_may_have_a_name_and_a_type_of_its_own() -> None:
    df = pd.DataFrame({"t": ["a", "b"]})
    engine = lf.testing.FakeEngine({"label": -1})
    out = df.llm.classify("t", [1, 2], other=-1, model=engine)
    assert (out["label"].tolist(), str(out["label"].dtype)) == ([-1, -1], "Int64")
    plan = df.llm.plan.classify("t", {"x": "like x", "y": None}, other="else", model=engine)
    assert "- else: none of the others fits" in plan.prompts[0]


def test_other_does_not_change_calls_without_it(df: pd.DataFrame) -> None:
    engine = scoring()
    plain = df.llm.plan.classify("t", LABELS, model=engine).keys
    assert df.llm.plan.classify("t", LABELS, other=False, model=engine).keys == plain
    assert df.llm.plan.classify("t", LABELS, unsure_below=0.9, model=engine).keys == plain
    assert df.llm.plan.classify("t", LABELS, other=True, model=engine).keys != plain


def test_other_that_is_a_label_already_is_refused(df: pd.DataFrame) -> None:
    with pytest.raises(lf.SchemaError, match="reads as the label 'question'"):
        df.llm.classify("t", LABELS, other="Question", model=scoring())
    with pytest.raises(ValueError, match="the list is empty"):
        df.llm.classify("t", LABELS, other=True, multi=True, model=scoring())


def test_labels_under_labels_are_paths(df: pd.DataFrame) -> None:
    tree = {
        "billing": {"refund": "wants money back", "invoice": ["missing", "wrong"]},
        "bug": "something is broken",
    }
    known = labels(tree)
    assert known.texts == (
        "billing > refund",
        "billing > invoice > missing",
        "billing > invoice > wrong",
        "bug",
    )
    assert known.descriptions == ("wants money back", None, None, "something is broken")
    engine = lf.testing.FakeEngine({"label": "billing > refund"})
    out = df.llm.classify("t", tree, model=engine)
    assert out["label"].str.split(" > ").str[0].tolist() == ["billing"] * 4


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"billing": {}, "bug": None}, "no label under 'billing'"),
        ({"billing": {"a > b": None}, "bug": None}, "holds ' > '"),
        ({"billing": {"a": 3}, "bug": None}, "description of label 'billing > a' is 3"),
        ({"billing": ["a", "A"], "bug": None}, "read alike"),
    ],
)
def test_labels_under_labels_that_cannot_be_told_apart_are_refused(
    spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(lf.SchemaError, match=said):
        labels(spec)

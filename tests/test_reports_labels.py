"""Public fault reports: labels that come back in another spelling, or that were never listed."""

from __future__ import annotations

import enum
import json
from typing import Any, Literal

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import kinds, openai, statuses
from tests.servers.rows import by_schema
from tests.servers.scripted import Scripted

pytest_plugins = ["tests.servers.plugin"]


def by_marker(replies: dict[str, str]) -> Scripted:
    """Answers by the marker word found in the conversation."""

    def answer(request: Any) -> str:
        said = json.dumps(list(request.messages))
        return next(reply for marker, reply in replies.items() if marker in said)

    return Scripted(answer)


def test_u097_one_label_whatever_its_spelling() -> None:
    engine = by_marker(
        {"mark-a": "spam", "mark-b": " Ham.", "mark-c": '"SPAM"', "mark-d": "**Ham**"}
    )
    df = pd.DataFrame({"t": ["mark-a", "mark-b", "mark-c", "mark-d"]})

    out = df.llm.classify("t", ["Spam", "Ham"], model=engine)

    assert out["label"].tolist() == ["Spam", "Ham", "Spam", "Ham"]
    assert out["label"].dtype == pd.CategoricalDtype(["Spam", "Ham"], ordered=False)
    assert engine.count == 4, "a label that can be matched was asked again"


def test_u097_the_same_inside_json(serve: Any) -> None:
    spellings = {"mark-a": "spam", "mark-b": " Ham.", "mark-c": '"SPAM"', "mark-d": "**Ham**"}

    def answer(seen: Any) -> str:
        said = json.dumps(seen.body["messages"])
        label = next(v for k, v in spellings.items() if k in said)
        return by_schema(seen.schema, _label=label) if seen.schema else label

    df = pd.DataFrame({"t": list(spellings)})
    out = df.llm.classify("t", ["Spam", "Ham"], model=openai(serve(answer)))

    assert out["label"].tolist() == ["Spam", "Ham", "Spam", "Ham"]


def test_u099_a_label_not_listed_is_asked_again_with_the_list_told(serve: Any) -> None:
    def answer(seen: Any) -> str:
        return "Junk" if seen.n == 1 else "Spam"

    server = serve(answer)
    df = pd.DataFrame({"t": ["buy now"]})

    out = df.llm.classify("t", ["Spam", "Ham"], model=openai(server))

    assert out["label"].tolist() == ["Spam"]
    assert server.count == 2
    first = [m["content"] for m in server.asked[0].body["messages"]]
    told = [m["content"] for m in server.asked[1].body["messages"] if m["content"] not in first]
    assert told, "the second try tells nothing new"
    assert "Spam" in told[-1]
    assert "Ham" in told[-1]


def test_u099_a_label_never_listed_is_a_failed_row_and_never_other() -> None:
    engine = by_marker({"mark-a": "Junk", "mark-b": "Ham"})
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})

    out = df.llm.classify("t", ["Spam", "Ham"], model=engine, errors="coerce")

    assert out["label"].isna().tolist() == [True, False]
    assert list(out["label"].cat.categories) == ["Spam", "Ham"]
    assert kinds(out) == {0: "invalid_output"}
    assert out.llm.failures()["raw"].tolist() == ["Junk"]


def test_u099_a_reply_with_two_labels_is_not_guessed() -> None:
    engine = by_marker({"mark-a": "Spam or Ham", "mark-b": "not Spam"})
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})

    out = df.llm.classify("t", ["Spam", "Ham"], model=engine, errors="coerce", repairs=0)

    assert out["label"].isna().all()
    assert statuses(out) == ["failed", "failed"]


def test_u102_numbers_come_back_as_numbers() -> None:
    engine = by_marker({"mark-a": "1", "mark-b": "0"})
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})

    out = df.llm.classify("t", [0, 1, 2], model=engine)

    assert out["label"].dtype == "Int64"
    assert out["label"].tolist() == [1, 0]


def test_u102_booleans_come_back_as_booleans() -> None:
    engine = by_marker({"mark-a": "true", "mark-b": "False"})
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})

    out = df.llm.classify("t", [True, False], model=engine)

    assert out["label"].dtype == "boolean"
    assert out["label"].tolist() == [True, False]


def test_u102_an_enum_gives_its_values() -> None:
    class Mood(enum.Enum):
        GOOD = "good mood"
        BAD = "bad mood"

    class Grade(enum.IntEnum):
        LOW = 1
        HIGH = 2

    moods = by_marker({"mark-a": "good mood", "mark-b": "bad mood"})
    grades = by_marker({"mark-a": "1", "mark-b": "2"})
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})

    mood = df.llm.classify("t", Mood, model=moods)["label"]
    grade = df.llm.classify("t", Grade, model=grades)["label"]

    assert mood.tolist() == ["good mood", "bad mood"]
    assert mood.dtype == pd.CategoricalDtype(["good mood", "bad mood"])
    assert grade.dtype == "Int64"
    assert grade.tolist() == [1, 2]


def test_u102_a_literal_and_descriptions_are_labels_too() -> None:
    engine = by_marker({"mark-a": "bug", "mark-b": "billing"})
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})

    literal = df.llm.classify("t", Literal["billing", "bug"], model=engine)["label"]
    described = df.llm.classify(
        "t", {"billing": "about money", "bug": "it does not work"}, model=engine
    )["label"]

    for label in (literal, described):
        assert label.tolist() == ["bug", "billing"]
        assert label.dtype == pd.CategoricalDtype(["billing", "bug"])
    assert "about money" in json.dumps(list(engine.requests[-1].messages))


SEVERAL = {
    '{"label": "spam"}': ["Spam"],
    "Spam": ["Spam"],
    '{"label": [" spam.", "SPAM", "Ham"]}': ["Spam", "Ham"],
    '["ham"]': ["Ham"],
    '{"label": []}': [],
}


def test_u097_several_labels_are_a_list_whatever_their_spelling() -> None:
    df = pd.DataFrame({"t": [f"mark-{k}" for k in range(len(SEVERAL))]})
    engine = by_marker({f"mark-{k}": reply for k, reply in enumerate(SEVERAL)})

    out = df.llm.classify("t", ["Spam", "Ham"], multi=True, model=engine)

    assert out["label"].tolist() == list(SEVERAL.values())
    assert engine.count == len(SEVERAL)


def test_u099_a_label_that_is_not_listed_is_none_of_several() -> None:
    df = pd.DataFrame({"t": ["mark-a"]})
    engine = by_marker({"mark-a": '{"label": ["spam", "junk"]}'})
    call = {"multi": True, "model": engine, "repairs": 0, "errors": "coerce"}

    assert kinds(df.llm.classify("t", ["Spam", "Ham"], **call)) == {0: "invalid_output"}


def test_a_null_is_not_the_label_none() -> None:
    df = pd.DataFrame({"t": ["mark-a"]})
    for labels in (["none", "mild"], ["None", "null"]):
        engine = by_marker({"mark-a": '{"label": null}'})
        out = df.llm.classify("t", labels, model=engine, repairs=0, errors="coerce")
        assert kinds(out) == {0: "invalid_output"}


@pytest.mark.parametrize("labels", [[1, 1.0], [1, True], [0, "x", False]])
def test_labels_that_are_equal_are_refused(labels: list[Any]) -> None:
    with pytest.raises(lf.SchemaError, match="are equal"):
        pd.DataFrame({"t": ["a"]}).llm.classify("t", labels, model=Scripted("1"))


def test_what_goes_with_a_kept_answer_is_never_that_of_another() -> None:
    df = pd.DataFrame({"t": ["u", "v"], "label": ["spam", None], "score": [1, pd.NA]})
    df["score"] = df["score"].astype("Int64")
    sure = lf.testing.FakeEngine({"spam": 0.1, "ham": 0.9}, choices=True)
    out = df.llm.classify(
        "t", ["spam", "ham"], confidence=True, if_exists="fill", model=sure, errors="coerce"
    )
    assert out["label"].tolist() == ["spam", "ham"]
    assert out["label_confidence"].isna().tolist() == [True, False]
    assert len(sure.requests) == 1

    judge = lf.testing.FakeEngine({"reason": "Full marks.", "score": 5})
    out = df.llm.judge("Good?", answer="t", n=2, if_exists="fill", model=judge, errors="coerce")
    assert out["score"].tolist() == [1, 5]
    assert out[["score_reason", "score_votes", "score_spread"]].iloc[0].isna().all()
    assert statuses(out) == ["kept", "ok"]
    assert out.llm.failures().empty


def test_fields_of_a_schema_are_filled_each_for_itself() -> None:
    df = pd.DataFrame({"t": ["u", "v"], "a": ["kept", None]})
    engine = lf.testing.FakeEngine({"a": "new", "b": 1})
    out = df.llm.extract("t", {"a": str, "b": int}, if_exists="fill", model=engine)
    assert out["a"].tolist() == ["kept", "new"]
    assert out["b"].tolist() == [1, 1]

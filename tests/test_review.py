"""Reviews: rows in order, answers accepted or corrected, columns, files and examples of them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.results import Failure
from tests.servers.looking import all_warnings

LABELS = ["billing", "bug", "other"]
TICKETS = [
    "I was charged twice",
    "The app crashes",
    "How do I change my name?",
    "It freezes",
    "Thank you!",
]


def answer(prompt: str) -> dict[str, str]:
    text = prompt.rpartition("Text: ")[2]
    return {"label": "billing" if "charged" in text else "bug" if "crash" in text else "other"}


@pytest.fixture
def df() -> pd.DataFrame:
    return pd.DataFrame({"ticket": TICKETS, "n": range(5)}, index=["a", "b", "c", "d", "e"])


@pytest.fixture
def out(df: pd.DataFrame) -> pd.DataFrame:
    return df.llm.classify("ticket", LABELS, model=lf.testing.FakeEngine(answer))


def test_answers_are_accepted_corrected_skipped_and_come_back_as_a_column(
    df: pd.DataFrame, out: pd.DataFrame
) -> None:
    before = out.copy()
    review = out.llm.review("label")
    assert review.progress == "0 of 5 reviewed"
    assert (review.current.label, review.current.text) == ("a", "I was charged twice")

    review.accept()
    review.skip()
    review.correct("other")  # what the model says too
    review.correct("bug")

    assert review.current.label == "e"
    assert review.progress == "3 of 5 reviewed, 1 of them corrected, 1 skipped"
    assert not review.done
    found = review.column()
    assert found.name == "label_reviewed"
    assert found.dtype == out["label"].dtype
    assert found.index.equals(out.index)
    assert found.astype(object).where(found.notna(), None).tolist() == [
        "billing",
        None,
        "other",
        "bug",
        None,
    ]
    made = review.apply()
    assert list(made.columns) == ["ticket", "n", "label", "label_reviewed"]
    assert made.attrs == out.attrs
    pd.testing.assert_frame_equal(out, before)

    review.previous()
    review.take_back()
    assert review.column()["d"] is not None
    assert pd.isna(review.column()["d"])
    review.accept()
    review.accept()
    assert review.done
    assert review.current.label == "e", "it stays where nothing is left"


def test_moving_never_marks_and_stops_at_the_ends(out: pd.DataFrame) -> None:
    review = out.llm.review("label")
    review.previous()
    assert review.at == 0
    for _ in range(9):
        review.next()
    assert review.current.label == "e"
    assert review.reviewed == 0
    review.accept()
    assert review.current.label == "a", "the next one without a mark, from the top again"


def test_the_least_sure_come_first_and_rows_without_an_answer_before_them(df: pd.DataFrame) -> None:
    made = df.assign(
        label=pd.Categorical(["bug", None, "bug", "other", "bug"], LABELS),
        label_confidence=pd.array([0.9, None, 0.2, 0.5, 0.2], dtype="Float64"),
    )

    def seen(order: Any) -> str:
        review = made.llm.review("label", text="ticket", order=order)
        labels = []
        for _ in made.index:
            labels.append(review.current.label)
            review.next()
        return "".join(labels)

    assert seen("auto") == seen("confidence") == "bceda"
    assert seen("failures") == "bacde"
    assert seen(None) == "abcde"
    with pytest.raises(ValueError, match=r"order='sure'; expected 'auto'"):
        made.llm.review("label", text="ticket", order="sure")
    with pytest.raises(ValueError, match=r"no column 'label_confidence' .*confidence=True"):
        made.drop(columns="label_confidence").llm.review("label", text="ticket", order="confidence")


def test_a_failed_row_says_why_and_can_only_be_corrected(df: pd.DataFrame) -> None:
    def fails(prompt: str) -> Any:
        return "no idea" if "freezes" in prompt else answer(prompt)

    engine = lf.testing.FakeEngine(fails)
    with pytest.warns(lf.RowsFailedWarning):
        out = df.llm.classify("ticket", LABELS, model=engine, repairs=0)
    review = out.llm.review("label")
    row = review.current
    assert (row.label, row.answer) == ("d", None)
    assert str(row.failure).startswith("invalid_output: ")
    with pytest.raises(ValueError, match=r"row 'd' has no answer to accept; correct\(value\)"):
        review.accept()
    review.correct("bug")
    assert review.corrected == 1


@pytest.mark.parametrize(
    ("column", "right", "wrong", "told"),
    [
        (pd.Categorical(["x", "y"]), "y", "z", r"'z': expected one of 'x', 'y'"),
        (pd.array([1, None], "Int64"), 2**62 + 1, 1.5, "whole number"),
        (pd.array([1.5, None], "Float64"), 2.5, "2.5", "number"),
        (pd.array([True, None], "boolean"), False, "False", r"one of False, True"),
        (pd.array(["x", None], "string"), "y", 3, "text"),
        (
            pd.to_datetime(["2024-05-01", None]).as_unit("us"),
            datetime(2025, 1, 2, 3),
            datetime(2025, 1, 2, tzinfo=UTC),
            "time",
        ),
        (pd.Series(["x", None], dtype=object), "y", 3, "text"),
        (pd.Series([{"k": [1]}, None], dtype=object), {"k": []}, None, "missing"),
        (pd.array([1, 2], "int64"), 3, True, "whole number"),
    ],
    ids=["category", "int", "float", "bool", "text", "time", "object text", "dict", "numpy int"],
)
def test_a_column_comes_back_in_its_own_dtype(
    tmp_path: Path, column: Any, right: Any, wrong: Any, told: str
) -> None:
    df = pd.DataFrame({"t": ["one", "two"], "v": column})
    review = df.llm.review("v", text="t", order=None)
    with pytest.raises(ValueError, match=told):
        review.correct(wrong)
    assert review.reviewed == 0
    review.correct(right)
    found = review.column()
    wanted = "Int64" if str(df["v"].dtype) == "int64" else df["v"].dtype
    assert found.dtype == wanted
    assert found[0] == right
    assert found.isna().tolist() == [False, True]

    again = df.llm.review("v", text="t", order=None)
    assert again.load(review.save(tmp_path / "marks.jsonl")) == 1
    pd.testing.assert_series_equal(again.column(), found)
    editor = review.editor
    if editor.way not in {"choice", "choices"}:
        assert editor.read(editor.text(right)) == right


def test_arrow_columns_come_back_as_they_are(df: pd.DataFrame) -> None:
    pytest.importorskip("pyarrow")
    engine = lf.testing.FakeEngine({"k": 3, "s": "x", "on": "2024-05-01T10:00:00", "many": ["a"]})
    schema = {"k": int, "s": str, "on": datetime, "many": list[str]}
    out = df.llm.map("{ticket}", schema, model=engine, dtype_backend="pyarrow")
    for name, right in [
        ("k", 4),
        ("s", "y"),
        ("on", datetime(2025, 1, 2)),
        ("many", ["b", "c"]),
    ]:
        review = out.llm.review(name)
        review.correct(right)
        found = review.column()
        assert found.dtype == out[name].dtype
        assert (list(found.iloc[0]) if name == "many" else found.iloc[0]) == right
        assert found.iloc[1:].isna().all()


def test_labels_that_are_numbers_or_mixed_or_several_are_chosen_from(df: pd.DataFrame) -> None:
    whole = df.llm.classify("ticket", [1, 2, 3], model=lf.testing.FakeEngine({"label": 2}))
    review = whole.llm.review("label")
    assert review.editor.options == (1, 2, 3)
    with pytest.raises(ValueError, match="expected one of 1, 2, 3"):
        review.correct(4)
    review.correct(3)
    assert review.column().dtype == "Int64"

    engine = lf.testing.FakeEngine({"label": ["bug"]})
    several = df.llm.classify("ticket", LABELS, multi=True, model=engine)
    review = several.llm.review("label")
    assert (review.editor.way, review.editor.options) == ("choices", tuple(LABELS))
    with pytest.raises(ValueError, match="expected a list of 'billing'"):
        review.correct("bug")
    review.correct([])
    review.correct(["other", "bug"])
    assert review.column().iloc[:2].tolist() == [[], ["bug", "other"]]

    engine = lf.testing.FakeEngine({"label": "0.5"})
    mixed = df.llm.classify("ticket", [0.5, "none"], model=engine)
    review = mixed.llm.review("label")
    review.accept()
    review.correct("none")
    assert review.column().iloc[:2].tolist() == [0.5, "none"]


def test_marks_find_their_rows_in_another_order_and_with_other_labels_none(
    out: pd.DataFrame, tmp_path: Path
) -> None:
    out = pd.concat([out, out.iloc[[1]].assign(ticket="Another crash"), out.iloc[[1]]])
    review = out.llm.review("label", order=None)
    wanted = ["billing", "bug", "other", "bug", "other", "billing", "other"]
    for value in wanted:
        review.correct(value)
    path = review.save(tmp_path / "review.jsonl")
    assert not any(ticket in path.read_text() for ticket in TICKETS)

    # Three rows are called b; two of them hold one text, and keep their order.
    mixed = out.iloc[[6, 4, 5, 3, 1, 0, 2]]
    again = mixed.llm.review("label", order=None)
    assert again.load(path) == 7
    texts = ["bug", "other", "billing", "bug", "other", "billing", "other"]
    assert again.column().tolist() == texts
    assert review.column(mixed).tolist() == texts

    other = mixed.assign(ticket=mixed["ticket"] + "!")
    assert other.llm.review("label", text="ticket").load(path) == 0
    assert review.apply(other)["label_reviewed"].isna().all()


def test_a_path_keeps_each_mark_as_it_is_made(out: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "review.jsonl"
    review = out.llm.review("label", path=path)
    review.accept()
    review.correct("other", reason="No crash.")
    review.skip()
    review.previous()
    review.take_back()
    with path.open("a") as file:
        file.write('{"column": "label", "row": "d", "te')  # the kernel died here

    again = out.llm.review("label", path=path)
    assert again.progress == "2 of 5 reviewed, 1 of them corrected"
    assert again.current.label == "c"
    again.accept()
    again.previous()
    again.previous()
    assert again.current.mark is not None
    assert again.current.mark.reason == "No crash."
    assert out.llm.review("label", path=path).reviewed == 3

    n = out.llm.review("n", text="ticket", path=path)
    assert n.reviewed == 0, "the marks of another column"
    n.accept()
    assert out.llm.review("label", path=path).reviewed == 3

    narrow = out.assign(label=pd.Categorical(["billing"] * 5, ["billing", "bug"]))
    with pytest.warns(UserWarning, match=r"2 answers in .* do not fit column 'label'.*'other'"):
        assert narrow.llm.review("label", text="ticket", path=path).reviewed == 1

    path.write_text('{"rows": 3}\n')
    with pytest.raises(lf.StoreError, match=r"line 1 of .* is no mark of a review"):
        out.llm.review("label", path=path)
    with pytest.raises(lf.StoreError, match="there is no file"):
        review.load(tmp_path / "none.jsonl")


def test_a_frame_brings_the_column_that_an_earlier_review_made(out: pd.DataFrame) -> None:
    review = out.llm.review("label")
    review.correct("bug")
    made = review.apply()
    again = made.llm.review("label")
    assert again.progress == "1 of 5 reviewed, 1 of them corrected"
    again.accept()
    assert again.apply()["label_reviewed"].tolist()[:2] == ["bug", "bug"]
    assert made["label_reviewed"].isna().tolist() == [False] + [True] * 4
    made.loc["f"] = made.loc["a"]  # the frame grows where it stands
    assert again.apply().index.tolist() == list("abcde")
    foreign = out.assign(label_reviewed="mine")
    with pytest.raises(lf.SchemaError, match=r"'label_reviewed' exists and is not of this review"):
        foreign.llm.review("label")
    assert foreign.llm.review("label", into="mine").column().name == "mine"


def test_what_is_shown(df: pd.DataFrame, out: pd.DataFrame) -> None:
    assert out.llm.review("label", text="{n}: {ticket}").current.text == "0: I was charged twice"
    assert out.llm.review("label", text=["n"]).current.text == "n: 0"
    assert out.llm.review("label", text=lambda row: row["ticket"][:5]).current.text == "I was"
    two = df.llm.map("{n} {ticket}", model=lf.testing.FakeEngine("yes"))
    assert two.llm.review("response").current.text == "n: 0\nticket: I was charged twice"
    code = df.llm.map(lambda row: f"<{row['n']}>", model=lf.testing.FakeEngine("yes"))
    assert code.llm.review("response").current.text == "<0>"
    with pytest.raises(lf.PromptError, match=r"no column 'lable'; did you mean 'label'"):
        out.llm.review("lable")
    with pytest.raises(lf.PromptError, match="Pass text="):
        pd.DataFrame(out.to_dict("list")).llm.review("label")
    gaps = out.assign(ticket=out["ticket"].where(out["ticket"] != "It freezes"))
    assert len(gaps.llm.review("label")) == 4, "a row without a text is not looked at"
    nothing = out.iloc[:0].llm.review("label")
    assert nothing.done
    assert nothing.column().dtype == out["label"].dtype
    with pytest.raises(LookupError):
        nothing.accept()


def test_reviewed_rows_are_examples_of_the_next_run(df: pd.DataFrame, out: pd.DataFrame) -> None:
    review = out.llm.review("label")
    with pytest.raises(ValueError, match="no row has been reviewed yet"):
        review.examples()
    for value in ["billing", "bug", "other", "bug"]:
        review.correct(value)
    shots = review.examples()
    # One of each answer first, and of the bugs the one that was corrected.
    assert list(shots["label"]) == ["bug", "billing", "other", "bug"]
    assert list(shots.index) == ["d", "a", "c", "b"]
    assert list(shots.columns) == ["ticket", "label"]
    assert shots["label"].dtype == out["label"].dtype
    assert list(review.examples(2)["label"]) == ["bug", "billing"]

    engine = lf.testing.FakeEngine(answer)
    df.llm.classify("ticket", LABELS, model=engine, examples=shots)
    asked = {r.messages[-1]["content"]: r.messages for r in engine.requests}
    assert len(asked["Text: Thank you!"]) == 1 + 2 * 4 + 1
    own = [m["content"] for m in asked["Text: It freezes"][1:]]
    assert own[:-1:2] == [f"Text: {TICKETS[k]}" for k in (0, 2, 1)], "not the row itself"
    assert [json.loads(reply)["label"] for reply in own[1::2]] == ["billing", "other", "bug"]


def test_examples_of_several_fields_of_reasons_and_of_other_dtypes(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine({"n": 1, "ok": True, "s": "x"})
    two = df.llm.map("{ticket}", {"n": int, "ok": bool, "s": str}, model=engine, into="x")
    review = two.llm.review("x_n")
    review.correct(2)
    review.accept()
    shots = review.examples()
    assert list(shots.columns) == ["ticket", "x_ok", "x_s", "x_n"]
    spy = lf.testing.FakeEngine({"n": 1, "ok": True, "s": "x"})
    df.llm.map("{ticket}", {"n": int, "ok": bool, "s": str}, model=spy, into="x", examples=shots)
    assert json.loads(spy.requests[-1].messages[1]["content"]) == {"n": 2, "ok": True, "s": "x"}

    engine = lf.testing.FakeEngine({"reason": "Because.", "label": "bug"})
    why = df.llm.classify("ticket", LABELS, explain=True, model=engine)
    review = why.llm.review("label")
    assert review.current.reason == "Because."
    review.accept()
    review.correct("other", reason="No fault is told.")
    shots = review.examples()
    assert list(shots["label_reason"]) == ["No fault is told.", "Because."]
    spy = lf.testing.FakeEngine({"reason": "Because.", "label": "bug"})
    df.llm.classify("ticket", LABELS, explain=True, model=spy, examples=shots)
    assert json.loads(spy.requests[-1].messages[2]["content"]) == {
        "reason": "No fault is told.",
        "label": "other",
    }


def test_what_has_no_reason_is_no_example_where_replies_have_one(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine({"reason": "Because.", "label": "bug"})
    why = df.llm.classify("ticket", LABELS, explain=True, model=engine)
    review = why.llm.review("label")
    review.correct("billing")
    with pytest.raises(ValueError, match=r"1 reviewed rows have no reason.*reason=…"):
        review.examples()
    review.accept()
    with pytest.warns(UserWarning, match="1 reviewed rows have no reason"):
        shots = review.examples()
    assert shots["label_reason"].tolist() == ["Because."]
    df.llm.classify("ticket", LABELS, explain=True, model=engine, examples=shots)


@pytest.mark.parametrize("options", [{}, {"explain": False}, {"swap": False, "ties": False}])
def test_reviewed_pairs_are_examples_of_the_next_comparison(options: dict[str, Any]) -> None:
    def longer(prompt: str) -> dict[str, str]:
        first, _, second = prompt.partition("<second>")
        won = "first" if len(first) > len(second) else "second"
        return {"reason": "It says more.", "winner": won}

    pairs = pd.DataFrame({"x": ["1", "22222222" * 9], "y": ["33333333" * 9, "4"]})
    out = pairs.llm.compare("x", "y", "Which?", model=lf.testing.FakeEngine(longer), **options)
    assert out["winner"].tolist() == ["b", "a"]
    review = out.llm.review("winner")
    review.accept()
    review.correct("b", reason="It is shorter.")
    shots = review.examples()
    assert shots["winner"].tolist() == ["b", "b"]
    assert "winner_consistent" not in shots, "no reply holds it"
    spy = lf.testing.FakeEngine(longer)
    new = pd.DataFrame({"x": ["n"], "y": ["m" * 99]})
    new.llm.compare("x", "y", "Which?", model=spy, examples=shots, **options)
    assert len(spy.requests) == (1 if options.get("swap") is False else 2)
    for request in spy.requests:
        shown = [message["content"] for message in request.messages[1:-1]]
        assert [json.loads(reply)["winner"] for reply in shown[1::2]] == ["second", "second"]
        assert [text.index("2222") < text.index("4") for text in shown[:1]] == [True]


def test_reviewed_scores_are_examples_of_the_next_judging() -> None:
    df = pd.DataFrame({"a": ["one", "two"]})
    reply = {"reason": "So.", "tone": 3, "facts": 4}
    rubric = lf.Rubric(criteria=["tone", "facts"])
    out = df.llm.judge(rubric, answer="a", n=2, model=lf.testing.FakeEngine(reply))
    total = out.llm.review("score")
    total.accept()
    with pytest.raises(ValueError, match=r"'score' stands in no reply.*score_tone.*score_facts"):
        total.examples()
    review = out.llm.review("score_tone")
    review.correct(1)
    shots = review.examples()
    assert set(shots.columns) == {"a", "score_tone", "score_facts", "score_reason"}
    spy = lf.testing.FakeEngine(reply)
    df.llm.judge(rubric, answer="a", n=2, model=spy, examples=shots)
    shown = spy.requests[-1].messages[2]["content"]
    assert json.loads(shown) == {"reason": "So.", "tone": 1, "facts": 4}


def test_answers_about_a_series_are_reviewed_beside_it(tmp_path: Path) -> None:
    s = pd.Series([*TICKETS, TICKETS[0]], index=list("abbcdd"), name="ticket")
    out = s.llm.classify(LABELS, model=lf.testing.FakeEngine(answer))
    for wrong in (None, "ticket"):
        with pytest.raises(lf.PromptError, match=r"Pass the Series that was asked.*text=s"):
            out.llm.review(text=wrong)
    with pytest.raises(lf.PromptError, match=r"other index labels than the 6 answers"):
        out.llm.review(text=s.sort_values())
    with pytest.raises(lf.PromptError, match=r"named 'label'.*text=s.rename\('text'\)"):
        out.llm.review(text=s.rename("label"))
    review = out.llm.review(text=s, order=None)
    assert review.current.text == TICKETS[0]
    for value in ["bug", "bug", "other", "bug"]:
        review.correct(value)
    assert review.column().index.equals(s.index)
    made = review.apply()
    assert list(made.columns) == ["ticket", "label", "label_reviewed"]
    assert made["label_reviewed"].isna().tolist() == [False] * 4 + [True] * 2
    assert out.llm.review(text=s).load(review.save(tmp_path / "marks.jsonl")) == 4

    spy = lf.testing.FakeEngine(answer)
    s.llm.classify(LABELS, model=spy, examples=review.examples(2))
    assert spy.requests[-1].messages[1]["content"] == f"Text: {TICKETS[0]}"
    unnamed = s.rename(None)
    again = unnamed.llm.classify(LABELS, model=spy).llm.review(text=unnamed)
    again.accept()
    unnamed.llm.classify(LABELS, model=spy, examples=again.examples())
    assert spy.requests[-1].messages[1]["content"] == f"Text: {TICKETS[0]}"


def test_several_columns_about_a_series(df: pd.DataFrame) -> None:
    def fields(prompt: str) -> Any:
        return "no json" if "freezes" in prompt else {"n": 1, "s": "x"}

    engine = lf.testing.FakeEngine(fields)
    with pytest.warns(lf.RowsFailedWarning):
        out = df["ticket"].llm.map("{}", {"n": int, "s": str}, model=engine, repairs=0)
    with pytest.raises(lf.PromptError, match=r"asked about a Series.*Pass text=, the Series or"):
        out.llm.review("n")
    for frame, text in [(out, df["ticket"]), (out.assign(ticket=df["ticket"]), "ticket")]:
        review = frame.llm.review("n", text=text)
        assert review.current.text == "It freezes"
        assert str(review.current.failure).startswith("invalid_output: ")
        review.next()
        review.correct(2)
        shots = review.examples()
        assert set(shots.columns) == {"ticket", "n", "s"}
        spy = lf.testing.FakeEngine({"n": 1, "s": "x"})
        df["ticket"].llm.map("{}", {"n": int, "s": str}, model=spy, examples=shots)
        assert json.loads(spy.requests[-1].messages[1]["content"]) == {"n": 2, "s": "x"}


def test_labels_of_several_levels_that_repeat(df: pd.DataFrame, tmp_path: Path) -> None:
    df.index = pd.MultiIndex.from_tuples([("a", 1), ("a", 1), ("b", 2), ("b", 2), ("b", 3)])
    out = df.llm.classify("ticket", LABELS, model=lf.testing.FakeEngine(answer))
    review = out.llm.review("label")
    for value in ["bug", "billing", "other"]:
        review.correct(value)
    mixed = out.iloc[::-1]
    assert review.column(mixed).index.equals(mixed.index)
    assert review.column(mixed).tolist()[2:] == ["other", "billing", "bug"]
    again = mixed.llm.review("label")
    assert again.load(review.save(tmp_path / "marks.jsonl")) == 3
    assert again.apply(out)["label_reviewed"].tolist()[:3] == ["bug", "billing", "other"]
    assert review.examples().index.nlevels == 2


def test_contextual_calibration_is_asked_behind_the_same_examples(
    df: pd.DataFrame, out: pd.DataFrame
) -> None:
    review = out.llm.review("label")
    review.accept()
    shots = review.examples()
    for examples in (None, shots):
        engine = lf.testing.FakeEngine(answer, choices=True)
        df.llm.classify("ticket", LABELS, model=engine, examples=examples, calibration="contextual")
        free = [request.messages for request in engine.requests if request.position < 0]
        other = next(r.messages for r in engine.requests if "Thank" in r.messages[-1]["content"])
        assert {said[-1]["content"] for said in free} == {"Text: N/A", "Text: ", "Text: [MASK]"}
        assert len(other) == (2 if examples is None else 4)
        # What the model makes of nothing depends on the examples more than on all else.
        assert all(said[:-1] == other[:-1] for said in free)


def test_a_multiindex_frame(df: pd.DataFrame) -> None:
    wide = pd.concat({"m": df}, axis=1)
    wide.index = pd.MultiIndex.from_product([["i"], df.index], names=["g", "k"])
    out = wide.llm.classify(("m", "ticket"), LABELS, model=lf.testing.FakeEngine(answer))
    review = out.llm.review("label")
    review.correct("bug")
    assert review.apply().iloc[0, -1] == "bug"
    spy = lf.testing.FakeEngine(answer)
    wide.llm.classify(("m", "ticket"), LABELS, model=spy, examples=review.examples())
    assert spy.requests[-1].messages[1]["content"] == "Text: I was charged twice"


def test_without_a_notebook_it_is_text_and_says_what_draws_it(
    out: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.iloc[0, 0] = "<script>alert(1)</script>\x1b[31m" + "x" * 100_000
    review = out.llm.review("label")
    assert "Review of label: 0 of 5 reviewed" in repr(review)
    shown = review._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "\x1b" not in shown
    assert len(shown) < 30_000
    assert "llmframe[notebook]" in shown
    with pytest.raises(RuntimeError, match="draws in a notebook"):
        review.show()
    monkeypatch.setattr("llmframe.reviews.in_kernel", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match=r'pip install "llmframe\[notebook\]"'):
        review.show()


def test_no_warning_comes_of_it(out: pd.DataFrame) -> None:
    with all_warnings() as caught:
        review = out.llm.review("label")
        review.accept()
        review.apply(review.apply())
        review.examples()
    assert not caught


PLACES = {"city": str, "price": float | None, "tags": list[str]}


@pytest.fixture
def places() -> pd.DataFrame:
    """Three answers, two with null for the price, and a row that failed."""
    df = pd.DataFrame({"t": ["Oslo", "Rome for 5", "Bonn", "lost"]})

    def answer(request: Any) -> Any:
        said = next(city for city in df["t"] if city in request.messages[-1]["content"])
        if said == "lost":
            return Failure("refused", "no")
        return {"city": said.split()[0], "price": 5.0 if "5" in said else None, "tags": []}

    engine = lf.testing.FakeEngine(lambda request: answer(request))
    return df.llm.extract("t", PLACES, model=engine, errors="coerce")


def test_null_is_an_answer_that_can_be_accepted_and_entered(places: pd.DataFrame) -> None:
    found = places.llm.review("price", order=None)
    assert (found.current.answer, found.current.null) == (None, True)
    found.accept()
    found.correct(None)  # of Rome: the model made it up
    found.correct(7)
    assert found.progress == "3 of 4 reviewed, 2 of them corrected"
    assert found.current.failure is not None
    with pytest.raises(ValueError, match="has no answer to accept"):
        found.accept()
    found.correct(None)  # and of a row without an answer it is a correction too
    assert found.corrected == 3
    assert found.column().isna().tolist() == [True, True, False, True]
    assert [row.label for _, row in found.marked] == [1, 2, 3, 0]


def test_a_null_is_no_failure_in_the_order(places: pd.DataFrame) -> None:
    assert places.llm.review("price").current.label == 3


def test_rows_with_a_null_are_examples(places: pd.DataFrame) -> None:
    only = places[["t", "price"]].assign(city=places["city"])
    only.attrs = places.attrs
    seen: list[Any] = []
    for column in ("city", "price"):
        found = only.llm.review(column, order=None)
        for _ in range(3):
            found.accept()
        shown = found.examples()
        assert sorted(shown["t"]) == ["Bonn", "Oslo", "Rome for 5"]
        engine = lf.testing.FakeEngine(
            lambda request: seen.append(request.messages) or {"city": "x", "price": None}
        )
        schema = {name: PLACES[name] for name in ("city", "price")}
        pd.DataFrame({"t": ["new"]}).llm.extract("t", schema, examples=shown, model=engine)
        replies = [json.loads(m["content"]) for m in seen[-1] if m["role"] == "assistant"]
        by_city = {reply["city"]: reply["price"] for reply in replies}
        assert by_city == {"Oslo": None, "Bonn": None, "Rome": 5.0}


def test_a_null_is_kept_in_the_file(places: pd.DataFrame, tmp_path: Path) -> None:
    first = places.llm.review("price", order=None, path=tmp_path / "marks.jsonl")
    first.accept()
    again = places.llm.review("price", order=None, path=tmp_path / "marks.jsonl")
    assert (again.reviewed, again.corrected) == (1, 0)


@pytest.mark.parametrize("wrong", ["x", ["a", 1], {"a": 1}, None])
def test_what_the_next_run_could_not_show_is_refused_at_once(
    places: pd.DataFrame, wrong: Any
) -> None:
    found = places.llm.review("tags", order=None)
    with pytest.raises(ValueError, match=r"should be|expected JSON"):
        found.correct(wrong)
    assert found.reviewed == 0
    found.correct(["a", "b"])
    assert found.corrected == 1

"""`lf.audit`: judges with known faults are told them, a fair one is told nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmframe as lf
from llmframe.judges.biases import rank_correlation, share
from llmframe.requests import Request
from tests.servers.looking import all_warnings

BETTER = "Which answer is more helpful?"
RUBRIC = "Is it helpful?"
ROWS = 40


def paired(rows: int = ROWS) -> pd.DataFrame:
    """Pairs of which one is good; the good one is the longer text in every other pair."""
    made = []
    for k in range(rows):
        good, bad = f"good {k}" + " word" * (k % 2 * 3), f"bad {k}" + " word" * ((k + 1) % 2 * 3)
        made.append((good, bad, "a") if k % 4 < 2 else (bad, good, "b"))
    return pd.DataFrame(made, columns=["x", "y", "better"])


def scored(rows: int = ROWS) -> pd.DataFrame:
    """Answers of quality 1 to 5, as long by chance as they are."""
    random = np.random.default_rng(3)
    quality = random.integers(1, 6, rows)
    long = random.integers(1, 40, rows)
    said = [f"q{q} {k}" + "." * n for k, (q, n) in enumerate(zip(quality, long, strict=True))]
    return pd.DataFrame({"said": said, "human": quality})


def places(text: str) -> tuple[str, str]:
    first, second = text.split("<second>")
    return first.split("<first>")[1].split("</first>")[0], second.split("</second>")[0]


def prefers(choose: Any) -> lf.testing.FakeEngine:
    def answer(text: str) -> dict[str, str]:
        first, second = places(text)
        return {"reason": "So.", "winner": "first" if choose(first, second) else "second"}

    return lf.testing.FakeEngine(answer)


def fair(first: str, second: str) -> bool:
    return "good" in first


def answer_of(text: str) -> str:
    return text.split("<answer>\n")[1].split("\n</answer>")[0]


def scores(score: Any) -> lf.testing.FakeEngine:
    """A judge by a function of the answer, and of which vote on it this is."""
    seen: dict[str, int] = {}

    def answer(text: str) -> Any:
        said = answer_of(text)
        seen[text] = seen.get(text, -1) + 1
        return {"reason": "So.", "score": score(said, seen[text])}

    return lf.testing.FakeEngine(answer)


def quality(said: str, vote: int = 0) -> int:
    return int(said[1])


def of(found: Any, check: str) -> float:
    return float(found.table.loc[check, "estimate"])


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_judge_that_goes_by_the_place_is_told_so_with_the_figure(place: str) -> None:
    df = paired()
    engine = prefers(lambda first, second: place == "first")
    found = lf.audit(df, BETTER, a="x", b="y", model=engine)
    assert found.findings == (
        f"it prefers the {place} answer: 40 of 40 pairs (100%) change their winner with the "
        f"order, 100% of these to the {place} place.",
    )
    assert of(found, "inconsistent") == 1
    assert of(found, "first_favoured") == (place == "first")
    assert found.table.loc["inconsistent", "low"] == pytest.approx(0.912, abs=1e-3)
    assert found.notes[0] == found.findings[0]
    with all_warnings():
        out = df.llm.compare("x", "y", BETTER, swap=True, model=engine)
    assert not out["winner_consistent"].any()


def test_a_tie_in_one_order_leans_to_a_place_too() -> None:
    def answer(text: str) -> dict[str, str]:
        return {"winner": "first" if "good" in places(text)[0] else "tie"}

    found = lf.audit(
        paired(), BETTER, a="x", b="y", explain=False, model=lf.testing.FakeEngine(answer)
    )
    assert of(found, "first_favoured") == 1
    assert of(found, "inconsistent") == 1


def test_a_judge_that_prefers_length_is_told_so() -> None:
    engine = prefers(lambda first, second: len(first) > len(second))
    found = lf.audit(paired(), BETTER, a="x", b="y", truth="better", model=engine)
    assert found.findings == (
        "it prefers the longer text: that is its choice in 100% of the 20 pairs that people decide "
        "the other way.",
    )
    assert of(found, "longer_wins") == 1
    assert of(found, "inconsistent") == 0
    found = lf.audit(paired(), BETTER, a="x", b="y", model=engine)
    assert found.findings == (
        "the longer text wins 100% of 40 pairs: it prefers the longer one, or that is the better "
        "one in your rows; truth= tells.",
    )


def test_a_judge_that_guesses_is_told_so() -> None:
    engine = prefers(lambda first, second: sum(map(ord, first + "|" + second)) * 7919 % 13 < 6)
    found = lf.audit(paired(80), BETTER, a="x", b="y", model=engine)
    assert any(text.startswith(("it guesses", "it prefers the")) for text in found.findings)


def test_a_fair_judge_of_pairs_is_told_nothing() -> None:
    found = lf.audit(
        paired(),
        BETTER,
        a="x",
        b="y",
        truth="better",
        again="Which one helps more?",
        model=prefers(fair),
    )
    assert found.findings == ()
    assert "nothing found" in repr(found)
    assert of(found, "inconsistent") == 0
    assert of(found, "longer_wins") == 0.5
    assert math.isnan(of(found, "longer_in_errors"))
    assert of(found, "reworded_alike") == 1
    assert of(found, "unparseable") == 0


def test_other_words_change_the_winner() -> None:
    def answer(request: Request) -> dict[str, str]:
        first, _ = places(request.messages[-1]["content"])
        wanted = "bad" if "Reworded" in request.messages[0]["content"] else "good"
        return {"reason": "So.", "winner": "first" if wanted in first else "second"}

    engine = lf.testing.FakeEngine(answer)
    found = lf.audit(paired(), BETTER, a="x", b="y", again="Reworded.", model=engine)
    assert found.findings == ("other words change what it says of 100% of 40 pairs.",)


def test_scores_by_length_with_and_without_a_truth() -> None:
    df = scored()
    engine = scores(lambda said, vote: min(5, 1 + said.count(".") // 8))
    found = lf.audit(df, RUBRIC, answer="said", model=engine)
    assert found.findings[0].startswith("its scores rise with the length of the answer (corr")
    assert "or these are the better ones" in found.findings[0]
    assert of(found, "length_correlation") > 0.9
    found = lf.audit(df, RUBRIC, answer="said", truth="human", model=engine)
    assert found.findings[0].startswith("it prefers longer answers: among those that people score")
    assert of(found, "length_given_truth") > 0.9


def test_longer_answers_that_are_better_are_no_fault_of_the_judge() -> None:
    random = np.random.default_rng(5)
    mark = random.integers(1, 6, 60)
    more = random.integers(0, 30, 60)
    df = pd.DataFrame({"human": mark})
    df["said"] = [
        f"q{q} {k:02}" + "." * (30 * q + n) for k, (q, n) in enumerate(zip(mark, more, strict=True))
    ]
    slips = iter(random.permutation(60))
    engine = scores(lambda said, vote: min(5, int(said[1]) + int(next(slips) < 20)))
    found = lf.audit(df, RUBRIC, answer="said", truth="human", n=1, model=engine)
    assert of(found, "length_correlation") > 0.8
    assert found.findings == ()


def test_a_fair_judge_of_scores_is_told_nothing() -> None:
    df = scored(60)
    engine = scores(
        lambda said, vote: min(5, quality(said) + (vote == 2 and said.count(".") % 4 == 0))
    )
    found = lf.audit(
        df, RUBRIC, answer="said", truth="human", again="How much does it help?", model=engine
    )
    assert found.findings == ()
    assert 0.7 < of(found, "votes_alike") < 1
    assert 0 < of(found, "spread") < 0.4


def test_votes_that_are_far_apart_are_told() -> None:
    engine = scores(lambda said, vote: (1, 3, 5)[vote % 3])
    found = lf.audit(scored(), RUBRIC, answer="said", model=engine)
    assert found.findings == (
        "it is not sure of its scores: the votes on a row are 2 points apart (standard deviation, "
        "40 rows).",
        "all 40 rows get the same score, 3: it does not tell them apart, or they are all alike; "
        "truth= tells.",  # their median
    )
    assert of(found, "votes_alike") == 0
    assert of(found, "spread") == 2


def test_votes_of_pass_and_fail_that_contradict_each_other_are_told() -> None:
    engine = scores(lambda said, vote: vote % 2 == 0)
    found = lf.audit(scored(), RUBRIC, answer="said", scale="binary", n=2, model=engine)
    told = "it contradicts itself: 100% of two votes on one row differ (40 rows)."
    assert found.findings[0] == told


def test_labels_are_ranked_by_their_place_on_the_scale() -> None:
    df = scored()
    scale = ["poor", "fair", "good", "great", "perfect"]
    df["human"] = [scale[q - 1] for q in df["human"]]
    engine = scores(lambda said, vote: scale[min(4, said.count(".") // 8)])
    found = lf.audit(df, RUBRIC, answer="said", scale=scale, truth="human", n=1, model=engine)
    assert found.findings[0].startswith("it prefers longer answers")
    df.loc[3, "human"] = "superb"
    with pytest.raises(lf.SchemaError, match="superb"):
        lf.audit(df, RUBRIC, answer="said", scale=scale, truth="human", n=1, model=engine)


def test_other_words_that_change_scores_are_told_from_the_votes_noise() -> None:
    def engine(shift: int) -> lf.testing.FakeEngine:
        count: dict[str, int] = {}

        def answer(request: Request) -> dict[str, Any]:
            text = str(request.messages[-1]["content"])
            told = str(request.messages)
            count[told] = count.get(told, -1) + 1
            score = quality(answer_of(text)) + count[told] % 2
            score += shift * ("Reworded" in told)
            return {"reason": "So.", "score": max(1, min(10, score))}

        return lf.testing.FakeEngine(answer)

    def audited(shift: int) -> Any:
        return lf.audit(
            scored(),
            RUBRIC,
            answer="said",
            again="Reworded.",
            n=2,
            scale=(1, 10),
            model=engine(shift),
        )

    assert audited(0).findings == ()
    assert of(audited(0), "reworded_alike") == 0.5
    found = audited(2)
    assert found.findings == (
        "other words make its scores higher, by 2 points on the mean of 40 rows.",
    )
    assert of(found, "reworded_shift") == 2


def test_replies_that_are_no_score_are_counted_and_silent_ones_are_not() -> None:
    def answer(text: str) -> Any:
        said = answer_of(text)
        if said.startswith("q1"):
            return "I would rather not say."
        return {"reason": "So.", "score": quality(said)}

    df = scored()
    bad = int((df["human"] == 1).sum())
    assert bad
    with all_warnings() as seen:
        found = lf.audit(
            df, RUBRIC, answer="said", n=1, repairs=0, model=lf.testing.FakeEngine(answer)
        )
    assert not seen  # the report says it
    assert found.findings == (f"{bad / 40:.1%} of its replies are no score ({bad} of 40).",)
    assert found.table.loc["unparseable", "n"] == 40
    assert found.table.loc["length_correlation", "n"] == 40 - bad


@pytest.mark.parametrize(
    ("scale", "mark", "told"),
    [((1, 5), 3, "3"), ("binary", True, "True"), (["poor", "good"], "good", "'good'")],
)
def test_a_judge_that_gives_every_row_the_same_score_is_told_so(
    scale: Any, mark: Any, told: str
) -> None:
    engine = scores(lambda said, vote: mark)
    found = lf.audit(scored(), RUBRIC, answer="said", scale=scale, model=engine)
    assert found.findings == (
        f"all 40 rows get the same score, {told}: it does not tell them apart, or they are all "
        "alike; truth= tells.",
    )
    assert of(found, "same_score") == 1
    assert found.table.loc["same_score", "low"] == pytest.approx(0.912, abs=1e-3)


def test_people_tell_a_judge_that_makes_no_difference_from_rows_that_have_none() -> None:
    engine = scores(lambda said, vote: 3)
    given: Any = {"answer": "said", "truth": "human", "model": engine, "n": 1}
    found = lf.audit(scored(), RUBRIC, **given)
    assert found.findings == (
        "all 40 rows get the same score, 3, where people give different ones: it does not tell "
        "them apart.",
    )
    found = lf.audit(scored().assign(human=4), RUBRIC, **given)
    assert found.findings == ()
    assert "people make no difference either" in found.notes[0]
    found = lf.audit(scored(5), RUBRIC, **given)
    assert found.findings == ()
    assert found.notes[0].startswith("all 5 rows get the same score, 3: too few")


def test_a_judge_that_calls_every_pair_a_tie_is_told_so() -> None:
    engine = lf.testing.FakeEngine({"reason": "So.", "winner": "tie"})
    found = lf.audit(paired(), BETTER, a="x", b="y", model=engine)
    assert found.findings == (
        "all 40 pairs are called a tie: it does not tell them apart, or they are all alike; truth= "
        "tells.",
    )
    assert of(found, "ties") == 1
    df = paired()
    df.loc[:9, "better"] = "tie"
    found = lf.audit(df, BETTER, a="x", b="y", truth="better", model=engine)
    assert found.findings == (
        "all 40 pairs are called a tie, where people name a winner for 30 of them: it does not "
        "tell them apart.",
    )


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6])
def test_few_pairs_do_not_acquit_a_judge_of_a_liking_for_a_place(rows: int) -> None:
    engine = prefers(lambda first, second: True)
    found = lf.audit(paired(rows), BETTER, a="x", b="y", model=engine)
    assert found.findings == (
        f"it guesses, or goes by the place: {rows} of {rows} pairs (100%) change their winner with "
        f"the order, 100% of these to the first place; {rows} pairs cannot tell which.",
    )
    assert found.notes[-1] == f"{rows} pairs show only what is glaring: audit more of them."


def test_one_row_shows_little_and_none_shows_nothing() -> None:
    found = lf.audit(paired(1), BETTER, a="x", b="y", model=prefers(fair))
    assert found.notes[-1] == "1 pair shows only what is glaring: audit more of them."
    junk = lf.testing.FakeEngine("I would rather not say.")
    with all_warnings() as seen:
        found = lf.audit(scored(3), RUBRIC, answer="said", repairs=0, model=junk)
        both = lf.audit(paired(3), BETTER, a="x", b="y", repairs=0, model=junk)
        none = lf.audit(scored(0), RUBRIC, answer="said", truth="human", model=junk)
    assert not seen
    assert found.findings == ("100.0% of its replies are no score (9 of 9).",)
    assert found.notes[-1] == "no row was judged, so nothing is known of the judge."
    assert both.notes[-1] == "no pair was judged, so nothing is known of the judge."
    assert "on 0 rows: nothing known" in repr(none)


def test_an_audit_goes_on_where_it_stopped_and_pays_nothing_that_the_verb_has_paid() -> None:
    df = paired()
    engine = prefers(fair)
    before = lf.audit(df, BETTER, a="x", b="y", again="Or so?", model=engine, plan=True)
    assert before.requests == 160
    assert "rubric" in repr(before)
    assert "again" in repr(before)
    assert "160 requests" in before._repr_html_()
    df.llm.compare("x", "y", BETTER, model=engine)
    half = lf.audit(df, BETTER, a="x", b="y", again="Or so?", model=engine, plan=True)
    assert [plan.requests for plan in half.plans.values()] == [0, 80]
    lf.audit(df, BETTER, a="x", b="y", again="Or so?", model=engine)
    done = lf.audit(df, BETTER, a="x", b="y", again="Or so?", model=engine, plan=True)
    assert (done.requests, done.cost) == (0, 0.0)


def test_columns_of_an_earlier_judgement_do_not_stand_in_the_way() -> None:
    df = scored(5)
    engine = scores(quality)
    df["score"] = 3  # the user's own
    found = lf.audit(df, RUBRIC, answer="said", n=1, model=engine)
    assert len(found.table)
    assert df["score"].tolist() == [3] * 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "answer= for a judge that scores, or a= and b="),
        ({"a": "said"}, "both a= and b="),
        ({"a": "said", "b": "said", "answer": "said"}, "or answer=, not both"),
        ({"a": "said", "b": "said", "n": 3}, "or n=, not both"),
        ({"answer": "said", "into": "x"}, "takes no into="),
        ({"a": "said", "b": "said", "swap": False}, "takes no swap="),
        ({"answer": "said", "expected": True}, "takes no expected="),
        ({"answer": "said", "temprature": 1}, "did you mean 'temperature'"),
    ],
)
def test_what_does_not_belong_together_is_said_before_anything_is_sent(
    given: dict[str, Any], said: str
) -> None:
    asked: list[str] = []
    engine = lf.testing.FakeEngine(asked.append)
    with pytest.raises(TypeError, match=said):
        lf.audit(scored(3), RUBRIC, model=engine, **given)
    assert not asked


def test_a_truth_that_is_no_winner_is_refused() -> None:
    df = paired(3)
    df.loc[1, "better"] = "x"
    with pytest.raises(lf.SchemaError, match="'better' holds 'x'"):
        lf.audit(df, BETTER, a="x", b="y", truth="better", model=lf.testing.FakeEngine())


def test_the_report_is_a_table_a_page_and_a_picture() -> None:
    found = lf.audit(scored(), RUBRIC, answer="said", model=scores(quality))
    assert list(found.table.columns) == ["estimate", "low", "high", "fair", "n", "of"]
    page = found._repr_html_()
    assert "votes_alike" in page
    assert "<script" not in page
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = found.plot()
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert "votes_alike" in names
    assert "spread" not in names


def test_shares_and_rank_correlations_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    parts = [1.0] * 13 + [0.0] * 27
    low, high = stats.binomtest(13, 40).proportion_ci(0.9, method="wilson")
    assert share(parts, 0.9) == pytest.approx((13 / 40, low, high))
    random = np.random.default_rng(1)
    x, z = random.normal(size=(2, 50)).round(1)
    y = x + random.normal(size=50).round(1)
    assert rank_correlation(x, y, 0.95).estimate == pytest.approx(stats.spearmanr(x, y)[0])
    xy, xz, yz = (stats.spearmanr(one, two)[0] for one, two in ((x, y), (x, z), (y, z)))
    partial = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert rank_correlation(x, y, 0.95, z).estimate == pytest.approx(partial)
    assert math.isnan(rank_correlation(x, np.ones(50), 0.95).estimate)
    assert math.isnan(rank_correlation(x, y, 0.95, x).estimate)


def test_intervals_of_rank_correlations_hold_the_truth() -> None:
    # Of two normal variables of correlation r, Spearman's is 6/pi * asin(r/2) (Pearson 1907).
    random = np.random.default_rng(2)
    truth = 6 / math.pi * math.asin(0.25)
    held = 0
    for _ in range(500):
        x, noise = random.normal(size=(2, 40))
        found = rank_correlation(x, 0.5 * x + math.sqrt(0.75) * noise, 0.95)
        held += found.low <= truth <= found.high
    assert held / 500 >= 0.93

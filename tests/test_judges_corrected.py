"""The corrected estimate: other implementations, published examples, coverage, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import llmframe as lf
from llmframe.judges.means import prediction_powered, rogan_gladen

# What ppi-python 0.2.3 gives where it is named below. It is not imported: it silences every warning
# of the process that does.
PPI_PYTHON = (2.74287757, 3.45712243)
PPI_PYTHON_TUNED = (3.11291446, 3.25822418)


def scores(seed: int, n: int, rows: int = 1000) -> pd.DataFrame:
    """Scores of a judge that is half a point too kind, and n labels drawn at random."""
    random = np.random.default_rng(seed)
    truth = np.clip(np.round(random.normal(3.2, 1.1, rows)), 1, 5)
    judge = np.clip(np.round(0.7 * truth + 1.5 + random.normal(0, 0.6, rows)), 1, 5)
    truth[random.permutation(rows)[n:]] = np.nan
    return pd.DataFrame({"score": judge, "human": truth})


def passes(seed: int, n: int, rate: float, right: float, rows: int = 1000) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    truth = random.random(rows) < rate
    judge = np.where(random.random(rows) < right, truth, ~truth)
    human = pd.array(truth, dtype="boolean")
    human[random.permutation(rows)[n:]] = pd.NA
    return pd.DataFrame({"score": judge, "human": human})


def test_plain_ppi_is_that_of_the_paper() -> None:
    # ppi-python 0.2.3: ppi_mean_ci(Y, Yhat, Yhat_unlabeled, alpha=0.05, lam=1), on these numbers.
    truth = np.array([4.0, 2, 5, 3, 1, 4, 2, 5, 3, 3])
    judge = np.array([5.0, 2, 5, 4, 2, 4, 3, 5, 3, 4])
    others = np.tile([4.0, 5, 3, 2, 4, 5, 3, 4, 1, 5], 20)
    low, high = PPI_PYTHON
    labelled = np.arange(210) < 10
    mean, weight = prediction_powered(
        np.append(judge, others),
        np.append(truth, np.full(200, np.nan)),
        labelled,
        np.arange(210),
        0.95,
        weight=1.0,
    )
    assert weight == 1
    assert mean.estimate == pytest.approx((low + high) / 2)
    # Theirs divides by n and takes the normal distribution: too narrow for ten labels.
    error = (mean.high - mean.low) / 2 / scipy.stats.t.ppf(0.975, 9) * np.sqrt(9 / 10)
    assert error == pytest.approx((high - low) / 2 / scipy.stats.norm.ppf(0.975))


def test_power_tuning_is_near_that_of_the_paper() -> None:
    # ppi-python 0.2.3: ppi_mean_ci on the same 400 labels and 4,600 other rows, lam=None.
    out = scores(0, n=400, rows=5000)
    found = lf.corrected(out, "score", "human")
    low, high = PPI_PYTHON_TUNED
    # Its slope has another denominator, which moves the estimate by a part of its error.
    assert found.estimate == pytest.approx((low + high) / 2, abs=(high - low) / 8)
    assert found.high - found.low == pytest.approx(high - low, rel=0.03)


def test_rogan_gladen_of_a_textbook() -> None:
    # epiR, help of epi.prev: 23 of 150 cows positive, sensitivity 96 %, specificity 89 %; the true
    # prevalence is 5.1 % (Rogan & Gladen 1978).
    mean = rogan_gladen(23, 150, 96, 100, 89, 100, 0.95)
    assert mean.estimate == pytest.approx(0.051, abs=5e-4)
    # And 6 of 151 at 96.4 % and 92.7 %: below the rate of false positives, so 0.
    assert rogan_gladen(6, 151, 964, 1000, 927, 1000, 0.95).estimate == 0


def test_rogan_gladen_without_errors_is_the_interval_of_agresti_and_coull() -> None:
    mean = rogan_gladen(30, 100, 10**9, 10**9, 10**9, 10**9, 0.95)
    z = scipy.stats.norm.ppf(0.975)
    middle = (30 + z**2 / 2) / (100 + z**2)
    half = z * np.sqrt(middle * (1 - middle) / (100 + z**2))
    assert mean == pytest.approx((0.3, middle - half, middle + half), abs=1e-6)


def test_a_kind_judge_is_put_right() -> None:
    found = lf.corrected(scores(0, n=100), "score", "human")
    naive = found.table.loc["naive"]
    assert naive["low"] > 3.5  # certain, and half a point off
    assert found.low < 3.2 < found.high
    assert found.table.loc["ppi", ["estimate", "low", "high"]].tolist() == [
        *(found.estimate, found.low, found.high)
    ]
    widths = found.table["high"] - found.table["low"]
    assert widths["ppi"] < 0.8 * widths["human_only"]
    assert found.table["n"].tolist() == [1000, 100, 1000]
    assert any("are worth" in note for note in found.notes)


def test_a_judge_that_knows_everything_leaves_the_noise_of_the_rows() -> None:
    out = scores(0, n=50)
    out["score"] = out["human"].fillna(out["score"])
    found = lf.corrected(out, "score", "human")
    assert found.estimate == pytest.approx(out["score"].mean())
    assert found.weight == pytest.approx(950 / 1000)


def test_a_judge_on_another_scale_is_no_worse() -> None:
    out = scores(0, n=100)
    plain = lf.corrected(out, "score", "human")
    other = lf.corrected(out.assign(score=out["score"] * -20 + 100), "score", "human")
    assert [other.estimate, other.low, other.high] == pytest.approx(
        [plain.estimate, plain.low, plain.high]
    )


def test_a_useless_judge_costs_nearly_nothing() -> None:
    out = scores(0, n=200)
    out["score"] = np.random.default_rng(1).permutation(out["score"].to_numpy())
    table = lf.corrected(out, "score", "human").table
    widths = table["high"] - table["low"]
    assert widths["ppi"] == pytest.approx(widths["human_only"], rel=0.03)
    constant = lf.corrected(out.assign(score=3), "score", "human")
    assert constant.estimate == pytest.approx(out["human"].mean())
    assert constant.weight == 0
    assert "the judge says the same of every labelled row, so it adds nothing." in constant.notes


@pytest.mark.parametrize("judge", ["constant", "unrelated"])
def test_a_judge_beside_labels_that_are_all_alike_is_worth_nothing_known(judge: str) -> None:
    says = np.arange(1000) % 2 == 0 if judge == "unrelated" else np.ones(1000, bool)
    human = pd.Series(np.ones(1000, bool)).where(np.arange(1000) < 200)
    found = lf.corrected(pd.DataFrame({"score": says, "human": human}), "score", "human")
    assert not any("are worth" in note for note in found.notes), found.notes


def test_scales_that_differ_are_told() -> None:
    out = scores(0, n=100)
    assert not any("scales" in note for note in lf.corrected(out, "score", "human").notes)
    found = lf.corrected(out.assign(human=out["human"] * 20), "score", "human")
    assert "on different scales the naive mean says nothing" in found.notes[-1]


def test_a_pass_rate_of_clusters_stays_one() -> None:
    out = pd.DataFrame({"score": [True] * 60, "human": [True] * 25 + [False] * 5 + [None] * 30})
    out["g"] = [0] * 25 + [1] * 5 + [2] * 30
    table = lf.corrected(out, "score", "human", cluster="g").table
    assert (table[["low", "high"]].stack().between(0, 1)).all()


def test_labels_without_an_error_are_not_certainty() -> None:
    out = passes(0, n=40, rate=0.9, right=1.0)
    found = lf.corrected(out, "score", "human")
    naive = found.table.loc["naive"]
    # 40 right of 40 leave room for a judge that errs in 7 of 100 (the rule of three).
    assert found.high - found.low > 2 * (naive["high"] - naive["low"])
    assert found.low <= found.estimate <= found.high <= 1


def test_labels_drawn_by_class_need_rogan_gladen() -> None:
    random = np.random.default_rng(0)
    truth = random.random(4000) < 0.1
    judge = np.where(random.random(4000) < 0.9, truth, ~truth)
    picked = np.concatenate([np.flatnonzero(truth)[:150], np.flatnonzero(~truth)[:150]])
    out = pd.DataFrame({"score": judge, "human": pd.array([pd.NA] * 4000, dtype="boolean")})
    out.loc[picked, "human"] = truth[picked]
    found = lf.corrected(out, "score", "human", method="rogan_gladen")
    assert found.low < 0.1 < found.high
    assert found.high < 0.2
    assert lf.corrected(out, "score", "human").low > 0.2  # as the docstring warns


def test_rows_that_could_not_be_judged_are_said() -> None:
    out = scores(0, n=100).astype({"score": "Int64", "human": "Int64"})
    out.loc[:9, "score"] = pd.NA
    found = lf.corrected(out, "score", "human")
    assert found.table.loc["ppi", "n"] == 990
    assert found.notes[0].startswith("10 rows without 'score' left out (")


def test_every_row_labelled_is_the_humans_mean() -> None:
    out = scores(0, n=1000)
    found = lf.corrected(out, "score", "human")
    assert found.table.loc["ppi"].tolist() == found.table.loc["human_only"].tolist()
    assert "the judge adds nothing" in found.notes[0]


@pytest.mark.parametrize(
    ("score", "human", "keywords", "said"),
    [
        (["good"] * 5, [1, 2, 3, 4, 5], {}, "'score' holds 'good': expected numbers or booleans"),
        ([1, 2, 3, 4, 5], ["yes"] * 5, {}, "make a boolean column: out['human'] == 'yes'"),
        ([1, 2, 3, 4, 5], [1, 2, None, None, None], {}, "2 rows with both 'score' and 'human'"),
        ([1, 2, 3, 4, 5], [1, 2, 3, None, None], {"method": "rogan_gladen"}, "is for yes or no"),
        ([1, 2, 3, 4, 5], [1, 2, 3, None, None], {"method": "magic"}, "method='magic'"),
        ([1, 2, 3, 4, 5], [1, 2, 3, None, None], {"confidence": 2}, "confidence=2"),
        ([1, 2, 3, 4, 5], [1, 2, 3, None, None], {"weight": "x"}, "weight='x': expected None"),
        ([1, 2, 3, 4, 5], [1, 2, 3, None, None], {"weight": float("nan")}, "weight=nan"),
    ],
)
def test_what_cannot_be_corrected_is_refused(
    score: Any, human: Any, keywords: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked below
        lf.corrected(pd.DataFrame({"score": score, "human": human}), "score", "human", **keywords)
    assert said in str(caught.value)


def test_a_judge_worse_than_a_coin_has_no_rogan_gladen_estimate() -> None:
    out = passes(0, n=100, rate=0.5, right=0.3)
    found = lf.corrected(out, "score", "human", method="rogan_gladen")
    assert np.isnan(found.estimate)
    assert any("than a coin" in note for note in found.notes)
    assert "NA" in repr(found)


def test_rows_of_one_conversation_are_one_observation() -> None:
    out = scores(0, n=1000, rows=400)
    out.loc[out.index >= 100, "human"] = np.nan
    copies = pd.concat([out] * 4, ignore_index=True)
    copies["g"] = list(range(400)) * 4

    def width(found: Any) -> float:
        return float(found.high - found.low)

    alone = width(lf.corrected(out, "score", "human"))
    assert width(lf.corrected(copies, "score", "human", cluster="g")) == pytest.approx(alone)
    assert width(lf.corrected(copies, "score", "human")) == pytest.approx(alone / 2, rel=0.02)


def test_how_many_labels_gives_the_width_that_was_asked_for() -> None:
    pilot = scores(0, n=300, rows=4000)
    needed = lf.how_many_labels(0.25, pilot, "score", "human")
    widths = []
    for seed in range(20):
        found = lf.corrected(scores(seed, n=needed.labels, rows=4000), "score", "human")
        widths.append(found.high - found.low)
    assert np.mean(widths) == pytest.approx(0.25, rel=0.05)
    assert needed.human_only > 1.5 * needed.labels


def test_how_many_labels_follows_the_judge() -> None:
    def needed(correlation: float) -> int:
        return lf.how_many_labels(0.1, sd=0.5, correlation=correlation, rows=10**6).labels

    assert needed(0.0) == lf.how_many_labels(0.1, sd=0.5, correlation=0, rows=10**6).human_only
    # With endless judged rows the share 1 - correlation² is left.
    assert needed(0.9) / needed(0.0) == pytest.approx(0.19, abs=0.01)
    assert needed(-0.9) == needed(0.9)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({}, "give a pilot"),
        ({"sd": 0.5, "correlation": 0.5}, "give a pilot"),
        ({"sd": 0.5, "correlation": 1.5, "rows": 100}, "correlation=1.5"),
        ({"sd": 0.5, "correlation": 0.5, "rows": 50}, "all 50 rows labelled give 0.284"),
        ({"sd": 0.5, "correlation": 0.5, "rows": "x"}, "rows='x'"),
        ({"sd": 0.5, "correlation": 0.5, "rows": float("inf")}, "rows=inf"),
        ({"sd": 0.5, "correlation": pd.NA, "rows": 100}, "correlation=<NA>"),
    ],
)
def test_how_many_labels_says_what_is_missing(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked below
        lf.how_many_labels(0.1, **keywords)
    assert said in str(caught.value)


def test_a_pilot_whose_labels_are_all_alike_says_nothing() -> None:
    pilot = pd.DataFrame({"score": [True, False] * 20, "human": [True] * 10 + [None] * 30})
    with pytest.raises(lf.SchemaError, match="10 labels of the pilot are all alike"):
        lf.how_many_labels(0.1, pilot, "score", "human")


def test_plot_shows_the_three_estimates() -> None:
    pytest.importorskip("matplotlib").use("agg")
    axes = lf.corrected(scores(0, n=100), "score", "human").plot()
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["naive", "human_only", "ppi"]


@pytest.mark.parametrize("n", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_intervals_of_scores_hold_what_they_promise(n: int) -> None:
    grid = scipy.stats.norm.cdf((np.arange(1.5, 5) - 3.2) / 1.1)
    mean = 5 - grid.sum()  # of scores that are cut at the half points
    held = np.array(
        [_holds(lf.corrected(scores(s, n), "score", "human"), mean) for s in range(500)]
    )
    assert held[:, 0].mean() < 0.05  # the judge alone
    assert held[:, 1].mean() >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppi", "rogan_gladen"])
@pytest.mark.parametrize(("rate", "right", "n"), [(0.9, 0.95, 50), (0.7, 0.9, 100)])
def test_intervals_of_rates_hold_what_they_promise(
    method: Any, rate: float, right: float, n: int
) -> None:
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(500):
            found = lf.corrected(passes(seed, n, rate, right), "score", "human", method=method)
            if not np.isnan(found.estimate):
                held.append(found.low <= rate <= found.high)
    assert np.mean(held) >= 0.93
    assert len(held) >= 480


def _holds(found: Any, mean: float) -> tuple[bool, bool]:
    naive = found.table.loc["naive"]
    return naive["low"] <= mean <= naive["high"], found.low <= mean <= found.high

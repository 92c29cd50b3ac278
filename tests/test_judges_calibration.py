"""Calibration: figures by hand and by scikit-learn, thresholds, columns as classify gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

import llmframe as lf


def labelled(seed: int, n: int, sharpen: float = 1.0) -> pd.DataFrame:
    """Labels that are right as often as `chance` says; the confidence says `chance ** (1 / s)`."""
    random = np.random.default_rng(seed)
    chance = random.uniform(0.4, 1.0, n)
    truth = random.choice(["spam", "ham"], n)
    wrong = np.where(truth == "spam", "ham", "spam")
    label = np.where(random.random(n) < chance, truth, wrong)
    return pd.DataFrame(
        {"label": label, "truth": truth, "label_confidence": chance ** (1 / sharpen)}
    )


def test_figures_by_hand() -> None:
    out = pd.DataFrame(
        {
            "label": pd.Categorical(["x", "x", "y", "y", "x"]),
            "truth": ["x", "y", "y", "x", None],
            "label_confidence": pd.array([0.9, 0.8, 0.3, 0.1, 0.7], dtype="Float64"),
        }
    )
    found = lf.calibration(out, "label", "truth", bins=2)
    assert found.table["n"].tolist() == [2, 2]
    assert found.table["confidence"].tolist() == pytest.approx([0.2, 0.85])
    assert found.table["accuracy"].tolist() == [0.5, 0.5]
    assert found.ece == pytest.approx((0.3 + 0.35) / 2)
    assert found.brier == pytest.approx((0.01 + 0.64 + 0.49 + 0.01) / 4)
    assert (found.accuracy, found.n) == (0.5, 4)
    assert found.notes[0] == "1 row left out: label, truth or confidence is missing."


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_scikit_learn(seed: int) -> None:
    out = labelled(seed, 500, sharpen=2)
    found = lf.calibration(out, "label", "truth")
    right = (out["label"] == out["truth"]).to_numpy()
    accuracy, confidence = calibration_curve(right, out["label_confidence"], n_bins=10)
    given = found.table[found.table["n"] > 0]
    assert given["accuracy"].tolist() == pytest.approx(accuracy.tolist())
    assert given["confidence"].tolist() == pytest.approx(confidence.tolist())
    assert found.brier == pytest.approx(brier_score_loss(right, out["label_confidence"]))


def test_a_model_that_is_too_sure_is_found_out() -> None:
    honest, sure = (lf.calibration(labelled(0, 4000, s), "label", "truth") for s in (1.0, 4.0))
    assert honest.ece < 0.03
    assert sure.ece == pytest.approx(sure.confidence - sure.accuracy, abs=0.01)
    assert sure.confidence > sure.accuracy + 0.15
    assert sure.brier > honest.brier


def test_a_confidence_on_an_edge_is_in_the_bin_below() -> None:
    out = pd.DataFrame({"label": list("xxxx"), "truth": list("xxxx")})
    out["label_confidence"] = [0.0, 0.5, 0.5000001, 1.0]
    assert lf.calibration(out, "label", "truth", bins=2).table["n"].tolist() == [2, 2]


def test_threshold_takes_as_many_rows_as_it_can() -> None:
    out = labelled(0, 4000)
    found = lf.calibration(out, "label", "truth")
    for wanted in (0.8, 0.9, 0.95):
        cut = found.threshold(wanted)
        taken = out["label_confidence"] >= cut.threshold
        right = out["label"] == out["truth"]
        assert (cut.n, cut.coverage) == (taken.sum(), pytest.approx(taken.mean()))
        assert cut.precision == pytest.approx(right[taken].mean())
        assert cut.precision >= wanted
        less = out["label_confidence"].sort_values(ascending=False).iloc[taken.sum()]
        assert right[out["label_confidence"] >= less].mean() < wanted


def test_threshold_of_rows_with_one_confidence_takes_them_together() -> None:
    out = pd.DataFrame({"label": list("xxxx"), "truth": list("xxyx")})
    out["label_confidence"] = [0.9, 0.8, 0.8, 0.8]
    cut = lf.calibration(out, "label", "truth").threshold(0.9)
    assert (cut.threshold, cut.n) == (0.9, 1)
    assert cut.note == "1 row cannot tell 90% from 21%: label more rows before relying on it."


def test_a_precision_that_is_out_of_reach_is_said() -> None:
    out = pd.DataFrame({"label": list("xx"), "truth": list("xy"), "label_confidence": [0.5, 0.9]})
    cut = lf.calibration(out, "label", "truth").threshold(0.99)
    assert np.isnan(cut.threshold)
    assert (cut.coverage, cut.n) == (0.0, 0)
    assert cut.note == "no confidence reaches 99%; the best is 50.0%."


def test_few_rows_are_said() -> None:
    few, many = (lf.calibration(labelled(0, n), "label", "truth") for n in (50, 500))
    assert "so few" in few.notes[0]
    assert not many.notes


@pytest.mark.parametrize(
    ("columns", "keywords", "said"),
    [
        ({"label_confidence": [0.5, 87.0]}, {}, "'label_confidence' holds 87: expected shares"),
        ({"label_confidence": ["hi", "lo"]}, {}, "'label_confidence' holds 'hi': expected numbers"),
        ({"label_confidence": [None, None]}, {}, "no row has a label, a truth and a confidence"),
        ({}, {}, "no column 'label_confidence'"),
        ({"p": [0.5, 0.5]}, {"confidence": "p", "bins": 0}, "bins=0: expected a whole number"),
    ],
)
def test_what_is_no_confidence_is_refused(
    columns: dict[str, Any], keywords: dict[str, Any], said: str
) -> None:
    out = pd.DataFrame({"label": ["x", "y"], "truth": ["x", "x"], **columns})
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked below
        lf.calibration(out, "label", "truth", **keywords)
    assert said in str(caught.value)


def test_what_classify_gives_is_taken_as_it_is() -> None:
    out = labelled(0, 100).rename(
        columns={"label": "topic", "label_confidence": "topic_confidence"}
    )
    out["topic"] = pd.Categorical(out["topic"], ["spam", "ham", "none"])
    found = lf.calibration(out, "topic", "truth")
    assert found.n == 100
    assert "ECE" in repr(found).splitlines()[0]
    assert "&lt;" not in found._repr_html_()


def test_plot_is_the_reliability_diagram() -> None:
    pytest.importorskip("matplotlib").use("agg")
    found = lf.calibration(labelled(0, 500), "label", "truth")
    axes = found.plot()
    line = axes.get_lines()[1]
    given = found.table[found.table["n"] > 0]
    assert line.get_ydata().tolist() == given["accuracy"].tolist()
    assert line.get_xdata().tolist() == given["confidence"].tolist()


def test_labels_that_never_meet_are_told() -> None:
    out = pd.DataFrame({"label": ["x", "y"] * 20, "truth": ["X", "Y"] * 20})
    out["label_confidence"] = 0.9
    notes = lf.calibration(out, "label", "truth").notes
    assert "'X' and 'x' count as different labels" in notes[0]
    assert "no value of 'truth' occurs in 'label' at all." in notes
    one = lf.calibration(out.assign(truth="x"), "label", "truth").notes
    assert not any("occurs in" in note for note in one)


@pytest.mark.parametrize("bins", [0, 2.5, True, "x"])
def test_bins_are_a_whole_number(bins: Any) -> None:
    out = pd.DataFrame({"label": ["x"], "truth": ["x"], "label_confidence": [0.9]})
    with pytest.raises(ValueError, match="expected a whole number"):
        lf.calibration(out, "label", "truth", bins=bins)


@pytest.mark.parametrize("precision", [0, 2, "x", None])
def test_a_precision_is_a_share(precision: Any) -> None:
    out = pd.DataFrame({"label": ["x"], "truth": ["x"], "label_confidence": [0.9]})
    with pytest.raises(ValueError, match="expected a share"):
        lf.calibration(out, "label", "truth").threshold(precision)

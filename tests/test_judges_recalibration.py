"""What a confidence is worth: fits against scikit-learn, on new rows, and in `classify`."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import llmframe as lf
from llmframe.calls import call_from
from llmframe.judges import curves
from llmframe.label_scores import fitted_from, log_odds
from tests.servers.looking import all_warnings
from tests.test_judges_calibration import labelled

LABELS = ["ham", "spam"]


def biased(seed: int, n: int) -> pd.DataFrame:
    """Texts that hold the log-odds a model gives for spam: far too high, by the same for all."""
    random = np.random.default_rng(seed)
    truth = random.random(n) < 0.2
    odds = np.where(truth, 2.0, -2.0) + random.normal(0, 1.2, n)
    texts = [f"{k} odds={said:.4f}" for k, said in enumerate(odds / 2 + 3.0)]
    return pd.DataFrame({"t": texts, "truth": np.where(truth, "spam", "ham")})


def model(asked: list[str] | None = None) -> lf.testing.FakeEngine:
    def answer(text: str) -> dict[str, float]:
        if asked is not None:
            asked.append(text)
        spam = 1 / (1 + np.exp(-float(text.rpartition("odds=")[2].split()[0])))
        return {"ham": 1 - spam, "spam": spam}

    return lf.testing.FakeEngine(answer, choices=True, model="biased")


def arrays(out: pd.DataFrame) -> tuple[Any, Any, Any]:
    right = (out["label"] == out["truth"]).to_numpy()
    return out["label_confidence"].to_numpy(float), right, out["label"].to_numpy(object)


@pytest.mark.parametrize("seed", range(3))
def test_platts_curve_is_scikit_learns_logistic_regression(seed: int) -> None:
    sure, right, labels = arrays(labelled(seed, 400, sharpen=3))
    fitted = curves.curves(sure, right, labels, "platt")
    assert set(fitted.own) == {"spam", "ham"}
    for label, curve in fitted.own.items():
        odds, hit = log_odds(sure[labels == label])[:, None], right[labels == label]
        target = np.where(hit, (hit.sum() + 1) / (hit.sum() + 2), 1 / ((~hit).sum() + 2))
        known = LogisticRegression(C=np.inf, tol=1e-10).fit(
            np.concatenate([odds, odds]),
            np.repeat([1, 0], len(hit)),
            sample_weight=np.concatenate([target, 1 - target]),
        )
        assert curve.at == pytest.approx((known.coef_[0, 0], known.intercept_[0]), abs=2e-3)


def test_isotonic_steps_are_those_of_scikit_learn() -> None:
    sure, right, labels = arrays(labelled(1, 400, sharpen=3))
    labels[:] = "spam"
    fitted = curves.curves(sure, right, labels, "isotonic")
    known = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(sure, right)
    new = np.linspace(0, 1, 101)
    assert fitted(new, ["spam"] * 101).tolist() == pytest.approx(known.predict(new).tolist())


def test_the_scaling_that_made_the_rows_is_found_again() -> None:
    random = np.random.default_rng(0)
    n, slope, bias = 6000, 0.5, np.array([0.0, 1.5, -2.0])
    logs = random.normal(0, 3, (n, 3))
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    score = slope * np.log(shares) + bias
    chance = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
    truth = (chance.cumsum(axis=1) < random.random(n)[:, None]).sum(axis=1)
    found = curves.scaling(shares, truth, ("a", "b", "c"))
    assert found.slope == pytest.approx(slope, abs=0.03)
    assert np.diff(found.bias) == pytest.approx(np.diff(bias), abs=0.15)
    assert (found(shares).argmax(axis=1) == chance.argmax(axis=1)).mean() > 0.97


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_new_rows_are_better_calibrated_and_the_estimate_of_it_is_fair(method: Any) -> None:
    known, new = labelled(0, 600, sharpen=4), labelled(1, 3000, sharpen=4)
    fitted = lf.calibration(known, "label", "truth").fit(method)
    before = lf.calibration(new, "label", "truth")
    sure = fitted.apply(new["label_confidence"], new["label"])
    after = lf.calibration(new.assign(label_confidence=sure), "label", "truth")
    assert before.ece > 0.15
    assert after.ece < 0.05
    assert after.brier < before.brier
    assert fitted.after.brier == pytest.approx(after.brier, abs=0.02)
    assert sure.dtype == "Float64"
    assert sure.index.equals(new.index)


def test_each_label_has_a_curve_of_its_own() -> None:
    rows = pd.DataFrame({"label": ["good"] * 100 + ["bad"] * 100 + ["rare"] * 5})
    rows["label_confidence"] = 0.9
    rows["truth"] = ["good"] * 98 + ["bad"] * 2 + ["good"] * 90 + ["bad"] * 10 + ["rare"] * 5
    fitted = lf.calibration(rows, "label", "truth").fit()
    shares = fitted.apply([0.9, 0.9, 0.9, None, 0.9], ["good", "bad", "rare", "good", None])
    assert shares.iloc[0] == pytest.approx(0.97, abs=0.02)
    assert shares.iloc[1] == pytest.approx(0.11, abs=0.02)
    assert 0.4 < shares.iloc[2] < 0.7  # of all rows, as its own are too few
    assert shares.iloc[3:].isna().all()


def test_a_confidence_that_says_nothing_does_not_turn_the_order_round() -> None:
    rows = pd.DataFrame({"label": "x", "label_confidence": np.linspace(0.5, 0.99, 60)})
    rows["truth"] = ["x"] * 40 + ["y"] * 20
    sure = lf.calibration(rows, "label", "truth").fit().apply([0.5, 0.99], ["x", "x"])
    assert sure.tolist() == pytest.approx([2 / 3, 2 / 3], abs=0.02)


def test_what_cannot_be_fitted_is_said() -> None:
    rows = labelled(0, 30)
    found = lf.calibration(rows, "label", "truth")
    with pytest.raises(lf.SchemaError, match="30 rows: expected at least 40"):
        found.fit()
    with pytest.raises(ValueError, match="'plat'"):
        found.fit("plat")  # type: ignore[arg-type]
    with pytest.raises(lf.SchemaError, match="no job in the store"):
        lf.calibration(labelled(0, 50), "label", "truth").fit("bias")


@pytest.mark.parametrize("method", ["platt", "bias"])
def test_classify_goes_by_the_fit(method: Any) -> None:
    asked: list[str] = []
    engine = model(asked)
    known, new = biased(0, 200), biased(1, 500)
    out = known.llm.classify("t", LABELS, confidence=True, model=engine)
    fitted = lf.calibration(out, "label", "truth").fit(method)
    stated = new.llm.classify("t", LABELS, confidence=True, model=engine)
    count = len(asked)
    told = new.llm.classify("t", LABELS, confidence=True, calibration=fitted, model=engine)
    assert len(asked) == count  # it is read otherwise, and not asked again
    before, after = (lf.calibration(one, "label", "truth") for one in (stated, told))
    assert before.ece > 0.5
    assert after.ece < 0.06
    if method == "platt":
        assert told["label"].tolist() == stated["label"].tolist()
        by_hand = fitted.apply(stated["label_confidence"], stated["label"])
        assert told["label_confidence"].tolist() == pytest.approx(by_hand.tolist())
    else:
        assert before.accuracy < 0.4
        assert after.accuracy > 0.9
    assert fitted.after.accuracy == pytest.approx(after.accuracy, abs=0.05)
    # Another process reads the same.
    call = lf.job(told.attrs["llmframe"]["label"]).call
    again = call_from(call.stored(call.bind(list(new.columns), [None])))
    assert again.fitted == call.fitted == fitted_from(json.loads(json.dumps(call.fitted.stored())))


def test_a_calibrated_cascade_is_nearly_as_right_as_the_strong_model_at_few_calls() -> None:
    """The threshold comes from the labelled rows alone."""
    engine, asked = model(), list[str]()
    known, new = biased(0, 300), biased(1, 500)
    truth = dict(zip(new["t"], new["truth"], strict=True))

    def answer(text: str) -> dict[str, str]:
        said = next(one for one in truth if text.endswith(one))
        asked.append(said)
        wrong = zlib.crc32(said.encode()) % 50 == 0
        return {"label": LABELS[(truth[said] == "spam") != wrong]}

    strong = lf.testing.FakeEngine(answer, model="strong")
    out = known.llm.classify("t", LABELS, confidence=True, model=engine)
    fitted = lf.calibration(out, "label", "truth").fit("bias")
    below = fitted.below(0.01)
    with all_warnings() as seen:
        both = new.llm.classify(
            "t", LABELS, calibration=fitted, model=engine, escalate_to=strong, below=below
        )
    calls = len(asked)
    alone = new.llm.classify("t", LABELS, model=strong)
    best = (alone["label"] == alone["truth"]).mean()
    assert 0.9 < best < 1
    assert (both["label"] == both["truth"]).mean() >= best - 0.01
    assert 0 < calls <= 0.3 * len(new)
    assert f"{calls} of 500 rows" in str(seen[0].message)


def test_the_loss_of_a_cascade_is_what_the_confidences_leave_open() -> None:
    rows = labelled(0, 2000, sharpen=4)
    fitted = lf.calibration(rows, "label", "truth").fit()
    sure, right = fitted.after.sure, fitted.after.right
    for loss in (0.02, 0.1, 0.2):
        below = fitted.below(loss)
        kept = sure >= below
        assert (1 - sure[kept]).sum() / len(rows) <= loss
        one_more = sure >= sure[~kept].max()
        assert (1 - sure[one_more]).sum() / len(rows) > loss
        assert (~right[kept]).sum() / len(rows) == pytest.approx(loss, abs=0.015)
    assert fitted.below(1e-9) == 1.0
    assert fitted.below(0.9) == sure.min()
    with pytest.raises(ValueError, match="loss=1"):
        fitted.below(1)


def test_a_fit_is_taken_only_for_what_it_was_fitted_to() -> None:
    asked: list[str] = []
    out = biased(0, 100).llm.classify("t", LABELS, confidence=True, model=model())
    platt, bias = (lf.calibration(out, "label", "truth").fit(m) for m in ("platt", "bias"))
    other = lf.testing.FakeEngine(lambda text: asked.append(text), choices=True, model="other")
    with pytest.raises(ValueError, match=r"probabilities of fake/biased.*fake/other"):
        out.llm.classify("t", LABELS, calibration=platt, model=other, into="x")
    with pytest.raises(ValueError, match="fitted for the labels ham, spam"):
        out.llm.classify("t", LABELS[::-1], calibration=bias, model=model(asked), into="x")
    found = lf.calibration(out, "label", "truth")
    with pytest.raises(ValueError, match=r"\.fit\(\)"):
        out.llm.classify("t", LABELS, calibration=found, model=model(asked), into="x")
    with pytest.raises(TypeError, match="asks no row again"):
        bias.apply([0.5], ["ham"])
    told = biased(0, 100).llm.classify(
        "t", LABELS, confidence=True, calibration=bias, model=model()
    )
    with pytest.raises(lf.SchemaError, match="a fit"):
        lf.calibration(told, "label", "truth").fit()
    assert not asked


def test_a_fit_of_the_bias_needs_the_texts() -> None:
    out = biased(0, 100).llm.classify("t", LABELS, confidence=True, model=model())
    changed = out.assign(t="another text")
    with pytest.raises(lf.SchemaError, match="100 rows of 100 have no stored probabilities"):
        lf.calibration(changed, "label", "truth").fit("bias")


def test_both_reliability_diagrams_in_one() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    fitted = lf.calibration(labelled(0, 300, 4), "label", "truth").fit()
    axes = fitted.plot()
    told = [text.get_text() for text in axes.get_legend().get_texts()]
    assert told == [
        f"stated: ECE {fitted.before.ece:.3f}",
        f"afterwards: ECE {fitted.after.ece:.3f}",
    ]
    assert "five-fold" in axes.get_title()
    assert repr(fitted).startswith("Recalibration on 300 rows: ECE")
    assert "<table" in fitted._repr_html_()

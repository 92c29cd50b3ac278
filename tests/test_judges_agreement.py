"""Agreement of raters: published examples, other libraries, awkward columns, coverage."""

from __future__ import annotations

import warnings
from typing import Any

import krippendorff
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score

import llmframe as lf
from llmframe.judges import coefficients

# Cohen, J. (1960). A coefficient of agreement for nominal scales. Educational and Psychological
# Measurement 20: 200 cases; agreement .70, by chance .41, kappa .492.
COHEN_1960 = [[88, 14, 18], [10, 40, 10], [2, 6, 12]]
# Agresti (1990), Categorical Data Analysis, table 10.5, from Hout et al. (1987): husbands and wives
# rate "sex is fun". R's vcd: kappa 0.1293, with equally spaced (linear) weights 0.2374.
AGRESTI_1990 = [[7, 7, 2, 3], [2, 8, 3, 7], [1, 5, 4, 9], [2, 8, 9, 14]]
NA = float("nan")
# Krippendorff, K. (2011). Computing Krippendorff's Alpha-Reliability, part C and D: four observers,
# twelve units, ratings missing; nominal 0.743, ordinal 0.815, interval 0.849.
KRIPPENDORFF_2011 = {
    "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, NA, NA, NA],
    "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NA, 3],
    "C": [NA, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NA],
    "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NA],
}
SKILL = np.array([[30, 5, 2], [6, 25, 4], [1, 5, 22]])
"""How often in a hundred a judge says what a human says, for the simulations."""


def of_table(counts: Any) -> pd.DataFrame:
    counts = np.asarray(counts)
    a, b = np.repeat(np.stack(np.indices(counts.shape)).reshape(2, -1), counts.ravel(), axis=1)
    return pd.DataFrame({"a": a + 1, "b": b + 1})


def estimate(found: Any, name: str) -> float:
    return float(found.table.loc[name, "estimate"])


def test_cohens_own_example() -> None:
    found = lf.agreement(of_table(COHEN_1960), "a", "b", ordinal=False)
    assert estimate(found, "accuracy") == pytest.approx(0.70)
    assert estimate(found, "cohen_kappa") == pytest.approx(0.492, abs=5e-4)
    assert found.confusion.to_numpy().tolist() == COHEN_1960
    assert list(found.table.index) == ["accuracy", "cohen_kappa", "krippendorff_alpha_nominal"]
    assert set(found.table["n"]) == {200}


def test_weighted_kappa_of_a_textbook() -> None:
    found = lf.agreement(of_table(AGRESTI_1990), "a", "b", ordinal="linear")
    assert estimate(found, "cohen_kappa") == pytest.approx(0.1293, abs=5e-5)
    assert estimate(found, "cohen_kappa_linear") == pytest.approx(0.2374, abs=5e-5)


def test_krippendorffs_own_example() -> None:
    found = lf.agreement(pd.DataFrame(KRIPPENDORFF_2011), "A", "B", "C", "D")
    for level, published in (("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)):
        row = found.table.loc[f"krippendorff_alpha_{level}"]
        assert row["estimate"] == pytest.approx(published, abs=5e-4)
        assert row["low"] < published < row["high"]
        assert row["n"] == 11  # the last unit has one rating and pairs with nothing
    assert found.table.loc["cohen_kappa", "raters"].tolist() == ["A, B", "A, C", "A, D"]
    assert found.confusion.index.names == ["rater", "A"]


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_the_libraries(seed: int) -> None:
    random = np.random.default_rng(seed)
    a = random.integers(1, 6, 200)
    b = np.clip(a + random.integers(-2, 3, 200), 1, 7)
    found = lf.agreement(pd.DataFrame({"a": a, "b": b}), "a", "b", draws=100)
    labels = range(1, 8)
    expected = {
        "accuracy": np.mean(a == b),
        "cohen_kappa": cohen_kappa_score(a, b),
        "cohen_kappa_quadratic": cohen_kappa_score(a, b, weights="quadratic", labels=labels),
        "spearman": scipy.stats.spearmanr(a, b).statistic,
        "pearson": scipy.stats.pearsonr(a, b).statistic,
    } | {
        f"krippendorff_alpha_{level}": krippendorff.alpha([a, b], level_of_measurement=level)
        for level in ("nominal", "ordinal", "interval")
    }
    assert found.table["estimate"].to_dict() == pytest.approx(expected)


def test_alpha_of_three_raters_with_gaps_is_that_of_the_library() -> None:
    random = np.random.default_rng(0)
    values = np.clip(random.integers(1, 6, 80) + random.integers(-1, 2, (3, 80)), 1, 5) * 1.0
    values[random.random(values.shape) < 0.2] = np.nan
    found = lf.agreement(pd.DataFrame(dict(zip("abc", values, strict=True))), "a", "b", "c")
    for level in ("nominal", "ordinal", "interval"):
        assert estimate(found, f"krippendorff_alpha_{level}") == pytest.approx(
            krippendorff.alpha(values, level_of_measurement=level)
        )


def test_a_weighted_sample_is_the_repeated_one() -> None:
    codes = np.array([[0, 0], [0, 1], [2, 1], [2, 2]])
    times = np.array([4, 1, 3, 2])
    rows, numbers = np.repeat(codes, times, axis=0), np.arange(3.0)
    w, ones = times[None, :].astype(float), np.ones((1, len(rows)))
    for function in (
        lambda w, c: coefficients.kappa(w, *c.T, numbers, "quadratic"),
        lambda w, c: coefficients.spearman(w, *c.T, 3),
        lambda w, c: coefficients.alpha(w, c, numbers, "ordinal"),
    ):
        assert function(w, codes) == pytest.approx(function(ones, rows))


def test_kappa_knows_the_scores_that_nobody_gave() -> None:
    # 1 against 5 is four steps, although only 1, 2 and 5 occur; places among them would say two.
    out = pd.DataFrame({"a": [1, 2, 5, 1, 2], "b": [1, 2, 5, 5, 1]})
    expected = cohen_kappa_score(out["a"], out["b"], labels=range(1, 6), weights="quadratic")
    by_place = cohen_kappa_score(out["a"], out["b"], weights="quadratic")
    assert expected != pytest.approx(by_place)
    assert estimate(lf.agreement(out, "a", "b"), "cohen_kappa_quadratic") == pytest.approx(expected)


WORDS = ["bad", "fine", "good"]
ORDERED = pd.CategoricalDtype(WORDS, ordered=True)
FIRST = [1, 2, 3, 3, 1, 2, None, 3]
SECOND = [1, 2, 3, 2, 1, 1, 2, None]


def words(values: list[int | None]) -> list[str | None]:
    return [None if v is None else WORDS[v - 1] for v in values]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (pd.array(FIRST, dtype="Int64"), pd.array(SECOND, dtype="Float64")),
        (pd.array(FIRST, dtype="Int64"), [None if v is None else str(v) for v in SECOND]),
        (pd.Series(FIRST, dtype=object), pd.Series(SECOND, dtype=float)),
        (pd.Categorical(FIRST), pd.array(SECOND, dtype="Int64")),
        (pd.Series(words(FIRST), dtype=ORDERED), pd.Series(words(SECOND), dtype=object)),
        (pd.Series(words(FIRST), dtype=ORDERED), pd.Series(words(SECOND), dtype="string")),
        (pd.Series(words(FIRST), dtype=ORDERED), pd.Series(words(SECOND), dtype="category")),
    ],
    ids=[
        *("Int64-Float64", "Int64-str", "object-float", "category-Int64"),
        *("ordered-object", "ordered-string", "ordered-category"),
    ],
)
def test_values_are_matched_across_dtypes(a: Any, b: Any) -> None:
    found = lf.agreement(pd.DataFrame({"a": a, "b": b}), "a", "b", draws=100)
    assert estimate(found, "accuracy") == pytest.approx(4 / 6)
    assert estimate(found, "cohen_kappa_quadratic") == pytest.approx(
        cohen_kappa_score([1, 2, 3, 3, 1, 2], [1, 2, 3, 2, 1, 1], weights="quadratic")
    )
    assert found.notes[0] == "2 of 8 rows are left out of 'a' with 'b': a rating is missing."
    assert found.confusion.to_numpy().sum() == 6


def test_booleans_meet_booleans_and_numbers() -> None:
    a = pd.array([True, False, True, None], dtype="boolean")
    for b in (pd.array([True, False, False, True], dtype="boolean"), [1, 0, 0, 1], [1.0, 0, 0, 1]):
        found = lf.agreement(pd.DataFrame({"a": a, "b": b}), "a", "b", draws=100)
        assert estimate(found, "accuracy") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("a", "b", "keywords", "said"),
    [
        ([1, 2], ["good", "bad"], {}, "'b' holds 'good', and another rater gave numbers"),
        ([True, False], ["yes", "no"], {}, "cannot be matched: 'a' bool, 'b' text"),
        ([["x"], ["y"]], ["x", "y"], {}, "'a' holds ['x'], a list: expected one label"),
        ([1, "x"], [1, 2], {}, "'a' mixes number and text"),
        (["x", "y"], ["x", "y"], {"ordinal": True}, "labels have no order of their own"),
        (pd.Series(["good"] * 2, dtype=ORDERED), ["good", "Good"], {}, "'Good' is none of the"),
        ([1, 2], [1, 2], {"confidence": 95}, "confidence=95: expected a share"),
        ([1, 2], [1, 2], {"draws": 5}, "draws=5: expected at least 100"),
        ([1, 2], [1, 2], {"ordinal": "cubic"}, "ordinal='cubic': expected None"),
        ([1, 2], [1, 2], {"cluster": "g"}, "no column 'g'"),
        ([1, float("inf")], [1, 2], {}, "'a' holds inf: expected finite numbers"),
        (["nan", "1"], [1, 2], {}, "'a' holds 'nan': expected finite numbers"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    a: Any, b: Any, keywords: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked below
        lf.agreement(pd.DataFrame({"a": a, "b": b}), "a", "b", **keywords)
    assert said in str(caught.value)


def test_ordered_labels_must_be_ordered_alike() -> None:
    other = pd.CategoricalDtype(WORDS[::-1], ordered=True)
    out = pd.DataFrame({"a": pd.Series(WORDS, dtype=ORDERED), "b": pd.Series(WORDS, dtype=other)})
    with pytest.raises(lf.SchemaError, match="ordered differently"):
        lf.agreement(out, "a", "b")


def test_labels_outside_an_order_are_labels_where_no_order_is_asked_for() -> None:
    out = pd.DataFrame({"a": pd.Series(["good", "bad"], dtype=ORDERED), "b": ["good", "Bad"]})
    found = lf.agreement(out, "a", "b", ordinal=False, draws=100)
    assert estimate(found, "accuracy") == 0.5


def test_labels_that_differ_in_their_spelling_alone_are_named() -> None:
    out = pd.DataFrame({"a": ["Spam", "ham", "bug"], "b": ["spam", "ham ", "bug"]})
    found = lf.agreement(out, "a", "b", draws=100)
    assert estimate(found, "accuracy") == pytest.approx(1 / 3)
    assert "'Spam' and 'spam' count as different labels" in found.notes[0]
    assert "'ham' and 'ham ' count as" in found.notes[1]


def test_texts_are_no_labels() -> None:
    out = pd.DataFrame({"a": [f"text {k}" for k in range(1200)]})
    with pytest.raises(lf.SchemaError, match=r"1,200 different labels"):
        lf.agreement(out.assign(b=out["a"]), "a", "b")


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        ([], [], "0 rows left"),
        ([None, None], [1, 2], "0 rows left"),
        ([1, None], [1, 2], "1 row left"),
        ([1, 1, 1], [1, 1, 1], "cohen_kappa, cohen_kappa_quadratic, krippendorff_alpha_nominal"),
        (["x", "x"], ["x", "y"], "'a' with 'b'"),
        ([1, 1, 1], [1, 2, 3], "spearman, pearson undefined: a rater gave one value only"),
    ],
)
def test_degenerate_ratings_are_na_with_a_reason(a: Any, b: Any, note: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lf.agreement(pd.DataFrame({"a": a, "b": b}), "a", "b", draws=100)
    assert any(note in said for said in found.notes), found.notes
    estimates = found.table["estimate"]
    assert (estimates.isna() | estimates.between(-1, 1)).all()


def test_full_agreement_is_not_certain() -> None:
    found = lf.agreement(pd.DataFrame({"a": [0, 1] * 20, "b": [0, 1] * 20}), "a", "b")
    assert found.table.loc["accuracy", ["estimate", "high"]].tolist() == [1.0, 1.0]
    assert found.table.loc["accuracy", "low"] == pytest.approx(0.912, abs=5e-4)  # Wilson, 40 of 40
    assert np.isnan(found.table.loc["cohen_kappa", "low"])
    assert any("no interval for cohen_kappa" in note for note in found.notes)


def test_measurements_get_the_figures_for_measurements() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=40)
    out = pd.DataFrame({"a": x, "b": x + random.normal(size=40) / 2})
    found = lf.agreement(out, "a", "b")
    assert list(found.table.index) == ["krippendorff_alpha_interval", "spearman", "pearson"]
    assert estimate(found, "krippendorff_alpha_interval") == pytest.approx(
        krippendorff.alpha(out.to_numpy().T, level_of_measurement="interval")
    )
    assert found.confusion.empty


def test_the_same_call_gives_the_same_interval() -> None:
    out = of_table(COHEN_1960)
    first, again, other = (lf.agreement(out, "a", "b", seed=s).table for s in (3, 3, 4))
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)


def test_rows_that_are_copies_count_once_by_cluster() -> None:
    once = of_table(SKILL)
    copies = pd.concat([once] * 4, ignore_index=True)
    copies["g"] = [f"document {k}" for k in list(range(len(once))) * 4]

    def width(found: Any) -> float:
        return float(found.table.loc["cohen_kappa", "high"] - found.table.loc["cohen_kappa", "low"])

    alone = width(lf.agreement(once, "a", "b"))
    assert width(lf.agreement(copies, "a", "b", cluster="g")) == pytest.approx(alone, rel=0.1)
    assert width(lf.agreement(copies, "a", "b")) == pytest.approx(alone / 2, rel=0.1)


def test_clusters_are_refused_where_they_say_nothing() -> None:
    out = pd.DataFrame({"a": [1, 2, 3], "b": [1, 2, 2], "g": ["x", None, "y"]})
    with pytest.raises(lf.SchemaError, match="'g' is missing in 1 of 3 rows"):
        lf.agreement(out, "a", "b", cluster="g")
    many = pd.DataFrame({"a": [1, 2, 3, 1, 2] * 20, "b": [1, 2, 2, 1, 2] * 20})
    for count in (1, 2, 4):
        found = lf.agreement(many.assign(g=many.index % count), "a", "b", cluster="g")
        assert found.table[["low", "high"]].isna().all(axis=None)
        assert any("rows are in fewer than 5 clusters" in note for note in found.notes)
    found = lf.agreement(many.assign(g=many.index // 10), "a", "b", cluster="g")
    assert any("10 clusters are few" in note for note in found.notes)


def test_what_a_notebook_shows_is_escaped() -> None:
    out = pd.DataFrame({"<script>": [1, 2, 3], "b": [1, 2, 2]})
    found = lf.agreement(out, "<script>", "b", draws=100)
    assert "<script" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()
    assert repr(found).splitlines()[1].split() == [
        *("statistic", "raters", "estimate", "low", "high", "n")
    ]


def test_plot_has_a_mark_for_each_figure() -> None:
    pytest.importorskip("matplotlib").use("agg")
    axes = lf.agreement(of_table(COHEN_1960), "a", "b", ordinal=False, draws=100).plot()
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["accuracy", "cohen_kappa", "krippendorff_alpha_nominal"]


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.sparse", None)
    with pytest.raises(lf.ModelError, match=r"needs scipy.*pip install 'llmframe\[judge\]'"):
        lf.agreement(of_table(COHEN_1960), "a", "b")


@pytest.mark.slow
def test_intervals_hold_what_they_promise() -> None:
    truth = lf.agreement(of_table(SKILL * 100), "a", "b", draws=100).table["estimate"]
    random = np.random.default_rng(1)
    held = []
    for seed in range(500):
        sample = random.multinomial(150, SKILL.ravel() / 100).reshape(3, 3)
        table = lf.agreement(of_table(sample), "a", "b", seed=seed).table
        held.append((table["low"] <= truth) & (truth <= table["high"]))
    assert (pd.DataFrame(held).mean() >= 0.93).all(), pd.DataFrame(held).mean()

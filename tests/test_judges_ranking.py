"""Bradley-Terry rankings: a published example, ties, systems without a maximum, coverage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmframe as lf

# Agresti, A. (2002). Categorical Data Analysis, 2nd ed., table 10.10: American League East, 1987.
# Home team, away team, wins of the one and of the other.
BASEBALL = """
Milwaukee: Detroit 4-3, Toronto 4-2, New York 4-3, Boston 6-1, Cleveland 4-2, Baltimore 6-0
Detroit: Milwaukee 3-3, Toronto 4-2, New York 4-3, Boston 6-0, Cleveland 6-1, Baltimore 4-3
Toronto: Milwaukee 2-5, Detroit 4-3, New York 2-4, Boston 4-3, Cleveland 4-2, Baltimore 6-0
New York: Milwaukee 3-3, Detroit 5-1, Toronto 2-5, Boston 4-3, Cleveland 4-2, Baltimore 6-1
Boston: Milwaukee 5-1, Detroit 2-5, Toronto 3-3, New York 4-2, Cleveland 5-2, Baltimore 6-0
Cleveland: Milwaukee 2-5, Detroit 3-3, Toronto 3-4, New York 4-3, Boston 4-2, Baltimore 2-4
Baltimore: Milwaukee 2-5, Detroit 1-5, Toronto 1-6, New York 2-4, Boston 1-6, Cleveland 3-4
"""
# Table 10.11, third column: estimates against Baltimore, each with a standard error of about 0.3.
AGRESTI_2002 = {
    "Milwaukee": 1.58,
    "Detroit": 1.44,
    "Toronto": 1.29,
    "New York": 1.25,
    "Boston": 1.11,
    "Cleveland": 0.68,
    "Baltimore": 0.0,
}


def pairs(*rows: tuple[Any, ...]) -> pd.DataFrame:
    """Rows of (first, second, winner, how often)."""
    repeated = [row[:3] for row in rows for _ in range(row[3] if len(row) > 3 else 1)]
    return pd.DataFrame(repeated, columns=["system_a", "system_b", "winner"])


def baseball() -> pd.DataFrame:
    games = []
    for line in BASEBALL.strip().splitlines():
        home, results = line.split(": ")
        for result in results.split(", "):
            away, score = result.rsplit(" ", 1)
            won, lost = map(int, score.split("-"))
            games += [(home, away, "a", won), (home, away, "b", lost)]
    return pairs(*games)


def test_baseball_of_a_textbook() -> None:
    found = lf.ranking(baseball(), draws=300)
    table = found.table
    above = table["estimate"] - table.loc["Baltimore", "estimate"]
    assert above.to_dict() == pytest.approx(AGRESTI_2002, abs=5e-3)
    assert list(table.index) == list(AGRESTI_2002)
    assert table["estimate"].mean() == pytest.approx(0)
    assert (table["n"] == 78).all()
    assert table.loc["Milwaukee", "wins"] == 50
    assert not found.notes
    # Against Baltimore 0.3; against the average of seven teams it is a little less.
    errors = (table["high"] - table["low"]) / 2 / 1.96
    assert errors.between(0.15, 0.3).all()
    # "exp(1.58) / (1 + exp(1.58))", the chance of Milwaukee against Baltimore.
    assert found.probabilities.loc["Milwaukee", "Baltimore"] == pytest.approx(0.83, abs=5e-3)
    assert found.probabilities.loc["Baltimore", "Milwaukee"] == pytest.approx(0.17, abs=5e-3)
    assert found.stronger.loc["Milwaukee", "Baltimore"] == 1
    assert 0.5 < found.stronger.loc["Milwaukee", "Detroit"] < 0.9
    both = found.stronger + found.stronger.T
    assert set(both.to_numpy()[~np.eye(7, dtype=bool)].round(9)) == {1}


def test_names_places_and_booleans_of_winners() -> None:
    by_place = lf.ranking(baseball(), draws=100).table
    games = baseball()
    games["winner"] = np.where(games["winner"] == "a", games["system_a"], games["system_b"])
    pd.testing.assert_frame_equal(lf.ranking(games, draws=100).table, by_place)
    typed = baseball().astype({"winner": pd.CategoricalDtype(["a", "b", "tie"])})
    pd.testing.assert_frame_equal(lf.ranking(typed, draws=100).table, by_place)


def test_a_tie_is_half_a_win_for_each() -> None:
    found = lf.ranking(pairs(("x", "y", "a", 3), ("x", "y", "b", 1), ("y", "x", "tie", 4)))
    # 3 + 4 / 2 of 8
    assert found.probabilities.loc["x", "y"] == pytest.approx(5 / 8)
    assert found.table["ties"].tolist() == [4, 4]
    assert found.table["wins"].tolist() == [3, 1]


def test_rows_without_a_winner_are_left_out() -> None:
    games = pairs(("x", "y", "a", 3), ("x", "y", "b", 1), ("x", "y", None, 5), ("x", "z", None, 1))
    games.loc[len(games)] = ["z", "y", "a"]
    games.loc[len(games)] = ["z", "y", "b"]
    found = lf.ranking(games, draws=100)
    assert found.table["n"].to_dict() == {"x": 4, "y": 6, "z": 2}
    assert found.notes[0] == "6 rows without a winner left out."


def test_an_undefeated_system_has_no_upper_end() -> None:
    games = pairs(("x", "y", "a", 4), ("y", "z", "a", 3), ("z", "y", "a", 2))
    found = lf.ranking(games, draws=100)
    table = found.table
    assert list(table.index) == ["x", "y", "z"]
    assert np.isfinite(table["estimate"]).all()
    assert table.loc["x", "high"] == np.inf
    # Nobody of the others ever beat x: below it they are tied together by their own games.
    assert table.loc[["y", "z"], "low"].tolist() == [-np.inf, -np.inf]
    assert found.notes[0].startswith("'x' never lost to the other systems")
    with pytest.raises(lf.SchemaError, match="'x' never lost"):
        lf.ranking(games, virtual=0)
    for virtual in ("x", float("inf"), -1):
        with pytest.raises(ValueError, match="expected None, 0 or a number of games"):
            lf.ranking(games, virtual=virtual)
    closer = lf.ranking(games, virtual=5, draws=100).table["estimate"]
    assert closer["x"] < table.loc["x", "estimate"]


def test_virtual_games_fit_what_they_say() -> None:
    # x won all its 3 games: with half a win and half a loss against the average, the odds of the
    # maximum solve 3 / (1 + exp(2 s)) = 1 / (1 + exp(-s)) - 1 / 2, by the symmetry of two systems.
    found = lf.ranking(pairs(("x", "y", "a", 3)), draws=100)
    s = found.table.loc["x", "estimate"]
    assert 3 / (1 + np.exp(2 * s)) == pytest.approx(1 / (1 + np.exp(-s)) - 0.5)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("x", "y", "a"), ("p", "q", "b")], "['p', 'q'] and ['x', 'y'] never met"),
        ([("x", "y", "z")], "'winner' is 'z' where 'x' met 'y': expected 'a', 'b', 'tie'"),
        ([("b", "a", "a")], "it could be the place or the name"),
        ([("x", "x", "a")], "row 0 compares 'x' with itself"),
        ([("x", None, "a")], "row 0 names no system"),
        ([("x", "y", None)], "no row has a winner in 'winner'"),
        ([], "0 systems in the frame"),
    ],
)
def test_what_cannot_be_ranked_is_refused(rows: list[Any], said: str) -> None:
    with pytest.raises(lf.SchemaError) as caught:
        lf.ranking(pairs(*rows))
    assert said in str(caught.value)


def test_questions_that_are_asked_twice_count_once_by_cluster() -> None:
    random = np.random.default_rng(0)
    once = pairs(*[("x", "y", "a" if random.random() < 0.6 else "b") for _ in range(200)])
    twice = pd.concat([once] * 4, ignore_index=True)
    twice["question"] = list(range(200)) * 4

    def width(found: Any) -> float:
        return float(found.table.loc["x", "high"] - found.table.loc["x", "low"])

    alone = width(lf.ranking(once))
    assert width(lf.ranking(twice, cluster="question")) == pytest.approx(alone, rel=0.1)
    assert width(lf.ranking(twice)) == pytest.approx(alone / 2, rel=0.1)


def ends(*rows: tuple[Any, ...], **given: Any) -> tuple[float, float]:
    """Of the strength of x against the mean of itself and y."""
    row = lf.ranking(pairs(*rows), draws=100, **given).table.loc["x"]
    return float(row["low"]), float(row["high"])


@pytest.mark.parametrize("n", [5, 10, 20])
def test_winning_all_rows_says_what_clopper_and_pearson_say(n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    low, high = ends(("x", "y", "a", n))
    exact = stats.binomtest(n, n).proportion_ci(0.95, method="exact").low
    assert 1 / (1 + np.exp(-2 * low)) == pytest.approx(exact, abs=0.06)
    assert high == np.inf
    assert ends(("x", "y", "b", n)) == pytest.approx((-np.inf, -low))


@pytest.mark.parametrize("n", [5, 10, 20])
def test_intervals_of_few_rows_hold_what_they_promise(n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = [
        ends(*[("x", "y", who, k) for who, k in (("a", won), ("b", n - won)) if k])
        for won in range(n + 1)
    ]
    for p in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        truth = np.log(p / (1 - p)) / 2
        held = [low <= truth <= high for low, high in found]
        assert stats.binom.pmf(np.arange(n + 1), n, p) @ held >= 0.93, p


def test_intervals_of_many_rows_are_those_of_the_textbook() -> None:
    low, high = ends(("x", "y", "a", 72), ("x", "y", "b", 48))
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(1 / 72 + 1 / 48) / 2, rel=0.03)


def test_ties_alone_leave_a_doubt_and_say_more_than_wins_and_losses() -> None:
    low, high = ends(("x", "y", "tie", 6))
    assert low == pytest.approx(-high)
    assert 0.2 < high < 0.6
    mixed = ends(("x", "y", "a", 3), ("x", "y", "b", 3))
    assert mixed[1] > 1.5 * high


def test_a_system_between_an_undefeated_and_a_beaten_one_has_no_end() -> None:
    games = pairs(("x", "y", "a", 4), ("y", "z", "a", 3))
    table = lf.ranking(games, draws=100).table
    # The distance of x, and with it the mean, may be any; so may that of z.
    assert table.loc["y", ["low", "high"]].tolist() == [-np.inf, np.inf]
    assert np.isfinite(table.loc["x", "low"])
    assert np.isfinite(table.loc["z", "high"])


def test_few_rows_of_a_system_are_told() -> None:
    games = pairs(("x", "y", "a", 9), ("y", "x", "a", 8), ("x", "z", "a", 2), ("z", "x", "a", 1))
    (note,) = lf.ranking(games, draws=100).notes
    assert note.startswith("'z': fewer than 10 rows")
    games = pairs(("x", "y", "a", 9), ("y", "x", "a", 8))
    assert not lf.ranking(games, draws=100).notes


def test_few_rows_tell_no_order_for_certain() -> None:
    found = lf.ranking(pairs(("x", "y", "a", 3)), draws=1000)
    # Jeffreys' posterior of 3 in 3: Beta(3.5, 0.5).
    beta = pytest.importorskip("scipy.stats").beta(3.5, 0.5)
    assert found.stronger.loc["x", "y"] == pytest.approx(1 - beta.cdf(0.5), abs=0.02)
    assert found.stronger.loc["x", "y"] < 1


def test_few_clusters_are_told_and_fewer_get_no_interval() -> None:
    random = np.random.default_rng(3)
    games = pairs(*[("x", "y", "a" if random.random() < 0.55 else "b") for _ in range(540)])
    place = np.arange(540)
    for count in (1, 2, 4):
        found = lf.ranking(games.assign(q=place % count), cluster="q", draws=100)
        assert found.table[["low", "high"]].isna().all(axis=None)
        assert found.stronger.isna().all(axis=None)
        (note,) = found.notes
        assert note.startswith("no interval: the rows are in fewer than 5 clusters")
    alone = ends(*games.itertuples(index=False, name=None))
    found = lf.ranking(games.assign(q=place % 6), cluster="q", draws=100)
    assert found.notes == ("6 clusters are few: take the intervals as a guide.",)
    found = lf.ranking(games.assign(q=place % 60), cluster="q", draws=100)
    assert not found.notes
    width = found.table.loc["x", "high"] - found.table.loc["x", "low"]
    assert width == pytest.approx(alone[1] - alone[0], rel=0.25)


def test_a_system_in_few_clusters_alone_gets_no_interval() -> None:
    games = pairs(("x", "y", "a", 30), ("y", "x", "a", 30), ("x", "z", "a", 6), ("z", "x", "a", 6))
    games["q"] = [k % 15 for k in range(60)] + [k % 3 for k in range(12)]
    found = lf.ranking(games, cluster="q", draws=100)
    assert found.table["low"].isna().to_dict() == {"x": False, "y": False, "z": True}
    told, few = found.notes
    assert told.startswith("no interval for 'z': its rows are in fewer than 5 clusters")
    assert few.startswith("15 clusters are few")
    assert np.isnan(found.stronger.loc["x", "z"])
    assert np.isfinite(found.stronger.loc["x", "y"])


def test_clusters_that_all_say_the_same_count_as_one_row_each() -> None:
    once = ends(("x", "y", "a", 10))[0]
    games = pairs(("x", "y", "a", 500))
    games["q"] = np.arange(500) % 10
    found = lf.ranking(games, cluster="q", draws=100).table.loc["x", "low"]
    assert found == pytest.approx(once, abs=0.3)
    assert ends(("x", "y", "a", 500))[0] > 2


def test_plot_puts_the_strongest_on_top() -> None:
    pytest.importorskip("matplotlib").use("agg")
    games = pairs(("x", "y", "a", 4), ("y", "z", "a", 3), ("z", "y", "a", 2))
    axes = lf.ranking(games, draws=100).plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y", "z"]
    assert np.isfinite(axes.get_xlim()).all()


@pytest.mark.slow
def test_intervals_hold_what_they_promise() -> None:
    strengths = np.array([0.7, 0.1, -0.8])
    random = np.random.default_rng(1)
    held = []
    for seed in range(500):
        a = random.integers(0, 3, 150)
        b = (a + random.integers(1, 3, 150)) % 3
        won = random.random(150) < 1 / (1 + np.exp(strengths[b] - strengths[a]))
        out = pd.DataFrame({"system_a": a, "system_b": b, "winner": np.where(won, "a", "b")})
        table = lf.ranking(out, draws=100, seed=seed).table.sort_index()
        held.append((table["low"] <= strengths) & (strengths <= table["high"]))
    assert (pd.DataFrame(held).mean() >= 0.93).all(), pd.DataFrame(held).mean()


@pytest.mark.slow
def test_intervals_of_few_rows_of_several_systems_hold_what_they_promise() -> None:
    strengths = np.array([1.35, 0.15, -0.45, -1.05])  # the first one often wins all
    random = np.random.default_rng(4)
    a, b = (side.repeat(4) for side in np.triu_indices(4, 1))
    held = []
    for seed in range(120):
        won = random.random(len(a)) < 1 / (1 + np.exp(strengths[b] - strengths[a]))
        out = pd.DataFrame({"system_a": a, "system_b": b, "winner": np.where(won, "a", "b")})
        table = lf.ranking(out, draws=100, seed=seed).table.sort_index()
        held.append((table["low"] <= strengths) & (strengths <= table["high"]))
    assert (pd.DataFrame(held).mean() >= 0.93).all(), pd.DataFrame(held).mean()


@pytest.mark.slow
def test_intervals_by_cluster_hold_what_they_promise() -> None:
    random = np.random.default_rng(5)
    many = 1 / (1 + np.exp(-random.normal(0.4, 1, 400_000)))
    truth = np.log(many.mean() / (1 - many.mean())) / 2
    held = 0
    for seed in range(150):
        chance = 1 / (1 + np.exp(-random.normal(0.4, 1, 10)))
        question = np.arange(10).repeat(15)
        won = random.random(150) < chance[question]
        out = pd.DataFrame({"system_a": "x", "system_b": "y", "winner": np.where(won, "a", "b")})
        out["question"] = question
        row = lf.ranking(out, cluster="question", draws=100, seed=seed).table.loc["x"]
        held += row["low"] <= truth <= row["high"]
    assert held / 150 >= 0.93

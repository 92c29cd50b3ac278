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
    assert found.notes == ("6 rows without a winner left out.",)


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

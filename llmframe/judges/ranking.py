"""Many systems in one order, from comparisons of two."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.cells import unbox
from llmframe.columns import name_text
from llmframe.errors import SchemaError
from llmframe.judges.findings import Findings, finite
from llmframe.judges.libraries import library
from llmframe.judges.ratings import clusters, column
from llmframe.judges.resampling import FEW_CLUSTERS, LEAST_CLUSTERS, check
from llmframe.judges.strengths import Counts, firth, intervals, likeliest
from llmframe.views import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Ranking", "ranking"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ROUNDS: Final = 1000
"""Iterations of a fit, which takes some ten; beyond these it does not converge."""
_VIRTUAL: Final = 1.0
"""Games against an average opponent that every system is given where there is no maximum."""
_FEW_ROWS: Final = 10
"""Rows of a system below which one more moves its share of the wins by a tenth of all or more."""
_NAMED: Final = 5
"""Systems that a note names."""


@dataclass(frozen=True, repr=False)
class Ranking(Findings):
    """What `ranking` found.

    Attributes:
        table: A row a system, the strongest first: its strength as a log odds against the average
            system, low, high, and its rows: n, wins, ties. An end is infinite on the side on which
            the rows set no bound: above a system that never lost, below one that never won.
        probabilities: Chance that the system of the row beats that of the column.
        stronger: Share of the resamples in which the system of the row is the stronger one; two
            whose intervals overlap may still be told apart, as both lean on the same rows. NA where
            clusters are too few for an interval.
        notes: Rows that were left out, and what the strengths rest on.
        confidence: Of the intervals.
    """

    table: pd.DataFrame
    probabilities: pd.DataFrame
    stronger: pd.DataFrame
    notes: tuple[str, ...]
    confidence: float

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the strengths with their intervals, the strongest on top; needs matplotlib.

        Args:
            axes: Where to; new ones by default.

        Returns:
            The axes.
        """
        labels = list(map(str, self.table.index))
        return self._draw(labels, axes, f"strength (log odds), {self.confidence:.0%} interval")

    def _title(self) -> str:
        return f"Bradley-Terry ranking, {self.confidence:.0%} intervals"


def ranking(
    out: pd.DataFrame,
    a: Hashable = "system_a",
    b: Hashable = "system_b",
    winner: Hashable = "winner",
    *,
    virtual: float | None = None,
    cluster: Hashable | None = None,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Ranking:
    """Rank systems by the Bradley-Terry model, from rows of which each compares two.

    Strengths are the maximum of the likelihood, with mean 0: the odds that one system beats
    another are ``exp`` of their difference. A tie counts as half a win for each. Intervals are of
    the profile likelihood under Firth's penalty (Heinze & Schemper 2002), with Student's
    distribution, so that they hold for few rows too, and where all of them say the same.

    Where a system won, or lost, all its rows, or a group of systems all rows against the others,
    the likelihood has no maximum (Ford 1957). Then every system is given one game against an
    average opponent, half won and half lost, a note says so, and the interval has no end on that
    side. Virtual games are no evidence: they move the strengths, not the ends of the intervals.

    Args:
        out: The frame.
        a: Column with the name of the first system.
        b: Column with that of the second.
        winner: Column with ``"a"``, ``"b"`` or ``"tie"``, as `compare` writes it, or with the name
            of the system that won; NA, where no winner was found, leaves the row out.
        virtual: Such games for each system: 0 never, a number always, None where they are needed.
        cluster: Column that says which rows belong together, as all pairs of one question. A
            system in fewer than five of them gets no interval.
        confidence: Of the intervals.
        draws: Of the Bayesian bootstrap (Rubin 1981), for `Ranking.stronger`.
        seed: Of the draws.

    Raises:
        SchemaError: A winner is neither system; there are no two systems; groups of systems never
            met; or there is no maximum and ``virtual=0``.
        PromptError: There is no such column.
        ModelError: The extra ``judge`` is not installed.

    Examples:
        >>> games = [("x", "y", "a")] * 6 + [("y", "x", "a")] * 3 + [("x", "y", "tie")] * 2
        >>> out = pd.DataFrame(games, columns=["system_a", "system_b", "winner"])
        >>> found = ranking(out)
        >>> found.table["estimate"].round(3).to_dict()
        {'x': 0.28, 'y': -0.28}
        >>> round(float(found.probabilities.loc["x", "y"]), 3)  # (6 + 2 / 2) of 11
        0.636
    """
    check(confidence, draws)
    if virtual is not None and not (finite(virtual) and virtual >= 0):
        raise ValueError(f"virtual={virtual!r}: expected None, 0 or a number of games.")
    names, first, second, share = _games(out, a, b, winner)
    group = clusters(out, cluster)
    left = len(out) - int((share >= 0).sum())
    notes = [f"{counted(left, 'row')} without a winner left out."] if left else []
    used = share >= 0
    first, second, share = first[used], second[used], share[used]
    count = len(names)
    own = None if group is None else np.unique(group[used], return_inverse=True)[1]
    counts = Counts(first, second, share, count, own)
    games = virtual if virtual is not None else 0.0
    _check_met(names, counts.wins)
    never_lost = _never_lost(counts.wins)
    if len(never_lost):
        who = _listed(names, never_lost)
        if virtual == 0:
            raise SchemaError(
                f"{who} never lost to the other systems, so there is no best strength. Leave "
                "virtual=None, or compare more."
            )
        games = games or _VIRTUAL
        notes.append(
            f"{who} never lost to the other systems: the strengths rest on {games:g} virtual "
            "game(s) for each system, and the true distance may be any larger."
        )
    strength = _fit(counts.wins, games)
    low, high = intervals(counts, confidence)
    # The virtual games, which are no evidence, may have drawn the strength out of its interval.
    low, high = np.minimum(low, strength), np.maximum(high, strength)
    drawn = _draws(counts, draws, seed)
    units = counts.units()
    if own is not None:
        unknown = units < LEAST_CLUSTERS
        low[unknown], high[unknown] = np.nan, np.nan
        notes += _about_clusters(names, counts.groups, unknown)
    elif len(few := np.flatnonzero(units < _FEW_ROWS)):
        notes.append(
            f"{_listed(names, few)}: fewer than {_FEW_ROWS} rows, so one row more may move the "
            "estimate far; go by the interval."
        )
    table = pd.DataFrame(
        {
            "estimate": strength,
            "low": low,
            "high": high,
            "n": np.bincount(first, minlength=count) + np.bincount(second, minlength=count),
            "wins": _won(first, second, share, count),
            "ties": np.bincount(first[share == 0.5], minlength=count)
            + np.bincount(second[share == 0.5], minlength=count),
        },
        index=pd.Index(names, name="system"),
    ).sort_values("estimate", ascending=False, kind="stable")
    ordered = table["estimate"].to_numpy()
    chance = 1 / (1 + np.exp(ordered[None, :] - ordered[:, None]))
    drawn = drawn[:, [names.index(name) for name in table.index]]
    above = (drawn[:, :, None] > drawn[:, None, :]).mean(axis=0)
    unknown = table["low"].isna().to_numpy()
    above[unknown], above[:, unknown] = np.nan, np.nan
    index, columns = table.index, table.index.rename(None)
    probabilities = pd.DataFrame(chance, index=index, columns=columns)
    stronger = pd.DataFrame(above, index=index, columns=columns)
    return Ranking(table, probabilities, stronger, tuple(notes), confidence)


def _games(
    out: pd.DataFrame, a: Hashable, b: Hashable, winner: Hashable
) -> tuple[list[Any], Ints, Ints, Floats]:
    """The systems, the two of each row, and the first one's share of the win; -1 without one."""
    cells = [[unbox(cell) for cell in column(out, name).astype(object)] for name in (a, b, winner)]
    for place, (left, right, _) in enumerate(zip(*cells, strict=True)):
        if left is None or right is None:
            raise SchemaError(
                f"row {place} names no system in {name_text(a)!r} or {name_text(b)!r}. "
                "Leave such rows out."
            )
        if left == right:
            raise SchemaError(f"row {place} compares {left!r} with itself.")
    names = _sorted({*cells[0], *cells[1]})
    if len(names) < 2:
        raise SchemaError(f"{counted(len(names), 'system')} in the frame: expected at least two.")
    code = {name: place for place, name in enumerate(names)}
    share = [_share(left, right, won, winner) for left, right, won in zip(*cells, strict=True)]
    if all(part < 0 for part in share):
        raise SchemaError(f"no row has a winner in {name_text(winner)!r}.")
    return (
        names,
        np.array([code[name] for name in cells[0]]),
        np.array([code[name] for name in cells[1]]),
        np.array(share),
    )


def _share(left: Any, right: Any, won: Any, winner: Hashable) -> float:
    if won is None:
        return -1.0
    meant = {
        part
        for part, words in ((1.0, ("a", left)), (0.0, ("b", right)), (0.5, ("tie",)))
        if won in words
    }
    if len(meant) == 1:
        return meant.pop()
    if meant:
        raise SchemaError(
            f"{name_text(winner)!r} is {won!r} where {left!r} met {right!r}: it could be the place "
            "or the name. Rename the systems."
        )
    raise SchemaError(
        f"{name_text(winner)!r} is {won!r} where {left!r} met {right!r}: expected 'a', 'b', 'tie', "
        "one of the two names, or NA."
    )


def _sorted(names: Iterable[Any]) -> list[Any]:
    return sorted(names, key=lambda name: (type(name).__name__, name))


def _won(first: Ints, second: Ints, share: Floats, count: int) -> Ints:
    won = np.bincount(first[share == 1], minlength=count)
    return won + np.bincount(second[share == 0], minlength=count)


def _fit(wins: Floats, games: float) -> Floats:
    """Strengths with mean 0."""
    count = len(wins)
    if games:
        wins = np.pad(wins, (0, 1))
        wins[count, :count] = wins[:count, count] = games / 2
    fitted = library("choix").ilsr_pairwise_dense(wins, max_iter=_ROUNDS, tol=1e-10)[:count]
    return np.asarray(fitted - fitted.mean())


def _parts(wins: Floats, connection: str) -> list[Ints]:
    count, of = library("scipy.sparse.csgraph").connected_components(
        wins > 0, directed=True, connection=connection
    )
    return [np.flatnonzero(of == k) for k in range(count)]


def _check_met(names: list[Any], wins: Floats) -> None:
    groups = _parts(wins, "weak")
    if len(groups) > 1:
        shown = " and ".join(str([names[k] for k in group]) for group in groups)
        raise SchemaError(
            f"{shown} never met, not even through a third system, so they have no common order. "
            "Compare some of them, or rank each group by itself."
        )


def _never_lost(wins: Floats) -> Ints:
    """Systems that never lost to the rest; none of them where the likelihood has a maximum."""
    everyone = np.arange(len(wins))
    groups = _parts(wins, "strong")
    if len(groups) == 1:
        return everyone[:0]
    return np.concatenate(
        [g for g in groups if not wins[np.ix_(np.setdiff1d(everyone, g), g)].any()]
    )


def _draws(counts: Counts, draws: int, seed: int) -> Floats:
    """Strengths under the Bayesian bootstrap (Rubin 1981): draws by systems.

    What Firth's penalty adds is drawn too, as the prior of a Dirichlet process, so that no draw
    tells two systems apart for certain by a few rows.
    """
    random = np.random.default_rng(seed)
    added = firth(counts.wins)
    near = likeliest(counts.wins + added, np.zeros(counts.count))
    size = len(counts.share) / counts.groups
    own = slice(None) if counts.cluster is None else counts.cluster
    drawn = np.empty((draws, counts.count))
    for k in range(draws):
        wins = counts.weighted(random.exponential(size=counts.groups)[own])
        drawn[k] = likeliest(wins + size * random.gamma(added), near)
    return drawn


def _listed(names: list[Any], places: Ints) -> str:
    shown = ", ".join(repr(names[k]) for k in places[:_NAMED])
    more = len(places) - _NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _about_clusters(names: list[Any], groups: int, unknown: npt.NDArray[np.bool_]) -> list[str]:
    notes = []
    if unknown.any():
        who = "" if unknown.all() else f" for {_listed(names, np.flatnonzero(unknown))}"
        rows = "the" if unknown.all() else "its" if unknown.sum() == 1 else "their"
        notes.append(
            f"no interval{who}: {rows} rows are in fewer than {LEAST_CLUSTERS} clusters, which "
            "cannot tell how far rows of one cluster lean on each other."
        )
    if groups < FEW_CLUSTERS and not unknown.all():
        notes.append(f"{groups} clusters are few: take the intervals as a guide.")
    return notes

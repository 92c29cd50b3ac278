"""What a comparison of two jobs found, and how it looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pandas as pd

from llmframe import joins, markup
from llmframe.views import Sheet, counted, money, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["STATES", "Comparison"]

STATES: Final = ("same", "changed", "only_a", "only_b", "neither")
"""What two jobs made of a row: columns of `Comparison.counts`."""

_ROWS: Final = 20
"""Changed rows that a page shows."""
_LABELS: Final = 30
"""The largest confusion table that a page shows whole."""


@dataclass(frozen=True, repr=False)
class Comparison(Sheet):
    """What differs between the answers of two jobs.

    Attributes:
        a: Id of the first job.
        b: Id of the second.
        matched: How rows of the two were taken for the same one.
        rows: Rows that both have; all below is about these.
        unmatched: Rows that only ``"a"`` and only ``"b"`` has.
        counts: One line an output column. ``same`` and ``changed``: rows that both answered;
            ``only_a``, ``only_b``, ``neither``: the others, by who answered; ``agreement``: the
            share of ``same`` among those that both answered, NaN where there is none.
        changed: One line a cell that both answered, differently, in row order: on the labels of
            `a`, with the columns ``position`` (in `a`, or in the frame that was given),
            ``column``, ``a`` and ``b``.
        confusions: Of each output column with named values (labels, choices, bools): rows by
            the answer of `a` (down) and of `b` (across).
        cost: One line a job, ``a`` and ``b``: its id, model and state; rows answered and
            failed; the replies behind these rows, whichever job paid for them, with their
            tokens, US$ (NaN where no price is known) and median latency in seconds.
        notes: What to know before it is believed.
    """

    a: str
    b: str
    matched: str
    rows: int
    unmatched: Mapping[str, int]
    counts: pd.DataFrame
    changed: pd.DataFrame
    confusions: Mapping[str, pd.DataFrame]
    cost: pd.DataFrame
    notes: tuple[str, ...] = field(default=())

    @property
    def confusion(self) -> pd.DataFrame | None:
        """The first of `confusions`; None where no column has named values."""
        return next(iter(self.confusions.values()), None)

    @property
    def agreement(self) -> pd.Series[Any]:
        """Of each output column: the share of equal answers among the rows that both answered."""
        return self.counts["agreement"]

    def plot(self, column: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw a column's confusion table; where it has none, its counts as bars.

        Args:
            column: Which; None: the first one that has a table, else the first.
            ax: Where to draw; None: on a new figure.

        Returns:
            The matplotlib ``Axes``.

        Raises:
            KeyError: No such column is compared.
            ImportError: matplotlib is missing.
        """
        if column is None:
            column = str(next(iter(self.confusions), self.counts.index[0]))
        if column not in self.counts.index:
            listed = ", ".join(map(repr, self.counts.index))
            raise KeyError(f"no column {column!r} is compared; there are {listed}.")
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise ImportError(
                'plot() draws with matplotlib, which is missing. pip install "llmframe[plots]"'
            ) from None
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        found = self.confusions.get(column)
        if found is None:
            counts = [_line(self.counts, column)[name] for name in STATES]
            bars = ax.barh(list(STATES)[::-1], [int(count) for count in counts][::-1])
            ax.bar_label(bars)
            ax.set_xlabel("rows")
        else:
            _heat(ax, found)
            ax.set_xlabel(f"b: {self.b}, {_line(self.cost, 'b')['model']}")
            ax.set_ylabel(f"a: {self.a}, {_line(self.cost, 'a')['model']}")
        ax.set_title(f"{column}: {_agreed(_line(self.counts, column))}")
        return ax

    def _title(self) -> str:
        return f"{self.a} against {self.b}: {counted(self.rows, 'row')}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        for name in ("a", "b"):
            line = _line(self.cost, name)
            yield name, f"{line['job']}, {line['model']}, {line['state']}"
        yield "rows matched", self.matched
        for name, count in self.unmatched.items():
            if count:
                yield f"only in {name}", f"{counted(count, 'row')}, left out"
        for column, line in self.counts.iterrows():
            yield str(column), f"{_agreed(line)}; {_told(line)}"
        for name in ("a", "b"):
            yield f"cost of {name}", _bill(_line(self.cost, name))
        for text in self.notes:
            yield "note", text

    def _parts(self) -> Iterable[markup.Html]:
        names = set(self.counts.index) | {"cost of a", "cost of b", "note"}
        yield markup.facts(line for line in self._lines() if line[0] not in names)
        for text in self.notes:
            yield markup.toned(text, "warn")
        head = ["column", *(name.replace("_", " ") for name in STATES), "agreement"]
        lines = [
            [column, *(f"{line[name]:,.0f}" for name in STATES), _share(line["agreement"])]
            for column, line in self.counts.iterrows()
        ]
        yield markup.table(head, lines, numeric=range(1, len(head)))
        for column, found in self.confusions.items():
            yield markup.heading(f"{column}: a down, b across")
            yield _shaded(found)
        yield markup.heading("Cost of these rows' answers")
        head = ["", "model", "answered", "failed", "tokens in", "tokens out", "cost", "median s"]
        timed = len(head) - bool(self.cost["latency"].isna().all())
        lines = [_cost_cells(name, line)[:timed] for name, line in self.cost.iterrows()]
        yield markup.table(head[:timed], lines, numeric=range(2, timed))
        if len(self.changed):
            yield markup.details(f"{len(self.changed):,} changed cells", *self._first_changed())

    def _first_changed(self) -> Iterator[markup.Html]:
        shown = self.changed.head(_ROWS)
        lines = [
            (joins.label_text(label), *row)
            for label, row in zip(
                shown.index, shown[["column", "a", "b"]].itertuples(index=False), strict=True
            )
        ]
        yield markup.table(["row", "column", "a", "b"], lines)
        if len(self.changed) > len(shown):
            yield markup.note(f"… and {len(self.changed) - len(shown):,} more in .changed")


def _line(table: pd.DataFrame, name: str) -> pd.Series[Any]:
    return cast("pd.Series[Any]", table.loc[name])


def _share(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.1f} %"


def _agreed(line: pd.Series[Any]) -> str:
    share = _share(line["agreement"])
    return f"{share} agreement" if share else "no row with two answers"


def _told(line: pd.Series[Any]) -> str:
    counts = [(name.replace("_", " "), int(line[name])) for name in STATES]
    return ", ".join(f"{number(n)} {name}" for name, n in counts if n or name == "changed")


def _bill(line: pd.Series[Any]) -> str:
    tokens = f"{number(line['input_tokens'])} tokens in, {number(line['output_tokens'])} out"
    return f"{money(None if np.isnan(line['cost']) else line['cost'])}, {tokens}"


def _cost_cells(name: Any, line: pd.Series[Any]) -> list[Any]:
    counts = ("answered", "failed", "input_tokens", "output_tokens")
    cost = money(None if np.isnan(line["cost"]) else line["cost"])
    seconds = "" if np.isnan(line["latency"]) else f"{line['latency']:.2f}"
    return [name, line["model"], *(number(line[count]) for count in counts), cost, seconds]


def _shaded(found: pd.DataFrame) -> markup.Html:
    shown = found.iloc[:_LABELS, :_LABELS]
    most = max(int(shown.to_numpy().max(initial=0)), 1)
    rows = [
        [label, *(markup.shaded(count, count / most) for count in line)]
        for label, line in zip(shown.index.tolist(), shown.to_numpy().tolist(), strict=True)
    ]
    made = markup.table(["", *shown.columns.tolist()], rows, numeric=range(1, shown.shape[1] + 1))
    more = len(found) - len(shown)
    return markup.joined(made, markup.note(f"… and {more:,} more labels")) if more else made


def _heat(ax: Axes, found: pd.DataFrame) -> None:
    """The table as squares, the darker the more rows, with the count in each.

    Rows that stayed as they were, on the diagonal, are blue; those that changed are orange, and
    as dark as their own number is large, since they are what is looked for.
    """
    counts = found.to_numpy()
    same = np.eye(len(counts), dtype=bool)
    most = np.where(same, *(max(1, counts[part].max(initial=0)) for part in (same, ~same)))
    for part, colors, full in ((same, "Blues", 1.25), (~same, "Oranges", 1.6)):
        shares = np.ma.masked_array(counts / most, mask=~part)
        ax.imshow(shares, cmap=colors, vmin=0, vmax=full, aspect="equal")
    names = [str(name) for name in found.index]
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    for (i, k), count in np.ndenumerate(counts):
        color = "white" if count > 0.7 * most[i, k] else "black" if count else "silver"
        ax.text(k, i, f"{count:,}", ha="center", va="center", color=color)

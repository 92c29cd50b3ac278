"""What an analysis returns: a table, what must be known to read it, and how both look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from llmframe import markup
from llmframe.judges.libraries import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Findings", "finite", "shown"]


class Findings:
    """A table with notes; the same lines as text and as HTML.

    Attributes:
        table: The figures.
        notes: What must be known to read them: rows that were left out, why a figure is missing.
    """

    table: pd.DataFrame
    notes: tuple[str, ...]

    def _title(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        head, rows = self._cells()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        text = {k for k in range(len(head)) if not self._is_number(k)}
        lines = [
            "  ".join(
                cell.ljust(width) if k in text else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [head, *rows]
        ]
        return "\n".join([self._title(), *(f"  {line}" for line in lines), *self.notes])

    def _repr_html_(self) -> str:
        head, rows = self._cells()
        numeric = [k for k in range(len(head)) if self._is_number(k)]
        return markup.page(markup.table(head, rows, numeric), *self.notes, title=self._title())

    def _is_number(self, place: int) -> bool:
        return place > 0 and pd.api.types.is_numeric_dtype(self.table.dtypes.iloc[place - 1])

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = [str(self.table.index.name or ""), *map(str, self.table.columns)]
        columns = [list(map(shown, self.table.index))]
        columns += [list(map(shown, self.table.iloc[:, k])) for k in range(self.table.shape[1])]
        return head, [list(row) for row in zip(*columns, strict=True)]

    def _draw(self, labels: Sequence[str], axes: Axes | None, xlabel: str) -> Axes:
        """Estimates as points with their intervals, the first row on top."""
        if axes is None:
            _, axes = library("matplotlib.pyplot").subplots()
        places = range(len(labels), 0, -1)
        middle, low, high = (
            self.table[name].to_numpy(float) for name in ("estimate", "low", "high")
        )
        ends = np.concatenate([low, middle, high])
        ends = ends[np.isfinite(ends)]
        if len(ends):  # an interval without an end is drawn as far as there is anything
            low, high = (np.clip(side, ends.min(), ends.max()) for side in (low, high))
        axes.hlines(places, low, high, linewidth=2)
        axes.plot(middle, places, linestyle="", marker="o")
        axes.set_yticks(places, labels)
        axes.set_xlabel(xlabel)
        return axes


def finite(value: Any) -> bool:
    """Whether it is a number that can be reckoned with: no bool, no text, no NaN.

    Examples:
        >>> finite(0.5), finite("0.5"), finite(float("inf")), finite(True)
        (True, False, False, False)
    """
    number = isinstance(value, int | float | np.integer | np.floating)
    return number and not isinstance(value, bool) and math.isfinite(value)


def shown(value: Any) -> str:
    """A cell: three digits of a fraction, ``NA`` for what is missing.

    Examples:
        >>> shown(0.25), shown(float("nan")), shown(7), shown("ppi")
        ('0.250', 'NA', '7', 'ppi')
    """
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "NA"
    return f"{value:.3f}" if isinstance(value, float) else str(value)

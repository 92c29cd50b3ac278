"""What was made of a frame's rows, asked of the frame itself: failures, states, one cell's way."""

from __future__ import annotations

from typing import Any

import pandas as pd

from llmframe import frames, joins
from llmframe.errors import StoreError
from llmframe.failures import FailureTable
from llmframe.outcomes import Outcome
from llmframe.reports import Trace
from llmframe.submits import job

__all__ = ["Holder", "Looks"]


class Holder:
    """Something that holds the data a verb works on."""

    __slots__ = ("_data",)

    def __init__(self, data: Any) -> None:
        self._data = data


class Looks(Holder):
    """How the cells of a frame that llmframe wrote came to be.

    Keys are computed again from the frame at hand, so a filtered, sorted or reset frame shows
    its own rows.
    """

    def _jobs(self, column: Any) -> dict[str, Any]:
        """Job id → first column it wrote."""
        written = frames.written(self._data)
        if not written:
            raise StoreError(
                "this frame has no column that llmframe wrote (its attrs name none). Use "
                "lf.job(id).join(df); lf.jobs() lists the jobs."
            )
        if column is not None:
            if column not in written:
                listed = ", ".join(map(repr, written))
                raise StoreError(f"llmframe did not write column {column!r}; it wrote {listed}.")
            return {written[column]: column}
        found: dict[str, Any] = {}
        for name, id in written.items():
            found.setdefault(id, name)
        return found

    def _outcome(self, id: str) -> Outcome:
        return job(id).on(self._data)

    def failures(self, column: Any = None) -> pd.DataFrame:
        """The rows that failed, and why.

        Args:
            column: Of which output column; None: of all.

        Returns:
            DataFrame on the frame's own index with columns ``position, kind, message, raw,
            attempts, request_id``; one line a failed row. Where several jobs wrote columns, a
            first column ``column`` says whose failure it is.
        """
        ids = self._jobs(column)
        tables = {
            name: joins.failures(self._data.index, self._outcome(id).lost_rows())
            for id, name in ids.items()
        }
        if len(tables) == 1:
            return next(iter(tables.values()))
        for name, table in tables.items():
            table.insert(0, "column", [name] * len(table))
        return FailureTable(pd.concat(list(tables.values())))

    def status(self, column: Any = None) -> pd.Series:
        """State of each row: ok, cached, skipped, failed, pending, in_doubt or kept.

        Args:
            column: Of which output column; None: of the one written last.

        Returns:
            Categorical Series on the frame's own index.
        """
        id = list(self._jobs(column))[-1]
        return joins.status(self._data.index, self._outcome(id).row_status())

    def trace(self, label: Any = None, *, column: Any = None, position: int | None = None) -> Trace:
        """How one cell came to be: prompt, raw replies, usage, attempts.

        Args:
            label: The row's index label.
            column: Of which output column; None: of the one written last.
            position: The row's place, where labels repeat.

        Raises:
            KeyError: No row has that label.
            ValueError: Several rows have it; `position` tells them apart.
        """
        id = list(self._jobs(column))[-1]
        return job(id).trace_on(self._data, label, position)

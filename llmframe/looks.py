"""What was made of a frame's rows, asked of the frame itself: failures, states, one cell's way."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from llmframe import frames, joins
from llmframe.columns import name_text
from llmframe.errors import StoreError
from llmframe.failures import FailureTable
from llmframe.outcomes import Outcome
from llmframe.reports import Report, Trace
from llmframe.row_texts import asked_of_a_series, row_texts
from llmframe.submits import job
from llmframe.work import KEPT

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

    def _outcome(self, id: str) -> tuple[Outcome, list[int]]:
        """What became of a job's rows, and the place in it of each row at hand.

        Raises:
            StoreError: The answers are about a Series, on labels that are not the job's.
        """
        found = job(id)
        if self._holds_what_was_asked(id):
            return found.on(self._data), list(range(len(self._data)))
        # Answers about a Series do not hold it: their rows are known by their labels.
        asked = found.label_texts()
        table = frames.Table(self._data)
        here = joins.labels_index([table.label_text(k) for k in range(len(self._data))])
        places = list(range(len(here)))
        if not here.equals(asked):
            places = asked.get_indexer(here).tolist() if asked.is_unique else [-1]
        if -1 in places:
            raise StoreError(
                f"these answers are about a Series, so their rows are found by their labels, and "
                f"not all labels are, once each, among those of job {id}. "
                f"lf.job({id!r}).failures() has all of the job's rows."
            )
        return found.outcome(), places

    def _holds_what_was_asked(self, id: str) -> bool:
        return isinstance(self._data, pd.DataFrame) and not asked_of_a_series(job(id).call)

    def _failures(self, id: str) -> FailureTable:
        outcome, places = self._outcome(id)
        here = {place: row for row, place in enumerate(places)}
        lost = [(here[place], loss) for place, loss in outcome.lost_rows() if place in here]
        return joins.failures(self._data.index, sorted(lost, key=itemgetter(0)))

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
        tables = {name: self._failures(id) for id, name in ids.items()}
        texts: dict[int, str | None] = {}
        for id, name in ids.items():
            texts |= self._asked(id, tables[name]["position"].tolist())
        if len(tables) == 1:
            return next(iter(tables.values())).with_texts(texts)
        for name, table in tables.items():
            table.insert(0, "column", [name] * len(table))
        return FailureTable(pd.concat(list(tables.values()))).with_texts(texts)

    def _asked(self, id: str, positions: list[int]) -> dict[int, str | None]:
        """What the model was asked about in some rows, where the frame says it."""
        if not positions or not self._holds_what_was_asked(id):
            return {}
        source = row_texts(self._data, None, job(id).call)
        texts = source.of(self._data.iloc[positions])
        return dict(zip(positions, texts, strict=True))

    def status(self, column: Any = None) -> pd.Series:
        """State of each row: ok, cached, skipped, failed, pending, in_doubt or kept.

        Args:
            column: Of which output column; None: of the one written last.

        Returns:
            Categorical Series on the frame's own index.
        """
        codes: Any = None
        for id in self._before(list(self._jobs(column))[-1]):
            outcome, places = self._outcome(id)
            found = outcome.row_status()[places]
            # Of a row that a later call kept the earlier one says how it came to be.
            codes = found if codes is None else np.where(codes == KEPT, found, codes)
        return joins.status(self._data.index, codes)

    def _before(self, id: str) -> list[str]:
        """A job, and before it those that wrote into the same columns, the latest first.

        The columns of a cascade, and those that ``if_exists="fill"`` filled, are of several calls.
        """
        own = set(map(name_text, job(id).call.columns))
        others = [other for other in self._jobs(None) if other != id]
        return [id, *(o for o in others if own & set(map(name_text, job(o).call.columns)))]

    def report(self, column: Any = None) -> Report:
        """What happened in the call that wrote a column: rows, tokens, cost, failures by kind.

        Of a cascade (``escalate_to=``) it says how many rows went on, what the stronger model
        cost, and what it would have cost to ask it for all.

        Args:
            column: Which output column; None: the one written last.
        """
        return job(list(self._jobs(column))[-1]).report()

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
        ids = self._before(list(self._jobs(column))[-1])
        found = [self._trace(id, label, position) for id in ids]
        return next((trace for trace in found if trace.replies), found[0])

    def _trace(self, id: str, label: Any, position: int | None) -> Trace:
        if self._holds_what_was_asked(id):
            return job(id).trace_on(self._data, label, position)
        outcome, places = self._outcome(id)
        row = joins.place_of(self._data, label) if position is None else position
        shown = joins.label_text(self._data.index[row])
        return job(id).trace_row(outcome.work, places[row], shown)

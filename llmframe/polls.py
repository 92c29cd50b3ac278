"""Votes one after another: of whom more is asked, by the answers so far.

What is asked next is a function of a row's answers in the order of its requests, and of nothing
else. So a run, one that goes on after it, and whoever reads the journal come to the same votes and
the same score, whichever votes are stored besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmframe.work import SKIPPED

if TYPE_CHECKING:
    from llmframe.outcomes import Outcome

__all__ = ["Polls"]


class Polls:
    """Which requests are asked, and when.

    Args:
        outcome: The answers so far; the requests that turn out not to be needed are marked in it.
    """

    def __init__(self, outcome: Outcome) -> None:
        work = outcome.work
        panel = work.call.panel
        self._outcome = outcome
        self._panel = panel if panel is not None and panel.sequential else None
        count = 0 if self._panel is None else work.count
        # A row is asked at most 100 times: a byte each.
        self._asked = np.zeros(count, dtype=np.uint8)
        self._open = np.zeros(count, dtype=np.uint8)

    def first(self) -> list[int]:
        """Places that are asked whatever comes, those that calibrate the others before them."""
        work, panel = self._outcome.work, self._panel
        aux = range(len(work.keys), len(work))
        if panel is None:
            return [*aux, *range(len(work.keys))]
        asks, least = work.call.asks, panel.more(())
        # Rows that share one request share them all.
        rows = work.first[work.first % asks == 0] // asks
        self._asked[rows] = self._open[rows] = least
        return [*aux, *work.places[rows, :least].ravel().tolist()]

    def then(self, place: int) -> tuple[list[int], list[int]]:
        """A request is at its end.

        Args:
            place: Of the request; its answer, or that it has none, is in the outcome already.

        Returns:
            Places that are asked next, and those that never are; both empty while the row waits
            for other answers, and at its last.
        """
        outcome, panel = self._outcome, self._panel
        work = outcome.work
        if panel is None or place >= len(work.keys):
            return [], []
        row = work.row_of(place)
        self._open[row] -= 1
        if self._open[row]:
            return [], []
        places, asked = work.places[row].tolist(), int(self._asked[row])
        more = panel.more([outcome.values[own] for own in places[:asked]])
        if not more:
            outcome.status[places[asked:]] = SKIPPED
            return [], places[asked:]
        self._asked[row] += more
        self._open[row] = more
        return places[asked : asked + more], []

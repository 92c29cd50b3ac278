"""How many of a row's requests came to something, and what is said where some did not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmframe.errors import RowsFailedWarning, warn_user
from llmframe.panels import Panel
from llmframe.results import KINDS
from llmframe.work import CACHED, FAILED, IN_DOUBT, OK, PENDING, SKIPPED

if TYPE_CHECKING:
    from llmframe.calls import Call
    from llmframe.outcomes import Outcome

__all__ = ["states", "warn_of_panel", "warn_of_scores", "warn_of_unsure"]


def states(requests: npt.NDArray[np.uint8], panel: Panel | None) -> npt.NDArray[np.uint8]:
    """Place in `llmframe.work.STATUS` of each row.

    Args:
        requests: Those of its requests, of shape (rows, requests a row).
        panel: What they are; None: there is one a row.
    """
    if panel is None:
        return requests[:, 0]
    new, old = requests == OK, requests == CACHED
    asked = (requests != SKIPPED).sum(axis=1)
    enough = (new | old).sum(axis=1) >= (asked // 2 + 1 if panel.majority else asked)
    found = np.where(enough, np.where(new.any(axis=1), OK, CACHED), FAILED)
    # What is still to come may change the row.
    for open_ in (PENDING, IN_DOUBT):
        found[(requests == open_).any(axis=1)] = open_
    return found.astype(np.uint8)


def warn_of_scores(call: Call, outcome: Outcome) -> None:
    """Say that probabilities were wanted, and expected of the engine, and did not come."""
    expected = call.panel is not None and call.panel.expected
    if not (call.confidence or expected) or call.choices is None:
        return
    labelled = [place for place, row in enumerate(outcome.values) if row is not None]
    without = sum(place not in outcome.scores for place in labelled)
    if without:
        what, of = ("expected score", "scores") if expected else ("confidence", "labels")
        warn_user(
            f"the {what} is NA for {without:,} of {len(labelled):,} {of}: their replies "
            f"came without probabilities."
        )


def warn_of_unsure(call: Call, outcome: Outcome) -> None:
    """Say how many rows have no label because none was sure enough."""
    if call.unsure_below is None:
        return
    rows = [row for row in outcome.rows() if row is not None]
    unsure = sum(len(row) > 1 and row[0] is None for row in rows)
    if unsure:
        warn_user(
            f"{unsure:,} of {len(rows):,} rows have no label: less than {call.unsure_below:g} "
            f"sure. Their confidence is in {call.columns[-1]!r}."
        )


def warn_of_panel(panel: Panel, outcome: Outcome) -> None:
    """Say what a row with an answer does not show: failed votes, pairs without a winner."""
    work = outcome.work
    good = np.isin(outcome.row_status(), (OK, CACHED))
    failed = (outcome.status[work.places] == FAILED) & good[:, None]
    if failed.any():
        lost = [outcome.losses[place].failure for place in work.places[failed].tolist()]
        kinds = Counter(failure.kind for failure in lost)
        told = sum(n for kind, n in kinds.items() if kind in KINDS and KINDS[kind].rerun == "told")
        again = "the same call asks only these"
        if told == len(lost):
            again = 'the provider refused these, so only retry="all" asks them again'
        elif told:
            again += f', less the {told:,} that the provider refused (retry="all" asks them too)'
        listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        warn_user(
            f"{int(failed.any(axis=1).sum()):,} of {work.count:,} rows are scored although some of "
            f"their votes failed ({listed}), which count for nothing; {again}. "
            f"out.llm.trace(label) shows each reply.",
            RowsFailedWarning,
        )
    if panel.size > 1 and (notice := panel.notice(outcome.rows())) is not None:
        warn_user(notice)

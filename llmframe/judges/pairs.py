"""Audit of a judge that compares: does it go by the place, or by the length?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.cells import unbox
from llmframe.columns import name_text
from llmframe.errors import SchemaError
from llmframe.judges.checks import Checks
from llmframe.judges.ratings import column
from llmframe.outcomes import Outcome
from llmframe.panels import Orders
from llmframe.views import counted

__all__ = ["look", "winners"]

Floats = npt.NDArray[np.float64]

_GUESSED: Final = 0.2
"""Share of pairs that change their winner, from which on that is told whatever the direction."""
_PLACES: Final = {"first": 1, "second": -1, "tie": 0}


def winners(data: pd.DataFrame, name: Hashable) -> list[str | None]:
    """What people say of the pairs: ``a``, ``b``, ``tie``, or None.

    Raises:
        SchemaError: A cell holds something else.
    """
    found: list[str | None] = []
    for cell in column(data, name):
        value = None if pd.isna(cell) else unbox(cell)
        if value not in {None, "a", "b", "tie"}:
            raise SchemaError(
                f"truth={name_text(name)!r} holds {value!r}; expected 'a', 'b', 'tie', or NA. "
                f"Nothing was sent."
            )
        found.append(value)
    return found


def look(
    checks: Checks,
    outcomes: Sequence[Outcome],
    long_a: Floats,
    long_b: Floats,
    truth: Sequence[str | None] | None,
) -> None:
    """Add the checks of a comparison.

    Args:
        checks: Where to.
        outcomes: Of the criterion and, where it was asked too, of its other wording.
        long_a: Characters of each first text.
        long_b: Of each second one.
        truth: As `winners`; None: nobody said.
    """
    rows = outcomes[0].rows()
    judged = [place for place, row in enumerate(rows) if row is not None]
    named = {place: _winner(rows[place]) for place in judged}
    _place(checks, outcomes[0], judged)
    _ties(checks, list(named.values()), None if truth is None else [truth[k] for k in judged])
    longer = {
        place: "a" if long_a[place] > long_b[place] else "b"
        for place, winner in named.items()
        if winner in {"a", "b"} and long_a[place] != long_b[place]
    }
    taken = [float(named[place] == text) for place, text in longer.items()]
    won = checks.share("longer_wins", taken, None, "pairs")
    if truth is not None:
        errors = [
            float(named[place] == text)
            for place, text in longer.items()
            if truth[place] in {"a", "b"} and truth[place] != named[place]
        ]
        blind = checks.share("longer_in_errors", errors, 0.5, "pairs")
        if blind.low > 0.5 or blind.high < 0.5:
            text = "longer" if blind.low > 0.5 else "shorter"
            part = blind.estimate if blind.low > 0.5 else 1 - blind.estimate
            checks.findings.append(
                f"it prefers the {text} text: that is its choice in {part:.0%} of the "
                f"{len(errors):,} pairs that people decide the other way."
            )
    elif won.low > 0.5 or won.high < 0.5:
        text = "longer" if won.low > 0.5 else "shorter"
        part = won.estimate if won.low > 0.5 else 1 - won.estimate
        checks.findings.append(
            f"the {text} text wins {part:.0%} of {len(taken):,} pairs: it prefers the {text} one, "
            f"or that is the better one in your rows; truth= tells."
        )
    if len(outcomes) > 1:
        others = outcomes[1].rows()
        both = [place for place in judged if others[place] is not None]
        same = [float(named[place] == _winner(others[place])) for place in both]
        told = checks.share("reworded_alike", same, 1.0, "pairs")
        if told.high < 1 - _GUESSED:
            checks.findings.append(
                f"other words change what it says of {1 - told.estimate:.0%} of "
                f"{len(both):,} pairs."
            )


def _ties(checks: Checks, named: Sequence[object], truth: Sequence[str | None] | None) -> None:
    """Whether it names winners at all."""
    checks.share("ties", [float(winner == "tie") for winner in named], None, "pairs")
    if len(named) < 2 or set(named) != {"tie"}:
        return
    people = None
    if truth is not None and any(truth):
        won = sum(winner in {"a", "b"} for winner in truth)
        people = f"where people name a winner for {won:,} of them" if won else ""
    checks.alike(f"all {len(named):,} pairs are called a tie", len(named), people)


def _winner(row: tuple[object, ...] | None) -> object:
    return None if row is None else row[0]


def _place(checks: Checks, outcome: Outcome, judged: Sequence[int]) -> None:
    panel = outcome.work.call.panel
    assert isinstance(panel, Orders), "only called for compare"
    at = int(panel.explain)
    leaning = []
    for place in judged:
        own = [outcome.values[request] for request in outcome.work.places[place].tolist()]
        # 1 and 1: the first place twice. 1 and -1: the same text twice, wherever it stood.
        leaning.append(sum(_PLACES[values[at]] for values in own if values is not None))
    changed = [float(lean != 0) for lean in leaning]
    unsure = checks.share("inconsistent", changed, 0.0, "pairs")
    first = [float(lean > 0) for lean in leaning if lean]
    favour = checks.share("first_favoured", first, 0.5, "pairs")
    told = (
        f"{len(first):,} of {len(judged):,} pairs ({unsure.estimate:.0%}) change their winner with "
        f"the order"
    )
    where = "first" if favour.estimate >= 0.5 else "second"
    part = favour.estimate if favour.estimate >= 0.5 else 1 - favour.estimate
    if favour.low > 0.5 or favour.high < 0.5:
        checks.findings.append(
            f"it prefers the {where} answer: {told}, {part:.0%} of these to the {where} place."
        )
    elif unsure.low > _GUESSED:
        checks.findings.append(
            f"it guesses, or goes by the place: {told}, {part:.0%} of these to the {where} place; "
            f"{counted(len(first), 'pair')} cannot tell which."
        )

"""A cascade: one model answers all rows, a stronger one those of which the first is not sure.

It is two calls, one after the other: the second asks the rows that the first left without a label,
as ``unsure_below=`` and ``if_exists="fill"`` do by hand. Both are journalled, so a cascade that was
interrupted goes on with the same call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmframe.errors import warn_user
from llmframe.plans import Plan
from llmframe.prepared import Prepared
from llmframe.submits import plan, submit
from llmframe.views import money

__all__ = ["alone", "cascaded", "planned"]


def cascaded(prepared: Prepared) -> Any:
    """Run both calls to their ends, and join.

    Args:
        prepared: The first call, with its ``stronger``.
    """
    stronger = prepared.stronger
    assert stronger is not None, "only called for cascades"
    everything = plan(stronger.whole)  # refuses what the stronger model cannot take, unsent
    first = submit(prepared)
    out = first.result()
    outcome = first.outcome()
    rows = outcome.rows()
    answered = sum(row is not None for row in rows)
    unsure = sum(row is not None and row[0] is None for row in rows)
    failed = outcome.counts()["failed"]
    if not unsure + failed:
        return out
    left = prepared.budget
    if left is not None:
        left = max(0.0, left - (first.status().cost or 0.0))
    second = stronger.then(out, left)
    job = submit(second)
    final = job.result()
    if stronger.whole.call.errors != "coerce":
        told = f"{unsure:,} of {answered:,} rows ({unsure / max(answered, 1):.0%}) were less than "
        told += f"{prepared.call.unsure_below:g} sure and went to {job.model}"
        told += f", as did {failed:,} that failed" if failed else ""
        cost = job.status().cost
        if everything.expected and cost is not None:
            told += f": {money(cost)}; all rows would have been about {money(everything.expected)}"
        warn_user(f"{told}.")
    return final


def planned(prepared: Prepared, pilot: int) -> Plan:
    """What a call would send and cost; of a cascade the first call, and how far it may go on."""
    if prepared.stronger is None:
        return plan(prepared, pilot=pilot)
    most = plan(prepared.stronger.whole)
    told = (
        f"rows less than {prepared.call.unsure_below:g} sure go on to {most.model}: at most "
        f"{most.requests:,} requests more, {money(most.expected)}."
    )
    return plan(replace(prepared, advice=(*prepared.advice, told)), pilot=pilot)


def alone(prepared: Prepared) -> Prepared:
    """The call, where it is one job.

    Raises:
        ValueError: It is a cascade.
    """
    if prepared.stronger is not None:
        raise ValueError(
            "escalate_to= is two jobs, one after the other, and this starts one. Make the two "
            "calls: classify(…, unsure_below=0.8), and on its frame classify(…, model=…, "
            'if_exists="fill"). Nothing was sent.'
        )
    return prepared

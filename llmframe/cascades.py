"""A cascade: one model answers all rows, a stronger one those of which the first is not sure.

It is two jobs, one after the other: the second asks the rows that the first left without a label,
as ``unsure_below=`` and ``if_exists="fill"`` do by hand. Both are journalled, so a cascade that was
interrupted goes on with the same call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from llmframe import frames, joins
from llmframe.errors import Line, on_behalf, warn_user
from llmframe.escalations import note_escalation
from llmframe.jobs import Job
from llmframe.journal import Journal
from llmframe.launches import journal_of
from llmframe.plans import Plan
from llmframe.prepared import Prepared
from llmframe.submits import plan, submit
from llmframe.views import money

__all__ = ["acascaded", "alone", "cascaded", "planned"]


@dataclass(frozen=True, slots=True)
class _Between:
    """The first call, done.

    Attributes:
        first: Its job.
        out: Its frame.
        came_to: What both jobs' records say of it.
        journal: Where the first job is.
        second: The call for the rows that it left open; None: there are none.
    """

    first: Job
    out: Any
    came_to: dict[str, Any]
    journal: Journal
    second: Prepared | None = None

    def note(self, second: Job | None) -> None:
        """Say in the first job's record what it came to, and who goes on."""
        other = None if second is None else second.id
        note_escalation(self.journal, self.first.id, {**self.came_to, "other": other})


def cascaded(prepared: Prepared) -> Any:
    """Run both calls to their ends, and join.

    Args:
        prepared: The first call, with its ``stronger``.
    """
    opened = _opening(prepared)
    first = submit(opened)
    stage = _between(opened, first, first.result())
    if stage.second is None:
        return stage.out
    second = submit(stage.second)
    stage.note(second)
    return _closing(opened, stage, second, second.result())


async def acascaded(
    prepared: Prepared,
    line: Line,
    run: Callable[[Prepared, Callable[[Job], None]], Awaitable[tuple[Job, Any]]],
) -> Any:
    """As `cascaded`, without blocking the loop.

    Args:
        prepared: The first call, with its ``stronger``.
        line: Where its warnings are told.
        run: Runs one call to its end, and gives its job and its frame; what it is given is told
            the job as soon as there is one.
    """
    opened = await asyncio.to_thread(on_behalf, line, _opening, prepared)
    first, out = await run(opened, lambda _: None)
    stage = await asyncio.to_thread(on_behalf, line, _between, opened, first, out)
    if stage.second is None:
        return out
    second, final = await run(stage.second, stage.note)
    return await asyncio.to_thread(on_behalf, line, _closing, opened, stage, second, final)


def _opening(prepared: Prepared) -> Prepared:
    """The first call; what the stronger model cannot take is refused before anything is sent."""
    assert prepared.stronger is not None, "only called for cascades"
    whole = plan(prepared.stronger)
    known = {"model": whole.model, "below": prepared.call.unsure_below, "whole": whole.expected}
    return replace(prepared, cascade=known)


def _between(prepared: Prepared, first: Job, out: Any) -> _Between:
    """What the first call leaves for the stronger model."""
    assert prepared.stronger is not None, "only called for cascades"
    outcome = first.outcome()
    answered = [row for row in outcome.rows() if row is not None]
    failed = outcome.counts()["failed"]
    left_open = failed + sum(row[0] is None for row in answered)
    came_to = {**prepared.cascade, "rows": left_open, "failed": failed}
    came_to["of"] = len(answered) + failed
    stage = _Between(first, out, came_to, journal_of(prepared.engine))
    if not left_open:
        stage.note(None)
        return stage
    budget = prepared.budget
    if budget is not None:
        budget = max(0.0, budget - (first.status().cost or 0.0))
    details = joins.detail_names(prepared.prefix) if prepared.details else ()
    second = prepared.stronger.filling(frames.without(out, details), budget)
    known = {**came_to, "other": first.id, "is_second": True}
    return replace(stage, second=replace(second, cascade=known))


def _closing(prepared: Prepared, stage: _Between, second: Job, final: Any) -> Any:
    """Say what it came to, and join what is told of each row."""
    found = second.report().escalation
    if found is not None and second.call.errors != "coerce":
        warn_user(found.told())
    if not prepared.details:
        return final
    assert stage.second is not None, "it was run"
    return joins.both_details(stage.out, final, prepared.prefix, stage.second.asked)


def planned(prepared: Prepared, pilot: int) -> Plan:
    """What a call would send and cost; of a cascade the first call, and how far it may go on."""
    if prepared.stronger is None:
        return plan(prepared, pilot=pilot)
    most = plan(prepared.stronger)
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

"""Calls become jobs: planned, submitted, and found again."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from llmframe import pilots
from llmframe.brakes import UNLIMITED, output_limit
from llmframe.calls import call_from
from llmframe.costs import Price
from llmframe.engines import homes
from llmframe.engines.base import BatchEngine
from llmframe.errors import BudgetError, ModelError, StoreError, warn_user
from llmframe.job_tables import JobTable
from llmframe.jobs import Job
from llmframe.journal import JobRecord, Journal, new_job_id
from llmframe.lanes import twin_of
from llmframe.launches import journal_of, run_over
from llmframe.options import get_options
from llmframe.plans import Plan, estimate, plan_of, price_of
from llmframe.prepared import Prepared
from llmframe.reopened import remember, remembered, save_rows
from llmframe.results import Usage
from llmframe.runs import Run
from llmframe.verdicts import judge_on, refuse
from llmframe.views import money
from llmframe.work import Work, compiled

__all__ = ["job", "jobs", "plan", "purge", "submit"]

_live: weakref.WeakValueDictionary[str, Job] = weakref.WeakValueDictionary()
"""Jobs of this process, so that `job(id)` finds the one that is running."""

_said: set[str] = set()


def _start(prepared: Prepared, job: str) -> tuple[Prepared, Work, Run, Journal]:
    """Compile, and look up what is answered already; nothing is sent."""
    engine = prepared.engine
    if not prepared.cache:
        prepared = replace(prepared, call=replace(prepared.call, salt=job))
    call, limits = prepared.call, engine.limits
    if call.sampling.seed is not None and not limits.seed:
        raise ModelError(
            f"seed={call.sampling.seed}: there is none in the API of {engine.name}. "
            f"Leave it out. Nothing was sent."
        )
    call = replace(call, reply=limits.reply, reply_most=limits.reply_most)
    prepared = replace(prepared, call=call)
    accepts = getattr(engine, "accepts", None)
    if prepared.call.form.schema is not None and callable(accepts):
        accepts(prepared.call.form.schema)
    known = price_of(engine, batch=isinstance(engine, BatchEngine))
    if prepared.budget is not None and known is None:
        raise BudgetError(
            f"budget={prepared.budget} cannot be kept: no price is known for "
            f"{engine.name}/{engine.model}. Nothing was sent. Give one with "
            f'lf.set_options(prices={{"{engine.name}/{engine.model}": (input, output)}}), '
            f"US$ per million tokens."
        )
    if prepared.budget is not None and known is not None:
        prepared = _limited(prepared, known)
    journal = journal_of(engine)
    work = compiled(prepared.call, prepared.table, prepared.asked)
    refuse(prepared.data, prepared.call, work.asked)
    run = run_over(
        work,
        engine,
        journal,
        job,
        budget=prepared.budget,
        concurrency=prepared.concurrency,
        judge=judge_on(prepared.data, prepared.call),
        ahead=prepared.ahead,
    )
    return prepared, work, run, journal


def _limited(prepared: Prepared, known: Price) -> Prepared:
    """With a token limit on every reply: a budget cannot be held against one that has none.

    The limit is in no key, so the same call without a budget, or with another one, asks nothing
    again.
    """
    call = prepared.call
    if output_limit(call.sent) is not None or not known.cost(Usage(0, UNLIMITED)):
        return prepared
    told = (
        f"budget= without max_tokens: max_tokens={UNLIMITED} is sent, so that no reply can pass "
        f"the budget, and each row reserves as much; a smaller max_tokens lets more rows go out "
        f"at once."
    )
    call = replace(call, ceiling=UNLIMITED)
    return replace(prepared, call=call, advice=(*prepared.advice, told))


def plan(prepared: Prepared, *, pilot: int = 0) -> Plan:
    """What a call would send and cost. Nothing is sent, nothing is stored.

    Args:
        prepared: The call.
        pilot: Buy rows, live, until that many have replies, and keep them: the call itself does
            not pay them again. What they cost gives the estimate an interval.

    Raises:
        ValueError: `pilot` is no count, or as many rows as there are.
        LLMFrameError: The pilot ended early.
    """
    count = pilots.checked(pilot)
    before, work, run, journal = _start(prepared, "plan")
    engine = before.engine
    missing = [place for place in run.missing() if place < len(work.keys)]
    if not count or not missing:
        return plan_of(work, run, engine, before.advice)
    if not prepared.cache:
        raise ValueError("pilot= keeps its rows for the call, and cache=False asks them anew.")
    # What was tried before counts, also where it failed: the same plan again buys nothing.
    tried = _by_row(work, [place for place in run.tried() if place < len(work.keys)])
    untried = {row: own for row, own in _by_row(work, missing).items() if row not in tried}
    wanted = max(0, count - len(tried))
    if wanted >= len(untried) > 0:
        raise ValueError(
            f"pilot={pilot}: {len(untried):,} requests of this call are without a reply, and a "
            f"pilot of {wanted:,} would buy them all, live. Make the call itself, or a smaller "
            f"pilot. Nothing was sent."
        )
    rows = pilots.spread(sorted(untried), wanted)
    known = pilots.spread(sorted(tried), count - len(rows))
    bought = [place for row in rows for place in untried[row]]
    sample = [[place] for place in bought + [place for row in known for place in tried[row]]]
    if bought:
        asked = np.zeros(work.count, dtype=bool)
        asked[rows] = True
        live = twin_of(engine) if isinstance(engine, BatchEngine) else engine
        homes.check(live)
        submit(replace(prepared, engine=live, asked=asked, progress=False)).check()
        _, work, run, _ = _start(prepared, "plan")
    left = len(run.missing())
    if work.call.panel is not None and work.call.panel.sequential:
        # How many votes a row takes is what a pilot is to tell.
        sample = [work.places[row].tolist() for row in (*rows, *known)]
        bought = [place for row in rows for place in work.places[row].tolist()]
        left = len(_by_row(work, run.missing()))
    found = journal.replies([work.keys[place] for unit in sample for place in unit])
    paid = {
        key: sum(e.cost for e in entries if e.cost is not None) for key, entries in found.items()
    }
    planned = plan_of(work, run, engine, before.advice)
    planned = replace(planned, pilot=len(rows), sample=len(rows) + len(known))
    if (price := price_of(engine, batch=run.lane is not None)) is None:
        return planned
    # At the price of the path that the rest takes, whatever path these took.
    costs = [
        sum(price.cost(e.usage) for key in keys for e in found.get(key, ()) if e.usage is not None)
        for keys in ([work.keys[place] for place in unit] for unit in sample)
        if any(key in found for key in keys)
    ]
    return replace(
        planned,
        spent=sum(paid.get(work.keys[place], 0.0) for place in bought),
        interval=pilots.interval(costs, left),
    )


def _by_row(work: Work, places: Sequence[int]) -> dict[int, list[int]]:
    """Requests by the first row that asks them."""
    found: dict[int, list[int]] = {}
    for place in places:
        found.setdefault(work.row_of(place), []).append(place)
    return found


def submit(prepared: Prepared) -> Job:
    """Start a call; returns at once.

    Raises:
        BudgetError: The expected cost passes the budget; nothing was sent.
        LLMFrameError: As the engine or the journal cannot be used.
    """
    name = new_job_id()
    prepared, work, run, journal = _start(prepared, name)
    if prepared.budget is not None and run.left:
        expected = plan_of(work, run, prepared.engine, prepared.advice)
        if expected.expected is not None and expected.expected > prepared.budget:
            limit = money(prepared.budget).removeprefix("US$")
            raise BudgetError(
                f"expected {money(expected.expected)} passes budget={limit}. "
                f"Nothing was sent; see .plan.",
                plan=expected,
            )
    record = JobRecord(
        id=name,
        created=time.time(),
        state="running",
        call=prepared.call.stored(work.prompt, get_options().keep_prompts is not False),
        engine=json.dumps(_engine(prepared, run)),
        count=work.count,
        salt=prepared.call.salt,
        budget=prepared.budget,
    )
    journal.create_job(record)
    journal.drive(name)
    save_rows(journal, name, work, prepared.table)
    job = Job(name, prepared.call, journal, record)
    _live[name] = job
    remember(name, prepared.call, journal)
    _mention_shared_answers(work)
    job.start(prepared, run)
    return job


def _mention_shared_answers(work: Work) -> None:
    """Say once that identical rows get one answer, where that may surprise."""
    call = work.call
    # The votes of a judge are drawn apart, and the orders of a pair are texts of their own.
    shared = int(work.asked.sum()) - len(set((work.first // call.asks).tolist()))
    if shared and call.dedupe and call.sampling.temperature and "shared" not in _said:
        _said.add("shared")
        warn_user(
            f"{shared:,} rows are identical to others and share their answer, although "
            f"temperature={call.sampling.temperature:g}. dedupe=False draws one for each."
        )


def _engine(prepared: Prepared, run: Run) -> dict[str, Any]:
    """What makes the engine again in another process, and what the job was expected to cost."""
    engine = prepared.engine
    # Only what another process may go on with is come back to with an engine.
    kept = prepared.ahead and get_options().keep_prompts is not False
    made = getattr(engine, "made", None) if run.lane is not None or kept else None
    return {
        "name": engine.name,
        "model": engine.model,
        "batch": run.lane is not None,
        "estimate": _estimate(prepared, run),
        **({"cascade": dict(prepared.cascade)} if prepared.cascade else {}),
        **({"ahead": True, "concurrency": prepared.concurrency} if kept else {}),
        **({"made": made()} if callable(made) else {}),
    }


def _estimate(prepared: Prepared, run: Run) -> float | None:
    """Expected US$; None where no price is known."""
    known = price_of(prepared.engine, batch=run.lane is not None)
    if known is None:
        return None
    return known.cost(Usage(*estimate(run.work, run, prepared.engine)))


def jobs() -> JobTable:
    """Every job in the store, newest first, from any process.

    A job on `lf.testing.FakeEngine` is not among them: it leaves nothing behind in the store. Its
    own process finds it by `lf.job(id)`.

    Returns:
        A sequence of `Job`, with a readable text and HTML form.
    """
    journal = Journal.open()
    return JobTable([_opened(record, journal) for record in journal.jobs()])


def job(id: str) -> Job:
    """Find a job again.

    Args:
        id: As `Job.id` gave it.

    Raises:
        StoreError: The store has no such job.
    """
    if (here := _live.get(id)) is not None:
        return here
    known = remembered(id)
    journal = known[1] if known is not None else Journal.open()
    record = journal.job(id)
    if record is None:
        near = [other.id for other in journal.jobs()][:3]
        hint = f" The newest are {', '.join(near)}." if near else " It has none."
        raise StoreError(f"no job {id!r} in the store.{hint} See lf.jobs().")
    return _opened(record, journal)


def _opened(record: JobRecord, journal: Journal) -> Job:
    if (here := _live.get(record.id)) is not None:
        return here
    known = remembered(record.id)
    call = known[0] if known is not None else call_from(record.call)
    return Job(record.id, call, journal, record)


def purge(job: str | None = None, older_than: timedelta | float | None = None) -> int:
    """Delete a job, or everything older, from the store for good.

    Args:
        job: Id of the job.
        older_than: A timedelta, or days.

    Returns:
        Replies deleted.

    Raises:
        ValueError: Neither is given, or an age is negative; nothing was deleted.
        TypeError: An age is neither a number of days nor a timedelta.
    """
    if job is None and older_than is None:
        raise ValueError("purge() needs job= or older_than= (days); it deletes for good.")
    seconds = None
    if older_than is not None:
        if isinstance(older_than, bool) or not isinstance(older_than, timedelta | int | float):
            raise TypeError(
                f"older_than={older_than!r}: expected days, such as 30, or a timedelta."
            )
        days = older_than / timedelta(days=1) if isinstance(older_than, timedelta) else older_than
        if not 0 <= days < float("inf"):
            raise ValueError(
                f"older_than={older_than!r}: expected 0 days or more. Nothing was deleted."
            )
        seconds = days * 86400.0
    return Journal.open().purge(job=job, older_than=seconds)

"""A run over a work: the engine as a stream, the store, the prices."""

from __future__ import annotations

from llmframe.brakes import Budget
from llmframe.engines.base import BatchEngine, Engine
from llmframe.journal import Journal
from llmframe.lanes import Lane
from llmframe.options import get_options
from llmframe.plans import price_of
from llmframe.rechecks import Judge
from llmframe.runs import Run
from llmframe.work import Work

__all__ = ["journal_of", "run_over"]


def journal_of(engine: Engine | BatchEngine | None) -> Journal:
    """The store of an engine: its own where it has one (fakes), else the user's."""
    store = getattr(engine, "store", None)
    return store if isinstance(store, Journal) else Journal.open()


def run_over(
    work: Work,
    engine: Engine | BatchEngine,
    journal: Journal,
    job: str,
    *,
    budget: float | None = None,
    concurrency: int | None = None,
    since: float | None = None,
    ending: bool = False,
    resend: bool = False,
    judge: Judge | None = None,
    ahead: bool = False,
) -> Run:
    """A run, looked up in the journal and not started.

    Args:
        work: The rows.
        engine: Who answers.
        journal: Where replies are kept.
        job: Id of the job.
        budget: US$.
        concurrency: Requests in flight at once; None: the option, else the engine's own.
        since: As in `Run`.
        ending: As in `Run`.
        resend: As in `Lane`.
        judge: As in `Run`.
        ahead: As in `Run`.
    """
    options = get_options()
    stream: Engine
    if isinstance(engine, BatchEngine):
        cleanup = bool(getattr(engine, "cleanup", False))
        stream = Lane(engine, journal, job, cleanup=cleanup, resend=resend)
    else:
        stream = engine
    run = Run(
        work,
        stream,
        journal,
        Budget(
            price_of(engine, batch=isinstance(engine, BatchEngine)), budget, live=price_of(engine)
        ),
        job=job,
        limit=concurrency or options.concurrency or engine.limits.concurrency,
        keep_prompts=options.keep_prompts is not False,
        since=since,
        ending=ending,
        judge=judge,
        ahead=ahead,
    )
    run.look_up()
    return run

"""What happened in a job: by its run where that is here, else by the journal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from llmframe.accounts import account
from llmframe.calls import Call
from llmframe.errors import StoreError
from llmframe.journal import JobRecord, Journal
from llmframe.outcomes import Outcome, outcome_of
from llmframe.reports import JobStatus, Report
from llmframe.runs import Run
from llmframe.stored import stored_work

__all__ = ["report_of", "stored_report"]


def report_of(status: JobStatus, run: Run, conflicts: int, estimate: float | None) -> Report:
    """The report of a run of this process.

    Args:
        status: Where the job stands.
        run: Its run.
        conflicts: Rows of its batches with two different replies.
        estimate: US$ that the job was expected to cost.
    """
    ledger, panel = run.ledger, run.work.call.panel
    votes, spared = run.outcome.votes()
    return Report(
        status,
        kinds=_kinds(run.outcome),
        seconds=run.progress().seconds,
        latencies=tuple(ledger.latencies),
        models=tuple(sorted(ledger.models)),
        maybe_paid=ledger.maybe_paid,
        paid_twice=ledger.extra + conflicts,
        conflicts=ledger.conflicts + conflicts,
        repaired=ledger.repaired,
        error=str(run.error) if run.error else None,
        estimate=estimate,
        saved=ledger.saved,
        came_to="" if panel is None else panel.summary(run.outcome.rows()),
        votes=votes,
        votes_spared=spared,
    )


def stored_report(
    status: JobStatus,
    call: Call,
    journal: Journal,
    record: JobRecord,
    conflicts: int,
    estimate: float | None,
) -> Report:
    """The report of another process's job, by the replies that came since it began.

    Args:
        status: Where it stands.
        call: Its call.
        journal: Where it is.
        record: The job.
        conflicts: As in `report_of`.
        estimate: As in `report_of`.
    """
    report = Report(
        status,
        kinds={},
        seconds=None if record.finished is None else record.finished - record.created,
        paid_twice=conflicts,
        conflicts=conflicts,
        error=record.error,
        estimate=estimate,
    )
    try:
        work = stored_work(journal, record, call)
    except StoreError:  # its process died while it stored the rows
        return report
    paid = account(journal, [*work.keys, *work.aux], record.created)
    outcome = outcome_of(work, journal, record.created)
    votes, spared = outcome.votes()
    return replace(
        report,
        status=replace(status, usage=paid.usage),
        kinds=_kinds(outcome),
        latencies=tuple(paid.latencies),
        models=tuple(sorted(paid.models)),
        maybe_paid=paid.maybe_paid,
        votes=votes,
        votes_spared=spared,
    )


def _kinds(outcome: Outcome) -> dict[str, int]:
    """Failed rows by kind, the commonest first."""
    return dict(Counter(lost.failure.kind for _, lost in outcome.lost_rows()).most_common())

"""Where a job stands, from the journal alone: for one whose run is elsewhere, or has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llmframe.accounts import account
from llmframe.calls import Call
from llmframe.errors import StoreError
from llmframe.journal import BatchRecord, JobRecord, Journal, Tally
from llmframe.lanes import READER, UNSENT
from llmframe.outcomes import Outcome, in_doubt, outcome_of
from llmframe.progress import Awaited
from llmframe.results import KINDS, Failure
from llmframe.settlements import Lost, is_spent
from llmframe.stored import stored_work
from llmframe.work import CACHED, FAILED, OK, Work

__all__ = ["Standing", "standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands.

    Attributes:
        state: As in `llmframe.reports.JobStatus`.
        counts: Rows by status.
        cost: US$; None where unknown.
        awaited: Its batches at the provider.
        batches: Batches that were sent for it, all in all.
        reader: Id of the job that took over its batches.
    """

    state: str
    counts: Mapping[str, int]
    cost: float | None
    awaited: tuple[Awaited, ...] = ()
    batches: int = 0
    reader: str | None = None


def standing(call: Call, journal: Journal, record: JobRecord) -> Standing:
    """Look a job up, cheaply: a few microseconds a row, and nothing where it is done.

    Replies are counted, not read: one that the checks turn down counts as an answer here until
    the job's own run has ended.
    """
    if record.state == "done":
        return Standing("done", record.counts, record.spent)
    batches = [b for b in journal.batches(record.id, open_only=False) if b.state not in UNSENT]
    reader = next((b.notes[READER] for b in reversed(batches) if READER in b.notes), None)
    awaited = tuple(_awaited(call, batch) for batch in batches if batch.state != "closed")
    counts, cost = _counted(call, journal, record)
    state = record.state
    if record.driver is not None:
        state = "running"
    elif state in {"running", "interrupted"}:
        if awaited:
            state = "detached"
        else:
            state = "interrupted" if counts["pending"] + counts["in_doubt"] else "done"
    return Standing(state, counts, cost, awaited, len(batches), reader)


def _awaited(call: Call, batch: BatchRecord) -> Awaited:
    since = batch.created_at or batch.opened
    return Awaited(call.identity["provider"], batch.provider_id, batch.count, None, since)


def _counted(
    call: Call, journal: Journal, record: JobRecord
) -> tuple[Mapping[str, int], float | None]:
    """Rows by status, and US$."""
    try:
        work = stored_work(journal, record, call)
    except StoreError:  # its process died while it stored the rows
        return {"pending": record.count, "in_doubt": 0}, record.spent
    if call.panel is not None and call.panel.sequential:
        # Whether a row needs another vote is told by what its votes say.
        counts = outcome_of(work, journal, record.created).answers()
        paid = account(journal, work.keys, record.created).cost
        return counts, record.spent if record.finished is not None else paid
    if record.counts and record.finished is not None:
        return _answered_since(work, journal, record, record.finished), record.spent
    outcome, costs = Outcome(work), []
    tallies = journal.tally(work.keys, record.created)
    for place, key in enumerate(work.keys):
        if (tally := tallies.get(key)) is None:
            continue
        if tally.cost is not None:
            costs.append(tally.cost)
        if tally.good:
            outcome.status[place] = CACHED if tally.good > tally.new else OK
        elif is_spent(call, _lost(tally)):
            outcome.status[place] = FAILED
    outcome.doubt(in_doubt(journal, [record.id]))
    return outcome.counts(), sum(costs) if costs else None


def _lost(tally: Tally) -> Lost:
    rule = KINDS.get(tally.kind)
    failure = Failure(tally.kind, "", retryable=rule is not None and rule.rerun == "asked")
    return Lost(failure, attempts=tally.replies)


def _answered_since(
    work: Work, journal: Journal, record: JobRecord, ended: float
) -> Mapping[str, int]:
    """What the job's own run counted at its end, and the rows that others answered since."""
    counts = dict(record.counts)
    tallies = journal.tally(work.keys, ended)
    new = np.array([key in tallies and tallies[key].new > 0 for key in work.keys], dtype=bool)
    rows = int(new[work.places[work.asked]].any(axis=1).sum())
    for status in ("pending", "in_doubt", "failed"):
        moved = min(rows, counts.get(status, 0))
        counts[status] = counts.get(status, 0) - moved
        counts["ok"] = counts.get("ok", 0) + moved
        rows -= moved
    return counts

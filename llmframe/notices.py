"""What a join says of rows that the frame shows as missing: failed, waiting, or never asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from llmframe import joins
from llmframe.comebacks import reads
from llmframe.errors import RowsFailedWarning, warn_user
from llmframe.journal import Journal
from llmframe.outcomes import Outcome
from llmframe.progress import waiting
from llmframe.reports import JobStatus
from llmframe.work import PENDING

__all__ = ["foreign", "tell"]


def foreign(outcome: Outcome, journal: Journal, job: str) -> int:
    """Rows without an answer that the job never asked.

    Args:
        outcome: Of a frame that the job was not made with, perhaps.
        journal: Where the job's rows are.
        job: Its id.
    """
    work = outcome.work
    pending = np.flatnonzero(outcome.status[: len(work.keys)] == PENDING).tolist()
    unknown = {work.keys[place]: place for place in pending}
    stored = False
    for _, chunk, _, _ in journal.rows(job):
        stored = True
        if not unknown:
            return 0
        for at in range(0, len(chunk), 16):
            unknown.pop(chunk[at : at + 16], None)
    if not stored:  # its process died before, or it was refused at once: nobody can tell
        return 0
    return int(np.isin(work.places, list(unknown.values())).any(axis=1).sum())


def tell(outcome: Outcome, strangers: int, status: JobStatus, again: bool) -> None:
    """Warn of every row that is missing in the joined frame, and why.

    Of a job that still runs only the rows that are not its own: the others may yet come.

    Args:
        outcome: What became of the frame's rows.
        strangers: Rows without an answer that the job never asked.
        status: Where the job stands.
        again: Its engine can be made again in any process.
    """
    work, name = outcome.work, status.id
    asked = int(work.asked.sum())
    if strangers and strangers == asked:
        warn_user(
            f"none of the {len(work):,} prompts of this frame is one that job {name} asked. Is it "
            f"the same frame, and the same prompt=, schema= and system=? The same call on this "
            f"frame asks them."
        )
    elif strangers:
        warn_user(
            f"{strangers:,} of {work.count:,} rows of this frame are none that job {name} asked, "
            f"and have no answer. The same call on this frame asks them."
        )
    if status.state == "running":
        return
    counts = Counter(outcome.counts())
    left = counts["pending"] + counts["in_doubt"] - strangers
    if left > 0:
        open_ = f"{left:,} of {work.count:,} rows are without an answer"
        if status.state == "failed":
            warn_user(f"{open_}: job {name} ended early. {status.error}", RowsFailedWarning)
        elif status.awaited:
            there = waiting(status.awaited)
            warn_user(f"{open_}: {there}, and nobody waits for them. {reads(name, again)}.")
        else:
            how = "was canceled" if status.state == "canceled" else "was stopped"
            warn_user(f"{open_}: job {name} {how}. The same call on the frame sends them.")
    # Nothing is raised here, so a call that would have raised for them warns of failed rows, too.
    call = work.call if work.call.errors == "coerce" else replace(work.call, errors="warn")
    joins.warn(call, outcome, bool(call.look.get("keep_failed")))

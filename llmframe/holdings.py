"""Requests that are not ours to send, because a batch at the provider holds them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from llmframe.errors import StoreError
from llmframe.journal import Journal

__all__ = ["abandoned"]


def abandoned(journal: Journal, keys: AbstractSet[bytes]) -> StoreError | None:
    """Why a live run would wait for ever: some of its rows are in a batch that nobody reads.

    Args:
        journal: Where the batches are.
        keys: Of the run's open requests.
    """
    for record in journal.batches():
        job = journal.job(record.job)
        if job is None or job.driver is not None:
            continue
        count = sum(key in keys for _, _, key in journal.lines(record.tag))
        if count:
            return StoreError(
                f"{count:,} of these rows are in batch {record.provider_id or record.tag!r} of "
                f"job {job.id}, which nobody waits for. lf.job({job.id!r}).wait() reads it, "
                f"finish(live=True) ends it now; then the same call has their answers."
            )
    return None

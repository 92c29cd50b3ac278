"""Intents of which nobody knows whether the provider has the batch, and the search for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from llmframe.engines.base import Batch
from llmframe.errors import EngineError, StoreError, sentence
from llmframe.lanes.packs import Pack

if TYPE_CHECKING:
    from llmframe.journal import BatchRecord, Journal
    from llmframe.lanes.lane import Lane

__all__ = [
    "ADOPTED",
    "SETTLED",
    "UNSURE",
    "Doubt",
    "check_account",
    "distinct",
    "other_account",
    "search",
    "settled",
]

log = logging.getLogger("llmframe")

ADOPTED: Final = "adopted"
"""State of an intent whose batch was found by its count alone, and not read yet."""
SETTLED: Final = 60.0
"""Seconds after which a created batch is surely listed, and a listed one surely found."""
UNSURE: Final = {ADOPTED, "in_doubt"}
"""States of an intent whose batch is not known, or not for sure."""
_PAUSE: Final = 10.0
"""Seconds between two searches."""
_TRIED: Final = 3600.0
"""Seconds of pauses after which searches that fail end the job."""
_SEARCHES: Final = 3
"""Searches that must come back empty before a batch counts as never created."""


@dataclass(slots=True)
class Doubt:
    """An intent whose answer was lost.

    Attributes:
        tag: Of the intent.
        count: Its lines.
        due: When to search.
        last: When it was last tried to send it.
        pack: Its requests, where this stream tried to send it.
        empty: Searches without a find.
        failed: Searches that failed, in a row.
        excluded: Batches that a search found and that hold other rows.
    """

    tag: str
    count: int
    due: float
    last: float
    pack: Pack | None = None
    empty: int = 0
    failed: int = 0
    excluded: set[str] = field(default_factory=set)


def search(lane: Lane, doubt: Doubt) -> Batch | None:
    """Look for the batch once.

    Args:
        lane: Whose intent it is.
        doubt: The intent; its next search is put off.

    Returns:
        The batch; or None: not found, and `settled` says whether that is final.

    Raises:
        EngineError: The provider cannot list its batches, and ``resend`` was not asked for.
        StoreError: The account cannot see the batches.
    """
    now = lane.clock.time()
    doubt.due = now + _PAUSE
    try:
        found = lane.engine.find(doubt.tag, _notes(lane, doubt.tag), doubt.count)
    except OSError as error:
        _unlisted(lane, doubt, error)
        return None
    except EngineError as error:
        if error.status in {401, 403}:
            raise other_account(lane, doubt.tag, error) from error
        if error.retryable:
            _unlisted(lane, doubt, error)
            return None
        if not lane.resend:
            raise EngineError(
                f"batch {doubt.tag!r} with {doubt.count:,} rows may have been created, and "
                f"{lane.name} cannot list its batches ({sentence(error)}) Look for it in the "
                f"provider's dashboard; job.resume(resend=True) sends these rows again, and pays "
                f"for them again if it is there.",
                provider=lane.name,
                status=error.status,
            ) from error
        doubt.empty = _SEARCHES
        doubt.last = now - SETTLED
        return None
    doubt.failed = 0
    # Where batches carry no tag, one of the same count may be another intent's.
    records = lane.journal.batches(open_only=False)
    others = {record.provider_id for record in records if record.state not in UNSURE}
    found = [batch for batch in found if batch.id not in doubt.excluded | others]
    if not found:
        doubt.empty += 1
        return None
    if len(found) > 1:
        # A batch of somebody else's may look like it: its results will tell, and it is left then.
        log.info("%d batches at %s may be %s; the oldest is read", len(found), lane.name, doubt.tag)
    return min(found, key=lambda batch: batch.created_at)


def _unlisted(lane: Lane, doubt: Doubt, error: EngineError | OSError) -> None:
    """The search itself failed, which says nothing; it is tried again, for a while."""
    doubt.failed += 1
    batch = f"batch {doubt.tag!r} with {doubt.count:,} rows may have been created"
    if doubt.failed * _PAUSE > _TRIED:
        raise EngineError(
            f"{batch}, and {lane.name} could not list its batches {doubt.failed} times: "
            f"{sentence(error)} Nothing is sent twice; the same call looks for it again.",
            provider=lane.name,
            status=error.status if isinstance(error, EngineError) else None,
            retryable=True,
        ) from error
    if doubt.failed > 1:
        log.warning("%s; it is looked for again in %.0f s: %s", batch, _PAUSE, error)


def settled(doubt: Doubt, now: float) -> bool:
    """Whether the batch was surely never created.

    Listings lag behind: one that is empty right after the attempt says nothing.
    """
    return doubt.empty >= _SEARCHES and now >= doubt.last + SETTLED


def distinct(journal: Journal, pack: Pack) -> int:
    """How many of a pack's requests to send: a count that no other unanswered intent has.

    Where batches carry no tag, one whose answer was lost is known by its count: another of the
    same count could be taken for it until its results are there.
    """
    taken = {
        record.count
        for record in journal.batches()
        if record.state in {"intent", *UNSURE} and record.tag != pack.was
    }
    count = len(pack.lines)
    return next((free for free in range(count, 0, -1) if free not in taken), count)


def _notes(lane: Lane, tag: str) -> dict[str, str]:
    records = [record for job in lane.jobs for record in lane.journal.batches(job)]
    return next((dict(record.notes) for record in records if record.tag == tag), {})


def check_account(lane: Lane, record: BatchRecord) -> None:
    """Refuse to go on with a batch that was sent from another account.

    Raises:
        StoreError: It was; where either account is not known, the first poll will tell.
    """
    if record.account and lane.account and record.account != lane.account:
        raise StoreError(
            f"batch {record.provider_id or record.tag!r} of job {record.job!r} belongs to the "
            f"account {record.account!r}, this engine to {lane.account!r}. Use the account that "
            f"sent it; nothing was sent."
        )


def other_account(lane: Lane, batch: str, error: EngineError) -> StoreError:
    """What to raise where a batch is refused or not there: it may be another account's."""
    records = lane.journal.batches()
    job = next((r.job for r in records if batch in {r.tag, r.provider_id}), lane.job)
    return StoreError(
        f"{lane.name} does not show the batch {batch!r} of job {job!r} to this account "
        f"(HTTP {error.status}). Use the key and the base_url that sent it; nothing was sent."
    )

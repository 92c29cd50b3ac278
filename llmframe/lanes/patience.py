"""How long a batch is tried that cannot be looked up or read, and what is said meanwhile."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final, Literal

from llmframe.errors import EngineError, sentence
from llmframe.lanes.doubts import SETTLED, other_account

if TYPE_CHECKING:
    from llmframe.lanes.lane import Lane
    from llmframe.lanes.sent import Sent

__all__ = ["LONGEST", "put_off"]

log = logging.getLogger("llmframe")

LONGEST: Final = 900.0
"""Seconds of the longest pause, for a full queue or looks that fail."""
_TRIED: Final = {"looked up": 3600.0, "read": 600.0}
"""Seconds of pauses after which a batch ends the job: a night's network failure passes, but
results that can be looked up and not read are no better in an hour."""


def put_off(
    lane: Lane, sent: Sent, error: EngineError | OSError, what: Literal["looked up", "read"]
) -> None:
    """A poll or a read failed. That never loses the batch: it is tried again, for a while.

    Args:
        lane: Whose batch it is.
        sent: The batch; its next look is put off.
        error: What was raised.
        what: Could not be done.

    Raises:
        EngineError: It cannot pass, or was tried for long enough.
        StoreError: The account does not see the batch.
    """
    now, fresh = lane.clock.time(), False
    if isinstance(error, EngineError):
        # A batch that was just created may not be visible yet.
        fresh = error.status == 404 and now < sent.batch.created_at + SETTLED
        if error.status in {401, 403, 404} and not fresh:
            raise other_account(lane, sent.batch.id, error) from error
        if not error.retryable and not fresh:
            raise error
    batch = f"batch {sent.batch.id} at {lane.name} could not be {what}"
    sent.failed += 1
    # The pauses are added up, and not the clock's time, which goes on while a laptop sleeps.
    if sent.paused > _TRIED[what]:
        raise EngineError(
            f"{batch}, {sent.failed} times in {sent.paused / 60:.0f} minutes: {sentence(error)} "
            f"What was read before is kept, and its answers stay at the provider.",
            provider=lane.name,
            status=error.status if isinstance(error, EngineError) else None,
            retryable=True,
        ) from error
    asked = error.retry_after if isinstance(error, EngineError) else None
    pause = max(lane.poll_interval * 2 ** min(sent.failed - 1, 10), asked or 0.0)
    pause = min(pause, LONGEST) * (1 + random.random())
    if sent.failed > 1 and not fresh:
        log.warning("%s; it is tried again in %.0f s: %s", batch, pause, error)
    sent.paused += pause
    sent.due = now + pause

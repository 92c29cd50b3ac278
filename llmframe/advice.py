"""Which path fits a job: live, the provider's batches, or a model of one's own. One sentence."""

from __future__ import annotations

from typing import Final

from llmframe.views import money, number

__all__ = ["path"]

_SOON: Final = 600.0
"""Seconds that somebody waits for at a screen."""
_DEAR: Final = 50.0
"""US$ above which an own GPU is worth a look; a rented one costs a few US$ an hour."""
_SECONDS: Final = 2.0
"""Of one live request, about; nobody knows before the first reply."""


def path(
    requests: int,
    live: float | None,
    batch: float | None,
    *,
    concurrency: int,
    batched: bool,
    in_process: bool,
) -> str | None:
    """What to choose, with the figures; None where there is nothing to choose.

    Args:
        requests: To be sent.
        live: Expected US$ live; None where no price is known.
        batch: Expected US$ as a batch; None where no price is known.
        concurrency: Requests in flight at once.
        batched: The call goes out as a batch.
        in_process: It runs on this machine, so there is no bill.
    """
    if in_process or requests < 2:
        return None
    seconds = requests * _SECONDS / max(1, concurrency)
    took = f"about {_span(seconds)} at {concurrency} at once"
    if live is None or batch is None:
        return None
    if batch >= live:
        return f"a batch costs no less here: live is right, {took}." if batched else None
    saves = f"{money(batch)} as a batch (within 24 h) against {money(live)} live ({took})"
    own = (
        f"; for {number(requests)} requests an own GPU (a vLLM server behind base_url=) may cost "
        f"less than either"
        if live > _DEAR
        else ""
    )
    if seconds <= _SOON and live - batch < 1.0:
        fits = "live fits: the batch saves little and may take a day"
    else:
        fits = "the batch fits unless somebody waits for the answer"
    return f"{saves}: {fits}{own}."


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"

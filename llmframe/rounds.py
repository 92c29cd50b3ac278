"""Whether a failed request is asked again, when, and changed in what way."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from llmframe.flights import Flight
from llmframe.results import KINDS, Failure, Result
from llmframe.schemas.reading import repair_message
from llmframe.settlements import TRIES
from llmframe.work import Work

__all__ = ["PAUSES", "again_after", "no_longer", "tell"]

PAUSES: Final = (0.1, 0.6, 2.5)[:TRIES]
"""Seconds before each further try after a timeout, a lost connection or a server error."""


def again_after(
    work: Work, flight: Flight, result: Result, failure: Failure, spent: bool
) -> float | None:
    """Seconds until the row is asked again, changed as its failure wants; None: it is not.

    Args:
        work: What is asked.
        flight: The request; changed for its next try.
        result: The reply.
        failure: What is wrong with it.
        spent: It counts as one of the row's tries.
    """
    rule = KINDS[failure.kind].again if failure.kind in KINDS else "no"
    if rule == "backoff" and not spent:
        return 0.0  # the outage says when
    if rule == "wait":
        flight.waits += 1
        # A window of a day that ends again and again is no reason to go on for ever.
        if spent and flight.waits > TRIES:
            return None
        return failure.retry_after or random.uniform(0.1, 0.3) * min(flight.waits, 30)
    if rule == "backoff" and flight.tries < len(PAUSES):
        pause = max(failure.retry_after or 0.0, PAUSES[flight.tries])
        flight.tries += 1
        return pause * random.uniform(0.7, 1.3)
    if rule == "repair" and failure.retryable and flight.repairs < work.call.repairs:
        flight.repairs += 1
        tell(work, flight, result.text, failure)
        return 0.0
    grows = failure.retryable and work.call.longer is not None
    if rule == "longer" and not flight.longer and grows:
        flight.longer = True
        request = flight.request or work.request(flight.place)
        sampling = replace(request.sampling, max_tokens=work.call.longer)
        flight.request = replace(request, sampling=sampling)
        return 0.0
    return None


def no_longer(flight: Flight, result: Result) -> Result:
    """The result, where it refuses a larger token limit: the row is truncated, as it was before.

    Models have limits of their own, which nobody knows beforehand.
    """
    failure = result.failure
    if failure is None or failure.kind != "invalid_request" or failure.fatal:
        return result
    if not flight.longer or flight.request is None:
        return result
    limit = flight.request.sampling.max_tokens
    told = f"cut off, and max_tokens={limit} is refused: {failure.message}"
    return result.failed(replace(failure, kind="truncated", message=told, retryable=True))


def tell(work: Work, flight: Flight, text: str | None, failure: Failure) -> None:
    """Make the next request say what was wrong with this reply."""
    if not text:
        return
    flight.asked = repair_message(work.call.form, failure, text)
    row = work.request(flight.place)
    told = (
        *row.messages,
        {"role": "assistant", "content": text[:4000]},
        {"role": "user", "content": flight.asked},
    )
    flight.request = replace(flight.request or row, messages=told, prefix=0)

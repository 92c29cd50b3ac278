"""What the replies to one request come to: an answer that passed, or what was lost and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from llmframe.calls import Call
from llmframe.journal import Entry
from llmframe.results import KINDS, Failure, Result
from llmframe.schemas.reading import Reading

__all__ = ["TRIES", "Lost", "Settled", "as_result", "entry_of", "is_spent", "settle"]

TRIES: Final = 3
"""Further tries after a timeout, a lost connection, a server error or a lost result."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A request without an answer.

    Attributes:
        failure: Why.
        raw: The last reply as it came, where there was one.
        attempts: Replies so far.
        request_id: The provider's id of the last one.
    """

    failure: Failure
    raw: str | None = None
    attempts: int = 0
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A stored reply that passed the checks.

    Attributes:
        reading: What it says.
        entry: The reply.
        again: It was asked for again, because of the other rows: `llmframe.rechecks`.
    """

    reading: Reading
    entry: Entry
    again: bool = False


def as_result(entry: Entry) -> Result:
    """A stored reply, as the engine gave it."""
    failure = None
    if entry.kind != "ok":
        rule = KINDS.get(entry.kind)
        # In a full window the next reply is cut at the same place.
        again = rule is not None and rule.rerun == "asked" and entry.finish != "window"
        failure = Failure(entry.kind, entry.message, again)
    return Result(
        entry.key,
        entry.text,
        entry.finish,
        entry.usage,
        entry.model,
        entry.request_id,
        failure,
        entry.scores,
        entry.vector,
        entry.latency,
        entry.reasoning,
    )


def entry_of(
    result: Result,
    cost: float | None,
    at: float,
    attempt: int,
    asked: str | None,
    lane: str = "live",
) -> Entry:
    """A reply as it is stored, before anybody has read it.

    Args:
        result: As the engine gave it.
        cost: US$; None where the price is not known.
        at: Unix seconds.
        attempt: Which try it answers.
        asked: What a repair told the model.
        lane: ``"batch"`` for what came out of a provider's batch.
    """
    failure = result.failure
    return Entry(
        key=result.key,
        attempt=attempt,
        lane=lane,
        at=at,
        kind=failure.kind if failure else "ok",
        message=failure.message if failure else "",
        finish=result.finish,
        text=result.text,
        scores=result.choice_logprobs,
        vector=result.vector,
        model=result.model,
        request_id=result.request_id,
        usage=result.usage,
        cost=cost,
        latency=result.latency,
        maybe_paid=failure is not None and failure.maybe_paid,
        asked=asked,
        reasoning=result.reasoning,
    )


def settle(call: Call, entries: list[Entry]) -> Settled | Lost:
    """The first stored reply that passes the checks; else why the last one does not.

    Where answers are looked at together, one that passed may have been asked for again: then the
    last that passes is the answer.
    """
    last: Failure | None = None
    found: Settled | None = None
    joint = call.form.whole is not None and call.form.whole.joint
    for entry in entries:
        again = found is not None and entry.asked is not None and entry.text is not None
        reading = call.read(as_result(entry))
        if reading.failure is not None:
            last = reading.failure
            if found is not None and again:
                found = replace(found, again=True)
        elif not joint:
            return Settled(reading, entry)
        elif found is None or again:
            found = Settled(reading, entry, again)
    if found is not None:
        return found
    assert last is not None, "only called with entries"
    return Lost(last, entries[-1].text, len(entries), entries[-1].request_id)


def is_spent(call: Call, lost: Lost) -> bool:
    """Whether a row is lost for good, or a job ended before its last try: then it is pending."""
    if call.once:
        return True
    rule = KINDS.get(lost.failure.kind)
    again = {
        "wait": TRIES,
        "backoff": TRIES,
        "repair": call.repairs if lost.failure.retryable else 0,
        "longer": int(call.longer is not None and lost.failure.retryable),
    }
    return lost.attempts > again.get(rule.again if rule else "no", 0)

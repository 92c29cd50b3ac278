"""What goes into the journal and comes out of it."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llmframe.results import Usage

__all__ = ["CHUNK", "BatchRecord", "Entry", "JobRecord", "Tally", "new_job_id"]

CHUNK: Final = 4096
"""Rows of a job that are stored together."""


class Entry(NamedTuple):
    """One reply to one try of one request, for good or bad; never changed once stored.

    A named tuple, since there is one a row and it takes a fifth of a frozen dataclass's time.

    Attributes:
        key: The request's key, 16 bytes.
        attempt: 1 for the first try.
        lane: How it was asked: ``"live"`` or ``"batch"``.
        at: When the reply came, Unix seconds.
        kind: ``"ok"``, or a key of `llmframe.results.KINDS`.
        message: What happened, on a failure.
        finish: As `llmframe.results.Result.finish`.
        text: The reply as the model wrote it, unread.
        scores: Natural-log probability of each label, not calibrated.
        vector: An embedding.
        model: The resolved name that the provider reported.
        request_id: The provider's id of the request.
        usage: Tokens, None where the engine did not say.
        cost: US$; None where the price is not known, which is not 0.
        latency: Seconds from sending to the reply.
        maybe_paid: The provider may have answered and charged all the same.
        asked: What a repair told the model about its reply before.
        reasoning: The model's own thinking where the provider keeps it apart.
    """

    key: bytes
    attempt: int
    lane: str
    at: float
    kind: str
    message: str = ""
    finish: str | None = None
    text: str | None = None
    scores: tuple[float, ...] | None = None
    vector: tuple[float, ...] | None = None
    model: str | None = None
    request_id: str | None = None
    usage: Usage | None = None
    cost: float | None = None
    latency: float | None = None
    maybe_paid: bool = False
    asked: str | None = None
    reasoning: str | None = None


class Tally(NamedTuple):
    """The replies to one request, counted.

    Attributes:
        good: Replies that the engine called good.
        new: Of those, the ones from `since` on.
        replies: All of them.
        cost: US$ of the replies from `since` on; None where none has a price.
        kind: Of the last reply, as `Entry.kind`.
    """

    good: int
    new: int
    replies: int
    cost: float | None
    kind: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the journal knows of a job.

    Attributes:
        id: As `new_job_id` makes it.
        created: Unix seconds.
        state: ``"running"``, ``"done"``, ``"failed"``, ``"interrupted"`` or ``"canceled"``.
            A job that says running and has no `driver` was left by a process that died.
        call: JSON text: the verb and its arguments, as far as they are plain.
        engine: JSON text: what it takes to make the engine again; no secrets.
        count: Rows of the frame.
        salt: Part of the keys under ``cache=False``, else empty.
        budget: US$, or None.
        error: What ended the job, where something did.
        finished: Unix seconds, or None.
        counts: Rows by status.
        spent: US$ so far; None where a price is not known.
        driver: ``"pid 4242 on myhost"``: the live process that drives the job. Not stored:
            `create_job` ignores it, and reading works it out.
    """

    id: str
    created: float
    state: str = "running"
    call: str = "{}"
    engine: str = "{}"
    count: int = 0
    salt: str = ""
    budget: float | None = None
    error: str | None = None
    finished: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    spent: float | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A provider batch, from the intent to send it until its results are checked off.

    Attributes:
        job: Id of the job that owns it.
        tag: The name under which it can be found again at the provider.
        count: Lines in it.
        account: The provider's organisation or project; empty where it does not say.
        state: ``"intent"`` (nothing known to be sent), ``"submitted"``, any word of the lane's
            own, and ``"closed"`` once every result is checked off.
        opened: When the intent was stored, Unix seconds.
        provider_id: The provider's id of it.
        created_at: Unix seconds, by the provider's clock.
        notes: Remote side effects so far, such as the id of an uploaded file.
    """

    job: str
    tag: str
    count: int
    account: str
    state: str
    opened: float
    provider_id: str | None = None
    created_at: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


def new_job_id() -> str:
    """A fresh job id: ``j_`` and 8 characters of ``a-z2-7``.

    Examples:
        >>> len(new_job_id()), new_job_id()[:2]
        (10, 'j_')
    """
    return "j_" + base64.b32encode(secrets.token_bytes(5)).decode().lower()

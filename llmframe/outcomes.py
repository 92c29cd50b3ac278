"""What became of each request of a call: an answer, a failure, or nothing yet."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from llmframe.journal import BatchRecord, Entry, Journal
from llmframe.polls import Polls
from llmframe.results import Result
from llmframe.schemas.reading import Reading
from llmframe.settlements import Lost, is_spent, settle
from llmframe.turnouts import states
from llmframe.work import CACHED, FAILED, IN_DOUBT, OK, PENDING, SKIPPED, STATUS, Work

__all__ = ["Outcome", "column", "in_doubt", "outcome_of"]

_AT_ONCE: Final = 4096
"""Requests that are looked up together."""


@dataclass(slots=True)
class Outcome:
    """Answers and failures of a `Work`, by place of the request.

    Attributes:
        work: What was asked.
        status: Place in `STATUS` for each request; of a vote that no row needs "skipped".
        values: One value a field of the form, for each answered request.
        scores: Log-probability of each label, for the requests that were scored.
        losses: The requests without an answer.
        coerced: Requests whose values needed a documented conversion.
        again: Answered requests that were asked again because of the other rows.
        turned: Rows whose answer a check over several rows turned down; retryable where the
            request is yet to be asked again.
        unmet: What such checks say that names no row.
    """

    work: Work
    status: npt.NDArray[np.uint8] = field(init=False)
    values: list[tuple[Any, ...] | None] = field(init=False)
    scores: dict[int, tuple[float, ...]] = field(default_factory=dict)
    losses: dict[int, Lost] = field(default_factory=dict)
    coerced: dict[int, tuple[str, ...]] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    turned: dict[int, Lost] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.status = np.full(len(self.work), PENDING, dtype=np.uint8)
        self.values = [None] * len(self.work)

    def take(self, place: int, reply: Result | Entry, reading: Reading, status: int) -> None:
        """A reply that passed the checks."""
        scores = reply.choice_logprobs if isinstance(reply, Result) else reply.scores
        if scores is not None and reading.values == ():
            self.scores[place] = scores
        self.values[place] = reading.values
        self.status[place] = status
        if reading.coerced:
            self.coerced[place] = reading.coerced

    def reopen(self, place: int) -> None:
        """An answer is asked for again."""
        self.values[place] = None
        self.status[place] = PENDING

    @property
    def found(self) -> bool:
        """Whether any of the requests has an answer or a failure."""
        return bool((self.status != PENDING).any())

    def lose(self, place: int, lost: Lost) -> None:
        """A request that ends without an answer."""
        self.losses[place] = lost
        self.status[place] = FAILED

    def snapshot(self) -> Outcome:
        """What is there now, with its labels decided, while the run goes on."""
        copy = Outcome(self.work)
        copy.values, copy.status = list(self.values), self.status.copy()
        copy.scores, copy.losses = dict(self.scores), dict(self.losses)
        copy.again, copy.turned, copy.unmet = set(self.again), dict(self.turned), self.unmet
        copy.decide()
        return copy

    def decide(self) -> None:
        """Turn the scores into labels; needs all of them, so it comes last."""
        if not self.scores:
            return
        count = len(self.work.keys)
        places = [place for place in self.scores if place < count]
        free = [scores for place, scores in self.scores.items() if place >= count]
        labels, shares = self.work.call.decide([self.scores[place] for place in places], free)
        for place, label, share in zip(places, labels, shares, strict=True):
            self.values[place] = (label, share)

    def latest(self, places: Sequence[int], count: int, limit: int = 200) -> list[tuple[int, str]]:
        """The last answers as they stand, the newest first; from any thread.

        A label that is told from scores may change until all of them are there.

        Args:
            places: Requests, in the order in which they were answered.
            count: Answers wanted.
            limit: Characters of one.

        Returns:
            Position of the first row of each request, and its answer as text.
        """
        rows = len(self.work.keys)
        own = [place for place in places if place < rows]
        scored = [place for place in own if place in self.scores]
        free = [self.scores[p] for p in range(rows, len(self.work)) if p in self.scores]
        decided, _ = self.work.call.decide([self.scores[place] for place in scored], free)
        labels = dict(zip(scored, decided, strict=True))
        names = [field.name for field in self.work.call.form.fields]
        shown: list[tuple[int, str]] = []
        for place in own[: -count - 1 : -1]:
            values = (labels[place],) if place in labels else self.values[place] or ()
            # A label that is not sure enough is none.
            parts = ["unsure" if value is None else str(value)[:limit] for value in values]
            if len(parts) > 1:
                parts = [f"{name}: {part}" for name, part in zip(names, parts, strict=False)]
            shown.append((self.work.row_of(place), ", ".join(parts)[:limit]))
        return shown

    def doubt(self, keys: Container[bytes]) -> None:
        """Say of the requests without an answer which of them may be at the provider."""
        for place in np.flatnonzero(self.status == PENDING).tolist():
            if self.work.key(place) in keys:
                self.status[place] = IN_DOUBT

    def row_status(self) -> npt.NDArray[np.uint8]:
        """Place in `STATUS` for each row of the frame."""
        work = self.work
        status, asked = work.status.copy(), work.asked
        status[asked] = states(self.status[work.places[asked]], work.call.panel)
        for row, lost in self.turned.items():
            status[row] = PENDING if lost.failure.retryable else FAILED
        return status

    def counts(self) -> dict[str, int]:
        """Rows of the frame by status."""
        found = np.bincount(self.row_status(), minlength=len(STATUS))
        return dict(zip(STATUS, found.tolist(), strict=True))

    def answers(self) -> dict[str, int]:
        """As `counts`, but what only the user's class can check, which is not here, is no failure.

        The answers are there, and paid for.
        """
        counts = self.counts()
        unread = sum(lost.failure.kind == "needs_code" for _, lost in self.lost_rows())
        counts["failed"] -= unread
        counts["ok"] += unread
        return counts

    def rows(self) -> list[tuple[Any, ...] | None]:
        """What each row of the frame came to, a value an output column; None where nothing did."""
        values, panel = self.values, self.work.call.panel
        if panel is None:
            rows = [None if i < 0 else values[i] for i in self.work.inverse.tolist()]
            for position in self.turned:
                rows[position] = None
            return rows
        status, places = self.row_status().tolist(), self.work.places.tolist()
        asked = (self.status != SKIPPED).tolist()
        return [
            panel.row([values[i] for i in own if asked[i]]) if state in {OK, CACHED} else None
            for state, own in zip(status, places, strict=True)
        ]

    def votes(self) -> tuple[int, int]:
        """Votes that were asked one after another, and those never asked; each request once.

        Of votes that are asked all at once there are none.
        """
        panel = self.work.call.panel
        if panel is None or not panel.sequential:
            return 0, 0
        asked = np.isin(self.status, (OK, CACHED, FAILED))
        return int(asked.sum()), int((self.status == SKIPPED).sum())

    def column(self, place: int) -> list[Any]:
        """Values of output column `place`, one a row of the frame; None where there is none."""
        return column(self.rows(), place)

    def lost_rows(self) -> Iterator[tuple[int, Lost]]:
        """Position and loss of each failed row, in row order."""
        failed = np.flatnonzero(self.row_status() == FAILED)
        panel = self.work.call.panel
        for position in failed.tolist():
            places = self.work.places[position].tolist()
            if position in self.turned:
                yield position, self.turned[position]
                continue
            if places[0] < 0:
                yield position, Lost(self.work.failures[position])
                continue
            ask, place = next((a, i) for a, i in enumerate(places) if i in self.losses)
            lost = self.losses[place]
            if panel is not None and panel.size > 1:
                told = f"{panel.name(ask)}: {lost.failure.message}"
                lost = replace(lost, failure=replace(lost.failure, message=told))
            yield position, lost


def column(rows: Sequence[tuple[Any, ...] | None], place: int) -> list[Any]:
    """Value `place` of each row; None where there is none."""
    return [None if row is None or len(row) <= place else row[place] for row in rows]


def outcome_of(work: Work, journal: Journal, since: float | None = None) -> Outcome:
    """Read a work's outcome from the journal alone.

    Args:
        work: The rows.
        journal: Where replies are kept.
        since: Unix seconds when the job began: older replies count as cached.
    """
    outcome = Outcome(work)
    polls = Polls(outcome)
    places, start = polls.first(), 0
    while here := places[start : start + _AT_ONCE]:
        start += len(here)
        found = journal.replies([work.key(place) for place in here])
        for place in here:
            entries = found.get(work.key(place))
            if not entries:
                continue
            settled = settle(work.call, entries)
            if isinstance(settled, Lost):
                if not is_spent(work.call, settled):
                    continue
                outcome.lose(place, settled)
            else:
                early = since is not None and settled.entry.at < since
                status = CACHED if early else OK
                outcome.take(place, settled.entry, settled.reading, status)
                if settled.again:
                    outcome.again.add(place)
            places += polls.then(place)[0]
    outcome.decide()
    outcome.doubt(in_doubt(journal))
    return outcome


def in_doubt(journal: Journal, jobs: Sequence[str] | None = None) -> set[bytes]:
    """Keys of batches of which nobody knows yet whether the provider has them.

    Args:
        journal: Where the intents are.
        jobs: Whose; None: anybody's.
    """
    return {
        key
        for record in journal.batches()
        if record.provider_id is None and (jobs is None or record.job in jobs)
        if record.state == "in_doubt" or (record.state == "intent" and _abandoned(journal, record))
        for _, _, key in journal.lines(record.tag)
    }


def _abandoned(journal: Journal, record: BatchRecord) -> bool:
    """Whether the process that stored the intent is gone, so that nobody knows how far it got."""
    job = journal.job(record.job)
    return job is None or job.driver is None

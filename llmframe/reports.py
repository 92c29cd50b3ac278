"""What a job shows of itself: status, report, trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from llmframe import markup
from llmframe.journal import Entry
from llmframe.progress import Awaited, waiting
from llmframe.requests import Message
from llmframe.results import Usage
from llmframe.views import Sheet, money, number, spread

if TYPE_CHECKING:
    from llmframe.escalations import Escalation

__all__ = ["JobStatus", "Report", "Trace"]

_TONES: Final = {"done": "good", "failed": "bad", "interrupted": "warn", "canceled": "warn"}


@dataclass(frozen=True, repr=False)
class JobStatus(Sheet):
    """Where a job stands, in rows of its frame.

    Attributes:
        id: Of the job.
        state: ``"running"``, ``"done"``, ``"failed"``, ``"interrupted"``, ``"canceled"``, or
            ``"detached"``: its batches are at the provider, and no process waits for them.
        rows: Rows of the frame.
        counts: Rows by status.
        cost: US$ of this job; None where unknown.
        usage: Tokens of this job; None where another process asked.
        awaited: Its batches at the provider.
        batches: Batches that were sent for it so far.
        reader: Id of the job that took over its batches, where another call did.
        error: What ended the job early, if anything did.
    """

    id: str
    state: str
    rows: int
    counts: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    usage: Usage | None = field(default_factory=Usage)
    awaited: tuple[Awaited, ...] = ()
    batches: int = 0
    reader: str | None = None
    error: str | None = None

    @property
    def ok(self) -> int:
        """Rows answered by this job."""
        return self.counts.get("ok", 0)

    @property
    def cached(self) -> int:
        """Rows that were answered before."""
        return self.counts.get("cached", 0)

    @property
    def failed(self) -> int:
        """Rows without an answer, for good."""
        return self.counts.get("failed", 0)

    @property
    def skipped(self) -> int:
        """Rows that were not asked."""
        return self.counts.get("skipped", 0)

    @property
    def pending(self) -> int:
        """Rows without an answer so far."""
        return self.counts.get("pending", 0)

    @property
    def in_doubt(self) -> int:
        """Rows that may be at the provider, with no proof yet."""
        return self.counts.get("in_doubt", 0)

    @property
    def kept(self) -> int:
        """Rows that had a value already, under ``if_exists="fill"``."""
        return self.counts.get("kept", 0)

    @property
    def at_provider(self) -> str:
        """``2 of 3 batches``, or nothing where none of its batches is there."""
        return f"{len(self.awaited)} of {self.batches} batches" if self.awaited else ""

    @property
    def shown_state(self) -> str:
        """The state, and who took the batches over."""
        return self.state if self.reader is None else f"{self.state} (taken over by {self.reader})"

    def _title(self) -> str:
        return f"Job {self.id}: {self.shown_state}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "rows", number(self.rows)
        yield from self.standing()
        yield "cost", money(self.cost)
        if self.error is not None:
            yield "ended early", self.error

    def standing(self) -> Iterable[tuple[str, str]]:
        """Rows by status, and the batches at the provider."""
        for name, count in self.counts.items():
            if count:
                yield name, number(count)
        if self.awaited:
            yield "waiting for", waiting(self.awaited)

    def meter(self) -> markup.Html:
        """How many of the rows that have to be asked are answered, and how many have failed."""
        asked = self.rows - self.skipped - self.kept
        return markup.meter(self.ok + self.cached, asked, self.failed)

    def toned_state(self) -> markup.Html:
        """The state in the colour of what it says; a job is no success whose rows failed."""
        tone = _TONES.get(self.state, "")
        return markup.toned(self.shown_state, "warn" if tone == "good" and self.failed else tone)

    def _parts(self) -> Iterable[markup.Html]:
        yield markup.facts([("answered", self.meter()), *self._lines()])


@dataclass(frozen=True, repr=False)
class Report(Sheet):
    """What happened in a job.

    Attributes:
        status: Rows and cost.
        kinds: Failed rows by kind, the commonest first.
        seconds: From start to end.
        latencies: Seconds of each answered request.
        models: Resolved names that the provider reported; more than one is worth a look.
        maybe_paid: Requests that may have been charged without an answer (timeouts, resets).
        paid_twice: Late or second replies to one request.
        conflicts: Of those, replies that differ from the first.
        repaired: Answers that needed the error told, or a tolerant reading.
        error: What ended the job early.
        estimate: US$ that the job was expected to cost when it was submitted, of votes that are
            asked one after another the least; None where unknown.
        saved: US$ that the provider's prompt cache saved, less what writing to it cost.
        came_to: What a judge's rows came to, and how many of them have a score; else empty.
        votes: Of votes that are asked one after another, how many were; those that were answered
            before count.
        votes_spared: Votes that were never asked, as the others had settled their rows.
        escalation: Rows that went on to a stronger model, and what that saved; None: no cascade.
    """

    status: JobStatus
    kinds: Mapping[str, int]
    seconds: float | None = None
    latencies: tuple[float, ...] = ()
    models: tuple[str, ...] = ()
    maybe_paid: int = 0
    paid_twice: int = 0
    conflicts: int = 0
    repaired: int = 0
    error: str | None = None
    estimate: float | None = None
    saved: float = 0.0
    came_to: str = ""
    votes: int = 0
    votes_spared: int = 0
    escalation: Escalation | None = None

    def _title(self) -> str:
        done = self.status.ok + self.status.cached
        return f"Job {self.status.id}: {number(done)} of {number(self.status.rows)} rows answered"

    def _bill(self) -> str:
        cost = self.status.cost
        # A model on this machine costs nothing, and was expected to.
        if self.estimate is None or cost is None or self.estimate == cost == 0:
            return money(cost)
        least = "at least " if self.votes else ""
        return f"{money(cost)} (the plan expected {least}{money(self.estimate)})"

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "state", self.status.shown_state
        yield from self.status.standing()
        if self.came_to:
            yield "came to", self.came_to
        if self.votes:
            most = self.votes + self.votes_spared
            spared = f"{number(self.votes_spared)} ({self.votes_spared / most:.0%}) spared"
            yield "votes", f"{number(self.votes)} of {number(most)} asked, {spared}"
        if self.escalation is not None:
            yield from self.escalation.lines()
        usage = self.status.usage
        if usage is not None:
            yield "tokens", f"{number(usage.input_tokens)} in, {number(usage.output_tokens)} out"
            if usage.cached_tokens:
                yield "from the prompt cache", f"{number(usage.cached_tokens)} tokens"
            if usage.cache_write_tokens:
                written = f"{number(usage.cache_write_tokens)} tokens"
                if usage.cache_write_1h_tokens:
                    written += f", {number(usage.cache_write_1h_tokens)} of them for an hour"
                yield "into the prompt cache", written
        if self.saved:
            # Writing costs more than plain input, and pays only where it is read again.
            name = "the cache saved" if self.saved > 0 else "the cache cost"
            yield name, money(abs(self.saved))
        yield "cost", self._bill()
        if self.seconds is not None:
            yield "time", f"{self.seconds:.1f} s"
        if self.latencies:
            ordered = sorted(self.latencies)
            high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            yield "latency", f"median {median(ordered):.2f} s, p95 {high:.2f} s"
        for kind, count in self.kinds.items():
            yield f"failed: {kind}", number(count)
        if self.repaired:
            yield "repaired", number(self.repaired)
        for name, count in (
            ("maybe paid", self.maybe_paid),
            ("paid twice", self.paid_twice),
            ("conflict", self.conflicts),
        ):
            if count:
                yield name, number(count)
        if len(self.models) > 1:
            yield "more than one model answered", ", ".join(self.models)
        elif self.models:
            yield "model", self.models[0]
        if self.error:
            yield "ended early", self.error

    def _parts(self) -> Iterable[markup.Html]:
        lines = dict(self._lines())
        lines |= {"state": self.status.toned_state()}
        kinds = {f"failed: {kind}" for kind in self.kinds}
        shown = [(name, value) for name, value in lines.items() if name not in kinds]
        yield markup.facts([("answered", self.status.meter()), *shown])
        if self.kinds:
            yield markup.heading("Failed rows by kind")
            yield markup.bars(self.kinds, bad=True)
        if len(self.latencies) > 1:
            yield markup.heading(f"Latency of {number(len(self.latencies))} requests")
            yield markup.bars(spread(self.latencies, "s"))


@dataclass(frozen=True, repr=False)
class Trace(Sheet):
    """How one cell came to be.

    Attributes:
        label: The row's label, as text.
        messages: The conversation that was sent.
        replies: Every reply, in order: text, finish, usage, model, request_id, kind, and the
            message: why it is no answer, or what was coerced in one that is.
        note: Why there was no request, where there was none.
        names: What each reply is to, where a row has several requests: ``"vote 2 of 3"``.
    """

    label: str
    messages: tuple[Message, ...]
    replies: tuple[Entry, ...]
    note: str | None = None
    names: tuple[str, ...] = ()

    @property
    def attempts(self) -> int:
        """Number of replies."""
        return len(self.replies)

    @property
    def prompt(self) -> str:
        """The conversation as text."""
        return "\n\n".join(f"[{m['role']}] {m['content']}" for m in self.messages)

    @property
    def raw(self) -> str | None:
        """The last reply as the model wrote it; of scored labels, their probabilities."""
        return self.replies[-1].text if self.replies else None

    @property
    def usage(self) -> Usage:
        """Tokens over all replies."""
        return sum((entry.usage for entry in self.replies if entry.usage), Usage())

    def _name(self, place: int) -> str:
        """What reply number `place`, from 1, is called."""
        return f"reply {place}" + (f", {self.names[place - 1]}" if self.names else "")

    def _title(self) -> str:
        replies = "1 reply" if self.attempts == 1 else f"{self.attempts} replies"
        return f"Row {self.label}: {self.note or replies}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        # By their order, as each call that asked again counts its own attempts from 1.
        for place, entry in enumerate(self.replies, 1):
            usage = entry.usage or Usage()
            said = f"{entry.kind}: {entry.message}" if entry.message else entry.kind
            yield (
                self._name(place),
                f"{said}; {entry.model or 'model unknown'}, {number(usage.input_tokens)} tokens "
                f"in, {number(usage.output_tokens)} out, {money(entry.cost)}"
                + (f", request {entry.request_id}" if entry.request_id else ""),
            )

    def _texts(self) -> Iterable[tuple[str, str]]:
        if self.messages:
            yield "prompt", self.prompt
        for place, entry in enumerate(self.replies, 1):
            if entry.text is not None:
                yield f"raw reply {place}", entry.text
            if entry.asked:
                yield f"asked before reply {place}", entry.asked

    def _parts(self) -> Iterable[markup.Html]:
        for message in self.messages:
            yield markup.heading(f"Prompt: {message['role']}")
            yield markup.text(message["content"])
        for place, entry in enumerate(self.replies, 1):
            if entry.asked:
                yield markup.heading(f"Asked before reply {place}")
                yield markup.text(entry.asked)
            yield markup.heading(self._name(place).capitalize())
            yield markup.text("(no text)" if entry.text is None else entry.text)
            if entry.reasoning:
                yield markup.details("the model's own thinking", markup.text(entry.reasoning))
            yield markup.facts(_of_reply(entry))


def _of_reply(entry: Entry) -> Iterator[tuple[str, object]]:
    """What there is to say about one reply."""
    good = entry.kind == "ok"
    yield "verdict", markup.toned(entry.kind, "good" if good else "bad")
    if entry.message:
        yield "which means" if not good else "put right", entry.message
    if entry.finish:
        yield "finish", entry.finish
    usage = entry.usage
    if usage is not None:
        yield "tokens", f"{number(usage.input_tokens)} in, {number(usage.output_tokens)} out"
    yield "cost", money(entry.cost)
    if entry.latency is not None:
        yield "latency", f"{entry.latency:.2f} s"
    yield "model", entry.model or "unknown"
    if entry.request_id:
        yield "request", entry.request_id

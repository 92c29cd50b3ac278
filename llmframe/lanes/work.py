"""The thread behind a lane: take, pack, store the intent, submit, poll, read."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from llmframe.engines.base import Batch, BatchStatus, Control, Line, Source
from llmframe.errors import EngineError, sentence
from llmframe.lanes.checkoff import CheckOff, scored
from llmframe.lanes.doubts import (
    ADOPTED,
    Doubt,
    check_account,
    distinct,
    search,
    settled,
)
from llmframe.lanes.handover import Checked, HandOver, StoppedError
from llmframe.lanes.packs import Pack, Packer
from llmframe.lanes.patience import LONGEST, put_off
from llmframe.lanes.priming import Priming
from llmframe.lanes.sent import Sent, check_window
from llmframe.requests import Request
from llmframe.results import Failure, Result

if TYPE_CHECKING:
    from llmframe.journal import BatchRecord
    from llmframe.lanes.lane import Lane

__all__ = ["UNSENT", "Work"]

_MOST: Final = 10_000
"""Requests a batch where the provider sets no limit: an expiry loses no more than these."""
_LIST: Final = 500
"""Requests taken, and results handed over, at a time."""
_PATIENCE: Final = 600.0
"""Seconds for which a provider may take no batch before the job ends."""
UNSENT: Final = {"refused", "queue_full"}
"""States of an intent of which nothing is at the provider."""


class Work:
    """Everything of one stream that talks to the provider; runs in a thread of its own.

    Args:
        lane: Whose work it is.
        source: As in `Engine.stream`.
        control: As in `Engine.stream`.
        over: Where the results go.
    """

    def __init__(self, lane: Lane, source: Source, control: Control, over: HandOver) -> None:
        self._over = over
        self._lane = lane
        self._engine = lane.engine
        self._journal = lane.journal
        self._source = source
        self._control = control
        self._packer = Packer(
            lane.engine.size,
            lane.limits.max_requests or _MOST,
            lane.limits.max_bytes,
            lane.first,
        )
        self._priming = Priming(lane.engine)
        self._sent: dict[str, Sent] = {}
        self._doubts: dict[str, Doubt] = {}
        # Keys of batches that another stream sent, and what the source gives of them: those
        # wait for their batch.
        self._theirs: set[bytes] = set()
        self._asked: set[bytes] = set()
        self._by_count = bool(getattr(lane.engine, "distinct_counts", False))
        self._closed = False
        self._reopened = 0  # of the lane's jobs
        self._added = 0.0
        self._not_before = 0.0
        self._full_pause = lane.poll_interval
        self._failing_since: float | None = None

    @property
    def sent(self) -> list[Sent]:
        """The batches that are waited for; from any thread."""
        return list(self._sent.values())

    def run(self) -> None:
        """Until the source is closed and every batch is read, or the stream is left."""
        self._source.on_ready(self._over.wake.set)
        while True:
            self._over.wake.clear()  # first: a wake-up from here on must not be lost
            self._reopen()
            for doubt in [d for d in self._doubts.values() if d.due <= self._now()]:
                self._search(doubt)
            for sent in [s for s in self._sent.values() if s.due <= self._now()]:
                self._look(sent)
            self._feed()
            if self._done():
                return
            self._lane.clock.wait(self._over.wake, self._pause())
            if self._over.stop.is_set():
                raise StoppedError

    def _now(self) -> float:
        return self._lane.clock.time()

    def _done(self) -> bool:
        if self._control.mode != "run":
            for pack in self._packer.drop():
                if pack.was is not None:
                    self._journal.batch_state(pack.was, "closed")
            return not (self._lane.waits and (self._sent or self._doubts))
        waiting = self._sent or self._doubts or self._packer.ready or self._packer.open
        return self._closed and not waiting

    def _pause(self) -> float:
        now = self._now()
        packs = sum(len(pack.lines) for pack in self._packer.ready)
        self._lane.unsent = packs + len(self._packer.open)
        dues = [batch.due for batch in self._sent.values()]
        dues += [doubt.due for doubt in self._doubts.values()]
        if not self._doubts and not self._over.unclosed:
            if self._packer.ready:
                dues.append(self._ready_at())
            if self._packer.open:
                dues.append(self._added + self._lane.linger)
        return max(0.0, min(dues, default=now + LONGEST) - now)

    def _give(self, results: Sequence[Result]) -> None:
        for start in range(0, len(results), _LIST):
            self._over.put(list(results[start : start + _LIST]))
        if self._asked:
            self._asked.difference_update(result.key for result in results)

    def _feed(self) -> None:
        """Take and send while there is something, and nothing else is due."""
        while self._control.mode == "run" and not self._doubts and not self._over.stop.is_set():
            if self._packer.ready:
                # A batch that was read keeps its claims until it is closed, and what failed in it
                # cannot be claimed for the next one before.
                if self._now() < self._ready_at() or self._over.unclosed:
                    return
                self._send(self._packer.ready.popleft())
            elif not self._take():
                return
            if any(batch.due <= self._now() for batch in self._sent.values()):
                return

    def _ready_at(self) -> float:
        return max(self._not_before, self._priming.until(self._sent))

    def _take(self) -> bool:
        """Fill the open pack; False: the source has nothing now."""
        if self._closed:
            return False
        taken = self._source.take(min(self._packer.room, _LIST))
        if taken is None:
            self._closed = True
            self._packer.finish()
            return bool(self._packer.ready)
        if not taken:
            # What is not there yet may be on its way: the repairs of rows just handed over.
            late = self._now() >= self._added + self._lane.linger
            if self._packer.open and late and not self._over.unclosed:
                self._packer.finish()
            return bool(self._packer.ready)
        self._added = self._now()
        self._asked |= self._theirs & {request.key for request in taken}
        self._pack(request for request in taken if request.key not in self._theirs)
        return True

    def _pack(self, requests: Iterable[Request]) -> None:
        packed = [(request.key, self._packer.add(request)) for request in requests]
        self._give([Result(key, failure=why) for key, why in packed if why is not None])

    def _send(self, pack: Pack) -> None:
        if primes := self._priming.wanted(pack, self._source.again):
            self._packer.cut(pack, 1)
            pack = self._packer.ready.popleft()
        if self._by_count and (count := distinct(self._journal, pack)) < len(pack.lines):
            self._packer.cut(pack, count)
            pack = self._packer.ready.popleft()
        if pack.was is not None:
            self._journal.batch_state(pack.was, "closed")  # its claims pass to the new intent
        tag = f"{self._lane.job}-{uuid.uuid4().hex[:16]}"
        self._lane.drive(tag, self)
        count, account = len(pack.lines), self._lane.account
        self._journal.open_batch(self._lane.job, tag, count, account, pack.lines)
        lines = (Line(name, (self._source.again(key),)) for name, _, key in pack.lines)
        try:
            batch = self._engine.submit(lines, tag, partial(self._journal.note, tag))
        except (EngineError, OSError) as error:
            self._not_taken(Pack(pack.lines, tag), tag, error)
            return
        self._journal.submitted(tag, batch.id, batch.created_at)
        self._lane.counts["batches"] += 1
        self._failing_since = None
        if primes:
            self._priming.sent(tag, self._now())
        alone = not self._sent
        self._sent[tag] = Sent(tag, batch, self._next_look(), alone)

    def _not_taken(self, pack: Pack, tag: str, error: EngineError | OSError) -> None:
        """`submit` raised: the batch was refused, or may have been created all the same."""
        now = self._now()
        status = error.status if isinstance(error, EngineError) else None
        retryable = isinstance(error, OSError) or error.retryable
        if status == 413:
            self._journal.batch_state(tag, "refused")
            if len(pack.lines) > 1:
                self._packer.halve(pack)
            else:
                self._fail(tag, Failure("request_too_large", f"the provider said: {error}"))
        elif status == 429 and retryable:
            self._journal.batch_state(tag, "refused")
            self._hold_back(error.retry_after if isinstance(error, EngineError) else None)
            self._packer.again(pack)
        elif status is not None and 400 <= status < 500 and status not in {408, 409}:
            self._journal.batch_state(tag, "closed")
            raise error
        elif not retryable:
            raise error
        else:
            self._failing_since = now if self._failing_since is None else self._failing_since
            if now - self._failing_since > _PATIENCE:
                raise EngineError(
                    f"{self._lane.name} has taken no batch for {_PATIENCE:.0f} s: "
                    f"{sentence(error)} "
                    f"Everything finished is kept; the same call goes on from here.",
                    provider=self._lane.name,
                    status=status,
                    retryable=True,
                ) from error
            self._journal.batch_state(tag, "in_doubt")
            self._doubts[tag] = Doubt(tag, len(pack.lines), now, now, pack)

    def _hold_back(self, asked: float | None = None) -> None:
        """Create nothing for a while: longer each time, and as long as the provider `asked`."""
        now = self._now()
        if now >= self._not_before:
            self._not_before = now + max(self._full_pause, min(asked or 0.0, LONGEST))
            self._full_pause = min(2 * self._full_pause, LONGEST)

    def _next_look(self) -> float:
        return self._now() + self._lane.poll_interval * (1 + random.random())

    def _look(self, sent: Sent) -> None:
        try:
            status = self._engine.poll(sent.batch)
        except (EngineError, OSError) as error:
            put_off(self._lane, sent, error, "looked up")
            return
        self._lane.batches[sent.batch.id] = status
        if status.state == "running":
            check_window(self._lane.name, sent.batch, status, self._now())
            sent.failed, sent.paused = 0, 0.0
            sent.due = self._next_look()
        elif status.state == "done":
            self._read(sent, status)
        elif status.state == "rejected":
            self._rejected(sent, status)
        else:
            failure = Failure("lost", f"the batch is no longer at the provider: {status.message}")
            self._fail(sent.tag, failure)

    def _read(self, sent: Sent, status: BatchStatus) -> None:
        check = sent.check
        if check is None:
            again = sent.reopened or sent.doubt is not None
            check = sent.check = CheckOff.stored(self._journal, sent.tag, again)
        check.start()
        results: list[Result] = []
        try:
            for custom_id, part, result in self._engine.fetch(scored(self._journal, sent.batch)):
                if self._over.stop.is_set():
                    raise StoppedError
                ours = check.result(custom_id, part, result)
                if ours is not None:
                    results.append(ours)
                if len(results) >= _LIST:
                    self._give(results)
                    results = []
        except (EngineError, OSError) as error:
            self._give(results)
            put_off(self._lane, sent, error, "read")
            return
        if sent.doubt is not None and not check.answered and check.counts["unknown_ids"]:
            sent.doubt.excluded.add(sent.batch.id)
            self._journal.batch_state(sent.tag, "in_doubt")
            del self._sent[sent.tag]
            self._doubts[sent.tag] = sent.doubt
            return
        self._give(results + check.missing(status.missing))
        self._lane.counts += check.counts
        if check.counts["rate_limited"]:
            # Its rows came to more than the account may ask for: the next batch would as well.
            self._hold_back()
        else:
            self._not_before = min(self._not_before, self._now())  # its place in the queue is free
            self._full_pause = self._lane.poll_interval
        check.tell(self._journal, self._lane.name, sent, max(0.0, self._not_before - self._now()))
        self._end(sent.tag, check.keys)

    def _rejected(self, sent: Sent, status: BatchStatus) -> None:
        said = f": {status.message}" if status.message else ""
        if not status.queue_full:
            # Nothing of it ran, and the next batch has the same model, endpoint and parameters.
            failure = Failure("invalid_request", f"the batch was rejected{said}", fatal=True)
            self._fail(sent.tag, failure)
            return
        self._lane.counts["requeued"] += 1
        self._journal.batch_state(sent.tag, "queue_full")
        self._lane.tidy(sent.batch)
        self._hold_back()
        del self._sent[sent.tag]
        if sent.alone and sent.batch.count > 1:
            # Nothing else of ours was in the queue: this alone is more than it takes.
            self._packer.halve(self._sent_pack(sent.tag))
            return
        failure = Failure("rate_limited", f"the provider's queue is full{said}", retryable=True)
        self._again(sent.tag, None if sent.reopened else self._sent_pack(sent.tag), failure)

    def _fail(self, tag: str, failure: Failure) -> None:
        """One failure for each row of a batch that is over."""
        keys = [key for _, _, key in self._journal.lines(tag)]
        self._give([Result(key, failure=failure) for key in keys])
        self._end(tag, set(keys))

    def _again(self, tag: str, pack: Pack | None, failure: Failure) -> None:
        """Send the rows of a batch that did not run again: by this lane, else by the run."""
        if pack is not None and self._control.mode == "run":
            self._packer.again(pack)
        else:
            self._fail(tag, failure)

    def _sent_pack(self, tag: str) -> Pack:
        return Pack(self._journal.lines(tag), tag)

    def _end(self, tag: str, keys: set[bytes]) -> None:
        """The batch is over, and every result of it was given."""
        sent = self._sent.pop(tag, None)
        self._theirs -= keys
        # What is asked again although the batch answered it before: a failure that the run knows.
        again = keys & self._asked
        self._asked -= again
        self._pack(map(self._source.again, again))
        self._over.unclosed.add(tag)
        self._over.put(Checked(tag, None if sent is None else sent.batch, frozenset(keys)))

    def _reopen(self) -> None:
        """Take up the open batches of the lane's jobs, and of those that it took over since."""
        new, self._reopened = self._lane.jobs[self._reopened :], len(self._lane.jobs)
        for record in [record for job in new for record in self._journal.batches(job)]:
            if not self._lane.drive(record.tag, self):
                continue  # another stream of this lane is at it
            check_account(self._lane, record)
            self._theirs.update(key for _, _, key in self._journal.lines(record.tag))
            self._resume(record)

    def _resume(self, record: BatchRecord) -> None:
        now = self._now()
        if record.state in UNSENT:
            self._fail(record.tag, Failure("no_result", "the batch was not sent", retryable=True))
        elif record.provider_id is None or record.state == "in_doubt":
            self._journal.batch_state(record.tag, "in_doubt")
            self._doubts[record.tag] = Doubt(record.tag, record.count, now, record.opened)
        else:
            created_at = record.created_at or record.opened
            batch = Batch(record.provider_id, record.tag, record.count, created_at)
            sent = self._sent[record.tag] = Sent(record.tag, batch, now, reopened=True)
            if record.state == ADOPTED:
                sent.doubt = Doubt(record.tag, record.count, now, record.opened)

    def _search(self, doubt: Doubt) -> None:
        """Adopt the batch of an intent whose answer was lost, or find out that there is none."""
        batch = search(self._lane, doubt)
        if batch is not None:
            state = ADOPTED if self._by_count else "submitted"
            self._journal.submitted(doubt.tag, batch.id, batch.created_at, state)
            self._lane.counts["adopted"] += 1
            del self._doubts[doubt.tag]
            self._sent[doubt.tag] = Sent(
                doubt.tag, batch, self._now(), reopened=doubt.pack is None, doubt=doubt
            )
        elif settled(doubt, self._now()):
            self._lane.counts["never_created"] += 1
            del self._doubts[doubt.tag]
            failure = Failure("no_result", "the batch was never created", retryable=True)
            self._again(doubt.tag, doubt.pack, failure)

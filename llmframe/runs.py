"""The one loop: what is missing → engine → journal → check → asked again, until nothing is open.

Three threads share a run: the feeder (`llmframe.feeds`) makes requests ahead of the engine, the
driver consumes the engine's results here, and whoever called waits. Retries and repairs join the
same stream: there are no waves and no barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Final

from llmframe.brakes import OUTAGE, Budget, Outage, Quality
from llmframe.canaries import Canary, Suspects
from llmframe.costs import cache_savings
from llmframe.engines.base import Engine
from llmframe.errors import EngineError, LLMFrameError, sentence
from llmframe.feeds import Feed
from llmframe.flights import Control, Flight
from llmframe.journal import Entry, Journal
from llmframe.lanes import Lane, Twin
from llmframe.ledgers import Ledger
from llmframe.outcomes import Outcome
from llmframe.polls import Polls
from llmframe.proofs import is_proven, prove
from llmframe.rechecks import Judge, Rechecks
from llmframe.results import KINDS, Failure, Result
from llmframe.rounds import again_after, no_longer
from llmframe.running import Running
from llmframe.schemas.reading import Reading
from llmframe.settlements import Lost, entry_of, settle
from llmframe.work import CACHED, FAILED, OK, STATUS, Work

__all__ = ["Run"]

_AT_ONCE: Final = 4096
"""Requests that are looked up together."""


class Run(Running):
    """Answers what is missing of a `Work`.

    Args:
        work: The rows.
        engine: Who answers; a batch engine comes wrapped as a lane.
        journal: Where replies are kept, and looked up first.
        budget: What may be spent.
        job: The job's id.
        limit: Requests in flight at once.
        keep_prompts: Store the rendered prompts too.
        patience: Seconds an outage may last; None: 600.
        since: Unix seconds when the job began, where it began in an earlier run: what it answered
            and spent since then is its own.
        ending: Send nothing: read what is at the provider to its end.
        judge: Looks at all answers together; None: each stands by itself.
        ahead: Store the prompts of all rows before the first is sent live, so that another process
            may go on with them.

    Attributes:
        outcome: Answers and failures so far.
        error: What ended the job early.
        ledger: What it has done and paid.
    """

    def __init__(
        self,
        work: Work,
        engine: Engine,
        journal: Journal,
        budget: Budget,
        *,
        job: str,
        limit: int,
        keep_prompts: bool = True,
        patience: float | None = None,
        since: float | None = None,
        ending: bool = False,
        judge: Judge | None = None,
        ahead: bool = False,
    ) -> None:
        self.work = work
        self.engine = engine
        self.outcome = Outcome(work)
        self.error: BaseException | None = None
        self.ledger = Ledger(work)
        self._polls = Polls(self.outcome)
        self._journal = journal
        self._budget = budget
        self._control = Control(limit, "drain" if ending else "run")
        self._ending = ending
        self._since = float("inf") if since is None else since
        self._lane = engine if isinstance(engine, Lane) else None
        self._batched = self._lane is not None
        self._answered = False
        self._asks = engine.engine if isinstance(engine, Lane | Twin) else engine
        self._mark = work.call.maker().key([])
        self._job = job
        self._outage = Outage(limit, patience)
        self._quality = Quality()
        self._feed = Feed(
            work,
            journal,
            self._control,
            budget,
            self._outage,
            job=job,
            keep_prompts=keep_prompts,
            bounded=self._lane is None,
            stored=self._from_others,
            ended=self._end,
            lane=self._lane,
            alike=self._asks.limits.prefixes,
            ahead=ahead and self._lane is None,
        )
        told = self._batched and work.call.errors != "coerce"
        self._canary = Canary(self._feed, work.call.repairs if told else None)
        self._suspects = Suspects(self._feed, journal, self.outcome, self.ledger)
        self._rechecks = Rechecks(work, journal, self.outcome, self.ledger, self._feed, judge)
        self._began = time.monotonic()

    # -- the loop ----------------------------------------------------------------------------

    def look_up(self) -> None:
        """Take from the journal what is answered already; the rest is to be asked."""
        work, feed = self.work, self._feed
        # Calibration first: every label needs it.
        places, start = self._polls.first(), 0
        while here := places[start : start + _AT_ONCE]:
            start += len(here)
            found = self._journal.replies([work.key(place) for place in here])
            for place in here:
                entries = found.get(work.key(place))
                if entries:
                    feed.known[place] = len(entries)
                    self._budget.paid(entries, partial(work.request, place))
                    self.ledger.pay([entry for entry in entries if entry.at >= self._since])
                    if self._from_store(place, entries):
                        places += self._next(place)
                        continue
                feed.todo.append(place)
        feed.open = len(feed.todo)
        if not feed.open and not self._ending:
            self._rechecks.look()

    def _from_store(self, place: int, entries: list[Entry]) -> bool:
        """Settle a request from stored replies; False: it must be asked."""
        settled = settle(self.work.call, entries)
        if isinstance(settled, Lost):
            rule = KINDS.get(settled.failure.kind)
            if rule is None or rule.rerun != "told" or self.work.call.retry == "all":
                return False
            self._lose(place, settled)
            return True
        own = settled.entry.at >= self._since
        self.outcome.take(place, settled.entry, settled.reading, OK if own else CACHED)
        if settled.again:
            self.outcome.again.add(place)
        self.ledger.settle("ok" if own else "cached", place)
        return True

    def _from_others(self, place: int, entries: list[Entry]) -> bool:
        """As `_from_store`, for replies that came meanwhile. Holds the lock."""
        settled = self._from_store(place, entries)
        if settled:
            self._feed.add(self._next(place))
        return settled

    def _next(self, place: int) -> list[int]:
        """What is asked now that a request is at its end: votes that hang on it."""
        more, never = self._polls.then(place)
        if never:
            own = self.outcome.status[self.work.places[self.work.row_of(place)]]
            status = next((s for s in (OK, CACHED) if s in own), FAILED)
            for other in never:
                self.ledger.settle(STATUS[status], other)
        return more

    def run(self) -> None:
        """Answer everything that is open; returns when nothing is, or when the job must stop."""
        feed, lane = self._feed, self._lane
        if not feed.open:
            return
        proven = self.engine.limits.in_process or is_proven(self._asks, self._journal, self._mark)
        try:
            feed.open_up()
            self._canary.watches = self.engine.limits.in_process and not self.ledger.rows["cached"]
            if len(feed.todo) > 1 and not proven and not self._ending:
                self._batched = False
                feed.canary = feed.todo[0]
                if lane is not None:
                    self._canary.probe(lane, self._absorb, self._tick)
                    self._batched = True
            feed.start()
            self._stream()
            while self._control.mode == "run" and not (self.error or feed.open or feed.unasked):
                feed.rest()
                if not self._rechecks.look():
                    break
                feed.open_up()
                feed.start()
                self._stream()
        except LLMFrameError as error:
            self.error = self.error or error
        except Exception as error:
            broke = EngineError(
                f"the engine {self.engine.name!r} broke off: "
                f"{sentence(f'{type(error).__name__}: {error}')} {self.ledger.kept()}",
                provider=self.engine.name,
            )
            broke.__cause__ = error
            self.error = self.error or broke
        finally:
            feed.stop()
            self._suspects.convict()
            self._journal.flush()
        if self._answered:
            self._prove()

    def _stream(self) -> None:
        """Have the engine answer until nothing is open, or the job must stop."""
        feed = self._feed
        while feed.open and (self._control.mode == "run" or self._ending):
            feed.closing = False
            feed.heard = time.monotonic()
            for results in self.engine.stream(feed, self._control):
                self._absorb(results)
                if self._batched:
                    # Results are read faster than stored: a whole batch would wait in memory.
                    self._journal.flush()
            self._forsaken()
            if self._ending:
                break

    def _prove(self) -> None:
        """The canary of the next call is unnecessary for an hour."""
        if not self.engine.limits.in_process:
            prove(self._asks, self._journal, self._job, self._mark)

    def _tick(self) -> None:
        """End an outage that has lasted too long, while nobody else looks."""
        with self._feed.cond:
            if self._outage.streak and self._outage.over(time.monotonic()):
                self._end(None)

    def _forsaken(self) -> None:
        """The engine ended its stream; what it took and never answered goes out again."""
        with self._feed.cond:
            feed = self._feed
            lost = [key for key, flight in feed.flights.items() if flight.taken] + [*feed.sent]
        if lost and self._control.mode == "run":
            failure = Failure("no_result", "the engine gave no result for this row", True)
            self._absorb([Result(key, failure=failure) for key in lost])

    # -- results -----------------------------------------------------------------------------

    def _absorb(self, results: Iterable[Result]) -> None:
        """Store, then check, then decide on each result."""
        call, feed, lane = self.work.call, self._feed, "batch" if self._batched else "live"
        budget = self._budget
        price = budget.price if self._batched or self._lane is None else budget.live
        landed: list[tuple[Result, Flight, Entry]] = []
        replies: list[Entry] = []
        now = time.time()
        for result in results:
            flight = feed.landed(result.key)
            result = no_longer(flight, result) if flight is not None else result
            usage = result.usage
            cost = price.cost(usage) if price is not None and usage is not None else None
            entry = entry_of(result, cost, now, *_told(flight), lane)
            self.ledger.pay([entry])
            self.ledger.saved += cache_savings(price, usage)
            if result.failure is None or result.text is not None or flight is None:
                replies.append(entry)
                if flight is not None:
                    flight.claimed = False
            if flight is None:
                self._late(result)
            else:
                landed.append((result, flight, entry))
        self._journal.record(replies)
        readings = [call.read(result) for result, _, _ in landed]
        answered = self._answered
        with feed.cond:
            if landed:  # an engine that yields nothing may be waiting for a row it has lost
                feed.heard = time.monotonic()
            feed.unsafe += len(landed)
            for (result, flight, entry), reading in zip(landed, readings, strict=True):
                feed.in_flight -= flight.taken
                self._budget.pay(partial(feed.request, flight), flight.reserved, entry)
                flight.reserved = 0.0
                if result.model:
                    self.ledger.models.add(result.model)
                if reading.failure is None:
                    self._accept(flight, result, reading)
                else:
                    self._reject(flight, result, reading.failure, entry)
            feed.cond.notify_all()
            closed = not feed.open
        if self._answered and not answered:
            self._prove()  # now: a process that dies in a moment need not have asked in vain
        if closed:
            feed.wake()

    def _accept(self, flight: Flight, result: Result, reading: Reading) -> None:
        self.outcome.take(flight.place, result, reading, OK)
        self.ledger.answer(flight.place, result.latency, bool(flight.repairs or reading.repaired))
        if result.latency is not None:
            self._feed.longest = max(self._feed.longest, result.latency)
        self._feed.open -= 1
        self._feed.add(self._next(flight.place))
        self._feed.canary, self._canary.watches = None, False
        self._suspects.convict()
        self._answered = True
        self._outage.answered()
        self._quality.answer(None)

    def _reject(self, flight: Flight, result: Result, failure: Failure, entry: Entry) -> None:
        self.ledger.maybe_paid += failure.maybe_paid
        if failure.kind == "canceled" and self._control.mode != "run":
            return  # given up because we stopped: the row stays pending
        self.ledger.refuse(failure)
        if failure.fatal:
            self._end(self._engine_error(failure, result.request_id))
            return
        # Live, the limiter knows what to wait for; of a batch's row the provider has given up.
        waits = failure.kind == "rate_limited" and not (self._batched and failure.status)
        spent = not self._brake(failure) and not waits
        if result.failure is not None and result.text is None and spent:
            # Only what says something about this row is kept as one of its replies; of a canary
            # that is refused, nobody knows yet.
            self._suspects.add(flight, entry)
            if not self._canary.doubts(failure):
                self._suspects.convict()
        if spent:
            self._feed.known[flight.place] = self._feed.known.get(flight.place, 0) + 1
        verdict = None if self.work.call.errors == "coerce" else self._quality.verdict()
        if verdict is not None:
            self._end(EngineError(f"{verdict}. {self.ledger.kept()}", provider=self.engine.name))
        elif self._canary.ends(flight, failure):
            self._suspects.absolve()
            self._end(self._engine_error(failure, result.request_id))
            return
        pause = again_after(self.work, flight, result, failure, spent)
        if pause is None:
            lost = Lost(failure, result.text, flight.attempt, result.request_id)
            self._lose(flight.place, lost)
            self._feed.open -= 1
            self._feed.add(self._next(flight.place))
        elif not self.work.can_ask(flight.place):
            self._feed.open -= 1
            self._feed.unasked += 1
        else:
            flight.attempt += 1
            # A round takes a batch's time, so a pause on top would only split it in two.
            self._feed.retry(flight, 0.0 if self._batched else pause)

    def _brake(self, failure: Failure) -> bool:
        """Count the failure; True where an outage is to blame, so that it spends no try."""
        if failure.kind in OUTAGE and not self._batched:
            was_open, now = self._outage.open, time.monotonic()
            self._outage.failed(failure, now)
            if self._outage.open and not (was_open and self._feed.busy):
                # The last of those that were on their way, or a single row that was tried.
                self._feed.probe_at = now + self._outage.pause()
            return was_open
        if failure.kind not in {"rate_limited", "no_result"}:
            self._outage.answered()
            self._quality.answer(failure)
        return False

    def _lose(self, place: int, lost: Lost) -> None:
        self.outcome.lose(place, lost)
        self.ledger.settle("failed", place)

    def _late(self, result: Result) -> None:
        """A second reply to one request: the first is kept, and the report says so."""
        first = self._journal.replies([result.key]).get(result.key, [])
        if first:  # else a row of another job, whose batch this one reads
            self.ledger.late(first, result.text)

    # -- ends --------------------------------------------------------------------------------

    def _end(self, error: BaseException | None) -> None:
        """Stop the job: nothing more is sent, what is in flight is finished. Holds the lock.

        Batches that run at the provider are left there: they are paid for whoever reads them, and
        an error must not take a day to be heard.

        Args:
            error: Why; None: the outage has lasted longer than its patience.
        """
        if error is None:
            last = self._outage.last
            assert last is not None
            error = self._engine_error(last, None)
            error.retryable = True
            self._control.mode = "abort"
        self.error = self.error or error
        if self._control.mode == "run":
            self._control.mode = "drain"
            if self._lane is not None:
                self._lane.waits = False
        self._feed.cond.notify_all()
        self._feed.wake()

    def _engine_error(self, failure: Failure, request_id: str | None) -> EngineError:
        return EngineError(
            f"{sentence(failure.message)} {self.ledger.kept(failure)}",
            provider=self.engine.name,
            status=failure.status,
            request_id=request_id,
            retryable=failure.retryable,
        )


def _told(flight: Flight | None) -> tuple[int, str | None]:
    """Which try a reply answers, and what that try was told; a late reply answers none."""
    return (0, None) if flight is None else (flight.attempt, flight.asked)

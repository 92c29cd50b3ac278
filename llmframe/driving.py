"""How a job runs: started, waited for, interrupted, taken up again, cancelled, finished."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

from llmframe.calls import Call
from llmframe.engines.base import BatchEngine, Engine
from llmframe.errors import BudgetError, EngineError, StoreError, warn_user
from llmframe.journal import BatchRecord, JobRecord, Journal
from llmframe.lanes import UNSENT, twin_of
from llmframe.launches import run_over
from llmframe.outcomes import in_doubt
from llmframe.prepared import Prepared
from llmframe.progress import Progress, display
from llmframe.runs import Run
from llmframe.standings import standing
from llmframe.stored import engine_again, stored_work

__all__ = ["Driven"]

log = logging.getLogger("llmframe")

J = TypeVar("J", bound="Driven")

_LOOK: Final = 0.5
"""Seconds between two looks at a job that another process drives."""
_COUNT: Final = 10.0
"""And between two counts of its rows, to show them."""
_QUIET: Final = 60.0
"""Seconds without a new batch after which an exit waits for no more of them."""


class Driven:
    """A job as something that runs; `llmframe.jobs.Job` is what its user sees."""

    def __init__(self, name: str, call: Call, journal: Journal, record: JobRecord) -> None:
        self.id = name
        self._call = call
        self._journal = journal
        self._record = record
        self._prepared: Prepared | None = None
        self._run: Run | None = None
        self._done = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._state = record.state
        self._canceled = False
        self._heard = False  # whoever waits has been told how the run ended
        self._failed: str | None = None  # why an earlier run did, while its batches are read
        self._batch = bool(json.loads(record.engine).get("batch"))

    # -- the run -----------------------------------------------------------------------------

    def start(self, prepared: Prepared, run: Run) -> None:
        """Begin to answer, in a thread of its own."""
        self._prepared = prepared
        self._go(run)

    def _go(self, run: Run) -> None:
        self._run, self._heard = run, False
        self._done.clear()
        if run.left:
            _leave_at_exit()
            _running.add(self)
            name = f"llmframe-{self.id}"
            threading.Thread(target=self._drive, args=(run,), name=name, daemon=True).start()
        else:
            self._finish(run)
            self._done.set()

    def _drive(self, run: Run) -> None:
        try:
            run.run()
        except BaseException as error:
            run.error = run.error or error
        finally:
            try:
                self._finish(run)
            except BaseException as error:
                run.error = run.error or error
                self._state = "failed"
            finally:  # whoever waits must not wait for ever, whatever broke
                _running.discard(self)
                self._done.set()
                for callback in list(self._callbacks):
                    callback()

    def _finish(self, run: Run) -> None:
        run.outcome.decide()
        counts = run.outcome.counts()
        error = str(run.error) if run.error else self._failed
        if run.error is not None:
            self._state = "failed"
        elif self._canceled:
            self._state = "canceled"
        elif counts["pending"]:
            self._state = "failed" if self._failed is not None else "interrupted"
        else:
            self._state = "done"
        try:
            if run.lane is not None:
                # An upload that was interrupted still goes on. Until it has ended the job is
                # driven here: another run would look for its batch in vain, and send it again.
                while run.lane.busy:
                    time.sleep(0.02)
                if isinstance(run.error, EngineError | BudgetError) and self._batch_ids():
                    # Said last: until now its batches were still being created, read or closed.
                    run.error.args = (f"{run.error} {self._at_provider(run)}",)
                run.lane.let_go()
            self._journal.update_job(
                self.id,
                state=self._state,
                finished=time.time(),
                error=error,
                counts=counts,
                spent=run.progress().cost,
            )
            self._journal.leave(self.id)
            self._journal.flush()
        except Exception as error:
            run.error = run.error or error

    @property
    def _going(self) -> bool:
        """Whether this process drives it now."""
        return self._run is not None and not self._done.is_set()

    # -- taken up again ----------------------------------------------------------------------

    def resume(self: J, model: Any = None, *, resend: bool = False) -> J:
        """Go on with a job of provider batches in this process; returns at once.

        Its batches are found in the store, polled and read, and what fails is sent again where
        its prompt is stored. `wait` does this by itself; call it to name the engine, or to send
        rows again of which nobody can tell whether the provider has them.

        Args:
            model: The engine it was made with, where its name alone does not make it again.
            resend: Send again the rows of batches that may have been created and cannot be found,
                and pay for them again if they were.

        Raises:
            StoreError: Another process drives it; another account, server or model sent it.
        """
        if not self._going:
            self._take_up(model, resend=resend)
        return self

    def _take_up(
        self,
        model: Any = None,
        *,
        resend: bool = False,
        ending: bool = False,
        live: bool = False,
    ) -> None:
        prepared, record = self._prepared, self._journal.job(self.id) or self._record
        engine: Engine | BatchEngine
        if model is None and prepared is not None:
            engine = prepared.engine
        else:
            engine = engine_again(record, self._call, model)
        if not self._journal.drive(self.id):
            raise StoreError(
                f"job {self.id} is driven by {record.driver}; wait there, or end that process. "
                f"lf.job({self.id!r}).wait() watches it from here."
            )
        try:
            work = self._run and self._run.work
            run = run_over(
                work or stored_work(self._journal, record, self._call),
                twin_of(engine) if live and isinstance(engine, BatchEngine) else engine,
                self._journal,
                self.id,
                budget=record.budget,
                concurrency=prepared.concurrency if prepared is not None else None,
                since=record.created,
                ending=ending,
                resend=resend,
            )
            self._failed = record.error if ending else None
            self._journal.update_job(self.id, state="running", error=self._failed)
        except BaseException:
            self._journal.leave(self.id)
            raise
        self._canceled = False
        self._go(run)

    def _resumable(self) -> bool:
        """Whether there is something at the provider, or still to be sent, and nobody at it."""
        if not self._batch or self._going:
            return False
        record = self._journal.job(self.id) or self._record
        if record.driver is not None:
            return False
        open_ended = record.state == "running" or (
            record.state == "interrupted" and self._run is not None and self._run.left > 0
        )
        return open_ended or bool(self._journal.batches(self.id))

    # -- waiting -----------------------------------------------------------------------------

    def wait(self: J, timeout: float | None = None) -> J:
        """Wait for the end of the job, or `timeout` seconds.

        A job of provider batches that nobody drives any more is taken up here: its batches are
        polled and read, by this process alone. Of a job that failed only what is at the provider
        is read; the same call, or `resume`, sends the rest.

        Returns:
            The job itself; `status` says whether it is done.

        Raises:
            KeyboardInterrupt: Ctrl-C or the kernel's interrupt. Live work is stopped and what is
                finished is kept; provider batches go on. The message says how to come back.
            StoreError: The batches belong to another account, server or model.
        """
        until = None if timeout is None else time.monotonic() + timeout
        again = self._resumable()
        # A run that failed is told of before anything else, and only then read on.
        failed = self._run is not None and self._run.error is not None
        if again and (self._heard or not failed):
            self._read_on()
        elif self._run is None:
            if not self._watched(until):
                self._tell_what_was_left()
                return self
            self._read_on()
        self._wait_here(until)
        self._heard = self._done.is_set()
        run = self._run
        if run is not None and self._prepared is None and self._done.is_set():
            self._tell_what_is_left(run)
        return self

    def _read_on(self) -> None:
        """Take the job up; of one that failed only what is at the provider."""
        record = self._journal.job(self.id) or self._record
        self._take_up(ending=record.state == "failed")

    def _tell_what_was_left(self) -> None:
        """Of a job that nobody drives, and that nobody can go on with from here."""
        record = self._journal.job(self.id) or self._record
        counts = Counter(standing(self._call, self._journal, record).counts)
        if record.driver is None and counts["pending"]:
            why = f" It ended early: {record.error}" if record.error else ""
            warn_user(
                f"{counts['pending']:,} rows of job {self.id} are without an answer, and nobody is "
                f"at them.{why} The same call on the frame sends them, and only them."
            )

    def _tell_what_is_left(self, run: Run) -> None:
        """What only the verb itself would say, where there is no verb: another process waits."""
        if run.error is not None:
            raise run.error
        if run.unasked:
            warn_user(
                f"{run.unasked:,} requests of job {self.id} were never sent, and their prompts "
                f"are not in the store. The same call on the frame sends them, and only them."
            )

    def _wait_here(self, until: float | None = None) -> None:
        """Wait for the run of this process."""
        assert self._run is not None
        shown = display(self.id, self._prepared.progress if self._prepared else None)
        try:
            # A timed loop: an untimed wait cannot be interrupted on Windows.
            while not self._done.wait(_step(until)):
                if until is not None and time.monotonic() >= until:
                    break
                shown.update(self._run.progress())
        except KeyboardInterrupt:
            raise self._interrupted() from None
        finally:
            shown.close(self._run.progress())

    def _watched(self, until: float | None) -> bool:
        """Another process drives this job, or nobody does; True: its driver died, it is ours."""
        shown, counted = display(self.id, None), time.monotonic()
        seen: Progress | None = None
        try:
            while True:
                record = self._journal.job(self.id) or self._record
                if record.driver is None:
                    return self._resumable()
                if record.state != "running" or (until is not None and time.monotonic() >= until):
                    return False
                if time.monotonic() - counted >= _COUNT:
                    seen, counted = self._seen(record), time.monotonic()
                    shown.update(seen)
                time.sleep(_step(until, _LOOK))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'job {self.id} goes on in {record.driver}. lf.job("{self.id}").wait() watches it.'
            ) from None
        finally:
            if seen is not None:
                shown.close(seen)

    def _seen(self, record: JobRecord) -> Progress:
        """The run of another process, as the journal shows it."""
        seen = standing(self._call, self._journal, record)
        counts = Counter(seen.counts)
        return Progress(
            record.count - counts["skipped"] - counts["kept"],
            counts["ok"],
            counts["cached"],
            counts["failed"],
            cost=seen.cost,
            seconds=time.time() - record.created,
            awaited=seen.awaited,
        )

    def _interrupted(self) -> KeyboardInterrupt:
        run = self._run
        assert run is not None
        run.stop("abort")
        # A second Ctrl-C is in a hurry: it gets the same message, at once.
        with contextlib.suppress(KeyboardInterrupt):
            self._done.wait(1.5)
        counts = run.outcome.counts()
        kept = f"{counts['ok'] + counts['cached']:,} of {run.work.count:,} rows kept"
        if run.lane is None or not self._batch_ids():
            return KeyboardInterrupt(
                f'{kept}. lf.job("{self.id}").join(df) shows them; the same call sends the rest.'
            )
        return KeyboardInterrupt(f"{kept}. {self._at_provider(run)}")

    def _at_provider(self, run: Run) -> str:
        """Which batches go on without this process, and how to come back to them."""
        ids = self._batch_ids()
        named = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        go, them = ("batch goes", "it") if len(ids) == 1 else ("batches go", "them")
        return (
            f'{len(ids)} {go} on at {run.engine.name} ({named}): lf.job("{self.id}").wait() comes '
            f"back to {them}, from any process, and so does the same call; "
            f'lf.job("{self.id}").cancel() stops {them}.'
        )

    def _batches(self, open_only: bool = True) -> list[BatchRecord]:
        """The batches that were sent, those that it took over included."""
        run = self._run
        jobs = run.lane.jobs if run is not None and run.lane is not None else [self.id]
        records = [record for job in jobs for record in self._journal.batches(job, open_only)]
        return [record for record in records if record.state not in UNSENT]

    def _batch_ids(self) -> list[str]:
        """The provider's ids of the batches that are open; one may not have been told yet."""
        return [record.provider_id or "on its way" for record in self._batches()]

    # -- ended -------------------------------------------------------------------------------

    def cancel(self: J) -> J:
        """Stop the job; what is done is kept.

        Batches at the provider are cancelled, and what they had done by then is read: that goes
        on in the background where it takes longer than two seconds.

        Raises:
            StoreError: Another process drives it; another account, server or model sent it.
        """
        if not self._going:
            if not self._resumable():
                return self
            self._take_up(ending=True)
        run = self._run
        assert run is not None
        self._canceled = True
        self._end(run)
        self._done.wait(2.0)
        return self

    def finish(self: J, live: bool = True, *, model: Any = None) -> J:
        """End the job now: what is open at the provider is cancelled, the rest is asked live.

        Nothing is asked twice: the provider's batches come to their end first, what they did is
        read and kept, and the last rows go out with the same keys, at the live price.

        Args:
            live: False: wait for the batches, as `wait` does.
            model: As in `resume`.

        Raises:
            StoreError: Another process drives it; another account, server or model sent it.
        """
        if not self._batch or not live:
            return self.wait()
        if not self._going:
            self._take_up(model, ending=True)
        run = self._run
        assert run is not None
        self._end(run)
        self._wait_here()
        if run.error is not None:
            raise run.error
        if run.left:
            self._take_up(model, live=True)
        return self.wait()

    def _end(self, run: Run) -> None:
        """Nothing more is sent; a provider's batches are stopped, and read to their ends."""
        if run.lane is None:
            run.stop("abort")
            return
        run.stop("drain")
        name = f"llmframe-cancel-{self.id}"
        threading.Thread(target=self._cancel_batches, args=(run,), name=name, daemon=True).start()

    def _cancel_batches(self, run: Run) -> None:
        """Until the run has ended: a batch may be created, or found, in the very moment."""
        assert run.lane is not None
        while not self._done.is_set():
            try:
                run.lane.cancel()
            except (EngineError, StoreError, OSError) as error:
                log.warning("a batch of job %s could not be cancelled: %s", self.id, error)
            self._done.wait(run.lane.poll_interval)

    def _doubts(self) -> set[bytes]:
        """Keys of which nobody knows whether the provider has them."""
        run = self._run
        if run is None or run.lane is None:
            return set()
        return in_doubt(self._journal, run.lane.jobs)


def _step(until: float | None, most: float = 0.1) -> float:
    return most if until is None else min(most, max(0.0, until - time.monotonic()))


_running: set[Driven] = set()


@lru_cache(maxsize=1)
def _leave_at_exit() -> None:
    # No atexit function: the engines would be down by then. The interpreter waits for this thread,
    # while everything still runs.
    threading.Thread(target=_when_main_ends, name="llmframe-exit").start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_at_exit.cache_clear)


def _when_main_ends() -> None:
    threading.main_thread().join()
    _leave()


def _leave() -> None:
    """At exit: hand over what is on its way to a provider, stop feeding, keep what is finished.

    Daemon threads would die in mid-write.
    """
    running = list(_running)
    with contextlib.suppress(KeyboardInterrupt):
        for job in running:
            _hand_over(job)
    for job in running:
        if job._run is not None:
            job._run.stop("abort")
    for job in running:
        job._done.wait(2.0)


def hand_over_in_a_script(job: Driven) -> None:
    """Where a script could end next: wait until a job's rows are at the provider.

    From Python 3.12 on no thread can be started once the script has ended, so nothing could be
    sent then; before, `_leave` does this at the end. A notebook or a prompt stays.
    """
    stays = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    if sys.version_info >= (3, 12) and not stays:
        _hand_over(job)


def _hand_over(job: Driven) -> None:
    """Wait until a job's rows are all at the provider: a script may submit and end."""
    run = job._run
    if run is None or run.lane is None:
        return
    sent, until = -1, 0.0
    while run.sending and not job._done.is_set():
        if (now := run.lane.counts["batches"]) != sent:
            sent, until = now, time.monotonic() + _QUIET
        if time.monotonic() > until:
            return
        time.sleep(0.02)


def tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Set an event of a loop from any thread."""
    # The loop that awaited may be closed by now, and nobody listens any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(ended.set)

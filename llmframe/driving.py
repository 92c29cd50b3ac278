"""How a job runs: started, waited for, interrupted, taken up again, cancelled, finished."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeVar

from llmframe import comebacks, exits
from llmframe.calls import Call
from llmframe.engines import homes
from llmframe.engines.base import BatchEngine, Engine
from llmframe.errors import EngineError, StoreError, on_behalf, user_line, warn_user
from llmframe.journal import BatchRecord, JobRecord, Journal
from llmframe.lanes import UNSENT, twin_of
from llmframe.launches import run_over
from llmframe.prepared import Prepared
from llmframe.progress import Display, display
from llmframe.runs import Run
from llmframe.standings import standing
from llmframe.stored import engine_again, stored_work
from llmframe.verdicts import judge_on
from llmframe.watching import Caller, step, watch

__all__ = ["PATIENCE", "Driven"]

log = logging.getLogger("llmframe")

J = TypeVar("J", bound="Driven")

PATIENCE: Final = 1.5
"""Seconds that an interrupt waits for what is in flight to let go."""


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
        self._pressed: Literal["stop", "cancel"] | None = None  # in a view
        self._heard = False  # whoever waits has been told how the run ended
        self._failed: str | None = None  # why an earlier run did, while its batches are read
        made = json.loads(record.engine)
        self._batch = bool(made.get("batch"))
        self._ahead = bool(made.get("ahead"))
        self._remade = made.get("made") is not None  # in any process, and not only in this one

    # -- the run -----------------------------------------------------------------------------

    def start(self, prepared: Prepared, run: Run) -> None:
        """Begin to answer, in a thread of its own.

        Raises:
            KeyboardInterrupt: As in `wait`, while a script's rows are handed over.
        """
        self._prepared = prepared
        self._go(run)
        try:
            exits.hand_over_in_a_script(run, self._done)
        except KeyboardInterrupt:
            raise self._interrupted() from None

    def _go(self, run: Run) -> None:
        self._run, self._heard, self._pressed = run, False, None
        self._done.clear()
        if run.left:
            exits.enter(run, self._done)
            name = f"llmframe-{self.id}"
            drive = partial(on_behalf, user_line(), self._drive, run)
            threading.Thread(target=drive, name=name, daemon=True).start()
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
                exits.left(run)
                self._done.set()
                for callback in list(self._callbacks):
                    callback()

    def _finish(self, run: Run) -> None:
        run.outcome.decide()
        counts = run.outcome.answers()
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
                ids = self._batch_ids()
                if ids and comebacks.leaves_batches(run.error):
                    # Said last: until now its batches were still being created, read or closed.
                    left = comebacks.at_provider(self.id, run.engine.name, ids, self._remade)
                    run.error.args = (f"{run.error} {left}",)
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
            refused = isinstance(run.error, StoreError) and run.ledger.empty
            if refused and not self._journal.batches(self.id, open_only=False):
                # Nothing was done: each further try would be one more dead job.
                self._record = self._journal.job(self.id) or self._record
                self._journal.forget_job(self.id)
            self._journal.flush()
        except Exception as error:
            run.error = run.error or error

    @property
    def _going(self) -> bool:
        """Whether this process drives it now."""
        return self._run is not None and not self._done.is_set()

    # -- taken up again ----------------------------------------------------------------------

    def resume(self: J, model: Any = None, *, resend: bool = False) -> J:
        """Go on with a job of another process in this one; returns at once.

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
        how: str = "resume",
    ) -> None:
        prepared, record = self._prepared, self._journal.job(self.id) or self._record
        if record.driver is not None:  # first: no engine would help
            raise comebacks.driven(record)
        engine: Engine | BatchEngine
        if model is None and prepared is not None:
            engine = prepared.engine
        else:
            engine = engine_again(record, self._call, model, how)
        if not self._journal.drive(self.id):
            raise comebacks.driven(self._journal.job(self.id) or record)
        try:
            work = self._run and self._run.work
            run = run_over(
                work or stored_work(self._journal, record, self._call),
                twin_of(engine) if live and isinstance(engine, BatchEngine) else engine,
                self._journal,
                self.id,
                budget=record.budget,
                concurrency=(
                    json.loads(record.engine).get("concurrency")
                    if prepared is None
                    else prepared.concurrency
                ),
                since=record.created,
                ending=ending,
                resend=resend,
                judge=None if prepared is None else judge_on(prepared.data, self._call),
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
        if self._going or not (self._batch or self._ahead):
            return False
        record = self._journal.job(self.id) or self._record
        if record.driver is not None:
            return False
        if not self._batch:
            # Here it was stopped by whoever would wait; what needs code is read where that is.
            left = record.state in {"running", "interrupted"}
            return left and self._run is None and self._call.code is None
        open_ended = record.state == "running" or (
            record.state == "interrupted" and self._run is not None and self._run.left > 0
        )
        return open_ended or bool(self._journal.batches(self.id))

    # -- waiting -----------------------------------------------------------------------------

    def wait(self: J, timeout: float | None = None) -> J:
        """Wait for the end of the job, or `timeout` seconds.

        A job of provider batches that nobody drives any more is taken up here: its batches are
        polled and read, by this process alone. Of a job that failed only what is at the provider
        is read; the same call, or `resume`, sends the rest. A live job that `submit` began and
        whose process is gone is taken up too: its prompts are in the store, and what is missing
        is sent.

        Returns:
            The job itself; `status` says whether it is done.

        Raises:
            KeyboardInterrupt: Ctrl-C or the kernel's interrupt. Live work is stopped and what is
                finished is kept; provider batches go on. The message says how to come back. The
                Stop of a notebook's view does the same, and ends the waiting without an error.
            StoreError: The batches belong to another account, server or model.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if self._reads_on():
            self._read_on()
        elif self._run is None:
            record = watch(self._journal, self._call, self._record, until, self._display())
            if not self._resumable():
                counts = standing(self._call, self._journal, record).counts
                if (left := comebacks.unanswered(record, counts)) is not None:
                    warn_user(left)
                return self
            self._read_on()
        self._wait_here(until)
        self._heard = self._done.is_set()
        run = self._run
        if run is not None and self._prepared is None and self._done.is_set():
            self._tell_what_is_left(run)
        return self

    def _reads_on(self) -> bool:
        """Whether whoever waits takes it up: that a run failed is told before anything else."""
        failed = self._run is not None and self._run.error is not None
        return self._resumable() and (self._heard or not failed)

    def _read_on(self) -> None:
        """Take the job up; of one that failed only what is at the provider."""
        record = self._journal.job(self.id) or self._record
        self._take_up(ending=record.state == "failed")

    def _tell_what_is_left(self, run: Run) -> None:
        """What only the verb itself would say, where there is no verb: another process waits."""
        if run.error is not None:
            raise run.error
        if run.unasked:
            warn_user(comebacks.never_sent(self.id, run.unasked))

    def _wait_here(self, until: float | None = None) -> None:
        """Wait for the run of this process."""
        assert self._run is not None
        caller = Caller()
        shown = self._display()
        try:
            # A timed loop: an untimed wait cannot be interrupted on Windows.
            while not homes.wait(self._run.engine, self._done, step(until)):
                if self._pressed == "stop":
                    self._done.wait(PATIENCE)
                    break
                if until is not None and time.monotonic() >= until:
                    break
                caller.look()
                shown.update(self._run.progress(watched=shown.shows))
        except KeyboardInterrupt:
            raise self._interrupted() from None
        except asyncio.CancelledError as error:
            error.add_note(str(self._interrupted()))
            raise
        finally:
            shown.close(self._run.progress(watched=shown.shows))

    def _display(self) -> Display:
        """Where its progress is shown."""
        return display(self.id, self._prepared.progress if self._prepared else None)

    def abandon(self) -> None:
        """Nobody waits for it any more: live work is given up; batches go on at the provider."""
        if self._run is not None:
            self._run.stop("abort")

    def _interrupted(self) -> KeyboardInterrupt:
        self.abandon()
        # A second Ctrl-C is in a hurry: it gets the same message, at once.
        with contextlib.suppress(KeyboardInterrupt):
            self._done.wait(PATIENCE)
        return self._kept()

    def _kept(self) -> KeyboardInterrupt:
        """What a run that was stopped has kept, and how to come back."""
        run = self._run
        assert run is not None
        counts, rows = run.outcome.counts(), run.work.count
        ids = [] if run.lane is None else self._batch_ids()
        return comebacks.interrupted(self.id, counts, rows, run.engine.name, ids, self._remade)

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

    def cancel(self: J, *, model: Any = None) -> J:
        """Stop the job; what is done is kept, and the other rows stay pending.

        Batches at the provider are cancelled, and what they had done by then is read: that goes
        on in the background where it takes longer than two seconds.

        Args:
            model: As in `resume`.

        Raises:
            StoreError: Another process drives it; another account, server or model sent it.
        """
        if not self._going:
            record = self._journal.job(self.id) or self._record
            if record.driver is None and not (self._batch and self._resumable()):
                return self
            self._take_up(model, ending=True, how="cancel")
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
            self._take_up(model, ending=True, how="finish")
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

"""The lane: what a run sees of a provider's batch API."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

from llmframe.engines.base import Batch, BatchEngine, BatchStatus, Control, Limits, Source
from llmframe.errors import EngineError
from llmframe.lanes.doubts import UNSURE, check_account
from llmframe.lanes.handover import Checked, HandOver
from llmframe.lanes.work import Work
from llmframe.options import get_options
from llmframe.requests import Request
from llmframe.results import Result

if TYPE_CHECKING:
    from llmframe.journal import Journal

__all__ = ["READER", "Clock", "Lane"]

log = logging.getLogger("llmframe")

READER: Final = "read by"
"""Note of a batch: the job that took it over."""
_UNSAID: Final = {"no_result", "lost"}
"""Kinds of failure that stand for a line which was not there."""
_LOOKED_UP: Final = 4096
"""Rows looked up at once."""
_INTERVAL: Final = 30.0
"""Seconds between two looks at a batch, where neither the user nor the engine says."""
_TICK: Final = 0.1
"""Seconds between two looks at `control`, which has no signal of its own."""


class Clock:
    """Time as the lane sees it; tests hand in one of their own."""

    def time(self) -> float:
        """Unix seconds."""
        return time.time()

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Return when `event` is set or after `seconds`."""
        event.wait(seconds)


class Lane:
    """A `BatchEngine` as an `Engine`: takes requests, gives results, batches in between.

    Requests are packed by number and bytes. Each pack's intent is in the journal before it is
    sent, so a batch whose answer was lost, or whose process died, is found again at the provider
    and never sent a second time; until it is found, or known not to be there, nothing else is
    sent. Results are checked off against the stored lines: a row without a line fails as
    ``no_result`` (or as what the batch's end made of it), an id that nobody sent is left out,
    of two lines for one row the first counts.

    `control.limit` does not bound the rows of a batch. ``"drain"`` sends nothing more and reads
    what is open, which can take a day; rows that were taken and not sent get no result.
    ``"abort"`` returns at once and leaves the batches to the provider: a later stream of the same
    job, in any process, reads them. Such a stream also gives results for rows that it did not
    take from its source: those of the batches it found open.

    A batch is closed in the journal when the consumer asks for the next list after its last
    result; by then the consumer must have handed its results to `Journal.record`.

    Args:
        engine: The provider.
        journal: Where the intents are kept.
        job: Id of the job; batches of other jobs are not touched.
        poll_interval: Seconds between two looks at a batch, at least; each pause is drawn between
            one and two of them. None: ``set_options(poll_interval=…)``, else the engine's own,
            else 30.
        linger: Seconds without another request after which a pack that is not full is sent.
            None: a second, or a shorter `poll_interval`.
        first: Requests in the first batch, at most.
        cleanup: Delete a batch's files at the provider once the journal has a result of every
            row of it; None: as the engine was made.
        resend: Send rows again whose batch may exist at a provider that cannot list its batches.
        clock: The time.

    Attributes:
        jobs: Ids of the jobs whose open batches are read: its own, and those taken over.
        unsent: Requests that were taken and are in no batch at the provider yet; about.
        waits: False: a stream that drains reads what is ready, and leaves the batches that still
            run to a later one.
        on_closed: Called with the keys of each batch that is over and closed.
        batches: By the provider's id, what the last look at each batch of this lane said.
        counts: What was seen: ``batches`` sent, ``adopted``, ``never_created``, ``requeued``
            (the queue was full), ``missing``, ``unknown_ids``, ``duplicates``, ``conflicts``
            (two different replies to one row).

    Examples:
        >>> import llmframe as lf
        >>> from llmframe.journal import Journal
        >>> engine = lf.testing.FakeBatchEngine(max_requests=2)
        >>> lane = Lane(engine, Journal.memory(), "j_example", poll_interval=0.01, linger=0.01)
        >>> results = lf.testing.drive(lane, lf.testing.requests(["a", "b", "c"]))
        >>> sorted(result.text for result in results), len(engine.created)
        (['a', 'b', 'c'], 2)
    """

    def __init__(
        self,
        engine: BatchEngine,
        journal: Journal,
        job: str,
        *,
        poll_interval: float | None = None,
        linger: float | None = None,
        first: int = 1000,
        cleanup: bool | None = None,
        resend: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.journal = journal
        self.job = job
        self.name = engine.name
        self.model = engine.model
        self.limits: Limits = engine.limits
        own = getattr(engine, "poll_interval", _INTERVAL)
        self.poll_interval = poll_interval or get_options().poll_interval or own
        self.linger = min(1.0, self.poll_interval) if linger is None else linger
        self.first = first
        self.resend = resend
        self.clock = clock or Clock()
        self.jobs = [job]
        self.unsent = 0
        self.waits = True
        self.on_closed: Callable[[AbstractSet[bytes]], None] = lambda keys: None
        self.batches: dict[str, BatchStatus] = {}
        self.counts: Counter[str] = Counter()
        self._driven: dict[str, Work] = {}
        self._lock = threading.Lock()
        self._cleanup = getattr(engine, "cleanup", False) if cleanup is None else cleanup

    @property
    def account(self) -> str:
        """The provider's organisation or project, where the engine knows it; else empty.

        Engines learn it from a reply's headers, so it may be empty at first.
        """
        return str(getattr(self.engine, "account", "") or "")

    def identity(self) -> Mapping[str, str]:
        """The engine's: the lane is no part of a key."""
        return self.engine.identity()

    @property
    def home(self) -> Any:
        """As of the engine, where it has one (`llmframe.engines.homes`)."""
        return getattr(self.engine, "home", None)

    def probe(self, request: Request) -> Result | None:
        """One request through the engine's live twin, see `BatchEngine.probe`."""
        return self.engine.probe(request)

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives until it is closed.

        Raises:
            EngineError: The provider refuses the batches, takes none for ten minutes, or may
                have one that cannot be found again.
            StoreError: The job's batches are not visible to the engine's account.
        """
        # The provider's calls block for as long as an upload takes, so they are made in a thread
        # of their own: an interrupt must get through in two seconds.
        work: Work
        over = HandOver(on_end=lambda: self._leave(work))
        work = Work(self, source, control, over)
        name = f"llmframe {self.job}"
        threading.Thread(target=over.run, args=(work.run,), name=name, daemon=True).start()
        mode = control.mode
        try:
            while control.mode != "abort":
                if control.mode != mode:
                    mode = control.mode
                    over.wake.set()
                try:
                    item = over.out.get(timeout=_TICK)
                except queue.Empty:
                    continue
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Checked):
                    # The consumer has recorded what came before, or it would not be back here.
                    self.journal.flush()
                    self.journal.batch_state(item.tag, "closed")
                    over.unclosed.discard(item.tag)
                    self.on_closed(item.keys)
                    over.wake.set()
                    if item.batch is not None and self._verified(item.keys):
                        self.tidy(item.batch)
                else:
                    yield item
        finally:
            over.leave()

    @property
    def open(self) -> list[tuple[Batch, BatchStatus | None]]:
        """The batches that its streams wait for, and what the last look at each said."""
        with self._lock:
            works = set(self._driven.values())
        batches = [sent.batch for work in works for sent in work.sent]
        return [(batch, self.batches.get(batch.id)) for batch in batches]

    @property
    def busy(self) -> bool:
        """Whether a stream, or the thread of one that was left, still has a batch in hand."""
        return bool(self._driven)

    def take_over(self, wanted: Callable[[bytes], bool]) -> set[bytes]:
        """Read also the open batches of other jobs that hold wanted keys and that nobody reads.

        A process that died leaves its batches at the provider; what is in one of them is never
        sent again, by whatever job.

        Args:
            wanted: Whether a key is asked for.

        Returns:
            Every key that is in a batch this lane reads.
        """
        at_provider: set[bytes] = set()
        for record in self.journal.batches():
            keys = {key for _, _, key in self.journal.lines(record.tag)}
            if record.job not in self.jobs:
                if not any(map(wanted, keys)) or not self._may_drive(record.job):
                    continue
                self.jobs.append(record.job)
            if record.job != self.job and record.notes.get(READER) != self.job:
                self.journal.note(record.tag, READER, self.job)
            at_provider |= keys
        return at_provider

    def _may_drive(self, job: str) -> bool:
        return self.journal.job(job) is None or self.journal.drive(job)

    def let_go(self) -> None:
        """Jobs that were taken over are anybody's again."""
        for job in self.jobs[1:]:
            self.journal.leave(job)

    def drive(self, tag: str, work: Work) -> bool:
        """Make `work` the one stream of this lane that reads the batch; False: another is."""
        with self._lock:
            return self._driven.setdefault(tag, work) is work

    def _leave(self, work: Work) -> None:
        # Only once both the thread and the stream have ended: until then another stream would
        # read their open batches too, and give their results twice.
        with self._lock:
            self._driven = {tag: other for tag, other in self._driven.items() if other is not work}

    def _verified(self, keys: Collection[bytes]) -> bool:
        """Whether the journal has what the provider said of every row, so that its files may go.

        A row without a line may still be in them: nobody else could say what became of it.
        """
        rows = list(keys) if self._cleanup else []
        for start in range(0, len(rows), _LOOKED_UP):
            part = rows[start : start + _LOOKED_UP]
            found = self.journal.replies(part)
            if not all(any(e.kind not in _UNSAID for e in found.get(key, ())) for key in part):
                return False
        return True

    def tidy(self, batch: Batch) -> None:
        """Delete the files of a batch that is over, where ``cleanup`` was asked for."""
        if not self._cleanup:
            return
        try:
            self.engine.delete(batch)
        except (EngineError, OSError) as error:
            log.warning("the files of batch %s could not be deleted: %s", batch.id, error)

    def cancel(self) -> None:
        """Ask the provider to stop every open batch of its jobs; a stream then reads their ends.

        Raises:
            EngineError: The provider does not do it.
            StoreError: The batches are another account's.
        """
        for record in [record for job in self.jobs for record in self.journal.batches(job)]:
            # Not what may be another's batch of the same count.
            if record.provider_id is not None and record.state not in UNSURE:
                check_account(self, record)
                created_at = record.created_at or record.opened
                self.engine.cancel(Batch(record.provider_id, record.tag, record.count, created_at))

    def close(self) -> None:
        """Close the engine where it can be closed."""
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()

"""A run in small around a lane, for its tests; as a program, one that can be killed anywhere.

``python lane_runner.py HOME PROVIDER KILL_AT`` answers twelve rows through a fake provider whose
batches are kept in PROVIDER. At the point KILL_AT the process kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llmframe.engines.base import Batch, BatchStatus, Line
from llmframe.journal import Entry, Journal
from llmframe.lanes import Clock, Lane
from llmframe.requests import Request
from llmframe.results import KINDS, Result
from llmframe.testing import FakeBatchEngine, ListSource, Switch, requests


class FastClock(Clock):
    """Time that passes when somebody waits: a wait is over at once, and its seconds have gone."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> None:
        if not event.wait(min(seconds, 0.01)):  # real time for the thread that reads the stream
            self.now += seconds


def make_lane(engine: FakeBatchEngine, journal: Journal, **options: Any) -> Lane:
    options = {"clock": FastClock(), "poll_interval": 30.0, **options}
    return Lane(engine, journal, "j_test", **options)


class SmallRun:
    """Claims, feeds, records and asks again, as the real run does.

    Attributes:
        results: Everything that came, in order.
        answers: Text by key of the rows that are answered.
        unanswered: Requests by key of the others.
    """

    def __init__(self, lane: Lane, asked: Iterable[Request], switch: Switch | None = None) -> None:
        self.lane = lane
        self.switch = switch or Switch()
        self.results: list[Result] = []
        self.answers: dict[bytes, str | None] = {}
        self.unanswered = {request.key: request for request in asked}
        self.final: dict[bytes, str] = {}
        self._source = ListSource(closed=False)
        self._head = lane.journal.head("{}")

    def __call__(self, on_results: Callable[[SmallRun], None] = lambda run: None) -> SmallRun:
        journal = self.lane.journal
        for key, entries in journal.replies(list(self.unanswered)).items():
            for entry in entries:
                if entry.kind == "ok":
                    self.answers.setdefault(key, entry.text)
                    self.unanswered.pop(key, None)
        self._ask(self.unanswered)
        for results in self.lane.stream(self._source, self.switch):
            self.results += results
            journal.record([self._entry(result) for result in results])
            again = []
            for result in results:
                if result.failure is None:
                    self.answers.setdefault(result.key, result.text)
                    self.unanswered.pop(result.key, None)
                elif KINDS[result.failure.kind].again in {"wait", "backoff"}:
                    again.append(result.key)
                else:
                    self.final[result.key] = result.failure.kind
                    self.unanswered.pop(result.key, None)
            self._ask(again)
            on_results(self)
        return self

    def _ask(self, keys: Iterable[bytes]) -> None:
        keys = list(keys)
        given = self.lane.journal.claim(
            self._head, [(key, None) for key in keys], "j_test", again=True
        )
        self._source.add(
            self.unanswered[key] for key, ours in zip(keys, given, strict=True) if ours
        )
        if not self.unanswered:
            self._source.close()

    def _entry(self, result: Result) -> Entry:
        failure = result.failure
        return Entry(
            result.key,
            attempt=1,
            lane="batch",
            at=time.time(),
            kind="ok" if failure is None else failure.kind,
            text=result.text,
            request_id=result.request_id,
            usage=result.usage,
        )


class MortalEngine(FakeBatchEngine):
    """Kills its process at a point of a batch's life."""

    def __init__(self, kill_at: str, **options: Any) -> None:
        super().__init__(**options)
        self._kill_at = kill_at

    def _reached(self, point: str) -> None:
        if point == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        second = len(self.submits) == 1
        if second:
            self._reached("before create")
        batch = super().submit(lines, tag, note)
        if second:
            self._reached("before the answer")
        return batch

    def poll(self, batch: Batch) -> BatchStatus:
        if len(self.submits) == 3:
            self._reached("polling")
        return super().poll(batch)

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        self._reached("before results")
        yield from super().fetch(batch)


def main(home: str, provider: str, kill_at: str) -> None:
    """Answer twelve rows, or die."""
    engine = MortalEngine(kill_at, directory=provider, max_requests=5)
    journal = Journal.open(Path(home))
    run = SmallRun(make_lane(engine, journal), requests([f"row {i}" for i in range(12)]))

    def on_results(run: SmallRun) -> None:
        if len(run.results) >= 5:
            journal.flush()
            engine._reached("mid-results")

    run(on_results)
    journal.close()
    print(len(run.answers), len(engine.submits), dict(run.lane.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])

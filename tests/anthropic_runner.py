"""A run in small over Anthropic's batches; as a program, one that can be killed anywhere.

``python anthropic_runner.py HOME URL KILL_AT`` answers twelve rows through the server at URL, in
batches of five, and kills itself at the point KILL_AT.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lane_runner import SmallRun, make_lane

from llmframe.engines.anthropic import AnthropicBatch
from llmframe.engines.base import Batch, BatchStatus, Line
from llmframe.journal import Journal
from llmframe.results import Result
from llmframe.testing import requests


class MortalEngine(AnthropicBatch):
    """Kills its process at a point of a batch's life, and counts what it creates."""

    def __init__(self, kill_at: str, **options: Any) -> None:
        super().__init__("fake-1", api_key="sk-ant-loopback-test", batch=True, **options)
        self.kill_at = kill_at
        self.submits = 0

    def reached(self, point: str) -> None:
        if point == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        self.submits += 1
        if self.submits == 4:
            self.reached("between rounds")
        if self.submits != 2:
            return super().submit(lines, tag, note)
        self.reached("before anything")

        def noted(name: str, value: str) -> None:
            note(name, value)
            if name == "cursor_at":
                self.reached("before create")

        batch = super().submit(lines, tag, noted)
        self.reached("before the answer")
        return batch

    def poll(self, batch: Batch) -> BatchStatus:
        if self.submits == 3:
            self.reached("polling")
        return super().poll(batch)

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        self.reached("before results")
        yield from super().fetch(batch)

    def find(self, tag: str, notes: Mapping[str, str], count: int) -> list[Batch]:
        found = super().find(tag, notes, count)
        self.reached("adopting")
        return found


def main(home: str, url: str, kill_at: str) -> None:
    """Answer twelve rows, or die."""
    engine = MortalEngine(kill_at, base_url=url, max_batch_requests=5)
    journal = Journal.open(Path(home))
    run = SmallRun(make_lane(engine, journal), requests([f"row {i}" for i in range(12)]))

    def on_results(run: SmallRun) -> None:
        if len(run.results) >= 5:
            journal.flush()
            engine.reached("mid-results")

    run(on_results)
    journal.close()
    print(len(run.answers), engine.submits, dict(run.lane.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])

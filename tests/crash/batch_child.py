"""A job in a process of its own, in OpenAI batches, to be killed by the tests or by itself.

Reads one JSON argument, ``{"url", "home", "rows", "most"?, "kill"?}``, and prints one JSON line
when every row has an end. ``"kill": "results"`` ends the process in the middle of the results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmframe.engines.base import Batch
from llmframe.engines.openai import OpenAI
from llmframe.journal import Journal
from llmframe.results import Result
from llmframe.testing import requests
from tests.lane_runner import SmallRun, make_lane


def dies_half_way(engine: Any, journal: Journal, most: int) -> None:
    """Have `engine.fetch` end the process when `most` results are on disk or on their way."""
    fetch = engine.fetch

    def mortal(batch: Batch) -> Iterator[tuple[str, int, Result]]:
        for number, line in enumerate(fetch(batch)):
            if number == most:
                time.sleep(0.3)  # the consumer records what it has
                journal.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            yield line

    engine.fetch = mortal


def main() -> None:
    task = json.loads(sys.argv[1])
    engine: Any = OpenAI(
        "m",
        base_url=task["url"],
        api_key="sk-child",
        batch=True,
        max_batch_requests=task.get("most"),
    )
    journal = Journal.open(Path(task["home"]))
    if task.get("kill") == "results":
        dies_half_way(engine, journal, 700)
    asked = requests([f"row {i}" for i in range(task["rows"])])
    lane = make_lane(engine, journal, first=10_000)
    run = SmallRun(lane, asked)()
    texts = [run.answers.get(request.key) for request in asked]
    said = {"texts": texts, "counts": dict(lane.counts), "results": len(run.results)}
    journal.close()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()

"""Real processes that are killed around OpenAI batches; what was paid is the emulator's count.

Each window of a batch's life: the job of a process that died there is taken up by another one,
and ends with as many batches as it would have made unharmed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.openai_batches import BatchServer, Plan

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("batch_child.py")
ROWS = 12


class Children:
    """Starts children and ends those that a failed test left behind."""

    def __init__(self, home: Path, url: str) -> None:
        self._task = {"home": str(home), "url": url, "rows": ROWS}
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
        self._env |= {"PYTHONPATH": str(ROOT), "LLMFRAME_HOME": str(home)}
        self._running: list[subprocess.Popen[str]] = []

    def start(self, code: str | None = None, **task: Any) -> subprocess.Popen[str]:
        what = ["-c", code] if code else [str(CHILD)]
        process = subprocess.Popen(
            [sys.executable, *what, json.dumps({**self._task, **task})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
        )
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


@pytest.fixture
def children(home: Path, server: BatchServer) -> Iterator[Children]:
    started = Children(home, server.url)
    yield started
    started.end()


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def check(server: BatchServer, said: dict[str, Any], batches: int, rows: int = ROWS) -> None:
    """Every row answered, none paid twice, no batch too many."""
    assert said["texts"] == [f"row {i}" for i in range(rows)]
    assert len(server.batches) == batches
    assert sorted(server.asked.values()) == [1] * rows


def test_killed_before_the_create(server: BatchServer, children: Children) -> None:
    server.plans = [Plan(create="stall")]
    first = children.start()
    server.wait_for(lambda: server.calls["stalled"] == 1)
    assert len(server.files) == 1
    killed(first)
    said = finished(children.start())
    check(server, said, batches=1)
    assert said["counts"]["never_created"] == 1


def test_killed_between_the_create_and_its_answer(server: BatchServer, children: Children) -> None:
    server.page = 1  # it stands on the second page of the list
    server.plans = [Plan(words=["in_progress"] * 5, end="completed"), Plan(create="hang")]
    first = children.start(most=6)
    server.wait_for(lambda: len(server.batches) == 2)
    killed(first)
    said = finished(children.start(most=6))
    check(server, said, batches=2)
    assert said["counts"]["adopted"] == 1


def test_u047_killed_while_polling(server: BatchServer, children: Children) -> None:
    server.plan = Plan(words=["in_progress"] * 10**6)
    first = children.start()
    server.wait_for(lambda: server.calls["GET /v1/batches/ID"] >= 3)
    killed(first)
    for stored in server.batches.values():
        stored.plan.words.clear()
    check(server, finished(children.start()), batches=1)


def test_killed_half_through_the_results(server: BatchServer, children: Children) -> None:
    first = children.start(rows=1200, kill="results")
    first.wait(60)
    assert first.returncode == -signal.SIGKILL
    said = finished(children.start(rows=1200))
    check(server, said, batches=1, rows=1200)
    assert said["results"] == 700, "what was stored before the kill is not a second, paid reply"


def test_killed_between_rounds(server: BatchServer, children: Children) -> None:
    server.plans = [Plan(end="expired", done=0.5), Plan(create="stall")]
    first = children.start()
    server.wait_for(lambda: server.calls["stalled"] == 1)
    killed(first)
    check(server, finished(children.start()), batches=2)


@pytest.mark.slow
def test_closed_twice_with_a_batch_in_flight(server: BatchServer, children: Children) -> None:
    """A third process finds nothing left to send."""
    server.plan = Plan(words=["in_progress"] * 10**6)
    for round_ in (1, 2):
        child = children.start()
        looks = server.calls["GET /v1/batches/ID"]
        server.wait_for(lambda looks=looks: server.calls["GET /v1/batches/ID"] > looks + 1)
        killed(child)
        assert len(server.batches) == 1, round_
    for stored in server.batches.values():
        stored.plan.words.clear()
    check(server, finished(children.start()), batches=1)
    check(server, finished(children.start()), batches=1)


BOTH = """
import json, sys, time
import pandas as pd
import llmframe as lf
task = json.loads(sys.argv[1])
engine = lf.OpenAI("m", base_url=task["url"], api_key="sk-child", batch=True)
df = pd.DataFrame({"t": [f"row {i}" for i in range(task["rows"])]})
time.sleep(max(0.0, task["start_at"] - time.time()))
with lf.set_options(poll_interval=0.05):
    out = df.llm.map("{t}", model=engine, progress=False)
print(json.dumps({"texts": out["response"].tolist()}))
"""


def test_two_processes_with_the_same_rows(server: BatchServer, children: Children) -> None:
    start_at = time.time() + 5
    both = [children.start(code=BOTH, start_at=start_at) for _ in range(2)]
    said = [finished(process) for process in both]
    assert said[0]["texts"] == said[1]["texts"] == [f"row {i}" for i in range(ROWS)]
    assert len(server.live) + sum(server.asked.values()) == ROWS


def test_the_emulator_runs_as_a_program() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.openai_batches"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    killer = threading.Timer(20, program.kill)
    killer.start()
    try:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        killer.cancel()
        program.kill()
        program.communicate()

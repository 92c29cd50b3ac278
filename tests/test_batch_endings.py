"""Jobs in OpenAI batches that end early, in this process or by Ctrl-C in one of its own.

Over real HTTP: what was sent, cancelled and paid is the emulator's count.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe import cli, progress
from tests.servers.openai_batches import BatchServer, Plan, Row

PROMPT = "Say it: {text}"
NEVER = 10**6


def frame(count: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"row {i}" for i in range(count)]})


def said(count: int = 6) -> list[str]:
    return [f"Say it: row {i}" for i in range(count)]


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running, lf.set_options(poll_interval=0.05):
        yield running


def engine(server: BatchServer, **options: Any) -> Any:
    return lf.OpenAI("m", base_url=server.url, api_key="sk-a", batch=True, **options)


def goes_on(server: BatchServer) -> None:
    """Let the batches that never end come to their ends."""
    for stored in server.batches.values():
        stored.plan.words.clear()


def paid(server: BatchServer) -> list[int]:
    """How often each row was asked, in batches and live."""
    return sorted(server.asked.values())


def test_no_credit_in_one_batch_does_not_wait_for_the_others(server: BatchServer) -> None:
    no_credit = {"message": "You exceeded your quota", "code": "insufficient_quota"}
    broke = [True]

    def answer(body: dict[str, Any]) -> Any:
        prompt = body["messages"][-1]["content"]
        return (
            Row(status=429, body={"error": no_credit}) if broke[0] and "row 2" in prompt else prompt
        )

    server.answer = answer
    server.plans = [Plan(), Plan(words=["in_progress"] * NEVER)]
    with pytest.raises(lf.EngineError, match="exceeded your quota") as caught:
        frame(7).llm.map(PROMPT, model=engine(server, max_batch_requests=3))
    running = list(server.batches)[1]
    assert f"1 batch goes on at openai ({running})" in str(caught.value)
    assert server.calls["POST /v1/batches/ID/cancel"] == 0
    broke[0] = False
    goes_on(server)
    out = frame(7).llm.map(PROMPT, model=engine(server, max_batch_requests=3))
    assert out["response"].tolist() == said(7)
    assert [stored.rows for stored in server.batches.values()] == [3, 3, 1]
    assert paid(server) == [1] * 5 + [2]  # the refused row alone


# -- what is waited for ----------------------------------------------------------------------


def test_the_batches_that_are_waited_for_are_named(
    server: BatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = Plan(words=["in_progress"] * NEVER)
    server.on_create = lambda stored: stored.record.update(
        request_counts={"total": 5, "completed": 2, "failed": 1}
    )
    job = frame().llm.submit.map(PROMPT, model=engine(server))
    with lf.set_options(progress=True):
        job.wait(timeout=1.5)
    [batch] = server.batches
    named = f"1 batch at openai ({batch} 3/5 done, since "
    lines = capsys.readouterr().err.splitlines()
    assert any(f"1 of 6 rows, 30 tokens, waiting for {named}" in line for line in lines), lines
    assert f"waiting for  {named}" in repr(job.status())
    goes_on(server)
    assert job.wait().status().awaited == ()
    assert (job.status().batches, job.status().ok) == (1, 6)


def test_a_log_file_gets_a_line_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLMFRAME_PROGRESS")
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    log = progress.display("j_1", None)
    batches = (progress.Awaited("openai", "batch_a", 5000, 70, time.time() - 720),) * 5
    for _ in range(3600):
        clock[0] += 1.0
        log.update(progress.Progress(10, awaited=batches))
    lines = capsys.readouterr().err.splitlines()
    assert 10 < len(lines) <= 60
    assert lines[0].count("batch_a 70/5,000 done, since 12 min") == 3
    assert "5 batches at openai" in lines[0]
    assert "and 2 more" in lines[0]


def test_watch_names_the_batches(
    server: BatchServer, key: None, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = Plan(words=["in_progress"] * NEVER)
    job = frame().llm.submit.map(PROMPT, model="openai/m", batch=True)
    server.wait_for(lambda: len(server.batches) == 1)
    job._run.stop("abort")  # as the death of its process
    job._done.wait(60)
    threading.Timer(1.5, goes_on, [server]).start()
    with lf.set_options(progress=True):
        assert cli.main(["watch", job.id]) == 0
    [batch] = server.batches
    written = capsys.readouterr()
    assert f"waiting for 1 batch at openai ({batch} " in written.err
    assert "6 of 6 rows answered" in written.out


# -- Ctrl-C ----------------------------------------------------------------------------------

SUBMIT_AND_WAIT = 'frame.llm.submit.map(PROMPT, model="openai/m", batch=True).wait()'
VERB = 'frame.llm.map(PROMPT, model="openai/m", batch=True)'

CHILD = """
import pandas as pd, llmframe as lf
lf.set_options(poll_interval=0.05)
frame = pd.DataFrame({{"text": [f"row {{i}}" for i in range(6)]}})
PROMPT = {prompt!r}
{code}
"""


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch, server: BatchServer) -> None:
    """As a user has it: the server and the key are in the environment."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a")


@pytest.fixture
def child(key: None) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts code in a process of its own, as a script."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        text = CHILD.format(prompt=PROMPT, code=code)
        running.append(
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", text],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str]) -> str:
    """What a process says that Ctrl-C ended."""
    _, error = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT, error
    return error.splitlines()[-1]


def come_back(server: BatchServer, message: str) -> pd.DataFrame:
    """Do what the message says, in this process, which is another one."""
    found = re.search(r'lf\.job\("(\w+)"\)\.wait\(\)', message)
    assert found is not None, message
    out: pd.DataFrame = lf.job(found[1]).wait().join(frame())
    return out


@pytest.mark.parametrize("code", [SUBMIT_AND_WAIT, VERB])
def test_u120_a_real_interrupt_leaves_the_batch_running(
    server: BatchServer, child: Any, code: str
) -> None:
    server.plan = Plan(words=["in_progress"] * NEVER)
    process = child(code)
    server.wait_for(lambda: server.calls["GET /v1/batches/ID"] >= 2)
    process.send_signal(signal.SIGINT)
    message = interrupted(process)
    [batch] = server.batches
    assert f"1 of 6 rows kept. 1 batch goes on at openai ({batch})" in message
    assert server.calls["POST /v1/batches/ID/cancel"] == 0
    goes_on(server)
    assert come_back(server, message)["response"].tolist() == said()
    assert len(server.batches) == 1
    assert paid(server) == [1] * 5
    assert len(server.live) == 1  # the canary


def test_u120_a_second_interrupt_while_a_create_hangs(server: BatchServer, child: Any) -> None:
    server.plans = [Plan(create="hang")]
    process = child(VERB)
    server.wait_for(lambda: len(server.batches) == 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)  # the first one is given a moment to end the run in
    process.send_signal(signal.SIGINT)
    message = interrupted(process)
    assert "1 batch goes on at openai (on its way)" in message
    assert server.calls["POST /v1/batches/ID/cancel"] == 0
    assert come_back(server, message)["response"].tolist() == said()
    assert len(server.batches) == 1
    assert paid(server) == [1] * 5


def test_ctrl_c_in_a_terminal_that_watches_another_process(
    server: BatchServer, child: Any, monkeypatch: Any, capsys: Any
) -> None:
    server.plan = Plan(words=["in_progress"] * NEVER)
    process = child(VERB)
    server.wait_for(lambda: server.calls["GET /v1/batches/ID"] >= 2)
    [job] = lf.jobs()

    def stop(*_: Any) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("llmframe.watching.step", stop)
        assert cli.main(["watch", job.id]) == 130
    error = capsys.readouterr().err
    assert f"llmframe: job {job.id} goes on in " in error
    assert error.endswith(f"llmframe watch {job.id} watches it.\n")
    process.send_signal(signal.SIGINT)
    interrupted(process)
    assert cli.main(["cancel", job.id]) == 0
    assert server.calls["POST /v1/batches/ID/cancel"]

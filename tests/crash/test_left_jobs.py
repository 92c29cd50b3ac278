"""Live jobs whose process is gone, and that another one ends without their frame."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import of, statuses
from tests.servers.rows import Reply

pytest_plugins = ["tests.servers.plugin"]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 40
START = """
import os, sys, time, pandas as pd, llmframe as lf
from pydantic import BaseModel, field_validator

class Said(BaseModel):
    response: str

    @field_validator("response")
    @classmethod
    def short(cls, value: str) -> str:
        assert len(value) < 100
        return value

df = pd.DataFrame({"t": [f"row {i}" for i in range(40)]})
url = os.environ["URL"]
"""
SUBMIT = 'job = df.llm.submit.map("{t}", model=lf.OpenAI("m", base_url=url), concurrency=2)'
LEFT = "print(job.id, flush=True)\ntime.sleep(600)"

Leave = Callable[..., str]


class FiveThenNothing:
    """Answers five rows and lets every later one hang, until told otherwise."""

    def __init__(self) -> None:
        self.open = False

    def __call__(self, seen: Any) -> Reply:
        return Reply(seen.prompt) if self.open or seen.n <= 5 else Reply(hang=True)


@pytest.fixture
def server(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-left")
    return serve(FiveThenNothing())


@pytest.fixture
def leave(server: Any, home: Path) -> Iterator[Leave]:
    """A process that begins a job and is ended in the middle of it; gives the job's id."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str = SUBMIT, how: signal.Signals = signal.SIGKILL, **environment: str) -> str:
        env = {**os.environ, "URL": server.url, "LLMFRAME_HOME": str(home)}
        child = subprocess.Popen(
            [sys.executable, "-c", f"{START}\n{code}\n{LEFT}"],
            env={**env, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        assert child.stdout is not None
        job = child.stdout.readline().strip()
        assert job.startswith("j_"), child.communicate()[1]
        server.wait_for(lambda: server.count == 7)  # five, and the two that hang
        child.send_signal(how)
        child.communicate(timeout=60)
        server.rows.open = True
        return job

    yield begin
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def rows() -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(ROWS)]})


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_wait_ends_a_live_job_whose_process_is_gone(
    server: Any, leave: Leave, how: signal.Signals
) -> None:
    name = leave(how=how)
    [listed] = lf.jobs()
    assert (listed.id, listed.status().state) == (name, "interrupted")

    job = lf.job(name).wait(60)

    assert job.status().state == "done"
    assert (job.status().ok, job.status().pending) == (ROWS, 0)
    assert set(server.answered.values()) == {1}, "a row was answered twice"
    assert server.count == ROWS + 2, "only what was on its way is asked again"
    out = job.join(rows())
    assert out["response"].tolist() == rows()["t"].tolist()
    assert statuses(out) == ["ok"] * ROWS
    assert "Say" not in str(out.llm.trace(39))
    assert out.llm.trace(39).prompt.endswith("row 39")


def test_the_same_call_beside_it_asks_nothing_twice(server: Any, leave: Leave) -> None:
    name = leave()
    out = rows().llm.map("{t}", model=lf.OpenAI("m", base_url=server.url))
    assert out["response"].tolist() == rows()["t"].tolist()
    assert lf.job(name).wait(60).status().pending == 0
    assert set(server.answered.values()) == {1}


def test_what_a_cell_waits_for_is_ended_by_its_call_alone(server: Any, leave: Leave) -> None:
    call = SUBMIT.partition(" = ")[2].replace("submit.", "")
    leave(f'print("j_", flush=True)\n{call}')
    [job] = lf.jobs()
    with pytest.warns(UserWarning, match="35 rows of job .* The same call on the frame sends them"):
        job.wait(60)
    assert server.count == 7


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        (SUBMIT, {"LLMFRAME_KEEP_PROMPTS": "0"}),
        (SUBMIT.replace('"{t}",', '"{t}", Said,'), {}),
    ],
    ids=["no prompts", "a validator"],
)
def test_what_the_store_does_not_hold_is_left_to_the_call(
    server: Any, leave: Leave, code: str, environment: dict[str, str]
) -> None:
    server.rows = lambda seen: Reply('{"response": "x"}') if seen.n <= 5 else Reply(hang=True)
    name = leave(code, **environment)
    with pytest.warns(UserWarning, match="The same call on the frame sends them"):
        lf.job(name).wait(60)
    assert server.count == 7


def test_a_key_of_its_own_has_to_be_given_again(server: Any, leave: Leave) -> None:
    name = leave(SUBMIT.replace("base_url=url", 'base_url=url, api_key="sk-own"'))
    with pytest.raises(lf.StoreError, match=r"resume\(model=lf\.OpenAI\('m', base_url="):
        lf.job(name).wait(60)
    assert server.count == 7
    engine = lf.OpenAI("m", base_url=server.url, api_key="sk-own")
    assert lf.job(name).resume(model=engine).wait(60).status().ok == ROWS


def test_cancel_sends_nothing(server: Any, leave: Leave) -> None:
    job = lf.job(leave())
    job.cancel()
    assert job.status().pending == ROWS - 5
    assert server.count == 7


def test_the_concurrency_and_the_budget_are_those_of_the_call(server: Any, leave: Leave) -> None:
    prices = 'lf.set_options(prices={"openai/m": (1, 1)})\n'
    name = leave(
        prices + SUBMIT.replace("concurrency=2", "concurrency=2, budget=1.0, max_tokens=5")
    )
    server.rows = lambda seen: Reply(seen.prompt, delay=0.05)
    with lf.set_options(prices={"openai/m": (1, 1)}):
        job = lf.job(name).resume()
        assert job._run is not None
        assert (job._run._control.limit, job._run._budget.limit) == (2, 1.0)
        assert job.wait(60).status().ok == ROWS


def test_nothing_is_warned_of_where_all_is_done(server: Any, leave: Leave) -> None:
    name = leave()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lf.job(name).wait(60)
        lf.job(name).wait(60)
    assert of(caught, UserWarning) == []


@pytest.mark.slow
def test_a_model_in_the_process_is_made_again(home: Path, local_model: Path) -> None:
    code = f"""
job = df.head(12).llm.submit.map("Say {{t}}", model=lf.Local({str(local_model)!r}, n_ctx=1024),
                                 max_tokens=16, temperature=0.0)
print(job.id, flush=True)
while job.status().ok + job.status().failed < 3:
    time.sleep(0.02)
print("three", flush=True)
time.sleep(600)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", START + code],
        env={**os.environ, "URL": "", "LLMFRAME_HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    name, said = child.stdout.readline().strip(), child.stdout.readline()
    child.kill()
    child.communicate()
    assert said == "three\n"
    job = lf.job(name)
    before = job.status()
    after = job.wait(300).status()
    assert (after.state, after.pending) == ("done", 0)
    assert after.ok + after.failed == 12 >= before.ok + before.failed >= 3

"""What ends a run, and what is left of it: signals, deaths, hangs, two callers at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines import vllm_core
from llmframe.engines.vllm import VLLM
from llmframe.errors import EngineError

ROOT = Path(__file__).parents[2]
COLOURS = ["red", "green", "blue"]
# No `__main__` guard, as in a notebook's cell or a first script.
SCRIPT = """
import json, sys, time, pandas as pd, llmframe as lf
from typing import Literal
model = lf.VLLM(sys.argv[1], max_num_seqs=16, max_model_len=512, enforce_eager=True).load()
df = pd.DataFrame({"text": [f"row {i}" for i in range(400)]})
job = df.llm.submit.map("Which? {text}", Literal["red", "green", "blue"], model=model)
while job.status().state == "running":
    print(json.dumps({"ok": job.status().ok}), flush=True)
    time.sleep(0.02)
"""


def asked(rows: int, name: str = "row") -> pd.DataFrame:
    return pd.DataFrame({"text": [f"{name} {i}" for i in range(rows)]})


def descendants(pid: int) -> list[int]:
    """Children of all threads of a process, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid: int) -> bool:
    """Whether a process ends within ten seconds."""
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


def test_a_killed_script_without_guard_leaves_its_rows_and_no_orphan(tiny, folders, home):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folders["tiny"])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if json.loads(line)["ok"] >= 200:
                break
        left = descendants(script.pid)
        script.kill()
    assert len(left) > 1, "vLLM runs in a child"
    assert all(map(gone, left)), "vLLM's child lives on and keeps the memory"

    from typing import Literal

    schema = Literal["red", "green", "blue"]
    job = asked(400).llm.submit.map("Which? {text}", schema, model=tiny).wait()
    # What had been sent and was not on disk may be asked again: at most four times the batch.
    assert job.status().cached >= 200 - 4 * 16
    assert job.status().cached + job.status().ok == 400


@pytest.fixture
def sigint():
    """A parent that runs in the background may have handed down an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_keeps_the_engine_and_the_next_call_gets_its_own(tiny, sigint):
    df = asked(3000)
    child = vllm_core.loaded(tiny._config())._children[0]

    def interrupt() -> None:
        time.sleep(1.0)
        # A terminal sends it to the whole group.
        os.kill(child.pid, signal.SIGINT)
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    interrupted: list[float] = []
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match="rows kept"):
        df.llm.classify("text", COLOURS, model=tiny)
    assert time.monotonic() - interrupted[0] < 2
    assert child.is_alive()

    other = asked(20, "another")
    out = other.llm.classify("text", COLOURS, model=tiny, confidence=True)
    assert (out.llm.status() == "ok").all()
    core = vllm_core.loaded(tiny._config())
    assert core._children[0].pid == child.pid
    assert core._engine.get_num_unfinished_requests() == 0
    alone = other.llm.classify("text", COLOURS, model=tiny, confidence=True, cache=False)
    near = (out["label_confidence"] - alone["label_confidence"]).abs()
    assert near.max() < 0.02, "a reply came to another row"


def test_two_threads_share_one_engine(tiny):
    out: dict[str, pd.DataFrame] = {}

    def work(name: str) -> None:
        out[name] = asked(60, name).llm.classify("text", COLOURS, model=tiny, confidence=True)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ant", "bee")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("ant", "bee"):
        again = asked(60, name).llm.classify(
            "text", COLOURS, model=tiny, confidence=True, cache=False
        )
        near = (out[name]["label_confidence"] - again["label_confidence"]).abs()
        assert near.max() < 0.02


@pytest.fixture(scope="module")
def mortal(folders):
    """An engine of its own, to be killed."""
    with VLLM(
        folders["tiny"], max_num_seqs=8, max_model_len=384, enforce_eager=True, timeout=15
    ) as engine:
        yield engine


def fall(engine: VLLM, sent: signal.Signals, rows: int) -> tuple[EngineError, int]:
    """Send a signal to vLLM's child in mid-run; the error, and the child's id."""
    job = asked(rows, sent.name).llm.submit.classify("text", COLOURS, model=engine)
    while job.status().ok < 20:
        assert job.status().state == "running"
        time.sleep(0.01)
    pid = vllm_core.loaded(engine._config())._children[0].pid
    os.kill(pid, sent)
    start = time.monotonic()
    job.wait()
    assert time.monotonic() - start < 30
    with pytest.raises(EngineError) as caught:
        job.check()
    return caught.value, pid


def test_a_dead_or_hung_child_ends_the_job_and_one_rerun_finishes_it(mortal):
    guard = vllm_core.loaded(mortal.load()._config())._guard
    error, pid = fall(mortal, signal.SIGKILL, 600)
    mortal.close()
    assert guard.returncode is not None, "it waits to end whoever has that id by then"
    assert "vLLM died" in str(error)
    assert "max_num_batched_tokens" in str(error)
    assert gone(pid)
    error, pid = fall(mortal, signal.SIGSTOP, 600)
    assert "no sign of life for 15 s" in str(error)
    assert gone(pid)
    df = asked(600, "SIGSTOP")
    job = df.llm.submit.classify("text", COLOURS, model=mortal).wait()
    assert job.status().cached >= 20
    assert job.join()["label"].notna().all()
    waiting = [t for t in threading.enumerate() if t.name == "llmframe-vllm"]
    assert len(waiting) <= 3, "a thread still waits for an engine that is gone"


def test_u071_the_same_cell_again_has_the_same_engine_and_close_ends_it(mortal, folders):
    """After the test above, whose engine it takes; alone it loads one."""
    again = VLLM(folders["tiny"], max_num_seqs=8, max_model_len=384, enforce_eager=True)
    core = vllm_core.loaded(mortal.load()._config())
    assert vllm_core.loaded(again.load()._config()) is core
    [child] = core._children
    mortal.close()
    assert gone(child.pid), "its memory is not free for another model"
    assert again.figures() is None


def test_a_refused_argument_comes_with_its_reason(folders):
    for given, said in {
        "dtype": ("float7", r"cannot load .*: dtype: Input should be .*'bfloat16'"),
        "quantization": ("zip", r"cannot load .*Unknown quantization method: zip"),
    }.items():
        value, told = said
        with pytest.raises(EngineError, match=told):
            lf.VLLM(folders["tiny"], **{given: value}).load()
    # vLLM is imported by now, and asked; `load` looks again where it was not.
    with pytest.raises(lf.ModelError, match=r"enforce_eagre=….*did you mean 'enforce_eager'"):
        lf.VLLM(folders["tiny"]).with_knobs(enforce_eagre=True)


def test_a_model_that_does_not_fit_names_the_knob(folders):
    engine = lf.VLLM(folders["tiny"], max_model_len=2_000_000, enforce_eager=True)
    with pytest.raises(EngineError, match=r"cannot load .*max_model_len"):
        asked(2).llm.map("{text}", model=engine)

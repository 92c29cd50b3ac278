"""Real processes that are killed, interrupted or run the same cell at once.

The counts are the server's own, never llmframe's.
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

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import complaints, openai, statuses
from tests.servers.rows import Reply

pytest_plugins = ["tests.servers.plugin"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("child.py")
ROWS = 400
CONCURRENCY = 16


class Children:
    """Starts children and ends those that a failed test left behind."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, code: str | None = None, **task: Any) -> subprocess.Popen[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LLMFRAME_"))}
        env |= {"LLMFRAME_HOME": str(self._home), "PYTHONPATH": str(ROOT)}
        what = ["-c", code] if code else [str(CHILD)]
        started = subprocess.Popen(
            [sys.executable, *flags, *what, json.dumps(task)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._running.append(started)
        return started

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def children(home: Path) -> Iterator[Children]:
    started = Children(home)
    yield started
    started.end()


def finished(process: subprocess.Popen[str], seconds: float = 120) -> dict[str, Any]:
    """The child's last line; its stderr where it died."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def expected(rows: int = ROWS) -> list[str]:
    return [f"row {i}" for i in range(rows)]


def test_killed_at_half_and_run_again(serve: Any, children: Children) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.03))
    task = {"url": server.url, "rows": ROWS, "concurrency": CONCURRENCY}

    first = children.start(**task)
    server.wait_for(lambda: sum(server.answered.values()) >= ROWS // 2)
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    killed_at = server.count
    assert killed_at < ROWS, "the child was done before it was killed"

    again = finished(children.start(**task))

    assert again["responses"] == expected()
    assert set(again["status"]) <= {"ok", "cached"}
    assert again["status"].count("cached") >= ROWS // 2 - 2 * CONCURRENCY
    assert server.count <= ROWS + 2 * CONCURRENCY
    assert set(server.prompts) == set(expected())


def test_killed_three_times_over(serve: Any, children: Children) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.03))
    task = {"url": server.url, "rows": ROWS, "concurrency": CONCURRENCY}

    for part in (1, 2, 3):
        target = ROWS * part // 4
        child = children.start(**task)
        server.wait_for(lambda target=target: sum(server.answered.values()) >= target)
        child.send_signal(signal.SIGKILL)
        child.wait(20)
    again = finished(children.start(**task))

    assert again["responses"] == expected()
    assert server.count <= ROWS + 3 * 2 * CONCURRENCY


def test_killed_before_the_canary_was_answered(serve: Any, children: Children) -> None:
    """A claim of a process that died is taken over, not waited for without end."""
    server = serve(lambda seen: Reply(hang=True))
    task = {"url": server.url, "rows": 20, "concurrency": 4}
    first = children.start(**task)
    server.wait_for(lambda: server.count >= 1)
    first.send_signal(signal.SIGKILL)
    first.wait(60)

    server.rows = lambda seen: seen.prompt
    again = finished(children.start(**task), seconds=100)

    assert again["responses"] == expected(20)
    assert server.count <= 20 + 4


def test_two_processes_with_the_same_rows_send_each_once(serve: Any, children: Children) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.05))
    task = {
        "url": server.url,
        "rows": ROWS,
        "concurrency": CONCURRENCY,
        # Both have imported everything by then.
        "start_at": time.time() + 6,
    }

    both = [children.start(**task), children.start(**task)]
    done = [finished(child) for child in both]

    for result in done:
        assert result["responses"] == expected()
        assert set(result["status"]) <= {"ok", "cached"}
    assert server.count == ROWS
    assert set(server.answered.values()) == {1}


def test_one_of_two_processes_is_killed_and_the_other_ends_whole(
    serve: Any, children: Children
) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.1))
    task = {
        "url": server.url,
        "rows": ROWS,
        "concurrency": CONCURRENCY,
        "start_at": time.time() + 6,
    }
    dies, lives = children.start(**task), children.start(**task)
    server.wait_for(lambda: server.count >= ROWS // 4)
    dies.send_signal(signal.SIGKILL)
    dies.wait(60)

    # The dead one's claims pass on after 30 s without a beat.
    result = finished(lives, seconds=150)

    assert result["responses"] == expected()
    assert server.count <= ROWS + 2 * CONCURRENCY


def test_two_threads_with_the_same_rows_send_each_once(serve: Any) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.02))
    df = pd.DataFrame({"t": expected()})
    outs: list[pd.DataFrame] = []
    start = threading.Barrier(2)

    def run() -> None:
        start.wait()
        outs.append(df.llm.map("{t}", model=openai(server), concurrency=CONCURRENCY))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert len(outs) == 2
    for out in outs:
        assert out["response"].tolist() == expected()
        assert set(statuses(out)) <= {"ok", "cached"}
    assert server.count == ROWS


def test_two_processes_whose_rows_overlap_by_half(serve: Any, children: Children) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.05))
    start = time.time() + 6
    task = {"url": server.url, "concurrency": CONCURRENCY, "start_at": start}

    half = children.start(**task, rows=ROWS // 2)
    whole = children.start(**task, rows=ROWS)

    assert finished(half)["responses"] == expected(ROWS // 2)
    assert finished(whole)["responses"] == expected()
    assert server.count == ROWS


class EightThenNothing:
    """Answers eight rows and lets every later one hang, until told otherwise."""

    def __init__(self) -> None:
        self.open = False

    def __call__(self, seen: Any) -> Reply | str:
        if self.open or seen.n <= 8:
            return str(seen.prompt)
        return Reply(hang=True)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_u119_ctrl_c_keeps_what_is_answered_and_the_next_call_sends_the_rest(
    serve: Any, children: Children, concurrency: int
) -> None:
    script = EightThenNothing()
    server = serve(script)
    task = {"url": server.url, "rows": 20, "concurrency": concurrency}
    child = children.start(**task)
    server.wait_for(lambda: server.count == 8 + concurrency)
    time.sleep(0.3)

    sent = time.time()
    child.send_signal(signal.SIGINT)
    interrupted = finished(child, seconds=30)

    # The contract says 2 s; the rest is for a busy machine. The server would never have answered.
    assert interrupted["interrupted"] - sent < 15
    assert "8 of 20 rows kept" in interrupted["message"]
    assert "the same call sends the rest" in interrupted["message"]
    assert 'lf.job("' in interrupted["message"]

    script.open = True
    before = server.count
    again = finished(children.start(**task))
    assert again["responses"] == expected(20)
    assert sorted(again["status"]) == ["cached"] * 8 + ["ok"] * 12  # the eight came in any order
    assert server.count - before == 12


def test_u119_an_interrupted_job_can_be_joined_from_another_process(
    serve: Any, children: Children
) -> None:
    server = serve(EightThenNothing())
    child = children.start(url=server.url, rows=20, concurrency=1)
    server.wait_for(lambda: server.count == 9)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    message = finished(child, seconds=30)["message"]

    job_id = message.split('lf.job("')[1].split('"')[0]
    before = server.count
    with pytest.warns(UserWarning, match="12 of 20 rows are without an answer"):
        out = lf.job(job_id).join(pd.DataFrame({"t": expected(20)}))

    assert out["response"].dropna().tolist() == expected(8)
    assert statuses(out) == ["ok"] * 8 + ["pending"] * 12
    assert server.count == before


def test_u119_ctrl_c_while_the_run_waits_for_a_rate_limit(serve: Any, children: Children) -> None:
    server = serve(
        lambda seen: (
            seen.prompt
            if seen.n <= 3
            else Reply(status=429, headers={"retry-after": "300"}, message="wait")
        )
    )
    child = children.start(url=server.url, rows=20, concurrency=1)
    server.wait_for(lambda: server.count >= 4)
    time.sleep(0.3)

    sent = time.time()
    child.send_signal(signal.SIGINT)
    interrupted = finished(child, seconds=30)

    assert interrupted["interrupted"] - sent < 4
    assert "3 of 20 rows kept" in interrupted["message"]


def test_an_uncaught_ctrl_c_leaves_no_noise_behind(serve: Any, children: Children) -> None:
    server = serve(EightThenNothing())
    code = (
        "import json, signal, sys, pandas as pd, llmframe as lf\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "task = json.loads(sys.argv[1])\n"
        'engine = lf.OpenAI("test-model", base_url=task["url"], api_key="sk-x")\n'
        'df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})\n'
        'df.llm.map("{t}", model=engine, progress=False, concurrency=2)\n'
    )
    child = children.start("-X", "dev", code=code, url=server.url)
    server.wait_for(lambda: server.count == 10)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)

    assert child.returncode != 0
    assert err.rstrip().splitlines()[-1].startswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1, err
    for noise in ("never awaited", "unclosed", "was destroyed", "Exception ignored"):
        assert noise not in err, err


def test_a_second_ctrl_c_does_not_break_off_the_storing(serve: Any, children: Children) -> None:
    server = serve()
    code = (
        "import asyncio, json, os, signal, sys, pandas as pd, llmframe as lf\n"
        "from llmframe.engines import background\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "task = json.loads(sys.argv[1])\n"
        'engine = lf.OpenAI("test-model", base_url=task["url"], api_key="sk-x")\n'
        'pd.DataFrame({"t": ["a", "b"]}).llm.map("{t}", model=engine, progress=False)\n'
        "async def pressed():  # while the process closes what is open\n"
        "    for _ in range(3):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        await asyncio.sleep(0.05)\n"
        "background.at_exit(pressed)\n"
    )
    child = children.start(code=code, url=server.url)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")


def test_warnings_as_errors_and_nothing_on_stderr_at_exit(serve: Any, children: Children) -> None:
    server = serve()
    code = (
        "import json, sys, pandas as pd, llmframe as lf\n"
        "task = json.loads(sys.argv[1])\n"
        'df = pd.DataFrame({"t": [f"row {i}" for i in range(50)]})\n'
        'live = lf.OpenAI("test-model", base_url=task["url"], api_key="sk-x")\n'
        "fake = lf.testing.FakeEngine(lambda text: text)\n"
        "for engine in (live, fake):\n"
        '    out = df.llm.map("{t}", model=engine, progress=False)\n'
        '    assert out["response"].tolist() == df["t"].tolist()\n'
        'job = df.llm.submit.map("again {t}", model=live, progress=False)\n'
        "job.wait(); print(len(job.join(df)))\n"
    )
    child = children.start("-X", "dev", "-W", "error", code=code, url=server.url)
    out, err = child.communicate(timeout=60)

    assert child.returncode == 0, err
    assert out.strip() == "50"
    assert complaints(err) == ""


def test_a_process_that_ends_with_a_job_running_ends_quietly(
    serve: Any, children: Children
) -> None:
    server = serve(lambda seen: Reply(hang=True) if seen.n > 3 else seen.prompt)
    code = (
        "import json, sys, time, pandas as pd, llmframe as lf\n"
        "task = json.loads(sys.argv[1])\n"
        'df = pd.DataFrame({"t": [f"row {i}" for i in range(10)]})\n'
        'live = lf.OpenAI("test-model", base_url=task["url"], api_key="sk-x")\n'
        'job = df.llm.submit.map("{t}", model=live, progress=False, concurrency=1)\n'
        "time.sleep(2)\n"
        "print(job.id)\n"
    )
    child = children.start("-X", "dev", "-W", "error", code=code, url=server.url)
    out, err = child.communicate(timeout=60)

    assert child.returncode == 0, err
    assert complaints(err) == ""
    with pytest.warns(UserWarning, match="7 of 10 rows are without an answer"):
        kept = lf.job(out.strip()).join(pd.DataFrame({"t": expected(10)}))
    assert kept["response"].dropna().tolist() == expected(3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_store_and_a_loop_of_its_own(serve: Any, children: Children) -> None:
    server = serve()
    code = (
        "import json, os, sys, warnings, pandas as pd, llmframe as lf\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "task = json.loads(sys.argv[1])\n"
        'live = lf.OpenAI("test-model", base_url=task["url"], api_key="sk-x")\n'
        'df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})\n'
        "def run(name):\n"
        '    out = df.llm.map(name + " {t}", model=live, progress=False)\n'
        '    assert out["response"].tolist() == [f"{name} row {i}" for i in range(20)]\n'
        'run("parent")\n'
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        '        run("parent"); run("child"); os._exit(0)\n'
        "    except BaseException:\n"
        "        import traceback; traceback.print_exc(); os._exit(1)\n"
        "_, status = os.waitpid(pid, 0)\n"
        'run("after")\n'
        "print(os.waitstatus_to_exitcode(status))\n"
    )
    child = children.start(code=code, url=server.url)
    out, err = child.communicate(timeout=90)

    assert child.returncode == 0, err
    assert out.strip() == "0", err
    assert server.count == 60


def test_a_local_run_that_is_killed_keeps_its_rows(children: Children, local_model: Path) -> None:
    rows = 40
    task = {
        "engine": "local",
        "gguf": str(local_model),
        "rows": rows,
        "follow": True,
    }
    first = children.start(**task)
    assert first.stdout is not None
    kept = 0
    for line in first.stdout:
        said = json.loads(line)
        assert "responses" not in said, "the child was done before it was killed"
        kept = said.get("ok", 0)
        if kept >= rows // 2:
            break
    first.send_signal(signal.SIGKILL)
    first.wait(60)

    again = children.start(**task)
    out, err = again.communicate(timeout=180)
    assert again.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["cached"] >= kept - 1, "finished rows were lost"
    assert lines[0]["requests"] == rows - lines[0]["cached"]
    assert set(lines[-1]["status"]) <= {"ok", "cached"}
    assert lines[-1]["status"].count("cached") == lines[0]["cached"]

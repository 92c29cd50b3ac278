"""The same call in a real Jupyter kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmframe as lf
from tests.servers.rows import Reply

pytest_plugins = ["tests.servers.plugin"]

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")


ROOT = Path(__file__).resolve().parent.parent
SETUP = """
import asyncio, gc, os, threading
import pandas as pd
import llmframe as lf
engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-kernel")
df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})
"""


@pytest.fixture
def kernel_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The environment of a kernel that the test starts next."""

    def prepare(url: str) -> None:
        monkeypatch.setenv("URL", url)
        monkeypatch.delenv("LLMFRAME_PROGRESS")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))

    return prepare


def execute(cells: list[str], **options: Any) -> Any:
    """Run the cells in one kernel; fails on the first cell that raises."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    client = nbclient.NotebookClient(
        notebook, timeout=300, startup_timeout=300, kernel_name="python3", **options
    )
    client.execute()
    return notebook


@pytest.fixture
def kernel(kernel_env: Any) -> Iterator[Callable[[str], tuple[Any, Any]]]:
    """``kernel(url)`` starts one; gives its manager and its client."""
    jupyter_client = pytest.importorskip("jupyter_client")
    started: list[tuple[Any, Any]] = []

    def start(url: str) -> tuple[Any, Any]:
        kernel_env(url)
        started.append(
            jupyter_client.manager.start_new_kernel(startup_timeout=300, kernel_name="python3")
        )
        return started[-1]

    yield start
    for manager, client in started:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def value(client: Any, expression: str) -> str:
    """What the kernel has for an expression, as text; its code has to run without an error."""
    reply = client.execute_interactive("", timeout=300, user_expressions={"it": expression})
    found = reply["content"]["user_expressions"]["it"]
    assert found["status"] == "ok", found
    return str(found["data"]["text/plain"])


def eight_are_kept(server: Any) -> bool:
    """And the ninth row, which hangs, is on its way."""
    return server.count == 9 and lf.jobs()[0].status().ok == 8


def texts(cell: Any, name: str) -> str:
    """What the cell wrote to one stream."""
    return "".join(
        out["text"] for out in cell.outputs if out.output_type == "stream" and out.name == name
    )


def test_the_same_call_in_a_kernel(serve: Any, kernel_env: Any) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    kernel_env(server.url)
    notebook = execute(
        [
            SETUP,
            'out = df.llm.map("{t}", model=engine); print(out["response"].tolist()[-1])',
            'out = df.llm.map("{t}", model=engine); print(set(out.llm.status()))',
            'out = await df.llm.amap("two {t}", model=engine); print(out["response"].iloc[0])',
            'job = df.llm.submit.map("three {t}", model=engine)\n'
            'await job\nprint(job.join(df)["response"].iloc[0])',
            "outs = []\n"
            'run = lambda n: outs.append(df.llm.map(n + " {t}", model=engine, progress=False))\n'
            'threads = [threading.Thread(target=run, args=(n,)) for n in ("four", "five")]\n'
            "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
            'print(sorted(out["response"].iloc[0] for out in outs))',
            'df.llm.plan.map("six {t}", model=engine)',
            "job",
            "job.report()",
            "import asyncio; print(asyncio.run.__module__); gc.collect(); None",
        ]
    )

    said = [texts(cell, "stdout").strip() for cell in notebook.cells]
    assert said[1] == "ROW 19"
    assert said[2] == "{'cached'}"
    assert said[3] == "TWO ROW 0"
    assert said[4] == "THREE ROW 0"
    assert said[5] == "['FIVE ROW 0', 'FOUR ROW 0']"
    assert said[9] == "asyncio.runners", "asyncio was patched for the whole process"
    for cell in notebook.cells[6:9]:
        data = [out["data"] for out in cell.outputs if out.output_type == "execute_result"]
        assert len(data) == 1, cell.source
        assert "text/html" in data[0], cell.source
        assert len(data[0]["text/plain"]) > 20, cell.source
        assert " object at 0x" not in data[0]["text/plain"], cell.source
    for cell in notebook.cells:
        err = texts(cell, "stderr")
        for noise in ("Traceback", "Warning", "never awaited", "IProgress"):
            assert noise not in err, (cell.source, err)
    assert server.count == 100


def test_an_error_in_a_kernel_is_one_short_traceback(serve: Any, kernel_env: Any) -> None:
    server = serve(lambda seen: Reply(status=401, message="Incorrect API key provided"))
    kernel_env(server.url)
    notebook = execute([SETUP, 'df.llm.map("{t}", model=engine)'], allow_errors=True)

    errors = [out for out in notebook.cells[1].outputs if out.output_type == "error"]
    assert len(errors) == 1
    assert errors[0].ename.endswith("EngineError")
    assert "key" in errors[0].evalue
    shown = "\n".join(errors[0].traceback)
    assert "sk-kernel" not in shown
    assert server.count == 1


def test_u126_progress_is_seen_while_the_cell_is_blocked(serve: Any, kernel: Any) -> None:
    looked = threading.Event()
    # The run cannot end before the view was seen to move.
    server = serve(lambda seen: Reply(seen.prompt, until=looked if seen.n > 3 else None))
    _, client = kernel(server.url)
    updates: list[str] = []

    def look(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("stream", "display_data", "update_display_data", "comm_msg"):
            updates.append(message["msg_type"])
        if len(updates) >= 3:
            looked.set()

    client.execute_interactive(SETUP, timeout=300)
    reply = client.execute_interactive(
        'out = df.llm.map("{t}", model=engine, concurrency=1)', timeout=300, output_hook=look
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    assert looked.is_set()
    assert server.count == 20


def test_a_kernel_interrupt_keeps_the_finished_rows(serve: Any, kernel: Any) -> None:
    server = serve(lambda seen: seen.prompt if seen.n <= 8 else Reply(hang=True))
    manager, client = kernel(server.url)
    client.execute_interactive(SETUP, timeout=300)
    cell = 'out = df.llm.map("{t}", model=engine, concurrency=1)'
    client.execute(cell, stop_on_error=False)  # else the next request may be refused unread
    server.wait_for(lambda: eight_are_kept(server))
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=120)  # the row that hangs would take ten minutes
    assert reply["content"]["status"] == "error"
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert "8 of 20 rows kept" in reply["content"]["evalue"]
    assert value(client, 'df.llm.plan.map("{t}", model=engine).cached') == "8"


OWN = """
import openai
client = openai.AsyncOpenAI(
    base_url=os.environ["URL"], api_key="sk-kernel", max_retries=0,
    http_client=openai.DefaultAsyncHttpxClient(headers={"X-Pool": "mine"}))
lives = lf.OpenAI("test-model", client=client)
async def mine():
    reply = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "mine"}])
    return reply.choices[0].message.content
"""


def test_u008_a_client_that_lives_in_the_kernels_own_loop(serve: Any, kernel_env: Any) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    kernel_env(server.url)
    notebook = execute(
        [
            SETUP + OWN,
            "print(await mine())",
            'out = await df.llm.amap("{t}", model=lives); print(out["response"].iloc[-1])',
            "before = asyncio.run.__module__; print(await mine())",
            'out = df.llm.map("two {t}", model=lives); print(out["response"].iloc[-1])',
            "print(await mine())",
            'job = df.llm.submit.map("three {t}", model=lives)',
            "print((await job)['response'].iloc[-1])",
            'job = df.llm.submit.map("four {t}", model=lives); print(job.wait().status().ok)',
            "await client.close(); print(before, asyncio.run.__module__)",
            'print(df.llm.map("five {t}", model=engine)["response"].iloc[-1])',
        ]
    )
    said = [texts(cell, "stdout").strip() for cell in notebook.cells]
    assert said[1:6] == ["MINE", "ROW 19", "MINE", "TWO ROW 19", "MINE"]
    assert said[7:9] == ["THREE ROW 19", "20"]
    before, after = said[9].split()
    # ipykernel 6 brings its own patch; only a blocking call through such a client adds one here.
    assert before in {"asyncio.runners", "nest_asyncio"}
    assert after in {"nest_asyncio2", "nest_asyncio"}
    assert said[10] == "FIVE ROW 19"
    for cell in notebook.cells:
        err = texts(cell, "stderr")
        for noise in ("Traceback", "Warning", "never awaited"):
            assert noise not in err, (cell.source, err)
    assert server.count == 3 + 5 * 20
    assert [row.headers.get("x-pool") for row in server.asked].count("mine") == 3 + 4 * 20


@pytest.mark.parametrize(
    ("verb", "model"),
    [
        ("await df.llm.amap", "engine"),
        pytest.param("await df.llm.amap", "lives", marks=pytest.mark.slow),
        pytest.param("df.llm.map", "lives", marks=pytest.mark.slow),
    ],
)
def test_u119_an_interrupt_whatever_the_cell_waits_in(
    serve: Any, kernel: Any, verb: str, model: str
) -> None:
    server = serve(lambda seen: seen.prompt if seen.n <= 8 else Reply(hang=True))
    manager, client = kernel(server.url)
    client.execute_interactive(SETUP + OWN, timeout=300)
    cell = f'out = {verb}("{{t}}", model={model}, concurrency=1)'
    client.execute(cell, stop_on_error=False)
    server.wait_for(lambda: eight_are_kept(server))
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=120)
    assert reply["content"]["status"] == "error"
    assert reply["content"]["ename"] in {"KeyboardInterrupt", "CancelledError"}
    assert "8 of 20 rows kept" in "\n".join(reply["content"]["traceback"])
    # The kernel is as it was: the next cell runs, and asks nothing again.
    job = "lf.jobs()[0].status()"
    assert value(client, f"({job}.state, {job}.ok)") == "('interrupted', 8)"
    assert server.count == 9

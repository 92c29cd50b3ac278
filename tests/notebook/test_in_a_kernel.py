"""The live view in a real kernel without a browser: what a saved notebook holds afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.lab import ROOT
from tests.servers.rows import Reply

pytest_plugins = ["tests.servers.plugin"]

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("ipywidgets")

VIEW = "application/vnd.jupyter.widget-view+json"
SETUP = """
import os
import pandas as pd
import llmframe as lf
engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-kernel")
df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})
"""


class Client(nbclient.NotebookClient):  # type: ignore[name-defined, misc]
    """Tells a test what it displays, while its cells run."""

    displayed: Callable[[Any], None] | None = None

    def process_message(self, msg: Any, *args: Any) -> Any:
        """As it comes from the kernel."""
        if self.displayed is not None and msg["msg_type"] in {"display_data", "stream"}:
            self.displayed(msg)
        return super().process_message(msg, *args)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """``run(url, cells)`` executes them in one kernel; gives the notebook.

    ``displayed`` is called with each message that shows something.
    """

    def execute(url: str, cells: list[str], displayed: Callable[[Any], None] | None = None) -> Any:
        monkeypatch.setenv("URL", url)
        monkeypatch.delenv("LLMFRAME_PROGRESS", raising=False)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        client = Client(notebook, timeout=300, startup_timeout=300, kernel_name="python3")
        client.displayed = displayed
        client.execute()
        return notebook

    return execute


def shown(cell: Any) -> list[Any]:
    """What a cell displays, by mimetype."""
    return [out["data"] for out in cell.outputs if out.output_type == "display_data"]


def printed(cell: Any, name: str = "stdout") -> str:
    return "".join(
        out["text"] for out in cell.outputs if out.output_type == "stream" and out.name == name
    )


OPEN = """
import gc, ipywidgets
from ipywidgets.widgets import widget
open_ = getattr(widget, "_instances", None)
open_ = ipywidgets.Widget.widgets if open_ is None else open_
print(len(open_))
"""


def test_u126_what_is_saved_is_the_report_and_no_widget_stays_open(serve: Any, run: Any) -> None:
    # A job goes on until it was drawn: "b" in the cell that submits it, and in the next.
    drawn = [threading.Event() for _ in range(4)]
    until = {"a row 19": drawn[0], "b row 19": drawn[2], "c row 19": drawn[3]}
    server = serve(lambda seen: Reply(seen.prompt, until=until.get(seen.prompt)))

    def displayed(message: Any) -> None:
        if VIEW in message["content"].get("data", {}):
            next(event for event in drawn if not event.is_set()).set()

    notebook = run(
        server.url,
        displayed=displayed,
        cells=[
            SETUP,
            'out = df.llm.map("a {t}", model=engine, concurrency=2)',
            'out = df.llm.map("a {t}", model=engine)',  # nothing to do: nothing to show
            'job = df.llm.submit.map("b {t}", model=engine, concurrency=2)\njob',
            "job.wait().status().state",
            "job",
            'out = await df.llm.amap("c {t}", model=engine, concurrency=2)',
            'out = df.llm.map("d {t}", model=engine, concurrency=2, progress=False)',
            'job = df.llm.submit.map("e {t}", model=engine, progress=False); job.wait(); None',
            OPEN,
        ],
    )
    views = [shown(cell) for cell in notebook.cells]
    assert [len(view) for view in views] == [0, 1, 0, 1, 1, 0, 1, 0, 0, 0]
    for cell in (1, 3, 4, 6):
        data = views[cell][0]
        assert "20 of 20 rows answered" in data["text/html"], cell
        assert VIEW not in data, "a widget would be saved, which nobody can draw without its kernel"
        assert data["text/plain"].startswith("job j_")
    again = [o for o in notebook.cells[5].outputs if o.output_type == "execute_result"]
    assert len(again) == 1, "a job that has ended is a value as any other"
    assert printed(notebook.cells[9]).strip() == "0"
    for cell in notebook.cells:
        assert printed(cell, "stderr") == "", cell.source
    assert server.count == 100


def test_every_view_of_a_job_that_was_watched_here_and_there_ends_as_its_report(
    serve: Any, run: Any
) -> None:
    server = serve(lambda seen: Reply(seen.prompt) if seen.n < 4 else Reply(hang=True))
    notebook = run(
        server.url,
        [
            SETUP,
            'job = df.llm.submit.map("{t}", model=engine, concurrency=1)\n'
            "import time\n"
            "while job.status().ok < 3: time.sleep(0.05)",
            "job",
            "job.wait(timeout=3).status().state",
            "print(job.show())",
            "job.cancel().wait().status().state",
        ],
    )
    # The kernel is gone by now; what was drawn before it went was replaced by the report.
    for cell in (1, 2, 3, 4):
        (data,) = shown(notebook.cells[cell])
        assert "3 of 20 rows answered" in data["text/html"]
        assert VIEW not in data
    assert notebook.cells[3].outputs[-1]["data"]["text/plain"] == "'running'"
    result = notebook.cells[5].outputs[-1]["data"]["text/plain"]
    assert result == "'canceled'"


def test_the_next_kernel_ends_a_live_job_of_the_last(
    serve: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-kernel")
    server = serve(lambda seen: Reply(seen.prompt) if seen.n < 4 else Reply(hang=True))
    engine = 'engine = lf.OpenAI("test-model", base_url=os.environ["URL"])'
    first = run(
        server.url,
        [
            f"{SETUP}\n{engine}",
            'job = df.llm.submit.map("{t}", model=engine, concurrency=1)\n'
            "import time\n"
            "while job.status().ok < 3: time.sleep(0.05)\n"
            "print(job.id)",
        ],
    )
    name = printed(first.cells[1]).strip()

    server.rows = lambda seen: seen.prompt
    second = run(server.url, [SETUP, "lf.jobs()", f"lf.job({name!r}).wait().status().state"])
    listed = second.cells[1].outputs[-1]["data"]["text/html"]
    assert name in listed
    assert "interrupted" in listed
    assert second.cells[2].outputs[-1]["data"]["text/plain"] == "'done'"
    assert server.count == 21  # and the one that was on its way
    assert set(server.answered.values()) == {1}


def test_a_picture_stands_beside_the_widget_while_the_job_runs(
    serve: Any, kernel: Callable[..., Any]
) -> None:
    drawn = {3: threading.Event(), 11: threading.Event()}

    def reply(seen: Any) -> Reply:
        if seen.n - 1 in drawn:  # the run waits here until the view has said how far it is
            drawn[seen.n - 1].wait(60)
        return Reply(seen.prompt)

    server = serve(reply)
    seen: list[dict[str, Any]] = []

    def value(message: dict[str, Any]) -> str:
        state = message["content"].get("data", {}).get("state", {})
        text = state.get("value", "") if message["msg_type"] == "comm_msg" else ""
        return text if "llmframe" in text else ""

    def look(message: dict[str, Any]) -> None:
        seen.append(message)
        for done, event in drawn.items():
            if f"{done} of 20" in value(message):
                event.set()

    client = kernel(server.url)
    client.execute_interactive(SETUP, timeout=60)
    client.execute_interactive(
        'out = df.llm.map("{t}", model=engine, concurrency=1)', timeout=240, output_hook=look
    )
    first = next(m for m in seen if m["msg_type"] == "display_data")["content"]
    assert set(first["data"]) == {VIEW, "text/html", "text/plain"}
    assert 'lf.job("j_' in first["data"]["text/html"].replace("&quot;", '"')
    assert all(event.is_set() for event in drawn.values()), "the view stood still"
    # By the kernel's clock: here they may arrive in a heap.
    times = [m["header"]["date"] for m in seen if value(m)]
    seconds = (times[-1] - times[0]).total_seconds()
    assert len(times) <= 4 * seconds + 2, "more than four updates a second"
    last = [m for m in seen if m["msg_type"] == "update_display_data"][-1]["content"]
    assert last["transient"] == first["transient"]
    assert set(last["data"]) == {"text/html", "text/plain"}
    closed = {m["content"]["comm_id"] for m in seen if m["msg_type"] == "comm_close"}
    opened = {m["content"]["comm_id"] for m in seen if m["msg_type"] == "comm_open"}
    assert opened <= closed


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``kernel(url)`` starts one; gives its client."""
    jupyter_client = pytest.importorskip("jupyter_client")
    started = []

    def start(url: str) -> Any:
        monkeypatch.setenv("URL", url)
        monkeypatch.delenv("LLMFRAME_PROGRESS", raising=False)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
        started.append(
            jupyter_client.manager.start_new_kernel(startup_timeout=300, kernel_name="python3")
        )
        return started[-1][1]

    yield start
    for manager, client in started:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


BROKEN = {
    "absent": "import sys; sys.modules['ipywidgets'] = None",
    "raises when a widget is made": (
        "import ipywidgets\n"
        "def init(*_, **__): raise TypeError('another version')\n"
        "ipywidgets.HTML.__init__ = init"
    ),
    "raises when a value is set": (
        "import ipywidgets, threading\n"
        "real = ipywidgets.HTML.__setattr__\n"
        "def setattr_(self, name, value):\n"
        "    if name == 'value' and threading.current_thread() is not threading.main_thread():\n"
        "        raise LookupError('shell_parent')\n"
        "    real(self, name, value)\n"
        "ipywidgets.HTML.__setattr__ = setattr_"
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_u125_a_widget_package_that_is_absent_or_broken_costs_no_row(
    serve: Any, run: Any, how: str
) -> None:
    shown = threading.Event()
    server = serve(lambda seen: Reply(seen.prompt, until=shown if seen.n == 20 else None))
    notebook = run(
        server.url,
        displayed=lambda message: shown.set(),
        cells=[
            SETUP,
            BROKEN[how],
            'out = df.llm.map("{t}", model=engine, concurrency=2)\n'
            'print((out["response"] == df["t"]).all())',
            'job = df.llm.submit.map("b {t}", model=engine)\n'
            'print((job.wait().join(df)["response"] == "b " + df["t"]).all())',
        ],
    )
    assert [printed(cell).strip() for cell in notebook.cells[2:]] == ["True", "True"]
    text = json.dumps(notebook.cells)
    assert "Traceback" not in text
    assert "Warning" not in text
    if how != "raises when a value is set":
        assert "20/20" in printed(notebook.cells[2], "stderr"), "no bar in its place"

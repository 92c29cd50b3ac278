"""The live view in a real JupyterLab: watched, stopped, left, and come back to.

``LLMFRAME_TEST_SHOTS`` names a folder that the pictures go into.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.lab import Lab, Page
from tests.servers.openai_batches import BatchServer, Plan
from tests.servers.rows import Reply

pytest_plugins = ["tests.servers.plugin"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_SHOTS = os.environ.get("LLMFRAME_TEST_SHOTS")

Open = Callable[..., Page]

PROMPT = "Topic: {text}"
# The second click that cancels has to come in time.
PATIENT = "import llmframe.widgets.live\nllmframe.widgets.live._SURE = 600.0\n"
ROWS = 400


def setup(url: str, rows: int = 100, **options: Any) -> str:
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return (
        "import pandas as pd\nimport llmframe as lf\n"
        f'engine = lf.OpenAI("test-model", base_url="{url}", api_key="sk-lab"{given})\n'
        'lf.set_options(prices={"openai/test-model": (1.0, 2.0)}, poll_interval=0.2)\n'
        f'df = pd.DataFrame({{"text": [f"ticket {{i}}" for i in range({rows})]}})\n'
    )


def shot(page: Page, name: str) -> None:
    if _SHOTS:
        page.shot(Path(_SHOTS) / f"{name}.png")


class Slowly:
    """A few rows a second, and now and then an error that is asked again.

    After each of `stops` requests it waits until the test has seen what it wants, and calls `go`.
    """

    def __init__(self, *stops: int) -> None:
        self._gates = {stop: threading.Event() for stop in stops}

    def __call__(self, row: Any) -> Any:
        gates = [gate for stop, gate in self._gates.items() if row.n > stop]
        if row.n % 12 == 5 and not gates:
            return Reply(status=500, message="the model is overloaded")
        return Reply(f"about {row.prompt}", delay=0.2, until=gates[-1] if gates else None)

    def go(self) -> None:
        """On to the next stop."""
        next(gate for gate in self._gates.values() if not gate.is_set()).set()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_u119_stop_while_the_cell_is_blocked_keeps_the_finished_rows(
    lab: Lab, notebook: Open, serve: Any, dark: bool
) -> None:
    script = Slowly(30, 60)
    server = serve(script)
    theme = "dark" if dark else "light"
    page = notebook(
        f"stop-{theme}.ipynb",
        [
            setup(server.url, rows=ROWS),
            f'out = df.llm.map("{PROMPT}", model=engine, concurrency=2)',
            'print(out.llm.status().value_counts().loc[["ok", "pending"]].to_dict())\n'
            'kept = out["response"].notna()\n'
            'print(kept.sum(), (out["response"] == "about Topic: " + df["text"])[kept].all())',
        ],
        dark=dark,
    )
    page.run(wait=False)
    first = page.see(1, r"rows/s")
    page.see(1, r"provider_error")
    shown = page.see(1, r"(?s)Last answers.*about Topic: ticket \d+")
    assert re.search(r"p50 \d+\.\d+ s, p95 \d+\.\d+ s", shown), shown
    assert re.search(r"US\$0\.\d+, about US\$0\.\d+ in all \(the plan expected US\$", shown), shown
    assert re.search(r"Updated \d\d:\d\d:\d\d", shown)
    script.go()
    answered = int(re.search(r"(\d+) answered", first)[1])  # type: ignore[index]
    page.see(1, rf"\b(?!{answered}\b)\d+ answered")
    shot(page, f"live-{theme}")

    page.click(1, "Stop")
    page.wait()  # the rows in flight are answered only after it
    asked = server.count
    script.go()
    counts = {k: int(v) for k, v in re.findall(r"'(ok|pending)': (\d+)", page.text(2))}
    assert sum(counts.values()) == ROWS
    assert counts["ok"] > answered
    assert counts["pending"] > 0
    assert f"{counts['ok']} True" in page.text(2)
    assert f"{counts['ok']} of {ROWS} rows kept" in page.text(1)
    assert "KeyboardInterrupt" not in page.text(1)
    page.page.wait_for_timeout(1000)
    assert server.count == asked, "rows were sent after Stop"

    page.save()
    lab.call("POST", f"/api/kernels/{lab.kernel(f'stop-{theme}.ipynb')}/restart")
    page.page.reload()
    page.ready()
    report = page.see(1, r"interrupted")
    assert "Error displaying widget" not in report
    assert page.cell(1).locator(".widget-button").count() == 0
    assert page.page.locator("mjx-container").count() == 0, "a price was taken for a formula"
    assert f"{counts['ok']} of {ROWS} rows" in report
    page.page.wait_for_timeout(500)
    shot(page, f"report-{theme}")


def test_the_kernels_interrupt_does_the_same_and_ends_the_cell_with_an_error(
    lab: Lab, notebook: Open, serve: Any
) -> None:
    server = serve(Slowly(30))
    page = notebook(
        "interrupt.ipynb",
        [
            setup(server.url),
            f'out = df.llm.map("{PROMPT}", model=engine, concurrency=2)',
            'print("never", "reached")',
            f'print(df.llm.plan.map("{PROMPT}", model=engine).cached > 5)',
        ],
    )
    page.run(wait=False)
    page.see(1, r"[1-9]\d answered")
    lab.call("POST", f"/api/kernels/{lab.kernel('interrupt.ipynb')}/interrupt")
    page.see(1, r"KeyboardInterrupt: \d+ of 100 rows kept")
    page.wait()
    assert "never reached" not in page.text(2)
    assert page.cell(1).locator(".widget-button").count() == 0
    page.page.locator(".jp-CodeCell").nth(3).click()
    page.run_next()
    page.see(3, "True")


def test_a_submitted_job_is_shown_at_once_and_everywhere_and_said_once(
    notebook: Open, serve: Any
) -> None:
    script = Slowly(30)
    server = serve(script)
    page = notebook(
        "submit.ipynb",
        [
            setup(server.url, rows=60),
            f'job = df.llm.submit("{PROMPT}", model=engine, concurrency=2)\njob',
            'print("free", job.status().state)\njob',
            "job.wait().status().state",
            "job",
        ],
    )
    page.run(wait=False)
    page.see(2, "free running")
    for cell in (1, 2, 3):
        page.see(cell, r"\d+ answered")
        assert page.cell(cell).locator(".widget-button:visible").count() == 1, cell
    shot(page, "submitted")
    script.go()
    page.wait()
    for cell in (1, 2, 3):
        page.see(cell, r"60 of 60 rows answered")
        assert page.cell(cell).locator(".widget-button").count() == 0
    assert "'done'" in page.text(3)
    assert server.count >= 60


def test_a_batch_outlives_its_kernel_and_is_shown_and_ended_in_the_next(
    lab: Lab, notebook: Open
) -> None:
    with BatchServer() as server:
        server.plan = Plan(words=["in_progress"] * 10**6)
        page = notebook(
            "batch.ipynb",
            [
                setup(server.url, rows=6, batch=True)
                + PATIENT
                + 'os = __import__("os"); os.environ["OPENAI_API_KEY"] = "sk-lab"',
                f'out = df.llm.map("{PROMPT}", model=engine)',
                "lf.jobs()",
                "job = lf.jobs()[0]\njob",
                'job.wait()\nprint(job.join(df)["response"].tolist()[-1])',
            ],
        )
        page.run_next()
        page.run_next(wait=False)
        page.see(1, r"waiting for the provider")
        page.see(1, r"1 batch at openai")
        shot(page, "batch-live")
        page.click(1, "Cancel")
        page.see(1, "Cancel the batches\\?")
        shot(page, "batch-question")

        page.page.evaluate(
            "()=>window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
        page.ready()
        page.page.locator(".jp-CodeCell").nth(0).click()
        page.run_next()
        page.page.locator(".jp-CodeCell").nth(2).click()
        page.run_next()
        assert "detached" in page.see(2, r"1 of 1 batches")
        shot(page, "batch-jobs")
        page.run_next()
        page.see(3, r"nobody waits for it")
        shot(page, "batch-detached")
        page.run_next(wait=False)
        page.see(4, r"waiting for the provider")
        for stored in server.batches.values():
            stored.plan.words.clear()
        page.wait()
        page.see(4, r"Topic: ticket 5")
        page.see(3, r"6 of 6 rows answered")
        assert sorted(server.asked.values()) == [1] * 5, "a row was paid twice, or never"
        shot(page, "batch-done")


def test_cancel_asks_first_and_then_ends_the_batches(notebook: Open) -> None:
    with BatchServer() as server:
        server.plan = Plan(words=["in_progress"] * 10**6, done=0.0)
        page = notebook(
            "cancel.ipynb",
            [
                setup(server.url, rows=6, batch=True) + PATIENT,
                f'out = df.llm.map("{PROMPT}", model=engine)',
                "print(out.llm.status().value_counts().to_dict())",
            ],
        )
        page.run(wait=False)
        page.see(1, r"waiting for the provider")
        page.click(1, "Cancel")
        page.see(1, r"Cancel the batches\?")
        assert server.calls["POST /v1/batches/ID/cancel"] == 0, "the first click only asks"
        page.click(1, "Cancel the batches?")
        page.wait()
        assert "canceled" in page.text(1)
        page.see(2, r"'pending': 5")
        assert server.calls["POST /v1/batches/ID/cancel"] > 0
        assert "KeyboardInterrupt" not in page.text(1)


HOSTILE = (
    "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'></table></div>"
    "\x1b[31mred\x1b[0m $a$ "
)


def test_what_a_row_holds_is_harmless(notebook: Open, serve: Any) -> None:
    looked = threading.Event()

    def answer(row: Any) -> Any:
        return Reply(HOSTILE + "x" * 1_000_000, until=looked if row.n > 4 else None)

    server = serve(answer)
    page = notebook(
        "hostile.ipynb",
        [
            setup(server.url, rows=8),
            f"df.index = [{HOSTILE!r} + str(i) for i in range(8)]\n"
            'df["text"] += "y" * 1_000_000\n'
            'job = df.llm.submit("{text}", model=engine, concurrency=1)',
            "job.wait()\njob",
        ],
    )
    page.run(wait=False)
    shown = page.see(1, r"(?s)Last answers.*<script>window.harmed")
    shot(page, "hostile")
    assert "\x1b" not in shown
    assert "red" in shown
    assert len(shown) < 5000
    looked.set()
    page.wait()
    assert page.page.evaluate("()=>window.harmed") is None
    for cell in (1, 2):
        assert page.cell(cell).locator("script, img").count() == 0
    assert "8 of 8" in page.text(1)
    assert re.search(r"ok\s+8", page.text(2))  # the job as a value; it may have been done at once


@pytest.mark.local_model
def test_the_embedded_model_is_watched_while_it_loads_and_writes(
    lab: Lab, notebook: Open, local_model: Path
) -> None:
    target = lab.journal / "models" / local_model.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if not target.exists():
        target.symlink_to(local_model.resolve())
    page = notebook(
        "local.ipynb",
        [
            "import pandas as pd\nimport llmframe as lf\n"
            'df = pd.DataFrame({"text": [f"{i} hens lay eggs." for i in range(4000)]})',
            'out = df.llm.map("Continue: {text}", model="local", max_tokens=24)',
            'print(out["response"].notna().sum())',
        ],
    )
    page.run(wait=False)
    page.see(1, r"loading the model|rows/s")
    page.see(1, r"(?s)tokens/s.*Last answers")
    shot(page, "local")
    page.click(1, "Stop")
    page.wait()
    assert re.search(r"(\d+) of 4,000 rows kept", page.text(1)).group(1) == page.text(2).strip()  # type: ignore[union-attr]

"""A review in a real JupyterLab: looked at, corrected, and given back; and the examples' tour.

``LLMFRAME_TEST_SHOTS`` names a folder that the pictures go into.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebook.lab import ROOT, Lab, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_SHOTS = os.environ.get("LLMFRAME_TEST_SHOTS")

SETUP = """
import pandas as pd
import llmframe as lf
def answer(prompt):
    text = prompt.rpartition("Text: ")[2]
    return {"reason": "It names money.", "label": "billing" if "charged" in text else "bug"}
df = pd.DataFrame({"ticket": [
    "I was charged twice for March. Can you refund one of the two payments?",
    "Please add a dark mode, my eyes hurt at night.",
    "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'> crashes $a$",
    "The search returns nothing.",
]}, index=[1001, 1002, 1003, 1004])
labels = ["billing", "bug", "feature request"]
out = df.llm.classify("ticket", labels, explain=True, model=lf.testing.FakeEngine(answer))
review = out.llm.review("label")
"""

TOUR = {
    "llm.plan": "24",
    "out = tickets.llm.classify": "24 of 24 rows answered",
    "llm.trace(1001)": "I was charged twice",
    "llm.failures()": "No row failed",
    "few.llm.submit": "6 of 6 rows answered",
    "job.wait()": "reply",
    "job.report()": "6 of 6",
    "lf.jobs()": "map",
}
"""A part of a cell of the tour → what the cell shows in the end."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_row_is_corrected_with_the_mouse(
    lab: Lab, notebook: Callable[..., Page], dark: bool
) -> None:
    theme = "dark" if dark else "light"
    page = notebook(
        f"review-{theme}.ipynb",
        [SETUP, "review", 'print(review.apply()["label_reviewed"].tolist())'],
        dark=dark,
    )
    page.run()
    page.see(1, r"(?s)0 of 4 reviewed.*charged twice")
    page.click(1, "Accept")
    page.see(1, r"(?s)1 of 4 reviewed.*dark mode")
    field = page.cell(1).locator("select")
    assert field.input_value() == "bug"
    field.select_option("feature request")
    page.cell(1).get_by_role("button", name="Correct").wait_for()
    if _SHOTS:
        page.shot(Path(_SHOTS) / f"review-chosen-{theme}.png")
    page.click(1, "Correct")
    shown = page.see(1, r"(?s)2 of 4 reviewed, 1 of them corrected.*<script>window.harmed")
    assert "$a$" in shown
    assert page.page.evaluate("()=>window.harmed") is None
    page.click(1, "Previous")
    page.see(1, r"(?s)dark mode.*reviewed\s+feature request")
    assert field.input_value() == "feature request"
    if _SHOTS:
        page.shot(Path(_SHOTS) / f"review-{theme}.png")
    page.click(1, "Next")
    page.click(1, "Skip")
    page.click(1, "Accept")
    page.see(1, "No row is left without a mark")
    page.page.locator(".jp-CodeCell").nth(2).click()
    page.run_next()
    page.see(2, r"\['billing', 'feature request', nan, 'bug'\]")
    if _SHOTS:
        page.shot(Path(_SHOTS) / f"review-done-{theme}.png")

    # Without its kernel the notebook still tells what was said.
    page.save()
    lab.call("POST", f"/api/kernels/{lab.kernel(f'review-{theme}.ipynb')}/restart")
    page.page.reload()
    page.ready()
    told = page.see(1, r"So far: 3 of 4 reviewed, 1 of them corrected, 1 skipped")
    assert re.search(r"dark mode.*\s+bug\s+feature request\s+corrected", told)
    assert page.page.evaluate("()=>window.harmed") is None
    if _SHOTS:
        page.shot(Path(_SHOTS) / f"review-gone-{theme}.png")


@pytest.mark.local_model
def test_the_tour_of_the_examples(
    lab: Lab, notebook: Callable[..., Page], local_model: Path
) -> None:
    target = lab.journal / "models" / local_model.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if not target.exists():
        target.symlink_to(local_model.resolve())
    shutil.copytree(ROOT / "examples" / "data", lab.notebooks / "data", dirs_exist_ok=True)
    written = json.loads((ROOT / "examples" / "05_notebook_tour.ipynb").read_text())
    cells = ["".join(c["source"]) for c in written["cells"] if c["cell_type"] == "code"]
    page = notebook("tour.ipynb", cells)
    page.run(wait=False)
    page.wait(240)
    places = {part: k for k, cell in enumerate(cells) for part in TOUR if part in cell}
    for part, wanted in TOUR.items():
        page.see(places[part], wanted)
        if _SHOTS:
            page.cell(places[part]).scroll_into_view_if_needed()
            page.shot(Path(_SHOTS) / f"tour-{places[part]}.png")
    assert page.page.locator(".jp-RenderedText[data-mime-type*=stderr]").count() == 0

"""A review in a real JupyterLab: looked at, corrected, and given back.

``LLMFRAME_TEST_SHOTS`` names a folder that the pictures go into.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebook.lab import Page

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


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_row_is_corrected_with_the_mouse(notebook: Callable[..., Page], dark: bool) -> None:
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

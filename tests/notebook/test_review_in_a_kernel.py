"""The widgets of a review in a real kernel without a browser: clicked as the browser clicks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.lab import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("ipywidgets")

VIEW = "application/vnd.jupyter.widget-view+json"
SETUP = """
import pandas as pd
import llmframe as lf
engine = lf.testing.FakeEngine({"label": "bug"})
df = pd.DataFrame({"t": ["It crashes", "<script>harm()</script> wish", "Why?"]})
out = df.llm.classify("t", ["bug", "wish", "question"], model=engine, progress=False)
review = out.llm.review("label")
"""
# A click comes as a message of the browser's to the widget of that description.
HANDS = """
from ipywidgets import Button, Dropdown, HTML, SelectMultiple, Text, Textarea, Widget
from ipywidgets.widgets import widget
open_ = getattr(widget, "_instances", None)  # ipywidgets 7 has them elsewhere
open_ = Widget.widgets if open_ is None else open_
every = lambda kind: [w for w in list(open_.values()) if type(w) is kind]
def click(name):
    [button] = [b for b in every(Button) if b.description == name]
    button._handle_button_msg(button, {"event": "click"}, [])
def seen():
    return " ".join(w.value.rpartition("</style>")[2] for w in every(HTML))
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """``run(*cells)`` executes them in one kernel; gives what each printed, and the notebook."""

    def execute(*cells: str) -> Any:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        client = nbclient.NotebookClient(
            notebook, timeout=300, startup_timeout=300, kernel_name="python3"
        )
        client.execute()
        printed = [
            "".join(out["text"] for out in cell.outputs if out.output_type == "stream").strip()
            for cell in notebook.cells
        ]
        return notebook, printed

    return execute


def test_the_buttons_do_what_they_say(run: Callable[..., Any]) -> None:
    notebook, printed = run(
        SETUP,
        "review",
        HANDS + "[field] = every(Dropdown)\nprint([label for label, _ in field.options])",
        "print(field.value); click('Accept'); print(review.progress)",
        "field.value = 'wish'; click('Correct'); print(review.progress)",
        "click('Previous'); print(review.current.position, field.value, seen())",
        "click('Next'); click('Skip'); print(review.progress, review.done)",
        "print(seen())",
        "field.value = None; click('Correct'); print(seen().rpartition('llmframe-bad')[2])",
        "review.take_back(); click('Accept'); print(review.apply()['label_reviewed'].tolist())",
    )
    shown, told = notebook.cells[1].outputs
    assert set(shown["data"]) == {VIEW, "text/html", "text/plain"}
    assert "run the cell again" in shown["data"]["text/html"]
    # What was said by then, for whoever has no kernel; the cells that said it came later.
    assert set(told["data"]) == {"text/html", "text/plain"}
    assert told["data"]["text/plain"].endswith("3 of 3 reviewed, 1 of them corrected")
    said = told["data"]["text/html"]
    wish, crash = said.index("&lt;script&gt;harm()&lt;/script&gt; wish"), said.index("It crashes")
    assert wish < crash, "corrections come first"
    assert said.index(">bug<") < said.index(">wish<") < said.index("corrected</span>")
    assert said.count("accepted</span>") == 2
    assert "<script" not in said
    assert printed[2] == "['', 'bug', 'wish', 'question']"
    assert printed[3] == "bug\n1 of 3 reviewed"
    assert printed[4] == "2 of 3 reviewed, 1 of them corrected"
    assert printed[5].startswith("1 wish ")
    assert "&lt;script&gt;harm()" in printed[5]
    assert "<script" not in printed[5]
    assert printed[6] == "2 of 3 reviewed, 1 of them corrected, 1 skipped True"
    assert "No row is left" in printed[7]
    assert "expected &#x27;bug&#x27;" in printed[8]
    assert printed[9] == "['bug', 'wish', 'bug']"


def test_what_was_said_is_told_wherever_it_was_shown_and_cut(run: Callable[..., Any]) -> None:
    notebook, _ = run(
        SETUP.replace('"Why?"]', '"Why? " + "y" * 1_000_000] * 10'),
        "review",
        "for _ in range(9): review.accept()\nreview",
        "review.skip()\nfor _ in range(15): review.accept()",
    )
    told = [notebook.cells[cell].outputs[1]["data"]["text/html"] for cell in (1, 2)]
    assert told[0] == told[1]
    assert "24 of 30 reviewed, 1 skipped" in told[0]
    assert told[0].count("accepted</span>") == 20
    assert "… and 5 more" in told[0]
    assert len(told[0]) < 20_000


def test_a_correction_is_given_its_reason(run: Callable[..., Any]) -> None:
    _, printed = run(
        SETUP + HANDS,
        'engine = lf.testing.FakeEngine({"reason": "So.", "label": "bug"})\n'
        'out = df.llm.classify("t", ["bug", "wish"], explain=True, model=engine, progress=False)\n'
        'review = out.llm.review("label")\nreview.show()\n'
        "[field], [why] = every(Dropdown), every(Text)\nprint(repr(why.value))",
        "click('Accept')\n"
        "field.value, why.value = 'wish', ' It asks. '\nclick('Correct')\nprint(repr(why.value))",
        "print(review.examples()['label_reason'].tolist())",
        "review.previous(); print(why.value)",
        "review.previous(); print(repr(why.value)); field.value = 'wish'; click('Correct')\n"
        "review.previous(); review.previous(); print(review.current.mark)",
    )
    assert printed[1:5] == ["''", "''", "['It asks.', 'So.']", "It asks."]
    assert printed[5] == "''\nMark(value='wish', reason=None, skipped=False)"


def test_each_type_has_its_field(run: Callable[..., Any]) -> None:
    _, printed = run(
        SETUP + HANDS,
        'df["n"] = pd.array([1, 2, 3], "Int64")\n'
        'review = df.llm.review("n", text="t", order=None)\nreview.show()\n'
        "[field] = every(Text)\nprint(field.value)\n"
        "field.value = 'x'; click('Correct'); print(seen().rpartition('llmframe-bad')[2])\n"
        "field.value = '9007199254740993'; click('Correct'); print(review.column()[0])",
        "Widget.close_all()\n"
        'df["m"] = [["a"], [], ["b"]]\n'
        'review = df.llm.review("m", text="t", order=None)\nreview.show()\n'
        "[field] = every(Textarea)\nprint(field.value)\n"
        "field.value = '[\"c\"]'; click('Correct'); print(review.column()[0])",
        "Widget.close_all()\n"
        'engine = lf.testing.FakeEngine({"label": ["bug"]})\n'
        'out = df.llm.classify("t", ["bug", "wish"], multi=True, model=engine, progress=False)\n'
        'review = out.llm.review("label")\nreview.show()\n'
        "[field] = every(SelectMultiple)\nprint(field.value)\n"
        "field.value = ('bug', 'wish'); click('Correct'); print(review.column()[0])",
    )
    number = printed[1].split("\n")
    assert number[0] == "1"
    assert "&#x27;x&#x27; is no whole number" in number[1]
    assert number[2] == "9007199254740993"
    assert printed[2] == "[\"a\"]\n['c']"
    assert printed[3] == "('bug',)\n['bug', 'wish']"


def test_without_ipywidgets_the_extra_is_named(run: Callable[..., Any]) -> None:
    notebook, printed = run(
        "import sys; sys.modules['ipywidgets'] = None",
        SETUP,
        "review",
        "try:\n    review.show()\nexcept ImportError as error:\n    print(error)",
    )
    (shown,) = notebook.cells[2].outputs
    assert "llmframe[notebook]" in shown["data"]["text/html"]
    assert "It crashes" in shown["data"]["text/html"]
    assert 'pip install "llmframe[notebook]"' in printed[3]

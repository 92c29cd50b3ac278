"""Every notebook of the examples runs from its top in a real kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def executed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook with its outputs, after a run in a kernel of its own."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parent)]))
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(EXAMPLES)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=place, kernel_name="python3").execute()
    return notebook


def texts(notebook: Any) -> list[str]:
    """What each code cell shows, as text."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        shown = [
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        ]
        found.append("\n".join(shown))
    return found


def test_notebooks_are_there() -> None:
    assert "07_judge_dataset.ipynb" in [path.name for path in NOTEBOOKS]


@pytest.mark.slow
@pytest.mark.local_model
def test_judge_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    shown = texts(executed(EXAMPLES / "07_judge_dataset.ipynb", monkeypatch))
    agreements = [text for text in shown if text.startswith("Agreement")]
    assert len(agreements) == 2
    # What stands in for a better judge is a function: its figures are the same everywhere.
    assert "cohen_kappa" in agreements[1]
    assert any(text.startswith("Plan for an audit: 48 requests") for text in shown)
    assert any(text.startswith("Audit of a judge on 48 rows") for text in shown)
    assert shown[-1].startswith("right answers: ")
    assert "judged: 48 of 48; by a person: 24" in shown[-1]

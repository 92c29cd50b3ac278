"""vLLM in a real Jupyter kernel, whose interrupt goes to the whole process group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
CELLS = [
    """
import os, signal, threading, time
from typing import Literal
import pandas as pd, llmframe as lf
model = lf.VLLM(os.environ["TINY"], max_num_seqs=16, max_model_len=512, enforce_eager=True)
colour = Literal["red", "green", "blue"]
df = pd.DataFrame({"text": [f"row {i}" for i in range(20)]})
df = df.llm.map("Which? {text}", colour, model=model)
df["response"].notna().sum()
""",
    """
def interrupt():
    time.sleep(1.5)
    os.killpg(os.getpgid(0), signal.SIGINT)
threading.Thread(target=interrupt).start()
pd.DataFrame({"text": [f"one of many {i}" for i in range(4000)]}).llm.map(
    "Which? {text}", colour, model=model
)
""",
    """
more = pd.DataFrame({"text": [f"more {i}" for i in range(20)]})
more = more.llm.map("Which? {text}", colour, model=model)
more["response"].notna().sum()
""",
    "model.close()",
]


def shown(cell: Any) -> str:
    return "".join(out["data"]["text/plain"] for out in cell.outputs if "data" in out)


def test_a_notebook_with_an_interrupt(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "TINY": folders["tiny"],
        "PYTHONPATH": ROOT,
        "IPYTHONDIR": tmp_path / "ipython",
        "JUPYTER_RUNTIME_DIR": tmp_path / "runtime",
    }.items():
        monkeypatch.setenv(name, str(value))
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbclient.NotebookClient(
        notebook, timeout=180, kernel_name="python3", allow_errors=True
    ).execute()
    loaded, stopped, after, closed = notebook.cells
    assert "20" in shown(loaded), loaded.outputs
    [error] = [out for out in stopped.outputs if out.output_type == "error"]
    assert error.ename == "KeyboardInterrupt"
    assert "rows kept" in error.evalue
    assert "20" in shown(after), after.outputs
    assert not [out for out in closed.outputs if out.output_type == "error"]

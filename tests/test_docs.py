"""The documentation runs: each page's cells in order, each docstring's examples.

A page is a notebook in Markdown. A ```python block is a cell; what it prints, then its last
expression as `repr` shows it, then its warnings stand in the ```text block below it. A cell that
shows something and has no such block fails, and so does a block that shows something else.
``python -m tests.test_docs`` writes into the pages what their cells show now: read the difference.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Shown output differs between pandas 2 and 3 (NaN or <NA> in a text column). The pages show what
# the newest prints; on the older one the cells run, and their output is not compared.
SHOWS_AS_WRITTEN = int(pd.__version__.partition(".")[0]) >= 3


@dataclass
class Cell:
    """A Python cell of a page.

    Attributes:
        line: Where its fence opens, from 1.
        code: Its source.
        shown: What the page shows below it, None for nothing.
        end: Offset in the page behind the cell and its output.
        start: Offset behind the cell's own fence.
    """

    line: int
    code: str
    shown: str | None
    start: int
    end: int


def cells(path: Path) -> list[Cell]:
    """The Python cells of a page, each with the output that the page shows for it."""
    text = path.read_text()
    found: list[Cell] = []
    for block in FENCE.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        where = f"{path.name}:{line}"
        if block[1] == "python":
            found.append(Cell(line, block[2], None, block.end(), block.end()))
        elif block[1] == "text":
            assert found, f"{where}: output of no cell"
            assert found[-1].shown is None, f"{where}: a second output"
            between = text[found[-1].start : block.start()].strip()
            assert not between, f"{where}: words between a cell and its output"
            found[-1].shown, found[-1].end = block[2].rstrip(), block.end()
        else:
            assert block[1] in {"", "sh"}, f"{where}: {block[1]!r} is not executed"
    return found


def execute(cell: Cell, names: dict[str, Any], path: Path) -> str:
    """Run a cell in `names`; what a notebook would show below it."""
    tree = ast.parse("\n" * cell.line + cell.code, str(path))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
        warnings.filterwarnings("always", module=r"llmframe|test_docs|__main__")
        for category in (llmframe.RowsFailedWarning, llmframe.RowsSkippedWarning):
            warnings.filterwarnings("always", category=category)
        # Not with this file's own `from __future__ import annotations`.
        exec(compile(tree, str(path), "exec", dont_inherit=True), names)
        if last is not None:
            shown = ast.Expression(last.value)
            value = eval(compile(shown, str(path), "eval", dont_inherit=True), names)
            if value is not None:
                print(repr(value))
        for warning in caught:
            print(f"{warning.category.__name__}: {warning.message}")
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def run(path: Path) -> Iterator[tuple[Cell, str]]:
    """Run a page from its top: each cell, and what it shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with pd.option_context("display.width", 100, "display.max_columns", 20):
        for cell in cells(path):
            yield cell, execute(cell, names, path)


def write(path: Path) -> None:
    """Put into a page what its cells show now."""
    text = path.read_text()
    parts, end = [], 0
    for cell, shown in run(path):
        parts += [text[end : cell.start], f"\n\n```text\n{shown}\n```" if shown else ""]
        end = cell.end
    path.write_text("".join([*parts, text[end:]]))


def test_pages_are_there() -> None:
    assert {
        "quickstart.md",
        "how-it-works.md",
        "when-rows-fail.md",
        "batches.md",
        "comparing-runs.md",
        "own-gpu.md",
        "schemas.md",
        "judging-statistics.md",
        "judging-verbs.md",
    } <= {p.name for p in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cells(path), "a page of the documentation shows the library at work"
    for cell, shown in run(path):
        if SHOWS_AS_WRITTEN:
            assert shown == (cell.shown or ""), f"{path.name}:{cell.line}"


@pytest.mark.local_model
def test_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A key and a network are what the tests do not have; the labels are the embedded model's own.
    monkeypatch.setattr(llmframe, "OpenAI", _stand_in, raising=False)
    monkeypatch.chdir(tmp_path)
    for cell, shown in run(README):
        if SHOWS_AS_WRITTEN:
            assert _masked(shown) == _masked(cell.shown or ""), f"README.md:{cell.line}"


def _stand_in(*args: Any, **keywords: Any) -> llmframe.testing.FakeEngine:
    return llmframe.testing.FakeEngine()


def _masked(shown: str) -> str:
    """Without the digits of probabilities, which differ a little between processors."""
    return re.sub(r"0\.\d+", "0.#", shown)


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(llmframe.__path__, "llmframe.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", ["llmframe", *MODULES])
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    failed = io.StringIO()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=failed.write)
    assert not failed.getvalue(), failed.getvalue()


@pytest.mark.parametrize("path", [README, *PAGES], ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


if __name__ == "__main__":
    models = llmframe.options.home() / "models"
    for page in [README, *PAGES]:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            (Path(folder) / "models").symlink_to(models)
            patch.setenv("LLMFRAME_HOME", folder)
            patch.setenv("LLMFRAME_PROGRESS", "0")
            if page == README:
                patch.setattr(llmframe, "OpenAI", _stand_in, raising=False)
            with llmframe.set_options():
                write(page)

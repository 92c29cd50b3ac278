"""A JupyterLab for the tests of this folder that click; skipped, with the reason, without one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.notebook.lab import Lab, Page, chromium


def _missing() -> str | None:
    for package in ("jupyterlab", "playwright", "ipywidgets"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (the extra `browser`)"
    return None if chromium() else "chromium is not installed"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One server for all tests; each writes notebooks of its own."""
    if (reason := _missing()) is not None:
        pytest.skip(reason)
    with Lab(tmp_path_factory.mktemp("lab") / "home") as running:
        yield running


@pytest.fixture(scope="session")
def _browser(lab: Lab) -> Iterator[Any]:
    with lab.browser() as browser:
        yield browser


@pytest.fixture
def notebook(lab: Lab, _browser: Any) -> Iterator[Callable[..., Page]]:
    """``notebook(name, cells)`` opens a notebook with a kernel of its own."""
    pages: list[Page] = []

    def open_(name: str, cells: list[str], *, dark: bool = False) -> Page:
        lab.theme(dark)
        lab.write(name, cells)
        pages.append(lab.open(_browser, name))
        return pages[-1]

    yield open_
    for page in pages:
        page.page.close()
    for kernel in lab.call("GET", "/api/kernels"):
        lab.call("DELETE", f"/api/kernels/{kernel['id']}")

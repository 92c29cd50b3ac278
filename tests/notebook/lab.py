"""A real JupyterLab in a real Chromium, for tests that click."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

WAIT = 180
"""Seconds that anything in the browser may take before it counts as hung."""

ROOT = Path(__file__).resolve().parent.parent.parent

_TOKEN = "tok"
_BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
    # Else a cell that is out of sight may not be drawn, and has no text.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}
# Between a command and its first star beside a cell there may be a while.
_COMMAND = """(name)=>{
    const ended = window.ended = {yes: false};
    window.jupyterapp.commands.execute(name).finally(()=>{ended.yes = true});
}"""
_ENDED = "()=>window.ended.yes"
_IDLE = (
    "()=>window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status==='idle'"
)


def chromium() -> str | None:
    """Its path, where it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Lab:
    """A server, with a folder of notebooks; a context manager.

    Args:
        home: A folder for all that it writes.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.notebooks = home / "notebooks"
        self.journal = home / "journal"

    def __enter__(self) -> Lab:
        for folder in (self.notebooks, self.journal):
            folder.mkdir(parents=True)
        self.journal.chmod(0o700)
        config = self.home / "config" / "labconfig"
        config.mkdir(parents=True)
        (config / "default_setting_overrides.json").write_text(json.dumps(_SETTINGS))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        env = {name: value for name, value in os.environ.items() if "LLMFRAME" not in name}
        env |= {
            "HOME": str(self.home),
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "IPYTHONDIR": str(self.home / "ipython"),
            "LLMFRAME_HOME": str(self.journal),
            "PYTHONPATH": str(ROOT),
            # A kernel's `python` is looked up.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._log = (self.home / "lab.log").open("w")
        self._server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser"),
                *("--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0"),
                *(f"--IdentityProvider.token={_TOKEN}", f"--ServerApp.root_dir={self.notebooks}"),
                "--LabApp.expose_app_in_browser=True",
            ],
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        end = time.monotonic() + WAIT
        while True:
            try:
                self.call("GET", "/api/status")
                return self
            except OSError:
                if time.monotonic() > end or self._server.poll() is not None:
                    self.__exit__()
                    raise RuntimeError((self.home / "lab.log").read_text()[-2000:]) from None
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(WAIT)
        self._log.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the server's REST interface."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {_TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def kernel(self, name: str) -> str:
        """Id of the kernel that a notebook uses."""
        found = [s["kernel"]["id"] for s in self.call("GET", "/api/sessions") if s["path"] == name]
        assert len(found) == 1, found
        return str(found[0])

    def theme(self, dark: bool) -> None:
        """Which theme pages have that are opened from now on."""
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        raw = json.dumps({"theme": name})
        self.call("PUT", "/lab/api/settings/@jupyterlab/apputils-extension:themes", {"raw": raw})

    def write(self, name: str, cells: list[str]) -> None:
        """A notebook of code cells."""
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, self.notebooks / name)

    @contextlib.contextmanager
    def browser(self) -> Iterator[Any]:
        """A Chromium."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium(), headless=True, args=_BROWSER_ARGUMENTS
            )
            yield browser
            browser.close()

    def open(self, browser: Any, name: str) -> Page:
        """A notebook in a tab of its own, its kernel ready."""
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.set_default_timeout(1000 * WAIT)
        page.goto(f"http://127.0.0.1:{self.port}/lab/tree/{name}?token={_TOKEN}&reset")
        return Page(page)


class Page:
    """A notebook in the browser.

    Args:
        page: Playwright's.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.ready()

    def ready(self) -> None:
        """Wait until it is drawn and its kernel idle."""
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self.page.wait_for_function(_IDLE)

    def command(self, name: str) -> None:
        """A command of JupyterLab's; `wait` waits for its end."""
        self.page.evaluate(_COMMAND, name)

    def run(self, wait: bool = True) -> None:
        """Run all cells."""
        self.command("notebook:run-all-cells")
        if wait:
            self.wait()

    def run_next(self, wait: bool = True) -> None:
        """Run the selected cell, and select the next."""
        self.command("notebook:run-cell-and-select-next")
        if wait:
            self.wait()

    def save(self) -> None:
        """Write the notebook's file."""
        self.command("docmanager:save")
        self.page.wait_for_function(_ENDED)

    def wait(self, seconds: float = WAIT) -> None:
        """Until the last command has ended, and no cell runs or waits."""
        self.page.wait_for_function(_ENDED, timeout=seconds * 1000)
        self.page.wait_for_function(
            "()=>![...document.querySelectorAll('.jp-InputPrompt')]"
            ".some(e=>e.innerText.includes('*'))",
            timeout=seconds * 1000,
        )
        self.page.wait_for_function(_IDLE, timeout=seconds * 1000)

    def cell(self, place: int) -> Any:
        """The outputs of a cell."""
        return self.page.locator(".jp-CodeCell").nth(place).locator(".jp-Cell-outputArea")

    def text(self, place: int) -> str:
        """What a cell shows."""
        return "\n".join(self.cell(place).all_inner_texts())

    def see(self, place: int, pattern: str, seconds: float = WAIT) -> str:
        """Wait until a cell shows something; gives the cell's text."""
        end = time.monotonic() + seconds
        while not re.search(pattern, found := self.text(place)):
            assert time.monotonic() < end, f"no {pattern!r} in {found!r}"
            self.page.wait_for_timeout(100)
        return found

    def click(self, place: int, button: str) -> None:
        """A button of a cell's widgets."""
        self.cell(place).get_by_role("button", name=button).click()

    def shot(self, path: Path | str) -> None:
        """A picture of the window."""
        self.page.screenshot(path=str(path))

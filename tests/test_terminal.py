"""What a script shows in a terminal, and in a file: a real pseudo-terminal, real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmframe as lf
from tests.servers.rows import Reply

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

pytest_plugins = ["tests.servers.plugin"]

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import pandas as pd
import llmframe as lf
engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-terminal")
df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})
print("first line")
out = df.llm.map("{t}", model=engine, concurrency=1)
print(out["response"].notna().sum(), "rows, last line")
"""


class Screen:
    """A terminal of so many columns, as far as progress bars use one.

    Attributes:
        lines: What stands in it, without blanks at the ends.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._cells: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self._cells]

    def write(self, text: str) -> None:
        """Draw what a process wrote."""
        for code, char in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|([\s\S])", text):
            if code == "\x1b[A":
                self._row = max(self._row - 1, 0)
            elif code.endswith("K"):
                del self._cells[self._row][self._column :]
            elif code:
                assert code.endswith("m"), f"a code that this terminal does not know: {code!r}"
            elif char == "\r":
                self._column = 0
            elif char == "\n":
                self._down()
            else:
                self._put(char)

    def _put(self, char: str) -> None:
        if self._column == self._columns:
            self._down()
            self._column = 0
        line = self._cells[self._row]
        line.extend(" " * (self._column + 1 - len(line)))
        line[self._column] = char
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._cells):
            self._cells.append([])


def environment(url: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    kept.pop("LLMFRAME_PROGRESS")
    return {**kept, "URL": url, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONUTF8": "1"}


def in_terminal(
    url: str, columns: int, look: Callable[[Screen, subprocess.Popen[bytes]], None]
) -> Screen:
    """Run the script in one; `look` is called whenever something was drawn."""
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (24, columns))
        started = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(url),
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    screen = Screen(columns)
    rest = b""
    with os.fdopen(ours, "rb", buffering=0) as file:
        while True:
            try:
                got = file.read(4096)
            except OSError:  # Linux: the last process that had it open has ended
                break
            if not got:
                break
            rest += got
            text = rest.decode("utf-8", "ignore")
            if text.encode() == rest:  # no character is cut
                rest = b""
                screen.write(text)
                look(screen, started)
    started.wait(120)
    return screen


@pytest.mark.parametrize("columns", [80, 40])
def test_u126_a_terminal_ends_with_one_bar_and_no_traces(serve: Any, columns: int) -> None:
    seen = threading.Event()
    server = serve(lambda row: Reply(row.prompt, until=seen if row.n > 5 else None))
    bars: list[str] = []

    def look(screen: Screen, _: Any) -> None:
        bars[:] = [line for line in screen.lines if "/20" in line or "row/s" in line]
        assert len(bars) <= 1, screen.lines
        if bars and "5/20" in bars[0]:
            seen.set()

    screen = in_terminal(server.url, columns, look)
    assert seen.is_set(), screen.lines
    first, bar, last, end = screen.lines
    assert (first, last, end) == ("first line", "20 rows, last line", "")
    assert re.match(r"j_\w+: 100%\|", bar), bar
    assert "20/20" in bar
    assert len(bar) <= columns
    assert server.count == 20


def test_u119_an_interrupt_leaves_the_bar_where_it_was_and_its_message_below(serve: Any) -> None:
    server = serve(lambda row: row.prompt if row.n <= 8 else Reply(hang=True))
    pressed: list[int] = []

    def look(screen: Screen, started: Any) -> None:
        shown = any("8/20" in line for line in screen.lines)
        if shown and not pressed and lf.jobs()[0].status().ok == 8:
            pressed.append(1)
            started.send_signal(signal.SIGINT)

    screen = in_terminal(server.url, 80, look)
    text = "\n".join(screen.lines)
    (bar,) = [line for line in screen.lines if "/20" in line]
    assert bar.startswith("j_")
    assert "8/20" in bar
    assert screen.lines[screen.lines.index(bar) + 1].startswith("Traceback")
    assert "KeyboardInterrupt: 8 of 20 rows kept" in text
    assert "last line" not in text


def test_u126_a_file_gets_a_handful_of_lines(serve: Any, tmp_path: Path) -> None:
    seen = threading.Event()
    server = serve(lambda row: Reply(row.prompt, until=seen if row.n > 5 else None))
    script = SCRIPT.replace("concurrency=1", "concurrency=1, progress=True")
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, "-c", script], stdout=file, stderr=file, env=environment(server.url)
        )
    end = time.monotonic() + 120
    while " of 20 rows" not in path.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    seen.set()
    assert started.wait(120) == 0
    text = path.read_text()
    told = [line for line in text.splitlines() if " of 20 rows" in line]
    assert "\r" not in text
    assert "\x1b" not in text
    assert 2 <= len(told) <= 5
    assert re.match(r"j_\w+: 20 of 20 rows, 200 tokens", told[-1]), told
    assert {"first line", "20 rows, last line"} == set(text.splitlines()) - set(told)


def test_a_short_call_writes_nothing_of_itself_into_a_file(serve: Any) -> None:
    server = serve()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(server.url),
        check=True,
    )
    assert done.stdout.splitlines() == ["first line", "20 rows, last line"]
    assert done.stderr == ""

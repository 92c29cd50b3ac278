"""What holds for every test: no network, no keys, a home of its own.

A test that needs the embedded model takes the fixture `local_model` (or the marker of that name)
and is skipped, with the reason, where the model or its engine is not installed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmframe import options
from llmframe.errors import StoreError
from llmframe.journal import store

# Read before the environment is cleared: the suite runs the model that the user downloaded.
_USER_HOME = options.home()
_TEST_MODEL = os.environ.get("LLMFRAME_TEST_MODEL")

_FOREIGN = ("LLMFRAME_", "OPENAI_", "AZURE_OPENAI_", "ANTHROPIC_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")

_blocked: list[str] = []
_guarding = False


def _loopback(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host or "localhost")
    if text in {"localhost", "0.0.0.0", "::"}:
        return True
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _guard(event: str, args: tuple[Any, ...]) -> None:
    # An audit hook sees what asyncio, aiohttp and the SDKs do below Python's socket class too.
    if not _guarding or not event.startswith("socket."):
        return
    if event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        host = args[0]
    elif event in {"socket.connect", "socket.sendto"} and args[0].family in {
        socket.AF_INET,
        socket.AF_INET6,
    }:
        host = args[1][0]
    else:
        return
    if not _loopback(host):
        _blocked.append(f"{event} {host!r}")
        raise OSError(f"{event} {host!r}: tests speak to this machine's loopback only.")


sys.addaudithook(_guard)


@pytest.fixture(autouse=True)
def no_network() -> Iterator[None]:
    """Refuse every address but loopback, and fail the test that tried one.

    The refusal alone would not do: an engine turns it into a row's failure, as it should.
    """
    global _guarding
    _blocked.clear()
    _guarding = True
    yield
    _guarding = False
    if _blocked:
        pytest.fail(f"the test left loopback: {', '.join(_blocked)}")


@pytest.fixture(autouse=True)
def home(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A fresh home for the journal (folder mode 0700), no keys, no options, no progress."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name.upper() in _PROXIES:
            monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LLMFRAME_HOME", str(folder))
    monkeypatch.setenv("LLMFRAME_PROGRESS", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(options, "_set", options.Options())
    yield folder
    # One home a test, and a journal is open as long as its process: a thread and five descriptors
    # for each of the thousands of tests otherwise.
    journal = store._opened.get(folder)
    if journal is not None:
        with contextlib.suppress(StoreError):  # the test spoilt its file
            journal.close()


@pytest.fixture(scope="session")
def _embedded() -> Path | str:
    """The model file, or why the embedded model cannot run here."""
    from llmframe import models
    from llmframe.errors import ModelError

    # In a process of its own: the engine sets OpenMP's variables before it imports xllamacpp.
    done = subprocess.run(
        [sys.executable, "-c", "import xllamacpp"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"the extra `local` is not installed or broken: {done.stderr.splitlines()[-1]}"
    try:
        with options.set_options(home=_USER_HOME):
            return models.resolve(_TEST_MODEL or models.DEFAULT)
    except ModelError as error:
        return str(error)


@pytest.fixture
def local_model(home: Path, _embedded: Path | str) -> Path:
    """The embedded model's file, so that ``model="local"`` finds it in this test's home.

    It is the one in the user's home, or the GGUF file that LLMFRAME_TEST_MODEL names.
    """
    if isinstance(_embedded, str):
        pytest.skip(_embedded)
    from llmframe import models

    place = models._home_file()
    place.parent.mkdir(mode=0o700)
    place.symlink_to(_embedded)
    return place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marker `local_model` brings the fixture, and the fixture the marker."""
    for item in items:
        names: list[str] = getattr(item, "fixturenames", [])
        if item.get_closest_marker("local_model") and "local_model" not in names:
            # A list of its own: the cases of one parametrised test share theirs.
            item.fixturenames = [*names, "local_model"]  # type: ignore[attr-defined]
        elif "local_model" in names:
            item.add_marker("local_model")

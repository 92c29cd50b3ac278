"""Servers that others wrote, each in a process of its own, for ``pytest_plugins``.

llmock comes with the extra `test`, and mock-ai-api is taken from the PATH. aimock is an npm
package, and OGX wants an environment of its own (Python 3.12 or later, many dependencies): each is
named by a variable. The tests of one that is missing are skipped with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
# Read before a test's environment is cleared.
_AIMOCK = os.environ.get("LLMFRAME_TEST_AIMOCK")
_OGX = os.environ.get("LLMFRAME_TEST_OGX")

Start = Callable[..., str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed(name: str) -> str:
    """The program `name` of this Python's environment; the test is skipped where it is missing."""
    program = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(program, *words)``: its address once it answers. ``PORT`` stands for its port."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*words: str, seconds: float = 30) -> str:
        port = str(free_port())
        log = tmp_path / f"{Path(words[0]).name}-{port}.log"
        with log.open("wb") as sink:
            command = [word.replace("PORT", port) for word in words]
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                    return url
            except urllib.error.HTTPError:
                return url
            except OSError:
                output = log.read_text("utf-8", "replace")
                assert process.poll() is None, output
                assert time.monotonic() < deadline, output
                time.sleep(0.1)

    yield start
    for process in running:
        process.terminate()
    for process in running:
        process.wait(10)


@pytest.fixture
def llmock(start: Start) -> Start:
    """``llmock(*options)``: the address of a server with these faults, without ``/v1``."""
    program = installed("llmock")

    def run(*options: str) -> str:
        return start(program, "serve", "--port", "PORT", "--log-level", "error", *options)

    return run


@pytest.fixture
def mock_ai_api(start: Start) -> Start:
    """``mock_ai_api()``: the address of its Anthropic side."""
    program = installed("mock-ai-api")

    def run() -> str:
        openai = ("--openai-port", str(free_port()))
        return start(program, *openai, "--anthropic-port", "PORT")

    return run


@pytest.fixture
def aimock(start: Start, tmp_path: Path) -> str:
    # Its npm package brings a program called llmock too, which is not the one above.
    places = [_AIMOCK, _ROOT / "node_modules/@copilotkit/aimock"]
    folder = next((Path(place) for place in places if place and Path(place).exists()), None)
    node = shutil.which("node")
    if folder is None or node is None:
        pytest.skip(
            "@copilotkit/aimock is not installed: npm i @copilotkit/aimock in the checkout, or set "
            "LLMFRAME_TEST_AIMOCK to its folder; it needs node"
        )
    program = folder / json.loads((folder / "package.json").read_text())["bin"]["llmock"]
    fixtures = tmp_path / "fixtures.json"
    answer = {"fixtures": [{"match": {}, "response": {"content": "canned"}}]}
    fixtures.write_text(json.dumps(answer))
    return start(node, str(program), "-p", "PORT", "-f", str(fixtures), "--log-level", "silent")


@pytest.fixture
def ogx(start: Start, llmock: Start, tmp_path: Path) -> str:
    """OGX, which really runs each line of a batch, on llmock."""
    if _OGX is None:
        pytest.skip(
            "OGX is not there: pip install ogx==1.5.0 into an environment of its own (Python 3.12 "
            "or later), and set LLMFRAME_TEST_OGX to its program"
        )
    upstream = llmock()
    sql = {"backend": "sql"}
    # JSON is YAML too.
    config = {
        "version": 2,
        "distro_name": "batches",
        "apis": ["batches", "files", "inference", "messages"],
        "providers": {
            "inference": [
                {
                    "provider_id": "peer",
                    "provider_type": "remote::openai",
                    "config": {"api_key": "sk-fake", "base_url": f"{upstream}/v1"},
                }
            ],
            "files": [
                {
                    "provider_id": "local",
                    "provider_type": "inline::localfs",
                    "config": {
                        "storage_dir": str(tmp_path / "ogx-files"),
                        "metadata_store": {"table_name": "files_metadata", **sql},
                    },
                }
            ],
            "messages": [
                {
                    "provider_id": "builtin",
                    "provider_type": "inline::builtin",
                    "config": {"kvstore": {"namespace": "message_batches", "backend": "kv"}},
                }
            ],
            "batches": [
                {
                    "provider_id": "reference",
                    "provider_type": "inline::reference",
                    "config": {"sqlstore": {"table_name": "batches", **sql}},
                }
            ],
        },
        "storage": {
            "backends": {
                "kv": {"type": "kv_sqlite", "db_path": str(tmp_path / "ogx-kv.db")},
                "sql": {"type": "sql_sqlite", "db_path": str(tmp_path / "ogx-sql.db")},
            },
            "stores": {
                "metadata": {"namespace": "registry", "backend": "kv"},
                **{
                    store: {"table_name": store, **sql}
                    for store in ("inference", "conversations", "prompts", "connectors")
                },
            },
        },
        "server": {"host": "127.0.0.1"},
    }
    place = tmp_path / "ogx.yaml"
    place.write_text(json.dumps(config))
    return start(_OGX, "run", str(place), "--port", "PORT", "--insecure", seconds=90)

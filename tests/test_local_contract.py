"""The embedded engine under the contract of every engine, with a model that echoes.

What is tried here is the engine's own: threads, hand-over, limits, ends. The real model would
make an hour of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

from llmframe.engines import local_server
from llmframe.engines.base import Engine
from llmframe.engines.local import Local
from llmframe.results import Usage
from tests.contract.kit import Case
from tests.contract.test_engines import *  # noqa: F403 - the tests themselves


class Echo:
    """A loaded model that writes the prompt, `latency` seconds later."""

    window = 10_000

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.scoring = threading.Lock()

    def prompt(self, messages, template, lead=""):
        return [ord(letter) for letter in messages[-1]["content"]]

    def complete(self, body, stop):
        end = time.monotonic() + self.latency
        while time.monotonic() < end:
            if stop():
                raise local_server.Cancelled
            time.sleep(0.002)
        text = "".join(map(chr, body["prompt"]))
        return local_server.Completion(text, "stop", Usage(len(text), len(text)), {})


@contextmanager
def echoing(latency: float) -> Iterator[Engine]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "echo.gguf"
        path.write_bytes(b"GGUF")
        echo = Echo(latency)
        with (
            mock.patch.object(local_server, "require"),
            mock.patch.object(local_server, "get", return_value=echo),
        ):
            yield Local(path)


@pytest.fixture
def case() -> Case:
    return Case("local", echoing)

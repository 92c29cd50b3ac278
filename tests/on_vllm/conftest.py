"""Real vLLM: skipped, with the reason, where it cannot be imported.

The engines are loaded once for the whole run, each in a child process as it would be for a user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmframe.engines import vllm_loading
from llmframe.engines.vllm import VLLM
from llmframe.errors import ModelError
from tests.on_vllm import weights

HERE = Path(__file__).parent
# Where the CPU build runs: memory for its cache, and no look at the network for an address.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
# Read before a test clears the environment: the models are made from this file.
SETTINGS = {
    name: os.environ[name]
    for name in ("LLMFRAME_TEST_CACHE", "LLMFRAME_TEST_MODEL")
    if name in os.environ
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("vllm")
            # torch and transformers announce what they will change; nothing to act on here.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    try:
        vllm_loading.require()
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def folders(library: None) -> dict[str, Path]:
    """Where the two models are."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        return {"smollm2": weights.smollm2(), "tiny": weights.tiny()}


@pytest.fixture(scope="session")
def smollm2(folders: dict[str, Path]) -> Iterator[VLLM]:
    with VLLM(
        folders["smollm2"], max_num_seqs=64, max_model_len=1024, enforce_eager=True
    ) as engine:
        yield engine.load()


@pytest.fixture(scope="session")
def tiny(folders: dict[str, Path]) -> Iterator[VLLM]:
    with VLLM(folders["tiny"], max_num_seqs=32, max_model_len=512, enforce_eager=True) as engine:
        yield engine.load()

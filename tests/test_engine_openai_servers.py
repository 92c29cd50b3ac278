"""The OpenAI engine against servers of others: llmock, and llama.cpp's with a real model."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmframe.engines.openai import OpenAI
from llmframe.requests import Request, Sampling
from tests.servers.feeding import ask, drive, requests

pytest_plugins = ["tests.servers.peers"]

SCHEMA = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "enum": ["billing", "bug"]},
        "urgent": {"type": "boolean"},
        "count": {"type": "integer"},
    },
    "required": ["topic", "urgent", "count"],
    "additionalProperties": False,
}


def rows(count: int, **fields: object) -> list[Request]:
    return requests([f"Ticket {n}: I was charged twice." for n in range(count)], **fields)


def test_llmock_answers_under_a_schema(llmock: Callable[..., str]) -> None:
    # Its workers may hang up on a busy machine; a run sends such a row again.
    engine = OpenAI("gpt-4o", base_url=llmock() + "/v1")
    results = drive(engine, rows(100, schema=SCHEMA), tries=3)
    assert len(results) == 100
    for result in results.values():
        assert result.failure is None
        assert result.usage is not None
        assert set(json.loads(result.text or "")) == set(SCHEMA["properties"])


@pytest.mark.slow
def test_llmock_with_faults(llmock: Callable[..., str]) -> None:
    faults = [f"--error-rate={status}" for status in ("429=0.05", "503=0.1", "500=0.05")]
    engine = OpenAI("gpt-4o", base_url=llmock(*faults) + "/v1")
    results = drive(engine, rows(80), limit=8, tries=10)
    assert len(results) == 80
    assert all(result.failure is None for result in results.values())


def test_llmock_with_a_small_context(llmock: Callable[..., str]) -> None:
    engine = OpenAI("gpt-4o", base_url=llmock("--context-window=50") + "/v1")
    failure = ask(engine, "word " * 400).failure
    assert failure is not None
    assert failure.kind == "prompt_too_long"
    assert "50" in failure.message
    assert ask(engine, "short").failure is None


@pytest.fixture
def llama(local_model: Path) -> Iterator[str]:
    """llama.cpp's own HTTP server with the embedded model, in a process of its own."""
    script = """
    import sys, xllamacpp
    p = xllamacpp.CommonParams()
    p.n_parallel, p.n_ctx, p.verbosity = 4, 4096, -1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.model.path = sys.argv[1]
    p.hostnames, p.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    """
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(local_model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    if not address:
        pytest.skip("llama.cpp's server does not start here")
    yield f"{address}/v1"
    server.kill()
    server.communicate()


@pytest.mark.slow
def test_llama_answers_under_a_schema(llama: str) -> None:
    items = rows(6, schema=SCHEMA, sampling=Sampling(max_tokens=60))
    results = drive(OpenAI("smol", base_url=llama), items, limit=4)
    for result in results.values():
        assert result.failure is None or result.failure.kind == "truncated"
    good = [result for result in results.values() if result.failure is None]
    assert good
    for result in good:
        value = json.loads(result.text or "")
        assert value["topic"] in {"billing", "bug"}
        assert isinstance(value["urgent"], bool)


@pytest.mark.slow
def test_llama_scores_labels(llama: str) -> None:
    """Its probabilities are those of its own sampling: each label's is one, their sum at most 1."""
    engine = OpenAI("smol", base_url=llama)
    result = ask(
        engine,
        "Is this about billing or a bug? 'I was charged twice.' Answer with one word.",
        choices=("billing", "bug"),
        schema={
            "type": "object",
            "properties": {"label": {"type": "string", "enum": ["billing", "bug"]}},
            "required": ["label"],
            "additionalProperties": False,
        },
        sampling=Sampling(max_tokens=40),
    )
    assert result.failure is None
    assert result.choice_logprobs is not None
    assert sum(map(math.exp, result.choice_logprobs)) <= 1 + 1e-6


@pytest.mark.slow
def test_llama_with_a_prompt_beyond_its_window(llama: str) -> None:
    failure = ask(OpenAI("smol", base_url=llama), "word " * 6000).failure
    assert failure is not None
    assert failure.kind == "prompt_too_long"

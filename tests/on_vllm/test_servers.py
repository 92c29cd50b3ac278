"""vLLM outside of this process: its server under two protocols, and its batch runner."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from pydantic import BaseModel

import llmframe as lf

ARGUMENTS = [
    *("--served-model-name", "tiny", "--max-model-len", "512", "--enforce-eager"),
    # As `lf.VLLM` does: a weak model else writes blanks between two tokens for ever.
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
]


class Answer(BaseModel):
    colour: Literal["red", "green", "blue"]
    sure: bool


def frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"text": [f"row {i}" for i in range(rows)]})


def run(module: str, folder: Path, *arguments: str) -> list[str]:
    # The command `vllm` itself looks for a distribution of that name, which the CPU build is not.
    command = [sys.executable, "-m", f"vllm.entrypoints.openai.{module}", *arguments]
    return [*command, "--model", str(folder), *ARGUMENTS]


def environment() -> dict[str, str]:
    return {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``vllm serve`` on the tiny model; gives its root."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    log = tmp_path_factory.mktemp("server") / "log"
    command = run(
        "api_server",
        folders["tiny"],
        *("--host", "127.0.0.1", "--port", port, "--enable-prompt-tokens-details"),
    )
    root = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment(), stdout=file, stderr=file)
        try:
            until = time.monotonic() + 180
            while not _healthy(root):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.5)
            yield root
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _healthy(root: str) -> bool:
    try:
        with urllib.request.urlopen(f"{root}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_server_under_openais_protocol(server):
    df = frame(40)
    df.loc[7, "text"] = "long " * 2000
    engine = lf.OpenAI("tiny", base_url=f"{server}/v1", api_key="none")
    out = df.llm.map("Which? {text}", Answer, model=engine, errors="coerce")
    assert out["colour"].notna().sum() == 39
    assert out["sure"].dtype == "boolean"
    failures = out.llm.failures()
    assert failures.index.tolist() == [7]
    assert failures["kind"].tolist() == ["prompt_too_long"]
    again = df.drop(index=7).llm.map("Which? {text}", Answer, model=engine)
    assert (again.llm.status() == "cached").all()


def test_a_server_under_anthropics_protocol(server):
    engine = lf.Anthropic("tiny", base_url=server, api_key="none")
    out = frame(20).llm.map("Which? {text}", Answer, model=engine)
    assert out["colour"].isin(["red", "green", "blue"]).all()


def test_the_batch_runner_both_ways(folders, tmp_path):
    df = frame(30)
    df.loc[4, "text"] = "long " * 2000
    engine = lf.OpenAI("tiny", base_url="http://127.0.0.1:9/v1", api_key="none")
    lines, results = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    df.llm.to_jsonl(lines, "Which? {text}", Answer, model=engine)
    command = run("run_batch", folders["tiny"], "-i", str(lines), "-o", str(results))
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shuffled = df.sample(frac=1.0, random_state=0)
    out = shuffled.llm.from_jsonl(results, errors="coerce")
    assert out["colour"].notna().sum() == 29
    assert out["colour"].isna()[4]
    assert out.llm.failures()["kind"].tolist() == ["prompt_too_long"]

"""A cell in a process of its own, to be killed, interrupted or raced by the tests.

Reads one JSON argument and prints one JSON line when it is done:
``{"url", "rows", "concurrency", "verb"?, "engine"?, "start_at"?}``.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import pandas as pd

import llmframe as lf


def frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(rows)]})


def engine_of(task: dict[str, Any]) -> Any:
    if task.get("engine") == "local":
        return lf.Local(task["gguf"])
    return lf.OpenAI("test-model", base_url=task["url"], api_key="sk-child")


def main() -> None:
    # A parent that runs in the background may have handed down an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    task = json.loads(sys.argv[1])
    df, engine = frame(task["rows"]), engine_of(task)
    call: dict[str, Any] = {"model": engine, "progress": False}
    if "concurrency" in task:
        call["concurrency"] = task["concurrency"]
    if "max_tokens" in task:
        call["max_tokens"] = task["max_tokens"]
    if task.get("follow"):
        follow(df, call)
        return
    if "start_at" in task:
        time.sleep(max(0.0, task["start_at"] - time.time()))
    try:
        out = df.llm.map("{t}", **call)
    except KeyboardInterrupt as interrupt:
        say(interrupted=time.time(), message=str(interrupt))
        return
    say(responses=out["response"].tolist(), status=[str(s) for s in out.llm.status()])


def follow(df: pd.DataFrame, call: dict[str, Any]) -> None:
    """Say how far the job is until it is done, so that the test can kill at half."""
    # A yes or no: the embedded model answers that under a grammar in a moment.
    call["schema"] = bool
    plan = df.llm.plan.map("{t}", **{k: v for k, v in call.items() if k != "progress"})
    say(cached=plan.cached, requests=plan.requests)
    job = df.llm.submit.map("{t}", **call)
    while True:
        status = job.status()
        say(ok=status.ok + status.cached)
        if status.state not in ("running", "queued"):
            break
        time.sleep(0.05)
    out = job.wait().join(df)
    say(responses=[str(r) for r in out["response"]], status=[str(s) for s in out.llm.status()])


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()

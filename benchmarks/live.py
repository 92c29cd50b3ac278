"""llmframe against the wire: the whole call, a bare aiohttp client, and the SDK with a semaphore.

On llmframe's side everything is included: rendering, keys, the journal on disk, the request, the
check against the schema, the join. All three ask the same server, in turn, in one run.

    python benchmarks/live.py --rows 20000                             # static: answers at once
    python benchmarks/live.py --rows 3000 --slots 64                   # service times, mean 200 ms
    python benchmarks/live.py --rows 3000 --slots 64 --errors 3        # percent of prompts
    python benchmarks/live.py --rows 3000 --slots 64 --repairs 5

Printed: medians over the rounds, and medians of the ratios within each round. CPU is this
process's own; the server runs in another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
from clients import Measured, by_hand, floor, measure, prompts
from pydantic import BaseModel

import llmframe as lf


class Ticket(BaseModel):
    """The three fields that the server answers."""

    topic: Literal["billing", "bug", "feature"]
    urgent: bool
    summary: str


def through_llmframe(url: str, texts: Sequence[str], concurrency: int) -> None:
    """One call of `df.llm.map`, with an empty journal."""
    df = pd.DataFrame({"text": texts})
    engine = lf.OpenAI("bench", base_url=url, api_key="none")
    with tempfile.TemporaryDirectory() as home, lf.set_options(home=home, progress=False):
        out = df.llm.map(
            "{text}",
            Ticket,
            system="Read the ticket. Answer in JSON.",
            model=engine,
            concurrency=concurrency,
        )
    engine.close()
    assert out["summary"].notna().all(), "a row has no answer"


@contextlib.contextmanager
def server(given: argparse.Namespace) -> Iterator[str]:
    """`benchmarks/server.py` in a process of its own; gives its base_url."""
    options = [f"--{name}={getattr(given, name)}" for name in ("slots", "errors", "repairs")]
    command = [sys.executable, str(Path(__file__).with_name("server.py")), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--slots", type=int, default=0, help="0: the server answers at once")
    parser.add_argument("--errors", type=float, default=0.0, help="percent of prompts")
    parser.add_argument("--repairs", type=float, default=0.0, help="percent of prompts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-sdk", action="store_true", help="leave the SDK's loop out")
    given = parser.parse_args()
    texts = prompts(given.rows)
    clients: dict[str, Callable[[str], object]] = {
        "floor": lambda url: asyncio.run(floor(url, texts, given.concurrency)),
        "llmframe": lambda url: through_llmframe(url, texts, given.concurrency),
    }
    if not given.without_sdk:
        clients["AsyncOpenAI"] = lambda url: asyncio.run(by_hand(url, texts, given.concurrency))
    with server(given) as url, tempfile.TemporaryDirectory() as home:
        with lf.set_options(home=home, progress=False):  # load what is loaded once
            lf.OpenAI("bench", base_url=url, api_key="none").close()
        rounds: list[dict[str, Measured]] = []
        for _ in range(given.rounds):
            rounds.append({})
            for name, client in clients.items():
                rounds[-1][name] = measure(
                    name, lambda run=client: run(url), url, given.rows, given.slots
                )
    print(f"{given.rows:,} rows, {given.concurrency} in flight, {given.rounds} rounds")
    print(f"{'client':<12} {'rows/s':>8} {'CPU us/row':>11} {'wall/floor':>11} {'CPU/SDK':>8}")
    for name in clients:
        mine = [measured[name] for measured in rounds]
        rate = statistics.median(one.rows_per_second for one in mine)
        cpu = statistics.median(one.cpu for one in mine)
        wall = statistics.median(m[name].wall / m["floor"].wall for m in rounds)
        line = f"{name:<12} {rate:>8,.0f} {cpu:>11,.0f} {wall:>11.3f}"
        if not given.without_sdk:
            of_sdk = statistics.median(m[name].cpu / m["AsyncOpenAI"].cpu for m in rounds)
            line += f" {of_sdk:>8.2f}"
        print(line)


if __name__ == "__main__":
    main()

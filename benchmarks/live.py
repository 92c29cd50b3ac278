"""llmframe against the wire: the whole call, a bare aiohttp client, and the SDK with a semaphore.

Everything is included on llmframe's side: rendering, keys, the journal on disk, the request, the
check against a schema, the join. All three run against the same server, in turn, in one run.

    python benchmarks/live.py static --rows 20000 --concurrency 64
    python benchmarks/live.py slots  --rows 3000 --slots 64 [--errors 0.03] [--repairs 0.05]

Printed: medians over the rounds, and ratios within each round. CPU is this process's own
(``time.process_time``), the server's is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from clients import floor, sdk_loop
from server import running

import llmframe as lf


def through_llmframe(url: str, prompts: list[str], concurrency: int) -> float:
    """Rows per second are taken from outside; returns the share of rows with an answer."""
    df = pd.DataFrame({"text": prompts})
    engine = lf.OpenAI("bench", base_url=url, api_key="none", concurrency=concurrency)
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o700)
        with lf.set_options(home=home, progress=False):
            out = df.llm.map("{text}", {"label": str, "score": int}, model=engine)
    engine.close()
    return float(out["label"].notna().mean())


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["static", "slots"])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--errors", type=float, default=0.0)
    parser.add_argument("--repairs", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    prompts = [f"row {i}: the quick brown fox" for i in range(given.rows)]
    clients: dict[str, Callable[[str], object]] = {
        "floor": lambda url: floor(url, prompts, given.concurrency),
        "llmframe": lambda url: through_llmframe(url, prompts, given.concurrency),
        "AsyncOpenAI": lambda url: sdk_loop(url, prompts, given.concurrency),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    slots = given.slots if given.kind == "slots" else None
    for _ in range(given.rounds):
        for name, client in clients.items():
            with running(slots=slots, errors=given.errors, repairs=given.repairs) as url:
                figures[name].append(timed(lambda c=client, u=url: c(u)))
    print(
        f"{given.kind}, {given.rows:,} rows, {given.concurrency} in flight, {given.rounds} rounds"
    )
    print(f"{'client':<12} {'rows/s':>8} {'CPU us/row':>11} {'wall/floor':>11} {'CPU/SDK':>8}")
    for name, rounds in figures.items():
        wall = statistics.median(w for w, _ in rounds)
        cpu = statistics.median(c for _, c in rounds)
        of_floor = statistics.median(
            w / f for (w, _), (f, _) in zip(rounds, figures["floor"], strict=True)
        )
        of_sdk = statistics.median(
            c / s for (_, c), (_, s) in zip(rounds, figures["AsyncOpenAI"], strict=True)
        )
        print(
            f"{name:<12} {given.rows / wall:>8,.0f} {cpu / given.rows * 1e6:>11.0f} "
            f"{of_floor:>11.3f} {of_sdk:>8.2f}"
        )


if __name__ == "__main__":
    main()

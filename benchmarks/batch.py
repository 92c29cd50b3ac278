"""A frame through OpenAI batches and back, beside the bare loop that people write.

On llmframe's side everything is included: rendering, keys, the journal on disk, packing, upload,
download, the check against the schema, the join. The bare loop writes the lines, uploads, polls,
reads and joins by id; it keeps no journal and checks nothing. Both ask the emulator of the tests,
which runs in a process of its own, in turn, each in a fresh process.

    python benchmarks/batch.py --rows 100000

Printed: client CPU in µs a row, wall seconds, and the growth of the peak memory from where the
frame stands to the end, for a quarter of the rows and for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import pandas as pd
from clients import body, prompts
from pydantic import BaseModel

import llmframe as lf

ROOT = Path(__file__).resolve().parents[1]
ANSWER = '{"topic":"billing","urgent":true,"summary":"Charged twice for one order."}'
MOST = 50_000


class Ticket(BaseModel):
    """The three fields that the server answers."""

    topic: Literal["billing", "bug", "feature"]
    urgent: bool
    summary: str


def through_llmframe(url: str, df: pd.DataFrame) -> pd.DataFrame:
    """One call of `df.llm.map`, with an empty journal."""
    engine = lf.OpenAI("bench", base_url=url, api_key="none", batch=True)
    with (
        tempfile.TemporaryDirectory() as home,
        lf.set_options(home=home, progress=False, poll_interval=0.5),
    ):
        out = df.llm.map("{text}", Ticket, system="Read the ticket. Answer in JSON.", model=engine)
    engine.close()
    return out


def bare(url: str, df: pd.DataFrame) -> pd.DataFrame:
    """The loop that people write."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")
    texts = df["text"].tolist()
    batches = []
    for start in range(0, len(texts), MOST):
        with tempfile.TemporaryFile("w+b") as file:
            for row, text in enumerate(texts[start : start + MOST], start):
                line = {
                    "custom_id": str(row),
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": body(text),
                }
                file.write(json.dumps(line).encode() + b"\n")
            file.seek(0)
            batches.append(_batch(client, file))
    answers: list[Any] = [None] * len(texts)
    for name in batches:
        while (batch := client.batches.retrieve(name)).status != "completed":
            time.sleep(0.5)
        assert batch.output_file_id
        with tempfile.TemporaryFile() as copy:
            with client.files.with_streaming_response.content(batch.output_file_id) as response:
                for chunk in response.iter_bytes(1 << 16):
                    copy.write(chunk)
            copy.seek(0)
            for data in copy:
                read = json.loads(data)
                content = read["response"]["body"]["choices"][0]["message"]["content"]
                answers[int(read["custom_id"])] = json.loads(content)
    return df.join(pd.DataFrame(answers, index=df.index))


def _batch(client: Any, file: IO[bytes]) -> str:
    uploaded = client.files.create(file=("in.jsonl", file), purpose="batch")
    endpoint = "/v1/chat/completions"
    made = client.batches.create(
        input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h"
    )
    return str(made.id)


CLIENTS: dict[str, Callable[[str, pd.DataFrame], pd.DataFrame]] = {
    "llmframe": through_llmframe,
    "bare": bare,
}


def _peak() -> float:
    """Megabytes; the system tells kilobytes, macOS bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def run_one(given: argparse.Namespace) -> None:
    """Measure one client in this process, and print it as JSON."""
    CLIENTS[given.client](given.url, pd.DataFrame({"text": prompts(3)}))  # imports, first calls
    df = pd.DataFrame({"text": prompts(given.rows)})
    before, cpu, wall = _peak(), time.process_time(), time.perf_counter()
    out = CLIENTS[given.client](given.url, df)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert out["summary"].notna().all(), "a row has no answer"
    print(json.dumps({"cpu": cpu / given.rows * 1e6, "wall": wall, "peak": _peak() - before}))


def serve() -> None:
    """The emulator, answering every row alike, until its input ends."""
    sys.path.insert(0, str(ROOT))
    from tests.servers.openai_batches import BatchServer, Plan

    with BatchServer(answer=lambda body: ANSWER) as server:
        server.plan = Plan(words=["in_progress"])
        print(server.url, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The emulator in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate("")


def measured(client: str, rows: int) -> dict[str, float]:
    """One client in a fresh process against a fresh emulator."""
    with server() as url:
        command = [sys.executable, __file__, "--client", client, "--url", url]
        done = subprocess.run(
            [*command, "--rows", str(rows)], stdout=subprocess.PIPE, text=True, check=True
        )
    read: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--client", choices=sorted(CLIENTS))
    parser.add_argument("--url")
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    if given.serve:
        serve()
    elif given.client:
        run_one(given)
    else:
        print(f"{'client':>10} {'rows':>9} {'CPU µs/row':>11} {'wall s':>8} {'peak + MB':>10}")
        for rows in (given.rows // 4, given.rows):
            for client in sorted(CLIENTS):
                row = measured(client, rows)
                print(
                    f"{client:>10} {rows:>9,} {row['cpu']:>11.1f} {row['wall']:>8.1f}"
                    f" {row['peak']:>10.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""A frame through OpenAI batches and back, beside the bare loop that people write.

On llmframe's side everything is included: rendering, keys, the journal on disk, packing, upload,
download, the check against the schema, the join. The bare loop writes the lines, uploads, polls,
reads and joins by id; it keeps no journal and checks nothing. Both ask the emulator of the tests,
which runs in a process of its own, in turn, each in a fresh process.

    python benchmarks/batch.py --rows 100000

Printed: client CPU in µs a row, wall seconds, and the growth of the peak memory from where the
frame stands to the end, for a quarter, half and all of the rows.

With ``--faults`` llmframe alone runs, through OpenAI's and Anthropic's emulators, on a day on which
3 % of the requests fail and may pass later, 1 % get no line, 1 % an invalid reply, 2 % two lines.
Printed too: what became of the rows, and how often each round's failures were sent again.

    python benchmarks/batch.py --rows 120000 --faults
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal

import pandas as pd
from clients import body, prompts
from pydantic import BaseModel

import llmframe as lf

ROOT = Path(__file__).resolve().parents[1]
ANSWER = '{"topic":"billing","urgent":true,"summary":"Charged twice for one order."}'
MOST = 50_000
KEY = "sk-ant-loopback-test"  # the emulator of Anthropic knows no other
sys.path.insert(0, str(ROOT))  # for the emulators of the tests


class Ticket(BaseModel):
    """The three fields that the server answers."""

    topic: Literal["billing", "bug", "feature"]
    urgent: bool
    summary: str


def through_llmframe(url: str, df: pd.DataFrame, provider: Any = lf.OpenAI) -> pd.DataFrame:
    """One call of `df.llm.map`, with an empty journal."""
    engine = provider("bench", base_url=url, api_key=KEY, batch=True)
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
    "openai": through_llmframe,
    "anthropic": lambda url, df: through_llmframe(url, df, lf.Anthropic),
}
"""The last two ask on a bad day."""


def _peak() -> float:
    """Megabytes; the system tells kilobytes, macOS bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def run_one(given: argparse.Namespace) -> None:
    """Measure one client in this process, and print it as JSON."""
    warnings.simplefilter("ignore")
    if not given.faults:
        CLIENTS[given.client](given.url, pd.DataFrame({"text": prompts(3)}))  # imports, first calls
    df = pd.DataFrame({"text": prompts(given.rows)})
    before, cpu, wall = _peak(), time.process_time(), time.perf_counter()
    out = CLIENTS[given.client](given.url, df)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    told = {"cpu": cpu / given.rows * 1e6, "wall": wall, "peak": _peak() - before}
    if given.faults:
        told |= rows_of(out)
    else:
        assert out["summary"].notna().all(), "a row has no answer"
    print(json.dumps(told))


def rows_of(out: pd.DataFrame) -> dict[str, Any]:
    """How many rows are right, and how the others ended."""
    from tests.servers.faulty import answer

    wanted = pd.DataFrame([answer(row) for row in range(len(out))])
    right = (out[list(wanted)].astype(object) == wanted.astype(object)).all(axis=1)
    failures = out.llm.failures()
    named = pd.Series(False, index=out.index)
    named[failures.index] = True
    return {
        "right": int(right.sum()),
        "failed": failures["kind"].value_counts().to_dict(),
        "wrong": int((~right & ~named).sum()),
    }


def serve(provider: str | None) -> None:
    """The emulator, answering every row alike, or `provider`'s on a bad day, until its input ends.

    The books of that day are printed last.
    """
    from tests.servers import faulty, openai_batches

    day = faulty.Day()
    if provider is None:
        server: Any = openai_batches.BatchServer(answer=lambda body: ANSWER)
        server.plan = openai_batches.Plan(words=["in_progress"])
    else:
        server = {"openai": faulty.openai_day, "anthropic": faulty.anthropic_day}[provider](day)
    with server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(json.dumps(day.books() | {"batches": len(server.batches)}))


def measured(client: str, rows: int, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One client in a fresh process against a fresh emulator: its figures, and the emulator's."""
    command = [sys.executable, __file__, *more, "--client", client]
    emulator = subprocess.Popen(
        [*command, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    books = "{}"
    try:
        assert emulator.stdout is not None
        url = emulator.stdout.readline().strip()
        done = subprocess.run(
            [*command, "--url", url, "--rows", str(rows)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        books, _ = emulator.communicate("")
    return json.loads(done.stdout.splitlines()[-1]), json.loads(books)


def on_a_bad_day(rows: int) -> None:
    """Both providers with faults."""
    for provider in ("openai", "anthropic"):
        told, books = measured(provider, rows, "--faults")
        print(f"{provider}: {rows:,} rows in {books['batches']} batches, {told['wall']:.0f} s")
        print(f"  {told['cpu']:.1f} µs of CPU a row, peak memory + {told['peak']:.1f} MB")
        print(f"  right {told['right']:,}, failed {told['failed']}, neither {told['wrong']}")
        print(f"  what requests got: {books['fates']}; rows paid twice: {books['twice']}")
        resent = [*books["asked"][1:], 0]
        for number, (failed, again) in enumerate(zip(books["failed"], resent, strict=True), 1):
            ratio = f" ({again / failed:.3f})" if failed else ""
            print(f"  round {number}: {failed:,} failed, {again:,} sent again{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--client", choices=sorted(CLIENTS))
    parser.add_argument("--url")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--faults", action="store_true")
    given = parser.parse_args()
    if given.serve:
        serve(given.client if given.faults else None)
    elif given.client:
        run_one(given)
    elif given.faults:
        on_a_bad_day(given.rows)
    else:
        print(f"{'client':>10} {'rows':>9} {'CPU µs/row':>11} {'wall s':>8} {'peak + MB':>10}")
        for rows in (given.rows // 4, given.rows // 2, given.rows):
            for client in ("bare", "llmframe"):
                row, _ = measured(client, rows)
                print(
                    f"{client:>10} {rows:>9,} {row['cpu']:>11.1f} {row['wall']:>8.1f}"
                    f" {row['peak']:>10.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

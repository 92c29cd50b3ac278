"""What stands around the engine: the tuning loop, the example, a guard-free script's own output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pandas as pd

from llmframe.engines import vllm_core

ROOT = Path(__file__).parents[2]


def test_tune_gives_a_curve_and_a_choice(tiny):
    df = pd.DataFrame({"text": [f"row {i}" for i in range(400)]})
    tuning = tiny.tune(df, "Which? {text}", Literal["red", "green"], start=2, stop=32, slice=128)
    rate = tuning.curve["tokens_per_second"]
    assert len(rate) >= 4
    assert tuning.curve.index.tolist() == [2 * 2**i for i in range(len(rate))]
    place = rate.index.get_loc(tuning.best)
    beside = rate.iloc[max(0, place - 1) : place + 2]
    assert rate[tuning.best] >= (1 - tuning.noise) * beside.max()
    assert tuning.curve["kv_cache"].between(0, 1).all()
    assert (tuning.curve["preemptions"] == 0).all()
    assert tuning.engine.max_num_seqs == tuning.best
    core = vllm_core.loaded(tuning.engine._config())
    assert core is vllm_core.loaded(tiny._config()), "one loaded model serves both"
    assert core._children[0].is_alive()
    assert dict(tuning.engine.identity()) == dict(tiny.identity())


def test_the_example_runs(folders, home):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "04_vllm_offline.py"), str(folders["tiny"])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "environment variable" not in done.stderr, done.stderr
    # Nothing of vLLM's own log among what the script prints.
    assert done.stdout.startswith("max_num_seqs="), done.stdout
    assert "60 of 60 rows answered" in done.stdout


def test_figures_say_what_the_engine_does(smollm2):
    df = pd.DataFrame({"text": [f"row {i}" for i in range(64)]})
    job = df.llm.submit.map("Which? {text}", Literal["red", "green"], model=smollm2)
    seen = []
    while job.status().state == "running":
        seen.append(smollm2.figures())
    assert max(now.running or 0 for now in seen) > 8
    assert max(now.kv_cache or 0 for now in seen) > 0
    last = smollm2.figures()
    assert last.rows_per_second > 0
    assert last.tokens_per_second > last.rows_per_second
    assert last.p50 <= last.p95
    assert last.preemptions == 0

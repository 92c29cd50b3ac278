"""A batch over night: plan, submit, close the laptop, come back. Runs without a key or a network.

A fake provider that keeps its batches in a folder stands in for the real one. With a key, write
model="openai/gpt-4.1-mini", batch=True instead of model=provider.
"""

import tempfile
from pathlib import Path

import pandas as pd

import llmframe as lf

tickets = pd.read_csv(Path(__file__).parent / "data" / "tickets.csv", index_col="id")
folder = tempfile.mkdtemp()
provider = lf.testing.FakeBatchEngine(
    lambda text: f"{text.split(': ')[1][:20]} …", directory=folder
)
PROMPT = "Summarise in one sentence: {ticket}"

with lf.set_options(home=folder + "/store", poll_interval=0.1, prices={"fake/fake-1": (0.4, 1.6)}):
    print(tickets.llm.plan.map(PROMPT, model=provider), "\n")

    # Returns at once. The evening ends here: close the notebook, restart the machine.
    job = tickets.llm.submit.map(PROMPT, into="summary", model=provider, budget=1.0)
    print("submitted:", job.id, "\n")

    # The next morning, in any process on this machine. What failed goes into a smaller batch.
    out = lf.job(job.id).wait().join(tickets)
    print(out["summary"].head(3).to_string(), "\n")
    print(job.report())

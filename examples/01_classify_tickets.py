"""Which team should answer? Sixty support tickets, classified by the embedded model on the CPU."""

from pathlib import Path

import pandas as pd

import llmframe  # noqa: F401 - this import gives every frame its `.llm`

TEAMS = ["billing", "bug", "account", "feature request"]

tickets = pd.read_csv(Path(__file__).parent / "data" / "tickets.csv", index_col="id")
out = tickets.llm.classify("ticket", TEAMS, confidence=True, model="local")

print(out[["ticket", "team", "label", "label_confidence"]].head(10).to_string(max_colwidth=48))
right = out["label"].astype("string") == out["team"]
print(f"\n{right.sum()} of {len(out)} labels are the file's own: accuracy {right.mean():.2f}")
for failure in out.llm.failures().itertuples():
    print(f"no label for ticket {failure.Index}: {failure.kind}, {failure.message}")

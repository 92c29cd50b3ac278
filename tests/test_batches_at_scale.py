"""Twelve thousand rows through either provider's batches on a day on which everything goes wrong.

`benchmarks/batch.py --rows 120000 --faults` does the same at the providers' own limits.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

import llmframe as lf
from tests.servers import faulty
from tests.servers.anthropic import KEY

ROWS = 12_000
MAKERS = {
    "openai": (faulty.openai_day, lf.OpenAI, 5000),
    "anthropic": (faulty.anthropic_day, lf.Anthropic, 10_000),
}


class Ticket(BaseModel):
    topic: str
    urgent: bool
    summary: str


@pytest.mark.filterwarnings("ignore::llmframe.errors.RowsFailedWarning")
@pytest.mark.parametrize("provider", MAKERS)
def test_every_row_of_thousands_ends_right_and_is_paid_once(provider: str) -> None:
    emulator, make, most = MAKERS[provider]
    day = faulty.Day()
    df = pd.DataFrame({"t": [f"Ticket {row}: the same error again" for row in range(ROWS)]})
    with emulator(day) as server, lf.set_options(poll_interval=0.05, progress=False):
        engine: Any = make(
            "m", base_url=server.url, api_key=KEY, batch=True, max_batch_requests=most
        )
        out = df.llm.map("{t}", Ticket, model=engine)
        counts = [_count(server, batch) for batch in server.batches.values()]
        engine.close()
    named = out.llm.failures()
    right = pd.DataFrame([faulty.answer(row) for row in range(ROWS)])
    kept = out.index.difference(named.index)
    assert len(named) < 10
    for name in right:
        assert out.loc[kept, name].tolist() == right.loc[kept, name].tolist()
    books = day.books()
    assert books["twice"] == 0
    assert books["asked"][0] == ROWS  # one of them live: the canary
    assert all(
        again <= failed for again, failed in zip(books["asked"][1:], books["failed"], strict=False)
    )
    assert max(counts) <= most < ROWS


def _count(server: Any, batch: Any) -> int:
    return len(batch["rows"]) if isinstance(batch, dict) else len(server.lines(batch.record["id"]))

"""The embedded model on real labelled data, where the checkout has it beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.base import Control, Source
from llmframe.requests import Request
from llmframe.results import Result

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "banking77.csv"

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason=f"{DATA.name} is not beside this checkout"),
]


class Watched:
    """The embedded engine, and every request that it was given."""

    def __init__(self) -> None:
        self._engine = lf.Local()
        self.requests: list[Request] = []
        self.name, self.model = self._engine.name, self._engine.model
        self.limits = self._engine.limits
        self.identity, self.close = self._engine.identity, self._engine.close

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        class Seen:
            @staticmethod
            def take(n: int) -> list[Request] | None:
                taken = source.take(n)
                self.requests += taken or ()
                return taken

            on_ready = staticmethod(source.on_ready)

        yield from self._engine.stream(Seen(), control)


@pytest.fixture(scope="module")
def questions() -> pd.DataFrame:
    """200 questions of five intents, as many of each."""
    data = pd.read_csv(DATA)
    intents = sorted(data["category"].unique())[::16][:5]
    chosen = data[data["category"].isin(intents)]
    return chosen.groupby("category").head(40).sample(frac=1.0, random_state=0)


def test_every_row_has_a_label_and_a_second_run_asks_nothing(
    local_model: Any, questions: pd.DataFrame
) -> None:
    engine = Watched()
    intents = sorted(questions["category"].unique())

    out = questions.llm.classify("text", intents, confidence=True, model=engine)

    assert len(questions) == 200
    assert out["label"].notna().all()
    assert out["label_confidence"].between(0, 1).all()
    assert out.index.equals(questions.index)
    asked = len(engine.requests)
    assert asked >= 200
    # Five intents by chance: 0.2. The figures are the benchmark's; this only holds the sense.
    assert (out["label"].astype(str) == questions["category"]).mean() > 0.4

    again = questions.llm.classify("text", intents, confidence=True, model=engine)

    assert len(engine.requests) == asked
    pd.testing.assert_frame_equal(again, out, check_flags=False)

"""The embedded model before a stronger one, on real labelled data that lie beside the checkout.

`benchmarks/cascade.py` gives the figures of more rows; here is only what has to hold.
"""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.chat import ChatServer, Seen

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason="no labelled data beside this checkout"),
]

HAM_OR_SPAM = {
    "ham": "an ordinary message from a friend or colleague",
    "spam": "unwanted advertising, a prize or a paid service",
}


def parts(rows: pd.DataFrame, shown: int, labelled: int, test: int) -> list[pd.DataFrame]:
    """Examples, labelled rows and test rows: a natural draw, no text in two of them."""
    rows = rows.drop_duplicates("text").sample(frac=1.0, random_state=0)
    examples = rows.groupby("truth").head(shown)
    rest = rows.drop(examples.index).reset_index(drop=True)
    return [
        examples.rename(columns={"truth": "label"}),
        rest.iloc[:labelled],
        rest.iloc[labelled : labelled + test],
    ]


def messages() -> tuple[Any, list[pd.DataFrame]]:
    rows = pd.read_csv(DATA / "sms_spam.tsv", sep="\t", quoting=csv.QUOTE_NONE)
    rows = rows.rename(columns={"SMS": "text", "Label": "truth"})
    return HAM_OR_SPAM, parts(rows, 4, 150, 200)


def questions() -> tuple[Any, list[pd.DataFrame]]:
    rows = pd.read_csv(DATA / "banking77.csv").rename(columns={"category": "truth"})
    intents = sorted(rows["truth"].unique())[::16][:5]
    return intents, parts(rows[rows["truth"].isin(intents)], 2, 85, 100)


@pytest.mark.parametrize("drawn", [messages, questions])
def test_a_fit_on_labelled_rows_makes_the_cascade_worth_its_name(drawn: Any) -> None:
    labels, (examples, labelled, test) = drawn()
    truth = dict(zip(test["text"], test["truth"], strict=True))
    names = list(labels)

    def knows(seen: Seen) -> dict[str, str]:
        text = max((text for text in truth if text in seen.text), key=len)
        right = names.index(truth[text])
        wrong = zlib.crc32(text.encode()) % 50 == 0
        return {"label": names[(right + wrong) % len(names)]}

    call: dict[str, Any] = {"labels": labels, "examples": examples, "confidence": True}
    stated = labelled.llm.classify("text", **call, calibration="none", model="local")
    fitted = lf.calibration(stated, "label", "truth").fit("bias")
    below = fitted.below(0.01)

    before, after = (
        lf.calibration(
            test.llm.classify("text", **call, calibration=how, model="local"), "label", "truth"
        )
        for how in ("none", fitted)
    )
    assert after.ece < before.ece / 2
    assert after.brier < before.brier
    assert after.accuracy > before.accuracy

    with ChatServer(answer=knows) as server:
        strong = lf.OpenAI("strong", base_url=server.url, api_key="none")
        both = test.llm.classify(
            "text",
            **call,
            calibration=fitted,
            model="local",
            escalate_to=strong,
            below=below,
            errors="coerce",
        )
        calls = len(server.seen)
        alone = test.llm.classify("text", labels, examples=examples, model=strong)
        strong.close()
    assert calls == both.llm.report().escalation.rows
    best = (alone["label"] == alone["truth"]).mean()
    assert 0.9 < best < 1
    assert (both["label"] == both["truth"]).mean() >= best - 0.01
    assert calls <= 0.6 * len(test)
    assert json.loads(json.dumps(fitted.fitted.stored()))["slope"] > 0

"""Batches by OGX, an independent server that runs every line of a batch on an upstream model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest

import llmframe as lf

pytest_plugins = ["tests.servers.peers"]
pytestmark = pytest.mark.slow

MODEL = "peer/gpt-4o-mini"


@pytest.fixture(autouse=True)
def often(home: Path) -> None:
    lf.set_options(poll_interval=0.2)


def engine(url: str, kind: str, model: str = MODEL) -> Any:
    if kind == "openai":
        return lf.OpenAI(model, base_url=f"{url}/v1", api_key="sk-fake", batch=True)
    return lf.Anthropic(model, base_url=url, api_key="sk-ant-fake", batch=True)


def test_a_table_through_both_batch_interfaces(ogx: str) -> None:
    df = pd.DataFrame({"t": [f"row {i} \u2028 ü" for i in range(30)]}, index=range(100, 130))

    for kind in ("openai", "anthropic"):
        out = df.llm.map(f"{kind}: {{t}}", model=engine(ogx, kind))

        assert out.index.equals(df.index)
        # The upstream's answers quote or greet at random; the text itself is not ours to choose.
        assert out["response"].str.len().gt(0).all()
        assert not len(out.llm.failures())
        assert out.llm.status().eq("ok").all()


def test_typed_columns(ogx: str) -> None:
    df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})
    schema = {"kind": Literal["bug", "praise"], "count": int}

    out = df.llm.map("Read {t}", model=engine(ogx, "openai"), schema=schema)

    assert out["kind"].isin(["bug", "praise"]).all()
    assert str(out["count"].dtype) == "Int64"


def test_a_model_it_does_not_have_costs_one_row(ogx: str) -> None:
    df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})

    with pytest.raises(lf.EngineError, match="does not exist or is not supported"):
        df.llm.map("Read {t}", model=engine(ogx, "openai", "peer/no-such-model"))

"""A pandera model of eight dtypes and every kind of check, and how real engines are held to it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import llmframe as lf

pa = pytest.importorskip("pandera.pandas")
arrow = pytest.importorskip("pyarrow")

TEXTS = [
    "Great drill, five stars, I bought it twice.",
    "It broke on the second day, very poor.",
    "An average lamp, but it came early.",
    "The chair is fine; the screws were missing.",
]


class Product(pa.DataFrameModel):
    """What a review says of a product."""

    text: str
    level: pd.CategoricalDtype = pa.Field(
        dtype_kwargs={"categories": ["low", "mid", "high"], "ordered": True}, title="Satisfaction"
    )
    stars: pd.Int64Dtype = pa.Field(ge=1, le=5, description="1 is the worst")
    count: pd.UInt8Dtype = pa.Field(notin=[0], nullable=True, description="how many were bought")
    share: pd.Float32Dtype = pa.Field(in_range={"min_value": 0, "max_value": 1})
    again: pd.BooleanDtype
    topic: str = pa.Field(isin=["tool", "light", "seat"])
    code: pd.ArrowDtype = pa.Field(
        dtype_kwargs={"pyarrow_dtype": arrow.string()},
        str_length={"min_value": 1, "max_value": 3},
        str_matches="[A-Z]+$",
        unique=True,
    )
    at: pd.DatetimeTZDtype = pa.Field(dtype_kwargs={"unit": "us", "tz": "Europe/Berlin"})

    @pa.check("share", element_wise=True, error="must not be a third")
    def no_third(cls, value: float) -> bool:  # noqa: N805 - as pandera writes it
        return value != 0.33

    @pa.dataframe_check(error="one star is never high")
    def one_mind(cls, frame: pd.DataFrame) -> pd.Series:  # noqa: N805
        return (frame["stars"] > 1) | (frame["level"] != "high")


def holds(engine: Any, **keywords: Any) -> pd.DataFrame:
    """Ask an engine for the model's columns, twice, and hold the frame to the whole model."""
    df = pd.DataFrame({"text": TEXTS}, index=["a", "a", "b", "c"])
    prompt = "Review: {text}\n\nFill in the fields. code: up to three capital letters."
    out = df.llm.map(prompt, Product, model=engine, errors="coerce", **keywords)
    assert out.drop(columns="text").dtypes.astype(str).to_dict() == {
        "level": "category",
        "stars": "Int64",
        "count": "UInt8",
        "share": "Float32",
        "again": "boolean",
        "topic": str(lf.map(df[:0], "{text}", model=engine)["response"].dtype),
        "code": "string[pyarrow]",
        "at": "datetime64[us, Europe/Berlin]",
    }
    assert isinstance(out["code"].dtype, pd.ArrowDtype)
    assert out["level"].cat.ordered
    status = out.llm.status()
    good = out[(status != "failed").to_numpy()]
    assert good["code"].is_unique
    Product.validate(good)
    failures = out.llm.failures()
    assert set(failures["kind"]) <= {"invalid_output", "truncated"}
    turned = failures[failures["message"].str.contains("has to be unique", regex=False)]
    assert (turned["attempts"] == 2).all()
    again = df.llm.map(prompt, Product, model=engine, errors="coerce", repairs=0, **keywords)
    kept = (again.llm.status() == "cached").to_numpy()
    assert kept.tolist() == status.isin(["ok", "cached"]).tolist()
    return out

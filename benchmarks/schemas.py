"""Validated and joined, against pydantic_core validating the same replies into a list.

Both read the same JSON texts of ten fields. "pydantic_core" is `SchemaValidator.validate_json` in
a loop, its models kept in a list: the least that any checked answer costs. "checked" is what one
reply costs here, up to the values of the cells; "joined" makes the typed columns of the frame too.
Best of three rounds each, which take turns.

    python benchmarks/schemas.py --rows 50000
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, Field

from llmframe.dtypes import dtype_of, make_series
from llmframe.results import Result
from llmframe.schemas.forms import form
from llmframe.schemas.reading import read


class Row(BaseModel):
    """Ten fields of the common kinds."""

    topic: Literal["billing", "bug", "praise", "other"]
    summary: str = Field(max_length=200)
    urgency: int = Field(ge=1, le=5)
    confidence: float = Field(ge=0, le=1)
    refund: bool
    product: str | None
    order: int
    price: float | None
    language: Literal["en", "de", "fr"]
    tags: list[str]


def reply(draw: random.Random) -> str:
    """An answer as a model writes it."""
    return json.dumps(
        {
            "topic": draw.choice(["billing", "bug", "praise", "other"]),
            "summary": "charged twice " * draw.randint(1, 8),
            "urgency": draw.randint(1, 5),
            "confidence": draw.random(),
            "refund": draw.random() < 0.5,
            "product": draw.choice([None, "card", "account"]),
            "order": draw.randint(1, 10**9),
            "price": draw.choice([None, draw.uniform(1, 999)]),
            "language": draw.choice(["en", "de", "fr"]),
            "tags": ["a", "b", "c"][: draw.randint(0, 3)],
        }
    )


def bare(texts: list[str]) -> list[Any]:
    """What is measured against."""
    validate = Row.__pydantic_validator__.validate_json
    return [validate(text, strict=True) for text in texts]


def checked(replies: list[Result]) -> list[tuple[Any, ...]]:
    """Each reply read by the full check."""
    asked = form(Row)
    found = []
    for reply in replies:
        reading = read(asked, reply)
        assert reading.values is not None, reading.failure
        found.append(reading.values)
    return found


def joined(replies: list[Result]) -> pd.DataFrame:
    """The same, as columns of the frame."""
    columns = zip(*checked(replies), strict=True)
    return pd.DataFrame(
        {
            field.name: make_series(field.kind, dtype_of(field), list(values))
            for field, values in zip(form(Row).fields, columns, strict=True)
        }
    )


def main() -> None:
    """Print microseconds a row, and how many times pydantic_core's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    draw = random.Random(0)
    texts = [reply(draw) for _ in range(given.rows)]
    replies = [Result(b"", text, "stop") for text in texts]
    ways: dict[str, tuple[Callable[[list[Any]], Any], list[Any]]] = {
        "pydantic_core": (bare, texts),
        "checked": (checked, replies),
        "joined": (joined, replies),
        "joined, half the rows": (joined, replies[: given.rows // 2]),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(given.rounds):
        for name, (way, part) in ways.items():
            began = time.process_time()
            way(part)
            best[name] = min(best[name], (time.process_time() - began) / len(part))
    for name, seconds in best.items():
        print(f"{name:22} {seconds * 1e6:7.2f} µs a row {seconds / best['pydantic_core']:6.2f} x")


if __name__ == "__main__":
    main()

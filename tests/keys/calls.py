"""Fifty calls whose keys must never change: a changed key asks and pays every stored row again.

Each is planned, never sent. They touch everything that a key is made of, and every place where
pandas or pydantic may render the same thing differently from one release to the next.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Optional, TypedDict

import numpy as np
import pandas as pd
import pydantic

import llmframe as lf

BASE = "https://golden.example/v1"


def engine(model: str = "golden-model", **options: Any) -> Any:
    options.setdefault("base_url", BASE)
    return lf.OpenAI(model, api_key="sk-golden", **options)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Grade(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(pydantic.BaseModel):
    """Where somebody lives."""

    city: str
    zip: str = pydantic.Field(pattern=r"^\d{5}$")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1, max_length=80)
    age: int = pydantic.Field(ge=0, le=130)
    email: Optional[str] = None  # noqa: UP045 - both spellings of an optional are covered
    phone: str | None
    color: Color
    size: Literal["s", "m", "l"]
    addresses: list[Address]
    home: Address
    tags: list[str] = pydantic.Field(max_length=3)
    scores: list[float]


class Tree(pydantic.BaseModel):
    value: int
    children: list[Tree]


class Dates(pydantic.BaseModel):
    on: dt.date
    at: dt.datetime
    zoned: pydantic.AwareDatetime
    maybe: dt.date | None = None


class Numbers(pydantic.BaseModel):
    price: Decimal
    ratio: float = pydantic.Field(gt=0, lt=1)
    one_of: int | Literal["unknown"]
    level: Literal[1, 2, 3]
    grade: Grade


class Described(pydantic.BaseModel):
    """Reads a ticket."""

    reason: str = pydantic.Field(description="Why, in one sentence.")
    urgent: bool = pydantic.Field(default=False, description="Needs an answer today.", title="U")


class Reordered(pydantic.BaseModel):
    """Reads a ticket."""

    urgent: bool = pydantic.Field(default=False, description="Needs an answer today.", title="U")
    reason: str = pydantic.Field(description="Why, in one sentence.")


@dataclass
class Point:
    x: int
    y: float = 0.0


class Typed(TypedDict):
    a: str
    b: list[int]


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "kind": {"enum": ["a", "b"]},
        "maybe": {"type": ["string", "null"]},
        "nested": {"$ref": "#/$defs/nested"},
    },
    "required": ["n", "kind", "maybe", "nested"],
    "$defs": {"nested": {"type": "object", "properties": {"z": {"type": "boolean"}}}},
}

TEXTS = pd.DataFrame(
    {
        "t": ["plain", "Größe: 5 m²", "e\u0301 is not \u00e9", "a\u2028b\nc\td", "{braces} {{x}}"],
        "u": ["one", "two", "three", "four", "five"],
    }
)
NUMBERS = pd.DataFrame(
    {
        "i": np.array([0, -1, 2**53 + 1], dtype="int64"),
        "u": np.array([0, 255, 7], dtype="uint8"),
        "f": np.array([0.1, 1.0, 1e300]),
        "g": np.array([0.1, 1.0, 16777216.0], dtype="float32"),
        "b": [True, False, True],
        "n": pd.array([1, None, 2**62], dtype="Int64"),
        "x": pd.array([1.5, None, 2.0], dtype="Float64"),
        "y": pd.array([True, None, False], dtype="boolean"),
    }
)
STRINGS = pd.DataFrame(
    {
        "object": pd.Series(["a", None, ""], dtype=object),
        "string": pd.array(["a", None, ""], dtype="string"),
        "category": pd.Categorical(["a", None, "b"]),
    }
)
TIMES = pd.DataFrame(
    {
        "naive": pd.Series([pd.Timestamp("2024-01-02 03:04:05"), pd.Timestamp("2024-01-02"), None]),
        "zoned": pd.Series(
            [pd.Timestamp("2024-10-27 00:30"), pd.Timestamp("2024-10-27 01:30"), pd.NaT]
        )
        .dt.tz_localize("UTC")
        .dt.tz_convert("Europe/Berlin"),
        "micro": pd.Series([pd.Timestamp("2024-01-02 03:04:05.000123")] * 2 + [pd.NaT]),
        "delta": pd.to_timedelta(["1h", "2 days 00:00:01", None]),
        "period": pd.PeriodIndex(["2024-01", "2024-02", "2024-03"], freq="M"),
    }
)
OBJECTS = pd.DataFrame(
    {
        "o": pd.Series(
            [
                {"b": 1, "a": [True, None, float("nan")], "n": np.int64(3)},
                [1, "two", {"three": 3.0}],
                dt.date(2024, 1, 2),
                Decimal("1.10"),
                uuid.UUID("12345678-1234-5678-1234-567812345678"),
                (1, 2),
                12345678901234567890123,
            ],
            dtype=object,
        )
    }
)
INDEXED = pd.DataFrame(
    {"t": ["a", "b", "a"], "unit price": [1.5, 2.0, 1.5], "a.b": ["x", "y", "x"], 0: [7, 8, 7]},
    index=pd.MultiIndex.from_tuples([("fr", 1), ("de", 2), ("fr", 1)], names=["country", "no"]),
)
LEVELS = pd.DataFrame(
    [["v", 1], ["w", 2]], columns=pd.MultiIndex.from_tuples([("m", "x"), ("m", "y")])
)
LABELS = ["billing", "bug", "feature"]

Call = Callable[[], Any]


def call(
    frame: pd.DataFrame,
    verb: str,
    *arguments: Any,
    at: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Call:
    """A call that is planned when it is called; `at` are options of the engine."""
    return lambda: getattr(frame.llm.plan, verb)(*arguments, model=engine(**(at or {})), **keywords)


def callable_prompt(row: Any) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": f"{row['t']}/{row['u']}"},
    ]


CALLS: dict[str, Call] = {
    # What the prompt is made of.
    "text": call(TEXTS, "map", "Say {t}"),
    "two columns": call(TEXTS, "map", "{t} and {u}, then {t}"),
    "escaped braces": call(TEXTS, "map", 'Reply {{"a": 1}} for {t}'),
    "a system text": call(TEXTS, "map", "Say {t}", system="Be brief."),
    "examples": call(TEXTS, "map", "{t}", examples=[({"t": "x"}, "y"), ({"t": "z"}, "w")]),
    "an example that is a row": call(TEXTS, "map", "{t}", examples=[({"t": "plain"}, "y")]),
    "examples in a frame": call(
        TEXTS, "map", "{t}", examples=pd.DataFrame({"t": ["x"], "response": ["y"]})
    ),
    "a callable": call(TEXTS, "map", callable_prompt),
    "integers": call(NUMBERS, "map", "{i} {u}"),
    "floats": call(NUMBERS, "map", "{f} {g}"),
    "booleans": call(NUMBERS, "map", "{b}"),
    "masked": call(NUMBERS, "map", "{n} {x} {y}"),
    "masked and blank": call(NUMBERS, "map", "{n} {x} {y}", missing="blank"),
    "format specs": call(NUMBERS, "map", "{f:.2f} {i:>5}"),
    "object strings": call(STRINGS, "map", "<{object}>"),
    "string dtype": call(STRINGS, "map", "<{string}>"),
    "categories": call(STRINGS, "map", "<{category}>"),
    "naive times": call(TIMES, "map", "{naive} {micro}"),
    "zoned times": call(TIMES, "map", "{zoned}"),
    "spans": call(TIMES, "map", "{delta} {period}"),
    "a date spec": call(TIMES, "map", "{naive:%d.%m.%Y}"),
    "objects": call(OBJECTS, "map", "{o}"),
    "index levels": call(INDEXED, "map", "{country} {no}: {t}"),
    "awkward names": call(INDEXED, "map", "{unit price} {a.b} {0}"),
    "column levels": call(LEVELS, "map", "{m.x} {m.y}"),
    "identical rows": call(INDEXED, "map", "{t}"),
    "identical rows, each a sample": call(INDEXED, "map", "{t}", dedupe=False, temperature=1.0),
    # What the schema is made of.
    "a model": call(TEXTS, "map", "{t}", Person),
    "a tree": call(TEXTS, "map", "{t}", Tree),
    "dates": call(TEXTS, "map", "{t}", Dates),
    "numbers": call(TEXTS, "map", "{t}", Numbers),
    "descriptions": call(TEXTS, "map", "{t}", Described),
    "another order": call(TEXTS, "map", "{t}", Reordered),
    "a dict": call(TEXTS, "map", "{t}", {"a": int, "b": list[str], "c": Optional[float]}),  # noqa: UP045
    "a dataclass": call(TEXTS, "map", "{t}", Point),
    "a TypedDict": call(TEXTS, "map", "{t}", Typed),
    "a JSON schema": call(TEXTS, "map", "{t}", JSON_SCHEMA),
    "a bare type": call(TEXTS, "map", "{t}", int),
    "a Literal": call(TEXTS, "map", "{t}", Literal["yes", "no"]),
    "a pattern": call(TEXTS, "map", "{t}", re.compile(r"\d{4}-\d{2}")),
    # The verbs' own prompts.
    "classify": call(TEXTS, "classify", "t", LABELS),
    "classify several": call(TEXTS, "classify", "t", LABELS, multi=True),
    "classify and explain": call(TEXTS, "classify", "t", LABELS, explain=True),
    "described labels": call(TEXTS, "classify", "t", {"bug": "it breaks", "praise": "it shines"}),
    "enum labels": call(TEXTS, "classify", ["t", "u"], Color),
    "extract": call(TEXTS, "extract", "t", Address),
    "filter": call(TEXTS, "filter", "{t} is about money"),
    # What else is in the key.
    "sampling": call(TEXTS, "map", "{t}", temperature=0.7, seed=11, extra={"b": 1, "a": [2]}),
    "another model": call(TEXTS, "map", "{t}", at={"model": "other-model"}),
    "another address and revision": call(
        TEXTS,
        "map",
        "{t}",
        at={"base_url": "http://user:secret@127.0.0.1:8000/v1?x=1", "revision": "May"},
    ),
}

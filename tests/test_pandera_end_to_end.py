"""A pandera model of many dtypes and checks, from the frame to the frame."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from jsonschema import Draft202012Validator

import llmframe as lf
from llmframe.dtypes import text_dtype
from llmframe.requests import Request
from tests.servers.chat import ChatServer, Seen
from tests.test_schemas_dialects import strict_server

pa = pytest.importorskip("pandera.pandas")


class Review(pa.DataFrameModel):
    level: pd.CategoricalDtype = pa.Field(
        dtype_kwargs={"categories": ["low", "mid", "high"], "ordered": True}
    )
    stars: int = pa.Field(ge=1, le=5, description="as the customer gave them")
    share: float = pa.Field(in_range={"min_value": 0, "max_value": 1}, nullable=True)
    code: str = pa.Field(str_length={"min_value": 1, "max_value": 3}, str_matches="[A-Z]+$")
    urgent: bool
    day: pd.Timestamp = pa.Field(ge=pd.Timestamp("2020-01-01"))
    at: pd.DatetimeTZDtype = pa.Field(dtype_kwargs={"unit": "us", "tz": "UTC"})
    count: pd.UInt8Dtype = pa.Field(notin=[13], nullable=True)

    class Config:
        coerce = True

    @pa.check("count", element_wise=True, error="must be odd")
    def odd(cls, value: int) -> bool:  # noqa: N805 - as pandera writes it
        return value % 2 == 1


GOOD: dict[str, Any] = {
    "level": "mid",
    "stars": 3,
    "share": 0.25,
    "code": "ABC",
    "urgent": True,
    "day": "2024-01-01T08:00:00",
    "at": "2024-01-01T12:00:00+02:00",
    "count": 7,
}
WRONG: dict[str, tuple[Any, str]] = {
    "level": ("none", "should be one of"),
    "stars": (6, "at most 5"),
    "share": (1.5, "at most 1"),
    "code": ("abc", "should match the pattern"),
    "urgent": ("perhaps", "should be boolean"),
    "day": ("2019-12-31T00:00:00", "greater_than_or_equal_to"),
    "at": ("2024-01-01T12:00:00", "offset"),
    "count": (8, "must be odd"),
}
FRAME = pd.DataFrame(
    {"text": ["all is well", "nothing known", *(f"wrong {name}" for name in WRONG)]},
    index=[f"row {n}" for n in range(10)],
)


def reply(prompt: str) -> dict[str, Any]:
    """The answer to a row, by its text."""
    if "nothing known" in prompt:
        return {**GOOD, "share": None, "count": None}
    wrong = next((name for name in WRONG if f"wrong {name}" in prompt), None)
    return GOOD if wrong is None else {**GOOD, wrong: WRONG[wrong][0]}


def conversation(messages: list[Any]) -> str:
    return " ".join(message["content"] for message in messages)


@pytest.fixture(params=["fake", "openai"])
def asked(request: pytest.FixtureRequest) -> Iterator[tuple[Any, list[str]]]:
    """An engine, and the conversations that it was sent."""
    told: list[str] = []
    if request.param == "fake":

        def answer(row: Request) -> Any:
            told.append(conversation(list(row.messages)))
            return reply(told[-1])

        yield lf.testing.FakeEngine(answer), told
        return

    def serve(seen: Seen) -> Any:
        wire = seen.body["response_format"]["json_schema"]
        assert wire["strict"] is True
        assert strict_server(wire["schema"], frozenset({"pattern"})) == []
        Draft202012Validator(wire["schema"]).validate(GOOD)
        told.append(conversation(seen.body["messages"]))
        return json.dumps(reply(told[-1]))

    with ChatServer(answer=serve) as server:
        yield lf.OpenAI("m", base_url=server.url, api_key="none"), told


def test_eight_dtypes_and_their_checks_from_frame_to_frame(asked: tuple[Any, list[str]]) -> None:
    engine, told = asked
    with pytest.warns(lf.RowsFailedWarning, match="8 of 10 rows are NA: 8 invalid_output"):
        out = FRAME.llm.extract("text", Review, model=engine)
    assert out.drop(columns="text").dtypes.astype(str).to_dict() == {
        "level": "category",
        "stars": "Int64",
        "share": "Float64",
        "code": str(text_dtype()),
        "urgent": "boolean",
        "day": "datetime64[ns]",
        "at": "datetime64[us, UTC]",
        "count": "UInt8",
    }
    assert out["level"].cat.ordered
    assert out["level"].cat.categories.tolist() == ["low", "mid", "high"]
    assert out.index.equals(FRAME.index)
    assert out.llm.status().tolist() == ["ok", "ok", *["failed"] * 8]
    failures = out.llm.failures()
    for (name, (_, words)), message in zip(WRONG.items(), failures["message"], strict=True):
        assert message.startswith(name)
        assert words in message, message
    assert (failures["attempts"] == 2).all()

    # Each failing row was asked once more, with its own check's message; no other was.
    again = [text for text in told if "Your last answer was not valid." in text]
    assert len(told) == 18
    for name, (_, words) in WRONG.items():
        (text,) = (text for text in again if f"wrong {name}" in text)
        assert words in text

    good = out[out.llm.status() == "ok"]
    checked = Review.validate(good)
    assert len(checked) == 2
    assert checked["stars"].dtype == "int64"
    assert checked["at"].tolist() == [pd.Timestamp("2024-01-01T10:00:00Z")] * 2
    with pytest.raises(pa.errors.SchemaError):
        Review.validate(good.assign(count=8))


def test_the_columns_are_the_same_without_an_answer_and_without_a_row() -> None:
    engine = lf.testing.FakeEngine("no")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = FRAME.llm.extract("text", Review, model=engine)
        empty = FRAME[:0].llm.extract("text", Review, model=engine)
    good = lf.testing.FakeEngine(GOOD)
    assert failed.dtypes.equals(empty.dtypes)
    assert failed.dtypes.equals(FRAME.llm.extract("text", Review, model=good).dtypes)
    assert failed["stars"].isna().all()


@pytest.mark.slow
def test_the_embedded_model_fills_eight_dtypes_that_meet_every_check(local_model: Any) -> None:
    from tests.reviews import holds

    out = holds("local")
    # It answers under the grammar, so what fails is what no grammar can say.
    assert (out.llm.status() == "ok").any()

"""The embedded model really writes under the grammar of each of thirty schemas."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from llmframe.engines.local import Local
from llmframe.requests import Sampling
from llmframe.schemas.forms import form
from llmframe.schemas.grammar import llama_grammar
from llmframe.schemas.reading import read
from llmframe.testing import drive, requests
from tests.gbnf import accepts
from tests.thirty import SCHEMAS

# The grammar has no words for: the bounds of a float, a multiple, an item that stands once, a rule
# with a condition, the days of a month, and keys of a map that are numbers.
IN_WORDS = {"range", "long range", "raw", "dates", "map of maps"}


def judged(model, texts, max_tokens):
    """How many replies were whole; every one of them is in the grammar and holds."""
    whole = 0
    for name, schema in SCHEMAS.items():
        asked = form(schema)
        sampling = Sampling(max_tokens=max_tokens)
        for result in drive(model, requests(texts, asked.schema, sampling=sampling)):
            assert result.failure is None, name
            reading = read(asked, result)
            if result.finish == "stop":
                whole += 1
                assert accepts(llama_grammar(asked.schema), result.text), name
                assert reading.failure is None or name in IN_WORDS, (name, reading.failure)
                assert not reading.repaired
                assert not reading.coerced
            else:
                assert result.finish == "length", name
                # The last token that there was room for may have been the last one of the answer.
                assert reading.failure is None or reading.failure.kind == "truncated", name
    return whole


@pytest.fixture
def engine(local_model):
    return Local(local_model, n_ctx=512)


LONG = Annotated[str, Field(max_length=300)]
REPEATS = [
    list[list[list[str]]],
    Annotated[list[LONG], Field(max_length=5000)],
    Annotated[list[int | None], Field(min_length=3000)],
    dict[LONG, list[dict[str, LONG]]],
    list[Annotated[str, Field(pattern="^([a-z]{1,200}-){1,200}$")]],
    Annotated[str, Field(pattern="^((ab|cd)x){1,256}$", max_length=5000)],
]


def test_repeats_inside_repeats_stay_below_what_llama_cpp_refuses(engine):
    for type_ in REPEATS:
        asked = requests(["x"], form({"x": type_}).schema, sampling=Sampling(max_tokens=1))
        [result] = drive(engine, asked)
        assert result.failure is None, (type_, result.failure)


@pytest.mark.slow
def test_what_is_written_under_each_grammar_holds(engine):
    assert judged(engine, ["Ann, born 1990, 2 apples."], 80) >= 10

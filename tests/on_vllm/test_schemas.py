"""What xgrammar makes of each of thirty schemas, and what vLLM really writes under it."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from llmframe.engines.fake.values import Draw, fitting
from llmframe.requests import Sampling
from llmframe.schemas.dialects import openai_strict, xgrammar
from llmframe.schemas.forms import form
from llmframe.schemas.reading import read
from llmframe.testing import drive, requests
from tests.thirty import SCHEMAS

# The backend has no words for: a multiple, an item that stands once, the days of a month, an
# offset, the length of a text that has a pattern, the keys of a map, the size of a number.
IN_WORDS = re.compile(
    "multiple of|twice|date|duration|time|offset|at most 8 characters|'a' or 'b'|64 bits|too large"
)


@pytest.fixture(scope="module")
def compiler(folders):
    import xgrammar
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders["tiny"])
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer))


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("dialect", [xgrammar, openai_strict])
def test_xgrammar_compiles_it_and_takes_its_answers(dialect, name, compiler):
    """The dialect of `VLLM`, and that in which servers of vLLM are asked."""
    import xgrammar as backend
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    wire = dialect(form(SCHEMAS[name]).schema)
    assert not has_xgrammar_unsupported_json_features(wire)
    compiled = compiler.compile_json_schema(
        json.dumps(wire), any_whitespace=False, separators=(",", ":")
    )

    def takes(text):
        matcher = backend.GrammarMatcher(compiled, terminate_without_stop_token=True)
        return matcher.accept_string(text) and matcher.is_terminated()

    for seed in range(5):
        answer = fitting(wire, Draw(f"{name} {seed}".encode()))
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        assert takes(text), text
        assert not takes(text[:-1])
        assert not takes(json.dumps({**answer, "more": 1}, separators=(",", ":")))
        first = next(iter(answer))
        assert not takes(json.dumps({**answer, first: [[[]]]}, separators=(",", ":")))


def test_vllm_writes_under_each(tiny):
    """A random model: whatever comes is the grammar's doing alone."""
    whole = 0
    for name, schema in SCHEMAS.items():
        asked = form(schema)
        sampling = Sampling(max_tokens=200, temperature=1.0, seed=1)
        for result in drive(tiny, requests(["x", "y"], asked.schema, sampling=sampling)):
            assert result.failure is None, (name, result.failure)
            reading = read(asked, result)
            if result.finish == "stop":
                whole += 1
                told = reading.failure is None or IN_WORDS.search(reading.failure.message)
                assert told, (name, reading, result.text)
                assert not reading.repaired
            else:
                assert result.finish == "length"
                known = reading.failure is None or reading.failure.kind == "truncated"
                assert known, (name, reading, result.text)
    assert whole >= 10


def test_five_hundred_labels_are_scored(smollm2):
    labels = [
        f"Complaint number {n:03d} about a parcel that did not arrive"[:60] for n in range(500)
    ]
    df = pd.DataFrame({"text": ["My parcel is late.", "Where is it?"]})
    out = df.llm.classify("text", labels, model=smollm2, confidence=True)
    assert (out.llm.status() == "ok").all()
    assert out["label_confidence"].between(0.002, 1).all()

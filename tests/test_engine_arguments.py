"""What the engines are given: a slip is named with its value before anything is sent."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmframe as lf
from tests.servers.chat import ChatServer, error

HERE = "http://127.0.0.1:1"
ENGINES = [lf.OpenAI, lf.Anthropic]
SLIPS: list[tuple[str, Any, list[str]]] = [
    ("base_url", 5, ["type int", "expected text"]),
    ("base_url", "nope", ["'nope'", "http(s)://"]),
    ("base_url", "http://[x", ["base_url=", "cannot be read as a URL"]),
    ("base_url", "http://h:99999", ["base_url=", "cannot be read as a URL"]),
    ("api_key", 5, ["type int", "expected text"]),
    ("headers", "x", ["type str", "expected a dict"]),
    ("headers", {1: "x"}, ["name of type int"]),
    ("headers", {"x-team": None}, ["'x-team'", "NoneType"]),
    ("timeout", "a", ["'a'", "seconds above 0"]),
    ("timeout", True, ["True", "seconds above 0"]),
    ("timeout", 0, ["0", "seconds above 0"]),
    ("concurrency", 0, ["0", "whole number above 0"]),
    ("concurrency", "x", ["'x'", "whole number above 0"]),
    ("concurrency", True, ["True", "whole number above 0"]),
    ("concurrency", 1.5, ["1.5", "whole number above 0"]),
    ("max_batch_requests", 0, ["0", "whole number"]),
    ("max_batch_bytes", "x", ["'x'", "whole number"]),
    ("revision", 3, ["3", "expected text"]),
    ("batch", "no", ["'no'", "True or False"]),
    ("cleanup", 1, ["1", "True or False"]),
    ("client", object(), ["object", "expected an"]),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "value", "words"), SLIPS)
def test_a_slip_is_named_with_what_was_expected(
    engine: Any, name: str, value: Any, words: list[str]
) -> None:
    with pytest.raises(lf.ModelError) as caught:
        engine("m", **{"base_url": HERE, "api_key": "key", name: value})
    for word in [name, *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["", None, 5])
def test_a_model_that_is_no_name(engine: Any, model: Any) -> None:
    with pytest.raises(lf.ModelError, match="expected a name, such as '"):
        engine(model, base_url=HERE)


def test_an_endpoint_that_cannot_even_be_hashed() -> None:
    with pytest.raises(lf.ModelError, match=r"endpoint=\[1\]: expected '/v1/chat"):
        lf.OpenAI("m", base_url=HERE, endpoint=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slip_tells_no_secret(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-planted-0123456789"
    for options in (
        {"api_key": key.encode()},
        {"headers": key},
        {"headers": {"authorization": key.encode()}},
        {"base_url": f"http://user:{key}"},  # read as a port
        {"base_url": f"http://user:{key}@[x"},
    ):
        with pytest.raises(lf.ModelError) as caught:
            engine("m", **options)
        assert key not in str(caught.value)
    monkeypatch.setenv(f"{engine.__name__.upper()}_BASE_URL", f"http://user:{key}")
    with pytest.raises(lf.ModelError, match="_BASE_URL cannot be read") as caught:
        engine("m", api_key="key")
    assert key not in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_of_numpy_are_numbers(engine: Any) -> None:
    made = engine("m", base_url=HERE, timeout=np.float32(5), concurrency=np.int64(8))
    assert (made.timeout, made.limits.concurrency) == (5.0, 8)
    made.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_both_lanes_have_one_signature(engine: Any) -> None:
    batch = engine("m", base_url=HERE, batch=True)
    for made in (engine, type(batch)):
        assert {"model", "base_url", "batch", "cleanup"} <= set(inspect.signature(made).parameters)
    assert isinstance(batch, engine)
    assert repr(batch) == f"{engine.__name__}('m', base_url='{HERE}', batch=True)"
    batch.close()


@pytest.mark.parametrize("name", ["messages", "input", "model", "stream"])
@pytest.mark.parametrize("empty", [False, True])
def test_extra_cannot_bring_what_the_request_has(name: str, empty: bool) -> None:
    value: Any = ("" if name == "model" else []) if empty else ["x"]
    with ChatServer() as server:
        engine = lf.OpenAI("m", base_url=server.url)
        frame = pd.DataFrame({"t": ["a", "b", "c"]})
        if name == "stream" and empty:  # what is asked for anyway
            out = frame.llm.map("{t}", model=engine, extra={name: False})
            assert out["response"].notna().all()
            return
        with pytest.raises(lf.EngineError, match=f"extra={{'{name}': …}} cannot be sent"):
            frame.llm.map("{t}", model=engine, extra={name: value})
        assert not server.seen


def test_an_engine_without_limits() -> None:
    engine = lf.testing.FakeEngine()
    engine.limits = None  # type: ignore[assignment]
    with pytest.raises(lf.ModelError, match=r"limits of engine 'fake' are None: expected"):
        pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=engine)


@pytest.mark.parametrize("model", ["", "/", "/m"])
def test_a_name_without_an_engine_says_what_to_write(model: str) -> None:
    with pytest.raises(lf.ModelError, match=f"model='{model}' names no engine") as caught:
        pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=model)
    assert '"openai/gpt-4.1-mini"' in str(caught.value)


# -- words of others, with ours behind them ---------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 404])
@pytest.mark.parametrize("words", ["That is wrong.", "That is wrong"])
def test_a_refusal_ends_with_one_full_stop(status: int, words: str) -> None:
    with ChatServer(lambda seen: error(status, words)) as server:
        engine = lf.OpenAI("m", base_url=server.url)
        with pytest.raises(lf.EngineError) as caught:
            pd.DataFrame({"t": ["a", "b", "c"]}).llm.map("{t}", model=engine)
    assert "That is wrong" in str(caught.value)
    assert ".. " not in str(caught.value)
    assert ".). " not in str(caught.value)
    assert ". 0 of 3 rows are answered" in str(caught.value)


def test_an_engine_that_breaks_off_ends_with_one_full_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("The disk is full.")

    monkeypatch.setattr(lf.testing.FakeEngine, "stream", broken)
    with pytest.raises(lf.EngineError, match=r"The disk is full\. 0 of 1 rows"):
        pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=lf.testing.FakeEngine())

"""Bad input: each refused before anything is sent, with a message that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import openai
from tests.servers.rows import MODEL

pytest_plugins = ["tests.servers.plugin"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def df() -> pd.DataFrame:
    return pd.DataFrame({"ticket": ["a", "b"], "price": [1.5, 2.5], "note": ["x", None]})


Call = Any

CASES: dict[str, tuple[Call, type[BaseException], list[str]]] = {
    "unknown column, near miss": (
        lambda df, m: df.llm.map("{tiket}", model=m),
        lf.PromptError,
        ["tiket", "did you mean 'ticket'", "Nothing was sent"],
    ),
    "unknown column in classify": (
        lambda df, m: df.llm.classify("tiket", ["a", "b"], model=m),
        lf.PromptError,
        ["tiket", "ticket"],
    ),
    "unknown column in a list of names": (
        lambda df, m: df.llm.extract(["ticket", "prize"], {"a": int}, model=m),
        lf.PromptError,
        ["prize", "price"],
    ),
    "unknown column in filter": (
        lambda df, m: df.llm.filter("is {tiket} good", model=m),
        lf.PromptError,
        ["tiket", "ticket"],
    ),
    "a prompt that names no column": (
        lambda df, m: df.llm.map("Summarise the ticket", model=m),
        lf.PromptError,
        ["names no column", "{ticket}"],
    ),
    "an unescaped brace": (
        lambda df, m: df.llm.map('{"label": 1} for {ticket}', model=m),
        lf.PromptError,
        ['{"label"', "{{"],
    ),
    "a brace that is never closed": (
        lambda df, m: df.llm.map("say {ticket", model=m),
        lf.PromptError,
        ["{"],
    ),
    "attribute access": (
        lambda df, m: df.llm.map("{ticket.__class__}", model=m),
        lf.PromptError,
        ["ticket.__class__"],
    ),
    "index access": (
        lambda df, m: df.llm.map("{ticket[0]}", model=m),
        lf.PromptError,
        ["ticket[0]"],
    ),
    "a spec that the column cannot take": (
        lambda df, m: df.llm.map("{price:nonsense}", model=m, errors="raise"),
        (lf.PromptError, lf.RowsFailed),
        ["price"],
    ),
    "misspelt keyword": (
        lambda df, m: df.llm.map("{ticket}", modle=m),
        TypeError,
        ["modle"],
    ),
    "misspelt keyword in classify": (
        lambda df, m: df.llm.classify("ticket", ["a", "b"], model=m, confidense=True),
        TypeError,
        ["confidense"],
    ),
    "misspelt keyword in plan": (
        lambda df, m: df.llm.plan.map("{ticket}", model=m, repair=2),
        TypeError,
        ["repair"],
    ),
    "a keyword's value that is none of the allowed": (
        lambda df, m: df.llm.map("{ticket}", model=m, errors="ignore"),
        ValueError,
        ["ignore", "warn", "raise", "coerce"],
    ),
    "missing= that is none of the allowed": (
        lambda df, m: df.llm.map("{ticket}", model=m, missing="drop"),
        ValueError,
        ["drop", "skip", "blank", "raise"],
    ),
    "if_exists= that is none of the allowed": (
        lambda df, m: df.llm.map("{ticket}", model=m, if_exists="append"),
        ValueError,
        ["append", "raise", "replace", "fill"],
    ),
    "retry= that is none of the allowed": (
        lambda df, m: df.llm.map("{ticket}", model=m, retry="some"),
        ValueError,
        ["some", "transient", "all"],
    ),
    "concurrency of nothing": (
        lambda df, m: df.llm.map("{ticket}", model=m, concurrency=0),
        ValueError,
        ["concurrency", "0"],
    ),
    "a negative number of repairs": (
        lambda df, m: df.llm.map("{ticket}", model=m, repairs=-1),
        ValueError,
        ["repairs", "-1"],
    ),
    "a token limit of nothing": (
        lambda df, m: df.llm.map("{ticket}", model=m, max_tokens=0),
        ValueError,
        ["max_tokens", "0"],
    ),
    "a temperature that is no number": (
        lambda df, m: df.llm.map("{ticket}", model=m, temperature="hot"),
        (ValueError, TypeError),
        ["temperature", "hot"],
    ),
    "extra that JSON cannot carry": (
        lambda df, m: df.llm.map("{ticket}", model=m, extra={"stop": {1, 2}}),
        (ValueError, TypeError),
        ["extra", "stop"],
    ),
    "two labels alike": (
        lambda df, m: df.llm.classify("ticket", ["bug", "Bug "], model=m),
        lf.SchemaError,
        ["bug", "Bug "],
    ),
    "the same label twice": (
        lambda df, m: df.llm.classify("ticket", ["bug", "bug"], model=m),
        lf.SchemaError,
        ["bug"],
    ),
    "no labels": (
        lambda df, m: df.llm.classify("ticket", [], model=m),
        lf.SchemaError,
        ["label"],
    ),
    "an empty label": (
        lambda df, m: df.llm.classify("ticket", ["bug", ""], model=m),
        lf.SchemaError,
        ["''"],
    ),
    "labels given as one text": (
        lambda df, m: df.llm.classify("ticket", "bug, billing", model=m),
        (lf.SchemaError, TypeError),
        ["bug, billing"],
    ),
    "a schema of no fields": (
        lambda df, m: df.llm.map("{ticket}", {}, model=m),
        lf.SchemaError,
        ["{}"],
    ),
    "a type that no model can be asked for": (
        lambda df, m: df.llm.map("{ticket}", {"lock": threading.Lock}, model=m),
        lf.SchemaError,
        ["lock"],
    ),
    "a complex number": (
        lambda df, m: df.llm.map("{ticket}", {"z": complex}, model=m),
        lf.SchemaError,
        ["z", "complex"],
    ),
    "a type given as text": (
        lambda df, m: df.llm.map("{ticket}", {"z": "intt"}, model=m),
        lf.SchemaError,
        ["intt"],
    ),
    "existing output column": (
        lambda df, m: df.llm.map("{ticket}", model=m, into="note"),
        lf.SchemaError,
        ["note", "if_exists", "into="],
    ),
    "existing output column of a schema": (
        lambda df, m: df.llm.extract("ticket", {"price": float}, model=m),
        lf.SchemaError,
        ["price", "if_exists"],
    ),
    "two output columns of one name": (
        lambda df, m: df.llm.map("{ticket}", {"a": int, "b": int}, model=m, into={"a": "b"}),
        lf.SchemaError,
        ["b"],
    ),
    "into names no field": (
        lambda df, m: df.llm.map("{ticket}", {"a": int}, model=m, into={"aa": "b"}),
        lf.SchemaError,
        ["aa", "a"],
    ),
    "missing cell where none may be": (
        lambda df, m: df.llm.map("{note}", model=m, missing="raise"),
        lf.PromptError,
        ["note"],
    ),
    "examples that lack a prompt column": (
        lambda df, m: df.llm.map("{ticket}", model=m, examples=[({"price": 1}, "x")]),
        (lf.PromptError, lf.SchemaError),
        ["ticket"],
    ),
    "an example answer that does not fit the schema": (
        lambda df, m: df.llm.map(
            "{ticket}", {"n": int}, model=m, examples=[({"ticket": "x"}, {"n": "many"})]
        ),
        (lf.PromptError, lf.SchemaError),
        ["n"],
    ),
    "a source that is no column": (
        lambda df, m: df.llm.classify(3, ["a", "b"], model=m),
        (lf.PromptError, TypeError),
        ["3"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_before_anything_is_sent(name: str, df: pd.DataFrame, serve: Any) -> None:
    call, error, words = CASES[name]
    server = serve()
    fake = lf.testing.FakeEngine(lambda text: text)
    before = df.copy(deep=True)

    for engine in (fake, openai(server)):
        with pytest.raises(error) as caught:
            call(df, engine)
        message = str(caught.value)
        for word in words:
            assert word in message, message
        assert len(message) < 600, "a message, not an essay"

    assert list(fake.requests) == []
    assert server.count == 0
    pd.testing.assert_frame_equal(df, before)


@pytest.mark.parametrize("lane", ["plan", "submit"])
@pytest.mark.parametrize("name", ["unknown column, near miss", "two labels alike"])
def test_plan_and_submit_refuse_alike(name: str, lane: str, df: pd.DataFrame, serve: Any) -> None:
    server = serve()
    engine = openai(server)
    namespace = getattr(df.llm, lane)
    verb, arguments = {
        "unknown column, near miss": ("map", ("{tiket}",)),
        "two labels alike": ("classify", ("ticket", ["bug", "Bug "])),
    }[name]

    with pytest.raises(CASES[name][1]):
        getattr(namespace, verb)(*arguments, model=engine)
    assert server.count == 0


def test_a_budget_that_is_too_small(df: pd.DataFrame, serve: Any) -> None:
    server = serve()
    with (
        lf.set_options(prices={f"openai/{MODEL}": (1e6, 1e6)}),
        pytest.raises(lf.BudgetError) as caught,
    ):
        df.llm.map("{ticket}", model=openai(server), budget=3.0)

    message = str(caught.value)
    assert "3.00" in message or "3.0" in message
    assert "US$" in message
    assert "Nothing was sent" in message
    assert caught.value.plan.cost > 3.0
    assert server.count == 0


@pytest.mark.parametrize("budget", [-1, "much", float("nan")])
def test_a_budget_that_is_none(df: pd.DataFrame, serve: Any, budget: Any) -> None:
    server = serve()
    with pytest.raises((ValueError, TypeError), match="budget"):
        df.llm.map("{ticket}", model=openai(server), budget=budget)
    assert server.count == 0


def test_no_key_says_which_variable_to_set(df: pd.DataFrame) -> None:
    with pytest.raises(lf.ModelError, match="OPENAI_API_KEY"):
        df.llm.map("{ticket}", model="openai/gpt-4.1-mini")


def test_a_model_name_without_an_engine_says_how_to_write_it(df: pd.DataFrame) -> None:
    with pytest.raises(lf.ModelError) as caught:
        df.llm.map("{ticket}", model="gpt-4.1-mini")
    assert "'gpt-4.1-mini' names no engine" in str(caught.value)
    assert '"openai/gpt-4.1-mini"' in str(caught.value)


def test_an_engine_that_is_none_is_named_with_its_near_miss(df: pd.DataFrame) -> None:
    with pytest.raises(lf.ModelError, match="openai"):
        df.llm.map("{ticket}", model="openia/gpt-4.1-mini")


@pytest.mark.parametrize("model", [42, object(), ["openai/x"]])
def test_a_model_that_is_no_engine(df: pd.DataFrame, model: Any) -> None:
    with pytest.raises((lf.ModelError, TypeError)) as caught:
        df.llm.map("{ticket}", model=model)
    assert "model" in str(caught.value)


def test_no_model_at_all_lists_the_ways(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["xllamacpp"] = None
        import pandas as pd
        import llmframe as lf
        try:
            pd.DataFrame({"t": ["a"]}).llm.map("{t}")
        except lf.ModelError as error:
            print(error)
        """
    home = tmp_path / "empty"
    home.mkdir(mode=0o700)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LLMFRAME_"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**env, "LLMFRAME_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for way in ("model=", "set_options", "LLMFRAME_MODEL", "local"):
        assert way in done.stdout, done.stdout


def test_a_home_that_is_a_file(df: pd.DataFrame, serve: Any, tmp_path: Path) -> None:
    server = serve()
    place = tmp_path / "file"
    place.write_text("not a folder")

    with lf.set_options(home=place), pytest.raises(lf.StoreError) as caught:
        df.llm.map("{ticket}", model=openai(server))

    assert str(place) in str(caught.value)
    assert "home" in str(caught.value)
    assert server.count == 0


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_home_that_others_can_write_is_refused_and_never_changed(
    df: pd.DataFrame, serve: Any, tmp_path: Path, mode: int
) -> None:
    server = serve()
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(mode)

    with lf.set_options(home=place), pytest.raises(lf.StoreError) as caught:
        df.llm.map("{ticket}", model=openai(server))

    assert str(place) in str(caught.value)
    assert place.stat().st_mode & 0o777 == mode
    assert server.count == 0


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_a_home_that_cannot_be_made(df: pd.DataFrame, serve: Any, tmp_path: Path) -> None:
    server = serve()
    place = Path("/proc/no-such-place/home") if os.geteuid() == 0 else tmp_path / "locked" / "home"
    if os.geteuid() != 0:
        place.parent.mkdir(mode=0o500)

    with lf.set_options(home=place), pytest.raises(lf.StoreError) as caught:
        df.llm.map("{ticket}", model=openai(server))

    assert str(place) in str(caught.value)
    assert server.count == 0


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("modle", "local", TypeError),
        ("concurrency", 0, ValueError),
        ("poll_interval", -1, ValueError),
    ],
)
def test_options_are_checked_where_they_are_set(
    option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=option):
        lf.set_options(**{option: value})


def test_an_unknown_job_is_named() -> None:
    with pytest.raises((lf.StoreError, KeyError), match="j_nothing"):
        lf.job("j_nothing")

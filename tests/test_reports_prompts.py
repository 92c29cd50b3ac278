"""Public fault reports: braces, missing cells, awkward names, output columns that collide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import all_warnings, of, openai, statuses
from tests.servers.scripted import Scripted, echo

pytest_plugins = ["tests.servers.plugin"]


def test_u108_a_json_example_in_the_template_is_explained_before_anything_is_sent() -> None:
    engine = lf.testing.FakeEngine(lambda text: text)
    df = pd.DataFrame({"text": ["x"]})

    with pytest.raises(lf.PromptError) as caught:
        df.llm.map('Reply {"label": "..."} for {text}', model=engine)

    message = str(caught.value)
    assert '{"label"' in message
    assert "{{" in message
    assert "}}" in message
    assert list(engine.requests) == []


def test_u108_escaped_braces_go_out_as_braces() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"text": ["x"]})

    df.llm.map('Reply {{"label": "..."}} for {text}', model=engine)

    assert engine.prompts == ['Reply {"label": "..."} for x']


def test_u109_braces_in_cells_are_never_expanded(serve: Any) -> None:
    cell = r"\frac{a}{b} {text} {0} {{x}} %s $text"
    server = serve(lambda seen: seen.prompt)
    df = pd.DataFrame({"text": [cell]})

    out = df.llm.map(
        "Say: {text}",
        model=openai(server),
        system="Answer in {braces}? No: {text} stays.",
        examples=[({"text": "{y} {text}"}, "{z}")],
    )

    messages = server.asked[0].body["messages"]
    assert messages[-1]["content"] == f"Say: {cell}"
    assert messages[0]["role"] in ("system", "developer")
    assert messages[0]["content"] == "Answer in {braces}? No: {text} stays."
    assert messages[1]["content"] == "Say: {y} {text}"
    assert messages[2] == {"role": "assistant", "content": "{z}"}
    assert out["response"].tolist() == [f"Say: {cell}"]


def test_u109_the_same_through_a_source_and_a_callable() -> None:
    cell = "{0} {text} {{x}}"
    engine = Scripted(echo)
    df = pd.DataFrame({"text": [cell]})

    df.llm.map(lambda row: row["text"], model=engine)
    df.llm.extract("text", {"a": str}, model=engine, errors="coerce", repairs=0)

    assert engine.prompts[0] == cell
    assert cell in str(engine.requests[1].messages[-1]["content"])


@pytest.mark.parametrize(
    ("prompt", "named"),
    [("is it good?", ["text"]), ("{txt}", ["txt", "text"]), ("{}", ["text"])],
)
def test_u122_a_prompt_without_a_real_column_is_refused(prompt: str, named: list[str]) -> None:
    engine = lf.testing.FakeEngine(lambda text: text)
    df = pd.DataFrame({"text": ["x"], "other": ["y"]})

    with pytest.raises(lf.PromptError) as caught:
        df.llm.map(prompt, model=engine)

    assert isinstance(caught.value, ValueError)
    for name in named:
        assert name in str(caught.value)
    assert list(engine.requests) == []


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("unit price", "{unit price}"),
        ("a.b", "{a.b}"),
        ("a:b", "{a:b}"),
        ("a!r", "{a!r}"),
        ("a[0]", "{a[0]}"),
        (0, "{0}"),
        (7, "{7}"),
        ("Größe (m²)", "{Größe (m²)}"),
    ],
)
def test_u123_any_column_can_be_named(name: Any, template: str) -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({name: ["value"], "other": ["no"]})

    out = df.llm.map(f"It is {template}.", model=engine)

    assert engine.prompts == ["It is value."]
    assert list(out.columns) == [name, "other", "response"]


def test_u123_a_name_with_a_colon_takes_a_spec_too() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"a:b": [1.5], "price": [2.0]})

    df.llm.map("{a:b} {price:.2f} {a:b:.3f}", model=engine)

    assert engine.prompts == ["1.5 2.00 1.500"]


def test_u123_multiindex_columns_join_with_a_dot_and_take_the_new_ones() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame([["v", "w"]], columns=pd.MultiIndex.from_tuples([("m", "x"), ("m", "y")]))

    out = df.llm.map("{m.x}-{m.y}", model=engine)

    assert engine.prompts == ["v-w"]
    assert isinstance(out.columns, pd.MultiIndex)
    assert out.columns.nlevels == 2
    assert list(out.columns[:2]) == [("m", "x"), ("m", "y")]
    new = out.columns[2]
    assert "response" in new
    assert out[new].tolist() == ["v-w"]


def test_u123_index_levels_are_names_too() -> None:
    engine = Scripted(echo)
    index = pd.MultiIndex.from_tuples([("fr", 1), ("de", 2)], names=["country", "n"])
    df = pd.DataFrame({"t": ["x", "y"]}, index=index)

    df.llm.map("{country}/{n}: {t}", model=engine)

    assert engine.prompts == ["fr/1: x", "de/2: y"]


def test_u135_a_missing_cell_is_skipped_and_never_becomes_a_word() -> None:
    engine = Scripted(echo)
    cells = pd.Series(["ACME", np.nan, None, pd.NA, pd.NaT], dtype=object)
    df = pd.DataFrame({"c": cells})

    with all_warnings() as caught:
        out = df.llm.map("Company: {c}", model=engine)

    assert engine.prompts == ["Company: ACME"]
    assert out["response"].isna().tolist() == [False, True, True, True, True]
    assert statuses(out) == ["ok"] + ["skipped"] * 4
    assert len(out.llm.failures()) == 0
    # Nothing the prompt uses has a value in those rows, so there is nothing to warn about.
    assert of(caught, UserWarning) == []


def test_u135_rows_skipped_for_one_of_two_cells_are_told_once() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"a": ["x", "y", None], "b": ["1", None, None]})

    with all_warnings() as caught:
        out = df.llm.map("{a} {b}", model=engine)

    told = of(caught, lf.RowsSkippedWarning)
    assert len(told) == 1
    assert "1" in told[0]
    assert statuses(out) == ["ok", "skipped", "skipped"]
    assert engine.prompts == ["x 1"]


def test_u135_blank_only_when_asked() -> None:
    engine = Scripted(echo)
    cells = pd.Series(["ACME", np.nan, None, pd.NA, pd.NaT], dtype=object)
    df = pd.DataFrame({"c": cells})

    out = df.llm.map("Company: {c}", model=engine, missing="blank")

    assert sorted(set(engine.prompts)) == ["Company: ", "Company: ACME"]
    assert len(engine.prompts) == 2
    assert out["response"].notna().all()
    for word in ("nan", "None", "<NA>", "NaT"):
        assert not any(word in prompt for prompt in engine.prompts)


def test_u135_an_empty_string_is_a_value() -> None:
    engine = Scripted(lambda r: "said")
    df = pd.DataFrame({"c": ["", "  ", "x"]})

    out = df.llm.map("Company: {c}", model=engine)

    assert sorted(engine.prompts) == ["Company: ", "Company:   ", "Company: x"]
    assert statuses(out) == ["ok", "ok", "ok"]


@pytest.mark.parametrize("verb", ["map", "classify", "extract", "filter"])
def test_u136_masked_dtypes_with_na_raise_no_type_error(verb: str) -> None:
    replies = {"map": "x", "classify": "x", "extract": '{"a": 1}', "filter": '{"response": true}'}
    engine = Scripted(lambda r: replies[verb])
    df = pd.DataFrame(
        {
            "i": pd.array([1, None], dtype="Int64"),
            "s": pd.array(["a", None], dtype="string"),
            "b": pd.array([True, None], dtype="boolean"),
            "c": pd.Categorical(["k", None]),
            "d": pd.to_datetime(["2024-01-02", None]),
        }
    )
    template = "{i} {s} {b} {c} {d}"

    with all_warnings() as caught:
        if verb == "map":
            out = df.llm.map(template, model=engine)
        elif verb == "classify":
            out = df.llm.classify(template, ["x", "y"], model=engine)
        elif verb == "extract":
            out = df.llm.extract(template, {"a": int}, model=engine)
        else:
            out = df.llm.filter(template, model=engine, errors="coerce", repairs=0)

    assert engine.count == 1
    if verb != "filter":
        assert statuses(out) == ["ok", "skipped"]
    assert not any("<NA>" in str(request.messages) for request in engine.requests)
    assert all(issubclass(w.category, lf.RowsFailedWarning | UserWarning) for w in caught)


def test_u143_a_column_of_the_users_own_is_never_overwritten_unasked() -> None:
    engine = lf.testing.FakeEngine(lambda text: "bug")
    df = pd.DataFrame({"t": ["x", "y"], "label": ["hand one", "hand two"]})

    with pytest.raises(lf.SchemaError, match="label") as caught:
        df.llm.classify("t", ["bug", "billing"], model=engine)

    assert list(engine.requests) == []
    assert "if_exists" in str(caught.value)
    assert "into=" in str(caught.value)
    assert df["label"].tolist() == ["hand one", "hand two"]


def test_u143_replace_and_into_are_the_two_ways() -> None:
    engine = Scripted(lambda r: "bug")
    df = pd.DataFrame({"t": ["x", "y"], "label": ["hand one", "hand two"]})

    replaced = df.llm.classify("t", ["bug", "billing"], model=engine, if_exists="replace")
    beside = df.llm.classify("t", ["bug", "billing"], model=engine, into="label_llm")

    assert replaced["label"].tolist() == ["bug", "bug"]
    assert list(replaced.columns).count("label") == 1
    assert beside["label"].tolist() == ["hand one", "hand two"]
    assert beside["label_llm"].tolist() == ["bug", "bug"]
    assert df["label"].tolist() == ["hand one", "hand two"]


def test_u143_running_the_same_cell_twice_works() -> None:
    engine = Scripted(lambda r: "bug")
    df = pd.DataFrame({"t": ["x", "y"]})

    df = df.llm.classify("t", ["bug", "billing"], model=engine)
    df = df.llm.classify("t", ["bug", "billing"], model=engine)

    assert list(df.columns) == ["t", "label"]
    assert engine.count == 2


@pytest.mark.parametrize("dtype", [object, "string", "category"])
def test_u144_fill_asks_only_the_rows_that_have_no_value(dtype: Any) -> None:
    """Whatever container holds the old values; a Series has no output column of its own."""
    engine = Scripted(echo)
    df = pd.DataFrame({"t": ["a", "b"], "response": pd.Series(["x", None], dtype=dtype)})

    out = df.llm.map("{t}", model=engine, if_exists="fill")

    assert engine.prompts == ["b"]
    assert out["response"].tolist() == ["x", "b"]
    assert list(out.columns) == ["t", "response"]
    assert df["response"].isna().tolist() == [False, True]


def test_rows_that_fill_did_not_ask_are_kept_and_say_so() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"t": ["a", "b", "c", None], "response": ["x", None, None, None]})
    asked = {"model": engine, "if_exists": "fill", "errors": "coerce"}

    plan = df.llm.plan.map("{t}", **asked)
    job = df.llm.submit.map("{t}", details=True, **asked)
    out = job.result()

    assert (plan.kept, plan.skipped, plan.requests) == (1, 1, 2)
    assert "kept" in repr(plan)
    assert job.status().kept == 1
    expected = ["kept", "ok", "ok", "skipped"]
    assert out["llm_status"].tolist() == expected
    assert out.llm.status().tolist() == expected
    # In any order and with rows that came later; what was not asked and has no value is pending.
    more = pd.concat([out.iloc[::-1], pd.DataFrame({"t": ["d"]})])
    more.attrs = out.attrs
    assert more.llm.status().tolist() == [*expected[::-1], "pending"]
    assert "had a value, which was kept" in repr(out.llm.trace(0))
    assert "had a value, which was kept" in repr(job.trace(0))
    assert out.llm.failures().empty

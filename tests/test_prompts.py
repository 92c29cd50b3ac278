"""Templates, functions, sources and examples: from a row's cells to its messages."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.errors import PromptError
from llmframe.prompts import (
    RowError,
    build,
    format_value,
    is_missing,
    prompt_from,
    source_template,
)
from llmframe.requests import KeyMaker


def text(template, row, **more):
    """The user text of one row, given as a dict of column -> cell."""
    prompt = build(template, list(row), **more)
    cells = list(row.values())
    return prompt.render([cells[position] for position in prompt.columns])[-1]["content"]


def refused(template, names=("ticket", "id"), index_names=(), **more):
    """The message with which a prompt is refused."""
    with pytest.raises(PromptError) as caught:
        build(template, names, index_names, **more)
    return str(caught.value)


# Templates -------------------------------------------------------------------------------------


def test_fields_specs_and_braces():
    row = {"item": "tea", "price": 3.14159, "n": 7}
    assert text("{item} at {price:.2f}, {n:03d} of {{n}}", row) == "tea at 3.14, 007 of {n}"
    assert text("{{{item}}}", row) == "{tea}"
    assert text("{item}{item}", row) == "teatea"


def test_u123_awkward_names():
    row = {"unit price": 1, "a.b": 2, "a:b": 3.14159, ("m", "x"): 4, ("id", ""): 5}
    template = "{unit price} {a.b} {a:b} {a:b:.1f} {m.x} {id}"
    assert text(template, row) == "1 2 3.14159 3.1 4 5"


def test_u123_a_number_is_a_place_only_without_integer_labels():
    assert text("{0}-{1}", {"a": "x", "b": "y"}) == "x-y"
    assert text("{1}-{2}", {1: "x", 2: "y"}) == "x-y"
    assert text("{0}", {"b": "y", 0: "x"}) == "x"
    assert text("{0}", {"b": "y", "0": "x"}) == "x"
    assert "no column '0'" in refused("{0}", [1, 2])
    assert "no column '5'" in refused("{5}", ["a"])


def test_the_only_column_of_a_series():
    assert text("{}!", {"t": "x"}) == text("{0}!", {"t": "x"}) == text("{t}!", {"t": "x"}) == "x!"
    assert text("{:.1f}", {"t": 2.0}) == "2.0"
    assert "'{}' is the column of a Series; here are 2 columns" in refused("{}")


def test_time_specs_hold_colons():
    moment = dt.datetime.fromisoformat("2024-01-02T03:04")
    assert text("{t:%H:%M}", {"t": moment}) == "03:04"
    assert text("{t:>21}", {"t": moment}) == "  2024-01-02T03:04:00"


def test_index_levels_where_no_column_has_the_name():
    prompt = build("{id} {t}", ["t", "x"], ["id", None])
    assert prompt.columns == (-1, 0)
    assert prompt.render(["r9", "hello"])[0]["content"] == "r9 hello"
    assert build("{t}", ["t"], ["t"]).columns == (0,)


def test_u108_json_in_a_template():
    expected = "'{\"label\"…' reads as a column. For a literal brace write {{ and }}."
    assert refused('Reply {"label": "..."} for {text}', ["text"]) == expected
    assert refused('Reply {"label": {"a": 1}} for {text}', ["text"]) == expected
    assert refused("Reply {'label'} for {text}", ["text"]).startswith("'{'label'}' reads as a")
    assert "For a literal brace write {{ and }}." in refused("Reply {\n  label} {text}", ["text"])
    assert "For a literal brace write {{ and }}." in refused(r"\frac{a}{b} {text}", ["text"])
    assert "For a literal brace write {{ and }}." in refused("{label: string}", ["label"])
    escaped = 'Reply {{"label": "..."}} for {text}'
    assert text(escaped, {"text": "x"}) == 'Reply {"label": "..."} for x'


@pytest.mark.parametrize("template", ["{text", "text} {text}", "{text} {", "}", "{text}}"])
def test_u108_loose_braces_show_the_escape(template):
    assert "For a literal brace write {{ and }}." in refused(template, ["text"])


CELL = r"\frac{a}{b} {text} {0} {{x}} %s {}"


def test_u109_cells_are_never_read_as_templates():
    prompt = build(
        "Read {text}",
        ["text"],
        system="Reply as {json} {text}",
        examples=[(r"\frac{1}{2} {text}", "{answer}")],
    )
    system, question, answer, row = prompt.render([CELL])
    assert system["content"] == "Reply as {json} {text}"
    assert question["content"] == r"Read \frac{1}{2} {text}"
    assert answer["content"] == "{answer}"
    assert row["content"] == f"Read {CELL}"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_u109_any_cell_goes_out_unchanged(cell):
    assert text("<{a}>", {"a": cell}) == f"<{cell}>"


@given(st.text(alphabet='{}ab:.!0 "', max_size=12))
def test_any_template_renders_or_is_refused_by_our_own_errors(template):
    with contextlib.suppress(PromptError, RowError):  # a RowError for a spec for numbers
        prompt = build(template, ["a", "b"])
        prompt.render(["x"] * len(prompt.columns))


def test_u122_no_column_and_unknown_columns():
    assert refused("is it good?") == (
        "the prompt names no column, so every row would get one answer. Write {ticket}."
    )
    assert refused("{tiket}") == "no column 'tiket'; did you mean 'ticket'? Nothing was sent."
    assert refused("{TICKET:.2f}").startswith("no column 'TICKET'; did you mean 'ticket'?")
    assert "the columns are 'ticket', 'id'." in refused("{quux}")
    assert "did you mean 'row_id'" in refused("{row id}", ["t"], ["row_id"])
    assert "the frame has no column" in refused("{x}", [])
    assert isinstance(PromptError(""), ValueError)


@pytest.mark.parametrize("template", ["{ticket.upper}", "{ticket[0]}", "{ticket.__class__}"])
def test_attributes_and_parts_are_refused(template):
    assert "not read. Write {ticket}" in refused(template)


def test_conversions_and_nonsense_specs_are_refused():
    assert "Write {ticket}." in refused("{ticket!r}")
    assert "'quux' is no format spec" in refused("{ticket:quux}")


def test_duplicated_and_ambiguous_columns_are_refused_only_when_used():
    assert "2 columns are called 't'" in refused("{t}", ["t", "t", "u"])
    assert "could be any of 1, '1'" in refused("{1}", [1, "1"])
    assert "could be any of 'm.x', ('m', 'x')" in refused("{m.x}", ["m.x", ("m", "x")])
    assert build("{u}", ["t", "t", "u"]).columns == (2,)
    assert "2 columns are called 't'" in refused(lambda row: "x", ["t", "t", "u"])
    with pytest.raises(PromptError, match="2 columns are called 't'"):
        source_template("t", ["t", "t"])


def test_advice_for_a_field_before_a_long_constant_part():
    assert build("{t}\n" + "Rules. " * 50, ["t"]).advice.startswith("{t} stands before 351 char")
    assert build("Rules. " * 50 + "{t}", ["t"]).advice is None
    assert build(source_template("t", ["t"]).wrapped(after="Rules. " * 50), ["t"]).advice is None


# Values ----------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"


class Level(str, enum.Enum):  # noqa: UP042 - its str() is not its value, unlike a StrEnum's
    LOW = "low"


@dataclasses.dataclass
class Address:
    city: str
    zip: str


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1", "1"),
        (np.float32(1), "1"),
        (-0.0, "0"),
        (2**70, str(2**70)),
        (np.int64(9007199254740993), "9007199254740993"),
        (9007199254740991.0, "9007199254740991"),
        (9007199254740992.0, "9007199254740992.0"),
        (1e22, "1e+22"),
        (0.1, "0.1"),
        (np.float64(0.1), "0.1"),
        (np.float32(0.1), "0.1"),
        (np.float16(0.1), "0.1"),
        (float("inf"), "inf"),
        (True, "True"),
        (np.bool_(True), "True"),
        (np.str_("a"), "a"),
        (Color.RED, "red"),
        (Level.LOW, "low"),
        (dt.date(2024, 1, 2), "2024-01-02"),
        (dt.time(3, 4), "03:04:00"),
        (dt.datetime.fromisoformat("2024-01-02 03:04"), "2024-01-02T03:04:00"),
        (np.datetime64("2024-01-02T03:04"), "2024-01-02T03:04:00"),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (np.datetime64("2024-01-02T03:04:00.000000001"), "2024-01-02T03:04:00.000000001"),
        (dt.timedelta(days=1, seconds=1.5), "P1DT0H0M1.5S"),
        (np.timedelta64(90, "m"), "P0DT1H30M0S"),
        (pd.Timedelta(-1, unit="ns"), "-P0DT0H0M0.000000001S"),
        (pd.Period("2024-01"), "2024-01"),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (PurePosixPath("a/b"), "a/b"),
        ([1, None, float("nan"), 2.5], "[1, null, null, 2.5]"),
        ({"a": {1: "ü"}}, '{"a": {"1": "ü"}}'),
        ((1, 2.0), "[1, 2]"),
        ({"b", "a"}, '["a", "b"]'),
        (np.array([[1.0, np.nan]], dtype="float32"), "[[1, null]]"),
        (np.array([0.1], dtype="float32"), "[0.1]"),
        (pd.Series([1, 2]), "[1, 2]"),
        (Address("Bonn", "00501"), '{"city": "Bonn", "zip": "00501"}'),
    ],
)
def test_how_values_render(value, expected):
    assert format_value(value) == expected
    assert text("{v}", {"v": value}) == expected


def test_u092_numpy_inside_json():
    cell = {"n": np.int64(3), "ok": np.bool_(True), "x": np.float32(0.1), "y": np.float64(0.5)}
    assert format_value(cell) == '{"n": 3, "ok": true, "x": 0.1, "y": 0.5}'


def test_u093_dates_decimals_ids_and_bytes():
    moment = pd.Timestamp("2024-01-02 03:04", tz="UTC")
    cells = {"when": moment, "price": Decimal("1.10"), "id": uuid.UUID(int=7), "raw": b"x"}
    assert text("{when} {price}", cells) == "2024-01-02T03:04:00+00:00 1.10"
    assert json.loads(format_value([moment, cells["price"], cells["id"]])) == [
        "2024-01-02T03:04:00+00:00",
        "1.10",
        str(cells["id"]),
    ]
    for cell in (b"x", bytearray(b"x"), memoryview(b"x"), np.bytes_(b"x"), [b"x"], {"a": b"x"}):
        with pytest.raises(RowError, match=r"column 'raw': .* are not text"):
            text("{raw}", {"raw": cell})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(alphabet='aé\n"'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet="ab"), inner),
        max_leaves=8,
    ).filter(lambda v: isinstance(v, list | dict))
)
def test_u094_json_is_strict(cell):
    def never(constant):
        raise AssertionError(constant)

    json.loads(format_value(cell), parse_constant=never)


def test_objects_without_a_text_form_fail_their_row():
    for cell in (object(), lambda: None, int, [object()]):
        with pytest.raises(RowError, match=r"column 'v': .* has no text form"):
            text("{v}", {"v": cell})
    loop = []
    loop.append(loop)
    with pytest.raises(RowError, match="column 'v': nested too deeply"):
        text("{v}", {"v": loop})


def test_sets_render_alike_in_every_process():
    code = "from llmframe.prompts import format_value; print(format_value(set('abcdefg')))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert texts == {'["a", "b", "c", "d", "e", "f", "g"]\n'}


def test_a_spec_that_does_not_fit_fails_the_row():
    prompt = build("{price:.2f}", ["price"])
    assert prompt.render([2])[0]["content"] == "2.00"
    with pytest.raises(RowError) as caught:
        prompt.render(["cheap"])
    assert caught.value.kind == "prompt_error"
    assert str(caught.value) == "column 'price': format '.2f' does not fit 'cheap' (str)."
    with pytest.raises(RowError, match="does not fit"):
        text("{t:.2f}", {"t": dt.datetime.fromisoformat("2024-01-02")})


def test_an_integer_column_with_a_gap_still_takes_integer_specs():
    assert text("{n:03d} {h:x}", {"n": 3.0, "h": np.float64(255)}) == "003 ff"


# Missing cells ---------------------------------------------------------------------------------

MISSING = [
    None,
    float("nan"),
    np.float32("nan"),
    pd.NA,
    pd.NaT,
    Decimal("NaN"),
    Decimal("sNaN"),
    np.datetime64("NaT", "ns"),
    np.timedelta64("NaT", "ns"),
]


@pytest.mark.parametrize("cell", MISSING, ids=repr)
def test_u135_missing_cells_never_become_words(cell):
    assert is_missing(cell)
    prompt = build("Company: {c}", ["c"])
    assert prompt.missing([cell]) == "all"
    with pytest.raises(RowError, match="column 'c' is missing in this row"):
        prompt.render([cell])
    assert text("Company: {c:>5}", {"c": cell}, blank=True) == "Company: "
    assert format_value({"a": [cell]}) == '{"a": [null]}'


@pytest.mark.parametrize("cell", ["", " ", "nan", "None", 0, False, [], {}])
def test_blank_and_false_values_are_values(cell):
    assert not is_missing(cell)
    assert build("{c}", ["c"]).missing([cell]) == "none"


def test_u136_na_among_used_cells():
    prompt = build("{a} {b}", ["a", "b", "other"])
    assert prompt.missing([1, "x"]) == "none"
    assert prompt.missing([pd.NA, "x"]) == "some"
    assert prompt.missing([pd.NA, pd.NA]) == "all"


def test_u031_one_row_that_cannot_be_rendered_is_its_own():
    prompt = build("Say {a}", ["a"])
    assert [prompt.missing([v]) for v in ("x", None, "z")] == ["none", "all", "none"]
    assert prompt.render(["x"])[0]["content"] == "Say x"
    assert prompt.render(["z"])[0]["content"] == "Say z"


def test_u086_a_lone_surrogate_names_its_column():
    prompt = build("{ok} {bad}", ["ok", "bad"])
    assert prompt.render(["e\u0301", "\U0001f600"])[0]["content"] == "e\u0301 \U0001f600"
    for cell in ("bad \ud83d", ["\ud83d"], {"\ud83d": 1}):
        with pytest.raises(RowError, match=r"column 'bad' holds a lone surrogate \(\\ud83d\)"):
            prompt.render(["fine \U0001f600", cell])
    assert "lone surrogate" in refused("\ud83d {t}", ["t"])
    assert "lone surrogate" in refused("{t}", ["t"], system="\ud83d")
    assert "lone surrogate" in refused("{t}", ["t"], examples=[("x", "\ud83d")])
    with pytest.raises(RowError, match="lone surrogate"):
        build(lambda row: "\ud83d", ["t"]).render(["x"])


def test_nothing_is_normalised():
    assert text("{a}", {"a": "e\u0301 \u00e9 \u2126"}) == "e\u0301 \u00e9 \u2126"


# Sources ---------------------------------------------------------------------------------------


def source(what, row, **more):
    return text(source_template(what, list(row)), row, **more)


def test_sources():
    row = {"ticket": "broken", "n": None, "a{b}": 5, 0: "zero", ("m", "x"): "mx"}
    assert source("ticket", row) == "broken"
    assert source("a{b}", row) == "5"
    assert source(0, row) == "zero"
    assert source(("m", "x"), row) == "mx"
    assert source("About {ticket}", row) == "About broken"
    assert source(["ticket", "n", ("m", "x")], row) == "ticket: broken\nm.x: mx"
    with pytest.raises(PromptError, match="no column 'tiket'; did you mean 'ticket'"):
        source_template("tiket", ["ticket"])
    with pytest.raises(PromptError, match="no column 'tiket'; did you mean 'ticket'"):
        source_template(["tiket"], ["ticket"])
    with pytest.raises(PromptError, match="empty list"):
        source_template([], ["ticket"])


def test_labels_1_and_one_are_told_apart_by_a_source():
    row = {1: "int", "1": "str"}
    assert source(1, row) == "int"
    assert source("1", row) == "str"


def test_a_list_of_names_skips_only_rows_without_any_value():
    prompt = build(source_template(["a", "b"], ["a", "b"]), ["a", "b"])
    assert prompt.missing([None, 2]) == "none"
    assert prompt.missing([None, pd.NA]) == "all"


def test_wrapped_text_is_never_read_as_a_template():
    wrapped = source_template("t", ["t"]).wrapped("Labels {a} {{b}}:\n", "\n{end}")
    prompt = build(wrapped, ["t"])
    assert prompt.render(["x"])[0]["content"] == "Labels {a} {{b}}:\nx\n{end}"
    assert prompt.prefix == len("Labels {a} {{b}}:\n")


# Functions -------------------------------------------------------------------------------------


def test_a_function_gets_its_own_row_read_only():
    seen = []

    def prompt(row):
        seen.append(dict(row))
        with pytest.raises(TypeError):
            row["t"] = "other"
        return f"Hi {row['t']}"

    built = build(prompt, ["t", ("m", "x")], ["id", None, "t"])
    assert built.columns == (0, 1, -1)
    assert built.missing([None, None, None]) == "none"
    assert built.render(["a", 1, 7])[-1] == {"role": "user", "content": "Hi a"}
    assert seen == [{"t": "a", ("m", "x"): 1, "id": 7}]
    assert (built.prefix, built.text) == (0, None)


def test_a_function_may_return_a_conversation():
    chat = [
        {"role": "system", "content": "Brief.", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "hi", "n": np.int64(3)}]},
    ]
    prompt = build(lambda row: row["messages"], ["messages"], system="First.")
    for cell in (chat, tuple(chat), np.array(chat, dtype=object)):
        messages = prompt.render([cell])
        assert [m["role"] for m in messages] == ["system", "system", "user"]
        assert messages[-1]["content"] == [{"type": "text", "text": "hi", "n": 3}]
        assert "name" not in messages[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned a NoneType; expected text or a list of messages"),
        (3, "returned a int"),
        ({"role": "user", "content": "x"}, "returned a dict"),
        ([], "returned an empty list"),
        (["x"], "a list with a str in it"),
        ([{"role": "tool", "content": "x"}], "role 'tool'; expected one of system, user, assist"),
        ([{"content": "x"}], "message 0 with role None"),
        ([{"role": "user"}], "message 0 without content"),
        ([{"role": "user", "content": []}], "message 0 without content"),
        ([{"role": "user", "content": [b"x"]}], "message 0 that is not JSON"),
        ([{"role": "user", "content": "x", "weight": 2}], "message 0 with 'weight'"),
    ],
)
def test_what_a_function_returns_is_checked(answer, message):
    with pytest.raises(RowError, match=message) as caught:
        build(lambda row: answer, ["t"]).render(["x"])
    assert caught.value.kind == "prompt_error"


def test_an_exception_in_a_function_is_its_rows_failure():
    prompt = build(lambda row: row["tiket"], ["ticket"])
    with pytest.raises(RowError, match="the prompt function raised KeyError: 'tiket'"):
        prompt.render(["x"])


def test_functions_have_a_fingerprint():
    def make(body):
        space = {"__name__": "m"}
        exec(f"def ask(row):\n    return {body}", space)
        return build(space["ask"], ["t"]).code

    assert make("'a' + row['t']").startswith("m:ask#")
    assert make("'a' + row['t']") == make("'a' + row['t']")
    assert make("'a' + row['t']") != make("'b' + row['t']")
    assert make("row['t'].upper()") != make("row['t'].lower()")
    assert make("[x for x in 'a']") != make("[x for x in 'b']")

    class Ask:
        def __call__(self, row):
            return "x"

    assert "Ask#" in build(Ask(), ["t"]).code
    assert "async function" in refused(_later)
    assert "expected a template or a function" in refused(["a"])


async def _later(row):
    return "x"


# Examples, shared parts, storing ----------------------------------------------------------------


def test_examples_are_pairs_before_the_row():
    prompt = build(
        "Q: {q} ({n})",
        ["q", "n"],
        system="Brief.",
        examples=[({"q": "one?", "n": 1.0}, "1"), {"q": "two?", "n": 2, "value": 2, "ok": True}],
    )
    first, second = prompt.render(["x", 3]), prompt.render(["y", 4])
    assert [(m["role"], m["content"]) for m in first] == [
        ("system", "Brief."),
        ("user", "Q: one? (1)"),
        ("assistant", "1"),
        ("user", "Q: two? (2)"),
        ("assistant", '{"value": 2, "ok": true}'),
        ("user", "Q: x (3)"),
    ]
    assert all(a is b for a, b in zip(first[:-1], prompt.shared, strict=True))
    assert all(a is b for a, b in zip(first[:-1], second[:-1], strict=True))
    assert prompt.shared_by(first) == 5


def test_an_example_identical_to_a_row_is_left_out_for_it():
    examples = [("one", "1"), ("two", "2"), ("three", "3")]
    prompt = build("{q}", ["q"], system="s", examples=examples)
    plain, without = prompt.render(["four"]), prompt.render(["two"])
    assert [m["content"] for m in without] == ["s", "one", "1", "three", "3", "two"]
    assert all(any(m is s for s in prompt.shared) for m in without[:-1])
    assert (prompt.shared_by(plain), prompt.shared_by(without)) == (7, 3)


def test_rows_that_leave_out_different_examples_have_different_keys():
    prompt = build("{q}", ["q"], examples=[("one", "1"), ("two", "2")])

    def key(cell):
        messages = prompt.render([cell])
        return KeyMaker({}, shared=messages[: prompt.shared_by(messages)]).key(messages)

    assert len({key(cell) for cell in ("one", "two", "three")}) == 3


def test_examples_are_checked():
    assert "example 1 lacks 'q'" in refused("{q}", ["q"], examples=[({"x": 1}, "a")])
    assert "example 1 has no answer" in refused("{q}", ["q"], examples=[("x", None)])
    assert "example 1 has no answer" in refused("{q}", ["q"], examples=[{"q": "x"}])
    assert "expected (inputs, answer)" in refused("{q}", ["q"], examples=["x"])
    assert "expected a dict with 'q', 'r'" in refused("{q}{r}", ["q", "r"], examples=[("x", "y")])
    assert "only missing inputs" in refused("{q}", ["q"], examples=[(None, "y")])
    assert "column 'q': bytes are not text" in refused("{q}", ["q"], examples=[(b"x", "y")])


def test_examples_for_functions():
    prompt = build(lambda r: f"<{r['q']}>", ["q", "n"], examples=[({"q": "x"}, "y")])
    assert [m["content"] for m in prompt.render(["z", 1])] == ["<x>", "y", "<z>"]
    assert [m["content"] for m in prompt.render(["x", 1])] == ["<x>"]


def test_prefix_counts_the_constant_beginning():
    assert build("Say {{x}}: {a}", ["a"]).prefix == len("Say {x}: ")
    assert build("{a} then", ["a"]).prefix == 0


def test_a_template_prompt_is_rebuilt_from_json_on_another_frame():
    for what in ("Q {q:>3} {0}", source_template(["q", "n"], ["q", "n"]).wrapped("<{", ">")):
        prompt = build(what, ["q", "n"], system="s", examples=[({"q": "x", "n": 1}, "y")])
        again = prompt_from(json.loads(json.dumps(prompt.stored())), ["q", "other", "n"])
        row = {"q": "x", "n": 1}
        cells = [row.get(("q", "other", "n")[position]) for position in again.columns]
        assert again.render(cells) == prompt.render([row[("q", "n")[p]] for p in prompt.columns])
        assert again.stored() == prompt.stored()
    with pytest.raises(PromptError, match="no column 'q'"):
        prompt_from(build("{q}", ["q"]).stored(), ["other"])
    with pytest.raises(PromptError, match=r"Pass it again: join\(df, prompt=…\)"):
        prompt_from(build(lambda row: "x", ["q"]).stored(), ["q"])

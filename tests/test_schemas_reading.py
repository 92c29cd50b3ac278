"""From a reply's text to checked values: the fast path, the tolerant reader, the failures."""

from __future__ import annotations

import enum
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from llmframe.results import KINDS, Failure, Result, Usage
from llmframe.schemas.forms import Form, form
from llmframe.schemas.reading import Reading, read, repair_message, shorten

A = form({"a": int})


def _naive(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[arg-type, misc]


def reading(asked: Form, text: str | None, finish: str | None = "stop", **more: Any) -> Reading:
    return read(asked, Result(b"key", text, finish, **more))


def kind(asked: Form, text: str | None, finish: str | None = "stop", **more: Any) -> str:
    got = reading(asked, text, finish, **more)
    assert got.values is None
    assert got.failure is not None
    assert got.failure.kind in KINDS
    return got.failure.kind


def message(asked: Form, text: str | None, finish: str | None = "stop", **more: Any) -> str:
    failure = reading(asked, text, finish, **more).failure
    assert failure is not None
    return failure.message


# What stands around the JSON


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"a":1}\n```',
        '```\n{"a":1}\n```',
        '```JSON\n{"a":1}\n```',
        'json\n{"a":1}',
        'JSON: {"a":1}',
        'Here it is:\n\n```json\n{"a":1}\n```\nAnything else?',
        '\ufeff{"a":1}',
        'Use {braces} [like these]: {"a":1}',
        '{"a":1} or, said again, {"a": 1}',
        '{"b":2} {"a":1}',
    ],
)
def test_u088_json_in_a_fence_or_prose_is_taken_and_marked(text: str) -> None:
    got = reading(A, text)
    assert got.values == (1,)
    assert got.repaired


def test_a_strict_object_is_not_marked() -> None:
    for text in ('{"a":1}', ' \n{"a" : 1}\n', '{"a":1}' + " " * 500):
        assert reading(A, text) == Reading((1,))


def test_u090_prose_around_one_object_is_fine_and_two_answers_are_ambiguous() -> None:
    assert reading(A, 'Sure! {"a":1}').values == (1,)
    got = reading(A, '{"a":1} or maybe {"a":2}')
    assert got.failure is not None
    assert got.failure.kind == "invalid_output"
    assert "ambiguous" in got.failure.message


def test_one_and_true_are_two_answers() -> None:
    loose = form({"a": Any})
    assert "ambiguous" in message(loose, 'x {"a":1} {"a":true}')


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"a":1}, oops',
        '{"a":1,, "b":{"a":1}}',
        '[{"a":1}, {"a":2}',
        '{"x": {"a":1}}',
        '[{"a":1}]',
    ],
)
def test_half_an_answer_inside_something_else_is_no_answer(text: str) -> None:
    assert kind(A, text) == "invalid_output"


@pytest.mark.parametrize(
    "text",
    [
        '<think>maybe {"a":9}</think>{"a":1}',
        'maybe {"a":9}</think>\n{"a":1}',
        '<think>\n{"a":9}\n</think>\n\n```json\n{"a":1}\n```',
        'Okay. <THINK>hm</THINK> {"a":1}',
        '[THINK]{"a":9}[/THINK]{"a":1}',
        '<thinking>one</thinking><reasoning>{"a":2}</reasoning>{"a":1}',
        '{"a":1}<think>was that right? {"a":2}',
    ],
)
def test_u116_thinking_is_kept_apart(text: str) -> None:
    assert reading(A, text).values == (1,)


@pytest.mark.parametrize("text", ['<think>{"a":9}</think>', '<think>maybe {"a":9}', "<think>"])
def test_thinking_alone_is_no_answer(text: str) -> None:
    assert kind(A, text) == "empty_output"


def test_a_tag_inside_the_answer_is_part_of_it() -> None:
    asked = form({"t": str})
    for text in ('{"t":"a </think> b"}', '```json\n{"t":"a </think> b"}\n```'):
        assert reading(asked, text).values == ("a </think> b",)
    assert reading(asked, 'So: {"t":"<think>x</think> b"}').values == ("<think>x</think> b",)


def test_u118_the_answer_under_reasoning_names_the_servers_setting() -> None:
    got = reading(A, None, reasoning='{"a":1}')
    assert got.values is None
    assert got.failure is not None
    assert "reasoning-parser" in got.failure.message
    assert "reasoning-parser" not in message(A, None, reasoning="let me see")


# Cut off, empty, refused


def test_u021_u022_a_cut_reply_is_truncated_and_never_a_syntax_error() -> None:
    for text in ('{"a": "abc', '{"a": {"a":1}', 'Sure! {"a":1} and {"a"', "", None, "Sure"):
        assert kind(A, text, "length") == "truncated"
    assert KINDS["truncated"].again == "longer"  # once, with a larger limit
    text = message(A, '{"a": "abc', "length", usage=Usage(10, 97))
    assert "97 tokens" in text
    assert "max_tokens" in text
    assert kind(form(None), "The first half of", "length") == "truncated"


def test_a_reply_that_fills_the_window_is_not_told_to_raise_its_limit() -> None:
    failure = reading(A, '{"a": 11', "window", usage=Usage(10, 97)).failure
    assert failure is not None
    assert (failure.kind, failure.retryable) == ("truncated", False)
    assert failure.message.startswith("prompt and reply fill the window after 97 tokens. Give")
    assert "max_tokens" not in failure.message


def test_a_whole_answer_at_the_limit_is_an_answer() -> None:
    assert reading(A, '{"a":1}', "length").values == (1,)
    assert reading(A, '{"a":1}', "window").values == (1,)
    assert reading(A, '```json\n{"a":1}\n', "length").values == (1,)


def test_u128_a_run_of_white_space_is_named_and_told_short() -> None:
    text = '{\n"label":' + " " * 4000
    asked = form(Literal["x", "y"], name="label")
    got = reading(asked, text, "length")
    assert got.failure is not None
    assert got.failure.kind == "truncated"
    assert "4,000 characters of it white space" in got.failure.message
    assert len(shorten(text)) < 60
    assert shorten('{"a":\n    1}') == '{"a":\n    1}'


def test_cut_while_thinking_says_so() -> None:
    assert "thinking" in message(A, "<think>hm, let me", "length")
    assert "thinking" in message(A, None, "length", reasoning="hm, let me")


def test_empty_is_its_own_kind() -> None:
    for text in ("", None, "  \n", "\ufeff"):
        assert kind(A, text) == "empty_output"


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, I can't help with that",
        "I\u2019m sorry, but I can\u2019t assist with that request.",
        "I cannot help with this.",
        "Sorry, I am unable to comply with this request.",
        "Unfortunately, I won't be able to help: I can't provide that.",
        "As an AI, I must decline to participate in this.",
    ],
)
def test_u166_a_refusal_sentence_is_refused(text: str) -> None:
    assert kind(A, text) == "refused"
    assert KINDS["refused"].again == "no"
    assert text[:20] in message(A, text)
    # For text and for an object that holds the words it is an answer.
    assert reading(form(None), text).values == (text,)
    assert reading(form({"t": str}), f'{{"t": "{text}"}}').values == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "I cannot find a number in the text.",
        "I'm sorry, the text gives no date.",
        "I can't help but notice that no label fits.",
        "The customer says he can't help with that.",
        "The answer is 3.",
    ],
)
def test_u166_other_prose_is_a_fault_of_form(text: str) -> None:
    assert kind(A, text) == "invalid_output"


def test_u166_the_providers_own_words_come_first() -> None:
    assert kind(A, "No.", "refusal") == "refused"
    assert kind(A, None, "refusal") == "refused"
    assert kind(A, '{"a":1}', "content_filter") == "content_filter"
    failure = Failure("timeout", "no answer in 600 s", True)
    assert read(A, Result(b"", failure=failure)).failure is failure


# The strict check


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', '{"a":1,"a":1}', '```\n{"a":1,"a":2}\n```', '{"a":1,"x":{"b":1,"b":2}}'],
)
def test_a_repeated_key_is_no_answer(text: str) -> None:
    assert kind(A, text) == "invalid_output"
    assert "twice" in message(A, text)


@pytest.mark.parametrize("text", ["{}", '{"b":1}', '{"A":1}', '{"answer":{"a":1}}'])
def test_an_answer_with_none_of_the_known_keys_is_no_answer(text: str) -> None:
    class Defaults(BaseModel):
        a: int = 5
        c: str | None = None

    for asked in (A, form(Defaults), form(Defaults.model_json_schema())):
        assert kind(asked, text) == "invalid_output"


def test_a_repeated_schema_is_no_answer() -> None:
    text = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    assert "repeats the schema" in message(A, text)


@pytest.mark.parametrize(
    "text",
    ['{"x":NaN}', '{"x":Infinity}', '{"x":-Infinity}', '{"x":1e999}', '{"x":"NaN"}', '{"x":"inf"}'],
)
def test_u094_nan_and_infinity_are_no_floats(text: str) -> None:
    raw = {"type": "object", "properties": {"x": {"type": ["number", "null"]}}}
    for schema in ({"x": float}, {"x": float | None}, {"x": float, "d": Decimal | None}, raw):
        assert kind(form(schema), text) == "invalid_output"
    if "e999" not in text:  # a number to Decimal
        assert kind(form({"x": Decimal}), text) == "invalid_output"
    assert kind(form({"a": float | None, "x": Any}), '{"a":1,"x":[1e999]}') == "invalid_output"


class Size(enum.IntEnum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (int, "true"),
        (int, "3.5"),
        (int, '"three"'),
        (int, '"1_000"'),
        (int, "null"),
        (int, "[3]"),
        (float, "true"),
        (float, '"1e"'),
        (bool, "1"),
        (bool, "0"),
        (bool, '"yes"'),
        (str, "5"),
        (str, "null"),
        (Literal[1, 2], "true"),
        (Literal[True], "1"),
        (Literal["1"], "1"),
        (Size, "true"),
        (Size, "3"),
        (Literal["Spam", "Ham"], '"spam"'),
        (list[int], '{"0": 1}'),
        (date, "20240310"),
        (date, '"20240310"'),
        (date, '"1710028800"'),
        (date, '"N/A"'),
        (date, '"2024-02-30"'),
        (datetime, "1710028800"),
        (datetime, '"1710028800"'),
        (Decimal, "true"),
        (Decimal, '"twelve"'),
        (date | None, '"N/A"'),
        (int | None, '""'),
    ],
)
def test_values_of_another_type_are_refused(type_: Any, text: str) -> None:
    asked = form({"x": type_})
    assert kind(asked, f'{{"x": {text}}}') == "invalid_output"
    assert message(asked, f'{{"x": {text}}}').startswith("x: ")
    # The same schema without Python's types says the same.
    assert asked.schema is not None
    assert kind(form(asked.schema), f'{{"x": {text}}}') == "invalid_output"


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (int, "3.0", 3),
        (int, '"3"', 3),
        (int, '" -3 "', -3),
        (int | None, '"3"', 3),
        (float, '"2.5"', 2.5),
        (bool, '"true"', True),
        (bool, '"False"', False),
        (Literal[1, 2], '"1"', 1),
        (Literal[1, 2], "2.0", 2),
        (Size, '"2"', 2),
        (list[int], '[1, "2", 3.0]', [1, 2, 3]),
        (datetime, '"2024-03-10"', _naive(2024, 3, 10)),
        (date, '"2024-03-10T00:00:00"', _naive(2024, 3, 10)),
        (datetime, '"2024-03-10T12:00:00+02:00"', _naive(2024, 3, 10, 10)),
    ],
)
def test_plain_mistakes_of_type_are_put_right_and_marked(
    type_: Any, text: str, value: object
) -> None:
    asked = form({"x": type_})
    assert asked.schema is not None
    for each in (asked, form(asked.schema)):
        got = reading(each, f'{{"x": {text}}}')
        assert got.values == (value,)
        assert type(got.values[0]) is type(value)
        assert got.coerced
        assert all(path.startswith("x") for path in got.coerced)


def test_an_absent_null_is_null() -> None:
    asked = form({"a": int, "note": str | None})
    got = reading(asked, '{"a":1}')
    assert got.values == (1, None)
    assert got.coerced == ("note",)
    assert kind(form({"a": int, "note": str}), '{"a":1}') == "invalid_output"


def test_integers_of_more_than_64_bits_are_refused() -> None:
    asked = form({"x": int, "y": Any})
    assert reading(asked, f'{{"x": {2**63 - 1}, "y": {-(2**63)}}}').values == (2**63 - 1, -(2**63))
    for number in (2**63, 2**64, 10**30, -(2**63) - 1):
        assert kind(asked, f'{{"x": {number}, "y": 1}}') == "invalid_output"
        assert kind(asked, f'{{"x": 1, "y": [{number}]}}') == "invalid_output"
    assert kind(asked, '{"x": 1' + "0" * 5000 + ', "y": 1}') == "invalid_output"


def test_u003_decimal_keeps_its_digits() -> None:
    asked = form({"price": Decimal, "x": float, "free": Any})
    text = '{"price":"12.30","x":0.1,"free":{"a":[0.1]}}'
    assert repr(reading(asked, text).values) == "(Decimal('12.30'), 0.1, {'a': [0.1]})"
    for written in ("12.300", "0.12345678901234567890123", "123456789012345678901234567890"):
        got = reading(asked, f'{{"price":{written},"x":1,"free":null}}')
        assert got.values == (Decimal(written), 1.0, None)
        assert str(got.values[0]) == written
        assert not got.coerced


def test_u165_optional_dates() -> None:
    asked = form({"when": date | None})
    assert reading(asked, '{"when":null}').values == (None,)
    assert kind(asked, '{"when":"N/A"}') == "invalid_output"
    assert reading(asked, '{"when":"2024-03-10"}').values == (_naive(2024, 3, 10),)


def test_aware_times_come_in_utc() -> None:
    from pydantic import AwareDatetime

    asked = form({"at": AwareDatetime})
    got = reading(asked, '{"at":"2024-03-10T12:00:00+02:00"}')
    assert got.values == (datetime(2024, 3, 10, 10, tzinfo=UTC),)
    assert kind(asked, '{"at":"2024-03-10T12:00:00"}') == "invalid_output"


class Limits(BaseModel):
    score: int = Field(ge=1, le=5)
    names: list[str] = Field(min_length=2, max_length=2)
    code: str = Field(pattern="^[A-Z]+$", max_length=3)


@pytest.mark.parametrize("schema", [Limits, Limits.model_json_schema()], ids=["model", "json"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"score": 9}, r"^score: .*5.*9"),
        ({"names": ["a", "b", "c", "d"]}, r"^names: .*at most 2.*4"),
        ({"names": ["a"]}, r"^names: .*at least 2"),
        ({"code": "ABCDEFG"}, r"^code: .*at most 3"),
        ({"code": "abc"}, r"^code: .*pattern"),
        ({"names": [1, 2]}, r"^names\[0\]: "),
    ],
)
def test_u004_u103_u104_limits_are_held_here(
    schema: Any, change: dict[str, Any], told: str
) -> None:
    import json

    asked = form(schema)
    good = {"score": 5, "names": ["a", "b"], "code": "ABC"}
    assert reading(asked, json.dumps(good)).values == (5, ["a", "b"], "ABC")
    bad = json.dumps({**good, **change})
    assert kind(asked, bad) == "invalid_output"
    assert re.search(told, message(asked, bad))


def test_u106_a_text_where_an_object_is_due_names_the_path() -> None:
    class Address(BaseModel):
        city: str

    class Person(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str
        home: Address

    asked = form(Person)
    assert message(asked, '{"name":"Ann","home":"Oslo"}').startswith("home: ")
    assert message(asked, '{"name":"Ann","home":{"city":1}}').startswith("home.city: ")
    extra = message(asked, '{"name":"Ann","home":{"city":"Oslo"},"age":3}')
    assert extra.startswith("age: is no key")


def test_extra_keys_follow_the_models_own_config() -> None:
    assert reading(A, '{"a":1,"b":2}').values == (1,)


def test_a_users_validator_speaks_and_never_ends_the_job() -> None:
    class Checked(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def odd(cls, value: int) -> int:
            if value == 4:
                raise ValueError("4 is even")
            assert value != 6, "6 too"
            return 10 // (value - 8)  # 8: a fault of the validator's own

    asked = form(Checked)
    assert reading(asked, '{"n":9}').values == (10,)
    assert message(asked, '{"n":4}') == "n: 4 is even"
    assert message(asked, '{"n":6}').startswith("n: 6 too")
    assert kind(asked, '{"n":6}') == "invalid_output"
    assert kind(asked, '{"n":8}') == "user_code"
    assert kind(asked, 'Here: {"n":8}') == "user_code"
    assert "ZeroDivisionError" in message(asked, '{"n":8}')
    assert ", in odd" in message(asked, '{"n":8}')


def test_a_validator_that_changes_the_type_is_the_users_fault() -> None:
    class Changed(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def text(cls, value: int) -> Any:
            return [value]

    assert kind(form(Changed), '{"n":1}') == "user_code"


# Bare types and text


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (int, '{"response":3}', 3),
        (int, "3", 3),
        (int, "```\n3\n```", 3),
        (bool, "true", True),
        (list[int], "[1,2]", [1, 2]),
        (list[int], "Sure: [1, 2]", [1, 2]),
        (Literal["Spam", "Ham"], "Ham", "Ham"),
        (Literal["Spam", "Ham"], '"Ham"', "Ham"),
        (Literal["Spam", "Ham"], "<think>Spam?</think>Ham", "Ham"),
        (re.compile("[A-Z]{2}[0-9]"), "AB1", "AB1"),
    ],
)
def test_a_bare_value_may_come_without_its_object(type_: Any, text: str, value: object) -> None:
    got = reading(form(type_), text)
    assert got.values == (value,)
    assert got.repaired == (text[0] != "{")


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (int, "The answer is 3"),
        (str, "any prose"),
        (Literal["Spam", "Ham"], "spam or ham"),
        (re.compile("[A-Z]{2}[0-9]"), "AB12"),
        (re.compile("[A-Z]{2}[0-9]"), '{"response": "AB1\\n"}'),
        (list[int], "[1,2] or [3]"),
    ],
)
def test_a_bare_value_is_never_guessed(type_: Any, text: str) -> None:
    assert kind(form(type_), text) == "invalid_output"


def test_text_comes_as_it_is() -> None:
    text = form(None)
    for answer in ("hello", " two  spaces \n", '{"a":1}', "He wrote <think> twice.", "\u2028x"):
        assert reading(text, answer).values == (answer,)
    assert reading(text, "<think>hm</think>\n\nhello").values == ("hello",)
    assert reading(text, "hm</think>\n\nhello").values == ("hello",)
    assert kind(text, "<think>hm") == "empty_output"


def test_an_empty_text_is_an_answer_where_nothing_else_was_spent() -> None:
    text = form(None)
    assert reading(text, "", "stop").values == ("",)
    assert kind(text, None) == "empty_output"
    assert kind(text, "", "stop", reasoning="hm") == "empty_output"
    assert kind(text, "", "stop", usage=Usage(3, 50, reasoning_tokens=50)) == "empty_output"
    assert kind(text, "<think>hm</think>") == "empty_output"


# Total, whatever comes


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        "{" * 100_000,
        '{"' * 50_000,
        '"' * 100_001,
        '{"a":"\ud83d"}',
        '\ud83d {"a":"x"}',
        "\x00\x01",
        "</think>" * 10_000,
        "<think>" * 10_000,
        " " * 200_000,
        '{"a": [1,2}',
        '["a" ' * 20_000,
        "'" * 1000,
    ],
    ids=range(15),
)
def test_no_text_raises(text: str) -> None:
    for asked in (A, form(None), form(Literal["x", "y"]), form({"a": list[Any]})):
        for finish in ("stop", "length", None, "odd"):
            got = reading(asked, text, finish)
            assert (got.values is None) != (got.failure is None)


def test_u142_the_order_of_keys_in_a_reply_does_not_matter() -> None:
    asked = form({"a": int, "b": str})
    assert reading(asked, '{"b":"x","a":1}').values == (1, "x")
    assert reading(asked, '{"a":1,"b":"x"}').values == (1, "x")


# What the model is told


def test_a_repair_names_the_path_and_the_allowed_labels() -> None:
    asked = form({"label": Literal["Spam", "Ham"], "why": str})
    failure = asked.check({"label": "Junk", "why": "x"}).failure
    assert failure is not None
    told = repair_message(asked, failure, '{"label": "Junk", "why": "x"}')
    assert "label" in told
    assert '"Spam", "Ham"' in told
    assert '"Junk"' in told
    assert '"why"' in told


def test_a_repair_is_bounded() -> None:
    many = Literal[tuple(f"label number {i}" for i in range(800))]  # type: ignore[valid-type]
    asked = form({f"field_{i}": many for i in range(30)})
    failure = asked.check({f"field_{i}": "no" for i in range(30)}).failure
    assert failure is not None
    assert len(failure.message) <= 600
    told = repair_message(asked, failure, "x" * 100_000)
    assert len(told) <= 2000
    assert "field_0" in told
    assert "one JSON object" in told
    assert len(repair_message(form(None), Failure("empty_output", "empty"), None)) < 200


class More(BaseModel):
    x: int = 0


class Noted(BaseModel):
    a: int
    note: str = ""
    more: list[More] = []


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":1,"a" :2}',
        '{"a" :1,"a":2}',
        '{"a":1,"a"\n:2}',
        '{"a":1,"a"\t:2}',
        '{"a":1,"a"\r:2}',
        '{"a":1,"\\u0061":2}',
        '{"a":1,"more":[{"x":1,"x":2}]}',
        '{"a":1,"more":[{"x":1,"x" :2}]}',
        '{"a":1,"note":"{","a":2}',
        '{"a":1,"note":"\\":","a":2}',
    ],
)
def test_a_repeated_key_is_never_read_at_once(text: str) -> None:
    asked = form(Noted)
    assert asked.at_once(text) is None
    failure = read(asked, Result(b"", text, "stop")).failure
    assert failure is not None
    assert "is there twice" in failure.message


@pytest.mark.parametrize(
    "note", ["", ":", "{}", '":', 'say "a": 1', " : ", "a\n:", "\\", "ä\u2028"]
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :\n")])
def test_whatever_a_text_holds_it_is_read_the_same_at_once_and_slowly(
    note: str, separators: tuple[str, str]
) -> None:
    asked = form(Noted)
    answer = {"a": 1, "note": note, "more": [{"x": 1}, {"x": 2}]}
    text = json.dumps(answer, separators=separators)
    assert asked.at_once(text) in (None, (1, note, answer["more"]))
    assert read(asked, Result(b"", text, "stop")).values == (1, note, answer["more"])


def test_an_ordinary_reply_is_read_at_once() -> None:
    text = json.dumps({"a": 1, "note": "He said: {well}", "more": [{"x": 2}]})
    assert form(Noted).at_once(text) == (1, "He said: {well}", [{"x": 2}])
    assert form(Noted).at_once('{"a":"1"}') is None  # coerced, which is to be marked
    assert form({"n": float}).at_once('{"n":1e999}') is None
    assert form({"n": float}).at_once('{"n":NaN}') is None
    assert form({"n": int | None}).at_once('{"m":1}') is None

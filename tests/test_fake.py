"""The fake engine: its answers, its faults, and what it records."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import pickle
import re
import threading

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from llmframe.engines.base import Engine
from llmframe.engines.fake.faults import FAULTS
from llmframe.engines.fake.values import Draw, fitting, matching
from llmframe.errors import EngineError
from llmframe.options import set_options
from llmframe.requests import Request
from llmframe.results import KINDS, Failure, Result
from llmframe.testing import (
    FakeEngine,
    Fault,
    ListSource,
    Switch,
    answers,
    ask,
    drive,
    in_turn,
    requests,
)

LABELS = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["bug", "billing"]}},
    "required": ["label"],
}
TICKET = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer"}},
    "required": ["city", "nights"],
}


def texts(results):
    return [result.text for result in results]


# Answers


def test_without_an_answer_each_row_gets_its_own_prompt_back():
    assert texts(drive(FakeEngine(), requests(["one", "two"]))) == ["one", "two"]


def test_without_an_answer_a_schema_is_filled_the_same_way_every_time():
    first = texts(drive(FakeEngine(), requests(["one", "two", "three"], TICKET)))
    again = texts(drive(FakeEngine(), requests(["one", "two", "three"], TICKET)))
    assert first == again
    assert len(set(first)) > 1
    assert set(json.loads(first[0])) == {"city", "nights"}


def test_the_seed_changes_the_automatic_answers():
    rows = requests([f"row {i}" for i in range(20)], TICKET)
    assert texts(drive(FakeEngine(seed=1), rows)) != texts(drive(FakeEngine(seed=2), rows))


class Colour(enum.Enum):
    RED = "red"


class Trip(BaseModel):
    city: str
    day: datetime.date


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("plain", "plain"),
        (3, "3"),
        (True, "true"),
        ([1, "ü"], '[1, "ü"]'),
        ({"a": None}, '{"a": null}'),
        (Trip(city="Rome", day=datetime.date(2024, 5, 1)), '{"city": "Rome", "day": "2024-05-01"}'),
        (Point(2), '{"x": 2}'),
        (Colour.RED, '"red"'),
    ],
)
def test_any_value_is_sent_as_its_json(answer, text):
    assert ask(FakeEngine(answer), "hello").text == text
    assert ask(FakeEngine(lambda _: answer), "hello").text == text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("bug", '{"label": "bug"}'),
        ('{"label": "bug"}', '{"label": "bug"}'),
        ("neither", "neither"),
    ],
)
def test_a_label_is_wrapped_and_any_other_text_is_sent_as_it_is(answer, text):
    assert ask(FakeEngine(answer), "hello", LABELS).text == text


def test_a_bare_value_is_wrapped_for_a_schema_of_one_field():
    schema = {"type": "object", "properties": {"response": {"type": "integer"}}}
    assert ask(FakeEngine(7), "hello", schema).text == '{"response": 7}'
    assert ask(FakeEngine(7), "hello", TICKET).text == "7"


def test_a_callable_gets_the_text_of_the_last_message():
    [request] = requests(["hello"], system="be kind")
    assert texts(drive(FakeEngine(str.upper), [request])) == ["HELLO"]


def test_a_callable_gets_the_text_of_a_message_in_parts():
    [request] = requests(["x"])
    parts = [{"type": "text", "text": "look"}, {"type": "image_url"}, {"type": "text", "text": "!"}]
    request = dataclasses.replace(request, messages=({"role": "user", "content": parts},))
    seen = []
    drive(FakeEngine(seen.append), [request])
    assert seen == ["look\n\n!"]


def by_name(request):
    return request.position


def by_annotation(r: Request):
    return r.position


@pytest.mark.parametrize("answer", [by_name, by_annotation])
def test_a_callable_that_asks_for_the_request_gets_it(answer):
    assert texts(drive(FakeEngine(answer), requests(["a", "b"]))) == ["0", "1"]


def test_a_callable_may_give_a_failure_a_result_or_nothing():
    kinds = {
        "fail": Failure("refused", "no"),
        "whole": Result(b"", text="cut", finish="length", request_id="mine"),
        "auto": None,
    }
    failed, whole, auto = drive(FakeEngine(kinds.get), requests(kinds))
    assert failed.failure == Failure("refused", "no")
    assert (whole.text, whole.finish, whole.request_id) == ("cut", "length", "mine")
    assert whole.key == requests(kinds)[1].key
    assert auto.text == "auto"


def test_a_mistake_in_the_answer_function_surfaces_as_itself():
    def broken(text):
        return {"a": 1}[text]

    with pytest.raises(KeyError) as caught:
        drive(FakeEngine(broken), requests(["hello"]))
    assert "for the prompt 'hello'" in caught.value.__notes__[0]


def test_answers_finds_the_cell_in_the_prompt_and_prefers_the_longest():
    look_up = answers({"cat": 1, "catalogue": 2, "exactly cat": 3})
    engine = FakeEngine(look_up)
    prompts = ["a cat", "a catalogue", "exactly cat"]
    assert texts(drive(engine, requests(prompts))) == ["1", "2", "3"]
    with pytest.raises(LookupError, match="no answer for the prompt 'dog'"):
        drive(engine, requests(["dog"]))
    assert ask(FakeEngine(answers({"cat": 1}, default=None)), "dog").text == "dog"


def test_in_turn_ends_with_an_error():
    engine = FakeEngine(in_turn("a", "b"))
    with pytest.raises(LookupError, match="request 3 came"):
        drive(engine, requests(["1", "2", "3"]))


def test_usage_is_about_a_token_for_four_characters():
    [request] = requests(["x" * 200], system="y" * 200)
    usage = drive(FakeEngine("z" * 40), [request])[0].usage
    assert (usage.input_tokens, usage.output_tokens) == (101, 11)


# Label probabilities


def scored(answer, *choices, **options):
    engine = FakeEngine(answer, choices=True, **options)
    [result] = drive(engine, requests(["hello"], LABELS, choices=choices))
    return result


def test_a_label_gets_most_of_the_probability():
    result = scored("bug", "billing", "bug", "other")
    assert [round(math.exp(p), 3) for p in result.choice_logprobs] == [0.05, 0.9, 0.05]
    assert result.text == "bug"


def test_a_dict_sets_the_probabilities():
    result = scored({"bug": 3, "billing": 1}, "billing", "bug")
    assert [round(math.exp(p), 3) for p in result.choice_logprobs] == [0.25, 0.75]


def test_an_answer_as_from_an_engine_without_scores_counts_too():
    assert scored({"label": "bug"}, "billing", "bug").text == "bug"


def test_the_automatic_label_is_one_of_them():
    assert scored(None, "billing", "bug").text in {"billing", "bug"}


def test_a_text_that_is_no_label_has_no_probabilities():
    result = scored("neither", "billing", "bug")
    assert (result.text, result.choice_logprobs) == ("neither", None)


def test_a_content_free_input_is_answered_without_asking_the_test():
    def only_rows(text):
        raise AssertionError(text)

    [request] = requests(["N/A"], LABELS, choices=("bug", "billing"))
    request = dataclasses.replace(request, position=-1)
    [result] = drive(FakeEngine(only_rows, choices=True), [request])
    assert [round(math.exp(p), 3) for p in result.choice_logprobs] == [0.5, 0.5]


def test_without_choices_the_label_comes_under_the_schema():
    [request] = requests(["hello"], LABELS, choices=("bug", "billing"))
    [result] = drive(FakeEngine("bug"), [request])
    assert (result.text, result.choice_logprobs) == ('{"label": "bug"}', None)


# Faults


def by_key(results):
    found = {}
    for result in results:
        found.setdefault(result.key, []).append(result)
    return found


@pytest.mark.parametrize("kind", sorted({*FAULTS, "429", "400", "500", "503"} - {"crash"}))
def test_every_fault_of_a_row_leaves_the_others_alone(kind):
    rows = requests([f"row {i}" for i in range(5)])
    engine = FakeEngine(faults=[None, None, kind], timeout=0.01)
    results = by_key(drive(engine, rows))
    for place in (0, 1, 3, 4):
        assert texts(results[rows[place].key]) == [f"row {place}"]
    hit = results.get(rows[2].key, [])
    assert len(hit) == {"drop": 0, "duplicate": 2, "conflict": 2}.get(kind, 1)
    assert all(result.failure is None or result.failure.kind in KINDS for result in hit)


def one(kind, **options):
    return ask(FakeEngine("a whole sentence", faults=Fault(kind, **options), timeout=0.0), "hello")


def test_what_each_fault_looks_like():
    assert one("429", retry_after=2.5).failure.retry_after == 2.5
    assert one("429", code="insufficient_quota").failure.fatal
    assert one("500").failure.maybe_paid
    assert one("500").failure.retryable
    assert one("400").failure.kind == "invalid_request"
    assert not one("400").failure.retryable
    assert one("413").failure.kind == "request_too_large"
    assert all(one(status).failure.fatal for status in ("401", "402", "403", "404"))
    assert one("refuse").failure.kind == "refused"
    assert one("filter").failure.kind == "content_filter"
    assert one("hang").failure.kind == "timeout"
    assert one("connection").failure.kind == "connection"
    assert (one("empty").text, one("empty").failure.kind) == ("", "empty_output")
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(one("garbage").text)


def test_a_truncated_reply_keeps_its_text_and_its_usage():
    cut = one("truncate")
    assert (cut.text, cut.finish, cut.failure.kind) == ("a whole ", "length", "truncated")
    assert cut.usage.output_tokens == 3


def test_two_conflicting_results_differ():
    first, second = drive(FakeEngine(faults="conflict"), requests(["hello"]))
    assert first.key == second.key
    assert first.text != second.text


def test_a_reordered_row_comes_last():
    rows = requests(["a", "b", "c"])
    assert texts(drive(FakeEngine(faults=["reorder"]), rows)) == ["b", "c", "a"]


def test_a_share_falls_on_the_same_rows_every_time():
    rows = requests(map(str, range(2000)))
    hit = [r.key for r in drive(FakeEngine(faults={"500": 0.1, "drop": 0.1}), rows) if r.failure]
    again = [r.key for r in drive(FakeEngine(faults={"500": 0.1, "drop": 0.1}), rows) if r.failure]
    other = [r.key for r in drive(FakeEngine(faults={"500": 0.1}, seed=1), rows) if r.failure]
    assert hit == again
    assert hit != other
    assert 150 < len(hit) < 250
    assert 1750 < len(drive(FakeEngine(faults={"drop": 0.1}), rows)) < 1850


def test_a_fault_ends_after_its_tries():
    row = requests(["hello"])
    engine = FakeEngine(faults=Fault("500", times=2))
    kinds = [drive(engine, row)[0].failure for _ in range(3)]
    assert [kind is None for kind in kinds] == [False, False, True]
    always = FakeEngine(faults={Fault("500", times=None): 1.0})
    assert all(drive(always, row)[0].failure for _ in range(5))


def test_a_callable_chooses_the_fault():
    engine = FakeEngine(faults=lambda request: "drop" if request.position == 1 else None)
    assert texts(drive(engine, requests(["a", "b", "c"]))) == ["a", "c"]


def test_a_crash_ends_the_stream():
    engine = FakeEngine(faults=[None] * 5 + ["crash"])
    rows = requests(map(str, range(10)))
    stream = engine.stream(ListSource(rows), Switch(limit=2))
    assert texts(next(stream) + next(stream)) == ["0", "1", "2", "3"]
    with pytest.raises(EngineError, match="crashed at request 6") as caught:
        next(stream)
    assert caught.value.retryable
    assert len(drive(engine, rows[4:])) == 6


@pytest.mark.parametrize("faults", ["nope", ["399"], {"nope": 0.5}, {"drop": 0.6, "500": 0.5}])
def test_faults_that_make_no_sense_are_refused(faults):
    with pytest.raises(ValueError, match=r"no fault|fault shares"):
        FakeEngine(faults=faults)


# What it records, and how it runs


def test_it_records_what_it_saw():
    engine = FakeEngine(latency=0.001)
    rows = requests(map(str, range(10)))
    drive(engine, rows, limit=4)
    assert engine.requests == rows
    assert engine.in_flight_max == 4


def test_latency_may_depend_on_the_request():
    engine = FakeEngine(latency=lambda request: 0.02 if request.position == 0 else 0.0)
    assert texts(drive(engine, requests(["slow", "b", "c"]))) == ["b", "c", "slow"]


def test_the_limit_is_read_live():
    control = Switch(limit=1)
    engine = FakeEngine(latency=0.001)
    stream = engine.stream(ListSource(requests(map(str, range(20)))), control)
    next(stream)
    assert engine.in_flight_max == 1
    control.limit = 5
    assert sum(len(results) for results in stream) == 19
    assert engine.in_flight_max == 5


def test_two_streams_at_once_count_together_and_do_not_mix():
    engine = FakeEngine(latency=0.002)
    got = {}

    def run(name):
        got[name] = set(texts(drive(engine, requests([f"{name}{i}" for i in range(50)]), limit=4)))

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {name: {f"{name}{i}" for i in range(50)} for name in "ab"}
    assert 4 < engine.in_flight_max <= 8


def test_a_stream_that_is_left_early_frees_its_places():
    engine = FakeEngine(latency=60)
    stream = engine.stream(ListSource(requests(["a"])), control := Switch())
    control.mode = "abort"
    assert list(stream) == []
    engine = FakeEngine(faults=Fault("crash", times=None))
    for _ in range(3):
        with pytest.raises(EngineError):
            drive(engine, requests(["a", "b"]))
    assert engine.in_flight_max == 2


def test_it_pickles_with_what_it_recorded():
    engine = FakeEngine(answers({"a": 1}), faults={"500": 0.1})
    drive(engine, requests(["a"]))
    copy = pickle.loads(pickle.dumps(engine))
    assert copy.identity() == engine.identity()
    assert copy.requests == engine.requests
    assert ask(copy, "a").text == "1"


def test_its_store_is_its_own_and_in_memory():
    engine = FakeEngine()
    assert engine.store is engine.store
    assert engine.store.path is None
    assert engine.store is not FakeEngine().store
    assert pickle.loads(pickle.dumps(engine)).store is not engine.store


def test_it_is_an_engine():
    assert isinstance(FakeEngine(), Engine)
    assert "fake-1" in repr(FakeEngine())


# Values that fit a schema


class Node(BaseModel):
    name: str
    children: list[Node]
    parent: Node | None


@pytest.mark.parametrize(
    "schema",
    [
        TypeAdapter(Node).json_schema(),
        TypeAdapter(dict[str, int]).json_schema(),
        TypeAdapter(tuple[int, str]).json_schema(),
        TypeAdapter(list[int | str | None]).json_schema(),
        TypeAdapter(datetime.datetime).json_schema(),
        {"type": "string", "format": "uuid"},
        {"type": ["string", "null"], "minLength": 30, "maxLength": 31},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": True},
        {
            "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"const": 1}}}],
            "$defs": {"A": TICKET},
        },
        {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1001},
        {"type": "number", "multipleOf": 0.5, "maximum": -3},
        {"type": "integer", "exclusiveMinimum": 4, "maximum": 5},
        {"oneOf": [{"type": "integer"}, {"enum": ["a"]}]},
        {"type": "string", "pattern": r"^[A-Z]{2}-\d{3,5}(\.[ab]|x)?$"},
        {"type": "string", "pattern": r"^[^/]+/\w*\s\S$"},
    ],
    ids=str,
)
def test_values_fit_the_schema(schema):
    jsonschema = pytest.importorskip("jsonschema")
    for seed in range(50):
        value = fitting(schema, Draw(str(seed).encode()))
        jsonschema.validate(json.loads(json.dumps(value)), schema)


@given(low=st.integers(-1000, 1000), span=st.integers(0, 300), step=st.integers(1, 7))
def test_integers_keep_their_bounds(low, span, step):
    schema = {"type": "integer", "minimum": low, "maximum": low + span}
    assert low <= fitting(schema, Draw(b"x")) <= low + span
    if span >= step:
        assert fitting({**schema, "multipleOf": step}, Draw(b"x")) % step == 0


@given(st.binary(min_size=1), st.sampled_from([r"\d+", r"(a|bc){2}", r"[^a]", r".?x*y+?", r"a{3}"]))
def test_a_pattern_is_found_in_its_text(seed, pattern):
    assert re.search(pattern, matching(pattern, Draw(seed)))


def test_batch_true_goes_to_the_batch_twin():
    engine = FakeEngine(
        str.upper, faults=lambda request: "refuse" if "b" in _text(request) else None
    )
    df = pd.DataFrame({"t": ["a", "b", "c"]})
    with set_options(poll_interval=0.02):
        out = df.llm.map("{t}", model=engine, batch=True, errors="coerce")
    assert out["response"].fillna("").tolist() == ["A", "", "C"]
    asked = len(engine.requests)
    again = df.llm.map("{t}", model=engine, errors="coerce")  # live: one store, nothing more to ask
    assert len(engine.requests) == asked
    pd.testing.assert_frame_equal(again, out)


def _text(request):
    return request.messages[-1]["content"]

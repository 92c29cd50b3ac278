"""Bodies out and results in, against golden files; nothing is sent.

A golden file ``body_*.json`` holds a request and the body it must become; ``reply_*.json`` a
response and the result it must become. To add one, write the first half and fill in the second
by what the wire's documentation says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.engines.openai_bodies import Bodies, Features, features_of, refused
from llmframe.engines.openai_wire import failure_of, from_wire
from llmframe.requests import Request, Sampling
from llmframe.results import KINDS, Failure, Result

GOLDEN = Path(__file__).parent / "golden" / "openai"


def make_request(fields: Mapping[str, Any]) -> Request:
    fields = dict(fields)
    sampling = Sampling(**fields.pop("sampling", {}))
    choices = fields.pop("choices", None)
    return Request(
        bytes(16),
        0,
        tuple(fields.pop("messages", ())),
        choices=None if choices is None else tuple(choices),
        sampling=sampling,
        **fields,
    )


def make_body(golden: Mapping[str, Any]) -> Any:
    features = features_of(golden["model"], golden.get("official", False))
    features = replace(features, **golden.get("features", {}))
    body = Bodies(golden["model"]).encode(make_request(golden["request"]), features)
    return json.loads(body)


def said(result: Result) -> dict[str, Any]:
    """A result as golden files hold it: without what is empty."""
    fields = asdict(result)
    del fields["key"]
    if fields["failure"]:
        fields["failure"] = {name: value for name, value in fields["failure"].items() if value}
    if fields["usage"]:
        fields["usage"] = {name: value for name, value in fields["usage"].items() if value}
    kept = {name: value for name, value in fields.items() if value is not None}
    read: dict[str, Any] = json.loads(json.dumps(kept))
    return read


def read(golden: Mapping[str, Any]) -> Result:
    body = golden["body"]
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = golden.get("headers", {})
    return from_wire(make_request(golden.get("request", {})), golden["status"], headers, data)


def files(kind: str) -> list[Any]:
    found = sorted(GOLDEN.glob(f"{kind}_*.json"))
    assert found
    return [pytest.param(json.loads(file.read_text()), id=file.stem) for file in found]


@pytest.mark.parametrize("golden", files("body"))
def test_bodies(golden: dict[str, Any]) -> None:
    if "schema" in golden["request"]:
        pytest.importorskip("llmframe.schemas.dialects")
    body = make_body(golden)
    assert body == golden["body"]
    assert json.dumps(body) == json.dumps(golden["body"])  # the order counts on the wire


@pytest.mark.parametrize("golden", files("reply"))
def test_replies(golden: dict[str, Any]) -> None:
    result = said(read(golden))
    assert result == golden["result"]
    if "failure" in result:
        assert result["failure"]["kind"] in KINDS


SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "label": {"type": "string"}},
    "required": ["reason", "label"],
    "additionalProperties": False,
}


def body(request: Request, features: Features | None = None) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(Bodies("m").encode(request, features or Features()))
    return decoded


def test_u106_strict_is_sent() -> None:
    pytest.importorskip("llmframe.schemas.dialects")
    sent = body(make_request({"messages": [{"role": "user", "content": "x"}], "schema": SCHEMA}))
    assert sent["response_format"]["type"] == "json_schema"
    assert sent["response_format"]["json_schema"]["strict"] is True


def test_u151_fields_keep_their_order() -> None:
    pytest.importorskip("llmframe.schemas.dialects")
    sent = body(make_request({"messages": [{"role": "user", "content": "x"}], "schema": SCHEMA}))
    wire = sent["response_format"]["json_schema"]["schema"]
    assert list(wire["properties"]) == ["reason", "label"]
    assert wire["required"] == ["reason", "label"]


@pytest.mark.parametrize("shared", [0, 1])
def test_a_schema_in_the_prompt_goes_into_the_one_system_message(shared: int) -> None:
    dialects = pytest.importorskip("llmframe.schemas.dialects")
    system = {"role": "system", "content": "Be brief."}
    messages = [system, {"role": "user", "content": "x"}]
    request = make_request({"messages": messages, "schema": SCHEMA, "shared": shared})
    sent = body(request, Features(response_format=False))
    assert "response_format" not in sent
    first, second = sent["messages"]
    assert first == {"role": "system", "content": f"Be brief.\n\n{dialects.plain(SCHEMA)}"}
    assert second == messages[1]
    assert system["content"] == "Be brief."  # the row's own messages are left as they are


def test_a_schema_in_the_prompt_without_a_system_message() -> None:
    dialects = pytest.importorskip("llmframe.schemas.dialects")
    user = {"role": "user", "content": "x"}
    sent = body(
        make_request({"messages": [user], "schema": SCHEMA}), Features(response_format=False)
    )
    assert sent["messages"] == [{"role": "system", "content": dialects.plain(SCHEMA)}, user]


def test_u092_numpy_values_go_out_as_plain_numbers() -> None:
    sampling = {
        "temperature": np.float64(0),
        "max_tokens": np.int64(9),
        "seed": np.int32(3),
        "extra": {"top_p": np.float32(0.5), "flag": np.bool_(True), "n": np.int64(1)},
    }
    sent = body(make_request({"messages": [], "sampling": sampling}))
    assert sent["temperature"] == 0
    assert (sent["max_tokens"], sent["seed"], sent["top_p"], sent["n"]) == (9, 3, 0.5, 1)
    assert sent["flag"] is True


def test_integers_of_any_size_are_sent() -> None:
    sent = body(make_request({"messages": [], "sampling": {"extra": {"big": 2**70}}}))
    assert sent["big"] == 2**70


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, "lone surrogate"),
        ({"messages": [{"role": "user", "content": object()}]}, "not plain JSON"),
        ({"messages": [], "sampling": {"extra": {"stream": True}}}, "stream"),
        ({"messages": [], "sampling": {"extra": {"messages": [1]}}}, "messages"),
    ],
)
def test_what_cannot_be_sent_says_why(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Bodies("m").encode(make_request(fields), Features())


def test_prepared_heads_never_mix_up_two_calls() -> None:
    """Heads are found by identity; an object that is gone must not lend its place."""
    bodies = Bodies("m")
    for number in range(300):
        system = {"role": "system", "content": f"call {number}"}
        sampling = {"max_tokens": number + 1, "extra": {"call": number}}
        messages = [system, {"role": "user", "content": f"row {number}"}]
        request = make_request({"messages": messages, "shared": 1, "sampling": sampling})
        for _ in range(2):
            sent = json.loads(bodies.encode(request, Features()))
            assert sent["messages"] == messages
            assert (sent["call"], sent["max_tokens"]) == (number, number + 1)


@pytest.mark.parametrize(
    ("model", "temperature", "logprobs", "marks"),
    [
        ("gpt-4.1-mini", True, 20, False),
        ("gpt-4o", True, 20, False),
        ("o1", False, 0, False),
        ("o4-mini-2025-04-16", False, 0, False),
        ("gpt-5", False, 0, False),
        ("gpt-5-chat-latest", True, 20, False),
        ("gpt-5.6-mini", False, 0, True),
        ("gpt-5.10", False, 0, True),
        ("ft:gpt-4.1-mini:org::id", True, 20, False),
    ],
)
def test_what_is_known_by_name(model: str, temperature: bool, logprobs: int, marks: bool) -> None:
    features = features_of(model, official=True)
    assert features.limit == "max_completion_tokens"
    found = (features.temperature, features.top_logprobs, features.cache_marks)
    assert found == (temperature, logprobs, marks)
    assert features_of(model, official=False) == Features()


UNSUPPORTED = "Unsupported parameter: '{}' is not supported with this model."


@pytest.mark.parametrize(
    ("words", "code", "param", "change"),
    [
        (UNSUPPORTED.format("temperature"), "unsupported_parameter", "temperature", "temperature"),
        ("'temperature' does not support 0", "unsupported_value", "temperature", "temperature"),
        ("`temperature` must be strictly positive", None, None, "temperature"),
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
            "unsupported_parameter",
            "max_tokens",
            "limit",
        ),
        ("max_tokens: Extra inputs are not permitted", "extra_forbidden", "max_tokens", "limit"),
        ("max_tokens is too large: 9000", None, "max_tokens", None),
        ("This response_format type is unavailable now", None, None, "response_format"),
        (
            "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this "
            "model.",
            None,
            "response_format",
            "response_format",
        ),
        (
            "response_format.type must be text or json_object",
            None,
            "response_format.type",
            "response_format",
        ),
        ("json_schema is not supported by this backend", None, None, "response_format"),
        (
            "Invalid schema for response_format 'x': 'required' is required",
            None,
            "response_format",
            None,
        ),
        ('Grammar error: Unimplemented keys: ["uniqueItems"]', None, None, None),
        (UNSUPPORTED.format("logprobs"), "unsupported_parameter", "logprobs", "top_logprobs"),
        ("You are not allowed to request logprobs from this model", None, None, "top_logprobs"),
        ("top_logprobs must be between 0 and 5", None, "top_logprobs", "top_logprobs"),
        ("Invalid value for 'top_p'", None, "top_p", None),
        ("something is wrong", None, None, None),
    ],
)
def test_u158_a_refusal_is_told_from_a_fault(
    words: str, code: str | None, param: str | None, change: str | None
) -> None:
    error = {"error": {"message": words, "code": code, "param": param, "type": None}}
    failure = failure_of(400, {}, error)
    sampling = {"max_tokens": 5}
    request = make_request({"schema": SCHEMA, "choices": ["a"], "sampling": sampling})
    before = Features()
    after = refused(failure, request, before)
    changed = (
        []
        if after is None
        else [
            name
            for name in ("temperature", "limit", "response_format", "top_logprobs")
            if getattr(before, name) != getattr(after, name)
        ]
    )
    assert changed == ([change] if change else [])


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.7}, {"extra": {"temperature": 0}}]
)
def test_what_the_user_asked_for_is_never_left_out(sampling: dict[str, Any]) -> None:
    words = UNSUPPORTED.format("temperature")
    failure = failure_of(400, {}, {"error": {"message": words, "param": "temperature"}})
    assert refused(failure, make_request({"sampling": sampling}), Features()) is None


def test_the_limits_name_is_changed_once() -> None:
    words = "'{}' is not supported"
    request = make_request({"sampling": {"max_tokens": 5}})
    once = refused(
        Failure("invalid_request", words.format("max_tokens"), status=400), request, Features()
    )
    assert once is not None
    again = Failure("invalid_request", words.format("max_completion_tokens"), status=400)
    assert refused(again, request, once) is None


def test_five_alternatives_before_none() -> None:
    request = make_request({"choices": ["a"]})
    failure = Failure("invalid_request", "top_logprobs must be at most 5", status=400)
    fewer = refused(failure, request, Features())
    assert fewer is not None
    assert fewer.top_logprobs == 5
    none = refused(failure, request, fewer)
    assert none is not None
    assert none.top_logprobs == 0


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_only_a_bad_request_teaches(status: int) -> None:
    failure = Failure("invalid_request", "temperature", status=status, param="temperature")
    assert refused(failure, make_request({}), Features()) is None


def test_u153_a_filter_that_says_retry_is_not_retried() -> None:
    words = "The prompt triggered our content management policy. Please modify it and retry."
    failure = failure_of(400, {}, {"error": {"message": words, "code": "content_filter"}})
    assert (failure.kind, failure.retryable) == ("content_filter", False)


def test_u152_no_quota_is_final() -> None:
    error = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    failure = failure_of(429, {"retry-after": "1"}, error)
    assert failure.fatal
    assert not failure.retryable
    assert "quota" in failure.message


def test_u021_a_cut_off_reply_says_so() -> None:
    message = {"content": '{"a": "abc'}
    reply = {"choices": [{"message": message, "finish_reason": "length"}]}
    result = read({"status": 200, "body": reply})
    assert result.failure is not None
    assert (result.failure.kind, result.text) == ("truncated", '{"a": "abc')


def test_u118_an_answer_under_reasoning_names_the_parser() -> None:
    message = {"content": None, "reasoning_content": '{"a":1}'}
    reply = {"choices": [{"message": message, "finish_reason": "stop"}]}
    result = read({"status": 200, "body": reply})
    assert result.failure is not None
    assert "reasoning-parser" in result.failure.message
    assert result.text is None


def test_a_message_is_short_and_scrubbed() -> None:
    words = "bad key sk-planted " + "x" * 9000
    failure = failure_of(
        400, {}, {"error": {"message": words}}, scrub=lambda text: text.replace("sk-planted", "***")
    )
    assert "planted" not in failure.message
    assert len(failure.message) < 500


NAMES = [
    "choices",
    "message",
    "content",
    "refusal",
    "finish_reason",
    "usage",
    "prompt_tokens",
    "completion_tokens",
    "error",
    "code",
    "detail",
    "loc",
    "msg",
    "param",
    "type",
    "logprobs",
    "tool_calls",
    "function",
    "arguments",
    "text",
    "token",
    "bytes",
    "top_logprobs",
    "logprob",
    "prompt_tokens_details",
    "model",
    "id",
    "n_ctx",
    "n_prompt_tokens",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.integers(100, 599), JSON | st.binary(max_size=40))
def test_any_body_with_any_status_is_a_result(status: int, value: Any) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    request = make_request({"choices": ["a", "b"]})
    result = from_wire(request, status, {}, data)
    assert result.failure is None or result.failure.kind in KINDS
    if not 200 <= status < 300:
        assert result.failure is not None


@given(JSON, JSON, JSON, JSON)
def test_any_message_is_a_result(content: Any, refusal: Any, finish: Any, logprobs: Any) -> None:
    message = {"content": content, "refusal": refusal, "reasoning": refusal, "tool_calls": finish}
    choice = {"message": message, "finish_reason": finish, "logprobs": {"content": logprobs}}
    data = json.dumps({"choices": [choice], "usage": refusal}).encode()
    result = from_wire(make_request({"choices": ["a", "b"]}), 200, {}, data)
    assert result.failure is not None or result.text

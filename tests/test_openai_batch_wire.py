"""Lines, states and results of OpenAI's Batch API: held to a golden file, and to anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.engines import openai_batch_wire as wire
from llmframe.engines.openai import OpenAI
from llmframe.engines.openai_bodies import Bodies, Features, refused
from llmframe.engines.openai_responses import as_chat
from llmframe.engines.openai_wire import from_wire
from llmframe.requests import Request, Sampling, custom_id
from llmframe.results import KINDS, Failure, Result, Usage

GOLDEN = Path(__file__).with_name("golden") / "openai"
KEY = bytes(range(16))
NAME = custom_id(3, KEY, 1)
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["a", "b"]}},
    "required": ["label"],
    "additionalProperties": False,
}
SYSTEM = {"role": "system", "content": "Ré\u2028ad."}


def calls() -> dict[str, list[Request]]:
    """What the golden file holds, by its endpoint."""
    asked = [
        Request(KEY, 0, (SYSTEM, {"role": "user", "content": "plain"}), shared=1),
        Request(KEY, 1, (SYSTEM, {"role": "user", "content": 'x\u2028\x85\x0c\U0001f600\x00"\\'})),
        Request(
            KEY,
            2,
            (SYSTEM, {"role": "user", "content": [{"type": "text", "text": "part"}]}),
            schema=SCHEMA,
            sampling=Sampling(0.5, 64, 7, {"service_tier": "flex"}),
            shared=1,
        ),
    ]
    return {"/v1/chat/completions": asked, "/v1/responses": asked}


def test_lines_are_those_of_the_golden_file() -> None:
    """Made with `python -m tests.test_openai_batch_wire`; a change is a change on the wire."""
    assert lines() == (GOLDEN / "batch_input.jsonl").read_bytes()


def lines() -> bytes:
    data = b""
    for endpoint, asked in calls().items():
        engine: Any = OpenAI("m", base_url="http://127.0.0.1:1/v1", endpoint=endpoint, batch=True)
        for request in asked:
            name = custom_id(request.position, request.key, request.attempt)
            written = wire.line(name, endpoint, engine._body(request))
            assert len(written) <= engine.size(request)
            data += written
    return data


def test_a_golden_line_is_ascii_json_with_the_text_whole() -> None:
    data = (GOLDEN / "batch_input.jsonl").read_bytes()
    assert data.isascii()
    read = [json.loads(line) for line in data.decode().splitlines()]
    assert [line["url"] for line in read] == ["/v1/chat/completions"] * 3 + ["/v1/responses"] * 3
    chat, response = read[1]["body"], read[4]["body"]
    assert chat["messages"] == response["input"] == list(calls()["/v1/responses"][1].messages)
    assert response["store"] is False
    assert read[5]["body"]["max_output_tokens"] == 64
    assert read[5]["body"]["text"]["format"]["schema"] == SCHEMA
    assert read[5]["body"]["input"][1]["content"] == [{"type": "input_text", "text": "part"}]


def line_of(**fields: Any) -> bytes:
    return json.dumps({"id": "batch_req_1", "custom_id": NAME, "error": None, **fields}).encode()


def result_of(data: bytes) -> Result:
    found = wire.read_line(data)
    assert isinstance(found, tuple)
    name, part, result = found
    assert (name, part, result.key) == (NAME, 0, KEY)
    return result


COMPLETION = {
    "id": "chatcmpl-1",
    "model": "m-1",
    "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 24, "completion_tokens": 6},
}


@pytest.mark.parametrize("status", [200, "200"])
@pytest.mark.parametrize("body", [COMPLETION, json.dumps(COMPLETION)])
def test_an_answer(status: Any, body: Any) -> None:
    response = {"status_code": status, "request_id": "req-1", "body": body}
    result = result_of(line_of(response=response))
    assert result == Result(KEY, "hi", "stop", Usage(24, 6), "m-1", "req-1")


SAID = {"message": "too long: sk-abcdef", "type": "invalid_request_error", "code": None}


@pytest.mark.parametrize(
    ("fields", "kind", "retryable"),
    [
        ({"response": {"status_code": 400, "body": {"error": SAID}}}, "invalid_request", False),
        ({"response": {"status_code": 429, "body": {}}}, "rate_limited", True),
        ({"response": {"status_code": 408, "body": {}}}, "provider_error", True),
        ({"response": {"status_code": 503, "body": None}}, "provider_error", True),
        ({"response": {"status_code": 0, "request_id": "", "body": {}}}, "provider_error", True),
        ({"response": None, "error": {"code": "batch_expired"}}, "expired", True),
        ({"response": None, "error": {"code": "batch_cancelled"}}, "canceled", False),
        ({"response": None, "error": {"code": "server_error"}}, "provider_error", True),
        ({"response": None, "error": "URL /v1/x was used"}, "invalid_request", False),
        ({"response": None, "error": None}, "provider_error", True),
        ({"response": {"status_code": 200, "body": {}}}, "provider_error", True),
        ({"response": {"status_code": 200, "body": "nonsense"}}, "provider_error", True),
        ({"response": {"status_code": "odd", "body": COMPLETION}}, "invalid_request", False),
        ({"response": {"status_code": 200, "body": COMPLETION}, "error": SAID}, None, False),
        (  # vLLM's run-batch
            {
                "response": {"status_code": 404, "body": None},
                "error": {"error": {"message": "The model `z` does not exist.", "code": 404}},
            },
            "invalid_request",
            False,
        ),
    ],
)
def test_a_line_that_is_no_answer(fields: Any, kind: str | None, retryable: bool) -> None:
    failure = result_of(line_of(**fields)).failure
    assert failure is not None
    assert (failure.kind, failure.retryable) == (kind or "invalid_request", retryable)
    assert not failure.maybe_paid


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"not json", "no JSON"),
        (b'{"custom_id":', "no JSON"),
        (b"[1]", "no object"),
        (b"{}", "no custom_id"),
        (b'{"custom_id":null}', "no custom_id"),
    ],
)
def test_lines_of_no_row(data: bytes, why: str) -> None:
    assert wire.read_line(data) == wire.BadLine(why)


def test_half_a_surrogate_pair_and_bytes_that_are_no_utf8() -> None:
    body = {
        **COMPLETION,
        "choices": [{"message": {"content": "a\ud800b"}, "finish_reason": "stop"}],
    }
    response = {"status_code": 200, "request_id": "r", "body": body}
    assert result_of(line_of(response=response)).text == "a?b"
    raw = line_of(response={"status_code": 200, "request_id": "r", "body": COMPLETION})
    assert result_of(raw.replace(b'"hi"', b'"h\xff"')).text == "h\ufffd"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-600, 600) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "status_code",
                    "body",
                    "error",
                    "code",
                    "message",
                    "request_id",
                    "choices",
                    "output",
                    "content",
                    "usage",
                    "status",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_response_and_error_is_a_result(response: Any, error: Any) -> None:
    result = result_of(line_of(response=response, error=error))
    assert result.failure is None or result.failure.kind in KINDS


@given(st.binary(max_size=60))
def test_any_bytes_are_a_line(data: bytes) -> None:
    found = wire.read_line(data)
    assert found is None or isinstance(found, wire.BadLine | tuple)


@given(st.dictionaries(st.sampled_from(["status", "errors", "request_counts", "id"]), json_values))
def test_any_record_is_a_status(read: Any) -> None:
    assert wire.status_of(read, wire.Service(), str).state in {"running", "done", "rejected"}


@pytest.mark.parametrize(
    ("word", "state", "missing"),
    [
        ("validating", "running", "no_result"),
        ("in_progress", "running", "no_result"),
        ("finalizing", "running", "no_result"),
        ("cancelling", "running", "no_result"),
        ("paused", "running", "no_result"),
        ("completed", "done", "no_result"),
        ("COMPLETED", "done", "no_result"),
        ("expired", "done", "expired"),
        ("cancelled", "done", "canceled"),
        ("failed", "rejected", "no_result"),
    ],
)
def test_words_of_a_batch(word: str, state: str, missing: str) -> None:
    status = wire.status_of({"status": word}, wire.Service(), str)
    assert (status.state, status.missing) == (state, missing)


def test_a_full_queue_and_a_failure_with_answers() -> None:
    full = {
        "data": [{"code": "token_limit_exceeded", "message": "Enqueued token limit", "line": None}]
    }
    status = wire.status_of({"status": "failed", "errors": full}, wire.Service(), str)
    assert status.queue_full
    assert status.message == "token_limit_exceeded: Enqueued token limit"
    status = wire.status_of({"status": "failed", "output_file_id": "file-1"}, wire.Service(), str)
    assert status.state == "done"


def test_many_errors_are_told_in_short() -> None:
    errors = {"data": [{"code": "invalid_json_line", "message": "x", "line": n} for n in range(9)]}
    status = wire.status_of({"status": "failed", "errors": errors}, wire.Service(), str)
    assert status.message.count("invalid_json_line") == 3
    assert status.message.endswith("and 6 more")


def test_ids_of_several_requests() -> None:
    request = Request(KEY, 3, ())
    assert wire.wire_id(NAME, request, 0, 1) == NAME
    several = wire.wire_id("several", request, 2, 3)
    assert len(several) <= 64
    found = wire.read_line(json.dumps({"custom_id": several}).encode())
    assert isinstance(found, tuple)
    assert (found[0], found[1], found[2].key) == ("several", 2, KEY)
    with pytest.raises(ValueError, match="too long"):
        wire.wire_id("x" * 50, request, 0, 2)


RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m-1",
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "h"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "i"}]},
    ],
    "usage": {
        "input_tokens": 24,
        "output_tokens": 6,
        "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 3},
    },
}


def read_response(**fields: Any) -> Result:
    body = json.dumps({**RESPONSE, **fields}).encode()
    return from_wire(Request(KEY, 0, ()), 200, {}, body)


def test_a_response_is_read_as_a_completion() -> None:
    usage = Usage(24, 6, 8, 2, 3)
    assert read_response() == Result(KEY, "hi", "stop", usage, "m-1", "resp_1", reasoning="thought")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "truncated",
        ),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            "content_filter",
        ),
        (
            {"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]},
            "refused",
        ),
        ({"output": []}, "empty_output"),
        ({"status": "failed", "error": {"code": "server_error", "message": "x"}}, "provider_error"),
    ],
)
def test_a_response_that_is_no_answer(fields: Any, kind: str) -> None:
    failure = read_response(**fields).failure
    assert failure is not None
    assert failure.kind == kind


@given(json_values)
def test_any_response_can_be_read(output: Any) -> None:
    assert isinstance(as_chat({"output": output, "usage": output}), dict)


def test_a_schema_refused_by_responses_goes_into_the_prompt() -> None:
    request = Request(KEY, 0, ({"role": "user", "content": "x"},), schema=SCHEMA)
    failure = Failure("invalid_request", "not supported", status=400, param="text.format")
    learned = refused(failure, request, Features())
    assert learned is not None
    body = json.loads(Bodies("m", responses=True).encode(request, learned))
    assert "text" not in body
    assert [message["role"] for message in body["input"]] == ["system", "user"]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "batch_input.jsonl").write_bytes(lines())

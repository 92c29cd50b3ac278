"""Messages and batches on the wire, against golden files; nothing is sent.

A golden file ``body_*.json`` holds a request and the body it must become, ``reply_*.json`` a
response and ``line_*.json`` a batch's record with the result it must become.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.engines import anthropic_lines as lines
from llmframe.engines.anthropic_bodies import Bodies, Features, refused
from llmframe.engines.anthropic_wire import failure_of, from_wire, limit_headers, message
from llmframe.requests import Request, Sampling
from llmframe.results import KINDS, Failure, Result
from tests.test_engine_openai_wire import make_request, said

GOLDEN = Path(__file__).parent / "golden" / "anthropic"
USER = {"role": "user", "content": "x"}


def make_body(golden: Mapping[str, Any]) -> Any:
    features = replace(Features(), **golden.get("features", {}))
    request = make_request(golden["request"])
    return json.loads(Bodies(golden["model"]).encode(request, features, ttl=golden.get("ttl")))


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
    body = make_body(golden)
    assert body == golden["body"]
    assert json.dumps(body) == json.dumps(golden["body"])  # the order counts on the wire


@pytest.mark.parametrize("golden", files("reply"))
def test_replies(golden: dict[str, Any]) -> None:
    result = said(read(golden))
    assert result == golden["result"]
    if "failure" in result:
        assert result["failure"]["kind"] in KINDS


@pytest.mark.parametrize("golden", files("line"))
def test_lines(golden: dict[str, Any]) -> None:
    result = lines.result(golden["record"], "msgbatch_1")
    assert said(result) == golden["result"]
    assert result.key == (7).to_bytes(16, "big")
    assert result.request_id is not None  # a second read must be known as one


def test_marks_are_at_most_four_and_never_ours_beside_the_users() -> None:
    long = {"role": "system", "content": "word " * 2000}
    request = make_request(
        {"messages": [long, USER], "shared": 1, "sampling": {"extra": {"cache_control": {}}}}
    )
    body = json.loads(Bodies("m").encode(request, Features()))
    assert json.dumps(body).count("cache_control") == 1


def test_a_rows_own_messages_are_left_as_they_are() -> None:
    own = {"role": "user", "content": "constant " * 500 + "row"}
    kept = dict(own)
    request = make_request({"messages": [own], "prefix": 4500})
    for _ in range(2):
        body = json.loads(Bodies("m").encode(request, Features()))
        first, rest = body["messages"][0]["content"]
        assert first["cache_control"] == {"type": "ephemeral"}
        assert first["text"] + rest["text"] == own["content"]
    assert own == kept


def test_instructions_of_a_row_do_not_stick_to_the_next() -> None:
    bodies = Bodies("m")
    shared = {"role": "system", "content": "All."}
    for text in "abc":
        own = {"role": "system", "content": text}
        request = make_request({"messages": [shared, own, USER], "shared": 1})
        system = json.loads(bodies.encode(request, Features()))["system"]
        assert [block["text"] for block in system] == ["All.", text]


def test_prepared_heads_never_mix_up_two_calls() -> None:
    bodies = Bodies("m")
    for number in range(200):
        system = {"role": "system", "content": f"call {number}"}
        request = make_request(
            {"messages": [system, USER], "shared": 1, "sampling": {"max_tokens": number + 1}}
        )
        for ttl in (None, "1h"):
            sent = json.loads(bodies.encode(request, Features(), ttl=ttl))
            assert (sent["system"], sent["max_tokens"]) == (f"call {number}", number + 1)


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"seed": 1}, "seed"),
        ({"extra": {"stream": True}}, "stream"),
        ({"extra": {"system": "x"}}, "system"),
        ({"extra": {"odd": object()}}, "not plain JSON"),
    ],
)
def test_what_cannot_be_sent_says_why(sampling: dict[str, Any], words: str) -> None:
    request = make_request({"messages": [USER], "sampling": sampling})
    with pytest.raises(ValueError, match=words):
        Bodies("m").encode(request, Features())


def fault(words: str, status: int = 400) -> Failure:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    return failure_of(status, {}, body)


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("output_config.format: Extra inputs are not permitted", {"output_format": False}),
        ("output_config: Extra inputs are not permitted", {"output_format": False}),
        ("'m' does not support structured outputs", {"output_format": False}),
        ("system.0.cache_control: Extra inputs are not permitted", {"cache_marks": False}),
        (
            "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for m",
            {"limit": 4096},
        ),
        ("output_config.format.schema: property 'minimum' is not supported", None),
        ("output_config.effort: not supported by this model", None),
        ("The compiled grammar is too large; structured outputs do not support it", None),
        ("temperature: Extra inputs are not permitted", None),
    ],
)
def test_what_is_ours_to_change(words: str, change: dict[str, Any] | None) -> None:
    request = make_request({"messages": [USER], "schema": SCHEMA})
    learned = refused(fault(words), request, Features())
    assert learned == (None if change is None else replace(Features(), **change))


def test_a_limit_that_the_user_gave_is_not_lowered() -> None:
    request = make_request({"messages": [USER], "sampling": {"max_tokens": 9000}})
    assert refused(fault("max_tokens: 9000 > 4096, the maximum"), request, Features()) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_reading_is_total(value: Any) -> None:
    for status in (200, 400, 404, 429, 500):
        from_wire(Request(bytes(16), 0, ()), status, {}, json.dumps(value).encode())
    failure_of(None, {}, {"error": {"error": value}})
    for body in ({"content": value}, {"content": [value], "usage": value, "stop_reason": value}):
        message(b"", body)
    lines.result({"custom_id": "x", "result": value}, "b")
    lines.status_of({"request_counts": value, "processing_status": value})


def test_u016_u085_lines_are_cut_at_line_feeds_alone(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a\u2028b\u0085c\x0bd", "emoji 😀", "nul \\u0000"]
    records = [{"custom_id": str(i), "text": text} for i, text in enumerate(texts)]
    data = [json.dumps(record, ensure_ascii=False).encode() for record in records]
    noise = [b"", b"  ", b"no json", b"[1]", b'{"custom_id": 3}']
    for newline in (b"\n", b"\r\n"):
        file = io.BytesIO(newline.join([data[0], *noise, *data[1:]]))
        assert [record for _, record in lines.lines(file)] == records
    assert "line 4 of a batch's results" in caplog.text


@pytest.mark.parametrize(
    ("state", "counts", "more", "expected"),
    [
        ("in_progress", {"processing": 3}, {}, ("running", 0, 0, 3, "no_result")),
        ("canceling", {"processing": 3}, {}, ("running", 0, 0, 3, "no_result")),
        ("dreaming", {"processing": 3}, {}, ("running", 0, 0, 3, "no_result")),
        ("ended", {"succeeded": 2, "errored": 1}, {}, ("done", 2, 1, 3, "no_result")),
        ("ended", {"succeeded": 1, "expired": 2}, {}, ("done", 1, 2, 3, "expired")),
        (
            "ended",
            {"succeeded": 1, "canceled": 2},
            {"cancel_initiated_at": "2026-11-29T00:00:00Z"},
            ("done", 1, 2, 3, "canceled"),
        ),
        ("ended", {"succeeded": 3}, {"archived_at": "2026-11-29"}, ("gone", 0, 0, 3, "no_result")),
    ],
)
def test_states(
    state: str, counts: dict[str, int], more: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    status = lines.status_of({"processing_status": state, "request_counts": counts, **more})
    assert (status.state, status.done, status.failed, status.total, status.missing) == expected


def test_ids_of_parts_fit_and_come_back() -> None:
    longest = f"{10**9}-{'f' * 32}-999"
    for part in (0, 1, 99_999):
        id_ = lines.line_id(longest, part)
        assert len(id_) <= 64
        assert lines.part_of(id_) == (longest, part)


def test_rate_limits_are_told_in_the_limiters_words() -> None:
    told = limit_headers(
        {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-reset": "2026-11-29T12:00:07Z",
            "anthropic-ratelimit-tokens-remaining": "9",
            "anthropic-ratelimit-tokens-reset": "never",
            "retry-after": "3",
        },
        now=1795953600.0,
    )
    assert told == {
        "retry-after": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-limit-requests": "50",
        "x-ratelimit-reset-requests": "7.000",
    }


def test_no_temperature_is_sent_by_default() -> None:
    request = Request(bytes(16), 0, (USER,), sampling=Sampling())
    assert b"temperature" not in Bodies("m").encode(request, Features())

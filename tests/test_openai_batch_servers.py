"""OpenAI batches against servers of others: llmock (pip) and aimock (npm)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from llmframe.engines.base import Batch, Line
from llmframe.engines.openai import OpenAI
from llmframe.errors import EngineError
from llmframe.requests import custom_id
from llmframe.testing import requests

pytest_plugins = ["tests.servers.peers"]


def sent(url: str, count: int, **options: Any) -> tuple[Any, Batch, dict[str, str]]:
    engine: Any = OpenAI("gpt-4o", base_url=f"{url}/v1", api_key="sk-fake", batch=True, **options)
    notes: dict[str, str] = {}
    asked = requests([f"row {i} \u2028 ü" for i in range(count)])
    lines = [Line(custom_id(r.position, r.key, 1), (r,)) for r in asked]
    return engine, engine.submit(lines, "tag-1", notes.__setitem__), notes


def ended(engine: Any, batch: Batch, seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while (status := engine.poll(batch)).state == "running":
        assert time.monotonic() < deadline, status
        time.sleep(0.2)
    return status


def test_llmock_from_upload_to_results(llmock: Callable[..., str]) -> None:
    engine, batch, notes = sent(llmock(), 10)
    assert engine.find("tag-1", notes, 10)[0].id == batch.id
    status = ended(engine, batch)
    assert (status.state, status.done, status.total) == ("done", 10, 10)
    results = list(engine.fetch(batch))
    assert {name for name, _, _ in results} == {
        custom_id(r.position, r.key, 1) for r in requests([f"row {i} \u2028 ü" for i in range(10)])
    }
    assert all(result.failure is None and result.text for _, _, result in results)


def test_llmock_cancels(llmock: Callable[..., str]) -> None:
    engine, batch, _ = sent(llmock(), 3)
    engine.cancel(batch)
    status = ended(engine, batch)
    assert (status.state, status.missing) == ("done", "canceled")


def test_aimock_from_upload_to_results(aimock: str) -> None:
    engine, batch, notes = sent(aimock, 5)
    assert [found.id for found in engine.find("tag-1", notes, 5)] == [batch.id]
    assert engine.poll(batch).state == "running"
    assert ended(engine, batch).state == "done"
    results = list(engine.fetch(batch))
    assert [result.text for _, _, result in results] == ["Mock batch completion"] * 5
    assert len({name for name, _, _ in results}) == 5


@pytest.mark.parametrize(
    ("outcome", "state", "missing"),
    [
        ("expired", "done", "expired"),
        ("cancelled", "done", "canceled"),
    ],
)
def test_aimock_ends_otherwise(aimock: str, outcome: str, state: str, missing: str) -> None:
    engine, batch, _ = sent(aimock, 2, headers={"X-AIMock-Batch-Outcome": outcome})
    status = ended(engine, batch)
    assert (status.state, status.missing) == (state, missing)


def test_aimock_fails_with_an_error_file(aimock: str) -> None:
    engine, batch, _ = sent(aimock, 2, headers={"X-AIMock-Batch-Outcome": "failed"})
    assert ended(engine, batch).state == "done"
    results = [result for _, _, result in engine.fetch(batch)]
    assert len(results) == 2
    assert all(result.failure is not None for result in results)


def test_aimock_does_not_know_the_batch(aimock: str) -> None:
    engine, batch, _ = sent(aimock, 1)
    with pytest.raises(EngineError) as caught:
        engine.poll(Batch("batch_of_nobody", "tag", 1, batch.created_at))
    assert caught.value.status == 404

"""What every provider's batch API does behind `BatchEngine`."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace

import pytest

from llmframe.engines.base import BatchEngine, Line
from llmframe.requests import custom_id
from llmframe.results import KINDS
from llmframe.testing import requests

from .kit import BATCH_ENGINES


@pytest.fixture(params=BATCH_ENGINES)
def engine(request):
    with BATCH_ENGINES[request.param]() as engine:
        yield engine


def lines_of(asked):
    return [Line(custom_id(r.position, r.key, r.attempt), (r,)) for r in asked]


def submitted(engine, n=20, tag="tag-1"):
    asked = requests([f"row {i}" for i in range(n)])
    return asked, engine.submit(lines_of(asked), tag, lambda name, value: None)


def done(engine, batch):
    for _ in range(500):
        status = engine.poll(batch)
        if status.state != "running":
            return status
        time.sleep(0.01)
    raise AssertionError(f"{batch} never ended")


def test_it_has_the_protocol(engine):
    assert isinstance(engine, BatchEngine)
    assert engine.limits.max_requests > 0
    assert engine.limits.max_bytes > 0


def test_every_line_is_answered_once_with_its_key(engine):
    asked, batch = submitted(engine)
    status = done(engine, batch)
    assert (status.state, status.total) == ("done", 20)
    assert status.done + status.failed == 20
    fetched = list(engine.fetch(batch))
    assert {(i, part): result.key for i, part, result in fetched} == {
        (custom_id(r.position, r.key, 1), 0): r.key for r in asked
    }
    assert len(fetched) == 20
    assert sum(result.failure is not None for _, _, result in fetched) == status.failed
    assert all(r.failure is None or r.failure.kind in KINDS for _, _, r in fetched)


def test_results_can_be_read_again_and_say_the_same(engine):
    _, batch = submitted(engine)
    done(engine, batch)
    once, again = list(engine.fetch(batch)), list(engine.fetch(batch))
    assert once == again
    ids = [result.request_id for _, _, result in once]
    assert len(set(ids)) == 20
    assert None not in ids


def test_a_line_of_several_requests_has_a_result_for_each_part(engine):
    asked = requests(["one", "two", "three"])
    batch = engine.submit([Line("several", tuple(asked))], "tag-1", lambda name, value: None)
    assert batch.count == 3
    done(engine, batch)
    fetched = sorted(engine.fetch(batch), key=lambda line: line[1])
    assert [(i, part) for i, part, _ in fetched] == [("several", 0), ("several", 1), ("several", 2)]
    assert [result.key for _, _, result in fetched] == [request.key for request in asked]


def test_a_batch_is_found_by_its_tag(engine):
    notes = {}
    batch = engine.submit(lines_of(requests(["a", "b"])), "tag-1", notes.__setitem__)
    other = engine.submit(lines_of(requests(["c", "d"])), "tag-2", lambda name, value: None)
    assert batch.id != other.id
    assert engine.find("tag-1", notes, 2) == [batch]
    assert engine.find("tag-3", {}, 3) == []


def test_side_effects_are_noted_as_text(engine):
    notes = {}
    engine.submit(lines_of(requests(["a"])), "tag-1", notes.__setitem__)
    assert all(type(name) is str and type(value) is str for name, value in notes.items())


def test_sizes_are_of_encoded_bytes(engine):
    ascii_, wide = requests(["x" * 100, "漢" * 100])
    assert engine.size(ascii_) >= 100
    assert engine.size(wide) >= engine.size(ascii_) + 200


def test_a_cancelled_batch_ends_and_can_be_read(engine):
    asked, batch = submitted(engine)
    engine.cancel(batch)
    assert done(engine, batch).state == "done"
    keys = [result.key for _, _, result in engine.fetch(batch)]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= {request.key for request in asked}
    engine.cancel(batch)


def test_a_deleted_batch_is_gone(engine):
    _, batch = submitted(engine)
    done(engine, batch)
    engine.delete(batch)
    assert engine.poll(batch).state == "gone"
    engine.delete(batch)


def test_a_probe_is_answered_or_there_is_none(engine):
    [request] = requests(["hello"])
    result = engine.probe(request)
    assert result is None or result.key == request.key


def test_identity_is_plain_text_and_survives_pickling(engine):
    identity = dict(engine.identity())
    assert all(type(name) is str and type(value) is str for name, value in identity.items())
    assert dict(pickle.loads(pickle.dumps(engine)).identity()) == identity


def test_a_round_is_part_of_the_line(engine):
    [request] = requests(["hello"])
    rounds = [request, replace(request, attempt=2)]
    batch = engine.submit(lines_of(rounds), "tag-1", lambda name, value: None)
    done(engine, batch)
    assert len({i for i, _, _ in engine.fetch(batch)}) == 2

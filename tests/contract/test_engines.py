"""What every engine does, whatever is behind it."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace

import pytest

from llmframe.engines.base import Engine, Limits
from llmframe.results import KINDS
from llmframe.testing import ListSource, Switch, drive, requests

from .kit import ENGINES, Running


@pytest.fixture(params=ENGINES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture
def engine(case):
    with case.make(0.0) as engine:
        yield engine
        engine.close()


def rows(n, prefix="row"):
    return requests([f"{prefix} {i}" for i in range(n)])


def all_of(stream):
    return [result for results in stream for result in results]


def test_it_has_the_protocol(engine):
    assert isinstance(engine, Engine)
    assert isinstance(engine.limits, Limits)
    assert engine.name == engine.name.lower()
    assert engine.model


def test_every_request_gets_one_result_with_its_key(case, engine):
    asked = rows(25)
    results = Running(lambda: drive(engine, asked)).value()
    assert sorted(result.key for result in results) == sorted(request.key for request in asked)
    assert all(result.failure is None or result.failure.kind in KINDS for result in results)
    if case.echoes:
        text = {request.key: request.messages[-1]["content"] for request in asked}
        assert all(result.text == text[result.key] for result in results)


def test_results_come_in_lists_that_are_not_empty(engine):
    source = ListSource(rows(9))
    lists = Running(lambda: list(engine.stream(source, Switch()))).value()
    assert all(isinstance(results, list) and results for results in lists)


def test_a_second_try_of_a_request_gets_its_own_result(engine):
    [request] = rows(1)
    source = ListSource([request], closed=False)

    def work():
        seen = []
        for results in engine.stream(source, Switch()):
            seen += results
            if len(seen) == 1:
                source.add([replace(request, attempt=2)])
            else:
                source.close()
        return seen

    assert [result.key for result in Running(work).value()] == [request.key] * 2


def test_never_more_in_flight_than_the_limit_and_never_fewer_while_rows_remain(case):
    if case.in_flight_max is None:
        pytest.skip("its requests wait in batches")
    with case.make(0.02) as engine:
        Running(lambda: drive(engine, rows(20), limit=3)).value()
        seen = case.in_flight_max(engine)
        engine.close()
    assert seen == 3 if case.slow else seen <= 3


def test_a_closed_source_ends_the_stream(engine):
    assert Running(lambda: all_of(engine.stream(ListSource(), Switch()))).value() == []


def test_a_source_that_closes_later_ends_the_stream(engine):
    source = ListSource(rows(3), closed=False)
    running = Running(lambda: all_of(engine.stream(source, Switch())))
    source.close()
    assert len(running.value()) == 3


def test_it_wakes_up_for_requests_that_come_later(engine):
    source = ListSource(closed=False)
    got = threading.Event()

    def work():
        seen = []
        for results in engine.stream(source, Switch()):
            seen += results
            got.set()
        return seen

    running = Running(work)
    for request in rows(3):
        got.clear()
        source.add([request])
        assert got.wait(60)
    source.close()
    assert len(running.value()) == 3


def test_drain_takes_nothing_more_and_finishes_what_is_in_flight(case, engine):
    source, control = ListSource(rows(50), closed=False), Switch(limit=4)
    taken_before = []

    def work():
        seen = []
        for results in engine.stream(source, control):
            seen += results
            if control.mode == "run":
                control.mode = "drain"
                taken_before.append(len(source.taken))
        return seen

    seen = {result.key for result in Running(work).value()}
    taken = {request.key for request in source.taken}
    assert seen <= taken
    if case.in_flight_max is not None:
        # A lane packs before it sends: what it has not sent gets no result.
        assert seen == taken
        assert len(source.taken) <= taken_before[0] + control.limit


def test_abort_returns_although_nothing_is_finished(case):
    if not case.slow:
        pytest.skip("its replies cannot be slowed down")
    with case.make(60.0) as engine:
        source, control = ListSource(rows(8)), Switch(limit=4)
        running = Running(lambda: all_of(engine.stream(source, control)))
        while not source.taken:
            time.sleep(0.001)
        control.mode = "abort"
        # What is given up may be said to be; nothing is waited for.
        assert all(result.failure is not None for result in running.value(within=2.0))
        engine.close()


def test_a_stream_that_is_aborted_at_once_ends(engine):
    control = Switch(mode="abort")
    assert len(Running(lambda: all_of(engine.stream(ListSource(rows(3)), control))).value()) <= 3


def test_a_stream_may_be_left_and_the_engine_used_again(engine):
    stream = engine.stream(ListSource(rows(10)), Switch(limit=2))
    Running(lambda: next(stream)).value()
    Running(stream.close).value()
    asked = rows(5, "another")
    keys = {result.key for result in Running(lambda: drive(engine, asked)).value()}
    assert {request.key for request in asked} <= keys


def test_two_streams_at_once_do_not_mix(engine):
    asked = {name: rows(30, name) for name in "ab"}
    running = {
        name: Running(lambda name=name: drive(engine, asked[name], limit=4)) for name in asked
    }
    for name in asked:
        keys = sorted(result.key for result in running[name].value())
        assert keys == sorted(request.key for request in asked[name])


def test_close_may_be_called_twice(case):
    with case.make(0.0) as engine:
        engine.close()
        engine.close()


def test_identity_is_plain_text_and_survives_pickling(engine):
    identity = dict(engine.identity())
    assert identity
    assert all(type(name) is str and type(value) is str for name, value in identity.items())
    # A lane is made anew in each process; what travels is its engine.
    copy = pickle.loads(pickle.dumps(getattr(engine, "engine", engine)))
    assert dict(copy.identity()) == identity
    assert dict(engine.identity()) == identity

"""The decisions that stop a job, without a job."""

import pytest

from llmframe.brakes import Budget, Outage, Quality, Refusals, estimate_tokens
from llmframe.costs import Price, Rate
from llmframe.requests import Request, Sampling
from llmframe.results import Failure

LOST = Failure("connection", "refused", True)
BUSY = Failure("provider_error", "overloaded", True, status=503)


def test_an_outage_opens_after_a_full_row_of_failures_and_an_answer_closes_it():
    outage = Outage(8)
    for _ in range(31):
        outage.failed(BUSY, 0.0)
    assert not outage.open
    outage.failed(BUSY, 0.0)
    assert outage.open
    assert [outage.pause() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    outage.answered()
    assert not outage.open
    assert not outage.streak
    assert outage.pause() == 1


@pytest.mark.parametrize(
    ("reached", "failure", "lasts"),
    [(False, LOST, 6.0), (True, LOST, 25.0), (True, BUSY, 600.0), (False, BUSY, 600.0)],
)
def test_a_server_that_answers_is_waited_for_longer_than_one_that_is_gone(reached, failure, lasts):
    outage = Outage(8)
    if reached:
        outage.answered()
    outage.failed(failure, 100.0)
    assert not outage.over(100.0 + lasts)
    assert outage.over(100.1 + lasts)


def test_patience_is_the_users():
    outage = Outage(8, patience=2.0)
    outage.failed(BUSY, 0.0)
    assert outage.over(2.1)


def test_quality_trips_past_ninety_percent_of_a_hundred_and_names_the_commonest_kind():
    quality = Quality()
    for _ in range(60):
        quality.answer(Failure("invalid_output", "prose"))
    for _ in range(30):
        quality.answer(Failure("truncated", "cut"))
    for _ in range(9):
        quality.answer(None)
    assert quality.verdict() is None
    quality.answer(Failure("truncated", "cut"))
    assert "91 of the last 100 answers" in (quality.verdict() or "")
    assert "60 invalid_output" in (quality.verdict() or "")


def test_quality_sees_a_model_that_turns_bad_after_a_million_good_answers():
    quality = Quality()
    for _ in range(10_000):
        quality.answer(None)
    answers = 0
    while quality.verdict() is None:
        quality.answer(Failure("refused", "no"))
        answers += 1
    assert answers == 271


def test_quality_leaves_a_job_alone_that_is_only_bad():
    quality = Quality()
    for place in range(1000):
        quality.answer(Failure("refused", "no") if place % 10 else None)
    assert quality.verdict() is None


@pytest.mark.parametrize(
    ("failures", "ends"),
    [
        ([Failure("invalid_request", "no temperature", param="temperature")], [True]),
        ([Failure("invalid_request", "bad"), Failure("invalid_request", "bad")], [False, True]),
        ([Failure("invalid_request", "a"), Failure("invalid_request", "b")], [False, False]),
        (
            [
                Failure("invalid_request", "row 1", code="odd"),
                Failure("invalid_request", "row 2", code="odd"),
            ],
            [False, True],
        ),
        ([Failure("content_filter", "no", code="content_filter")] * 2, [False, False]),
    ],
)
def test_a_refusal_ends_the_job_only_where_it_is_no_row_s_own(failures, ends):
    refusals = Refusals()
    assert [refusals.ends(failure) for failure in failures] == ends


def test_the_budget_reserves_the_worst_and_settles_the_bill():
    budget = Budget(Price(Rate(1.0), Rate(10.0)), limit=0.002)
    request = Request(
        b"k" * 16, 0, ({"role": "user", "content": "x" * 384},), sampling=Sampling(max_tokens=90)
    )
    worst = budget.worst(request)
    assert worst == pytest.approx((100 + 900) / 1e6)
    budget.reserve(worst)
    assert budget.fits(worst)
    budget.reserve(worst)
    assert not budget.fits(1e-6)
    budget.settle(worst, 0.0001)
    assert budget.fits(0.0008)
    assert not budget.fits(worst)


def test_tokens_are_estimated_from_bytes():
    assert estimate_tokens("word" * 100) == 104
    assert estimate_tokens("é" * 100) == 54

"""The limiter, by a clock of its own: no test here waits."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.engines.headers import parse_duration, retry_after
from llmframe.engines.limiter import Limiter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> Limiter:
    return Limiter(clock, jitter=lambda: 0.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("20ms", 0.02),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("0", 0.0),
        ("3.5", 3.5),
        ("1700000060", 60.0),
        ("1700000060000", 60.0),
        ("1600000000", 0.0),
        ("soon", None),
        ("1s later", None),
        ("", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text, now=1_700_000_000.0) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "86400"}, 86400.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "2", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "2", "retry-after-ms": "soon"}, 2.0),
        ({"retry-after": "1m30s"}, 90.0),
        ({"retry-after": "never"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": format_datetime(datetime.fromtimestamp(1_700_000_007, UTC), True)}, 7.0),
        ({"retry-after": format_datetime(datetime.fromtimestamp(1_600_000_000, UTC), True)}, 0.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=1_700_000_000.0) == seconds


@given(st.text(), st.text())
def test_headers_of_any_text_are_read(one: str, two: str) -> None:
    for value in (parse_duration(one), retry_after({"retry-after": one, "retry-after-ms": two})):
        assert value is None or (value >= 0 and math.isfinite(value))


def test_retry_after_holds_everybody(limiter: Limiter, clock: Clock) -> None:
    tickets = [limiter.start() for _ in range(4)]
    limiter.finish(tickets[0], "limited", {"retry-after": "3600"})
    assert limiter.held == 3600.0
    for ticket in tickets[1:]:
        limiter.finish(ticket, "ok", {})
    assert limiter.wait() == 3600.0
    clock.now += 3599.0
    assert limiter.wait() == 1.0
    clock.now += 1.0
    assert limiter.wait() == 0.0


def test_a_burst_of_refusals_is_one_event(limiter: Limiter, clock: Clock) -> None:
    tickets = [limiter.start() for _ in range(32)]
    clock.now += 0.1
    for ticket in tickets[:4]:
        limiter.finish(ticket, "ok", {})
    for ticket in tickets[4:]:
        limiter.finish(ticket, "limited", {})
    assert 0.3 < limiter.wait() <= 0.5  # one backoff, not 28 doublings


def test_the_longest_retry_after_of_a_burst_counts(limiter: Limiter) -> None:
    tickets = [limiter.start() for _ in range(3)]
    for ticket, seconds in zip(tickets, ("2", "9", "1"), strict=True):
        limiter.finish(ticket, "limited", {"retry-after": seconds})
    assert limiter.wait() == 9.0


def test_without_retry_after_the_pause_doubles(limiter: Limiter, clock: Clock) -> None:
    pauses = []
    for _ in range(10):
        limiter.finish(limiter.start(), "limited", {})
        pauses.append(limiter.held)
        clock.now += limiter.held + 0.001
    assert pauses[0] < 1.0
    assert pauses[:6] == sorted(pauses[:6])
    assert pauses[4] == pytest.approx(16 * pauses[0])
    assert max(pauses) <= 60.0


def test_jitter_spreads_the_pause(clock: Clock) -> None:
    def held(chance: float) -> float:
        limiter = Limiter(clock, jitter=lambda: chance)
        limiter.finish(limiter.start(), "limited", {})
        return limiter.held

    assert held(0.0) < held(0.5) < held(0.99)


def test_the_window_halves_and_grows_back(limiter: Limiter, clock: Clock) -> None:
    def room() -> int:
        tickets = []
        while limiter.wait() < math.inf and len(tickets) < 64:
            clock.now += limiter.wait()
            tickets.append(limiter.start())
        for ticket in tickets:
            limiter.finish(ticket, "ok", {})
        return len(tickets)

    tickets = [limiter.start() for _ in range(32)]
    for ticket in tickets:
        limiter.finish(ticket, "limited", {"retry-after": "1"})
    clock.now += 2.0
    first = room()
    assert 14 <= first <= 18
    assert first < room() < room()


def test_requests_left_are_obeyed(limiter: Limiter, clock: Clock) -> None:
    left = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "40s",
    }
    limiter.finish(limiter.start(), "ok", left)
    assert limiter.wait() == 0.0
    limiter.start()
    assert limiter.wait() == 0.0
    limiter.start()
    assert limiter.wait() == 40.0
    clock.now += 40.0
    assert limiter.wait() == 0.0


def test_what_was_sent_meanwhile_is_not_left(limiter: Limiter) -> None:
    first, *_ = (limiter.start() for _ in range(4))
    left = {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "5s"}
    limiter.finish(first, "ok", left)
    assert limiter.wait() == 5.0  # three went after it, which the server had not counted


def test_replies_out_of_order_do_not_bring_back_old_news(limiter: Limiter, clock: Clock) -> None:
    old = limiter.start()
    clock.now += 1
    new = limiter.start()
    reset = {"x-ratelimit-reset-requests": "9s"}
    limiter.finish(new, "ok", {"x-ratelimit-remaining-requests": "0", **reset})
    limiter.finish(old, "ok", {"x-ratelimit-remaining-requests": "50", **reset})
    assert limiter.wait() == 9.0


def test_a_large_row_waits_for_room_and_a_small_one_goes(limiter: Limiter, clock: Clock) -> None:
    left = {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "400",
        "x-ratelimit-reset-tokens": "6s",
    }
    limiter.finish(limiter.start(100), "ok", left)
    assert limiter.counts_tokens
    assert limiter.wait(300) == 0.0
    assert limiter.wait(700) == 6.0
    clock.now += 6.0
    assert limiter.wait(700) == 0.0


def test_a_row_beyond_the_whole_budget_is_the_servers_to_judge(
    limiter: Limiter, clock: Clock
) -> None:
    left = {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }
    limiter.finish(limiter.start(1), "ok", left)
    assert limiter.wait(5000) == 0.0


@pytest.mark.parametrize("value", ["", "many", "nan", "-"])
def test_nonsense_in_headers_holds_nothing(limiter: Limiter, value: str) -> None:
    names = ("limit", "remaining", "reset")
    headers = {f"x-ratelimit-{name}-requests": value for name in names}
    limiter.finish(limiter.start(), "ok", headers)
    assert limiter.wait() == 0.0


def test_three_percent_of_errors_slow_nothing(limiter: Limiter, clock: Clock) -> None:
    for number in range(3000):
        assert limiter.wait() == 0.0
        ticket = limiter.start()
        clock.now += 0.01
        limiter.finish(ticket, "failed" if number % 33 == 0 else "ok", {})


def test_an_outage_slows_down_and_its_end_speeds_up(limiter: Limiter, clock: Clock) -> None:
    sent, started = 0, clock.now
    while clock.now < started + 120:
        clock.now += limiter.wait()
        ticket = limiter.start()
        clock.now += 0.001
        limiter.finish(ticket, "failed", None)
        sent += 1
    assert sent < 1000  # without a pause: 120,000
    clock.now += limiter.wait()
    for _ in range(20):
        clock.now += limiter.wait()
        limiter.finish(limiter.start(), "ok", {})
    assert limiter.wait() == 0.0


def simulate(
    clock: Clock,
    limiter: Limiter,
    passes: Callable[[float], dict[str, str] | None],
    rows: int,
    concurrency: int = 32,
    latency: float = 0.01,
) -> tuple[int, float]:
    """Drive workers against a server in simulated time: refusals, and seconds until all passed."""
    started, refusals, left = clock.now, 0, rows
    flying: list[tuple[float, int, object, dict[str, str] | None]] = []
    number = 0
    while left or flying:
        while left and len(flying) < concurrency and limiter.wait() == 0:
            number += 1
            left -= 1
            told = passes(clock.now)
            heapq.heappush(flying, (clock.now + latency, number, limiter.start(), told))
        ready = flying[0][0] if flying else math.inf
        wait = limiter.wait() if left and len(flying) < concurrency else math.inf
        # A timer of the loop is never exact: half a millisecond late.
        clock.now = max(clock.now, min(ready, clock.now + wait + 0.0005))
        if clock.now >= ready:
            _, _, ticket, told = heapq.heappop(flying)
            limiter.finish(ticket, "ok" if told is None else "limited", told)  # type: ignore[arg-type]
            if told is not None:
                refusals += 1
                left += 1
    return refusals, clock.now - started


def bucket(
    clock: Clock, rate: float, burst: float, tell: bool
) -> Callable[[float], dict[str, str] | None]:
    state = {"level": burst, "at": clock.now}

    def passes(now: float) -> dict[str, str] | None:
        state["level"] = min(burst, state["level"] + (now - state["at"]) * rate)
        state["at"] = now
        if state["level"] >= 1:
            state["level"] -= 1
            return None
        return {"retry-after": str((1 - state["level"]) / rate)} if tell else {}

    return passes


@pytest.mark.parametrize("tell", [True, False], ids=["retry-after", "silent"])
def test_u113_two_a_second(limiter: Limiter, clock: Clock, tell: bool) -> None:
    refusals, seconds = simulate(clock, limiter, bucket(clock, 2, 2, tell), rows=20)
    assert refusals <= 25  # one burst of 18, then the pace is known
    assert seconds <= 20  # at best 9


@pytest.mark.parametrize("rate", [0.5, 2, 20, 200])
def test_in_the_long_run_refusals_are_rare_and_the_rate_is_used(
    limiter: Limiter, clock: Clock, rate: float
) -> None:
    rows = int(max(50, rate * 60))
    refusals, seconds = simulate(clock, limiter, bucket(clock, rate, max(1, rate), True), rows)
    assert refusals <= 32 + 0.15 * rows
    assert seconds <= 1.5 * rows / rate + 2


def test_a_limit_on_requests_at_once_is_found(limiter: Limiter, clock: Clock) -> None:
    busy: list[float] = []

    def passes(now: float) -> dict[str, str] | None:
        busy[:] = [until for until in busy if until > now]
        if len(busy) >= 8:
            return {}
        busy.append(now + 0.2)
        return None

    refusals, seconds = simulate(clock, limiter, passes, 1000, concurrency=64, latency=0.2)
    assert refusals <= 200
    assert seconds <= 3 * 1000 * 0.2 / 8


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_refusals_that_have_nothing_to_do_with_the_pace(
    limiter: Limiter, clock: Clock, share: float
) -> None:
    """A share of all requests gets a 429 and "wait one second": the pace must not collapse."""
    chance = random.Random(1)

    def passes(now: float) -> dict[str, str] | None:
        return {"retry-after": "1"} if chance.random() < share else None

    refusals, seconds = simulate(clock, limiter, passes, 400)
    assert seconds <= 2 * refusals + 30


def test_a_limit_that_changes_is_followed(limiter: Limiter, clock: Clock) -> None:
    simulate(clock, limiter, bucket(clock, 50, 50, True), 500)
    refusals, seconds = simulate(clock, limiter, bucket(clock, 2, 2, True), 100)
    assert (refusals <= 45, seconds <= 75) == (True, True)
    refusals, seconds = simulate(clock, limiter, bucket(clock, 50, 50, True), 1000)
    assert (refusals <= 40, seconds <= 120) == (True, True)

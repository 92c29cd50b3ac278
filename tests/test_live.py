"""The bounded stream and the loop it runs in, against a sender that only waits."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmframe.engines import background, live
from llmframe.engines.limiter import Limiter
from llmframe.requests import Request
from llmframe.results import Failure, Result
from tests.servers.feeding import Control, Feed, requests
from tests.servers.looking import complaints


class Sender:
    """Answers after `delay` (a number, or a function of the request) and counts.

    With `meeting`, nobody is answered before that many requests were on their way at once.
    """

    def __init__(
        self, delay: float | Callable[[Request], float] = 0.0, *, meeting: int = 0
    ) -> None:
        self.limiter = Limiter()
        self.delay = delay
        self.meeting = meeting
        self.in_flight = self.most = 0
        self.started: list[bytes] = []

    def tokens(self, request: Request) -> int:
        return 1

    async def answer(self, request: Request) -> Result:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.started.append(request.key)
        ticket = self.limiter.start()
        try:
            await asyncio.sleep(self.delay(request) if callable(self.delay) else self.delay)
            await until(lambda: self.most >= self.meeting)
            return Result(request.key, text=request.messages[0]["content"])
        finally:
            self.limiter.finish(ticket, "ok")
            self.in_flight -= 1


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in the same loop."""
    while not condition():
        await asyncio.sleep(0.001)


def run(sender: Any, items: list[Request], control: Control | None = None) -> list[Result]:
    """All results of a source that closes once it is empty."""
    stream = live.stream(Feed(items, closed=True), control or Control(8), sender)
    return [result for batch in stream for result in batch]


def keys(results: list[Result]) -> list[bytes]:
    return sorted(result.key for result in results)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 500])
def test_every_request_has_exactly_one_result(rows: int) -> None:
    sender, items = Sender(), requests(map(str, range(rows)))
    assert keys(run(sender, items)) == [request.key for request in items]
    assert sender.most <= 8


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(0, 60), st.randoms(use_true_random=False))
def test_any_limit_any_number_any_order(limit: int, rows: int, chance: random.Random) -> None:
    sender = Sender(lambda request: chance.random() * 0.004)
    items = requests(map(str, range(rows)))
    assert keys(run(sender, items, Control(limit))) == [request.key for request in items]
    assert sender.most <= limit


def test_the_limit_is_reached_and_there_are_no_waves() -> None:
    """One slow row holds its own place and no other: the rest goes on beside it."""

    class Patient(Sender):
        async def answer(self, request: Request) -> Result:
            result = await super().answer(request)
            if request.position == 0:
                await until(lambda: len(self.started) == 300 and self.in_flight == 0)
            return result

    sender = Patient(meeting=4)
    results = run(sender, requests(map(str, range(300))), Control(4))
    assert sender.most == 4
    assert results[-1].key == bytes(16)  # all others were done meanwhile


def test_results_come_while_others_are_under_way() -> None:
    sender = Sender(lambda request: 30.0 if request.position == 1 else 0.0)
    control = Control(2)
    stream = live.stream(Feed(requests("ab")), control, sender)
    assert [result.text for result in next(stream)] == ["a"]
    stream.close()
    assert sender.in_flight == 0


def test_the_limit_is_read_live() -> None:
    sender, control = Sender(0.01), Control(2)
    stream = live.stream(Feed(requests(map(str, range(10_000)))), control, sender)
    for _ in range(5):
        next(stream)
    assert sender.most == 2
    control.limit = 12
    while sender.most < 12:
        next(stream)
    control.limit = 1
    while sender.in_flight > 1:
        next(stream)
    sender.most = 0
    for _ in range(5):
        next(stream)
    assert sender.most == 1
    stream.close()


def test_a_source_that_wakes_us_late() -> None:
    """Repairs come back through the source long after it had nothing to give."""
    sender, feed = Sender(), Feed()
    items = requests(map(str, range(50)))
    got: list[Result] = []

    def later() -> None:
        for request in items:
            feed.again([request])
            time.sleep(random.random() * 0.003)
        feed.close()

    thread = threading.Thread(target=later)
    thread.start()
    for batch in live.stream(feed, Control(4), sender):
        got += batch
    thread.join()
    assert keys(got) == [request.key for request in items]


def test_a_wake_during_the_take_is_not_lost() -> None:
    """The source says "nothing", and has something before we have heard that."""

    class Racing(Feed):
        def take(self, n: int) -> list[Request] | None:
            got = super().take(n)
            if got == []:
                self.again(requests(["late"]))
                self.close()
                time.sleep(0.05)  # the wake is in the loop before this [] is
            return got

    assert [r.text for b in live.stream(Racing(), Control(4), Sender()) for r in b] == ["late"]


def test_drain_finishes_what_is_in_flight_and_takes_no_more() -> None:
    control = Control(4)

    def drain(request: Request) -> float:
        if request.position == 6:
            control.mode = "drain"
        return 0.2

    sender = Sender(drain)
    feed = Feed(requests(map(str, range(100))))
    got: list[Result] = []
    for batch in live.stream(feed, control, sender):
        got += batch
    assert 7 <= len(got) == feed.taken < 100
    finished = [result for result in got if result.failure is None]
    assert keys(finished) == sorted(sender.started)
    for result in got:
        if result.failure is not None:
            assert (result.failure.kind, result.failure.maybe_paid) == ("canceled", False)


def test_abort_waits_for_no_answer_and_says_what_was_sent() -> None:
    control = Control(4)

    def abort(request: Request) -> float:
        if request.position == 3:
            control.mode = "abort"
        return 3600.0

    sender = Sender(abort)
    feed = Feed(requests(map(str, range(100))))
    got: list[Result] = []
    started = time.monotonic()
    for batch in live.stream(feed, control, sender):
        got += batch
    assert time.monotonic() - started < 600
    assert sender.in_flight == 0
    assert len(sender.started) == 4
    assert len(got) == feed.taken
    failures = {result.key: result.failure for result in got}
    for key, failure in failures.items():
        assert failure is not None
        assert failure.kind == "canceled"
        assert failure.maybe_paid == (key in sender.started)


def test_abort_does_not_wait_for_a_source_that_hangs() -> None:
    release = threading.Event()
    control = Control(4)

    class Stuck(Feed):
        def take(self, n: int) -> list[Request] | None:
            control.mode = "abort"
            release.wait(600)
            return None

    try:
        assert list(live.stream(Stuck(), control, Sender())) == []
        assert not release.is_set()
        assert any(thread.name.startswith("llmframe-source") for thread in threading.enumerate())
    finally:
        release.set()


def test_an_abandoned_stream_cancels_everything() -> None:
    sender = Sender(lambda request: 0.0 if request.position == 0 else 60.0)
    stream = live.stream(Feed(requests(map(str, range(20)))), Control(5), sender)
    next(stream)
    assert sender.in_flight > 0
    del stream
    assert sender.in_flight == 0


def test_a_fault_of_the_source_reaches_the_driver_after_the_results() -> None:
    told = threading.Event()

    class Broken(Feed):
        def take(self, n: int) -> list[Request] | None:
            if self.taken:
                told.wait(60)
                raise OSError("disk full")
            return super().take(n)

    stream = live.stream(Broken(requests("a")), Control(4), Sender())
    assert [result.text for result in next(stream)] == ["a"]
    told.set()
    with pytest.raises(OSError, match="disk full"):
        next(stream)


def test_a_fault_of_ours_costs_one_row_and_tells_no_secret() -> None:
    class Faulty(Sender):
        async def answer(self, request: Request) -> Result:
            if request.position == 3:
                raise RuntimeError("Authorization: Bearer sk-planted-secret")
            return await super().answer(request)

    results = run(Faulty(), requests(map(str, range(10))))
    bad = [result.failure for result in results if result.failure is not None]
    assert len(results) == 10
    assert len(bad) == 1
    assert bad[0].kind == "provider_error"
    assert "RuntimeError" in bad[0].message
    assert "planted" not in bad[0].message


def test_a_pause_of_the_limiter_holds_every_worker() -> None:
    sender = Sender(0.001)
    ticket = sender.limiter.start()
    started = time.monotonic()
    sender.limiter.finish(ticket, "limited", {"retry-after": "0.3"})
    run(sender, requests("ab"))
    assert time.monotonic() - started >= 0.3


def test_two_threads_at_once_share_one_loop() -> None:
    senders = [Sender(0.001, meeting=5) for _ in range(3)]
    found: list[list[bytes]] = [[], [], []]

    def work(number: int) -> None:
        found[number] = keys(run(senders[number], requests(map(str, range(60))), Control(5)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[request.key for request in requests(map(str, range(60)))]] * 3
    assert all(sender.most == 5 for sender in senders)
    assert sum(thread.name == "llmframe-loop" for thread in threading.enumerate()) == 1


async def test_the_caller_has_a_running_loop() -> None:
    assert len(run(Sender(), requests("abc"))) == 3


def test_under_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> int:
        return len(run(Sender(), requests("abc")))

    assert uvloop.run(main()) == 3


PYTHONPATH = str(Path(__file__).parents[1])


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    head = """
    from tests.test_live import Sender, run
    from tests.servers.feeding import Control, Feed, requests
    from llmframe.engines import live
    """
    script = textwrap.dedent(head) + textwrap.dedent(code)
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(
        [sys.executable, *options, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
        check=False,
    )


def test_nothing_is_left_at_exit() -> None:
    code = """
    sender = Sender(lambda request: 3600.0 * bool(request.position))
    stream = live.stream(Feed(requests("abcdef")), Control(3), sender)
    print(next(stream)[0].text)
    """
    done = python(code, "-X", "dev", "-W", "error")
    assert (done.stdout, complaints(done.stderr), done.returncode) == ("a\n", "", 0)


def test_exit_does_not_wait_for_a_stream_in_a_daemon_thread() -> None:
    code = """
    import threading, time
    sender = Sender(3600.0)
    threading.Thread(target=run, args=(sender, requests("abc")), daemon=True).start()
    while not sender.started:
        time.sleep(0.01)
    """
    done = python(code, "-X", "dev", "-W", "error")
    assert (complaints(done.stderr), done.returncode) == ("", 0)


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="Python itself starts no thread once the main one has ended"
)
def test_a_thread_that_outlives_the_main_one() -> None:
    code = """
    import threading
    def work():
        threading.main_thread().join()
        print(len(run(Sender(), requests("abc"))))
    threading.Thread(target=work).start()
    """
    done = python(code, "-X", "dev", "-W", "error")
    assert (done.stdout, complaints(done.stderr), done.returncode) == ("3\n", "", 0)


def test_a_uvloop_policy_is_kept() -> None:
    pytest.importorskip("uvloop")
    code = """
    import uvloop
    uvloop.install()
    print(len(run(Sender(), requests("abc"))), type(live.background_loop()).__module__)
    """
    done = python(code, "-W", "error", "-W", "ignore::DeprecationWarning")
    assert (done.stdout, done.stderr) == ("3 uvloop\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    code = """
    import os, sys
    assert len(run(Sender(), requests("abc"))) == 3
    before = live.background_loop()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        fine = live.background_loop() is not before and len(run(Sender(), requests("abcd"))) == 4
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    print(status, len(run(Sender(), requests("ab"))))
    """
    done = python(code, "-W", "error", "-W", "ignore::DeprecationWarning")
    assert (done.stdout, done.stderr) == ("0 2\n", "")


def test_the_loop_is_one_for_all_threads() -> None:
    found: list[asyncio.AbstractEventLoop] = []
    threads = [
        threading.Thread(target=lambda: found.append(background.background_loop()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert not background.on_loop()


def test_canceled_says_that_it_may_pass_later() -> None:
    control = Control(2)
    control.mode = "abort"
    results = run(Sender(), requests("abc"), control)
    assert results == []  # nothing was taken, so nothing is owed


def test_failures_of_the_sender_pass_through() -> None:
    failure = Failure("refused", "no")

    class Refusing(Sender):
        async def answer(self, request: Request) -> Result:
            return Result(request.key, failure=failure)

    assert [r.failure for r in run(Refusing(), requests("ab"))] == [failure, failure]

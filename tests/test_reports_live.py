"""Public fault reports: event loops, connections, rate limits, cost, cache, memory, progress."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import KEY, all_warnings, complaints, openai, statuses
from tests.servers.rows import MODEL, Reply, RowServer, by_schema
from tests.servers.scripted import Scripted, echo

pytest_plugins = ["tests.servers.plugin"]

ROOT = Path(__file__).resolve().parent.parent


def child(
    code: str, server: RowServer | None, home: Path, *flags: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own; ``URL`` is the server's address."""
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LLMFRAME_"))},
        "LLMFRAME_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "URL": server.url if server else "",
        **env,
    }
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=variables,
        cwd=home,
    )


def test_u008_the_sync_verb_works_inside_a_running_loop(serve: Any) -> None:
    engine = openai(serve(lambda seen: seen.prompt.upper()))
    df = pd.DataFrame({"t": ["a", "b"]})

    async def cell() -> pd.DataFrame:
        return df.llm.map("{t}", model=engine)

    with all_warnings() as caught:
        out = asyncio.run(cell())
        gc.collect()

    assert out["response"].tolist() == ["A", "B"]
    assert [str(w.message) for w in caught] == []


def test_u008_the_async_verb_and_the_awaited_job_let_the_loop_run(serve: Any) -> None:
    engine = openai(serve(lambda seen: Reply(seen.prompt.upper(), delay=0.2)))
    df = pd.DataFrame({"t": ["a", "b"]})

    async def main() -> tuple[pd.DataFrame, pd.DataFrame, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        out = await df.llm.amap("{t}", model=engine)
        job = df.llm.submit.map("{t} again", model=engine)
        await job
        ticking.cancel()
        return out, job.join(df), ticks

    with all_warnings() as caught:
        out, joined, ticks = asyncio.run(main())
        gc.collect()

    assert out["response"].tolist() == ["A", "B"]
    assert joined["response"].tolist() == ["A AGAIN", "B AGAIN"]
    assert ticks >= 10, "the loop stood still while rows were answered"
    assert [str(w.message) for w in caught] == []


def test_u009_twice_then_from_two_threads_and_nothing_at_exit(serve: Any, home: Path) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    done = child(
        """
        import asyncio, os, threading
        import pandas as pd
        import llmframe as lf
        engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")
        df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})
        outs = {}
        def run(name):
            outs[name] = df.llm.map(name + " {t}", model=engine, progress=False)
        run("one")
        run("two")
        threads = [threading.Thread(target=run, args=(n,)) for n in ("three", "four")]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        async def cell():
            return df.llm.map("five {t}", model=engine, progress=False)
        outs["five"] = asyncio.run(cell())
        async def coroutine():
            return await df.llm.amap("six {t}", model=engine, progress=False)
        outs["six"] = asyncio.run(coroutine())
        for name, out in outs.items():
            assert out["response"].tolist() == [f"{name} row {i}".upper() for i in range(20)]
        print(len(outs))
        """,
        server,
        home,
        "-X",
        "dev",
        "-W",
        "error",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "6"
    assert complaints(done.stderr) == ""
    assert server.count == 120


def test_u033_an_unpriced_model_runs_and_its_cost_is_unknown_never_zero(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": ["a", "b"]})

    plan = df.llm.plan.map("{t}", model=openai(server))
    out = df.llm.map("{t}", model=openai(server), details=True)

    assert plan.cost is None
    assert "unknown" in repr(plan)
    assert out["response"].tolist() == ["a", "b"]
    assert out["llm_cost"].isna().all()
    assert out["llm_cost"].dtype == "Float64"


def test_u036_the_plan_costs_nothing_and_shows_what_the_run_would(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": [f"text {i % 400}" for i in range(1_000)] + [None]})

    with lf.set_options(prices={f"openai/{MODEL}": (10.0, 40.0)}):
        plan = df.llm.plan.map("Say: {t}", model=openai(server), max_tokens=50)

    assert server.count == 0
    assert plan.rows == 1_001
    assert plan.requests == 400
    assert plan.cached == 0
    assert plan.skipped == 1
    assert plan.cost is not None
    # 400 requests of ~5 tokens in and at most 50 out.
    assert 0 < plan.cost < 400 * (100 * 10.0 + 50 * 40.0) / 1e6
    text = repr(plan)
    assert "1,001" in text
    assert "400" in text
    assert any("Say: text" in str(prompt) for prompt in plan.prompts)


def test_u036_a_budget_below_the_estimate_stops_before_spending(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": [f"text {i}" for i in range(1_000)]})

    with (
        lf.set_options(prices={f"openai/{MODEL}": (10_000.0, 40_000.0)}),
        pytest.raises(lf.BudgetError, match="budget") as caught,
    ):
        df.llm.map("Say: {t}", model=openai(server), max_tokens=50, budget=0.5)

    assert server.count == 0
    assert caught.value.plan.requests == 1_000
    assert "Nothing was sent" in str(caught.value)


def test_u036_a_budget_with_an_unpriced_model_is_refused(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": ["a", "b"]})

    with pytest.raises(lf.BudgetError, match="price"):
        df.llm.map("{t}", model=openai(server), budget=1.0)

    assert server.count == 0


def test_u085_cached_text_is_the_same_in_another_process(serve: Any, home: Path) -> None:
    cell = "a\u2028b\x85c\x0cd"
    server = serve(lambda seen: seen.prompt)
    code = """
        import os
        import pandas as pd
        import llmframe as lf
        cell = "a\\u2028b\\x85c\\x0cd"
        engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")
        out = pd.DataFrame({"t": [cell]}).llm.map("{t}", model=engine, progress=False)
        print(ascii(out["response"].tolist()), list(out.llm.status()))
        """
    first, second = child(code, server, home), child(code, server, home)

    assert first.stdout.strip() == f"{[cell]!a} ['ok']", first.stderr
    assert second.stdout.strip() == f"{[cell]!a} ['cached']", second.stderr
    assert server.count == 1


def test_u111_many_rows_through_few_sockets(serve: Any) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.2))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(500)]})

    out = df.llm.map("{t}", model=openai(server), concurrency=200)

    assert out["response"].tolist() == df["t"].tolist()
    assert server.count == 500
    assert server.max_in_flight <= 200
    assert server.max_sockets <= 200


@pytest.mark.slow
def test_u111_waiting_for_a_slot_does_not_use_up_the_request_timeout(serve: Any) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.25))
    df = pd.DataFrame({"t": [f"row {i}" for i in range(200)]})

    # 200 rows by 8 take 6 s in all, twice the timeout of one request.
    out = df.llm.map("{t}", model=openai(server, timeout=3.0), concurrency=8)

    assert out["response"].tolist() == df["t"].tolist()
    assert server.count == 200
    assert server.max_in_flight <= 8


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_u111_no_descriptor_leaks_from_run_to_run(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": [f"row {i}" for i in range(60)]})

    def sockets() -> int:
        count = 0
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the scan's own descriptor, or one closed meanwhile
                count += os.readlink(entry.path).startswith("socket:")
        return count

    def run(name: str) -> None:
        df.llm.map(name + " {t}", model=openai(server), concurrency=30)
        gc.collect()

    run("run 0")
    first = sockets()
    for i in range(1, 5):
        run(f"run {i}")
    # Connections of an engine that is gone are closed on the loop's own time, and the server, which
    # lives in this process too, sees it later still.
    end = time.monotonic() + 60
    while sockets() > first + 10 and time.monotonic() < end:
        time.sleep(0.05)

    assert sockets() <= first + 10, "each run leaves its sockets open"


def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_u112_a_loopback_address_is_not_sent_to_the_proxy(serve: Any, home: Path) -> None:
    server = serve()
    proxy = f"http://127.0.0.1:{dead_port()}"
    done = child(
        """
        import os
        import pandas as pd
        import llmframe as lf
        engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")
        try:
            out = pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=engine, progress=False)
            print(out["response"].tolist())
        except lf.EngineError as error:
            print(error)
        """,
        server,
        home,
        HTTP_PROXY=proxy,
        HTTPS_PROXY=proxy,
        http_proxy=proxy,
        https_proxy=proxy,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['a']" or proxy.removeprefix("http://") in done.stdout


def test_u112_a_client_of_the_users_own_is_used(serve: Any) -> None:
    import openai as sdk

    server = serve()
    client = sdk.AsyncOpenAI(
        api_key=KEY, base_url=server.url, default_headers={"X-Corp": "through the gateway"}
    )
    engine = lf.OpenAI(MODEL, client=client)
    df = pd.DataFrame({"t": ["a", "b", "c"]})

    out = df.llm.map("{t}", model=engine)

    assert out["response"].tolist() == ["a", "b", "c"]
    assert {seen.headers["x-corp"] for seen in server.asked} == {"through the gateway"}


def test_u112_headers_of_the_users_own_are_sent(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": ["a"]})

    df.llm.map("{t}", model=openai(server, headers={"X-Team": "blue"}))

    assert server.asked[0].headers["x-team"] == "blue"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.slow
def test_u112_a_private_certificate_by_the_systems_own_variable(
    serve: Any, home: Path, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no usable openssl to make a certificate with: {error}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = serve(tls=context)
    code = """
        import os
        import pandas as pd
        import llmframe as lf
        engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")
        try:
            out = pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=engine, progress=False)
            print(out["response"].tolist())
        except lf.EngineError as error:
            print("ERROR", error)
        """
    trusted = child(code, server, home, SSL_CERT_FILE=str(certificate))
    other = tmp_path / "other-home"
    other.mkdir(mode=0o700)
    unknown = child(code, server, other)

    assert trusted.stdout.strip() == "['a']", trusted.stderr + trusted.stdout
    assert unknown.stdout.startswith("ERROR"), unknown.stderr + unknown.stdout
    assert re.search("certificate|TLS|SSL", unknown.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("says_when", [True, False], ids=["Retry-After", "no header"])
def test_u113_a_small_rate_limit_needs_no_tuning(serve: Any, says_when: bool) -> None:
    recent: deque[float] = deque()

    def answer(seen: Any) -> Reply | str:
        while recent and recent[0] < seen.at - 1.0:
            recent.popleft()
        if len(recent) >= 4:
            headers = {"retry-after": "1"} if says_when else {}
            return Reply(
                status=429, code="rate_limit_exceeded", message="Rate limit", headers=headers
            )
        recent.append(seen.at)
        return seen.prompt

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(20)]})

    out = df.llm.map("{t}", model=openai(server))

    assert out["response"].tolist() == df["t"].tolist()
    refused = server.count - sum(server.answered.values())
    assert sum(server.answered.values()) == 20
    assert refused <= 3 * 20, f"{refused} requests were refused for 20 rows"


@pytest.mark.slow
def test_u113_every_worker_waits_for_retry_after(serve: Any) -> None:
    closed: list[float] = []

    def answer(seen: Any) -> Reply | str:
        if seen.n == 6:
            closed.append(seen.at)
            return Reply(
                status=429, code="rate_limit_exceeded", headers={"retry-after": "2"}, message="slow"
            )
        return Reply(seen.prompt, delay=0.05)

    server = serve(answer)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(60)]})

    out = df.llm.map("{t}", model=openai(server), concurrency=4)

    assert out["response"].tolist() == df["t"].tolist()
    # What was in flight, and what was on its way when the answer came back, is not held against it.
    during = [seen for seen in server.asked if closed[0] + 0.3 < seen.at < closed[0] + 1.9]
    assert during == []


def test_u114_a_token_limit_is_waited_out_and_one_huge_row_fails_no_other(serve: Any) -> None:
    bucket = {"left": 1_000.0, "at": time.monotonic()}

    def answer(seen: Any) -> Reply | str:
        now = time.monotonic()
        bucket["left"] = min(1_000.0, bucket["left"] + 500 * (now - bucket["at"]))
        bucket["at"] = now
        cost = len(seen.prompt.split())
        if cost > bucket["left"]:
            wait = (cost - bucket["left"]) / 500
            return Reply(
                status=429,
                code="rate_limit_exceeded",
                message="Rate limit reached for tokens per min (TPM)",
                headers={"retry-after-ms": str(int(wait * 1_000) + 50)},
            )
        bucket["left"] -= cost
        return str(cost)

    server = serve(answer)
    texts = [f"w{i} " + "w " * 59 for i in range(10)]
    texts.insert(5, "huge " + "w " * 899)
    df = pd.DataFrame({"t": texts})

    out = df.llm.map("{t}", model=openai(server))

    assert out["response"].tolist() == [str(len(text.split())) for text in texts]


@pytest.mark.parametrize("progress", [True, None])
def test_u125_no_widget_package_and_a_kernel_that_is_none(
    serve: Any, home: Path, progress: bool | None
) -> None:
    server = serve()
    done = child(
        f"""
        import os, sys, types
        sys.modules["ipywidgets"] = None
        fake = types.ModuleType("IPython")
        class Shell:
            config = {{"IPKernelApp": {{}}}}
        fake.get_ipython = lambda: Shell()
        fake.version_info = (9, 0, 0)
        sys.modules["IPython"] = fake
        import builtins
        builtins.get_ipython = fake.get_ipython
        import pandas as pd
        import llmframe as lf
        engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")
        df = pd.DataFrame({{"t": [f"row {{i}}" for i in range(30)]}})
        out = df.llm.map("{{t}}", model=engine, progress={progress})
        assert out["response"].tolist() == df["t"].tolist()
        print("done")
        """,
        server,
        home,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("done")
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_u126_progress_moves_while_rows_are_answered(serve: Any, home: Path) -> None:
    """On a terminal: the bar is drawn anew several times before the end."""
    pexpect = pytest.importorskip("pexpect")
    server = serve(lambda seen: Reply(seen.prompt, delay=0.1))
    script = home / "run.py"
    script.write_text(
        "import os\nimport pandas as pd\nimport llmframe as lf\n"
        'engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")\n'
        'df = pd.DataFrame({"t": [f"row {i}" for i in range(40)]})\n'
        'out = df.llm.map("{t}", model=engine, concurrency=1)\n'
        'print("rows", len(out))\n'
    )
    env = {**os.environ, "URL": server.url, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    env["LLMFRAME_HOME"] = str(home)
    del env["LLMFRAME_PROGRESS"]
    terminal = pexpect.spawn(
        sys.executable, [str(script)], env=env, timeout=90, encoding="utf-8", dimensions=(24, 100)
    )
    terminal.expect("rows 40")
    shown = terminal.before
    terminal.close()

    counts = {int(n) for n in re.findall(r"(\d+)/40", shown)}
    assert len(counts) >= 4, shown
    assert 40 in counts, "the bar stops short of the end"


@pytest.mark.slow
def test_u126_a_file_gets_a_few_lines_and_progress_false_gets_none(serve: Any, home: Path) -> None:
    server = serve(lambda seen: Reply(seen.prompt, delay=0.02))
    code = """
        import os
        import pandas as pd
        import llmframe as lf
        engine = lf.OpenAI("test-model", base_url=os.environ["URL"], api_key="sk-x")
        df = pd.DataFrame({{"t": [f"row {{i}}" for i in range(40)]}})
        df.llm.map("{name} {{t}}", model=engine, concurrency=2, progress={progress})
        """
    shown = child(code.format(name="a", progress=True), server, home)
    silent = child(code.format(name="b", progress=False), server, home)

    assert shown.returncode == 0, shown.stderr
    assert "\r" not in shown.stderr
    assert 1 <= len(shown.stderr.splitlines()) <= 10, shown.stderr
    assert shown.stdout == ""
    assert (silent.stdout, silent.stderr) == ("", "")


def test_u130_one_changed_word_asks_every_row_again() -> None:
    engine = Scripted(echo)
    df = pd.DataFrame({"t": ["a", "b", "c"]})

    df.llm.map("Is {t} good?", model=engine)
    df.llm.map("Is {t} fine?", model=engine)
    assert engine.count == 6
    out = df.llm.map("Is {t} good?", model=engine)

    assert engine.count == 6
    assert out["response"].tolist() == ["Is a good?", "Is b good?", "Is c good?"]


def test_u131_every_part_of_the_question_is_in_the_key(serve: Any) -> None:
    server = serve(lambda seen: by_schema(seen.schema))
    other = serve(lambda seen: by_schema(seen.schema))
    df = pd.DataFrame({"t": ["x"]})

    def asked(at: RowServer = server, model: str = MODEL, **call: Any) -> int:
        before = at.count
        engine = lf.OpenAI(model, base_url=at.url, api_key=KEY, **call.pop("engine", {}))
        df.llm.map("{t}", call.pop("schema", {"a": int}), model=engine, errors="coerce", **call)
        return at.count - before

    assert asked() >= 1
    assert asked() == 0
    changes: list[dict[str, Any]] = [
        {"model": "another-model"},
        {"at": other},
        {"schema": {"a": int, "b": int}},
        {"schema": {"b": int, "a": int}},
        {"temperature": 0.5},
        {"system": "Be brief."},
        {"seed": 1},
        {"extra": {"top_p": 0.5, "user": "u"}},
        {"examples": [({"t": "y"}, {"a": 2})]},
        {"engine": {"revision": "tuned in May"}},
    ]
    for change in changes:
        assert asked(**change) >= 1, f"{change} is not part of the key"
    for change in changes:
        assert asked(**change) == 0, f"{change} is not stable"
    assert asked(extra={"user": "u", "top_p": 0.5}) == 0, "the order of a dict is no difference"


def test_u131_what_is_no_part_of_the_question_is_not_in_the_key(serve: Any) -> None:
    server = serve(lambda seen: '{"a": 1}')
    df = pd.DataFrame({"t": ["x", "y"]})
    df.llm.map("{t}", {"a": int}, model=openai(server))
    sent = server.count

    engine = openai(server, api_key="sk-rotated", timeout=5, headers={"X-Trace": "1"})
    again = df.iloc[::-1].llm.map(
        "{t}", {"a": int}, model=engine, max_tokens=900, concurrency=1, into="n_", repairs=3
    )

    assert server.count == sent
    assert again["n_a"].tolist() == [1, 1]


def test_u134_finished_work_survives_a_change_of_concurrency(serve: Any) -> None:
    rows = 100
    server = serve(
        lambda seen: seen.prompt if seen.n <= 60 else Reply(status=401, message="key was revoked")
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(rows)]})

    with pytest.raises(lf.EngineError):
        df.llm.map("{t}", model=openai(server), concurrency=10)
    answered = set(server.answered)
    assert len(answered) == 60

    server.rows = lambda seen: seen.prompt
    out = df.llm.map("{t}", model=openai(server), concurrency=3)

    assert out["response"].tolist() == df["t"].tolist()
    assert set(server.answered.values()) == {1}
    assert statuses(out).count("cached") == 60


@pytest.mark.slow
def test_u156_requests_are_made_when_taken() -> None:
    rows = 60_000
    engine = Scripted(lambda r: "x", concurrency=32, watch=10_000, keep=False)
    df = pd.DataFrame({"t": [f"row {i}" for i in range(rows)]})
    before = threading.active_count()

    out = df.llm.map("{t}", model=engine)

    assert engine.count == rows
    assert len(out) == rows
    assert engine.most_alive < rows / 10, "the requests of the whole frame are alive at once"
    assert threading.active_count() <= before + 8


def test_u163_identical_rows_are_paid_for_once(serve: Any) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    df = pd.DataFrame({"t": ["a", "a", "b"]}, index=[5, 6, 7])

    out = df.llm.map("{t}", model=openai(server))

    assert server.count == 2
    assert out["response"].tolist() == ["A", "A", "B"]


def test_u163_a_failed_prompt_fails_every_row_that_shares_it(serve: Any) -> None:
    server = serve(
        lambda seen: (
            Reply(status=400, code="content_filter", message="no")
            if seen.prompt == "a"
            else seen.prompt
        )
    )
    df = pd.DataFrame({"t": ["a", "a", "b"]}, index=[5, 6, 7])

    with pytest.warns(lf.RowsFailedWarning, match="2 of 3"):
        out = df.llm.map("{t}", model=openai(server))

    assert server.count == 2
    assert out.llm.failures().index.tolist() == [5, 6]


def test_u163_with_sampling_the_rule_is_stated_and_can_be_changed(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda seen: f"draw {seen.n}")
    df = pd.DataFrame({"t": ["a", "a", "b"]})

    plan = df.llm.plan.map("{t}", model=openai(server), temperature=1.0)
    assert plan.requests == 2
    assert "dedupe" in repr(plan)

    monkeypatch.setattr("llmframe.submits._said", set())
    with pytest.warns(UserWarning, match="dedupe=False"):  # once a process
        shared = df.llm.map("{t}", model=openai(server), temperature=1.0)
    df.llm.map("{t}", model=openai(server), temperature=1.0)
    assert server.count == 2
    assert shared["response"].iloc[0] == shared["response"].iloc[1]

    drawn = df.llm.map("{t}", model=openai(server), temperature=1.0, dedupe=False)
    # The first of two identical rows is the sample that is there already.
    assert server.count == 3
    assert drawn["response"].iloc[0] != drawn["response"].iloc[1]
    again = df.llm.map("{t}", model=openai(server), temperature=1.0, dedupe=False)
    assert server.count == 3
    assert again["response"].tolist() == drawn["response"].tolist()


def test_no_warning_of_pythons_own_in_an_ordinary_live_run(serve: Any) -> None:
    server = serve()
    df = pd.DataFrame({"t": ["a", "b"]})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = df.llm.map("{t}", model=openai(server))

    assert out["response"].tolist() == ["a", "b"]
    assert json.dumps(out.attrs)

"""Under event loops of the user's: asyncio's, uvloop's, a thread's, a web server's; and at exit.

Real SDK clients over real HTTP; what was asked is the servers' own count.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import openai as sdk
import pandas as pd
import pytest
from aiohttp import ClientSession, web

import llmframe as lf
from llmframe.engines import homes
from tests.servers.anthropic import AnthropicServer
from tests.servers.looking import KEY, all_warnings, complaints, openai, statuses
from tests.servers.rows import MODEL, Reply, RowServer

pytest_plugins = ["tests.servers.plugin"]

ROOT = Path(__file__).resolve().parent.parent
ROWS = [f"row {i}" for i in range(12)]


def frame(count: int = len(ROWS)) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(count)]})


def run_asyncio(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main)


def run_uvloop(main: Coroutine[Any, Any, Any]) -> Any:
    return pytest.importorskip("uvloop").run(main)


@pytest.fixture(params=[run_asyncio, run_uvloop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a coroutine in a loop of its kind."""
    return request.param


@pytest.fixture(autouse=True)
def nothing_is_patched() -> Iterator[None]:
    """What needs nest-asyncio is tried in processes of its own: a patch is for a whole process."""
    yield
    for function in (asyncio.run, asyncio.get_event_loop, asyncio.Task, asyncio.sleep):
        assert function.__module__.startswith(("asyncio", "_asyncio")), function
    assert not hasattr(asyncio, "_nest_patched")


POOLS: dict[str, Callable[[], Any]] = {
    "the SDK's": lambda: None,
    "httpx": lambda: sdk.DefaultAsyncHttpxClient(headers={"X-Pool": "mine"}),
    "aiohttp": lambda: sdk.DefaultAioHttpClient(headers={"X-Pool": "mine"}),
}


def client_at(server: RowServer, pool: Any = None) -> sdk.AsyncOpenAI:
    return sdk.AsyncOpenAI(
        base_url=server.url,
        api_key=KEY,
        default_headers={"X-Mine": "1"},
        max_retries=0,
        http_client=pool,
    )


async def mine(client: sdk.AsyncOpenAI) -> str | None:
    """The user's own call, in the user's own loop."""
    message: Any = {"role": "user", "content": "mine"}
    reply = await client.chat.completions.create(model=MODEL, messages=[message])
    return reply.choices[0].message.content


# -- clients of the user's own ---------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_an_async_client_is_used_before_in_and_after_amap(serve: Any, run: Any, pool: str) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    try:
        POOLS[pool]()
    except RuntimeError as error:
        pytest.skip(str(error))  # an older SDK: its `aiohttp` extra

    async def main() -> list[pd.DataFrame]:
        client = client_at(server, POOLS[pool]())
        assert await mine(client) == "MINE"
        engine = lf.OpenAI(MODEL, client=client)
        outs = [await frame().llm.amap("{t}", model=engine, concurrency=4)]
        assert await mine(client) == "MINE"
        outs += await asyncio.gather(
            *(frame().llm.amap(f"{n} {{t}}", model=engine, concurrency=4) for n in range(3))
        )
        job = frame().llm.submit.map("job {t}", model=engine, concurrency=4)
        outs.append(await job)
        assert await mine(client) == "MINE"
        engine.close()
        await client.close()
        return outs

    outs = run(main())
    for start, out in zip(["", "0 ", "1 ", "2 ", "job "], outs, strict=True):
        assert out["response"].tolist() == [f"{start}{row}".upper() for row in ROWS]
    assert server.count == 3 + 5 * len(ROWS), "a row was asked twice"
    assert {seen.headers["x-mine"] for seen in server.asked} == {"1"}
    assert {seen.headers.get("x-pool") for seen in server.asked} == (
        {None} if pool == "the SDK's" else {"mine"}
    )


def test_hooks_on_the_sdks_own_pool_are_kept(serve: Any, run: Any) -> None:
    server = serve()
    bound: list[asyncio.AbstractEventLoop] = []

    async def main() -> asyncio.AbstractEventLoop:
        async def hook(request: Any) -> None:
            bound.append(asyncio.get_running_loop())

        client = client_at(server)
        client._client.event_hooks = {"request": [hook], "response": []}
        await frame().llm.amap("{t}", model=lf.OpenAI(MODEL, client=client))
        await client.close()
        return asyncio.get_running_loop()

    loop = run(main())
    assert bound == [loop] * len(ROWS)


def test_anthropics_async_clients_too(run: Any) -> None:
    anthropic = pytest.importorskip("anthropic")

    async def main(server: AnthropicServer, pool: Any) -> Any:
        client = anthropic.AsyncAnthropic(
            base_url=server.url, api_key=server.key, http_client=pool, max_retries=0
        )
        asked: Any = {"role": "user", "content": "mine"}
        ask = client.messages.create
        assert (await ask(model="c", max_tokens=9, messages=[asked])).content
        engine = lf.Anthropic("claude-next", client=client)
        out = await frame().llm.amap("{t}", model=engine)
        assert (await ask(model="c", max_tokens=9, messages=[asked])).content
        engine.close()
        await client.close()
        return out

    for pool in (None, anthropic.DefaultAsyncHttpxClient()):
        with AnthropicServer() as server:
            server.answer = lambda asked: asked.text.upper()
            out = run(main(server, pool))
            assert out["response"].tolist() == [f"ROW {i}" for i in range(12)]
            assert len(server.asked) == 14
        lf.purge(older_than=0)


def test_a_blocking_call_under_uvloop_says_what_to_do_before_anything_is_sent(serve: Any) -> None:
    server = serve()

    async def main() -> None:
        client = client_at(server, sdk.DefaultAsyncHttpxClient())
        engine = lf.OpenAI(MODEL, client=client)
        for call in (frame().llm.map, lambda *a, **k: frame().llm.plan.map(*a, pilot=2, **k)):
            with pytest.raises(lf.ModelError, match=r"uvloop.*await df\.llm\.amap"):
                call("{t}", model=engine)
        await client.close()
        # What has no pool of the user's runs as ever.
        assert frame().llm.map("{t}", model=openai(server))["response"].tolist() == ROWS

    run_uvloop(main())
    assert server.count == len(ROWS)


def test_without_nest_asyncio_the_error_names_it(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(homes, "import_module", missing)

    async def main() -> None:
        client = client_at(server, sdk.DefaultAsyncHttpxClient())
        engine = lf.OpenAI(MODEL, client=client)
        with pytest.raises(lf.ModelError, match="Or install nest-asyncio2"):
            frame().llm.map("{t}", model=engine)
        await client.close()

    asyncio.run(main())
    assert server.count == 0


@pytest.mark.parametrize("ending", ["closed", "stopped"])
def test_a_loop_that_ends_under_its_clients_calls(serve: Any, ending: str) -> None:
    server = serve(lambda seen: seen.prompt if seen.n <= 4 else Reply(hang=True))
    loop = asyncio.new_event_loop()

    async def main() -> Any:
        engine = lf.OpenAI(MODEL, client=client_at(server, sdk.DefaultAsyncHttpxClient()))
        job = frame().llm.submit.map("{t}", model=engine, concurrency=1)
        while server.count < 5:
            await asyncio.sleep(0.01)
        return job

    job = loop.run_until_complete(main())
    if ending == "closed":
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()
    with pytest.raises(lf.EngineError, match="was used in has ended") as caught:
        job.result()
    assert caught.value.result["response"].notna().sum() == 4
    assert server.count == 5
    if not loop.is_closed():
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


def test_a_pool_whose_loop_has_ended_is_not_used_again(serve: Any) -> None:
    server = serve()
    pool = sdk.DefaultAsyncHttpxClient()
    engine = lf.OpenAI(MODEL, client=client_at(server, pool))

    async def main(prompt: str, last: bool) -> Any:
        try:
            return await frame().llm.amap(prompt, model=engine)
        finally:
            if last:
                await pool.aclose()

    asyncio.run(main("{t}", True))
    with pytest.raises(lf.EngineError, match="Make a new client"):
        asyncio.run(main("again {t}", False))
    assert server.count == len(ROWS)


# -- an await that is cancelled --------------------------------------------------------------


class EightThenNothing:
    """Answers eight rows and lets every later one hang, until told otherwise."""

    def __init__(self) -> None:
        self.open = False

    def __call__(self, seen: Any) -> Reply | str:
        return str(seen.prompt) if self.open or seen.n <= 8 else Reply(hang=True)


@pytest.mark.parametrize("own", [False, True], ids=["llmframe's", "own pool"])
@pytest.mark.parametrize("how", ["cancel", "timeout", "group"])
def test_u119_a_cancelled_await_stops_the_work_and_keeps_it(
    serve: Any, run: Any, how: str, own: bool
) -> None:
    script = EightThenNothing()
    server = serve(script)
    said: list[str] = []

    async def waiting(engine: Any) -> None:
        try:
            await frame().llm.amap("{t}", model=engine, concurrency=2)
        except asyncio.CancelledError as error:
            said.extend(getattr(error, "__notes__", []))
            raise

    async def hung() -> None:
        while server.count < 10:
            await asyncio.sleep(0.01)

    async def timed_out(engine: Any) -> None:
        async with asyncio.timeout(None) as limit:
            now = asyncio.get_running_loop().time
            task = asyncio.create_task(hung())
            task.add_done_callback(lambda _: limit.reschedule(now()))
            await waiting(engine)

    async def grouped(engine: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waiting(engine))
            await hung()
            raise ValueError("another task of the group failed")

    async def canceled(engine: Any) -> None:
        task = asyncio.create_task(waiting(engine))
        await hung()
        task.cancel()
        await asyncio.wait((task,), timeout=120)  # the rows that hang would take ten minutes
        assert task.done()
        await task

    ways: dict[str, tuple[Any, type[BaseException]]] = {
        "cancel": (canceled, asyncio.CancelledError),
        "timeout": (timed_out, TimeoutError),
        "group": (grouped, BaseExceptionGroup),
    }

    async def main() -> Any:
        client = client_at(server, sdk.DefaultAsyncHttpxClient() if own else None)
        engine = lf.OpenAI(MODEL, client=client) if own else openai(server)
        way, error = ways[how]
        with pytest.raises(error):
            await way(engine)
        end = time.monotonic() + 60
        while server.sockets and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert server.sockets == 0, "something was left in flight"
        script.open = True
        out = await frame().llm.amap("{t}", model=engine)
        await client.close()
        return out

    out = run(main())
    assert len(said) == 1
    assert "8 of 12 rows kept" in said[0]
    assert "the same call sends the rest" in said[0]
    assert sorted(statuses(out)) == ["cached"] * 8 + ["ok"] * 4
    assert out["response"].tolist() == ROWS


def test_u119_cancelled_before_there_is_a_job(serve: Any) -> None:
    server = serve()
    rendering, go_on = threading.Event(), threading.Event()

    def prompt(row: Any) -> str:
        rendering.set()
        assert go_on.wait(120)
        return str(row["t"])

    async def main() -> None:
        task = asyncio.create_task(frame().llm.amap(prompt, model=openai(server)))
        while not rendering.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(main())  # and its end waits for the thread that rendered
    job = lf.jobs()[0]
    end = time.monotonic() + 60
    while job.status().state == "running" and time.monotonic() < end:
        time.sleep(0.01)
    assert job.status().state == "interrupted"
    assert job.status().pending >= len(ROWS) - 1  # the canary may have been on its way


def test_a_cancelled_gather_stops_each_of_its_jobs(serve: Any) -> None:
    server = serve(lambda seen: Reply(hang=True))

    async def main() -> None:
        calls = [frame().llm.amap(f"{n} {{t}}", model=openai(server)) for n in range(3)]
        together = asyncio.gather(*calls)
        while server.count < 3:
            await asyncio.sleep(0.01)
        together.cancel()
        with pytest.raises(asyncio.CancelledError):
            await together

    asyncio.run(main())  # its end is in a hurry: it cancels the awaits that still let go
    end = time.monotonic() + 60
    while any(job.status().state == "running" for job in lf.jobs()) and time.monotonic() < end:
        time.sleep(0.01)
    assert [job.status().state for job in lf.jobs()] == ["interrupted"] * 3


# -- where verbs are called from -------------------------------------------------------------


def test_u008_in_a_thread_with_a_running_loop_of_its_own(serve: Any) -> None:
    """As marimo runs its cells."""
    server = serve(lambda seen: seen.prompt.upper())
    outs: list[Any] = []

    async def cells() -> None:
        engine = openai(server)
        outs.append(frame().llm.map("{t}", model=engine))
        outs.append(await frame().llm.amap("two {t}", model=engine))
        outs.append(frame()["t"].llm.map("three {}", model=engine))

    with all_warnings() as caught:
        thread = threading.Thread(target=lambda: asyncio.run(cells()))
        thread.start()
        thread.join(120)
    assert [str(warning.message) for warning in caught] == []
    assert [out["response"].iloc[3] if out.ndim == 2 else out.iloc[3] for out in outs] == [
        "ROW 3",
        "TWO ROW 3",
        "THREE ROW 3",
    ]


def test_u008_in_the_handlers_of_a_web_server(serve: Any, run: Any) -> None:
    model = serve(lambda seen: seen.prompt.upper())

    async def handler(request: web.Request) -> web.Response:
        verb, text = request.query["verb"], request.query["t"]
        llm = pd.DataFrame({"t": [text]}).llm
        out = (
            await llm.amap("{t}", model=engine) if verb == "amap" else llm.map("{t}", model=engine)
        )
        return web.json_response(out["response"].tolist())

    async def main() -> list[Any]:
        app = web.Application()
        app.router.add_get("/", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]

        async def ask(session: ClientSession, verb: str, n: int) -> Any:
            query = {"verb": verb, "t": f"{verb} {n}"}
            async with session.get(f"http://{host}:{port}/", params=query) as reply:
                return await reply.json()

        async with ClientSession() as session:
            asked = [ask(session, verb, n) for verb in ("amap", "map") for n in range(3)]
            answers = await asyncio.gather(*asked)
        await runner.cleanup()
        return answers

    engine = openai(model)
    assert run(main()) == [[f"{verb} {n}"] for verb in ("AMAP", "MAP") for n in range(3)]


@pytest.mark.parametrize("verb", ["aclassify", "aextract", "afilter"])
def test_every_verb_can_be_awaited(serve: Any, run: Any, verb: str) -> None:
    from tests.servers.rows import by_schema

    server = serve(
        lambda seen: by_schema(seen.schema, _label="b", _bool="1" in seen.prompt, name="n")
    )
    engine = openai(server)
    calls: dict[str, Callable[[], Any]] = {
        "aclassify": lambda: frame().llm.aclassify("t", ["a", "b"], model=engine),
        "aextract": lambda: frame().llm.aextract("t", {"name": str}, model=engine),
        "afilter": lambda: frame().llm.afilter("is {t} good?", model=engine),
    }

    async def main() -> Any:
        return await calls[verb]()

    out = run(main())
    if verb == "afilter":
        assert out["t"].tolist() == ["row 1", "row 10", "row 11"]
    else:
        column = {"aclassify": "label", "aextract": "name"}[verb]
        assert set(out[column]) == {{"aclassify": "b", "aextract": "n"}[verb]}


# -- processes of their own ------------------------------------------------------------------

HEAD = """
import asyncio, multiprocessing, os, signal, sys, threading, time
import openai, pandas as pd
import llmframe as lf

# A parent that runs in the background may have handed down an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
URL = os.environ["URL"]
engine = lf.OpenAI("test-model", base_url=URL, api_key="sk-x")
df = pd.DataFrame({"t": [f"row {i}" for i in range(12)]})

def own(pool=None):
    return openai.AsyncOpenAI(base_url=URL, api_key="sk-x", max_retries=0, http_client=pool)

async def mine(client):
    reply = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "mine"}])
    return reply.choices[0].message.content
"""


def process(code: str, server: RowServer, home: Path, *, head: str = HEAD) -> subprocess.Popen[str]:
    """Start a script in which every warning is an error and asyncio is in its debug mode."""
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LLMFRAME_"))},
        "LLMFRAME_HOME": str(home),
        "LLMFRAME_PROGRESS": "0",
        "PYTHONASYNCIODEBUG": "1",
        "PYTHONPATH": str(ROOT),
        "URL": server.url,
    }
    script = textwrap.dedent(head) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def ended(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, and what it said: on stderr without asyncio's remarks on slow steps."""
    try:
        out, err = started.communicate(timeout=300)
    finally:
        started.kill()
        started.wait()
    return started.returncode, out, complaints(err)


def test_u008_nothing_is_patched_but_for_a_pool_that_lives_in_the_loop(
    serve: Any, home: Path
) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    code = """
    seen = []

    async def hook(request):
        seen.append(asyncio.get_running_loop() is here)

    async def cell():
        global here
        here = asyncio.get_running_loop()
        client = own()
        await mine(client)
        mine_too = lf.OpenAI("test-model", client=client)
        df.llm.map("one {t}", model=engine)
        df.llm.map("two {t}", model=mine_too)
        await asyncio.gather(*(df.llm.amap(f"three {n} {{t}}", model=mine_too) for n in range(2)))
        job = df.llm.submit.map("four {t}", model=engine)
        job.wait()
        print(asyncio.run.__module__, asyncio.Task.__module__, await mine(client))
        await client.close()

        pool = openai.DefaultAsyncHttpxClient(event_hooks={"request": [hook]})
        client = own(pool)
        await mine(client)
        lives = lf.OpenAI("test-model", client=client)
        await df.llm.amap("five {t}", model=lives)
        print(asyncio.run.__module__)
        ticks = []
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.005)
        ticking = asyncio.create_task(tick())
        out = df.llm.map("six {t}", model=lives)
        print(out["response"].tolist()[-1], len(ticks) > 1, asyncio.run.__module__)
        job = df.llm.submit.map("seven {t}", model=lives)
        print(job.wait().status().ok, set(seen), len(seen), await mine(client))
        ticking.cancel()
        await client.close()

    asyncio.run(cell())
    """
    status, out, err = ended(process(code, server, home))
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "asyncio.runners _asyncio MINE",
        "asyncio.runners",
        "SIX ROW 11 True nest_asyncio2",
        f"12 {{True}} {1 + 3 * 12} MINE",
    ]
    assert server.count == 4 + 8 * 12


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["df.llm.map", "await df.llm.amap"])
@pytest.mark.parametrize("pool", ["None", "openai.DefaultAsyncHttpxClient()"])
def test_u119_ctrl_c_under_asyncio_run(serve: Any, home: Path, verb: str, pool: str) -> None:
    """There the first Ctrl-C raises nothing: it cancels the task, which may be blocked."""
    server = serve(EightThenNothing())
    code = f"""
    async def main():
        client = own({pool})
        lives = lf.OpenAI("test-model", client=client)
        try:
            {verb}("{{t}}", model=lives, concurrency=2)
        finally:
            await client.close()

    asyncio.run(main())
    """
    started = process(code, server, home)
    server.wait_for(lambda: server.count == 10 and lf.jobs()[0].status().ok == 8)
    started.send_signal(signal.SIGINT)
    status, _, err = ended(started)  # the rows that hang would keep it for ten minutes
    assert status != 0
    assert err.rstrip().splitlines()[-1].startswith("KeyboardInterrupt")
    assert "8 of 12 rows kept" in err
    for noise in ("never awaited", "never retrieved", "unclosed", "destroyed", "ignored"):
        assert noise not in err, err
    out = lf.jobs()[0]
    assert out.status().state == "interrupted"


ENDS = {
    "normal": ("print(len(df.llm.map('{t}', model=engine)))", 0, "12\n", ""),
    "exception": ("df.llm.map('{t}', model=engine); raise LookupError('mine')", 1, "", "mine"),
    "an engine closed twice": (
        "df.llm.map('{t}', model=engine); engine.close(); engine.close(); "
        "print(len(df.llm.map('more {t}', model=engine))); engine.close()",
        0,
        "12\n",
        "",
    ),
    "a job still running": (
        "job = df.llm.submit.map('hang {t}', model=engine)\n"
        "while not job._look().in_flight: time.sleep(0.01)\n"
        "print(job.status().state)",
        0,
        "running\n",
        "",
    ),
    "an await that is left": (
        "async def main():\n"
        "    asyncio.create_task(df.llm.amap('hang {t}', model=engine))\n"
        "    while not any(job._look().in_flight for job in lf.jobs()): await asyncio.sleep(0.01)\n"
        "asyncio.run(main()); print('left')",
        0,
        "left\n",
        "",
    ),
    "two threads at once": (
        "def work(name): df.llm.map(name + ' {t}', model=engine)\n"
        "threads = [threading.Thread(target=work, args=(name,)) for name in ('one', 'two')]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(threading.active_count() > 0)",
        0,
        "True\n",
        "",
    ),
    "an async client of the user's": (
        "client = own()\n"
        "print(len(df.llm.map('{t}', model=lf.OpenAI('test-model', client=client))))\n"
        "async def main(): print(await mine(client)); await client.close()\n"
        "asyncio.run(main())",
        0,
        "12\nMINE\n",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_u009_nothing_is_said_at_the_end_of_a_process(serve: Any, home: Path, how: str) -> None:
    server = serve(
        lambda seen: Reply(hang=True) if seen.prompt.startswith("hang") else seen.prompt.upper()
    )
    code, status, out, error = ENDS[how]
    found = ended(process(code, server, home))
    assert found[:2] == (status, out), found[2]
    if error:
        assert found[2].rstrip().splitlines()[-1] == f"LookupError: {error}"
        assert found[2].count("Traceback") == 1
    else:
        assert found[2] == ""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize(
    "client", ["", ", client=own()", ", client=openai.OpenAI(base_url=URL, api_key='sk-x')"]
)
def test_u009_a_forked_worker_has_a_loop_of_its_own(serve: Any, home: Path, client: str) -> None:
    server = serve(lambda seen: seen.prompt.upper())
    code = f"""
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork itself, where threads run
    engine = lf.OpenAI("test-model"{client or ', base_url=URL, api_key="sk-x"'})

    def work(name):
        return df.llm.map(name + " {{t}}", model=engine)["response"].tolist()[-1]

    print(work("parent"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(work, ["one", "two"]))
        pool.close()
        pool.join()
    print(work("again"))
    """
    status, out, err = ended(process(code, server, home))
    assert (status, err) == (0, "")
    assert out.splitlines() == ["PARENT ROW 11", "['ONE ROW 11', 'TWO ROW 11']", "AGAIN ROW 11"]
    assert server.count == 4 * 12

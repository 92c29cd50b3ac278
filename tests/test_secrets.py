"""A planted API key is found in no repr, traceback, pickle, log, store or HTML."""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from tests.servers.looking import all_warnings
from tests.servers.rows import MODEL, Reply

pytest_plugins = ["tests.servers.plugin"]

SECRET = "sk-planted-4f9d1c77b2e84aa0936c55d8e1"
HEADER = "hdr-planted-a81b6cc2d7104f53"
PASSWORD = "pw-planted-77f0e3d9"
PLANTED = (SECRET, HEADER, PASSWORD)
PACKAGE = str(Path(lf.__file__).parent)


def leaks(text: str | bytes, where: str) -> None:
    """Fail where a planted secret is found; the message holds only the place."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    found = [i for i, secret in enumerate(PLANTED) if secret.encode() in data]
    assert not found, f"planted secret {found} in {where}"


def echoing(status: int, code: str | None = None) -> Any:
    """Says the headers it was sent back in its error message, as careless gateways do."""
    return lambda seen: Reply(
        status=status,
        code=code,
        message=(
            f"refused: Authorization={seen.headers['authorization']} "
            f"x-gateway={seen.headers.get('x-gateway')}"
        ),
        headers={"x-echo": seen.headers["authorization"]},
    )


def engine_at(server: Any, **options: Any) -> Any:
    address = server.url.replace("http://", f"http://user:{PASSWORD}@")
    options.setdefault("headers", {"X-Gateway": HEADER})
    return lf.OpenAI(MODEL, base_url=address, api_key=SECRET, **options)


def html_of(thing: Any) -> str:
    render = getattr(thing, "_repr_html_", None)
    return render() or "" if render else ""


def everything_about(error: BaseException) -> str:
    """The error, its causes, and the locals that a verbose traceback would show.

    Only frames of the package count: the test's own locals hold the key.
    """
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        parts += [str(link), repr(link), repr(link.args), repr(vars(link))]
        parts += traceback.format_exception(link, chain=False)
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if frame.f_code.co_filename.startswith(PACKAGE):
                parts += [f"{name}={value!r}" for name, value in frame.f_locals.items()]
        link = link.__cause__ or link.__context__
    return "\n".join(parts)


def store_bytes(home: Path) -> bytes:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files, "no journal was written"
    return b"\n".join(path.read_bytes() for path in files)


def test_the_server_really_gets_the_key(serve: Any) -> None:
    server = serve()
    pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=engine_at(server))
    assert server.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    assert server.asked[0].headers["x-gateway"] == HEADER


@pytest.mark.parametrize("status", [401, 403, 500, 400, 429])
def test_an_error_body_that_echoes_the_key(
    serve: Any, home: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.DEBUG)
    code = "insufficient_quota" if status == 429 else None
    failing = echoing(status, code)
    server = serve(lambda seen: failing(seen) if seen.prompt == "b" or status != 500 else "fine")
    df = pd.DataFrame({"t": ["a", "b"]})
    engine = engine_at(server)
    job = None

    with all_warnings() as caught:
        try:
            job = df.llm.submit.map("{t}", model=engine).wait()
            out = job.join(df)
        except lf.EngineError as error:
            leaks(everything_about(error), "the exception")
            leaks(pickle.dumps(error), "the pickled exception")
            out = error.result

    assert server.count >= 1
    for warning in caught:
        leaks(str(warning.message), "a warning")
    leaks(pickle.dumps(out), "the pickled frame")
    leaks(out.to_html(), "the frame's HTML")
    failures = out.llm.failures()
    leaks(repr(failures.to_dict()), "failures()")
    for label in out.index:
        trace = out.llm.trace(label)
        leaks(f"{trace!s} {trace!r} {html_of(trace)}", "trace()")
    jobs = lf.jobs()
    leaks(f"{jobs!s} {jobs!r} {html_of(jobs)}", "lf.jobs()")
    if job is not None:
        report = job.report()
        leaks(f"{report!s} {report!r} {html_of(report)}", "the report")
        leaks(f"{job!s} {job!r} {html_of(job)} {job.status()!r}", "the job")
    for record in caplog.records:
        leaks(f"{record.getMessage()} {record.args!r} {record.exc_text}", f"a log of {record.name}")
    leaks(store_bytes(home), "the store")


def test_a_good_run_leaves_nothing_either(
    serve: Any, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve()
    df = pd.DataFrame({"t": ["a", "b"]})
    engine = engine_at(server)

    plan = df.llm.plan.map("{t}", model=engine)
    job = df.llm.submit.map("{t}", model=engine).wait()
    out = job.join(df)
    report = job.report()

    assert out["response"].tolist() == ["a", "b"]
    for name, thing in {"plan": plan, "job": job, "report": report, "engine": engine}.items():
        leaks(f"{thing!s} {thing!r} {html_of(thing)}", name)
    leaks(repr(dict(engine.identity())), "identity()")
    leaks(repr(out.attrs), "attrs")
    leaks(caplog.text, "the log")
    leaks(store_bytes(home), "the store")


def test_a_pickled_engine_holds_no_key_and_works_again_with_one_from_the_environment(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    engine = engine_at(server, headers=None)
    data = pickle.dumps(engine)
    leaks(data, "the pickled engine")

    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    again = pickle.loads(data)
    leaks(repr(again), "the engine's repr")
    out = pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=again)
    assert out["response"].tolist() == ["a"]
    assert server.asked[-1].headers["authorization"] == "Bearer sk-other"


def test_a_refused_connection_tells_no_secret(home: Path) -> None:
    engine = lf.OpenAI(
        MODEL, base_url=f"http://user:{PASSWORD}@127.0.0.1:9/v1", api_key=SECRET, timeout=5
    )
    with pytest.raises(lf.EngineError) as caught:
        pd.DataFrame({"t": ["a", "b"]}).llm.map("{t}", model=engine)
    leaks(everything_about(caught.value), "the exception")
    leaks(pickle.dumps(caught.value), "the pickled exception")
    leaks(store_bytes(home), "the store")


def test_a_key_with_a_line_end_is_told_without_showing_it(serve: Any) -> None:
    """A key pasted with its newline cannot be sent as a header; the refusal must not print it."""
    server = serve()
    df = pd.DataFrame({"t": ["a"]})

    def call() -> None:
        engine = lf.OpenAI(MODEL, base_url=server.url, api_key=SECRET + "\nX-Evil: 1")
        df.llm.map("{t}", model=engine)

    with pytest.raises((lf.ModelError, lf.EngineError)) as caught:
        call()
    # Without locals: the frame that was given the key has it.
    leaks("".join(traceback.format_exception(caught.value)), "the traceback")
    assert server.count == 0


def test_a_client_of_the_users_own_leaks_nothing(serve: Any, home: Path) -> None:
    import openai as sdk

    server = serve(echoing(401))
    client = sdk.AsyncOpenAI(api_key=SECRET, base_url=server.url, max_retries=0)
    engine = lf.OpenAI(MODEL, client=client)

    with pytest.raises(lf.EngineError) as caught:
        pd.DataFrame({"t": ["a"]}).llm.map("{t}", model=engine)

    leaks(everything_about(caught.value), "the exception")
    leaks(pickle.dumps(caught.value), "the pickled exception")
    leaks(repr(engine), "the engine's repr")
    leaks(store_bytes(home), "the store")


def test_html_is_escaped_throughout(serve: Any) -> None:
    bad = "<script>alert(1)</script>"
    server = serve(lambda seen: bad)
    df = pd.DataFrame({"t": [bad, "b"]})

    plan = df.llm.plan.map("{t}", model=lf.OpenAI(MODEL, base_url=server.url, api_key="x"))
    job = df.llm.submit.map(
        "{t}", model=lf.OpenAI(MODEL, base_url=server.url, api_key="x"), system=bad
    ).wait()
    trace = job.join(df).llm.trace(0)

    for thing in (plan, job, job.report(), trace, lf.jobs()):
        assert "<script>" not in html_of(thing)

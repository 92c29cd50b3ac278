"""What a job says to somebody who comes back to it: rows, reasons, engines, code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

import llmframe as lf
from llmframe.results import Failure
from llmframe.testing import FakeBatchEngine, FakeEngine
from tests.servers.openai_batches import BatchServer, Plan

PROMPT = "Say: {t}"


@pytest.fixture(autouse=True)
def quick() -> Any:
    """Polls and lingers of a test's length."""
    with lf.set_options(poll_interval=0.02):
        yield


class Number(BaseModel):
    """A schema that only its class can check."""

    a: int


def frame(count: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"row {i}" for i in range(count)]})


def elsewhere(code: str, **variables: str) -> str:
    """Run code in a process of its own, with the same store."""
    start = "import pandas as pd, llmframe as lf\nlf.set_options(poll_interval=0.02)\n"
    start += 'frame = lambda n=6: pd.DataFrame({"t": [f"row {i}" for i in range(n)]})\n'
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", start + textwrap.dedent(code)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- what is missing, and why ----------------------------------------------------------------


def test_a_join_says_which_rows_failed_at_the_line_that_joined() -> None:
    refused = Failure("content_filter", "the filter hit")
    engine = FakeBatchEngine(lambda text: refused if "row 2" in text else "ok")
    job = frame().llm.submit.map(PROMPT, model=engine).wait()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        job.join(frame())
        job.join()
    assert [one.category for one in told] == [lf.RowsFailedWarning] * 2
    assert "1 of 6 rows are NA: 1 content_filter" in str(told[0].message)
    assert {Path(one.filename).name for one in told} == {"test_comebacks.py"}


def test_a_join_says_what_ended_the_job() -> None:
    bad = Failure("invalid_request", "Incorrect API key provided", fatal=True, status=401)
    job = frame().llm.submit.map(PROMPT, model=FakeBatchEngine(bad)).wait()
    with pytest.warns(lf.RowsFailedWarning, match="6 of 6 rows .*Incorrect API key") as told:
        out = job.join(frame())
    assert len(told) == 1
    assert out["response"].isna().all()
    assert "ended early" in repr(job.status())
    assert "Incorrect API key" in str(job.status().error)


def test_a_poll_that_is_refused_is_told_by_the_join() -> None:
    engine = FakeBatchEngine("ok", batch_faults=["unauthorized"])
    job = frame().llm.submit.map(PROMPT, model=engine).wait()
    with pytest.warns(lf.RowsFailedWarning, match="5 of 6 rows .*does not show the batch"):
        job.join(frame())


def test_a_join_says_of_rows_that_are_not_the_jobs() -> None:
    job = frame().llm.submit.map(PROMPT, model=FakeEngine("ok")).wait()
    other = frame().assign(t=lambda df: df["t"].str.upper())
    with pytest.warns(UserWarning, match="none of the 6 prompts of this frame") as told:
        assert job.join(other)["response"].isna().all()
    assert len(told) == 1
    with pytest.warns(UserWarning, match="2 of 8 rows of this frame are none that job"):
        assert job.join(frame(8))["response"].notna().sum() == 6
    job.join(frame().iloc[::-2])  # fewer rows in another order: nothing to say


def test_a_join_of_a_job_that_runs_says_nothing_of_what_is_to_come() -> None:
    engine = FakeBatchEngine("ok", batch_faults=["stuck"])
    job = frame().llm.submit.map(PROMPT, model=engine)
    assert job.wait(timeout=0.3).join(frame())["response"].isna().any()
    job._run.stop("abort")
    job._done.wait(60)
    with pytest.warns(UserWarning, match=r"1 batch at fake .*nobody waits.*resume\(model=…\)"):
        job.join(frame())


def test_errors_coerce_says_nothing_of_failed_rows() -> None:
    refused = Failure("content_filter", "the filter hit")
    job = frame().llm.submit.map(PROMPT, model=FakeEngine(refused), errors="coerce").wait()
    assert job.join(frame())["response"].isna().all()


# -- columns ---------------------------------------------------------------------------------


def test_a_join_leaves_a_column_of_the_users_own_alone() -> None:
    job = frame().llm.submit.map(PROMPT, model=FakeEngine("ok"), into="o").wait()
    with pytest.raises(lf.SchemaError, match=r"column 'o' exists.*drop it before join"):
        job.join(frame().assign(o="mine"))
    out = job.join(frame())
    assert job.join(out)["o"].tolist() == ["ok"] * 6
    told = frame().assign(o="mine")
    job = told.llm.submit.map(PROMPT, model=FakeEngine("ok"), into="o", if_exists="replace").wait()
    assert job.join(told)["o"].tolist() == ["ok"] * 6


# -- code ------------------------------------------------------------------------------------


def test_a_frame_joined_with_a_function_has_its_status(tmp_path: Path) -> None:
    name = elsewhere(
        f"""
        engine = lf.testing.FakeBatchEngine("ok", directory={str(tmp_path)!r})
        job = frame().llm.submit.map(lambda row: "Say: " + row["t"], model=engine)
        print(job.wait().id)
        """
    )
    with pytest.warns(UserWarning, match="none of the 6 prompts"):
        lf.job(name).join(frame(), prompt=lambda row: "Cry: " + row["t"])
    out = lf.job(name).join(frame(), prompt=lambda row: "Say: " + row["t"])
    assert out.llm.status().tolist() == ["ok"] * 6
    assert len(out.llm.failures()) == 0
    assert out.llm.trace(0).raw == "ok"


@pytest.fixture
def server() -> Any:
    with BatchServer() as running:
        yield running


CLASS = """
from pydantic import BaseModel, field_validator

class Number(BaseModel):
    a: int

    @field_validator("a")
    def small(cls, value):
        assert value < 5
        return value

"""


def test_what_is_code_and_what_was_not_stored(tmp_path: Path) -> None:
    engine = f'lf.testing.FakeBatchEngine({{"a": 1}}, directory={str(tmp_path)!r})'
    name = elsewhere(
        CLASS
        + f"""
with lf.set_options(keep_prompts=False):
    print(frame().llm.submit.map("Say: {{t}}", Number, model={engine}).wait().id)
"""
    )
    with pytest.raises(lf.PromptError, match=r"prompt was not stored \(keep_prompts=False\)"):
        lf.job(name).join(frame(), schema=Number)
    name = elsewhere(
        f"""
        with lf.set_options(keep_prompts=False):
            job = frame().llm.submit.classify("t", ["a", "b"], model={engine})
            print(job.wait().id)
        """
    )
    with pytest.raises(lf.PromptError, match=r"not stored .*The same classify"):
        lf.job(name).join(frame())


def test_answers_that_need_a_class_are_no_failures(tmp_path: Path) -> None:
    engine = f'lf.testing.FakeBatchEngine({{"a": 1}}, directory={str(tmp_path)!r}, polls=10**9)'
    name = elsewhere(
        CLASS + f'print(frame().llm.submit.map("Say: {{t}}", Number, model={engine}).id)'
    )
    engine_here = FakeBatchEngine({"a": 1}, directory=tmp_path)
    job = lf.job(name).resume(model=engine_here).wait()
    assert (job.status().ok, job.status().failed) == (6, 0)
    assert (lf.jobs()[0].status().ok, lf.jobs()[0].status().failed) == (6, 0)
    with pytest.warns(lf.RowsFailedWarning, match=r"6 needs_code.*stored: join\(df, schema=…\)"):
        job.join(frame())
    told = elsewhere(
        CLASS
        + f"""
print(lf.job({name!r}).join(frame())["a"].tolist())
print(lf.job({name!r}).join(frame(), schema=Number).llm.status().tolist())
"""
    )
    assert told == f"{[1] * 6}\n{['ok'] * 6}"


# -- engines ---------------------------------------------------------------------------------


def test_an_engine_with_a_base_url_comes_back_with_the_key_of_the_environment(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.plan = Plan(words=["in_progress"] * 10**6)
    said = elsewhere(
        f"""
        engine = lf.OpenAI("m", base_url={server.url!r}, batch=True, cleanup=True)
        print(frame().llm.submit.map("Say: {{t}}", model=engine).id)
        """,
        OPENAI_API_KEY="sk-of-the-environment",
    )
    job = lf.job(said)
    with pytest.raises(lf.StoreError, match=r"OPENAI_API_KEY, which is not set here"):
        job.wait()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    for stored in server.batches.values():
        stored.plan.words = []
    assert job.wait().join(frame())["response"].notna().all()
    assert len(server.batches) == 1


def test_a_key_that_was_given_is_asked_for_and_no_other_one_sent(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.plan = Plan(words=["in_progress"] * 10**6)
    name = elsewhere(
        f"""
        engine = lf.OpenAI("m", base_url={server.url!r}, api_key="sk-given", batch=True)
        print(frame().llm.submit.map("Say: {{t}}", model=engine).id)
        """
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    job = lf.job(name)
    for method, call in (("resume", job.wait), ("cancel", job.cancel), ("finish", job.finish)):
        with pytest.raises(lf.StoreError, match="stored nowhere") as told:
            call()
        how = f"lf.job({name!r}).{method}(model=lf.OpenAI('m', base_url='{server.url}', api_key=…"
        assert how in str(told.value)
    assert job.cancel(model=lf.OpenAI("m", base_url=server.url, api_key="sk-given", batch=True))
    job.wait(60)
    assert server.calls["POST /v1/batches/ID/cancel"] >= 1
    assert job.status().state == "canceled"
    assert server.keys == {"sk-given"}


def test_an_interrupt_says_what_another_process_needs(server: BatchServer) -> None:
    server.plan = Plan(words=["in_progress"] * 10**6)
    given = lf.OpenAI("m", base_url=server.url, api_key="sk-given", batch=True)
    none = lf.OpenAI("m", base_url=server.url, batch=True)
    for engine, words in ((given, "In another process pass the engine"), (none, "any process")):
        before = len(server.batches)
        job = frame().llm.submit.map(f"{words}: {{t}}", model=engine)
        server.wait_for(lambda before=before: len(server.batches) > before)
        job.wait(0.2)
        assert words in str(job._interrupted())


def test_a_job_that_another_process_drives_is_not_cancelled_here(tmp_path: Path) -> None:
    engine = FakeBatchEngine("ok", directory=tmp_path, polls=10**9)
    job = frame().llm.submit.map(PROMPT, model=engine)
    said = elsewhere(
        f"""
        for call in (lf.job({job.id!r}).cancel, lf.job({job.id!r}).finish):
            try:
                call()
            except lf.StoreError as error:
                print(error)
        """
    )
    assert said.count(f"is driven by pid {os.getpid()}") == 2
    job.cancel()


class LiveAlone(FakeEngine):
    batched = None  # type: ignore[assignment]


def test_batch_true_takes_the_engine_that_was_given(
    server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    engine = lf.OpenAI("m", base_url=server.url, api_key="sk-given", max_batch_requests=3)
    out = frame().llm.map(PROMPT, model=engine, batch=True)
    assert out["response"].notna().all()
    assert len(server.batches) == 2  # three rows and two, behind the canary
    assert server.keys == {"sk-given"}
    # Its keys are those of the engine itself, which has nothing left to ask.
    assert frame().llm.map(PROMPT, model=engine).llm.status().tolist() == ["cached"] * 6
    assert len(server.live) == 1
    with pytest.raises(lf.ModelError, match="no batch API here"):
        frame().llm.map(PROMPT, model=LiveAlone("ok"), batch=True)


def test_the_repr_of_an_engine_shows_what_is_not_usual() -> None:
    url = "http://127.0.0.1:8000/v1"
    plain = lf.OpenAI("m", base_url=url)
    assert repr(plain) == f"OpenAI('m', base_url='{url}')"
    other = lf.OpenAI("m", base_url=url, endpoint="/v1/responses", cleanup=True, batch=True)
    more = "endpoint='/v1/responses', cleanup=True, batch=True"
    assert repr(other) == f"OpenAI('m', base_url='{url}', {more})"


def test_another_accounts_key_names_the_job_that_sent_the_batch_and_leaves_no_dead_job() -> None:
    with BatchServer(accounts={"sk-a": "org-a", "sk-b": "org-b"}) as server:
        server.plan = Plan(words=["in_progress"] * 10**6)
        name = elsewhere(
            f"""
            engine = lf.OpenAI("m", base_url={server.url!r}, api_key="sk-a", batch=True)
            print(frame().llm.submit.map("Say: {{t}}", model=engine).id)
            """
        )
        other = lf.OpenAI("m", base_url=server.url, api_key="sk-b", batch=True)
        for _ in range(2):
            with pytest.raises(lf.StoreError, match=f"of job '{name}' belongs to the account"):
                frame().llm.map(PROMPT, model=other)
        assert [job.id for job in lf.jobs()] == [name]
        job = frame().llm.submit.map(PROMPT, model=other).wait()
        with pytest.warns(lf.RowsFailedWarning, match=f"5 of 6 rows .*of job '{name}' belongs"):
            job.join(frame())
        assert len(server.batches) == 1


# -- what is shown ---------------------------------------------------------------------------


def test_the_table_of_jobs_tells_them_apart(tmp_path: Path) -> None:
    engine = FakeBatchEngine("x", directory=tmp_path)
    frame().llm.map(PROMPT, model=engine, into="said")
    frame().llm.filter("{t} is short", model=FakeBatchEngine(True, directory=tmp_path))
    kept, mapped = (row[2:5] for row in lf.jobs().rows())
    assert mapped == ("map", "said", "fake/fake-1")
    assert kept == ("filter", "", "fake/fake-1")
    assert "columns" in repr(lf.jobs()).splitlines()[0]


def test_a_plan_shows_a_long_prompt_once_and_not_whole() -> None:
    labels = [f"label number {i}" for i in range(77)]
    plan = frame().llm.plan.classify("t", labels, model=FakeEngine())
    shown = repr(plan)
    assert len(plan.prompts[0].splitlines()) > 77
    assert len(shown.splitlines()) < 60
    assert shown.count("label number 3\n") == 1
    assert "row 0" in shown
    assert "row 1" in shown


def test_a_warning_out_of_a_thread_names_the_users_line() -> None:
    class Speaks(FakeEngine):
        def stream(self, source: Any, control: Any) -> Any:
            from llmframe.errors import warn_user

            warn_user("a notice")
            yield from super().stream(source, control)

    with pytest.warns(UserWarning, match="a notice") as told:
        frame().pipe(lf.map, PROMPT, model=Speaks("ok"))  # through pandas
    assert [Path(one.filename).name for one in told] == ["test_comebacks.py"]


def test_a_full_disk_names_the_batches_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from llmframe.journal import Journal, files

    engine = FakeBatchEngine("ok", directory=tmp_path, polls=3)
    full = sqlite3.OperationalError("database or disk is full")

    def no_room(*_: Any) -> None:
        raise files.unusable(tmp_path, full) from full

    job = frame().llm.submit.map(PROMPT, model=engine)
    while not engine.created:
        pass
    monkeypatch.setattr(Journal, "record", no_room)
    with pytest.raises(lf.StoreError, match="Free some space") as caught:
        job.result()
    assert f'1 batch goes on at fake ({engine.created[0].id}): lf.job("{job.id}")' in str(
        caught.value
    )


def test_rows_that_somebody_cancelled_at_the_provider_fail_and_those_of_cancel_wait(
    server: BatchServer,
) -> None:
    engine = lf.OpenAI("m", base_url=server.url, batch=True)
    server.plan = Plan(end="cancelled", done=0.4)
    with pytest.warns(lf.RowsFailedWarning, match="3 canceled"):
        out = frame().llm.map(PROMPT, model=engine)
    assert out.llm.failures()["kind"].tolist() == ["canceled"] * 3
    server.plan = Plan(words=["in_progress"] * 10**6, done=0.4)
    before = len(server.batches)
    job = frame().llm.submit.map("Cancel: {t}", model=engine)
    server.wait_for(lambda: len(server.batches) > before)
    job.cancel().wait()
    assert (job.status().state, job.status().pending) == ("canceled", job.status().rows - 3)
    assert len(job.failures()) == 0


def test_a_terminal_is_told_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from llmframe.cli import main

    with BatchServer() as server:
        server.plan = Plan(words=["in_progress"] * 10**6)
        name = elsewhere(
            f"""
            engine = lf.OpenAI("m", base_url={server.url!r}, api_key="sk-given", batch=True)
            print(frame().llm.submit.map("Say: {{t}}", model=engine).id)
            """
        )
        for command in ("watch", "cancel"):
            assert main([command, name]) == 1
            told = capsys.readouterr().err
            assert told.endswith(f"Pass it: llmframe {command} {name} --model NAME.\n")

"""What the live view says of a job, without a notebook."""

from __future__ import annotations

import re
import time
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.engines.base import Figures
from llmframe.progress import Awaited, Progress, Trouble, Watched
from llmframe.results import Usage
from llmframe.widgets.pictures import Pace, picture, state

HOSTILE = "<script>x()</script></table>\x1b[31mred\x1b[0m &amp; " + "z" * 1_000_000


def watched(**given: Any) -> Watched:
    options: dict[str, Any] = {
        "id": "j_1",
        "about": "map → a, fake/fake-1",
        "expected": None,
        "look": lambda: Progress(1),
        "going": lambda: True,
        "label": str,
        "report": str,
        "actions": lambda: (),
        "press": lambda action: None,
    }
    return Watched(**{**options, **given})


def text(now: Progress, pace: Pace | None = None, **given: Any) -> str:
    """The picture as it reads."""
    html = picture(watched(**given), now, pace or Pace(), state(now, True))
    return re.sub("<[^>]*>", " ", re.sub("</?span[^>]*>", "", html.partition("</style>")[2]))


def paced(*moments: Progress) -> Pace:
    pace = Pace()
    for moment in moments:
        pace.add(moment)
    return pace


def test_rows_tokens_money_and_time_so_far_and_in_all() -> None:
    now = Progress(
        100, ok=18, cached=20, failed=2, in_flight=4, usage=Usage(900, 100), cost=0.5, seconds=20.0
    )
    before = Progress(100, ok=0, cached=20, failed=0, seconds=10.0)
    said = text(now, paced(before, now), expected=1.25)
    assert "18 answered, 20 answered before, 2 failed, 4 in flight" in said
    assert "40 of 100 rows" in said
    assert "2.0 rows/s, 100 tokens/s" in said
    assert "0:00:20, about 0:00:30 left" in said
    assert "900 in, 100 out, about 4,000 in all" in said
    assert "US$0.5000, about US$2.00 in all (the plan expected US$1.25)" in said


def test_an_unknown_price_is_told_and_a_free_model_costs_no_line() -> None:
    assert "unknown" in text(Progress(10, ok=5))
    assert "cost" not in text(Progress(10, ok=5, cost=0.0), expected=0.0)


def test_nothing_is_told_of_a_speed_that_nobody_knows_yet() -> None:
    early = text(Progress(10, ok=1, seconds=0.6), paced(Progress(10), Progress(10, ok=1)))
    assert "rows/s" not in early
    assert "left" not in early
    assert "in all" not in early


def test_the_loading_of_a_model_is_no_part_of_the_speed() -> None:
    loads = [Progress(100, seconds=float(second)) for second in range(60)]
    runs = [Progress(100, ok=2 * second, seconds=60.0 + second) for second in range(6)]
    assert paced(*loads, *runs).rows == pytest.approx(2.0)


def test_a_speed_is_that_of_the_last_half_minute() -> None:
    slow = [Progress(10_000, ok=second, seconds=float(second)) for second in range(100)]
    fast = [Progress(10_000, ok=99 + 10 * s, seconds=99.0 + s) for s in range(1, 40)]
    assert paced(*slow, *fast).rows == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize(
    ("now", "going", "said"),
    [
        (Progress(5), True, "running"),
        (Progress(5, figures=Figures(loading=True)), True, "loading the model"),
        (Progress(5, figures=Figures(running=3)), True, "running"),
        (Progress(5, awaited=(Awaited("openai", "b", 5, 0, 0.0),), in_flight=5), True, "waiting"),
        (Progress(9, awaited=(Awaited("openai", "b", 5, 0, 0.0),), in_flight=9), True, "running"),
        (Progress(5, awaited=(Awaited("openai", "b", 5, 0, 0.0),)), False, "nobody waits"),
    ],
)
def test_the_state_in_words(now: Progress, going: bool, said: str) -> None:
    assert said in state(now, going)


def test_engine_figures_are_shown() -> None:
    said = text(Progress(9, p50=0.5, p95=1.5, figures=Figures(kv_cache=0.42, waiting=3, p50=9.0)))
    assert "KV cache 42%" in said
    assert "3 waiting" in said
    assert "p50 0.50 s, p95 1.50 s" in said
    assert "9.0" not in said


def test_what_comes_from_data_is_escaped_and_cut() -> None:
    now = Progress(3, ok=1, latest=((0, HOSTILE),), troubles=(Trouble("truncated", 2, HOSTILE),))
    html = picture(watched(label=lambda row: HOSTILE, about=HOSTILE), now, Pace(), "running")
    assert "<script" not in html
    assert html.count("</table>") == html.count("<table")
    assert "\x1b" not in html
    assert len(html) < 15_000


def test_the_last_answers_the_troubles_and_the_latencies_of_a_run(home: Any) -> None:
    def answer(text: str) -> Any:
        return {"topic": text[-1], "n": 1} if text[-1] != "3" else "no json"

    engine = lf.testing.FakeEngine(answer, faults=["500"])
    df = pd.DataFrame({"t": [f"row {i}" for i in range(5)]}, index=list("abcde"))
    schema = {"topic": str, "n": int}
    job = df.llm.submit.map("{t}", schema, model=engine, errors="warn", progress=False).wait()
    now = job._look()
    assert len(now.latest) == 3
    assert now.latest[0] == (0, "topic: 0, n: 1"), "it was asked again, and so came last"
    assert job._watched().label(now.latest[0][0]) == "a"
    kinds = {trouble.kind: trouble.count for trouble in now.troubles}
    assert kinds == {"provider_error": 1, "invalid_output": 1}, "also what was asked again"
    assert now.p50 is None, "the fake engine tells no latencies"


def test_labels_told_from_scores_are_shown_while_it_runs(home: Any) -> None:
    engine = lf.testing.FakeEngine(lambda text: "good" if "fine" in text else "bad", choices=True)
    df = pd.DataFrame({"t": ["fine", "awful"]})
    job = df.llm.submit.classify("t", ["good", "bad"], model=engine, progress=False)
    out = job.result()
    shown = dict(job._look().latest)
    assert shown == {0: out["label"].iloc[0], 1: out["label"].iloc[1]}


def test_stop_gives_whoever_waits_the_finished_rows(home: Any) -> None:
    engine = lf.testing.FakeEngine(
        latency=lambda request: 3600.0 if request.messages[-1]["content"] == "row 4" else 0.0
    )
    df = pd.DataFrame({"t": [f"row {i}" for i in range(6)]})
    job = df.llm.submit.map("{t}", model=engine, concurrency=1, progress=False)
    end = time.monotonic() + 120
    while job.status().ok < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert job._watched().actions() == ("stop",)
    job._watched().press("stop")
    with pytest.warns(UserWarning, match="4 of 6 rows kept"):
        out = job.result()
    assert out["response"].isna().tolist() == [False] * 4 + [True] * 2
    assert job.status().state == "interrupted"
    assert job._watched().actions() == ()
    again = df.llm.map("{t}", model=lf.testing.FakeEngine())
    assert again["response"].notna().all()


def test_stop_is_an_error_where_a_row_without_an_answer_is_one(home: Any) -> None:
    engine = lf.testing.FakeEngine(latency=3600.0)
    df = pd.DataFrame({"t": ["a", "b"]})
    job = df.llm.submit.map("{t}", model=engine, errors="raise", progress=False)
    job._watched().press("stop")
    with pytest.raises(lf.EngineError, match="was stopped") as caught:
        job.result()
    assert caught.value.result["response"].isna().all()


def test_a_stop_that_comes_too_late_changes_nothing(home: Any) -> None:
    df = pd.DataFrame({"t": ["a", "b"]})
    job = df.llm.submit.map("{t}", model=lf.testing.FakeEngine(), progress=False).wait()
    job._watched().press("stop")
    assert job.result()["response"].tolist() == ["a", "b"]

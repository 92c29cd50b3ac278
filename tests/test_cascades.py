"""A cascade: only the rows of which the first model is unsure go to the stronger one."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe.escalations import escalation_of
from llmframe.results import Failure
from tests.servers.looking import all_warnings

LABELS = ["bug", "question"]
ROWS = 50


@pytest.fixture
def df() -> pd.DataFrame:
    truth = [LABELS[k % 2] for k in range(ROWS)]
    return pd.DataFrame({"t": [f"text {k:02} {t}" for k, t in enumerate(truth)], "truth": truth})


def weak() -> lf.testing.FakeEngine:
    """Right where it is sure, which it is of three rows in five; else right by half."""

    def answer(text: str) -> dict[str, float]:
        number = int(text.rpartition("text ")[2][:2])
        sure = 0.95 if number % 5 < 3 else 0.6
        right = "bug" in text.rpartition("text ")[2]
        says = right if number % 5 != 4 else not right
        return {"bug": sure if says else 1 - sure, "question": 1 - sure if says else sure}

    return lf.testing.FakeEngine(answer, choices=True, model="weak")


def strong(asked: list[str], wrong: str = "") -> lf.testing.FakeEngine:
    def answer(text: str) -> dict[str, str]:
        said = text.rpartition("text ")[2]
        asked.append(said)
        return {"label": "bug" if "bug" in said and said != wrong else "question"}

    return lf.testing.FakeEngine(answer, model="strong")


def test_the_cascade_is_as_right_as_the_strong_model_at_two_calls_in_five(
    df: pd.DataFrame,
) -> None:
    asked: list[str] = []
    alone = df.llm.classify("t", LABELS, model=weak())
    assert (alone["label"] == df["truth"]).mean() == 0.8
    with all_warnings() as seen:
        out = df.llm.classify("t", LABELS, model=weak(), escalate_to=strong(asked), below=0.8)
    assert (out["label"] == df["truth"]).all()
    assert len(asked) == 20
    assert len(out.columns) == len(df.columns) + 2
    assert out["label"].dtype == alone["label"].dtype
    assert (out["label_confidence"] < 0.8).sum() == 20
    assert len(seen) == 1
    assert "20 of 50 rows (40%) were less than 0.8 sure and went to fake/strong" in str(
        seen[0].message
    )


def test_a_cascade_goes_on_where_it_stopped(df: pd.DataFrame) -> None:
    asked: list[str] = []
    first, second = weak(), strong(asked)
    once = df.llm.classify("t", LABELS, model=first, escalate_to=second, below=0.8, errors="coerce")
    again = df.llm.classify(
        "t", LABELS, model=first, escalate_to=second, below=0.8, errors="coerce"
    )
    assert len(asked) == 20
    pd.testing.assert_frame_equal(once, again)
    more = df.llm.classify(
        "t", LABELS, model=first, escalate_to=second, below=0.99, errors="coerce"
    )
    assert len(asked) == ROWS  # what the stronger one said before is kept
    assert (more["label"] == df["truth"]).all()


def test_the_same_by_hand(df: pd.DataFrame) -> None:
    asked: list[str] = []
    first, second = weak(), strong(asked)
    out = df.llm.classify("t", LABELS, model=first, unsure_below=0.8, errors="coerce")
    out = out.llm.classify("t", LABELS, model=second, if_exists="fill")
    assert len(asked) == 20
    together = df.llm.classify(
        "t", LABELS, model=first, escalate_to=second, below=0.8, errors="coerce"
    )
    assert len(asked) == 20
    pd.testing.assert_frame_equal(out, together)


def test_rows_that_fail_go_on_too(df: pd.DataFrame) -> None:
    asked: list[str] = []

    def answer(text: str) -> Any:
        if "text 00" in text:
            return Failure("refused", "no", False)
        return {"bug": 0.99, "question": 0.01}

    engine = lf.testing.FakeEngine(answer, choices=True, model="weak")
    with all_warnings() as seen:
        out = df.head(4).llm.classify("t", LABELS, model=engine, escalate_to=strong(asked))
    assert asked == ["00 bug"]
    assert out["label"].tolist() == ["bug"] * 4
    assert "as did 1 that failed" in str(seen[0].message)


def test_where_all_are_sure_the_stronger_model_hears_nothing(df: pd.DataFrame) -> None:
    asked: list[str] = []
    with all_warnings() as seen:
        df.llm.classify("t", LABELS, model=weak(), escalate_to=strong(asked), below=0.5)
    assert not asked
    assert not seen


def test_the_plan_shows_both(df: pd.DataFrame) -> None:
    asked: list[str] = []
    plan = df.llm.plan.classify("t", LABELS, model=weak(), escalate_to=strong(asked))
    assert plan.requests == ROWS
    assert plan.advice[0].startswith(
        "rows less than 0.8 sure go on to fake/strong: at most 50 requests more"
    )
    assert not asked


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"explain": True}, "no explain="),
        ({"multi": True}, "no multi="),
        ({"unsure_below": 0.5}, "takes below="),
        ({"below": 80}, "below=80: expected a probability"),
        ({"if_exists": "fill"}, "with fill"),
        ({"calibration": 0.9}, r"lf\.calibration\(out, 'label', 'truth'\)\.fit\(\)"),
    ],
)
def test_what_a_cascade_cannot_do_is_said_before_anything_is_sent(
    df: pd.DataFrame, given: dict[str, Any], said: str
) -> None:
    asked: list[str] = []
    with pytest.raises(ValueError, match=said):
        df.llm.classify("t", LABELS, model=weak(), escalate_to=strong(asked), **given)
    assert not asked


def test_one_job_is_no_cascade(df: pd.DataFrame) -> None:
    asked: list[str] = []
    with pytest.raises(ValueError, match="two jobs"):
        df.llm.submit.classify("t", LABELS, model=weak(), escalate_to=strong(asked))
    assert not asked


def test_a_series_goes_on_as_a_frame_does(df: pd.DataFrame) -> None:
    asked: list[str] = []
    first, second = weak(), strong(asked)
    with all_warnings() as seen:
        out = df["t"].llm.classify(LABELS, model=first, escalate_to=second)
        as_frame = df.llm.classify("t", LABELS, model=first, escalate_to=second)
    assert len(asked) == 20
    assert [str(one.message) for one in seen] == [str(seen[0].message)] * 2
    pd.testing.assert_frame_equal(out, as_frame[["label", "label_confidence"]], check_flags=False)
    assert out.llm.report().escalation.rows == 20
    with all_warnings():
        again = lf.classify(df["t"], LABELS, model=first, escalate_to=second)
    assert len(asked) == 20
    pd.testing.assert_frame_equal(again, out)


def test_awaited_it_is_the_same_and_blocks_no_loop(df: pd.DataFrame) -> None:
    asked: list[str] = []
    first, second = weak(), strong(asked)

    async def both() -> tuple[pd.DataFrame, pd.DataFrame]:
        one = df.llm.aclassify("t", LABELS, model=first, escalate_to=second)
        other = df["t"].llm.aclassify(LABELS, model=weak(), escalate_to=strong([]))
        return tuple(await asyncio.gather(one, other))

    with all_warnings() as seen:
        out, of_series = asyncio.run(both())
    assert (out["label"] == df["truth"]).all()
    assert of_series["label"].tolist() == out["label"].tolist()
    assert len(asked) == 20
    assert sum("went to fake/strong" in str(one.message) for one in seen) == 2
    assert {one.filename for one in seen} == {__file__}
    with all_warnings():
        alone = df.llm.classify("t", LABELS, model=first, escalate_to=second)
    assert len(asked) == 20
    pd.testing.assert_frame_equal(out, alone)


def test_a_cancelled_cascade_sends_nothing_more(df: pd.DataFrame) -> None:
    asked: list[str] = []

    async def cancelled() -> None:
        loop = asyncio.get_running_loop()

        def answer(text: str) -> dict[str, float]:
            loop.call_soon_threadsafe(task.cancel)
            return {"bug": 0.6, "question": 0.4}

        first = lf.testing.FakeEngine(answer, choices=True, model="weak")
        verb = df.llm.aclassify("t", LABELS, model=first, escalate_to=strong(asked))
        task = asyncio.create_task(verb)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not asked


def test_details_are_those_of_whoever_answered(df: pd.DataFrame) -> None:
    prices = {"fake/weak": (1.0, 1.0), "fake/strong": (1000.0, 1000.0)}
    with lf.set_options(prices=prices), all_warnings():
        first, second = weak(), strong([])
        small = df.llm.classify("t", LABELS, model=first, details=True)
        out = df.llm.classify("t", LABELS, model=first, escalate_to=second, details=True)
        large = df.llm.classify("t", LABELS, model=second, details=True)
    went = out["label_confidence"] < 0.8
    assert went.sum() == 20
    assert set(out.loc[went, "llm_model"]) == set(large["llm_model"])
    assert set(out.loc[~went, "llm_model"]) == set(small["llm_model"])
    assert out["llm_status"].isin(["ok", "cached"]).all()
    assert out["llm_status"].dtype == small["llm_status"].dtype
    expected = small["llm_cost"] + large["llm_cost"].where(went, 0)
    assert out["llm_cost"].tolist() == pytest.approx(expected.tolist())
    assert out["llm_tokens"].dtype == small["llm_tokens"].dtype
    more = ["status", "error", "tokens", "cost", "model", "finish"]
    ours = ["label", "label_confidence", *(f"llm_{name}" for name in more)]
    assert list(out.columns) == [*df.columns, *ours]


def test_details_beside_columns_of_two_levels_and_labels_that_repeat(df: pd.DataFrame) -> None:
    wide = df.set_axis(pd.MultiIndex.from_tuples([("x", "t"), ("x", "truth")]), axis=1)
    wide.index = [7] * ROWS
    first, second = weak(), strong([])
    with all_warnings():
        out = wide.llm.classify("x.t", LABELS, model=first, escalate_to=second, details=True)
        plain = df.llm.classify("t", LABELS, model=first, escalate_to=second, details=True)
    assert out.index.equals(wide.index)
    pd.testing.assert_frame_equal(out[["x"]], wide)
    for name in ("label", "llm_model", "llm_tokens"):
        assert out[name, ""].tolist() == plain[name].tolist()


def test_the_report_says_how_many_went_on_and_what_it_saved(df: pd.DataFrame) -> None:
    prices = {"fake/weak": (1.0, 1.0), "fake/strong": (1000.0, 1000.0)}
    with lf.set_options(prices=prices), all_warnings():
        engine = strong([])
        whole = df.llm.plan.classify("t", LABELS, model=engine).expected
        out = df.llm.classify("t", LABELS, model=weak(), escalate_to=engine)
    written = out.attrs["llmframe"]
    first, second = lf.job(written["label_confidence"]), lf.job(written["label"])
    found = out.llm.report().escalation
    assert found == first.report().escalation == second.report().escalation
    assert (found.rows, found.failed, found.of, found.below) == (20, 0, 50, 0.8)
    assert found.model == "fake/strong"
    assert (found.first, found.cost) == (first.status().cost, second.status().cost)
    assert found.whole == whole
    assert found.saved == pytest.approx(whole - first.status().cost - second.status().cost)
    assert found.saved > 0.5 * whole
    text = repr(out.llm.report())
    assert "20 of 50 rows (40%) to fake/strong, less than 0.8 sure" in text
    assert f"about US${found.saved:.2f}" in text
    assert "the cascade saved" in out.llm.report("label_confidence")._repr_html_()


def test_where_none_goes_on_the_report_says_so_too(df: pd.DataFrame) -> None:
    with all_warnings():
        out = df.llm.classify("t", LABELS, model=weak(), escalate_to=strong([]), below=0.5)
        alone = df.llm.classify("t", LABELS, model=weak())
    found = out.llm.report().escalation
    assert (found.rows, found.of, found.cost) == (0, 50, 0.0)
    assert alone.llm.report().escalation is None


def test_the_report_of_a_cascade_is_in_the_store(df: pd.DataFrame, tmp_path: Any) -> None:
    """What another process is told, which has neither the frame nor the engines."""
    asked: list[str] = []
    first, second = weak(), strong(asked)
    with all_warnings():
        out = df.llm.classify("t", LABELS, model=first, escalate_to=second)
    id = out.attrs["llmframe"]["label_confidence"]
    stored = escalation_of(first.store, id, None)
    assert stored is not None
    assert (stored.rows, stored.of, stored.model) == (20, 50, "fake/strong")


def test_what_the_stronger_model_cannot_take_is_said_first(df: pd.DataFrame) -> None:
    asked: list[str] = []

    def answer(text: str) -> dict[str, float]:
        asked.append(text)
        return {"bug": 1.0, "question": 0.0}

    engine = lf.testing.FakeEngine(answer, choices=True)
    with pytest.raises(lf.PromptError):
        df.llm.classify("{u}", LABELS, model=engine, escalate_to=strong([]))
    with pytest.raises(lf.ModelError):
        df.llm.classify("t", LABELS, model=engine, escalate_to="nobody/knows-it")
    assert not asked


def test_the_cost_is_told_beside_that_of_the_strong_model_alone(df: pd.DataFrame) -> None:
    prices = {"fake/weak": (0.0, 0.0), "fake/strong": (1000.0, 1000.0)}
    with lf.set_options(prices=prices), all_warnings() as seen:
        engine = strong([])
        plan = df.llm.plan.classify("t", LABELS, model=engine)
        df.llm.classify("t", LABELS, model=weak(), escalate_to=engine)
    told = str(seen[0].message)
    assert plan.expected is not None
    assert plan.expected > 0
    assert f"all rows would have been about US${plan.expected:.2f}." in told
    spent = float(told.partition("fake/strong: US$")[2].partition(";")[0])
    assert 0 < spent < plan.expected


def test_a_budget_is_that_of_both_calls(df: pd.DataFrame) -> None:
    asked: list[str] = []
    prices = {"fake/weak": (0.0, 0.0), "fake/strong": (1000.0, 1000.0)}
    with lf.set_options(prices=prices):
        engine = strong(asked)
        all_rows = df.llm.plan.classify("t", LABELS, model=engine).expected
        assert all_rows is not None
        with pytest.raises(lf.BudgetError):
            df.llm.classify("t", LABELS, model=weak(), escalate_to=engine, budget=all_rows / 10)
        assert not asked
        with all_warnings():
            out = df.llm.classify(
                "t", LABELS, model=weak(), escalate_to=engine, budget=2 * all_rows
            )
    assert (out["label"] == df["truth"]).all()


def test_rows_that_stayed_tell_of_the_first_model_and_the_others_of_the_second(
    df: pd.DataFrame,
) -> None:
    out = df.llm.classify(
        "t", LABELS, model=weak(), escalate_to=strong([]), below=0.8, errors="coerce"
    )
    assert (out.llm.status() == "ok").all()
    models = [out.llm.trace(row).replies[-1].model for row in (0, 3)]
    assert models == ["weak", "strong"]


def test_below_without_a_stronger_model_is_refused(df: pd.DataFrame) -> None:
    engine = weak()
    with pytest.raises(ValueError, match=r"such rows without a label: unsure_below=0\.5"):
        df.llm.classify("t", LABELS, model=engine, below=0.5)
    assert not engine.requests

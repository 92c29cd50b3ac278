"""`lf.compare`: which rows are the same one, what changed in them, and what each run cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest

import llmframe as lf
from tests.test_markup import shown

LABELS = ["bug", "question", "praise"]


def frame(count: int = 6) -> pd.DataFrame:
    return pd.DataFrame({"t": [f"text {i}" for i in range(count)]}, index=list("abcdefgh")[:count])


def number_of(request: Any) -> int:
    return int(request.messages[-1]["content"].split()[-1])


def labelled(df: pd.DataFrame, labels: str, **keywords: Any) -> Any:
    """A job that gives row ``text i`` the label with initial ``labels[i]``; ``x`` fails."""
    names = {name[0]: name for name in LABELS}

    def faults(request: Any) -> Any:
        lost = labels[number_of(request)] == "x"
        return lf.testing.Fault("refuse", times=None) if lost else None

    engine = keywords.pop("engine", None) or lf.testing.FakeEngine(
        lambda request: {"label": names.get(labels[number_of(request)], "bug")},
        faults=faults,
        model=f"m-{labels}",
        in_process=False,
    )
    submit = df.llm.submit.classify
    return submit("t", LABELS, model=engine, errors="coerce", **keywords).wait()


def test_what_changed_is_counted_and_listed_on_the_frames_own_labels() -> None:
    df = frame()
    found = lf.compare(labelled(df, "bbqpxx"), labelled(df, "bqqxpx"))
    assert found.rows == 6
    assert found.counts.loc["label"].to_dict() == {
        "same": 2,
        "changed": 1,
        "only_a": 1,
        "only_b": 1,
        "neither": 1,
        "agreement": 2 / 3,
    }
    assert found.agreement["label"] == 2 / 3
    assert found.changed.to_dict("index") == {
        "b": {"position": 1, "column": "label", "a": "bug", "b": "question"}
    }
    assert found.confusion is not None
    assert found.confusion.index.tolist() == found.confusion.columns.tolist() == LABELS
    assert found.confusion.to_numpy().tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert found.unmatched == {"a": 0, "b": 0}
    assert found.notes == ()


def test_a_job_agrees_with_itself() -> None:
    job = labelled(frame(), "bbqppp")
    found = lf.compare(job, job.id)
    assert found.agreement["label"] == 1.0
    assert found.changed.empty
    assert found.changed.columns.tolist() == ["position", "column", "a", "b"]


def test_rows_are_matched_by_label_in_any_order_and_the_rest_is_counted() -> None:
    df = frame()
    other = df.iloc[[4, 2, 0]].rename(index={"e": "new"})
    found = lf.compare(labelled(df, "bqpbqp"), labelled(other, "pqpbbp"))
    assert found.rows == 2
    assert found.unmatched == {"a": 4, "b": 1}
    assert found.changed["position"].tolist() == [0]
    assert found.changed.index.tolist() == ["a"]
    assert "only in a" in repr(found)


def test_repeated_labels_are_matched_in_order() -> None:
    df = frame(4).set_axis(["r", "s", "r", "r"])
    other = frame(4).iloc[[0, 2]].set_axis(["r", "r"])
    found = lf.compare(labelled(df, "bbqp"), labelled(other, "bbpp"))
    assert found.rows == 2
    assert found.unmatched == {"a": 2, "b": 0}
    assert found.changed["position"].tolist() == [2]
    assert "in order where it repeats" in found.matched


@pytest.mark.parametrize(
    "index",
    [
        pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)]),
        pd.DatetimeIndex(["2024-01-01", "2024-01-02", None]),
        pd.Index([1.5, float("nan"), 2.5]),
    ],
    ids=["levels", "dates", "missing"],
)
def test_any_index_matches(index: pd.Index[Any]) -> None:
    df = frame(3).set_axis(index)
    found = lf.compare(labelled(df, "bqp"), labelled(df.iloc[[2, 1]], "bqb"))
    assert (found.rows, found.unmatched) == (2, {"a": 1, "b": 0})
    assert found.changed["position"].tolist() == [2]


def test_labels_that_stand_for_other_rows_are_warned_of() -> None:
    df = frame()
    first = df.iloc[:3].reset_index(drop=True)
    other = df.iloc[1:4].reset_index(drop=True)
    a, b = labelled(first, "bqpb"), labelled(other, "bqpp")
    with pytest.warns(UserWarning, match=r"3 of 3 rows with one label hold other cells .*'t'"):
        found = lf.compare(a, b)
    assert "hold other cells" in repr(found)
    assert "hold other cells" in shown(found).text
    # With the frame the rows are told by what they hold.
    found = lf.compare(a, b, df)
    assert found.rows == 6
    assert found.counts.loc["label", ["same", "only_a", "only_b", "neither"]].tolist() == [
        2,
        1,
        1,
        2,
    ]


def test_no_row_in_common_says_what_the_labels_are() -> None:
    df = frame(2)
    a, b = labelled(df, "bb"), labelled(df.set_axis([0, 1]), "bb")
    with pytest.raises(ValueError, match=r"no row label in common: 'a', 'b' in one, 0, 1 in the"):
        lf.compare(a, b)


def test_costs_are_those_of_the_answers_whichever_job_paid() -> None:
    df = frame()
    with lf.set_options(prices={"fake/m-bbbbbb": (100.0, 100.0)}):
        engine = lf.testing.FakeEngine({"label": "bug"}, model="m-bbbbbb", in_process=False)
        first, again = (labelled(df, "", engine=engine) for _ in range(2))
        half = labelled(df.iloc[:3], "", engine=engine)
        found = lf.compare(first, again)
        assert again.status().cost in {0.0, None}
        assert found.cost.loc["a", "cost"] > 0
        assert found.cost.loc["b", "cost"] == found.cost.loc["a", "cost"]
        part = lf.compare(first, half)
        assert part.cost.loc["a", "cost"] == pytest.approx(found.cost.loc["a", "cost"] / 2)
        assert part.cost["replies"].tolist() == [3, 3]
    unknown = lf.compare(labelled(df, "qqqqqq"), labelled(df, "pppppp"))
    assert unknown.cost["cost"].isna().all()
    assert "unknown" in repr(unknown)


def test_fields_are_matched_by_name_and_several_labels_have_no_order() -> None:
    df = frame(3)

    def ask(answers: list[dict[str, Any]], schema: Any, into: Any) -> Any:
        engine = lf.testing.FakeEngine(lambda request: answers[number_of(request)])
        return df.llm.submit.map("{t}", schema, model=engine, into=into).wait()

    kind = Literal["x", "y"]
    a = ask([{"k": "x", "n": i, "q": "a"} for i in range(3)], {"k": kind, "n": int, "q": str}, "v1")
    b = ask([{"n": 1, "k": "y"} for _ in range(3)], {"n": int, "k": kind | None}, {"n": "num"})
    found = lf.compare(a, b)
    assert found.counts["changed"].to_dict() == {"k": 3, "n": 2}
    assert found.changed["column"].tolist() == ["k", "n", "k", "k", "n"]
    assert found.changed["a"].tolist() == ["x", 0, "x", "x", 2]
    assert list(found.confusions) == ["k"]

    def many(order: list[str]) -> Any:
        engine = lf.testing.FakeEngine({"label": order})
        return df.llm.submit.classify("t", LABELS, multi=True, model=engine, cache=False).wait()

    same = lf.compare(many(["bug", "praise"]), many(["praise", "bug"]))
    assert same.agreement["label"] == 1.0
    assert same.confusion is None


def test_a_null_answer_is_an_answer() -> None:
    df = frame(2)

    def ask(value: Any) -> Any:
        engine = lf.testing.FakeEngine({"k": value})
        schema = {"k": Literal["x", "y"] | None}
        return df.llm.submit.map("{t}", schema, model=engine, cache=False).wait()

    found = lf.compare(ask(None), ask("x"))
    assert found.counts.loc["k", "changed"] == 2
    assert found.changed["a"].isna().all()
    assert found.confusion is not None
    assert found.confusion.to_numpy().sum() == 0
    assert lf.compare(ask(None), ask(None)).agreement["k"] == 1.0


def test_reason_and_confidence_are_not_compared() -> None:
    df, answers = frame(2), iter("abcd")
    engine = lf.testing.FakeEngine(lambda _: {"reason": next(answers), "label": "bug"})
    jobs = [
        df.llm.submit.classify("t", LABELS, explain=True, model=engine, cache=False).wait()
        for _ in range(2)
    ]
    found = lf.compare(*jobs)
    assert found.counts.index.tolist() == ["label"]
    assert found.changed.empty


def test_nothing_in_common_is_refused() -> None:
    df = frame(2)
    engine = lf.testing.FakeEngine({"k": 1, "l": 2, "m": 3})
    a = df.llm.submit.map("{t}", {"k": int, "l": int}, model=engine).wait()
    b = df.llm.submit.map("{t}", {"m": int}, model=engine).wait()
    with pytest.raises(ValueError, match="no output field in common: k, l in one, m in the other"):
        lf.compare(a, b)


def test_a_frame_is_no_job_and_the_message_names_its_jobs() -> None:
    job = labelled(frame(), "bbbbbb")
    with pytest.raises(TypeError, match=rf"job_a is a DataFrame; .* written by {job.id}: pass"):
        lf.compare(job.join(), job)
    with pytest.raises(TypeError, match=r"job_b is a int; expected a Job"):
        lf.compare(job, 5)  # type: ignore[arg-type]
    with pytest.raises(lf.StoreError, match="no job 'j_none'"):
        lf.compare(job, "j_none")


def test_a_job_that_still_runs_is_said_to() -> None:
    slow = lf.testing.FakeEngine({"label": "bug"}, latency=30)
    job = frame().llm.submit.classify("t", LABELS, model=slow)
    try:
        found = lf.compare(labelled(frame(), "bbbbbb"), job)
        assert found.notes == (f"job {job.id} still runs; compare again when it is done",)
        assert found.counts.loc["label", "only_a"] == 6
        assert pd.isna(found.agreement["label"])
        assert "no row with two answers" in repr(found)
    finally:
        job.cancel()


def test_jobs_of_another_process_are_compared_by_their_stored_labels(tmp_path: Path) -> None:
    code = """if True:
        import pandas as pd, pydantic, llmframe as lf
        from tests.servers.chat import ChatServer
        class Checked(pydantic.BaseModel):
            label: str
            _check = pydantic.field_validator("label")(lambda text: text)
        with ChatServer(answer=lambda seen: '{"label": "bug"}') as server:
            engine = lf.OpenAI("m", base_url=server.url, api_key="sk-x")
            df = pd.DataFrame({"t": ["text 0", "text 1"]}, index=["a", "b"])
            for system in ("one", "two"):
                job = df.llm.submit.classify("t", ["bug", "no"], system=system, model=engine)
                print(job.wait().id)
            print(df.llm.submit.map("{t}", Checked, model=engine).wait().id)
    """
    root = Path(__file__).resolve().parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    one, two, three = ran.stdout.split()
    found = lf.compare(one, two)
    assert (found.rows, found.agreement["label"]) == (2, 1.0)
    report = lf.job(one).report()
    assert report.status.usage is not None
    assert report.status.usage.output_tokens > 0
    assert len(report.latencies) == 2
    assert report.seconds is not None
    unread = lf.compare(one, three)
    assert unread.counts.loc["label", "only_a"] == 2
    assert f"2 answers of job {three} count as none: only a Python class" in unread.notes[0]
    mine = labelled(frame(3), "bqb")
    mixed = lf.compare(mine, two)
    assert mixed.unmatched == {"a": 1, "b": 0}
    assert mixed.changed["position"].tolist() == [1]


def test_both_looks_say_the_same_and_hold_no_markup_of_the_data() -> None:
    df = frame(3).rename(index={"a": "<script>"})
    engine = lf.testing.FakeEngine(lambda request: f"<b>{number_of(request)}</table>")
    other = lf.testing.FakeEngine("</td>\x1b[31m", model="fake-2")
    a, b = (df.llm.submit.map("{t}", model=e).wait() for e in (engine, other))
    found = lf.compare(a, b)
    page = shown(found)
    assert "<b>0</table>" in page.text
    assert "'<script>'" in page.text
    for text in (page.text, repr(found)):
        for part in (a.id, b.id, "fake/fake-2", "by index label", "0.0 %"):
            assert part in text
    shown(lf.compare(labelled(frame(), "bbqpxx"), labelled(frame(), "bqqxpx")))


def test_plot_draws_the_confusion_table_and_else_the_counts() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    found = lf.compare(labelled(frame(), "bbqpxx"), labelled(frame(), "bqqxpx"))
    ax = found.plot()
    assert sorted(text.get_text() for text in ax.texts) == ["0"] * 6 + ["1"] * 3
    assert [label.get_text() for label in ax.get_xticklabels()] == LABELS
    assert ax.get_title() == "label: 66.7 % agreement"
    engine = lf.testing.FakeEngine("x")
    job = frame().llm.submit.map("{t}", model=engine).wait()
    bars = lf.compare(job, job).plot("response", ax=ax.figure.add_subplot())
    assert [bar.get_width() for bar in bars.patches] == [0, 0, 0, 0, 6]
    with pytest.raises(KeyError, match="no column 'labl' is compared; there are 'label'"):
        found.plot("labl")


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    job = labelled(frame(), "bbbbbb")
    with pytest.raises(ImportError, match=r'pip install "llmframe\[plots\]"'):
        lf.compare(job, job).plot()


def test_no_row_and_one_row_are_compared() -> None:
    none = frame(0)
    found = lf.compare(labelled(none, ""), labelled(none, ""))
    assert found.rows == 0
    assert found.counts.loc["label"].sum() == 0
    one = frame(1)
    found = lf.compare(labelled(one, "b"), labelled(one, "q"))
    assert repr(found).splitlines()[0].endswith(": 1 row")


def test_one_job_alone_says_what_compare_takes() -> None:
    with pytest.raises(TypeError, match=r"lf\.compare\(job_a, job_b\), or a frame"):
        lf.compare(labelled(frame(1), "b"))

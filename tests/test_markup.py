"""What a notebook shows: escaped, cut, harmless; and a DataFrame stays one."""

from __future__ import annotations

import copy
import pickle
import re
import tracemalloc
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest

import llmframe as lf
from llmframe import markup
from llmframe.failures import FailedRow, FailureTable, failures_frame
from llmframe.job_tables import JobTable
from llmframe.reports import Report
from llmframe.views import money, spread

OURS = {
    *("div", "style", "table", "thead", "tbody", "tr", "th", "td", "pre", "span"),
    *("details", "summary"),
}
EVIL = (
    "<script>alert(1)</script></table></div></style><img src=x onerror=alert(1)>"
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x00\x9b1m\u202egnp\ud83d&amp;\"'"
)


class Page(HTMLParser):
    """Fails on a tag, an attribute or a class that is not llmframe's, and on a broken nest."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""
        self.count = 0
        self.feed(html)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in OURS, tag
        for name, value in attrs:
            assert name in {"class", "style", "open"}, (tag, name)
            if name == "class":
                others = {p for p in (value or "").split() if not p.startswith("llmframe")}
                assert others <= {"tex2jax_ignore", "mathjax_ignore"}, value  # no formulas
            if name == "style":
                assert re.fullmatch(r"(width|opacity):[0-9.]+%?", value or ""), value
        self.open.append(tag)
        self.count += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def shown(thing: Any) -> Page:
    html = thing if isinstance(thing, str) else thing._repr_html_()
    html.encode()  # a browser gets UTF-8
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    return Page(html)


def evil_answer(request: Any) -> Any:
    if "refuse" in request.messages[-1]["content"]:
        return lf.testing.Fault("refuse", times=None)
    return None


@pytest.fixture
def made() -> tuple[pd.DataFrame, Any]:
    """A frame, and a job on it, in which everything that can hold data holds what is evil."""
    evil = EVIL.replace("\ud83d", "")  # a lone surrogate is refused before it is sent
    df = pd.DataFrame(
        {"t</td>": [evil, "refuse " + evil, "x" * 1_000_000]}, index=[evil, "b<b>", "long"]
    )
    engine = lf.testing.FakeEngine(evil, faults=evil_answer)
    prompt = "<h1>{t</td>}"
    job = df.llm.submit.map(prompt, system=evil, model=engine, into="o</th>", errors="coerce")
    return df, job.wait()


def test_a_cell_with_markup_ansi_and_a_megabyte_is_harmless_everywhere(made: Any) -> None:
    df, job = made
    out = job.join()
    engine = lf.testing.FakeEngine(EVIL, model="<b>model")
    things = {
        "plan": df.llm.plan.map("<h1>{t</td>}", system=EVIL[:90], model=engine),
        "status": job.status(),
        "job": job,
        "report": job.report(),
        "jobs": JobTable([job]),
        "failures": out.llm.failures(),
        "trace": out.llm.trace(position=0),
        "trace of a failure": out.llm.trace("b<b>"),
        "trace of a long cell": out.llm.trace("long"),
    }
    for name, thing in things.items():
        page = shown(thing)
        html = thing._repr_html_()
        assert page.count > 5, name
        assert len(html) < 120_000, name
        assert "<script" not in html.lower(), name
        assert "onerror" not in html or "&lt;img" in html, name
    assert "<script>alert(1)</script></table>" in shown(things["trace"]).text
    assert "980,00" in shown(things["trace of a long cell"]).text, "what is cut is counted"
    assert "o</th>" in shown(things["jobs"]).text


def test_what_is_escaped_is_told_from_what_is_not() -> None:
    page = shown(markup.page(EVIL, markup.table([EVIL], [[EVIL]]), markup.text(EVIL), title=EVIL))
    assert page.text.count("<script>alert(1)</script></table>") == 5
    assert "red" in page.text
    assert "[31m" not in page.text
    assert "title\x07" not in page.text
    assert "␀⟨U+009B⟩1m⟨U+202E⟩gnp⟨U+D83D⟩&amp;" in page.text


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        ("a\r\nb\rc\td", 20, "a\nb\nc\td"),
        ("\x1b[1;31", 20, "␛[1;31"),  # a code that is cut off is shown
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcdef… (1 more character)"),
        (None, 9, "None"),
        (12.5, 9, "12.5"),
        ("👩‍👩‍👧", 9, "👩‍👩‍👧"),
    ],
)
def test_escaped(value: Any, limit: int, text: str) -> None:
    assert markup.escaped(value, limit) == text


def test_a_megabyte_costs_no_more_than_what_is_shown_of_it() -> None:
    whole = "\x1b[" + "0" * 1_000_000
    tracemalloc.start()
    try:
        markup.escaped(whole)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert markup.escaped(whole).endswith("… (999,502 more characters)")


def test_bars_meters_and_facts_hold_what_they_are_given() -> None:
    page = shown(markup.joined(markup.bars({"<a>": 3, "b": 0}), markup.bars({})))
    assert page.text == "<a>3b0"
    assert "width:100.0%" in markup.bars({"a": 3})
    for done, total, text in ((0, 0, "100 %"), (0, 9, "0 %"), (1, 999, "1 %"), (998, 999, "99 %")):
        assert shown(markup.meter(done, total)).text == text
    assert shown(markup.facts([("a", 1), ("a", "<2>")])).text == "a1a<2>"


def test_a_short_cell_is_never_broken_and_a_long_one_anywhere() -> None:
    made = markup.table(["id", "text", "n"], [["j_nfabhbwy", "x" * 25, 3]], numeric=[2])
    assert '<td class="llmframe-short">j_nfabhbwy</td>' in made
    assert f"<td>{'x' * 25}</td>" in made
    assert '<td class="llmframe-number">3</td>' in made


def test_a_table_has_as_many_cells_as_its_head() -> None:
    with pytest.raises(ValueError, match="zip"):
        markup.table(["a", "b"], [[1]])


@pytest.mark.parametrize("values", [[0.0], [2.0], [0.0, 0.0], [0.1, 0.2, 0.3], [1e-6, 1e3]])
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    assert sum(count for _, count in spread(values, "s")) == len(values)


def test_a_histogram_is_not_stretched_by_one_slow_reply() -> None:
    bins = spread([0.1 + i / 1000 for i in range(200)] + [60.0], "s")
    assert len(bins) <= 12
    assert bins[-1] == ("over 0.3 s", 1)
    assert spread([0.1, 0.2, 0.3, 0.4], "s")[-1][1], "no empty bin at the end"


def test_a_small_cost_is_not_shown_as_nothing() -> None:
    assert money(0.0000234) == "US$0.000023"
    assert money(0.0) == "US$0.00"


def test_a_report_shows_latencies_and_failures_by_kind(made: Any) -> None:
    _, job = made
    report: Report = replace(job.report(), latencies=(0.2, 0.4, 0.5, 9.0))
    text = shown(report).text
    assert "Latency of 4 requests" in text
    assert "Failed rows by kindrefused1" in text
    assert "failed: refused" not in text
    assert "failed: refused" in repr(report)


def test_failures_are_a_dataframe_and_nothing_made_of_them_is_more(made: Any) -> None:
    _, job = made
    table = job.join().llm.failures()
    assert isinstance(table, FailureTable)
    for plain in (
        table[table["kind"] == "refused"],
        table[["kind"]],
        table.copy(),
        table.head(1),
        pd.concat([table, table]),
        table.reset_index(),
        pickle.loads(pickle.dumps(table)),
        copy.deepcopy(table),
    ):
        assert type(plain) is pd.DataFrame
    assert table["kind"].tolist() == ["refused"]
    assert pickle.loads(pickle.dumps(table)).equals(pd.DataFrame(table))
    assert repr(table) == repr(pd.DataFrame(table))


def test_failures_are_shown_by_kind() -> None:
    rows = [FailedRow(i, "timeout" if i % 4 else "refused", f"m{i}", None, 1) for i in range(240)]
    index = pd.MultiIndex.from_product([["<a>", "b"], range(120)], names=["s", None])
    page = shown(failures_frame(index, rows))
    assert page.text.startswith("240 rows failedtimeout: 180 of 240")
    assert "refused: 60 of 240" in page.text
    assert "… and 130 more: failures().query('kind == \"timeout\"')" in page.text
    one = shown(failures_frame(pd.Index([("a", 1), ("b", 2)], tupleize_cols=False), rows[:2]))
    assert "2 rows failed" in one.text
    assert "('a', 1)" in one.text
    assert shown(failures_frame(pd.Index([]), [])).text == "No row failed"


def test_failures_obey_the_options_of_pandas() -> None:
    table = failures_frame(pd.Index(["a"]), [FailedRow(0, "timeout", "m")])
    with pd.option_context("display.notebook_repr_html", False):
        assert table._repr_html_() is None
    del table["kind"]
    assert "dataframe" in (table._repr_html_() or "")


def test_jobs_are_shown_with_state_and_progress(made: Any) -> None:
    _, job = made
    text = shown(JobTable([job])).text
    for part in ("progress", "done", "67 %", job.id, "map", "fake/fake-1"):
        assert part in text
    assert "at the provider" not in text, "a column without a cell"
    assert "There is none" in shown(JobTable([])).text


def test_failures_show_what_was_asked_about_and_hold_no_more_columns() -> None:
    df = pd.DataFrame({"t": ["fine", "<b>lost</b>"], "n": [1, 2]}, index=["a", "b"])
    engine = lf.testing.FakeEngine(faults=evil_answer)
    out = df.assign(t=df["t"].str.replace("lost", "refuse")).llm.map(
        "Of {t}", model=engine, errors="coerce"
    )
    failed = out.llm.failures()
    assert list(failed.columns) == list(FailedRow._fields)
    assert "<b>refuse</b>" in shown(failed).text
    assert "<b>refuse</b>" in shown(out.loc[["b"]].llm.failures()).text
    assert "refuse" not in shown(out.drop(columns="t").assign(t="other").llm.failures()).text

"""`judge`: rubrics, scales, votes and the expected score."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmframe as lf
from llmframe import reopened, submits
from llmframe.calls import call_from
from llmframe.requests import Request
from llmframe.results import Failure
from tests.servers.looking import all_warnings, kinds, of, openai, statuses

pytest_plugins = ["tests.servers.plugin"]

RUBRIC = "Is the answer right and complete?"


def replies(said: dict[str, Any]) -> Any:
    """Answers by the marker word in the row's text."""

    def answer(request: Request) -> Any:
        text = request.messages[-1]["content"]
        found = next(reply for marker, reply in said.items() if marker in text)
        return found(request) if callable(found) else found

    return answer


def scored(score: Any, reason: str = "Because.") -> dict[str, Any]:
    return {"reason": reason, "score": score}


@pytest.fixture
def df() -> pd.DataFrame:
    return pd.DataFrame({"q": ["1 + 1?", "2 + 2?"], "a": ["two", "five"]}, index=["x", "y"])


def test_a_score_a_row_with_its_reason_before_it(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(replies({"two": scored(5), "five": scored(1, "Wrong.")}))

    out = df.llm.judge(RUBRIC, answer="a", question="q", model=engine)

    assert list(out.columns) == ["q", "a", "score", "score_reason"]
    assert out["score"].dtype == "Int64"
    assert out["score"].tolist() == [5, 1]
    assert out.loc["y", "score_reason"] == "Wrong."
    request = engine.requests[0]
    assert list(request.schema["properties"]) == ["reason", "score"]  # type: ignore[index]
    assert RUBRIC in request.messages[0]["content"]
    assert "<question>\n1 + 1?\n</question>" in request.messages[-1]["content"]
    assert df.columns.tolist() == ["q", "a"]


@pytest.mark.parametrize(
    ("scale", "said", "dtype", "value"),
    [
        ((0, 10), 7, "Int64", 7),
        ((0, 1000), 990, "Int64", 990),
        ([1, 3, 5], 3, "Int64", 3),
        ("binary", True, "boolean", True),
        (["poor", "good"], "good", pd.CategoricalDtype(["poor", "good"], ordered=True), "good"),
        ({"poor": "bad", "good": None}, "poor", None, "poor"),
    ],
)
@pytest.mark.parametrize("explain", [True, False])
def test_scales_and_their_dtypes(
    df: pd.DataFrame, scale: Any, said: Any, dtype: Any, value: Any, explain: bool
) -> None:
    answer = scored(said) if explain else {"score": said}
    out = df.llm.judge(
        RUBRIC, answer="a", scale=scale, explain=explain, model=lf.testing.FakeEngine(answer)
    )
    assert out["score"].tolist() == [value, value]
    assert ("score_reason" in out) is explain
    empty = df.iloc[:0].llm.judge(
        RUBRIC, answer="a", scale=scale, explain=explain, model=lf.testing.FakeEngine(answer)
    )
    assert empty.dtypes.equals(out.dtypes)
    if dtype is not None:
        assert out["score"].dtype == dtype


@pytest.mark.parametrize("said", [0, 6, 3.5, "4/5", "3", None, True, [4]])
def test_what_is_off_the_scale_is_no_score(df: pd.DataFrame, said: Any) -> None:
    engine = lf.testing.FakeEngine(scored(said))
    out = df.llm.judge(RUBRIC, answer="a", model=engine, errors="coerce", repairs=0)
    if said == "3":  # the documented conversion: the whole text is the number
        assert out["score"].tolist() == [3, 3]
    else:
        assert out["score"].isna().all()
        assert set(kinds(out).values()) == {"invalid_output"}


def test_u059_digits_are_never_glued_and_scales_never_guessed(serve: Any) -> None:
    said = {"mark-a": "0.8", "mark-b": "85.5", "mark-c": "8", "mark-d": "Score: 4/5"}

    def answer(seen: Any) -> str:
        return next(v for k, v in said.items() if k in seen.prompt)

    df = pd.DataFrame({"t": list(said)})
    out = df.llm.judge(
        RUBRIC,
        answer="t",
        scale=(0, 100),
        explain=False,
        errors="coerce",
        repairs=0,
        model=openai(serve(answer)),
    )
    assert out["score"].isna().tolist() == [True, True, False, True]
    assert out["score"][2] == 8
    assert kinds(out) == dict.fromkeys([0, 1, 3], "invalid_output")


def test_u059_the_same_inside_json(serve: Any) -> None:
    said = {"mark-a": 0.8, "mark-b": 85.5, "mark-c": 8, "mark-d": "4/5"}

    def answer(seen: Any) -> str:
        return json.dumps(scored(next(v for k, v in said.items() if k in seen.prompt)))

    df = pd.DataFrame({"t": list(said)})
    out = df.llm.judge(
        RUBRIC,
        answer="t",
        scale=(0, 100),
        errors="coerce",
        repairs=0,
        model=openai(serve(answer)),
    )
    assert out["score"].isna().tolist() == [True, True, False, True]


def test_u061_a_judge_that_cannot_judge_is_no_score(serve: Any) -> None:
    said = {"mark-a": json.dumps(scored(4)), "mark-b": "I cannot judge this"}

    def answer(seen: Any) -> str:
        return next((v for k, v in said.items() if k in seen.prompt), json.dumps(scored(5)))

    df = pd.DataFrame({"t": ["mark-a", "mark-b", "mark-c"]})
    with all_warnings() as caught:
        out = df.llm.judge(RUBRIC, answer="t", model=openai(serve(answer)), repairs=0)

    assert out["score"].isna().tolist() == [False, True, False]
    assert out["score"].mean() == 4.5
    (told,) = of(caught, lf.RowsFailedWarning)
    assert "2 of 3 rows scored, mean 4.5" in told


def test_u037_no_row_is_dropped_and_the_mean_says_its_n() -> None:
    engine = lf.testing.FakeEngine(replies({"mark-b": Failure("refused", "no"), "mark": scored(3)}))
    df = pd.DataFrame({"t": ["mark-a", "mark-b", "mark-c", "mark-d"]}, index=[7, 7, 8, 9])

    job = df.llm.submit.judge(RUBRIC, answer="t", model=engine)
    with all_warnings() as caught:
        out = job.result()

    assert len(out) == 4
    assert out.index.tolist() == [7, 7, 8, 9]
    assert out["score"].isna().tolist() == [False, True, False, False]
    assert "3 of 4 rows scored, mean 3" in of(caught, lf.RowsFailedWarning)[0]
    assert "3 of 4 rows scored, mean 3" in str(job.report())


def test_u136_missing_cells_of_any_dtype_raise_no_type_error() -> None:
    df = pd.DataFrame(
        {
            "answer": pd.array(["mark-a", None, "mark-c"], dtype="string"),
            "expected": pd.array([1, 2, None], dtype="Int64"),
        }
    )
    engine = lf.testing.FakeEngine(scored(2))

    out = df.llm.judge(RUBRIC, answer="answer", reference="expected", model=engine)

    assert out["score"].isna().tolist() == [False, True, False]
    assert statuses(out) == ["ok", "skipped", "ok"]
    with_one, without = sorted((r.messages[-1]["content"] for r in engine.requests), reverse=True)
    assert "<reference>\n1\n</reference>" in with_one
    assert "reference" not in without
    assert "NA" not in without


def test_criteria_have_columns_of_their_own_and_a_weighted_total(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine({"reason": "r", "tone": 5, "facts": 2})
    rubric = lf.Rubric(
        criteria={"tone": "It is polite.", "facts": None},
        weights={"facts": 3},
        scores={1: "Awful.", 5: "Perfect."},
    )
    out = df.llm.judge(rubric, answer="a", model=engine)

    names = ["score", "score_tone", "score_facts", "score_reason"]
    assert list(out.columns[2:]) == names
    assert out["score"].tolist() == [2.75, 2.75]
    assert out["score"].dtype == "Float64"
    assert out["score_tone"].dtype == "Int64"
    assert list(engine.requests[0].schema["properties"]) == ["reason", "tone", "facts"]  # type: ignore[index]
    told = engine.requests[0].messages[0]["content"]
    assert "- tone: It is polite." in told
    assert "- 5: Perfect." in told
    named = df.llm.judge(rubric, answer="a", model=engine, into="mark")
    assert list(named.columns[2:]) == ["mark", "mark_tone", "mark_facts", "mark_reason"]
    assert len(engine.requests) == 2


def test_a_list_of_criteria_on_labels_has_no_total(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine({"tone": "good", "facts": "bad"})
    out = df.llm.judge(
        ["tone", "facts"], answer="a", scale=["bad", "good"], explain=False, model=engine
    )
    assert list(out.columns[2:]) == ["score_tone", "score_facts"]
    assert out["score_tone"].cat.ordered


def votes_of(said: dict[str, list[Any]]) -> Any:
    """A fake engine whose k-th request of a row gets the k-th reply."""
    left = {marker: list(given) for marker, given in said.items()}

    def answer(text: str) -> Any:
        marker = next(m for m in left if m in text)
        return left[marker].pop(0)

    return lf.testing.FakeEngine(answer)


def test_votes_are_samples_of_their_own_and_their_median_stays_on_the_scale() -> None:
    df = pd.DataFrame({"t": ["mark-a", "mark-b"]})
    engine = votes_of(
        {
            "mark-a": [scored(5, "v5"), scored(1, "v1"), scored(4, "v4")],
            "mark-b": [scored(2), scored(2), scored(2)],
        }
    )
    out = df.llm.judge(RUBRIC, answer="t", n=3, model=engine)

    assert list(out.columns[1:]) == ["score", "score_reason", "score_spread", "score_votes"]
    assert out["score"].tolist() == [4, 2]
    assert sorted(out["score_votes"][0]) == [1, 4, 5]
    assert out["score_reason"][0] == "v4"
    assert out["score_spread"].tolist() == [pytest.approx(np.std([5, 1, 4], ddof=1)), 0.0]
    assert len({request.key for request in engine.requests}) == 6
    assert {request.sampling.temperature for request in engine.requests} == {1.0}


def test_more_votes_pay_only_for_the_new_ones(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine()
    three = df.llm.judge(RUBRIC, answer="a", n=3, model=engine)
    assert len(engine.requests) == 6
    five = df.llm.judge(RUBRIC, answer="a", n=5, model=engine)
    assert len(engine.requests) == 10
    for row in range(2):
        assert five["score_votes"].iloc[row][:3] == three["score_votes"].iloc[row]
    plan = df.llm.plan.judge(RUBRIC, answer="a", n=7, model=engine)
    assert plan.requests == 4
    assert plan.rows == 2
    assert "7 votes a row, at temperature 1." in plan.advice


def test_a_tie_does_not_pass(df: pd.DataFrame) -> None:
    engine = votes_of({"two": [scored(True), scored(False)], "five": [scored(True)] * 2})
    out = df.llm.judge(RUBRIC, answer="a", scale="binary", n=2, model=engine)
    assert out["score"].tolist() == [False, True]
    assert out["score_spread"].tolist() == [0.5, 0.0]


def test_a_row_counts_by_more_than_half_of_its_votes() -> None:
    no = Failure("refused", "no")
    df = pd.DataFrame({"t": ["mark-a", "mark-b", "mark-c"]})
    engine = votes_of(
        {
            "mark-a": [scored(4), no, scored(5)],
            "mark-b": [no, scored(3), no],
            "mark-c": [scored(1)] * 3,
        }
    )
    with all_warnings() as caught:
        out = df.llm.judge(RUBRIC, answer="t", n=3, model=engine)

    assert out["score"].isna().tolist() == [False, True, False]
    assert out["score"][0] == 4
    assert out["score_votes"][0].count(None) == 1
    assert out["score_votes"][1] is None
    assert statuses(out) == ["ok", "failed", "ok"]
    failures = out.llm.failures()
    assert failures.index.tolist() == [1]
    assert "of 3: no" in failures["message"].iloc[0]
    told = of(caught, lf.RowsFailedWarning)
    [partly] = [t for t in told if "1 of 3 rows are scored although some of their votes" in t]
    assert (
        "failed (1 refused), which count for nothing; the provider refused these, so only" in partly
    )


def test_each_vote_has_a_seed_of_its_own(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine()
    df.llm.judge(RUBRIC, answer="a", n=3, seed=10, model=engine)
    seeds = sorted(request.sampling.seed for request in engine.requests)  # type: ignore[type-var]
    assert seeds == [10, 10, 11, 11, 12, 12]


def test_identical_rows_share_their_votes_unless_told_otherwise() -> None:
    df = pd.DataFrame({"t": ["same", "same"]})
    shared, apart = lf.testing.FakeEngine(), lf.testing.FakeEngine()
    with all_warnings():
        df.llm.judge(RUBRIC, answer="t", n=3, model=shared)
    out = df.llm.judge(RUBRIC, answer="t", n=3, dedupe=False, model=apart)
    assert (len(shared.requests), len(apart.requests)) == (3, 6)
    again = df.llm.judge(RUBRIC, answer="t", n=3, dedupe=False, model=apart)
    assert len(apart.requests) == 6
    assert again["score_votes"].tolist() == out["score_votes"].tolist()


def test_the_expected_score_beside_the_likeliest(df: pd.DataFrame) -> None:
    weights = {"two": {"4": 0.5, "5": 0.3, "1": 0.2}, "five": {"1": 1.0}}
    engine = lf.testing.FakeEngine(replies(weights), choices=True)

    plain = df.llm.judge(RUBRIC, answer="a", explain=False, model=engine)
    asked = len(engine.requests)
    out = df.llm.judge(RUBRIC, answer="a", explain=False, expected=True, model=engine)

    assert len(engine.requests) == asked == 2, "the probabilities are stored: nothing more to pay"
    assert out["score"].tolist() == plain["score"].tolist() == [4, 1]
    assert out["score_expected"].tolist() == [pytest.approx(3.7), pytest.approx(1.0)]


def test_the_expected_pass_is_its_probability_and_na_without_probabilities(
    df: pd.DataFrame,
) -> None:
    engine = lf.testing.FakeEngine({"true": 0.75, "false": 0.25}, choices=True)
    out = df.llm.judge(
        RUBRIC, answer="a", scale="binary", explain=False, expected=True, model=engine
    )
    assert out["score"].tolist() == [True, True]
    assert out["score_expected"].tolist() == [pytest.approx(0.75)] * 2

    with pytest.warns(UserWarning, match="gives no probabilities of the scores"):
        out = df.llm.judge(
            RUBRIC,
            answer="a",
            explain=False,
            expected=True,
            model=lf.testing.FakeEngine({"score": 3}),
        )
    assert out["score"].tolist() == [3, 3]
    assert out["score_expected"].isna().all()


def test_the_expected_score_from_a_servers_logprobs(serve: Any) -> None:
    from tests.servers.rows import Reply

    def answer(seen: Any) -> Reply:
        text = '{"score": 4}'
        tokens = [
            {"token": token, "logprob": -0.01, "bytes": list(token.encode()), "top_logprobs": []}
            for token in ('{"score', '": ')
        ]
        tops = [("4", 0.6), ("5", 0.4), ("x", 1e-6)]
        tokens.append(
            {
                "token": "4",
                "logprob": math.log(0.6),
                "bytes": list(b"4"),
                "top_logprobs": [
                    {"token": t, "logprob": math.log(p), "bytes": list(t.encode())} for t, p in tops
                ],
            }
        )
        tokens.append({"token": "}", "logprob": -0.01, "bytes": list(b"}"), "top_logprobs": []})
        body = {
            "id": "c1",
            "object": "chat.completion",
            "model": "test-model",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                    "logprobs": {"content": tokens},
                }
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        return Reply(raw=json.dumps(body).encode())

    df = pd.DataFrame({"t": ["x"]})
    out = df.llm.judge(
        RUBRIC, answer="t", explain=False, expected=True, model=openai(serve(answer))
    )
    assert out["score"].tolist() == [4]
    assert out["score_expected"][0] == pytest.approx(4.4, abs=1e-4)


def test_another_process_joins_and_lists_failures(serve: Any, df: pd.DataFrame) -> None:
    def answer(seen: Any) -> str:
        return "no" if "five" in seen.prompt else json.dumps(scored(3 + seen.tries % 3))

    server = serve(answer)
    options: dict[str, Any] = {"answer": "a", "n": 3, "errors": "coerce", "repairs": 0}
    job = df.llm.submit.judge(RUBRIC, model=openai(server), **options).wait()
    here = job.join()
    asked = server.count
    submits._live.clear()  # as a process finds it that has nothing but the store
    reopened._calls.clear()

    again = lf.job(job.id)
    assert again is not job
    pd.testing.assert_frame_equal(again.join(df.iloc[::-1]).iloc[::-1], here)
    assert again.failures()["kind"].tolist() == job.failures()["kind"].tolist()
    assert again.failures().index.tolist() == ["y"]
    assert again.status().counts == job.status().counts
    with all_warnings():
        df.iloc[:1].llm.judge(RUBRIC, model=openai(server), **options)
    assert server.count == asked, "an answered vote was paid twice"


def test_an_interrupted_job_goes_on_where_it_stopped(serve: Any, df: pd.DataFrame) -> None:
    def failing(seen: Any) -> Any:
        from tests.servers.rows import Reply

        return json.dumps(scored(3)) if seen.n <= 2 else Reply(status=401)

    server = serve(failing)
    with pytest.raises(lf.EngineError) as stopped:
        df.llm.judge(RUBRIC, answer="a", n=3, model=openai(server, concurrency=1))
    assert stopped.value.result["score"].isna().all(), "a row without all its votes has no score"
    paid = 2
    server.rows = lambda seen: json.dumps(scored(4))
    before = server.count
    out = df.llm.judge(RUBRIC, answer="a", n=3, model=openai(server, concurrency=1))
    assert server.count - before == 6 - paid
    assert out["score"].tolist() == [3, 4]


def test_votes_go_through_a_batch(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeBatchEngine()
    with lf.set_options(poll_interval=0.02):
        out = df.llm.judge(RUBRIC, answer="a", n=3, model=engine)
    assert out["score"].notna().all()
    assert [len(votes) for votes in out["score_votes"]] == [3, 3]


def test_a_stored_call_is_the_call(df: pd.DataFrame) -> None:
    job = df.llm.submit.judge(
        {"tone": "polite", "facts": None}, answer="a", n=3, model=lf.testing.FakeEngine()
    ).wait()
    prompt = job.call.bind(list(df.columns), [None])
    read = call_from(job.call.stored(prompt))
    assert read.panel == job.call.panel
    again = read.bind(list(df.columns), [None])
    values = list(range(len(prompt.columns)))
    assert again.render(values) == prompt.render(values)


def test_on_a_series_it_is_the_answer() -> None:
    said = pd.Series(["two", "five"], name="a")
    out = said.llm.judge(RUBRIC, model=lf.testing.FakeEngine(scored(4)))
    assert list(out.columns) == ["score", "score_reason"]
    one = said.llm.judge(RUBRIC, explain=False, model=lf.testing.FakeEngine({"score": 4}))
    assert isinstance(one, pd.Series)
    assert (one.name, one.tolist()) == ("score", [4, 4])


def test_details_and_trace_are_of_all_votes(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(scored(4))
    out = df.llm.judge(RUBRIC, answer="a", n=3, details=True, model=engine)
    one = df.llm.judge(RUBRIC, answer="a", temperature=1.0, details=True, into="one", model=engine)
    assert out["llm_tokens"].tolist() == [3 * n for n in one["one_tokens"]]
    trace = out.llm.trace("x")
    assert trace.attempts == 3
    assert trace.names == ("vote 1 of 3", "vote 2 of 3", "vote 3 of 3")
    assert "  reply 2, vote 2 of 3  " in str(trace)
    assert ">Reply 2, vote 2 of 3<" in trace._repr_html_()
    assert one.llm.trace("x").names == ()


def test_examples_show_the_fields_as_they_are_asked_for(df: pd.DataFrame) -> None:
    examples = pd.DataFrame({"a": ["three"], "score": [2], "score_reason": ["Nearly."]})
    engine = lf.testing.FakeEngine(scored(4))
    rubric = lf.Rubric(RUBRIC, examples=examples)
    df.llm.judge(rubric, answer="a", model=engine)
    roles = [message["role"] for message in engine.requests[0].messages]
    assert roles == ["system", "user", "assistant", "user"]
    shown = json.loads(engine.requests[0].messages[2]["content"])
    assert shown == {"reason": "Nearly.", "score": 2}
    assert list(shown) == ["reason", "score"]  # the reason first, whatever the columns' order


@pytest.mark.parametrize(
    ("keywords", "error", "told"),
    [
        ({}, TypeError, "'answer'"),
        ({"answer": "b"}, lf.PromptError, "no column 'b'"),
        ({"answer": ["a", "q"]}, lf.PromptError, "is a list"),
        ({"answer": "a", "scale": (5, 1)}, lf.SchemaError, "the lower first"),
        ({"answer": "a", "scale": [1, 5]}, lf.SchemaError, r"such as \(1, 5\)"),
        ({"answer": "a", "scale": (0.0, 1.0)}, lf.SchemaError, "whole numbers"),
        ({"answer": "a", "scale": (0, 10**9)}, lf.SchemaError, "no model tells"),
        ({"answer": "a", "scale": "yes"}, lf.SchemaError, "'binary'"),
        ({"answer": "a", "scale": ["good"]}, lf.SchemaError, "at least two"),
        ({"answer": "a", "n": 0}, ValueError, "n=0"),
        ({"answer": "a", "n": 3, "temperature": 0}, ValueError, "one vote"),
        ({"answer": "a", "expected": True}, ValueError, "explain=False"),
        ({"answer": "a", "explain": 1}, ValueError, "explain=1"),
        ({"answer": "a", "exlain": True}, TypeError, "did you mean 'explain'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    df: pd.DataFrame, keywords: dict[str, Any], error: type[Exception], told: str
) -> None:
    engine = lf.testing.FakeEngine(scored(4))
    with pytest.raises(error, match=told):
        df.llm.judge(RUBRIC, model=engine, **keywords)
    assert not engine.requests


@pytest.mark.parametrize(
    ("rubric", "told"),
    [
        ("", "says nothing"),
        (7, "expected a text"),
        (["It is polite."], "cannot name a column"),
        (["reason"], "cannot name a column"),
        (["tone", "tone"], "there twice"),
        ("Is it an answer to {q}?", "question='q'"),
    ],
)
def test_a_rubric_that_cannot_be_used(df: pd.DataFrame, rubric: Any, told: str) -> None:
    engine = lf.testing.FakeEngine(scored(4))
    with pytest.raises((lf.SchemaError, lf.PromptError), match=told):
        df.llm.judge(rubric, answer="a", model=engine)
    assert not engine.requests


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"criteria": ["a"], "weights": {"b": 1}}, "no criterion 'b'"),
        ({"criteria": ["a"], "weights": {"a": 0}}, "more than 0"),
        ({"criteria": ["a"], "weights": {"a": float("nan")}}, "more than 0"),
        ({"criteria": {"a": 3}}, "expected text"),
        ({"criteria": "a"}, "expected names"),
    ],
)
def test_rubrics_check_themselves(keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(lf.SchemaError, match=told):
        lf.Rubric(**keywords)


def test_braces_that_name_no_column_are_braces(df: pd.DataFrame) -> None:
    engine = lf.testing.FakeEngine(scored(4))
    df.llm.judge('Is it {"valid": "json"}?', answer="a", model=engine)
    assert '{"valid": "json"}' in engine.requests[0].messages[0]["content"]


def test_a_description_of_no_score_of_the_scale_is_refused(df: pd.DataFrame) -> None:
    rubric = lf.Rubric(RUBRIC, scores={6: "Beyond."})
    with pytest.raises(lf.SchemaError, match="6 is not on the scale 1 to 5"):
        df.llm.judge(rubric, answer="a", model=lf.testing.FakeEngine(scored(4)))


@pytest.mark.local_model
def test_the_embedded_model_scores_the_digits(local_model: Any) -> None:
    df = pd.DataFrame({"t": ["Paris is the capital of France.", "asdf jkl"]})
    out = df.llm.judge(
        "Is it a true sentence?", answer="t", explain=False, expected=True, model=lf.Local()
    )
    assert out["score"].between(1, 5).all()
    assert out["score_expected"].between(1, 5).all()
    assert (out["score_expected"] % 1 != 0).all()

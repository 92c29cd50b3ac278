"""Label probabilities out of token log-probabilities: lists made by hand, sums checked by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.engines.openai_scores import choice_logprobs


def token(text: str | bytes, p: float = 1.0, **others: float) -> dict[str, Any]:
    """A token of probability `p`, and what might have stood there instead."""
    return entry(text, p) | {"top_logprobs": [entry(text, p), *(entry(*o) for o in others.items())]}


def entry(text: str | bytes, p: float) -> dict[str, Any]:
    data = text.encode() if isinstance(text, str) else text
    return {
        "token": data.decode(errors="replace"),
        "logprob": math.log(p),
        "bytes": list(data),
    }


def probabilities(
    tokens: Any, text: str, choices: Sequence[str], schema: Any = None
) -> list[float] | None:
    found = choice_logprobs(tokens, text, choices, schema)
    return None if found is None else [round(math.exp(one), 6) for one in found]


def spelt(*tokens: dict[str, Any]) -> str:
    return b"".join(bytes(one["bytes"]) for one in tokens).decode()


def test_each_branch_goes_to_its_label() -> None:
    tokens = [token('{"label":"'), token("bug", 0.6, billing=0.3, feat=0.1), token('"}')]
    text = spelt(*tokens)
    assert probabilities(tokens, text, ["billing", "bug", "feature"]) == [0.3, 0.6, 0.1]


def test_labels_that_begin_alike_are_told_apart_where_they_part() -> None:
    labels = ["card_lost", "card_stolen", "cash"]
    tokens = [
        token('{"label": "'),
        token("card", 0.8, cash=0.2),
        token("_"),
        token("lost", 0.75, stolen=0.25),
        token('"}'),
    ]
    assert probabilities(tokens, spelt(*tokens), labels) == [0.6, 0.2, 0.2]


def test_a_label_inside_another_is_told_by_the_closing_quote() -> None:
    tokens = [token('{"label":"'), token("bug"), token('"', 0.9, fix=0.1), token("}")]
    assert probabilities(tokens, spelt(*tokens), ["bug", "bugfix"]) == [0.9, 0.1]
    tokens = [token('{"label":"'), token("bug"), token("fix", 0.7, **{'"}': 0.3}), token('"}')]
    assert probabilities(tokens, spelt(*tokens), ["bug", "bugfix"]) == [0.3, 0.7]


def test_a_quote_glued_to_the_label() -> None:
    tokens = [token('{"label":'), token(' "bug', 0.7, **{' "bill': 0.3}), token('"}')]
    assert probabilities(tokens, spelt(*tokens), ["bug", "billing"]) == [0.7, 0.3]


def test_a_quote_glued_behind_the_label() -> None:
    tokens = [token('{"label":"'), token('bug"}', 0.7, **{'billing"}': 0.2, "bil": 0.1})]
    assert probabilities(tokens, spelt(*tokens), ["bug", "billing"]) == [0.7, 0.3]


def test_a_branch_that_several_share_is_split() -> None:
    tokens = [token('{"label":"'), token("bug", 0.6, c=0.4), token('"}')]
    assert probabilities(tokens, spelt(*tokens), ["bug", "card", "cash"]) == [0.6, 0.2, 0.2]


def test_another_spelling_of_the_same_label_counts_for_it() -> None:
    tokens = [token('{"label":"'), token("bug", 0.6, b=0.2, bill=0.2), token('"}')]
    assert probabilities(tokens, spelt(*tokens), ["bug", "billing"]) == [0.7, 0.3]


def test_what_is_no_label_goes_to_none() -> None:
    tokens = [token('{"label":"'), token("bug", 0.5, zebra=0.3, billing=0.2), token('"}')]
    assert probabilities(tokens, spelt(*tokens), ["bug", "billing"]) == [0.5, 0.2]


def test_characters_split_over_tokens() -> None:
    """本 and 曜 begin with the same byte, which here is a token of its own."""
    first, second = "本".encode(), "曜".encode()
    assert first[:1] == second[:1]
    last = entry(first[1:], 0.8) | {"top_logprobs": [entry(second[1:], 0.2)]}
    tokens = [token('{"label":"'), token("日"), token(first[:1]), last, token('"}')]
    assert probabilities(tokens, '{"label":"日本"}', ["日本", "日曜"]) == [0.8, 0.2]


def test_a_label_never_seen_stands_below_all_that_were() -> None:
    tokens = [token('{"label":"'), token("bug", 0.9, billing=0.06, xx=0.04), token('"}')]
    found = choice_logprobs(tokens, spelt(*tokens), ["bug", "billing", "feature", "other"])
    assert found is not None
    assert found[2] == found[3] < math.log(0.04)


def test_plain_text() -> None:
    tokens = [token("bug", 0.7, billing=0.2, Bug=0.1)]
    assert probabilities(tokens, "bug", ["bug", "billing"]) == [0.7, 0.2]
    tokens = [token(" bug", 0.7, **{" bill": 0.2, "billing": 0.1}), token("<|end|>")]
    assert probabilities(tokens, "bug", ["bug", "billing"]) == [0.7, 0.3]


def test_plain_text_where_one_label_is_in_another() -> None:
    tokens = [token("bug", 0.9, feature=0.1), token("fix", 0.5, **{"<|end|>": 0.5}), token("\n")]
    assert probabilities(tokens, "bugfix", ["bug", "bugfix", "feature"]) == [0.45, 0.45, 0.1]
    tokens = [token("bug", 0.9, feature=0.1)]
    assert probabilities(tokens, "bug", ["bug", "bugfix", "feature"])[:1] == [0.9]  # type: ignore[index]


def test_numbers() -> None:
    tokens = [token('{"label":'), token(" 1", 0.6, **{" 2": 0.4}), token("}")]
    assert probabilities(tokens, '{"label": 1}', ["1", "2"]) == [0.6, 0.4]


def test_a_reason_before_the_label() -> None:
    schema = {"properties": {"reason": {}, "label": {"enum": ["bug", "billing"]}}}
    tokens = [
        token('{"reason":"'),
        token("bug", 0.9, zz=0.1),
        token('","label":"'),
        token("bug", 0.6, billing=0.4),
        token('"}'),
    ]
    text = spelt(*tokens)
    assert probabilities(tokens, text, ["bug", "billing"], schema) == [0.6, 0.4]
    assert choice_logprobs(tokens, text, ["bug", "billing"]) is None  # which of the two is it?


def test_special_tokens_and_thinking_around_the_text() -> None:
    tokens = [
        token("<think>"),
        token("hm"),
        token("</think>\n"),
        token('{"label":"'),
        token("bug", 0.6, billing=0.4),
        token('"}'),
        token("<|im_end|>"),
    ]
    assert probabilities(tokens, '{"label":"bug"}', ["bug", "billing"]) == [0.6, 0.4]


def test_a_label_with_quotes_and_accents() -> None:
    labels = ['say "hi"', "déjà vu"]
    tokens = [token('{"label":"'), token("d", 0.7, say=0.3), token('éjà vu"}')]
    assert probabilities(tokens, spelt(*tokens), labels) == [0.3, 0.7]
    tokens = [token('{"label":"'), token("say", 0.7, **{"dé": 0.3}), token(' \\"hi\\""}')]
    assert probabilities(tokens, spelt(*tokens), labels) == [0.7, 0.3]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (None, "bug"),
        ([], "bug"),
        ("bug", "bug"),
        ([{"token": "bug", "logprob": -0.1}], "bug"),  # no alternatives
        ([token("bug")], "bug"),
        ([token("cat", 0.5, dog=0.5)], "bug"),  # does not spell the text
        ([token("zebra", 0.5, dog=0.5)], "zebra"),  # none of the labels
        ([token('{"label":["bug"]}', 0.5, x=0.5)], '{"label":["bug"]}'),
        ([token('{"label":"bu', 0.5, x=0.5)], '{"label":"bu'),
        ([token("bug", 0.5, x=0.5) | {"logprob": "high"}], "bug"),
        ([token("bug", 0.5, x=0.5) | {"bytes": [999]}], "bug"),
        ([7], "bug"),
    ],
)
def test_none_where_it_cannot_be_told(tokens: Any, text: str) -> None:
    assert choice_logprobs(tokens, text, ["bug", "billing"]) is None


LABELS = ["bug", "bugfix", "billing", "card_lost", "card_stolen", "feature request"]


@given(st.sampled_from(LABELS), st.lists(st.integers(1, 30), max_size=8), st.data())
def test_no_more_than_all_and_the_answer_among_them(
    label: str, cuts: list[int], data: st.DataObject
) -> None:
    """However a reply is cut into tokens: no mass is invented, every label has a number."""
    text = json.dumps({"label": label})
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    tokens = []
    for start, end in pairwise(places):
        part = text[start:end]
        p = data.draw(st.floats(0.05, 0.95))
        other = data.draw(st.sampled_from(["b", "bill", "card", "f", "x", '"', part[:1]]))
        tokens.append(token(part, p, **({other: 1 - p} if other != part else {})))
    found = choice_logprobs(tokens, text, LABELS)
    if found is not None:
        assert len(found) == len(LABELS)
        assert all(math.isfinite(one) and one <= 1e-9 for one in found)
        floor = min(found)
        seen = [one for one in found if one > floor]
        assert sum(map(math.exp, seen)) <= 1 + 1e-9
        assert found[LABELS.index(label)] > floor or len(set(found)) == 1

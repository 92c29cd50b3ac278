from __future__ import annotations

import enum
import json
import math
from typing import Literal

import numpy as np
import pytest

from llmframe.errors import SchemaError
from llmframe.label_prompts import instructions
from llmframe.label_scores import CONTENT_FREE, probabilities
from llmframe.labels import Labels, labels, labels_from
from llmframe.results import Result
from llmframe.schemas.reading import read


class Grade(enum.Enum):
    LOW = 1
    HIGH = 2


class Topic(enum.Enum):
    BUG = "bug"
    FEATURE = "feature request"


@pytest.mark.parametrize(
    ("spec", "values", "texts", "kind"),
    [
        (["b", "a"], ("b", "a"), ("b", "a"), "str"),
        (("x", "y"), ("x", "y"), ("x", "y"), "str"),
        ([0, 1, 2], (0, 1, 2), ("0", "1", "2"), "int"),
        ([True, False], (True, False), ("True", "False"), "bool"),
        ([1, "one"], (1, "one"), ("1", "one"), "object"),
        ([0.5, 1.5], (0.5, 1.5), ("0.5", "1.5"), "object"),
        (Topic, ("bug", "feature request"), ("bug", "feature request"), "str"),
        (Grade, (1, 2), ("1", "2"), "int"),
        (list(Topic), ("bug", "feature request"), ("bug", "feature request"), "str"),
        (Literal["p", "q"], ("p", "q"), ("p", "q"), "str"),
        (np.array([3, 4]), (3, 4), ("3", "4"), "int"),
        ({"a": "first", "b": None}, ("a", "b"), ("a", "b"), "str"),
    ],
)
def test_what_the_user_may_give(spec, values, texts, kind):
    found = labels(spec)
    assert (found.values, found.texts, found.kind) == (values, texts, kind)
    assert [type(value) for value in found.values] == [type(value) for value in values]


def test_descriptions_are_one_line_and_an_enum_of_numbers_has_its_names():
    assert labels({"a": " two\n lines ", "b": " "}).descriptions == ("two lines", None)
    assert labels(Grade).descriptions == ("LOW", "HIGH")
    assert labels(Topic).descriptions == (None, None)


def test_the_users_strings_stay_exactly_as_they_are():
    spec = [" Spam ", "Ham\u00a0"]
    assert labels(spec).values == (" Spam ", "Ham\u00a0")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([], "no labels: expected at least two"),
        (["only"], "only 'only': expected at least two"),
        (["a", " "], "label ' ' is empty"),
        (["a", None], "label None is a NoneType"),
        (["a", math.nan], "label nan is a float"),
        (["a", ("b",)], "is a tuple"),
        (["a", "\ud83d"], "half a surrogate pair"),
        ("spam", "expected a list"),
        (7, "expected a list"),
        ({"spam", "ham"}, "is a set"),
        ({"a": 1, "b": "x"}, "description of label 'a' is 1"),
    ],
)
def test_what_is_refused(spec, message):
    with pytest.raises(SchemaError, match=message):
        labels(spec)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Spam", "spam"),
        ("Spam", " Spam."),
        ("lost card", "lost_card"),
        ("follow-up", "Follow up"),
        ("it's", "It's"),
        (1, "1"),
    ],
)
def test_labels_that_read_alike_are_refused_and_both_named(one, other):
    with pytest.raises(SchemaError) as caught:
        labels(["else", one, other])
    assert repr(one) in str(caught.value)
    assert repr(other) in str(caught.value)


def test_signs_and_signed_numbers_stay_apart():
    assert labels(["*", "**", "***"]).match("**") == 1
    numbers = labels([-1, 0, 1])
    assert [numbers.match(text) for text in ("-1", "1", "0")] == [0, 2, 1]
    assert labels([-1, 0]).match("1") is None
    assert labels(["C", "C++", "C#"]).match("c#") == 2


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        ("spam", 0),
        (" Ham.", 1),
        ('"SPAM"', 0),
        ("**Ham**", 1),
        ("\u201cham\u201d", 1),
        ("Label: Spam", 0),
        ("**Category:** spam", 0),
        ("lost-card", 2),
        ("LOST  CARD", 2),
    ],
)
def test_u097_spellings_of_a_label(reply, place):
    assert labels(["Spam", "Ham", "lost_card"]).match(reply) == place


@pytest.mark.parametrize(
    "reply", ["Junk", "", "Spam or Ham", "not spam", "spams", "Spam, because it is", "Label:"]
)
def test_u099_what_is_no_label_is_never_guessed(reply):
    assert labels(["Spam", "Ham"]).match(reply) is None


@pytest.mark.parametrize(
    ("spec", "reply", "value"),
    [([0, 1, 2], "1", 1), ([True, False], "true", True), (Grade, "2", 2), ([0.5, "x"], "0.5", 0.5)],
)
def test_u102_replies_map_back_to_the_users_own_objects(spec, reply, value):
    found = labels(spec)
    place = found.match(reply)
    assert place is not None
    assert found.values[place] is value or found.values[place] == value
    assert type(found.values[place]) is type(value)


@pytest.mark.parametrize(
    ("spec", "kind", "good", "bad"),
    [
        (["Spam", "Ham"], "category", '{"label": "Ham"}', '{"label": "Eggs"}'),
        ([0, 1], "int", '{"label": 1}', '{"label": 2}'),
        ([True, False], "bool", '{"label": false}', '{"label": "maybe"}'),
        ([0.5, "x"], "category", '{"label": "0.5"}', '{"label": "0.6"}'),
    ],
)
def test_the_form_takes_the_labels_and_nothing_else(spec, kind, good, bad):
    form = labels(spec).form()
    assert [(field.name, field.kind) for field in form.fields] == [("label", kind)]
    assert form.bare
    assert read(form, Result(b"k", good, "stop")).failure is None
    assert read(form, Result(b"k", bad, "stop")).failure.kind == "invalid_output"


def test_the_form_of_several_labels_and_of_a_reason():
    found = labels(["a", "b"])
    several = found.form(multi=True)
    assert read(several, Result(b"k", '{"label": ["b", "a"]}', "stop")).values == (["b", "a"],)
    assert read(several, Result(b"k", '{"label": []}', "stop")).values == ([],)
    explained = found.form(explain=True, name="topic")
    assert [field.name for field in explained.fields] == ["reason", "topic"]
    assert read(explained, Result(b"k", '{"reason": "so", "topic": "a"}', "stop")).values == (
        "so",
        "a",
    )


@pytest.mark.parametrize("spec", [["a", "b"], [0, 1], [True, False], [0.5, "x"], {"a": "x", 1: ""}])
def test_they_survive_the_store(spec):
    found = labels(spec)
    again = labels_from(json.loads(json.dumps(found.stored())))
    assert again == found
    assert [type(value) for value in again.values] == [type(value) for value in found.values]
    assert again.match(found.texts[1]) == 1


def test_the_prompt_lists_labels_with_their_descriptions():
    found = labels({"bug": "something is broken", "feature": None})
    system, before, after = instructions(found, system="You work for ACME.")
    assert system == (
        "You work for ACME.\n\n"
        "Classify the text into one of these categories:\n"
        "- bug: something is broken\n"
        "- feature\n\n"
        "Answer with the exact name of the category that fits best."
    )
    assert (before, after) == ("Text: ", "")


def test_without_a_list_the_descriptions_are_part_of_what_is_scored():
    found = labels({"bug": "something is broken", "feature": None})
    assert found.choices == ("bug, something is broken", "feature")
    assert instructions(found, listed=False) == ("Classify the text.", "Text: ", "")
    assert instructions(found, listed=False, system="Hi.")[0] == "Hi.\n\nClassify the text."


def test_the_prompt_asks_for_several_and_for_reasons():
    found = labels(["a", "b"])
    several, _, _ = instructions(found, multi=True, listed=False)
    assert several.startswith("Say which of these categories fit the text:\n- a\n- b\n")
    reason, _, _ = instructions(found, explain=True)
    assert "Give the reason in one short sentence first." in reason


def softmax(row):
    odds = [math.exp(value - max(row)) for value in row]
    return [value / sum(odds) for value in odds]


def test_probabilities_as_the_model_says():
    rows = [[-1.0, -2.0, -4.0], [-700.0, -701.0, -702.0]]
    found = probabilities(rows, None, "none")
    assert found == pytest.approx(np.array([softmax(row) for row in rows]))


def test_contextual_calibration_divides_by_the_mean_over_content_free_inputs():
    rows = [[-0.2, -1.8], [-0.5, -0.9]]
    free = [[-0.1, -2.4], [-0.4, -1.2]]
    bias = np.mean([softmax(row) for row in free], axis=0)
    weighed = np.array([softmax(row) for row in rows]) / bias
    expected = weighed / weighed.sum(axis=1, keepdims=True)
    assert probabilities(rows, free, "contextual") == pytest.approx(expected)
    assert probabilities(rows, None, "none").argmax(axis=1).tolist() == [0, 0]
    assert probabilities(rows, free, "contextual").argmax(axis=1).tolist() == [0, 1]


def test_an_input_that_says_nothing_is_split_evenly():
    free = [[-0.01, -5.0, -9.0]]
    assert probabilities(free, free, "contextual") == pytest.approx(np.full((1, 3), 1 / 3))


def test_batch_calibration_takes_the_mean_of_the_logarithms_away():
    rows = np.array([[-0.1, -2.4], [-0.3, -1.3], [-0.2, -1.7]])
    expected = np.array([softmax(row) for row in (rows - rows.mean(axis=0)).tolist()])
    assert probabilities(rows.tolist(), None, "batch") == pytest.approx(expected)
    assert set(probabilities(rows.tolist(), None, "batch").argmax(axis=1)) == {0, 1}


def test_batch_calibration_leaves_a_single_row_as_it_is():
    assert probabilities([[-0.1, -2.4]], None, "batch") == pytest.approx(
        probabilities([[-0.1, -2.4]], None, "none")
    )


@pytest.mark.parametrize("method", ["none", "contextual", "batch"])
def test_extreme_scores_stay_numbers(method):
    rows = [
        [-math.inf, -math.inf, -math.inf],
        [-math.inf, -1.0, -2.0],
        [-1e300, -1.0, -2.0],
        [0.0, -5000.0, -5000.0],
    ]
    found = probabilities(rows, [[0.0, -math.inf, -1e4]], method)
    assert np.isfinite(found).all()
    assert found.sum(axis=1) == pytest.approx(np.ones(4))


def test_no_rows_give_no_rows():
    assert probabilities(np.empty((0, 3)), [[-1.0, -1.0, -1.0]], "contextual").shape == (0, 3)
    assert probabilities(np.empty((0, 3)), None, "batch").shape == (0, 3)


def test_contextual_calibration_needs_its_inputs():
    with pytest.raises(ValueError, match="content-free"):
        probabilities([[-1.0, -2.0]], [], "contextual")
    assert len(CONTENT_FREE) > 1


def test_labels_are_values():
    assert labels(["a", "b"]) == labels(["a", "b"])
    assert isinstance(hash(labels(["a", "b"])), int)
    assert isinstance(labels(["a", "b"]), Labels)

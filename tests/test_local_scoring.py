from __future__ import annotations

import math

import pytest

from llmframe.engines.local_scoring import LabelTree

# A made-up model over four tokens: probability of the next one after each beginning.
NEXT = {
    (): {1: 0.5, 2: 0.3, 3: 0.2},
    (1,): {1: 0.1, 2: 0.6, 3: 0.1, 4: 0.2},
    (1, 2): {4: 1.0},
    (2,): {3: 0.25, 4: 0.75},
}


class Model:
    def __init__(self):
        self.asked = []

    def __call__(self, path, tokens):
        self.asked.append((path, tokens))
        return {token: math.log(NEXT[path][token]) for token in tokens}


def score(labels):
    model = Model()
    scores = LabelTree(labels).score(model)
    return [math.exp(value) for value in scores], model.asked


def test_labels_of_one_token_take_one_step():
    found, asked = score([[1], [2], [3]])
    assert found == pytest.approx([0.5, 0.3, 0.2])
    assert asked == [((), (1, 2, 3))]


def test_a_label_is_scored_to_its_last_token():
    found, asked = score([[1, 2, 4], [2, 3]])
    assert found == pytest.approx([0.5 * 0.6 * 1.0, 0.3 * 0.25])
    assert [path for path, _ in asked] == [(), (1,), (1, 2), (2,)]


def test_shared_beginnings_are_asked_for_once():
    found, asked = score([[1, 2], [1, 3], [2]])
    assert found == pytest.approx([0.5 * 0.6, 0.5 * 0.1, 0.3])
    assert asked == [((), (1, 2)), ((1,), (2, 3))]


def test_a_label_does_not_count_what_belongs_to_a_longer_one():
    found, _ = score([[1], [1, 2], [1, 4], [2]])
    assert found == pytest.approx([0.5 * (1 - 0.6 - 0.2), 0.5 * 0.6, 0.5 * 0.2, 0.3])


def test_a_label_that_always_goes_on_is_improbable_and_not_impossible():
    found, _ = score([[1, 2], [1, 2, 4]])
    assert 0 < found[0] < 1e-5
    assert found[1] == pytest.approx(0.5 * 0.6)


def test_two_labels_of_the_same_tokens_score_alike():
    found, _ = score([[1, 2], [1, 2]])
    assert found == pytest.approx([0.3, 0.3])


def test_hundreds_of_labels_are_walked_by_their_shared_beginnings():
    labels = [[first, second] for first in range(20) for second in range(20)]
    tree = LabelTree(labels)
    assert len(tree.places) == 21
    scores = tree.score(lambda path, tokens: dict.fromkeys(tokens, -math.log(20)))
    assert scores == pytest.approx([2 * -math.log(20)] * 400)

"""Probabilities of whole labels: a walk over the tree of the labels' tokens.

The score of a label is the probability that the reply starts with it, all its tokens, and goes
on to no longer label of the list: "card" does not count what belongs to "card arrival". The
first token alone is cheaper and says much less: on bank questions with five intents it found
0.50 of them after contextual calibration, whole labels 0.72 (SmolLM2-135M, 200 rows). A further
token for the end of the reply changed nothing (0.74), and costs one more step a label.

One step of the model gives one place of the tree, so a row costs as many steps as there are
different beginnings: one for labels of a token each, about ten for five labels of two or three
words, 141 for the 77 intents of banking77. Asking only where labels part would take 16 steps
there, and find half as many (30 rows: 0.13 against 0.27 correct, 0.40 against 0.70 among the
first five).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

__all__ = ["LabelTree"]

Path = tuple[int, ...]

# Where hardly anything is left beside the longer labels, the difference of two 32-bit
# probabilities is rounding noise.
_LEAST: Final = 1e-6


class LabelTree:
    """Token sequences of the labels, by shared beginnings.

    Args:
        labels: Tokens of each label, without an end.

    Attributes:
        places: Every beginning after which at least one label goes on, and the tokens it may go
            on with; depth first, the root (no token yet) first.
        depth: Tokens of the longest label.
    """

    __slots__ = ("_labels", "depth", "places")

    def __init__(self, labels: Sequence[Sequence[int]]) -> None:
        self._labels = [tuple(label) for label in labels]
        following: dict[Path, set[int]] = {}
        for label in self._labels:
            for place, token in enumerate(label):
                following.setdefault(label[:place], set()).add(token)
        # In this order each place shares its beginning with the one before it, which the
        # model's prefix cache still holds.
        self.places: dict[Path, tuple[int, ...]] = {
            path: tuple(sorted(tokens)) for path, tokens in sorted(following.items())
        }
        self.depth = max(len(label) for label in self._labels)

    def score(
        self, ask: Callable[[Path, tuple[int, ...]], Mapping[int, float]]
    ) -> tuple[float, ...]:
        """Natural-log probability of each label, in order.

        Args:
            ask: Given the tokens written so far and some that may follow, the natural-log
                probability of each of the latter. At the root a constant may be left out:
                all labels then lack it.
        """
        reached: dict[Path, float] = {(): 0.0}
        follow: dict[Path, Mapping[int, float]] = {}
        for path, tokens in self.places.items():
            follow[path] = ask(path, tokens)
            for token in tokens:
                reached[*path, token] = reached[path] + follow[path][token]
        return tuple(
            reached[label] + _stopping(follow.get(label, {}).values()) for label in self._labels
        )


def _stopping(longer: Iterable[float]) -> float:
    beyond = sum(math.exp(logprob) for logprob in longer)
    return math.log(max(1.0 - beyond, _LEAST))

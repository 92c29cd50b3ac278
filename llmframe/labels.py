"""Labels of `classify`: what the user lists, what the model is told, and what scores mean."""

from __future__ import annotations

import enum
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args, get_origin

import numpy as np
import numpy.typing as npt

from llmframe.errors import SchemaError
from llmframe.schemas import forms

__all__ = [
    "CONTENT_FREE",
    "Labels",
    "instructions",
    "labels",
    "labels_from",
    "probabilities",
]

Kind = Literal["str", "int", "bool", "object"]
Method = Literal["contextual", "batch", "none"]

CONTENT_FREE: Final = ("N/A", "", "[MASK]")
"""Inputs that say nothing, in place of a row's text: what the model answers to them is its
bias for some labels, which contextual calibration takes away."""

_EXAMPLE: Final = '["billing", "bug", "feature"]'
# Blanks, straight and typographic quotes, bold and code marks, the full stop.
_AROUND: Final = " \t\r\n\"'`*.\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb"
_LEAD: Final = re.compile(r"\s*\**(label|category)\**\s*:", re.IGNORECASE)
_GAP: Final = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
# Below this a label is as good as impossible; further down the logarithm is rounding noise,
# which calibration would subtract and turn into a confident answer.
_FLOOR: Final = -60.0


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one call, in the user's order.

    Attributes:
        values: What the output column holds: the user's own objects, Enum members as their
            values.
        texts: What the model reads and writes, one text a value.
        descriptions: What each label means, None where the user does not say.
        kind: What all values are, which decides the column's dtype.
    """

    values: tuple[Any, ...]
    texts: tuple[str, ...]
    descriptions: tuple[str | None, ...]
    kind: Kind
    _exact: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _normal: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_exact", {text: i for i, text in enumerate(self.texts)})
        object.__setattr__(self, "_normal", {_normal(text): i for i, text in enumerate(self.texts)})

    @property
    def choices(self) -> tuple[str, ...]:
        """What to score where the prompt lists no labels: each with its description behind it.

        A small model that reads the descriptions in the prompt does worse (two draws of
        banking77, contextual calibration: 0.45 correct, 0.76 without them); as part of what it
        is asked to write they help (0.78; text messages, batch calibration: 0.78 for 0.68).
        """
        return tuple(
            f"{text}, {described}" if described else text
            for text, described in zip(self.texts, self.descriptions, strict=True)
        )

    def match(self, text: str) -> int | None:
        """Position of the label that `text` means, or None.

        Case, blanks around, ``_`` or ``-`` for a blank, quotes, bold, a full stop and a leading
        ``Label:`` or ``Category:`` make no difference. Anything else does: a near miss is no
        answer.

        Examples:
            >>> labels(["Spam", "Ham"]).match(" **ham**. ")
            1
            >>> labels(["Spam", "Ham"]).match("Spam or Ham") is None
            True
        """
        found = self._exact.get(text)
        if found is None:
            found = self._normal.get(_normal(text))
        if found is None:
            lead = _LEAD.match(text)
            found = self._normal.get(_normal(text[lead.end() :])) if lead else None
        return found

    def own(self, answer: Any) -> Any:
        """The user's own object for a label that was answered as its text, or for each of a list.

        Examples:
            >>> labels([0.5, 1.5]).own("1.5")
            1.5
        """
        if isinstance(answer, list):
            return [self.own(item) for item in answer]
        place = self._exact.get(answer)
        return answer if place is None else self.values[place]

    def form(
        self, *, name: str = "label", multi: bool = False, explain: bool = False
    ) -> forms.Form:
        """The schema under which an engine that cannot score writes a label.

        Args:
            name: Field that holds the label.
            multi: Any number of labels, as a list.
            explain: A field ``reason`` goes first, so that the model argues before it decides.
        """
        # Literal is subscripted at run time: its arguments are the user's.
        allowed = self.texts if self.kind == "object" else self.values
        label: Any = Literal.__getitem__(allowed)
        if multi:
            label = list[label]
        return forms.form({"reason": str, name: label} if explain else label, name=name)

    def stored(self) -> dict[str, Any]:
        """As JSON, for `labels_from`."""
        return {
            "values": list(self.values),
            "texts": list(self.texts),
            "descriptions": list(self.descriptions),
            "kind": self.kind,
        }


def labels_from(stored: Mapping[str, Any]) -> Labels:
    """The labels that `Labels.stored` gave, in another process."""
    return Labels(
        tuple(stored["values"]),
        tuple(stored["texts"]),
        tuple(stored["descriptions"]),
        stored["kind"],
    )


def labels(spec: Any) -> Labels:
    """The labels that the user means.

    Args:
        spec: A list (or any other sequence) of texts, numbers or bools; a dict label →
            description; an Enum class; or a ``Literal``.

    Raises:
        SchemaError: Fewer than two labels, an empty one, two that a model could not tell apart,
            or a label that is neither text, number nor bool.

    Examples:
        >>> labels({"bug": "something is broken", "feature": None}).descriptions
        ('something is broken', None)
        >>> labels([0, 1, 2]).texts
        ('0', '1', '2')
    """
    values, descriptions = _listed(spec)
    if len(values) < 2:
        only = f"only {values[0]!r}" if values else "no labels"
        raise SchemaError(f"{only}: expected at least two labels, such as {_EXAMPLE}.")
    texts = tuple(_text(value) for value in values)
    seen: dict[str, int] = {}
    for place, text in enumerate(texts):
        before = seen.setdefault(_normal(text), place)
        if before != place:
            raise SchemaError(
                f"labels {values[before]!r} and {values[place]!r} read alike (case, blanks, "
                f"quotes, '_', '-' and a full stop make no difference). Rename or drop one."
            )
    return Labels(values, texts, descriptions, _kind(values))


def instructions(
    labels: Labels,
    *,
    multi: bool = False,
    explain: bool = False,
    system: str | None = None,
    listed: bool = True,
) -> tuple[str, str, str]:
    """The built-in prompt of `classify`.

    Args:
        labels: The labels.
        multi: Any number of them may fit.
        explain: A reason is asked for.
        system: The user's own system text; it goes first.
        listed: Name the labels. A small model whose labels are scored (`Labels.choices`) is
            better off without: it repeats what it has just read instead of judging the text.
            (SmolLM2-135M, five intents of banking77, 160 rows, contextual calibration: 0.78
            correct without the list, 0.43 with it; it writes no worse a label without it
            either, 0.44 against 0.41.) No effect where a list is needed: `multi`, `explain`.

    Returns:
        System text; the text before the row's own; the text after it. All are part of the key.

    Examples:
        >>> system, before, after = instructions(labels(["bug", "feature"]))
        >>> print(system)
        Classify the text into one of these categories:
        - bug
        - feature
        <BLANKLINE>
        Answer with the exact name of the category that fits best.
        >>> before, after
        ('Text: ', '')
    """
    parts = [system] if system else []
    if not (listed or multi or explain):
        parts.append("Classify the text.")
        return "\n\n".join(parts), "Text: ", ""
    task = "Say which of these categories fit" if multi else "Classify the text into one of these"
    parts.append(
        "\n".join(
            [f"{task} the text:" if multi else f"{task} categories:"]
            + [
                f"- {text}: {described}" if described else f"- {text}"
                for text, described in zip(labels.texts, labels.descriptions, strict=True)
            ]
        )
    )
    answer = (
        "Answer with the exact names of all that fit; none may."
        if multi
        else "Answer with the exact name of the category that fits best."
    )
    if explain:
        answer = f"Give the reason in one short sentence first. {answer}"
    parts.append(answer)
    return "\n\n".join(parts), "Text: ", ""


def probabilities(
    scores: Sequence[Sequence[float]],
    content_free: Sequence[Sequence[float]] | None,
    method: Method,
) -> npt.NDArray[np.float64]:
    """Probability of each label, from the raw scores of an engine.

    Args:
        scores: Natural-log probabilities, n rows of k labels; a constant that a row's labels
            share makes no difference.
        content_free: The same for inputs that say nothing, any number of rows of k; only
            ``"contextual"`` reads them.
        method: ``"none"``: what the model says. ``"contextual"``: divided by what it says to
            inputs without content (Zhao et al. 2021, Calibrate Before Use). ``"batch"``: divided
            by the geometric mean over all rows (Zhou et al. 2024, Batch Calibration), which
            assumes about as many rows of each label and makes a row's label depend on the
            others. (Geometric, not arithmetic: banking77 as above, 0.90 against 0.67 correct.)
            A single row says nothing about the bias and stays as it is.

    Returns:
        Array of shape (n, k), each row summing to 1.

    Raises:
        ValueError: ``"contextual"`` without `content_free`.

    Examples:
        >>> raw = [[-0.1, -2.4], [-0.7, -0.7]]
        >>> probabilities(raw, [[-0.3, -1.4]], "contextual").argmax(axis=1)
        array([0, 1])
    """
    logs = _log_shares(scores)
    if method == "contextual":
        if content_free is None or not len(content_free):
            raise ValueError('method="contextual" takes the scores of content-free inputs.')
        logs = logs - np.log(np.exp(_log_shares(content_free)).mean(axis=0))
    elif method == "batch" and len(logs) > 1:
        logs = logs - logs.mean(axis=0)
    return np.exp(_normalised(logs))


def _log_shares(scores: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    array = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    # Bounded on both sides of the sum: a label at minus infinity in every row would else take
    # all the probability once its bias is divided out.
    top = array.max(axis=1, keepdims=True, initial=-np.inf)
    array = np.maximum(array - np.where(np.isfinite(top), top, 0.0), _FLOOR)
    return _normalised(array)


def _normalised(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)


def _listed(spec: Any) -> tuple[tuple[Any, ...], tuple[str | None, ...]]:
    if isinstance(spec, type) and issubclass(spec, enum.Enum):
        members = list(spec)
        # A number says nothing to the model; the member's name does.
        named = tuple(None if isinstance(m.value, str) else m.name for m in members)
        return tuple(_plain(m) for m in members), named
    if get_origin(spec) is Literal:
        values = tuple(_plain(value) for value in get_args(spec))
        return values, (None,) * len(values)
    if isinstance(spec, Mapping):
        for label, text in spec.items():
            if text is not None and not isinstance(text, str):
                raise SchemaError(
                    f"the description of label {label!r} is {text!r}; expected text, or None."
                )
        texts = tuple(" ".join(text.split()) or None if text else None for text in spec.values())
        return tuple(_plain(value) for value in spec), texts
    if isinstance(spec, (set, frozenset)):
        raise SchemaError(
            "labels is a set, whose order changes from process to process, and with it the "
            "prompt. Give a list: sorted(labels)."
        )
    if isinstance(spec, (str, bytes)) or not isinstance(spec, Iterable):
        raise SchemaError(
            f"labels={spec!r}: expected a list such as {_EXAMPLE}, a dict label → description, "
            f"an Enum or a Literal."
        )
    values = tuple(_plain(value) for value in spec)
    return values, (None,) * len(values)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    return value.item() if isinstance(value, np.generic) else value


def _text(value: Any) -> str:
    if isinstance(value, str):
        if not value.strip():
            raise SchemaError(f"label {value!r} is empty. Name it, for example 'none of these'.")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SchemaError(
                f"label {value!r} holds half a surrogate pair, which cannot be sent. Correct it."
            ) from None
        return value
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise SchemaError(
        f"label {value!r} is a {type(value).__name__}; expected text, a number or a bool."
    )


def _kind(values: Sequence[Any]) -> Kind:
    if all(isinstance(value, str) for value in values):
        return "str"
    if all(isinstance(value, bool) for value in values):
        return "bool"
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return "int"
    return "object"


def _normal(text: str) -> str:
    # A label made of nothing but such signs ("*", "**") is left as it is.
    text = unicodedata.normalize("NFC", text)  # for the comparison alone: macOS writes NFD
    bare = text.strip(_AROUND) or text.strip()
    return _GAP.sub(" ", " ".join(bare.split())).casefold()

"""Labels of `classify`: what the user lists, what the model is told, and what it answers."""

from __future__ import annotations

import enum
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args, get_origin

import numpy as np

from llmframe.errors import SchemaError
from llmframe.schemas import forms

__all__ = [
    "Labels",
    "coded",
    "labels",
    "labels_from",
    "spelling",
    "with_other",
]

Kind = Literal["str", "int", "bool", "object"]

# OpenAI's strict mode takes this many characters of allowed values where there are more than that
# many of them (https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas").
_MANY: Final = 250
_LONG: Final = 15_000
_LETTERS: Final = "LCKQXZ"

NONE: Final = "none of these"
"""The label of a text that none of the user's labels fits, where the user gives it no name."""
_UNDER: Final = " > "
"""Between the levels of a label that stands under another."""
_EXAMPLE: Final = '["billing", "bug", "feature"]'
# Blanks, straight and typographic quotes, bold and code marks, the full stop.
_AROUND: Final = " \t\r\n\"'`*.\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb"
_LEAD: Final = re.compile(r"\s*\**(label|category)\**\s*:", re.IGNORECASE)
_GAP: Final = re.compile(r"(?<=\w)[\s_-]+(?=\w)")


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one call, in the user's order.

    Attributes:
        values: What the output column holds: the user's own objects, Enum members as their
            values.
        texts: What the model reads and writes, one text a value.
        descriptions: What each label means, None where the user does not say.
        kind: What all values are, which decides the column's dtype.
        codes: What the model writes in place of the texts, see `coded`; None: the texts.
    """

    values: tuple[Any, ...]
    texts: tuple[str, ...]
    descriptions: tuple[str | None, ...]
    kind: Kind
    codes: tuple[str, ...] | None = None
    _exact: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _normal: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A model may write a label where it was told to write its code; no text reads as a code.
        spelt = [*enumerate(self.texts), *enumerate(self.codes or ())]
        object.__setattr__(self, "_exact", {text: i for i, text in spelt})
        object.__setattr__(self, "_normal", {spelling(text): i for i, text in spelt})

    @property
    def written(self) -> tuple[str, ...]:
        """What a reply holds, one text a label."""
        return self.codes or self.texts

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
            found = self._normal.get(spelling(text))
        if found is None:
            lead = _LEAD.match(text)
            found = self._normal.get(spelling(text[lead.end() :])) if lead else None
        return found

    def own(self, answer: Any) -> Any:
        """The user's own object for an answered text or code, or for each of a list of them.

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
        allowed = self.codes or (self.texts if self.kind == "object" else self.values)
        label: Any = Literal.__getitem__(allowed)
        if multi:
            label = list[label]
        return forms.form({"reason": str, name: label} if explain else label, name=name)

    def column(self, written: forms.Field) -> forms.Field:
        """The field of the output column, from that of the label as a model writes it."""
        if self.kind == "object":
            # Floats and mixed labels come back as they are; no dtype of their own holds them.
            return replace(written, kind="object", schema={})
        if self.codes is None:
            return written
        # Several labels are a list, in a column of objects.
        own = replace(self, codes=None).form(name=written.name, multi=written.kind == "object")
        return own.fields[0]

    def stored(self) -> dict[str, Any]:
        """As JSON, for `labels_from`."""
        return {
            **({} if self.codes is None else {"codes": list(self.codes)}),
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
        tuple(stored["codes"]) if stored.get("codes") else None,
    )


def labels(spec: Any) -> Labels:
    """The labels that the user means.

    Args:
        spec: A list (or any other sequence) of texts, numbers or bools; a dict label →
            description; an Enum class; or a ``Literal``. A dict label → dict, or list, holds
            labels under a label, which are named with all that they stand under.

    Raises:
        SchemaError: Fewer than two labels, an empty one, two that a model could not tell apart,
            or a label that is neither text, number nor bool.

    Examples:
        >>> labels({"bug": "something is broken", "feature": None}).descriptions
        ('something is broken', None)
        >>> labels([0, 1, 2]).texts
        ('0', '1', '2')
        >>> labels({"billing": {"refund": "wants money back", "invoice": None}, "bug": None}).texts
        ('billing > refund', 'billing > invoice', 'bug')
    """
    values, descriptions = _listed(spec)
    if len(values) < 2:
        only = f"only {values[0]!r}" if values else "no labels"
        raise SchemaError(f"{only}: expected at least two labels, such as {_EXAMPLE}.")
    texts = tuple(_text(value) for value in values)
    seen: dict[str, int] = {}
    for place, text in enumerate(texts):
        before = seen.setdefault(spelling(text), place)
        if before != place:
            raise SchemaError(
                f"labels {values[before]!r} and {values[place]!r} read alike (case, blanks, "
                f"quotes, '_', '-' and a full stop make no difference). Rename or drop one."
            )
        if (same := values.index(values[place])) != place:
            raise SchemaError(f"labels {values[same]!r} and {values[place]!r} are equal. Drop one.")
    return Labels(values, texts, descriptions, _kind(values))


def with_other(labels: Labels, other: Any) -> Labels:
    """The labels and, last, one for what none of them fits.

    Args:
        labels: The labels.
        other: Its value; True for ``"none of these"``.

    Raises:
        SchemaError: It is a label already, or cannot be one.

    Examples:
        >>> with_other(labels(["bug", "feature"]), True).texts
        ('bug', 'feature', 'none of these')
        >>> with_other(labels([1, 2]), -1).descriptions[-1]
        'none of the others fits'
    """
    value, text = (NONE, NONE) if other is True else (_plain(other), _text(_plain(other)))
    if (place := labels.match(text)) is not None:
        raise SchemaError(
            f"other={other!r} reads as the label {labels.values[place]!r}. Name it differently."
        )
    values = (*labels.values, value)
    # The name that we give says it already.
    described = None if other is True else "none of the others fits"
    return Labels(values, (*labels.texts, text), (*labels.descriptions, described), _kind(values))


def coded(labels: Labels) -> Labels:
    """Labels that are many and long, with a short code for each; all others as they are.

    More than 250 labels of more than 15,000 characters together are refused by OpenAI's strict
    mode, and by the servers that imitate it. There the prompt lists codes beside the labels and
    the model writes a code, which is read back as its label. Below that the labels themselves are
    asked for, since a model that writes a name makes fewer mistakes than one that writes a number.

    Args:
        labels: The labels.

    Examples:
        >>> many = labels([f"{'a long name of a label ' * 3} {n}" for n in range(300)])
        >>> coded(many).written[:2], coded(labels(["bug", "feature"])).written
        (('L001', 'L002'), ('bug', 'feature'))
    """
    if len(labels.texts) <= _MANY or sum(map(len, labels.texts)) <= _LONG:
        return labels
    taken = set(map(spelling, labels.texts))
    width = len(str(len(labels.texts)))
    for letter in (*_LETTERS, *(f"{one}{two}" for one in _LETTERS for two in _LETTERS)):
        codes = tuple(f"{letter}{n:0{width}}" for n in range(1, len(labels.texts) + 1))
        if taken.isdisjoint(map(spelling, codes)):
            break
    return replace(labels, codes=codes)


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
        if any(isinstance(under, Mapping | list | tuple) for under in spec.values()):
            spec = dict(_paths(spec, ()))
        for label, text in spec.items():
            if text is not None and not isinstance(text, str):
                raise SchemaError(
                    f"the description of label {label!r} is {text!r}; expected text, None, or "
                    f"the labels under it."
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


def _paths(spec: Mapping[Any, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Labels under labels, each named with all that it stands under, and its description."""
    for label, under in spec.items():
        name = _text(_plain(label))
        if _UNDER in name:
            raise SchemaError(
                f"label {name!r} holds {_UNDER!r}, which stands between a label and those under "
                f"it. Rename it."
            )
        path = (*above, name)
        if not isinstance(under, Mapping | list | tuple):
            yield _UNDER.join(path), under
            continue
        if not under:
            raise SchemaError(
                f"there is no label under {_UNDER.join(path)!r}. Give some, or None in their place."
            )
        inner = under if isinstance(under, Mapping) else dict.fromkeys(under)
        yield from _paths(inner, path)


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


def spelling(text: str) -> str:
    """A label without what makes no difference: case, blanks, quotes, ``_``, ``-``, a full stop.

    Examples:
        >>> spelling(' "Not_Spam". ')
        'not spam'
    """
    # A label made of nothing but such signs ("*", "**") is left as it is.
    text = unicodedata.normalize("NFC", text)  # for the comparison alone: macOS writes NFD
    bare = text.strip(_AROUND) or text.strip()
    return _GAP.sub(" ", " ".join(bare.split())).casefold()

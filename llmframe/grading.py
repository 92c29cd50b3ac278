"""The verbs of a judge: arguments in, a `Prepared` call out; everything wrong is said here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, Unpack

from llmframe import frames
from llmframe.columns import Columns
from llmframe.errors import PromptError, warn_user
from llmframe.keywords import Common, asked
from llmframe.labels import Labels
from llmframe.panels import Orders, Votes
from llmframe.prepared import Prepared
from llmframe.prompts import source_template
from llmframe.rubrics import comparing, judging, rubric_of, scale_of
from llmframe.schemas.forms import Form, form
from llmframe.sections import Section, Sections
from llmframe.verbs import engine_of, prepare

__all__ = ["prepare_compare", "prepare_judge"]

_WARM: Final = 1.0
"""Temperature of votes where the user gives none: at 0 they would be one vote, told n times. Every
model that takes a temperature takes this one, which is what the APIs use where none is sent."""
_MOST: Final = 100
_BRACES: Final = re.compile(r"\{([^{}]+)\}")


def prepare_judge(
    data: Any,
    rubric: Any,
    *,
    answer: Any = None,
    question: Any = None,
    reference: Any = None,
    scale: Any = (1, 5),
    explain: bool = True,
    expected: bool = False,
    n: int | tuple[int, int] = 1,
    **common: Unpack[Common],
) -> Prepared:
    """`judge`: a score a row, by a rubric."""
    own = ("rubric", "answer", "question", "reference", "scale", "explain", "expected", "n")
    given = asked("judge", common, own)
    _bools(explain=explain, expected=expected)
    least, votes = _votes(n)
    told, known = rubric_of(rubric), scale_of(scale)
    table = frames.Table(data)
    if answer is None:
        if not table.is_series:
            raise TypeError("judge() missing 1 required keyword-only argument: 'answer'")
        answer = "{}"
    for text in (told.text, *filter(None, told.described.values())):
        _constant("the rubric", text, table, question, reference)
    criteria = tuple(told.described)
    engine = engine_of(given)
    # Probabilities are those of one answer that is nothing but the score.
    alone = not explain and not criteria and votes == 1 and known.is_scored
    if expected:
        _check_expected(alone, known.kind, explain, votes, bool(criteria))
        if not engine.limits.choices:
            warn_user(
                f"expected=True: {engine.name}/{engine.model} gives no probabilities of the "
                f"scores, so score_expected will be NA in every row."
            )
    if votes > 1 and given.temperature is None and engine.limits.temperature:
        given = replace(given, temperature=_WARM)
    elif votes > 1 and given.temperature == 0:
        raise ValueError(
            f"temperature=0 with n={n}: the votes would be one vote, paid {least or votes} times. "
            f"Leave it out (then it is {_WARM:g}), or n=1."
        )
    if given.examples is None and told.examples is not None:
        given = replace(given, examples=told.examples)
    panel = Votes(known.kind, known.values, votes, criteria, told.shares, explain, expected, least)
    hints = {name: known.type for name in criteria or ("score",)}
    return prepare(
        "judge",
        data,
        _sections(table, answer=answer, question=question, reference=reference),
        _form(hints, explain, "score"),
        given,
        "score",
        engine=engine,
        system=judging(
            told,
            known,
            explain=explain,
            question=question is not None,
            reference=reference is not None,
            system=given.system,
        ),
        labels=known.scores if alone else None,
        choices=known.scores.texts if alone else None,
        panel=panel,
        more=_advice(least, votes, given.temperature),
    )


def _votes(n: Any) -> tuple[int, int]:
    """How many votes are asked first, 0 for all of them, and how many there are.

    Raises:
        ValueError: `n` is neither a number nor two.
    """
    given = n if isinstance(n, tuple) else (n,)
    numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in given)
    if numbers and len(given) == 1 and 1 <= given[0] <= _MOST:
        return 0, given[0]
    if numbers and len(given) == 2 and 2 <= given[0] <= given[1] <= _MOST:
        return (0 if given[0] == given[1] else given[0]), given[1]
    raise ValueError(
        f"n={n!r}: expected a number of votes from 1 to {_MOST}; or two, such as (2, 5), for how "
        f"many are asked at least, 2 or more, and at most."
    )


def _advice(least: int, votes: int, temperature: float | None) -> tuple[str, ...]:
    """What a plan says of the votes."""
    warmth = "" if temperature is None else f", at temperature {temperature:g}"
    if least:
        return (
            f"{least} to {votes} votes a row{warmth}: more than {least} only where they differ "
            f"and the others could change the score.",
        )
    return (f"{votes} votes a row{warmth}.",) if votes > 1 and warmth else ()


def prepare_compare(
    data: Any,
    a: Any,
    b: Any,
    criterion: str,
    *,
    question: Any = None,
    reference: Any = None,
    swap: bool = True,
    ties: bool = True,
    explain: bool = True,
    **common: Unpack[Common],
) -> Prepared:
    """`compare`: which of two texts is the better one, whatever stands first."""
    own = ("a", "b", "criterion", "question", "reference", "swap", "ties", "explain")
    given = asked("compare", common, own)
    _bools(swap=swap, ties=ties, explain=explain)
    table = frames.Table(data)
    if table.is_series:
        raise TypeError("compare() takes a DataFrame: a Series holds one text a row, not two.")
    system = comparing(
        criterion,
        ties=ties,
        explain=explain,
        question=question is not None,
        reference=reference is not None,
        system=given.system,
    )
    _constant("the criterion", criterion, table, question, reference)
    names = ("first", "second", "tie") if ties else ("first", "second")
    labels = Labels(names, names, (None,) * len(names), "str")
    hints = {"winner": Literal.__getitem__(names)}
    return prepare(
        "compare",
        data,
        _sections(table, first=a, second=b, question=question, reference=reference),
        _form(hints, explain, "winner"),
        given,
        "winner",
        system=system,
        labels=None if explain else labels,
        choices=None if explain else names,
        panel=Orders(swap, ties, explain),
    )


def _bools(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r}: expected True or False.")


def _check_expected(alone: bool, kind: str, explain: bool, n: int, criteria: bool) -> None:
    if kind == "category":
        raise ValueError("expected=True needs scores that are numbers: labels have no mean.")
    if alone:
        return
    why = "explain=True" if explain else f"n={n}" if n > 1 else "a rubric of criteria"
    if not (explain or n > 1 or criteria):
        why = "a scale of more than 101 scores"
    raise ValueError(
        f"expected=True reads the probabilities of a reply that is the score alone, and not with "
        f"{why}. Give explain=False and one score a row."
    )


def _form(hints: Mapping[str, Any], explain: bool, name: str) -> Form:
    """The reason first: what a model has written by then is what it decides by."""
    if explain:
        return form({"reason": str, **hints})
    return form(hints[name], name=name) if len(hints) == 1 and name in hints else form(dict(hints))


def _sections(table: frames.Table, **texts: Any) -> Sections:
    """The texts of a row, the judged ones last."""
    parts = []
    for tag in ("question", "reference", "answer", "first", "second"):
        source = texts.get(tag)
        if source is None:
            if tag in texts and tag not in {"question", "reference"}:
                raise PromptError(f"{tag}=None: expected a column name or a template.")
            continue
        if isinstance(source, list):
            raise PromptError(
                f"{source!r} is a list; expected a column name or a template, such as "
                f"'{{{source[0] if source else 'text'}}}'. Nothing was sent."
            )
        found = source_template(source, table.names, table.index_names)
        parts.append(Section(tag, found, optional=tag == "reference"))
    swaps = ("first", "second") if "first" in texts else None
    after = "Which is better?" if swaps else "Judge the answer."
    return Sections(tuple(parts), after, swaps)


def _constant(what: str, text: str, table: frames.Table, *given: Any) -> None:
    """Refuse a rubric that reads as a template: it is the same text for every row.

    Raises:
        PromptError: A column is named between braces.
    """
    columns = Columns(table.names, table.index_names)
    for inner in _BRACES.findall(text):
        if columns.find(inner) is not None:
            raise PromptError(
                f"{what} names the column {{{inner}}}, but it is the same for every row. Give the "
                f"column as question= or reference=, as question={inner!r}. Nothing was sent."
            )

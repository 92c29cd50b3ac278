"""Few-shot examples: answers as the user has them become replies as the model should write them."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from llmframe import joins
from llmframe.columns import name_text
from llmframe.errors import PromptError, sentence
from llmframe.labels import Labels
from llmframe.panels import Panel
from llmframe.prompts import is_missing
from llmframe.rendering import plain
from llmframe.schemas.forms import Form

__all__ = ["shots"]

_LEAD: Final = "Category:"
"""How in-process engines begin the reply whose labels they score."""


def shots(
    examples: Any,
    form: Form,
    columns: Sequence[Hashable],
    labels: Labels | None = None,
    panel: Panel | None = None,
    scored: Sequence[str] | None = None,
) -> list[tuple[Any, str]] | None:
    """Examples as pairs of inputs and the text of a reply.

    Args:
        examples: A DataFrame with the prompt's and the output columns, a list of such dicts, or
            a list of ``(inputs, answer)``; an answer may be an instance of the schema's class.
        form: What a reply looks like; every answer is checked against it.
        columns: Output column of each field, for frames and dicts.
        labels: Of `classify`: an answer is one of them.
        panel: What the requests of a row become; an answer may be as a row has it.
        scored: What a model that is never asked to write a label is scored on, a text a label.
            Its examples answer in these words and not as JSON. (SmolLM2-135M, 40 text messages,
            eight examples, contextual calibration: 0.48 correct with JSON, 0.98 so; with described
            labels 0.25 and 0.95.)

    Raises:
        PromptError: An example has no answer, or one that does not fit; nothing was sent.
    """
    if examples is None:
        return None
    given = joins.examples(examples)
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise PromptError(
            f"examples is a {type(examples).__name__}; expected a DataFrame, or a list of "
            f"(inputs, answer). Nothing was sent."
        )
    pairs = [
        _shot(number, item, form, columns, labels, panel) for number, item in enumerate(given, 1)
    ]
    if labels is None or scored is None:
        return pairs
    return [(inputs, _spoken(reply, labels, scored)) for inputs, reply in pairs]


def _spoken(reply: str, labels: Labels, scored: Sequence[str]) -> str:
    """A reply as JSON, in the words on which its label is scored."""
    place = labels.match(str(next(iter(json.loads(reply).values()))))
    assert place is not None, "the reply has been checked"
    return f"{_LEAD} {scored[place]}"


def _shot(
    number: int,
    item: Any,
    form: Form,
    columns: Sequence[Hashable],
    labels: Labels | None,
    panel: Panel | None,
) -> tuple[Any, str]:
    if isinstance(item, Mapping):
        # By text: in a frame of several levels the column "label" is ("label", "").
        names = (field.name for field in form.fields)
        fields = dict(zip(map(name_text, columns), names, strict=False))
        told = {name: fields.get(name_text(name)) for name in item}
        answer: Any = {field: item[name] for name, field in told.items() if field is not None}
        inputs: Any = {name: item[name] for name, field in told.items() if field is None}
        if form.bare or labels is not None:
            answer = next(iter(answer.values()), None) if len(answer) <= 1 else answer
    elif isinstance(item, list | tuple) and len(item) == 2:
        inputs, answer = item
    else:
        raise PromptError(
            f"example {number} is a {type(item).__name__}; expected (inputs, answer) or a dict."
        )
    empty = not answer if isinstance(answer, dict) else is_missing(answer)
    if empty:
        listed = ", ".join(map(repr, columns))
        raise PromptError(
            f"example {number} has no answer; expected a value for {listed}. Nothing was sent."
        )
    if panel is not None:
        answer = _of_one_request(answer, panel)
    return inputs, _reply(number, answer, form, labels)


def _of_one_request(answer: Any, panel: Panel) -> Any:
    """What a row says, in the words of its first request."""
    for name, words in panel.spelled.items():
        if isinstance(answer, str):
            answer = words.get(answer, answer)
        elif isinstance(answer, Mapping) and isinstance(answer.get(name), str):
            answer = {**answer, name: words.get(answer[name], answer[name])}
    return answer


def _reply(number: int, answer: Any, form: Form, labels: Labels | None) -> str:
    """The text of a reply that gives this answer."""
    if form.schema is None:
        return answer if isinstance(answer, str) else json.dumps(plain(answer), ensure_ascii=False)
    if labels is not None:
        if isinstance(answer, Mapping):
            if labels.codes and "label" in answer:
                answer = {**answer, "label": _written(number, answer["label"], labels)}
        elif labels.codes or not isinstance(answer, list | tuple | set):
            answer = _written(number, answer, labels)
    answer = _in_json(answer)
    names = list(form.schema["properties"])
    if not isinstance(answer, Mapping) or (form.bare and names[0] not in answer):
        answer = {names[-1] if labels is not None else names[0]: answer}
    value = plain({name: answer[name] for name in names if name in answer} | dict(answer))
    checked = form.check(value)
    if checked.failure is not None:
        raise PromptError(
            f"example {number} does not fit: {sentence(checked.failure.message)} Nothing was sent."
        )
    return json.dumps(value, ensure_ascii=False)


def _in_json(answer: Any) -> Any:
    """An instance of a model or dataclass as the JSON that it stands for, under its wire names."""
    model = hasattr(answer, "model_dump") or is_dataclass(answer)
    if not model or isinstance(answer, type):
        return answer
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(answer, by_alias=True)


def _written(number: int, answer: Any, labels: Labels) -> Any:
    """A label, or each of several, as the model should write it."""
    if isinstance(answer, list | tuple | set):
        return [_written(number, one, labels) for one in answer]
    place = labels.match(str(getattr(answer, "value", answer)))
    if place is None:
        known = ", ".join(labels.texts[:10])
        raise PromptError(
            f"example {number}: {answer!r} is none of the labels {known}. Nothing was sent."
        )
    return labels.written[place]

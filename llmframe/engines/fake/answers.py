"""What the fake engines answer: any value becomes a reply as a model would write it."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from llmframe.engines.fake.values import Draw, fitting
from llmframe.requests import Message, Request
from llmframe.results import Failure, Result, Usage

__all__ = ["Answers", "prompt_text"]

_SURE: Final = 0.9
"""Probability of the label that was answered; the others share the rest."""


def prompt_text(request: Request) -> str:
    """Text of the last message; of a message in parts, the texts of its parts."""
    return _text(request.messages[-1])


def _text(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


class Answers:
    """Turns an `answer` as `FakeEngine` takes it into results.

    Args:
        answer: See `FakeEngine`.
        model: Reported as the resolved model.
        choices: Whether label probabilities are given.
        seed: Changes every automatic answer.
    """

    def __init__(self, answer: Any, model: str, choices: bool = False, seed: int = 0) -> None:
        self.answer = answer
        self._model = model
        self._choices = choices
        self._salt = str(seed).encode()
        self._takes_request = callable(answer) and _wants_request(answer)
        self._shared: tuple[Message, int] | None = None

    def result(self, request: Request, request_id: str) -> Result:
        """The good reply to `request`.

        Raises:
            Exception: Whatever the answer function raises, with the prompt as a note: a mistake
                in a test must not look like a failed row.
        """
        answer = self.answer
        scored = self._choices and request.choices is not None
        if scored and request.position < 0:
            # A content-free input of calibration: no row's text, so nothing to ask the test for.
            answer = {choice: 1.0 for choice in request.choices or ()}
        elif callable(answer):
            answer = self._call(answer, request)
        if isinstance(answer, Result):
            return replace(answer, key=request.key, request_id=answer.request_id or request_id)
        if isinstance(answer, Failure):
            return Result(request.key, request_id=request_id, failure=answer)
        scores = None
        if scored:
            scores, text = self._scores(request, answer)
        else:
            text = self._reply(request, answer)
        return Result(
            request.key,
            text=text,
            finish="stop",
            usage=Usage(self._input_tokens(request), len(text) // 4 + 1),
            model=self._model,
            request_id=request_id,
            choice_logprobs=scores,
        )

    def _call(self, answer: Callable[[Any], Any], request: Request) -> Any:
        asked = request if self._takes_request else prompt_text(request)
        try:
            return answer(asked)
        except Exception as error:
            error.add_note(
                f"raised by the answer function of the fake engine, "
                f"for the prompt {prompt_text(request)[:200]!r}"
            )
            raise

    def _draw(self, request: Request) -> Draw:
        return Draw(request.key + self._salt)

    def _reply(self, request: Request, answer: Any) -> str:
        schema = request.schema
        if answer is None:
            if schema is None:
                return prompt_text(request)
            return _encode(fitting(schema, self._draw(request)))
        if schema is not None and not isinstance(answer, Mapping):
            answer = _wrapped(answer, schema)
        if isinstance(answer, str):
            return answer
        return _encode(answer)

    def _scores(self, request: Request, answer: Any) -> tuple[tuple[float, ...] | None, str]:
        choices = request.choices or ()
        if answer is None:
            answer = choices[self._draw(request).below(len(choices))]
        if isinstance(answer, Mapping) and len(answer) == 1 and set(answer) - set(choices):
            (answer,) = answer.values()  # {"label": "bug"}, as an engine without scores replies
        if isinstance(answer, Mapping) and not set(answer) - set(choices):
            weights = [max(float(answer.get(choice, 0.0)), 1e-9) for choice in choices]
        elif answer in choices:
            rest = (1 - _SURE) / max(1, len(choices) - 1)
            weights = [_SURE if choice == answer else rest for choice in choices]
        else:
            return None, answer if isinstance(answer, str) else _encode(answer)
        total = sum(weights)
        best = choices[weights.index(max(weights))]
        return tuple(math.log(weight / total) for weight in weights), best

    def _input_tokens(self, request: Request) -> int:
        # The shared messages are the same objects in every request of a job; counting a long
        # system prompt again for each row would cost more than all the rest.
        first = request.messages[0]
        if self._shared is None or self._shared[0] is not first:
            self._shared = first, len(_text(first))
        length = self._shared[1] + sum(len(_text(message)) for message in request.messages[1:])
        return length // 4 + 1


def _wants_request(answer: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(answer).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == "Request"
    return annotation is Request or parameters[0].name == "request"


def _wrapped(answer: Any, schema: Mapping[str, Any]) -> Any:
    """A bare value for a schema of one field (labels, bare types) as that field's object."""
    properties = schema.get("properties") or {}
    if len(properties) != 1:
        return answer
    ((name, rule),) = properties.items()
    if isinstance(answer, str):
        # Only a text that the field takes: any other goes out as it is, as a model's mistake.
        plain_text = rule.get("type") == "string" and not answer.lstrip().startswith("{")
        if answer not in rule.get("enum", ()) and (not plain_text or "enum" in rule):
            return answer
    return {name: answer}


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


_encode: Final = json.JSONEncoder(ensure_ascii=False, default=_plain).encode

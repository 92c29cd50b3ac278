"""How a fault in an answer is told: the path, what was expected, what stood there.

The same words go to the user (`failures()`) and back to the model (the repair), so they name the
model's own keys and stay short.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from llmframe.results import Failure

__all__ = ["invalid", "joined", "path_of", "schema_words", "shown", "validator_words"]

_MESSAGE_LIMIT: Final = 600
_PATHS: Final = 3


def invalid(message: str) -> Failure:
    """An ``invalid_output`` failure with a message of bounded length."""
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 1] + "…"
    return Failure("invalid_output", message, retryable=True)


def shown(value: Any) -> str:
    """A JSON value for a message: as JSON, at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def path_of(parts: Iterable[int | str], known: frozenset[str] | None = None) -> str:
    """``["items", 2, "price"]`` as ``items[2].price``.

    Args:
        parts: Keys and positions.
        known: All keys of the schema. pydantic names the branch of a union as a part of the path
            ("int", "literal['na']"); with `known` those are left out.
    """
    path = ""
    for position, part in enumerate(parts):
        if isinstance(part, int):
            path += f"[{part}]"
        elif known is None or position == 0 or part in known:
            path += f".{part}" if path else part
    return path


def joined(faults: Iterable[tuple[str, str]]) -> str:
    """Faults as one message: by path, the first three paths."""
    by_path: dict[str, list[str]] = {}
    for path, words in faults:
        told = by_path.setdefault(path, [])
        if words not in told:
            told.append(words)
    parts = [
        f"{path}: {_either(words)}" if path else _either(words)
        for path, words in islice(by_path.items(), _PATHS)
    ]
    more = len(by_path) - _PATHS
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _either(words: Sequence[str]) -> str:
    """The faults of one place, one of which has to go; the value that stood there is said once."""
    parts = [one.rpartition(", got ") for one in words[:4]]
    if len({value for _, _, value in parts}) == 1 and parts[0][1]:
        return " or ".join(rule for rule, _, _ in parts) + ", got " + parts[0][2]
    return " or ".join(words[:4])


def validator_words(error: Mapping[str, Any]) -> str:
    """One error of pydantic, in words that fit behind a path."""
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "extra_forbidden":
        return "is no key of the schema"
    words = str(error["msg"])
    for start in ("Value error, ", "Assertion failed, "):
        if words.startswith(start):
            return words[len(start) :] or _unsaid(error)
    words = words.removeprefix("Input ")
    words = words[:1].lower() + words[1:]
    value = error.get("input")
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return words
    return f"{words}, got {shown(value)}"


def _unsaid(error: Mapping[str, Any]) -> str:
    """What a bare ``assert`` says: which check did not hold, and for what."""
    raised = error.get("ctx", {}).get("error")
    frames = getattr(raised, "__traceback__", None)
    name = f"the validator {frames.tb_frame.f_code.co_qualname}" if frames else "a validator"
    return f"{name} turned it down without a message, got {shown(error.get('input'))}"


_RULES: Final = {
    "minimum": "should be at least {rule}, got {value}",
    "maximum": "should be at most {rule}, got {value}",
    "exclusiveMinimum": "should be more than {rule}, got {value}",
    "exclusiveMaximum": "should be less than {rule}, got {value}",
    "multipleOf": "should be a multiple of {rule}, got {value}",
    "minLength": "should have at least {rule} characters, got {value}",
    "maxLength": "should have at most {rule} characters, got {value}",
    "minItems": "should have at least {rule} items, got {size}",
    "maxItems": "should have at most {rule} items, got {size}",
    "pattern": "should match the pattern {rule}, got {value}",
    "type": "should be {rule}, got {value}",
    "uniqueItems": "should hold no item twice",
    "additionalProperties": "{message}",
    "required": "{message}",
}


def schema_words(error: Any) -> str:
    """One error of jsonschema, in words that fit behind a path."""
    rule, value = error.validator_value, error.instance
    if error.validator == "enum":
        return (
            f"should be one of {', '.join(shown(each) for each in rule[:20])}, got {shown(value)}"
        )
    if error.validator in ("anyOf", "oneOf") and error.context:
        return _either(list(dict.fromkeys(schema_words(part) for part in error.context)))
    size = len(value) if isinstance(value, Mapping | Sequence) else 0
    words = _RULES.get(error.validator, "{value} breaks " + str(error.validator) + " {rule}")
    message = str(error.message)[:200]
    return words.format(rule=shown(rule).strip('"'), value=shown(value), size=size, message=message)

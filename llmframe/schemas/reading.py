"""A reply becomes checked values, or a failure that says what is wrong with it.

One fast path, for a reply that is one strict JSON object; one tolerant reader for all others,
which takes the single complete JSON value that fits and never a guess.

Examples:
    >>> from llmframe.results import Result
    >>> from llmframe.schemas.forms import form
    >>> from llmframe.schemas.reading import read
    >>> asked = form({"label": str, "stars": int})
    >>> read(asked, Result(b"", '{"label": "bug", "stars": 4}')).values
    ('bug', 4)
    >>> reading = read(asked, Result(b"", 'Sure! {"label": "bug", "stars": 4.0}'))
    >>> reading.values, reading.repaired, reading.coerced
    (('bug', 4), True, ('stars',))
    >>> read(asked, Result(b"", '{"label": "bu', "length")).failure.kind
    'truncated'
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from llmframe.results import Failure, Result
from llmframe.schemas.forms import Form
from llmframe.schemas.nodes import without_null
from llmframe.schemas.scanning import (
    Found,
    RepeatedKeyError,
    decode,
    longest_blank,
    refusal,
    scan,
    split_thinking,
    unfenced,
)
from llmframe.schemas.values import Checked
from llmframe.schemas.wording import invalid, shown

__all__ = ["Reading", "read", "repair_message", "shorten"]

_BLANK_RUN: Final = 64  # indented JSON stays far below
_REPAIR_LIMIT: Final = 2000
_CUT: Final = frozenset({"length", "window"})


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reply says.

    Attributes:
        values: One plain value a field, in the form's order; None on a failure.
        failure: Why there are none.
        coerced: Paths whose value was written in another type, such as ``"3"`` for 3.
        repaired: The answer stood in a code fence, prose or the like.
    """

    values: tuple[Any, ...] | None
    failure: Failure | None = None
    coerced: tuple[str, ...] = ()
    repaired: bool = False


def read(form: Form, result: Result) -> Reading:
    """Read one reply; total: whatever the text, it returns and never raises.

    Args:
        form: What was asked for.
        result: The engine's reply.

    Returns:
        Checked values, or a failure of a kind in `llmframe.results.KINDS`.
    """
    if result.failure is not None:
        return Reading(None, result.failure)
    try:
        if result.finish == "content_filter":
            return _failed("content_filter", "the provider's filter stopped the reply")
        if result.finish == "refusal":
            return _failed("refused", f"the model refused: {_start(result.text)}")
        if form.schema is None:
            return _read_text(result)
        text = result.text
        if text:
            if (values := form.at_once(text)) is not None:
                return Reading(values)
            try:
                value = decode(text, form.exact)
            except (ValueError, RecursionError):
                return _search(form, text, result)
            if type(value) is dict:
                checked = form.check(value)
                if checked.failure is None:
                    return Reading(checked.values, None, checked.coerced)
        return _search(form, text or "", result)
    except Exception as error:
        # A fault of ours must cost one row, never the job.
        return Reading(None, invalid(f"the reply cannot be read: {type(error).__name__}: {error}"))


def _failed(kind: str, message: str, *, retryable: bool = False) -> Reading:
    return Reading(None, Failure(kind, message, retryable))


def _read_text(result: Result) -> Reading:
    text = result.text
    if result.finish in _CUT:
        return _truncated(result)
    if not text:
        # A model may truly have nothing to say; a reply that was all thinking is another matter.
        thought = result.reasoning or (result.usage is not None and result.usage.reasoning_tokens)
        if text is not None and result.finish == "stop" and not thought:
            return Reading(("",))
        return _empty(None, result)
    rest, left_open = split_thinking(text, everywhere=False)
    if rest == text:
        return Reading((text,))
    if left_open or not rest.strip():
        return _failed("empty_output", "the reply holds thinking and no answer", retryable=True)
    return Reading((rest.strip(),))


def _search(form: Form, text: str, result: Result) -> Reading:
    """The tolerant reader."""
    text = text.lstrip("\ufeff").strip("\ufeff \t\r\n\f\v\0")
    if not text:
        return _truncated(result) if result.finish in _CUT else _empty(form, result)
    answer, _ = split_thinking(text)
    pieces = list(scan(answer, form.exact))
    if not answer.strip():
        if result.finish in _CUT:
            return _truncated(result)
        return _failed("empty_output", "the reply holds thinking and no answer", retryable=True)
    fits: dict[str, tuple[Checked, int]] = {}
    faults: list[Failure] = []
    for value, end in _candidates(form, answer, pieces):
        checked = form.check(value)
        if checked.failure is None:
            fits.setdefault(repr(checked.values), (checked, end))
        elif checked.failure.kind != "invalid_output":
            return Reading(None, checked.failure)
        else:
            faults.append(checked.failure)
    if len(fits) > 1:
        return Reading(None, invalid(f"ambiguous: the reply holds {len(fits)} different answers"))
    cut = result.finish in _CUT
    if not cut:
        for piece in pieces:
            if isinstance(piece.fault, RepeatedKeyError):
                return Reading(None, invalid(str(piece.fault)))
    if fits:
        checked, end = next(iter(fits.values()))
        if not (cut and answer[end:].strip("` \t\r\n")):
            return Reading(checked.values, None, checked.coerced, repaired=True)
    if cut:
        return _truncated(result)
    return Reading(None, _why_not(form, answer, pieces, faults))


def _candidates(
    form: Form, answer: str, pieces: list[Found]
) -> Iterator[tuple[dict[str, Any], int]]:
    """What may be the answer, as an object of the schema, and where in the text it ends."""
    objects = [piece for piece in pieces if piece.fault is None and type(piece.value) is dict]
    name = next(iter((form.schema or {}).get("properties", ())))
    seen = False
    for piece in objects:
        seen = seen or name in piece.value
        yield piece.value, piece.end
    if not form.bare or seen:
        return
    # A bare type: small models leave the object out and write the value alone.
    for piece in pieces:
        if piece.fault is None:
            yield {name: piece.value}, piece.end
    if pieces:
        return
    whole = unfenced(answer)
    try:
        value = decode(whole, form.exact)
    except (ValueError, RecursionError):
        node, _ = without_null(form.fields[0].schema, (form.schema or {}).get("$defs", {}))
        if not ({"enum", "pattern"} & node.keys()):
            return  # any text would fit
        value = whole.strip("\"'`*")
    yield {name: value}, len(answer)


def _why_not(form: Form, answer: str, pieces: list[Found], faults: list[Failure]) -> Failure:
    broken = next((piece for piece in pieces if piece.fault is not None), None)
    objects = any(type(piece.value) is dict for piece in pieces)
    if not objects and broken is None and refusal(answer):
        return Failure("refused", f"the model refused: {_start(answer)}")
    known = [fault for fault in faults if not fault.message.startswith("none of the keys")]
    if known or (faults and broken is None):
        return (known or faults)[0]
    if broken is not None and not broken.closed:
        return invalid("the JSON of the reply ends in the middle")
    if broken is not None:
        return invalid(f"the reply is no JSON: {str(broken.fault)[:200]}")
    if pieces:
        return invalid(f"expected one JSON object, got an array: {_start(answer)}")
    return invalid(f"no JSON object in the reply: {_start(answer)}")


def _truncated(result: Result) -> Reading:
    text = result.text or ""
    spent = result.usage.output_tokens if result.usage is not None else 0
    full = result.finish == "window"
    message = "prompt and reply fill the window" if full else "the reply was cut at the token limit"
    message += f" after {spent:,} tokens" if spent else ""
    blank = longest_blank(text)
    answer, left_open = split_thinking(text)
    if blank >= _BLANK_RUN:
        message += (
            f", {blank:,} characters of it white space in a row: the server's grammar lets the "
            f"model write blanks without end"
        )
    elif left_open or (not answer.strip() and (result.reasoning or answer != text)):
        message += ", all of it spent on thinking"
    if full:
        # The same limit again is the same reply, cut at the same place.
        return _failed(
            "truncated",
            f"{message}. Give the model a larger window (max_model_len of lf.VLLM, n_ctx of "
            f"lf.Local), shorten the prompt, or bound the fields (max_length=…, le=…).",
        )
    return _failed("truncated", message + ". Raise max_tokens.", retryable=True)


def _empty(form: Form | None, result: Result) -> Reading:
    if result.reasoning and form is not None and _reads(form, result.reasoning):
        return _failed(
            "empty_output",
            "the reply is empty and the answer stands in its reasoning: the server's reasoning "
            "parser took it. Start the server without --reasoning-parser, or switch thinking off "
            "with extra={'chat_template_kwargs': {'enable_thinking': False}}.",
        )
    if result.reasoning:
        size = len(result.reasoning)
        message = f"the reply is empty after {size:,} characters of reasoning"
        return _failed("empty_output", message, retryable=True)
    return _failed("empty_output", "the reply is empty", retryable=True)


def _reads(form: Form, text: str) -> bool:
    return any(
        form.check(piece.value).failure is None
        for piece in scan(text, form.exact)
        if piece.fault is None
    )


def _start(text: str | None) -> str:
    return shown(" ".join((text or "").split()[:40]))


def shorten(text: str, limit: int = _BLANK_RUN) -> str:
    """The text with long runs of white space told in words, for showing and storing.

    Args:
        text: A reply.
        limit: The longest run that stays.

    Examples:
        >>> shorten('{"a":' + " " * 4000)
        '{"a":[… 4,000 white-space characters …]'
    """
    return re.sub(
        rf"\s{{{limit + 1},}}", lambda run: f"[… {len(run[0]):,} white-space characters …]", text
    )


def repair_message(form: Form, failure: Failure, text: str | None) -> str:
    """What to tell the model so that it can put its answer right; at most 2,000 characters.

    Args:
        form: What was asked for.
        failure: What was wrong.
        text: The reply; a short piece of it is quoted.

    Returns:
        A message for the user's turn that follows.

    Examples:
        >>> from typing import Literal
        >>> from llmframe.schemas.forms import form
        >>> asked = form({"label": Literal["Spam", "Ham"]})
        >>> print(repair_message(asked, asked.check({"label": "Junk"}).failure, None))
        Your last answer was not valid. label: should be 'Spam' or 'Ham', got "Junk".
        "label" must be exactly one of: "Spam", "Ham".
        Answer again with one JSON object and nothing else, with exactly these keys: "label".
    """
    if form.schema is None:
        return "Your last answer was empty. Answer the question above."
    message = failure.message.rstrip(".")
    lines = [f"Your last answer was not valid. {message[:600]}."]
    if text and text.strip():
        lines.append(f"It began: {shorten(text.strip(), 8)[:200]}")
    room = _REPAIR_LIMIT - 500
    defs = form.schema.get("$defs", {})
    for wire, node in form.schema["properties"].items():
        inner, nullable = without_null(node, defs)
        if "enum" not in inner or (len(form.fields) > 1 and wire not in message):
            continue
        labels = ", ".join(json.dumps(value, ensure_ascii=False) for value in inner["enum"])
        line = f'"{wire}" must be exactly one of: {labels}{" or null" if nullable else ""}.'
        if len(line) < room:
            lines.append(line)
            room -= len(line)
    keys = ", ".join(json.dumps(key, ensure_ascii=False) for key in form.schema["properties"])
    keys = keys if len(keys) <= 300 else keys[:297] + "…"
    lines.append(
        f"Answer again with one JSON object and nothing else, with exactly these keys: {keys}."
    )
    return "\n".join(lines)[:_REPAIR_LIMIT]

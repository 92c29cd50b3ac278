"""The keywords that every verb takes: their names, defaults, checks and descriptions."""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypedDict

import numpy as np

from llmframe.errors import PromptError

__all__ = ["Asked", "Common", "asked", "described", "spelled_out", "undescribed"]


class Common(TypedDict, total=False):
    """Keywords that every verb takes.

    Attributes:
        model: An engine such as ``lf.OpenAI(…)``, or its name: ``"local"``,
            ``"openai/gpt-4.1-mini"``, ``"anthropic/claude-…"``, ``"vllm/<hub id or folder>"``.
            None: that of `set_options`, else the embedded model.
        batch: True: by the provider's batch API, at its batch price, within a day. False: live,
            also where the engine is one for batches. None: as the engine says.
        system: System text, put before the verb's own.
        examples: Rows that are answered already, shown to the model: a DataFrame with the columns
            that the prompt names and the output columns, or a list of ``(inputs, answer)``.
        into: Name of the output column; for a schema a prefix of its fields' columns, or a dict
            field → column.
        if_exists: What to do where an output column is there already: refuse, overwrite it, or
            ask only the rows where it is missing (``"fill"``); the others keep their cells, which
            the declared dtype has to hold.
        temperature: Sampling temperature; None: 0 where the model takes one.
        max_tokens: Limit of the reply, in tokens; an answer cut by it is asked once more with a
            larger one.
        seed: Seed of the sampling, where the engine has one.
        extra: More fields for the request's body, as plain JSON.
        errors: Rows that failed are NA in any case: with a warning, with `RowsFailed` after all
            rows are through, or in silence (``"coerce"``), which also goes on where nearly every
            answer is of no use: otherwise that stops the run after 100 answers.
        missing: Rows with an empty cell: not asked (``"skip"``), asked with the cell blank, or
            refused.
        retry: Which failed rows the same call asks again: those whose reason may pass, or all,
            refusals too.
        repairs: How often a reply that breaks the schema goes back to the model with the error.
        budget: Limit of this call's cost, in US$.
        cache: False: ask again what is answered already, and pay again.
        dedupe: True: identical rows share one request and one answer.
        flatten: Nested models as one column a field, with dotted names.
        dtype_backend: ``"pyarrow"`` gives Arrow dtypes.
        details: Add columns with status, error, tokens, cost and model of each row. Tokens and
            US$ stand at the first row of a shared request, so that their sum is what was spent.
        progress: False: no progress display.
        concurrency: Requests in flight at once on a live engine.
    """

    model: Any
    batch: bool | None
    system: str | None
    examples: Any
    into: Any
    if_exists: Literal["raise", "replace", "fill"]
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    extra: Mapping[str, Any] | None
    errors: Literal["warn", "raise", "coerce"]
    missing: Literal["skip", "blank", "raise"]
    retry: Literal["transient", "all"]
    repairs: int
    budget: float | None
    cache: bool
    dedupe: bool
    flatten: bool
    dtype_backend: Literal["numpy_nullable", "pyarrow"] | None
    details: bool
    progress: bool | None
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The common keywords with their defaults, checked."""

    model: Any = None
    batch: bool | None = None
    system: str | None = None
    examples: Any = None
    into: Any = None
    if_exists: str = "raise"
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    extra: Mapping[str, Any] | None = None
    errors: str = "warn"
    missing: str = "skip"
    retry: str = "transient"
    repairs: int = 1
    budget: float | None = None
    cache: bool = True
    dedupe: bool = True
    flatten: bool = False
    dtype_backend: str | None = None
    details: bool = False
    progress: bool | None = None
    concurrency: int | None = None


_ONE_OF: Final[dict[str, tuple[Any, ...]]] = {
    "if_exists": ("raise", "replace", "fill"),
    "errors": ("warn", "raise", "coerce"),
    "missing": ("skip", "blank", "raise"),
    "retry": ("transient", "all"),
    "dtype_backend": (None, "numpy_nullable", "pyarrow"),
}
_NAMES: Final = [field.name for field in fields(Asked)]


def asked(verb: str, common: Mapping[str, Any], own: Sequence[str] = ()) -> Asked:
    """The common keywords, checked.

    Raises:
        TypeError: No such keyword; names the near miss.
        ValueError: A value that the keyword does not take.
    """
    for name in common:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, [*_NAMES, *own], 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}{hint}")
    given = Asked(**common)
    for name, choices in _ONE_OF.items():
        value = getattr(given, name)
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise ValueError(f"{name}={value!r}: expected one of {listed}.")
    for name in ("cache", "dedupe", "flatten", "details"):
        if not isinstance(getattr(given, name), bool):
            raise ValueError(f"{name}={getattr(given, name)!r}: expected True or False.")
    if given.batch is not None and not isinstance(given.batch, bool):
        raise ValueError(f"batch={given.batch!r}: expected True or False.")
    _number("max_tokens", given.max_tokens, 1, whole=True)
    _number("concurrency", given.concurrency, 1, whole=True)
    _number("repairs", given.repairs, 0, whole=True)
    _number("budget", given.budget, 0)
    _number("temperature", given.temperature, 0)
    if given.seed is not None and not _whole(given.seed):
        raise ValueError(f"seed={given.seed!r}: expected an integer.")
    if given.system is not None and not isinstance(given.system, str):
        raise PromptError(f"system={given.system!r}: expected text.")
    if given.extra is not None:
        try:
            json.dumps(dict(given.extra), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra={given.extra!r} is no plain JSON: {error}.") from None
    return given


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(name: str, value: Any, least: float, *, whole: bool = False) -> None:
    if value is None:
        return
    right = (
        _whole(value)
        if whole
        else (
            isinstance(value, int | float | np.number)
            and not isinstance(value, bool)
            and math.isfinite(value)
        )
    )
    if not right or value < least:
        kind = "an integer" if whole else "a number"
        raise ValueError(f"{name}={value!r}: expected {kind} of at least {least:g}.")


def described(doc: str | None) -> str | None:
    """A docstring with the keywords of every verb in the place of its line on ``**common``.

    `help` shows a signature with these keywords spelled out, so it has to say what they mean.
    """
    if doc is None or Common.__doc__ is None:  # python -OO
        return doc
    # Python 3.13 takes the indentation away itself.
    listed = inspect.cleandoc(Common.__doc__).partition("Attributes:\n")[2]
    line = r"^    \*\*\w+: Keywords of every verb\.$"
    return re.sub(line, lambda _: listed, inspect.cleandoc(doc), flags=re.MULTILINE)


def undescribed(doc: str, names: set[str]) -> str:
    """A docstring without the description of these arguments."""
    lines = rf"^    (?:{'|'.join(names)}): .*\n(?:        .*\n)*"
    return re.sub(lines, "", doc, flags=re.MULTILINE) if names else doc


def spelled_out(function: Callable[..., Any], drop: int, self: bool) -> inspect.Signature:
    """The signature with the common keywords spelled out, for `help` and completion."""
    given = list(inspect.signature(function).parameters.values())[drop:]
    own = [p for p in given if p.kind is not inspect.Parameter.VAR_KEYWORD]
    common = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(Asked)
    ]
    first = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] if self else []
    return inspect.Signature([*first, *own, *common])

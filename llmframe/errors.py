"""The exceptions and warnings of llmframe.

```
LLMFrameError
├─ PromptError(ValueError)   the prompt cannot be rendered as asked: nothing was sent
├─ SchemaError(ValueError)   the schema or an output column cannot be used: nothing was sent
├─ ModelError(ValueError)    unknown provider, missing key or extra: says what to install or set
├─ BudgetError               the budget would be passed; what is paid is kept
├─ EngineError               the engine or its provider ended the job; finished rows are kept
├─ StoreError                the journal cannot be opened, is newer, or is not yours
└─ RowsFailed                ``errors="raise"`` and at least one row has no answer
```

A failed *row* is never an exception: it is a `llmframe.results.Failure` in the result.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast

__all__ = [
    "BudgetError",
    "EngineError",
    "LLMFrameError",
    "Line",
    "ModelError",
    "PromptError",
    "RowsFailed",
    "RowsFailedWarning",
    "RowsSkippedWarning",
    "SchemaError",
    "StoreError",
    "on_behalf",
    "sentence",
    "user_line",
    "warn_user",
]

P = ParamSpec("P")
R = TypeVar("R")


class LLMFrameError(Exception):
    """Root of everything that llmframe raises on purpose."""

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call `cls(*args)` and lose the details; errors cross
        # process boundaries (joblib, multiprocessing), so they must pickle whole.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(
    cls: type[LLMFrameError], args: tuple[Any, ...], details: dict[str, Any]
) -> LLMFrameError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(details)
    return error


class PromptError(LLMFrameError, ValueError):
    """The prompt names an unknown column, none at all, or cannot be rendered; nothing was sent."""


class SchemaError(LLMFrameError, ValueError):
    """The schema, the labels or an output column cannot be used; nothing was sent."""


class ModelError(LLMFrameError, ValueError):
    """No such engine, or a key, an extra or a model file is missing."""


class BudgetError(LLMFrameError):
    """The budget would be passed.

    Attributes:
        plan: The plan that was too dear, where nothing was sent.
        result: The frame with what is paid so far, where something was.
    """

    plan: Any = None
    result: Any = None


class EngineError(LLMFrameError):
    """The engine or its provider cannot go on; everything finished is kept.

    Attributes:
        provider: Name of the engine, such as ``"openai"``.
        status: HTTP status, where there was one.
        request_id: The provider's id of the request that failed.
        retryable: Whether the same call may pass later without a change.
        retry_after: Seconds the provider asked to wait.
        result: The frame with the finished rows; the rest is NA with status ``pending``.
    """

    provider: str | None = None
    status: int | None = None
    request_id: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    result: Any = None


class StoreError(LLMFrameError):
    """The journal cannot be opened, is newer, is not yours, or the job is another account's."""


class RowsFailed(LLMFrameError):  # noqa: N818 - the name is part of the public contract
    """At least one row has no answer and ``errors="raise"`` was asked for.

    Attributes:
        result: The frame, failed rows NA.
        failures: One line a failed row, as `failures()` gives it.
    """

    result: Any = None
    failures: Any = None


class RowsFailedWarning(UserWarning):
    """Some rows are NA because they failed, or because their job did."""


class RowsSkippedWarning(UserWarning):
    """Some rows were skipped although another cell that the prompt uses has a value."""


def sentence(text: object) -> str:
    """Somebody else's words with a full stop at their end, so that more can follow.

    Examples:
        >>> sentence("no such host"), sentence("Too long."), sentence(ValueError("really?"))
        ('no such host.', 'Too long.', 'really?')
    """
    words = str(text).rstrip()
    return words if words.endswith((".", "!", "?", "…")) else f"{words}."


_OURS: Final = {"llmframe", "pandas"}
"""Packages through which a user's line leads here: `df.pipe(lf.map, …)` comes by pandas."""

_thread: Final = threading.local()
"""`line` of a thread that works for somebody: where it was started for."""


class Line(NamedTuple):
    """A line of the user's, as a warning names it."""

    file: str
    number: int
    module: str
    seen: dict[Any, Any]
    """Warnings that were given there, so that the same one comes once."""


def user_line() -> Line:
    """The line outside this package that led here."""
    if (known := getattr(_thread, "line", None)) is not None:
        return cast(Line, known)
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    seen = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__") or "<unknown>"
    return Line(frame.f_code.co_filename, frame.f_lineno, name, seen)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS


def on_behalf(line: Line, work: Callable[P, R], *args: P.args, **keywords: P.kwargs) -> R:
    """Do `work` in a thread whose caller is nobody's line: what it warns of is told at `line`."""
    _thread.line = line
    try:
        return work(*args, **keywords)
    finally:
        del _thread.line


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package that led here."""
    line = user_line()
    warnings.warn_explicit(message, category, line.file, line.number, line.module, line.seen)

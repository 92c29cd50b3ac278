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
import warnings
from pathlib import Path
from typing import Any, Final

__all__ = [
    "BudgetError",
    "EngineError",
    "LLMFrameError",
    "ModelError",
    "PromptError",
    "RowsFailed",
    "RowsFailedWarning",
    "RowsSkippedWarning",
    "SchemaError",
    "StoreError",
    "sentence",
    "warn_user",
]


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
    """Some rows are NA because they failed."""


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


_PACKAGE: Final = str(Path(__file__).parent)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level - 1)

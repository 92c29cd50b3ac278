"""The libraries of the extra `judge`, loaded where they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from llmframe.errors import ModelError

__all__ = ["library"]


def library(module: str) -> Any:
    """A module of scipy, choix or matplotlib.

    Raises:
        ModelError: It is not installed.

    Examples:
        >>> library("a_library_that_nobody_has")
        Traceback (most recent call last):
        ...
        llmframe.errors.ModelError: this needs a_library_that_nobody_has. Run: pip install ...
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"this needs {error.name}. Run: pip install 'llmframe[judge]' "
            "(in a checkout: pip install -e '.[judge]')."
        ) from None

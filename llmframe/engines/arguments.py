"""What an engine's arguments may be."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from llmframe.errors import ModelError

__all__ = ["check_whole", "is_seconds"]


def is_seconds(value: Any) -> bool:
    """Whether a value is a time above 0, and ends."""
    # True is a number to Python, and a slip to everybody else.
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def check_whole(name: str, value: Any, most: float) -> None:
    """Look whether an argument is a count from 1 to `most`, or None.

    Raises:
        ModelError: It is not.
    """
    if value is None:
        return
    if isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= most:
        return
    expected = "a whole number above 0" if most == math.inf else f"a whole number, 1 to {most:,}"
    raise ModelError(f"{name}={value!r}: expected {expected}.")

"""One cell as text: what a value looks like in a prompt, and when it counts as missing.

The same value must always give the same text, on every pandas and in every process, because
the text is part of the request's key. Nothing here knows pandas; its own missing values are
told by their type.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import numpy as np

__all__ = ["Message", "RowError", "format_value", "format_with", "is_missing", "plain", "surrogate"]

Message = dict[str, Any]
"""``{"role": "system" | "user" | "assistant", "content": str | list of parts}``."""

_EXACT: Final = float(2**53)
"""Up to here every integer has a float of its own."""
# As constants: a union in an isinstance call is built anew for every cell.
_UNEQUAL: Final = (float, complex, np.inexact, np.datetime64, np.timedelta64)
_CLOCKS: Final = (date, time)
_FLOATS: Final = (float, np.floating)
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-fA-F]+")
_NO_FORMAT: Final[Any] = object.__format__
_STRFTIME: Final = re.compile(r"%[A-Za-z]")


class RowError(Exception):
    """This row alone cannot be rendered; the others are sent.

    Attributes:
        kind: A key of `llmframe.results.KINDS`.
        message: What is wrong, with the column's name where one cell is the cause.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


def is_missing(value: object) -> bool:
    """Whether a cell holds nothing: None, NaN of any width, NA, NaT, Decimal('NaN').

    An empty string is a value.

    Examples:
        >>> [is_missing(v) for v in (None, float("nan"), "", "nan", 0)]
        [True, True, False, False, False]
    """
    cls = type(value)
    if cls is str or cls is int or cls is bool:
        return False
    if value is None:
        return True
    if isinstance(value, Decimal):
        return value.is_nan()  # comparing a signalling NaN would raise
    if isinstance(value, _UNEQUAL):
        return bool(value != value)
    return cls.__name__ in {"NAType", "NaTType"} and cls.__module__.startswith("pandas.")


def format_value(value: Any) -> str:
    """A cell as the text that goes into a prompt.

    Integers keep every digit; floats have the shortest text of their own width, and whole ones
    below 2**53 are written as integers, so that 1, 1.0 and ``"1"`` are one prompt; dates and
    times are ISO 8601; dicts, lists, sets and arrays are JSON in which NaN is null; a missing
    value is empty text.

    Raises:
        TypeError: The value has no text form: bytes, or an object that only has an address.

    Examples:
        >>> format_value(1.0), format_value(0.1), format_value({"a": [1, float("nan")]})
        ('1', '0.1', '{"a": [1, null]}')
    """
    fast = _FAST.get(type(value))
    return fast(value) if fast is not None else _other(value)


def format_with(value: Any, spec: str) -> str:
    """A cell under a format spec such as ``.2f`` or ``%d %B``.

    Raises:
        ValueError: The spec does not fit the value.
        TypeError: As `format_value`.

    Examples:
        >>> format_with(3.14159, ".2f"), format_with(3.0, "03d"), format_with(None, ".2f")
        ('3.14', '003', '')
    """
    while isinstance(value, Enum):
        value = value.value
    if is_missing(value):
        return ""
    if isinstance(value, _CLOCKS) and not _STRFTIME.search(spec):
        # strftime would give a spec without a directive back as the text.
        return format(format_value(value), spec)
    if spec[-1:] in "bcdoxX" and isinstance(value, _FLOATS):
        # An integer column with a missing cell is a float column to pandas.
        value = int(value) if value.is_integer() else value
    if not _formats(value):
        return format(format_value(value), spec)
    return format(value, spec)


def plain(value: Any) -> Any:
    """A value as strict JSON has it: no NaN or Infinity, no numpy, keys of text.

    Raises:
        TypeError: A part has no text form.
        RecursionError: The value contains itself.

    Examples:
        >>> plain({1: (float("inf"), 2.0, {"b", "a"})})
        {'1': [None, 2, ['a', 'b']]}
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer) and not isinstance(value, np.timedelta64):
        return int(value)
    if isinstance(value, float | np.floating):
        return _number(value)
    if isinstance(value, Mapping):
        return {format_value(k): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        # The order of a set changes from process to process; a key must not.
        return sorted((plain(v) for v in value), key=json.dumps)
    if isinstance(value, list | tuple | deque):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value] if value.ndim else plain(value[()])
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if not isinstance(value, type) and hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if not isinstance(value, memoryview) and callable(getattr(value, "tolist", None)):
        return plain(value.tolist())  # a Series, an Index, an Arrow array in a cell
    return _scalar(value)


def surrogate(text: str) -> str | None:
    r"""The first lone surrogate of a text, escaped, or None where it can be sent.

    Examples:
        >>> surrogate("fine \U0001f600"), surrogate("bad \ud83d")
        (None, '\\ud83d')
    """
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None


def _formats(value: object) -> bool:
    """Whether the value's type knows format specs of its own."""
    return getattr(type(value), "__format__", None) is not _NO_FORMAT


def _float(value: float) -> str:
    if value != value:
        return ""
    if -_EXACT < value < _EXACT and value.is_integer():
        return str(int(value))
    return repr(value)


def _nothing(_: None) -> str:
    return ""


_FAST: Final[dict[type, Callable[[Any], str]]] = {
    str: str,
    int: str,
    bool: str,
    float: _float,
    type(None): _nothing,
}


def _number(value: Any) -> int | float | None:
    if not np.isfinite(value):
        return None
    if -_EXACT < value < _EXACT and value.is_integer():
        return int(value)
    return float(value) if isinstance(value, float) else float(str(value))


def _other(value: Any) -> str:
    if isinstance(value, Enum):
        return format_value(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if is_missing(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, np.floating):
        if -_EXACT < float(value) < _EXACT and value.is_integer():
            return str(int(value))
        return str(value)
    if isinstance(value, timedelta | np.timedelta64 | np.datetime64):
        return _scalar(value)
    if isinstance(value, int | np.integer):
        return str(int(value))
    data = plain(value)
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)


def _scalar(value: Any) -> str:
    """Text of what JSON has no form for."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, np.datetime64):
        coarse = value.astype("M8[us]")
        day_or_time = value if np.datetime_data(value.dtype)[0] == "D" else coarse
        # astype(object) gives a date or datetime, and an int outside of their years.
        known = day_or_time.astype(object) if coarse == value else None
        return known.isoformat() if isinstance(known, date) else str(value)
    if isinstance(value, timedelta | np.timedelta64):
        return _duration(value)
    if isinstance(value, bytes | bytearray | memoryview | np.bytes_ | np.void):
        raise TypeError(f"{type(value).__name__} are not text. Decode the column first")
    text = str(value)
    if isinstance(value, type) or callable(value) or _ADDRESS.search(text):
        # An address differs from run to run: every rerun would be paid again.
        raise TypeError(f"a {type(value).__name__} has no text form. Make the column text first")
    return text


def _duration(value: timedelta | np.timedelta64) -> str:
    if isinstance(value, timedelta):
        nanoseconds = (value // timedelta(microseconds=1)) * 1000
        nanoseconds += getattr(value, "nanoseconds", 0)  # pandas' own
    else:
        nanoseconds = int(value.astype("m8[ns]").astype(np.int64))
    sign = "-" if nanoseconds < 0 else ""
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{sign}P{days}DT{hours}H{minutes}M{seconds}{fraction}S"

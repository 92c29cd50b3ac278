"""What response headers ask of a client: how long to wait, and until when. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["parse_duration", "retry_after"]

_UNIT: Final[dict[str, float]] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: str, now: float | None = None) -> float | None:
    """Seconds of ``"1s"``, ``"6m0s"``, ``"20ms"``, ``"3.5"`` or a Unix time in s or ms.

    Args:
        text: A rate-limit header's value.
        now: Unix time, for values that are a point in time; the clock's where None.

    Returns:
        Seconds, at least 0; None where the text is none of these.

    Examples:
        >>> parse_duration("6m0s"), parse_duration("20ms"), parse_duration("soon")
        (360.0, 0.02, None)
    """
    text = text.strip().lower()
    try:
        value = float(text)
    except ValueError:
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            return None
        return sum(float(number) * _UNIT[unit] for number, unit in parts)
    if not math.isfinite(value):
        return None
    if value > 1e9:  # no server asks for thirty years: OpenRouter gives Unix milliseconds
        value = (value / 1000 if value > 1e11 else value) - (time.time() if now is None else now)
    return max(0.0, value)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that a response asks to wait, or None.

    ``retry-after-ms`` wins (OpenAI sends both), then ``Retry-After`` in seconds or as a date.

    Args:
        headers: Response headers; looked up in lower case.
        now: Unix time; the clock's where None.
    """
    text = headers.get("retry-after-ms")
    if text is not None:
        try:
            value = float(text) / 1000
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value >= 0:
            return value
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        try:
            then = parsedate_to_datetime(text).timestamp()
        except (ValueError, TypeError, OverflowError):
            return parse_duration(text, now)
        return max(0.0, then - (time.time() if now is None else now))
    return max(0.0, value) if math.isfinite(value) else None

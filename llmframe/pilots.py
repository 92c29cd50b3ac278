"""A pilot: a few rows are bought, kept, and give the estimate an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final

__all__ = ["checked", "interval", "spread"]

_MOST: Final = 1000
"""Rows: the interval is narrow by then, and the rest is cheaper as a batch."""


def checked(pilot: object) -> int:
    """The rows of a pilot as a number.

    Raises:
        ValueError: It is none, or larger than a pilot may be.
    """
    if isinstance(pilot, bool) or not isinstance(pilot, int) or pilot < 0:
        raise ValueError(f"pilot={pilot!r}: expected a number of rows.")
    if pilot > _MOST:
        raise ValueError(
            f"pilot={pilot}: a pilot is at most {_MOST:,} rows, bought live; 20 to 100 tell "
            f"what the rest costs. Nothing was sent."
        )
    return pilot


def spread(places: Sequence[int], count: int) -> list[int]:
    """About `count` of `places`, evenly spread over them: a sorted frame is no sample."""
    if len(places) <= count:
        return list(places)
    return [places[i * len(places) // count] for i in range(count)]


def interval(costs: Sequence[float], left: int) -> tuple[float, float] | None:
    """Range that the cost of `left` more rows falls into, 19 times of 20.

    Args:
        costs: US$ of each row of the pilot.
        left: Rows that are still to be paid.

    Returns:
        Low and high in US$; None where two costs are not known.

    Examples:
        >>> interval([0.01, 0.01, 0.01], 1000)
        (10.0, 10.0)
        >>> low, high = interval([0.01, 0.02, 0.03, 0.02], 1000)
        >>> round(low, 2), round(high, 2)
        (6.98, 33.02)
    """
    count = len(costs)
    if count < 2:
        return None
    # The mean of the pilot is uncertain, and the rows that are left scatter about their own.
    scatter = stdev(costs) * math.sqrt(left * left / count + left)
    half = _t(count - 1) * scatter
    return max(0.0, left * mean(costs) - half), left * mean(costs) + half


def _t(freedom: int) -> float:
    """Student's t at 97.5 %, by its expansion about the normal; exact below 4."""
    exact = {1: 12.706, 2: 4.303, 3: 3.182}
    if freedom in exact:
        return exact[freedom]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2

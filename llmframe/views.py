"""How plans, jobs and reports look: as text, and as HTML (see `llmframe.markup`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from llmframe import markup

__all__ = ["Sheet", "age", "counted", "money", "number", "spread"]

_BINS: Final = 10
_ROUNDING: Final = 1e-9
"""0.3 / 0.1 is less than 3; a value on an edge belongs to the bin that begins there."""


def number(value: float | None) -> str:
    """``1,234``, or ``unknown``."""
    return "unknown" if value is None else f"{value:,.0f}"


def counted(count: int, what: str) -> str:
    """``1 row``, ``1,200 rows``.

    Examples:
        >>> counted(1, "row"), counted(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def money(value: float | None) -> str:
    """US$ with as many digits as matter; an unknown cost is never 0, and a small one neither.

    Examples:
        >>> money(None), money(0.0), money(12.345), money(0.01234), money(0.0000234)
        ('unknown', 'US$0.00', 'US$12.35', 'US$0.0123', 'US$0.000023')
    """
    if value is None:
        return "unknown"
    if value >= 1 or value == 0:
        return f"US${value:.2f}"
    digits = 4 if value >= 1e-4 else 1 - math.floor(math.log10(abs(value)))
    return f"US${value:.{digits}f}"


def age(seconds: float) -> str:
    """``12 min``, in the largest unit that gives at least 1."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def spread(values: Sequence[float], unit: str) -> list[tuple[str, int]]:
    """A histogram with round edges; the slowest one in a hundred share the last bin.

    Args:
        values: At least one, none negative.
        unit: Of the values.

    Returns:
        Label and count of each bin, from the first that holds anything.

    Examples:
        >>> spread([0.12, 0.13, 0.3, 0.31], "s")
        [('0.1 to 0.2 s', 2), ('0.2 to 0.3 s', 0), ('0.3 to 0.4 s', 2)]
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[math.ceil(0.99 * len(ordered)) - 1]
    wanted = min(_BINS, 1 + math.ceil(math.log2(len(ordered))))  # Sturges, 1926
    step = _round_step((high - low) / wanted or high or 1.0)
    first, last = (math.floor(end / step + _ROUNDING) for end in (low, high))
    bins = [0] * (last - first + 1)
    over = 0
    for value in ordered:
        place = math.floor(value / step + _ROUNDING) - first
        if place < len(bins):
            bins[place] += 1
        else:
            over += 1
    edges = [f"{(first + place) * step:g}" for place in range(len(bins) + 1)]
    found = [(f"{edges[i]} to {edges[i + 1]} {unit}", count) for i, count in enumerate(bins)]
    return [*found, (f"over {edges[-1]} {unit}", over)] if over else found


def _round_step(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - _ROUNDING)
    )


class Sheet:
    """A title, lines of name and value, and longer texts below.

    Subclasses give `_title`, `_lines` and `_texts`; both looks come from these. `_parts` is what
    the HTML shows where it can show more.
    """

    def _title(self) -> str:
        return type(self).__name__

    def _lines(self) -> Iterable[tuple[str, str]]:
        return ()

    def _texts(self) -> Iterable[tuple[str, str]]:
        return ()

    def __repr__(self) -> str:
        lines = list(self._lines())
        width = max((len(name) for name, _ in lines), default=0)
        shown = [markup.plain(self._title())]
        shown += [f"  {name:<{width}}  {markup.plain(value)}" for name, value in lines]
        for name, text in self._texts():
            body = "\n".join("    " + line for line in markup.plain(text).splitlines())
            shown.append(f"  {name}:\n{body}")
        return "\n".join(shown)

    def _parts(self) -> Iterable[markup.Html]:
        yield markup.facts(self._lines())
        for name, text in self._texts():
            yield markup.details(name, markup.text(text))

    def _repr_html_(self) -> str:
        return markup.page(*self._parts(), title=self._title())

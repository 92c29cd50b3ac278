"""What raters said about the same rows, as codes of values that mean the same for all of them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.cells import unbox
from llmframe.columns import Columns, name_text
from llmframe.errors import SchemaError
from llmframe.labels import spelling

__all__ = ["Ratings", "clusters", "column", "numeric", "ratings"]

_FEW: Final = 20
"""Distinct scores up to which fractions count as points of a scale and not as a measurement."""
_MANY: Final = 200
"""Distinct whole scores beyond which they do not either."""
_NAMED: Final = 3
"""Groups of labels spelt nearly alike that are named."""
_LABELS: Final = 1000
"""Distinct labels beyond which a column holds texts."""

Scale = Literal["nominal", "ordinal", "interval", "continuous"]


@dataclass(frozen=True, slots=True)
class Ratings:
    """Aligned ratings.

    Attributes:
        names: What the raters' columns are called.
        codes: Row by rater, positions in `values`; -1 where a rating is missing.
        values: Every value that was or could have been given, in its order.
        scale: ``"nominal"`` labels; ``"ordinal"`` labels; ``"interval"`` scores, ordered and with a
            distance; ``"continuous"``, numbers of which hardly two are equal.
        numbers: The values as numbers, or their places where they are labels.
    """

    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]
    values: tuple[Any, ...]
    scale: Scale
    numbers: npt.NDArray[np.float64]

    def spelt_alike(self) -> list[str]:
        """A sentence for each few labels that count as different ones, and hardly are."""
        groups: dict[str, list[str]] = {}
        for value in self.values:
            if isinstance(value, str):
                groups.setdefault(spelling(value), []).append(value)
        return [
            f"{' and '.join(map(repr, group))} count as different labels. If they are one, make "
            "them so first: out[column].str.strip().str.lower()."
            for group in [group for group in groups.values() if len(group) > 1][:_NAMED]
        ]


def column(data: pd.DataFrame, name: Hashable) -> pd.Series[Any]:
    """A column by its name.

    Raises:
        PromptError: There is none, or more than one.
    """
    if not isinstance(data, pd.DataFrame):
        raise TypeError(f"expected a DataFrame, got a {type(data).__name__}.")
    columns = Columns(data.columns.tolist())
    place = columns.exact(name)
    if place is None:
        raise columns.unknown(name_text(name), braces=False, sends=False)
    return data.iloc[:, place]


def clusters(data: pd.DataFrame, name: Hashable | None) -> npt.NDArray[np.int64] | None:
    """The cluster of each row, as numbers from 0.

    Raises:
        SchemaError: A row has none.
    """
    if name is None:
        return None
    series = column(data, name)
    missing = int(series.isna().sum())
    if missing:
        raise SchemaError(
            f"{name_text(name)!r} is missing in {missing:,} of {len(series):,} rows, so nothing "
            "says where they belong. Fill the column or leave these rows out."
        )
    return pd.factorize(series)[0].astype(np.int64)


def numeric(data: pd.DataFrame, name: Hashable) -> tuple[npt.NDArray[np.float64], bool]:
    """A column as numbers, NaN where it is missing, and whether it holds yes or no.

    Raises:
        SchemaError: It holds something else.
    """
    cells = _cells(column(data, name))
    given = [cell for cell in cells if cell is not None]
    kind = _kind(given, name)
    if kind == "text":
        raise SchemaError(
            f"{name_text(name)!r} holds {given[0]!r}: expected numbers or booleans. For the share "
            f"of one label make a boolean column: out[{name!r}] == {given[0]!r}."
        )
    found = np.array([np.nan if cell is None else float(cell) for cell in cells])
    return found, bool(given) and set(given) <= {0, 1}


def ratings(data: pd.DataFrame, names: Sequence[Hashable], ordered: bool | None) -> Ratings:
    """Read the raters' columns, matching their values across dtypes.

    Numbers are matched by value, ``1`` with ``1.0`` and, where another rater gave numbers, with
    ``"1"``.

    Args:
        data: The frame.
        names: Its columns, one a rater.
        ordered: Whether the values have an order; None for what the columns say.

    Raises:
        SchemaError: The raters' values cannot be the same things.
        PromptError: A column is missing.
    """
    columns = [column(data, name) for name in names]
    cells = [_cells(series) for series in columns]
    kinds = [
        _kind([c for c in own if c is not None], name)
        for own, name in zip(cells, names, strict=True)
    ]
    known = {kind for kind in kinds if kind is not None}
    declared = _declared(columns, names)
    is_number = "number" in known
    if is_number:
        cells = [
            [_number(cell, name) for cell in own] for own, name in zip(cells, names, strict=True)
        ]
    elif len(known) > 1:
        both = ", ".join(f"{name_text(n)!r} {k}" for n, k in zip(names, kinds, strict=True))
        raise SchemaError(f"the raters' values cannot be matched: {both}. Give them one type.")
    used = {cell for own in cells for cell in own if cell is not None}
    if declared is None or is_number or ordered is False:
        values = tuple(sorted(used))
    else:
        values = declared
        strange = sorted(used - set(values))
        if strange:
            raise SchemaError(f"{strange[0]!r} is none of the ordered labels {list(values)!r}.")
    has_order = (is_number or declared is not None) if ordered is None else ordered
    if has_order and not is_number and declared is None:
        raise SchemaError(
            "labels have no order of their own. Make one column an ordered Categorical: "
            f"out[{names[0]!r}].astype(pd.CategoricalDtype([…], ordered=True))."
        )
    scale = _scale(values, is_number, has_order)
    if scale != "continuous" and len(values) > _LABELS:
        raise SchemaError(
            f"the raters gave {len(values):,} different labels: expected at most {_LABELS:,}. "
            "Texts do not agree by being equal; let a judge compare them first."
        )
    code = {value: place for place, value in enumerate(values)}
    codes = np.array([[-1 if c is None else code[c] for c in own] for own in cells], np.int64)
    return Ratings(
        tuple(map(name_text, names)),
        codes.reshape(len(names), -1).T,
        values,
        scale,
        np.array(values if is_number else range(len(values)), np.float64),
    )


def _scale(values: Sequence[Any], is_number: bool, has_order: bool) -> Scale:
    if not has_order:
        return "nominal"
    if not is_number:
        return "ordinal"
    whole = all(float(value).is_integer() for value in values)
    return "interval" if len(values) <= (_MANY if whole else _FEW) else "continuous"


def _cells(series: pd.Series[Any]) -> list[Any]:
    return [unbox(cell) for cell in series.astype(object)]


def _kind(given: Sequence[Any], name: Hashable) -> str | None:
    """``"bool"``, ``"number"``, ``"text"``; None for a column without a value."""
    kinds = set()
    for cell in given:
        if isinstance(cell, bool):
            kinds.add("bool")
        elif isinstance(cell, numbers.Number):
            kinds.add("number")
        elif isinstance(cell, str):
            kinds.add("text")
        else:
            raise SchemaError(
                f"{name_text(name)!r} holds {cell!r}, a {type(cell).__name__}: expected one label "
                "or one number a row."
            )
    if len(kinds) > 1:
        raise SchemaError(f"{name_text(name)!r} mixes {' and '.join(sorted(kinds))}: expected one.")
    return kinds.pop() if kinds else None


def _number(cell: Any, name: Hashable) -> float | None:
    if cell is None:
        return None
    try:
        number = float(cell)
    except ValueError:
        raise SchemaError(
            f"{name_text(name)!r} holds {cell!r}, and another rater gave numbers: expected the "
            "same scale. Map the labels to scores first."
        ) from None
    if not math.isfinite(number):
        raise SchemaError(
            f"{name_text(name)!r} holds {cell!r}: expected finite numbers. Make such a cell "
            "missing, or map it to a score."
        )
    return number


def _declared(
    columns: Sequence[pd.Series[Any]], names: Sequence[Hashable]
) -> tuple[Any, ...] | None:
    """The labels of ordered Categoricals, which must agree."""
    orders = {
        name_text(name): tuple(map(unbox, series.cat.categories))
        for series, name in zip(columns, names, strict=True)
        if isinstance(series.dtype, pd.CategoricalDtype) and series.dtype.ordered
    }
    if len(set(orders.values())) > 1:
        raise SchemaError(f"the raters' labels are ordered differently: {orders!r}.")
    return next(iter(orders.values()), None)

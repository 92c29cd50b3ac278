"""Where the columns of a call stand among those of a frame, MultiIndex columns included."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import pandas as pd

from llmframe.columns import name_text
from llmframe.errors import SchemaError

__all__ = ["beside", "position"]


def beside(
    data: pd.DataFrame, names: Sequence[Hashable], made: Sequence[pd.Series[Any]]
) -> pd.DataFrame:
    """A frame with columns written: those that exist in their places, new ones behind.

    Args:
        data: The frame; not changed.
        names: A column each.
        made: Their values, in the order of the rows.

    Raises:
        SchemaError: Two columns have one of the names.
    """
    rows = pd.RangeIndex(len(data))
    left = data.copy(deep=False)
    left.index = rows
    places = [position(data, name) for name in names]
    new = [k for k, place in enumerate(places) if place is None]
    right = pd.DataFrame({k: made[k] for k in new}, index=rows)
    # Not one by one: a frame of a hundred blocks would warn that it is fragmented.
    out = pd.concat([left, right], axis=1)
    for place, series in zip(places, made, strict=True):
        if place is not None:
            out.isetitem(place, cast(Any, series))
    out.columns = _with(data.columns, [names[k] for k in new])
    return out


def _with(columns: pd.Index[Any], names: Sequence[Hashable]) -> pd.Index[Any]:
    """The column index with more labels, its levels' names kept."""
    if not names:
        return columns.copy(deep=False)
    labels = [_padded(columns, name) for name in names]
    if isinstance(columns, pd.MultiIndex):
        more: pd.Index[Any] = pd.MultiIndex.from_tuples(labels, names=columns.names)  # type: ignore[arg-type]
    else:
        more = pd.Index(labels, name=columns.name, tupleize_cols=False)
    return columns.append(more) if len(columns) else more


def _padded(columns: pd.Index[Any], name: Hashable) -> Hashable:
    if not isinstance(columns, pd.MultiIndex):
        return name
    parts = name if isinstance(name, tuple) else (name,)
    if len(parts) > columns.nlevels:
        raise SchemaError(f"column {name!r} has more levels than the {columns.nlevels} there are.")
    return parts + ("",) * (columns.nlevels - len(parts))


def position(data: pd.DataFrame, name: Hashable) -> int | None:
    """Which column has the name; None: none has.

    Raises:
        SchemaError: Two have.
    """
    label = _padded(data.columns, name)
    hits = [k for k, other in enumerate(data.columns.tolist()) if other == label]
    if len(hits) > 1:
        raise SchemaError(
            f"{len(hits)} columns are called {name_text(name)!r}, so none can be written. "
            "Rename them, or write to another name with into=."
        )
    return hits[0] if hits else None

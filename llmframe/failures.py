"""The rows that failed, as a frame that a notebook shows by kind of failure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, SupportsIndex, cast

import numpy as np
import pandas as pd

from llmframe import markup
from llmframe.dtypes import make_series, text_dtype

__all__ = ["FailedRow", "FailureTable", "failures_frame"]

_SHOWN: Final = 50
"""Rows of one kind that a page shows."""
_ASKED: Final = "asked about"
_OPEN: Final = 10
"""A page with no more rows than these shows them at once."""


class FailedRow(NamedTuple):
    """A line of `failures_frame`."""

    position: int
    kind: str
    message: str
    raw: str | None = None
    attempts: int = 0
    request_id: str | None = None


class FailureTable(pd.DataFrame):
    """A DataFrame whose HTML is grouped by kind of failure; in all else it is one.

    Whatever is made of it (a selection, a copy, what comes out of a pickle) is a plain DataFrame.
    """

    _texts: Mapping[int, str | None]
    _metadata: ClassVar[list[str]] = ["_texts"]

    def with_texts(self, texts: Mapping[int, str | None]) -> FailureTable:
        """Show beside each row what the model was asked about; it is no column.

        Args:
            texts: By position in the frame.

        Returns:
            The table itself.
        """
        self._texts = texts
        return self

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return pd.DataFrame, (pd.DataFrame(self),)

    def _repr_html_(self) -> str | None:
        if not pd.get_option("display.notebook_repr_html"):
            return None
        if "kind" not in self.columns:  # somebody took it out
            return cast(str, cast(Any, super())._repr_html_())
        count = len(self)
        if not count:
            return markup.page(title="No row failed")
        kinds = self["kind"].value_counts()
        parts = [
            self._of_kind(kind, opened=count <= _OPEN or len(kinds) == 1) for kind in kinds.index
        ]
        title = f"{count:,} {'row' if count == 1 else 'rows'} failed"
        return markup.page(*parts, title=title)

    def _of_kind(self, kind: Hashable, *, opened: bool) -> markup.Html:
        rows = self[self["kind"] == kind]
        columns = [name for name in rows.columns if name != "kind" and rows[name].notna().any()]
        numeric = [
            place
            for place, name in enumerate(columns, rows.index.nlevels)
            if pd.api.types.is_numeric_dtype(rows[name].dtype)
        ]
        shown = rows.head(_SHOWN)
        several = rows.index.nlevels > 1
        labels = [label if several else (label,) for label in shown.index.tolist()]
        texts = getattr(self, "_texts", None)
        if texts and "position" in columns:
            # No column of the table: an assertion on its columns, or a file, holds what it held.
            asked = shown["position"].map(texts).fillna("")
            shown = shown.assign(**{_ASKED: asked})
            columns = [_ASKED, *columns]
            numeric = [place + 1 for place in numeric]
        cells = (
            shown[columns].astype(object).where(shown[columns].notna(), "").itertuples(index=False)
        )
        names = [name or "" for name in rows.index.names]
        lines = [(*label, *row) for label, row in zip(labels, cells, strict=True)]
        body = markup.table([*names, *columns], lines, numeric)
        if len(rows) > len(shown):
            more = f"… and {len(rows) - len(shown):,} more: failures().query('kind == \"{kind}\"')"
            body = markup.joined(body, markup.note(more))
        return markup.details(f"{kind}: {len(rows):,} of {len(self):,}", body, opened=opened)


def failures_frame(index: pd.Index[Any], failed: Sequence[FailedRow]) -> FailureTable:
    """What failed, on the original labels; the same dtypes when nothing did.

    Args:
        index: The index of the input.
        failed: One a failed row.

    Examples:
        >>> rows = [FailedRow(1, "refused", "no", "Sorry", 1, "req_1")]
        >>> failures_frame(pd.Index(["a", "b"]), rows)
           position     kind message    raw  attempts request_id
        b         1  refused      no  Sorry         1      req_1
    """
    columns: dict[str, Any] = {}
    for name in FailedRow._fields:
        values = [getattr(row, name) for row in failed]
        if name in {"position", "attempts"}:
            columns[name] = np.array(values, dtype=np.int64)
        else:
            columns[name] = make_series("str", text_dtype(), values)
    frame = FailureTable(columns, index=pd.RangeIndex(len(failed)))
    frame.index = index.take(columns["position"])
    return frame

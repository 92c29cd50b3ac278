"""What a person may enter for a column: read strictly, and written in the column's own dtype."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from llmframe.dtypes import as_kind, make_series
from llmframe.rendering import format_value, is_missing, plain
from llmframe.schemas.forms import Field, form
from llmframe.schemas.nodes import without_null

__all__ = ["Editor", "editor"]

Ways = Literal["choice", "choices", "text", "number", "moment", "json"]

_KINDS: Final = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}
_NESTED: Final = ("array", "object")
_NULLABLE: Final = {"b": "boolean", "i": "Int64", "u": "UInt64"}


@dataclass(frozen=True, slots=True)
class Editor:
    """How values of one column are chosen or typed.

    Attributes:
        way: ``"choice"`` of `options`; ``"choices"``: a list of any of them; ``"text"``;
            ``"number"``; ``"moment"``: ISO 8601; ``"json"``.
        dtype: The column's; a numpy type that cannot be missing as its nullable twin.
        options: What there is to choose from.
        nullable: None is an answer: that the text says nothing of it.
    """

    way: Ways
    dtype: Any
    options: tuple[Any, ...] = ()
    nullable: bool = False
    _kind: str = field(default="object", repr=False)
    _misfit: Callable[[Any], str | None] | None = field(default=None, repr=False)

    def text(self, value: Any) -> str:
        """A value as it is typed; empty for a missing one."""
        if is_missing(value):
            return ""
        if self.way == "json":
            return json.dumps(plain(value), ensure_ascii=False)
        return format_value(value)

    def read(self, text: str) -> Any:
        """What was typed, as a value.

        Raises:
            ValueError: It is none.
        """
        if self.nullable and not text.strip():
            return None
        try:
            if self.way == "number":
                return self.check(int(text) if self._kind == "int" else float(text))
            if self.way == "moment":
                return self.check(datetime.fromisoformat(text.strip()))
            value = json.loads(text) if self.way == "json" else text
        except ValueError:
            raise ValueError(f"{text!r} is no {self._expected()}.") from None
        return self.check(value)

    def check(self, value: Any) -> Any:
        """A value as the column holds it.

        Raises:
            ValueError: It is none of the options, of another type, or missing.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if self.way == "choices":
            if not isinstance(value, list | tuple | set):
                raise ValueError(f"{value!r}: expected a list of {self._expected()}.")
            chosen = [self._option(item) for item in value]
            return [option for option in self.options if option in chosen]
        if is_missing(value):
            if self.nullable:
                return None
            raise ValueError(f"{value!r} is missing; expected {self._expected()}.")
        if self.way == "choice":
            return self._option(value)
        if self.way == "moment" and isinstance(value, str):
            value = datetime.fromisoformat(value)
        try:
            value = as_kind("str" if self.way == "text" else self._kind, value)
        except ValueError:
            raise ValueError(f"{value!r}: expected {self._expected()}.") from None
        if self._misfit is not None and (why := self._misfit(value)) is not None:
            raise ValueError(f"{value!r}: {why}.")
        return value

    def series(self, values: Sequence[Any]) -> pd.Series[Any]:
        """Checked values on a RangeIndex, None where missing."""
        return make_series(self._kind, self.dtype, values)

    def _option(self, value: Any) -> Any:
        for option in self.options:
            # True == 1, and they are two labels.
            if option == value and isinstance(option, bool) == isinstance(value, bool):
                return option
        raise ValueError(f"{value!r}: expected one of {self._expected()}.")

    def _expected(self) -> str:
        if self.options:
            listed = ", ".join(map(repr, self.options[:10]))
            return listed + (", …" if len(self.options) > 10 else "")
        if self.way == "number":
            return "whole number" if self._kind == "int" else "number"
        return {"moment": "ISO 8601 time", "json": "JSON"}.get(self.way, "text")


def editor(
    column: pd.Series[Any],
    options: Sequence[Any] | None = None,
    *,
    many: bool = False,
    asked: Field | None = None,
) -> Editor:
    """The editor that fits a column.

    Args:
        column: The model's answers.
        options: The values that there are; None: those of its dtype, where that lists any.
        many: A cell is a list of them.
        asked: What the model was asked for, where that is known: whether it may be null, and what
            a text, list or object has to hold.

    Examples:
        >>> answers = pd.Series(["bug", None], dtype=pd.CategoricalDtype(["bug", "other"]))
        >>> editor(answers).options, editor(pd.Series([1.5])).read("2")
        (('bug', 'other'), 2.0)
    """
    dtype: Any = column.dtype
    null = asked is not None and asked.nullable
    if many:
        return Editor("choices", dtype, tuple(options or ()))
    if isinstance(dtype, pd.CategoricalDtype):
        return Editor("choice", dtype, tuple(dtype.categories.tolist()), null, "category")
    kind = _kind(dtype)
    if isinstance(dtype, np.dtype) and dtype.kind in _NULLABLE:
        dtype = pd.api.types.pandas_dtype(_NULLABLE[dtype.kind])
    if options is not None or kind == "bool":
        return Editor("choice", dtype, tuple(options or (False, True)), null, kind)
    if kind in {"int", "float"}:
        return Editor("number", dtype, nullable=null, _kind=kind)
    if kind in {"datetime", "datetime_utc"}:
        return Editor("moment", dtype, nullable=null, _kind=kind)
    texts = kind == "object" and all(isinstance(v, str) for v in column.dropna().tolist())
    # Text in a column of objects, as pandas 2 reads it from a file.
    if asked is not None:
        texts = texts and without_null(asked.schema, asked.defs)[0].get("type") not in _NESTED
    way: Ways = "text" if kind == "str" or texts else "json"
    misfit = None if asked is None or not asked.schema else _misfit(asked)
    return Editor(way, dtype, nullable=null, _kind=kind, _misfit=misfit)


def _misfit(asked: Field) -> Callable[[Any], str | None]:
    """A function that says what a reply with this value would be turned down for."""
    whole = {"type": "object", "properties": {asked.name: asked.schema}, "required": [asked.name]}
    own = form({**whole, "$defs": asked.defs} if asked.defs else whole)

    def why(value: Any) -> str | None:
        failure = own.check({asked.name: plain(value)}).failure
        return None if failure is None else failure.message

    return why


def _kind(dtype: Any) -> str:
    if isinstance(dtype, pd.StringDtype):
        return "str"
    if dtype.kind == "M":
        zone = getattr(dtype, "tz", None) or getattr(
            getattr(dtype, "pyarrow_dtype", None), "tz", None
        )
        return "datetime" if zone is None else "datetime_utc"
    return _KINDS.get(dtype.kind, "object")

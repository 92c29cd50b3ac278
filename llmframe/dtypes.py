"""Declared fields as pandas dtypes, and values as columns of exactly that dtype.

The dtype depends on the declaration alone, never on the answers: an empty frame and a run in
which every row failed give the same columns as any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pandas as pd

from llmframe.arrow import arrow_type, arrow_value
from llmframe.errors import SchemaError
from llmframe.rendering import is_missing

if TYPE_CHECKING:
    from llmframe.schemas.forms import Field

__all__ = ["Backend", "as_kind", "dtype_of", "make_series", "text_dtype"]

Backend = Literal["numpy_nullable", "pyarrow"] | None
_PANDAS_3: Final = int(pd.__version__.split(".")[0]) >= 3
_NULLABLE: Final = {
    "int": "Int64",
    "float": "Float64",
    "bool": "boolean",
    "datetime": "datetime64[us]",
    "date": "datetime64[us]",
    "datetime_utc": "datetime64[us, UTC]",
    "object": "object",
}


def text_dtype() -> Any:
    """Pandas' own dtype for text: ``str`` on pandas 3, ``string`` on 2.x."""
    return pd.StringDtype(na_value=np.nan) if _PANDAS_3 else pd.StringDtype()


def dtype_of(field: Field, dtype_backend: Backend = None) -> Any:
    """The dtype of a field's column.

    Args:
        field: The declared field.
        dtype_backend: As in `pandas.read_csv`; None: pandas' own text, nullable numbers. A
            category has one dtype under every backend; lists and dicts are objects, or, with
            ``"pyarrow"``, what `llmframe.arrow.arrow_type` says.

    Raises:
        SchemaError: No such backend.
    """
    if dtype_backend not in (None, "numpy_nullable", "pyarrow"):
        raise SchemaError(
            f"dtype_backend={dtype_backend!r}; expected None, 'numpy_nullable' or 'pyarrow'."
        )
    if dtype_backend is None and field.dtype is not None:
        return _declared(field.dtype)
    if field.kind == "category":
        return pd.CategoricalDtype(list(field.categories or ()), ordered=field.ordered)
    if dtype_backend == "pyarrow":
        arrow = _arrow_dtype(field)
        return np.dtype(object) if arrow is None else pd.ArrowDtype(arrow)
    if field.kind == "str":
        return text_dtype() if dtype_backend is None else pd.StringDtype()
    return pd.api.types.pandas_dtype(_NULLABLE[field.kind])


def _declared(name: str) -> Any:
    """A dtype by the name that a schema gave it."""
    if name == "str":
        return text_dtype()
    if name == "string[pyarrow]":  # which pandas would read as its own text on Arrow
        import pyarrow as pa

        return pd.ArrowDtype(pa.string())
    digits = re.fullmatch(r"decimal128\((\d+), (\d+)\)\[pyarrow\]", name)
    if digits:  # which pandas cannot read
        import pyarrow as pa

        return pd.ArrowDtype(pa.decimal128(int(digits[1]), int(digits[2])))
    return pd.api.types.pandas_dtype(name)


def make_series(kind: str, dtype: Any, values: Sequence[Any]) -> pd.Series[Any]:
    """Values as a column on a RangeIndex.

    Args:
        kind: The field's kind; says how the values are read.
        dtype: What `dtype_of` gave for it.
        values: One a row; None (or any missing value) is missing.

    Raises:
        OverflowError: An integer is beyond 64 bits.
        KeyError: A value is none of the categories.
        ValueError: A value is none of a nested Arrow type.
    """
    index = pd.RangeIndex(len(values))
    if kind != "object":
        values = [None if is_missing(value) else value for value in values]
    made: pd.Series[Any] = pd.Series(_array(kind, dtype, values), index=index, dtype=dtype)
    return made


def as_kind(kind: str, value: Any) -> Any:
    """A cell that a column already has, as a value of a declared kind.

    Raises:
        ValueError: It is none, or would lose something.

    Examples:
        >>> as_kind("int", 3.0), as_kind("float", 3)
        (3, 3.0)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "int" and number and value == int(value) and -(2**63) <= value < 2**63:
        return int(value)
    if kind == "float" and number and float(value) == value:
        return float(value)
    if kind == "datetime_utc" and isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if kind == "datetime" and isinstance(value, datetime) and value.tzinfo is None:
        return value
    types = {"str": str, "category": str, "bool": bool, "date": date, "object": object}
    if kind in types and isinstance(value, types[kind]):
        return value
    raise ValueError(f"{value!r} is no {kind}")


def _array(kind: str, dtype: Any, values: Sequence[Any]) -> Any:
    count = len(values)
    arrow = isinstance(dtype, pd.ArrowDtype)
    if kind == "category":
        codes = {category: code for code, category in enumerate(dtype.categories.tolist())}
        codes[None] = -1
        return pd.Categorical.from_codes([codes[value] for value in values], dtype=dtype)
    if kind == "object" and arrow:
        return _nested(dtype, values)
    if kind == "object":
        made = np.empty(count, dtype=object)
        for row, value in enumerate(values):  # at once, numpy would unpack lists of one length
            made[row] = None if is_missing(value) else _own(value)
        return made
    if kind == "str":
        try:
            return pd.array(values, dtype=dtype)
        except UnicodeEncodeError:  # Arrow holds UTF-8, which has no lone surrogates
            sound = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
            return pd.array(sound, dtype=dtype)
    if kind in {"datetime", "datetime_utc", "date"}:
        values = [_naive(value) for value in values]
        if str(dtype) == "object" or (arrow and str(dtype.pyarrow_dtype) == "date32[day]"):
            values = [v.date() if isinstance(v, datetime) else v for v in values]
        if str(dtype) == "object":
            return np.array(values, dtype=object)
        if arrow:
            return pd.array(values, dtype=dtype)
        ticks = pd.array(np.array(values, dtype="datetime64[us]"))
        return ticks.tz_localize("UTC") if kind == "datetime_utc" else ticks
    if arrow:
        return pd.array(values, dtype=dtype)
    # Never by a list with None in it: on its way through float64 it would lose digits.
    missing = np.fromiter((value is None for value in values), dtype=bool, count=count)
    known = (0 if value is None else value for value in values)
    if kind == "int":
        width = np.uint64 if dtype == "UInt64" else np.int64
        return pd.arrays.IntegerArray(np.fromiter(known, width, count), missing)
    if kind == "float":
        return pd.arrays.FloatingArray(np.fromiter(known, np.float64, count), missing)
    return pd.arrays.BooleanArray(np.fromiter(known, bool, count), missing)


def _own(value: Any) -> Any:
    """A value that shares no list or dict: rows with one answer must not change together."""
    if type(value) is list:
        return [_own(item) for item in value]
    if type(value) is dict:
        return {key: _own(item) for key, item in value.items()}
    return value


def _naive(value: Any) -> Any:
    """A datetime in UTC without its zone; one without a zone as it is."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _nested(dtype: Any, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    kind = dtype.pyarrow_dtype
    found = [arrow_value(kind, None if is_missing(value) else value) for value in values]
    # Not `pd.array`, which takes a dict or a list for more than one cell.
    return pd.arrays.ArrowExtensionArray(pa.array(found, type=kind))


def _arrow_dtype(field: Field) -> Any:
    import pyarrow as pa

    if field.kind == "object":
        return arrow_type(field.schema, field.defs) if field.schema else None
    if field.kind == "datetime" and field.schema:
        return arrow_type(field.schema, field.defs)  # a date, or a time
    return {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us"),
        "datetime_utc": pa.timestamp("us", tz="UTC"),
    }[field.kind]

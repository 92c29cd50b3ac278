"""pandas cells as plain Python values, the same on every pandas.

A column is read in slices, each by the one converter that its dtype needs: row-wise access would
go through a common dtype and turn an id beside a float into a float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, overload

import numpy as np
import pandas as pd

from llmframe.rendering import is_missing

__all__ = ["Rows", "reader", "unbox"]

_SLICE: Final = 256
"""Rows converted at once: large enough to hide pandas' cost per call (0.3 µs a row and column
remain), small enough that a row picked at random costs some 20 µs."""
_KEPT: Final = 32
"""Slices kept, for the rows that are asked again a little later."""
_PLAIN: Final = frozenset({str, int, bool, list, dict, tuple})

Reader = Callable[[Any], list[Any]]


class Rows(Sequence[tuple[Any, ...]]):
    """Rows of some columns as tuples of plain values; thread-safe, read when asked for.

    Args:
        arrays: Arrays of one length, as pandas holds them.
        count: Their length, for the case that there is none.
    """

    def __init__(self, arrays: Sequence[Any], count: int) -> None:
        self._columns = [(array, reader(array)) for array in arrays]
        self._count = count
        self._slices: dict[int, list[tuple[Any, ...]]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> list[tuple[Any, ...]]: ...
    def __getitem__(self, row: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(self._count))]
        if not 0 <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        at, offset = divmod(row, _SLICE)
        return (self._slices.get(at) or self._load(at))[offset]

    def _load(self, at: int) -> list[tuple[Any, ...]]:
        start, stop = at * _SLICE, min((at + 1) * _SLICE, self._count)
        if self._columns:
            columns = [read(array[start:stop]) for array, read in self._columns]
            rows = list(zip(*columns, strict=True))
        else:
            rows = [()] * (stop - start)
        with self._lock:
            while len(self._slices) >= _KEPT:
                del self._slices[next(iter(self._slices))]
            self._slices[at] = rows
        return rows


def reader(array: Any) -> Reader:
    """The converter for slices of an array: numpy array or extension array -> list.

    Missing cells become None, whatever the dtype calls them; numpy and pandas scalars become
    Python's own: Timestamps datetimes (unless that would lose nanoseconds or the year),
    categories their values, periods and intervals their text. A float32 becomes the float with
    the same shortest text: 0.1, not 0.10000000149011612.
    """
    if isinstance(array, np.ndarray):
        return _NUMPY.get(array.dtype.kind, _objects)
    if isinstance(array, pd.Categorical):
        values = [*reader(_array(array.categories))(_array(array.categories)), None]
        return lambda part: [values[code] for code in part.codes.tolist()]  # -1 is the last: None
    if isinstance(array, pd.arrays.DatetimeArray):
        return _datetimes
    if isinstance(array, pd.arrays.TimedeltaArray):
        return _timedeltas
    if isinstance(array, pd.arrays.SparseArray):
        return lambda part: _dense(np.asarray(part))
    if isinstance(array.dtype, pd.ArrowDtype):
        return _arrow
    if isinstance(array.dtype, pd.StringDtype):
        return _to_objects
    if isinstance(array, pd.arrays.FloatingArray):
        return lambda part: _floats(part.to_numpy(dtype=part.dtype.numpy_dtype, na_value=np.nan))
    if isinstance(array, pd.arrays.IntegerArray | pd.arrays.BooleanArray):
        return _to_objects
    return _objects


def unbox(value: Any) -> Any:
    """One cell of an object column as a plain value.

    Examples:
        >>> unbox(np.int64(3)), unbox(np.float32(0.1)), unbox(pd.NaT), unbox(np.array([1, 2]))
        (3, 0.1, None, [1, 2])
    """
    if type(value) in _PLAIN:
        return value
    if is_missing(value):
        return None
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        return _whole(value)
    if isinstance(value, np.datetime64):
        return _whole(pd.Timestamp(value)) if _fits(value) else str(value)
    if isinstance(value, np.timedelta64):
        return _whole(pd.Timedelta(value))
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.floating):
        return float(value) if isinstance(value, float) else float(str(value))
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return value.item()
    if isinstance(value, np.ndarray):
        return [unbox(v) for v in value] if value.ndim else unbox(value[()])
    if isinstance(value, pd.Period | pd.Interval):
        return str(value)
    return value


def _array(index: pd.Index[Any]) -> Any:
    return index.to_numpy() if isinstance(index.dtype, np.dtype) else index.array


def _objects(part: Any) -> list[Any]:
    return [v if type(v) is str else unbox(v) for v in part]


def _list(part: Any) -> list[Any]:
    values: list[Any] = part.tolist()
    return values


def _floats(part: Any) -> list[Any]:
    if part.dtype.itemsize != 8:
        return [None if v != v else float(str(v)) for v in part]
    values = _list(part)
    return [None if v != v else v for v in values] if np.isnan(part).any() else values


def _dense(part: Any) -> list[Any]:
    return reader(part)(part)


def _to_objects(part: Any) -> list[Any]:
    return _list(part.to_numpy(dtype=object, na_value=None))


def _datetimes(part: Any) -> list[Any]:
    known = part[~part.isna()]
    if part.unit != "ns" or not (known.view("i8") % 1000).any():
        try:
            return [None if v is pd.NaT else v for v in part.to_pydatetime()]
        except (ValueError, OverflowError):  # beyond year 9999
            pass
    return [None if v is pd.NaT else _whole(v) for v in part]


def _timedeltas(part: Any) -> list[Any]:
    return [None if v is pd.NaT else _whole(v) for v in part]


def _whole(value: pd.Timestamp | pd.Timedelta) -> Any:
    """A Timestamp or Timedelta as Python's own, where that loses nothing."""
    try:
        if isinstance(value, pd.Timestamp):
            return value if value.nanosecond else value.to_pydatetime()
        return value if value.nanoseconds else value.to_pytimedelta()
    except (ValueError, OverflowError):  # beyond year 9999
        return value


def _fits(value: np.datetime64) -> bool:
    try:
        pd.Timestamp(value)
    except (ValueError, OverflowError):
        return False
    return True


def _arrow(part: Any) -> list[Any]:
    import pyarrow as pa

    values = pa.array(part)
    kind = values.type
    found: list[Any] = values.to_pylist()
    # A map comes as a list of pairs; "float" is Arrow's name for the two narrower than Python's.
    if "map<" in str(kind) or "float" in str(kind):
        return [_plain(v, kind) for v in found]
    if pa.types.is_float64(kind) or pa.types.is_temporal(kind):
        return [unbox(v) for v in found]
    return found


def _plain(value: Any, kind: Any) -> Any:
    """An Arrow value with the maps, float32s and float16s in it as `reader` gives them."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_plain(v, kind.value_type) for v in value]
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        return unbox(kind.to_pandas_dtype()(value))
    return unbox(value)


_NUMPY: Final[dict[str, Reader]] = {
    "i": _list,
    "u": _list,
    "b": _list,
    "f": _floats,
    "O": _objects,
}

"""The two ends where pandas stands: rows out of a frame, columns into one.

What goes out is plain Python values, what comes back is a new object: the index, the order of
rows and the original columns are those of the input, which is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe.cells import Rows, reader
from llmframe.columns import name_text
from llmframe.dtypes import Backend, as_kind, dtype_of, make_series
from llmframe.errors import SchemaError, warn_user
from llmframe.placing import beside, position

if TYPE_CHECKING:
    from llmframe.schemas.forms import Field

__all__ = [
    "STATUSES",
    "Column",
    "Table",
    "attach",
    "check_output",
    "dtype_of",
    "refuse_unfit",
    "status_series",
    "take",
    "unfilled",
    "without",
    "written",
]

STATUSES: Final = ("ok", "cached", "skipped", "failed", "pending", "in_doubt", "kept")
"""What a row can be, in the order of the categories of `status_series`."""

Data = pd.DataFrame | pd.Series

# pyarrow's own errors are of these; a category that is none is a KeyError.
_UNFIT: Final = (ValueError, TypeError, KeyError, OverflowError, NotImplementedError)


class Table:
    """Rows out of a DataFrame or a Series.

    Attributes:
        names: Column labels in order; a Series is one column, called 0 where it has no name.
        index_names: Names of the index levels, None where a level has none.
        count: Number of rows.
        is_series: Whether it was a Series.

    Examples:
        >>> table = Table(pd.DataFrame({"id": [9007199254740993], "w": [None]}, index=["r9"]))
        >>> table.rows([0, 1, -1])[0]
        (9007199254740993, None, 'r9')
    """

    def __init__(self, data: Data) -> None:
        if not isinstance(data, pd.DataFrame | pd.Series):
            raise TypeError(f"expected a DataFrame or a Series, got a {type(data).__name__}.")
        self._data = data
        self.is_series = isinstance(data, pd.Series)
        self.count = len(data)
        self.index_names: tuple[Hashable, ...] = tuple(data.index.names)
        if isinstance(data, pd.Series):
            self.names: tuple[Hashable, ...] = (0 if data.name is None else data.name,)
        else:
            self.names = tuple(data.columns.tolist())

    def rows(self, columns: Sequence[int]) -> Rows:
        """The rows as tuples of plain Python values, missing cells None.

        Each column is converted by itself: an id beside a float keeps every digit.

        Args:
            columns: Positions in `names`; ``-1 - k`` is level k of the index.
        """
        return Rows([self._array(column) for column in columns], self.count)

    def label(self, position: int) -> Any:
        """The index label of a row, as pandas gives it."""
        return self._data.index[position]

    def label_text(self, position: int) -> str:
        """The index label of a row as text, for messages and the journal.

        Examples:
            >>> table = Table(pd.Series(["x"], index=pd.MultiIndex.from_tuples([("a", 1)])))
            >>> table.label_text(0)
            'a, 1'
        """
        label = self.label(position)
        return ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)

    def _array(self, column: int) -> Any:
        if column < 0:
            return _raw(self._data.index.get_level_values(-1 - column))
        if isinstance(self._data, pd.Series):
            return _raw(self._data)
        return _raw(self._data.iloc[:, column])


@dataclass(frozen=True, slots=True)
class Column:
    """One output column.

    Attributes:
        name: Its label; in a frame with MultiIndex columns it is padded with empty levels.
        field: The declared field: gives the dtype.
        values: One a row, None where missing.
        fill: Keep the cells that an existing column of the name has; `values` go where it has
            none. The dtype is the declared one if it holds what is kept (a category is
            extended), else object.
    """

    name: Hashable
    field: Field
    values: Sequence[Any]
    fill: bool = False


def attach(
    data: Data,
    columns: Sequence[Column],
    *,
    job: str | None = None,
    dtype_backend: Backend = None,
    series_ok: bool = True,
) -> Data:
    """A new frame: the original columns bit for bit, then the new ones.

    A column that exists is replaced where it stands. Labels are never aligned: values are laid
    down in row order, so the index may hold anything any number of times.

    Args:
        data: The input, left as it is.
        columns: What to add; each as long as the input.
        job: Id of the job; ``attrs["llmframe"]`` maps each of the columns to it.
        dtype_backend: See `llmframe.dtypes.dtype_of`.
        series_ok: A Series with one new column gives a Series, named as the column; otherwise
            a Series gives a DataFrame of the new columns.

    Raises:
        ValueError: A column is longer or shorter than the input.
        SchemaError: Two columns have the name of one that is to be replaced.

    Examples:
        >>> from types import SimpleNamespace
        >>> n = SimpleNamespace(name="n", kind="int", dtype=None)
        >>> df = pd.DataFrame({"t": ["a", "b"]}, index=[7, 7])
        >>> attach(df, [Column("n", n, [9007199254740993, None])], job="j_1")
           t                 n
        7  a  9007199254740993
        7  b              <NA>
    """
    for column in columns:
        if len(column.values) != len(data):
            raise ValueError(f"{column.name!r} has {len(column.values)} values of {len(data)}.")
    made = [_make(data, column, dtype_backend) for column in columns]
    out: Data
    if isinstance(data, pd.DataFrame):
        out = beside(data, [column.name for column in columns], made)
    elif series_ok and len(made) == 1:
        out = made[0]
    else:
        out = pd.DataFrame(dict(enumerate(made)), index=pd.RangeIndex(len(data)))
        out.columns = pd.Index([column.name for column in columns], tupleize_cols=False)
    # A view of its own: renaming the index of the result must not rename the input's.
    out.index = data.index.copy(deep=False)
    out = cast(Any, out).__finalize__(
        data
    )  # attrs, flags, and what a subclass declares as metadata
    if isinstance(out, pd.Series):
        out.name = columns[0].name
    if job is not None:
        known = data.attrs.get("llmframe")
        known = known if isinstance(known, dict) else {}
        new = {name_text(column.name): job for column in columns}
        # What was written last stands last.
        out.attrs["llmframe"] = {k: v for k, v in known.items() if k not in new} | new
    return out


def check_output(
    data: Data,
    names: Sequence[Hashable],
    *,
    if_exists: Literal["raise", "replace", "fill"],
    own: Callable[[str], bool],
    remedy: str | None = None,
) -> None:
    """Refuse output columns that would overwrite what is not ours, before anything is sent.

    Args:
        data: The input.
        names: Output columns.
        if_exists: What the user said.
        own: Whether llmframe itself wrote a column of the input, by its name.
        remedy: What to do about a column that exists; None: with the keywords of a verb.

    Raises:
        SchemaError: A column exists, is asked for twice, or cannot be told from another.
    """
    if if_exists not in ("raise", "replace", "fill"):
        raise SchemaError(f"if_exists={if_exists!r}; expected 'raise', 'replace' or 'fill'.")
    for number, name in enumerate(names):
        if name in names[:number]:
            raise SchemaError(
                f"two output columns are called {name!r}. Name them apart with into={{…}}."
            )
        if isinstance(data, pd.Series) or position(data, name) is None:
            continue
        text = name_text(name)
        if if_exists == "raise" and not own(text):
            free = f"{text}_llm"
            while position(data, free) is not None:
                free += "_"
            if text in written(data):
                raise SchemaError(
                    f"column {text!r} was written by another call (job {written(data)[text]}), or "
                    f"changed since. "
                    + (remedy or 'if_exists="replace" or "fill", or another into=.')
                )
            raise SchemaError(
                f"column {text!r} exists and was not written by llmframe. "
                + (remedy or f'if_exists="replace" or "fill", or into="{free}".')
            )


def written(data: Any) -> dict[str, str]:
    """Output column → job id, for the columns that llmframe wrote and that are still there."""
    known = data.attrs.get("llmframe")
    if not isinstance(known, Mapping):
        return {}
    names = [data.name] if isinstance(data, pd.Series) else data.columns
    here = {name_text(name) for name in names}
    return {column: job for column, job in known.items() if column in here}


def unfilled(data: Data, names: Iterable[Hashable]) -> npt.NDArray[np.bool_]:
    """The rows that ``if_exists="fill"`` asks: those where one of the columns has no value.

    Returns:
        One bool a row; all True where a column does not exist yet. A Series counts as the
        column of its name.
    """
    ask = np.zeros(len(data), dtype=bool)
    for name in names:
        existing = _existing(data, name)
        ask |= True if existing is None else existing.isna().to_numpy(dtype=bool)
    return ask


def take(data: Data, mask: Sequence[bool] | npt.NDArray[np.bool_]) -> Data:
    """The rows where `mask` is true, as an object of their own."""
    # Not data[mask]: on pandas 2 that warns whoever adds a column to the result.
    return data.take(np.flatnonzero(np.asarray(mask, dtype=bool)))


def without(data: Data, names: Sequence[Hashable]) -> Data:
    """The data less some columns that it has."""
    if isinstance(data, pd.Series) or not names:
        return data
    gone = {position(data, name) for name in names}
    return data.iloc[:, [k for k in range(data.shape[1]) if k not in gone]]


def table(columns: Mapping[str, Sequence[Any]], index: str) -> pd.DataFrame:
    """Plain figures as a frame, one of the columns as its index."""
    return pd.DataFrame(dict(columns)).set_index(index)


def status_series(index: pd.Index[Any], status: Sequence[str]) -> pd.Series[Any]:
    """Each row's status on the original index: a Categorical of `STATUSES`.

    Raises:
        KeyError: A status is none of them.
    """
    series = make_series("category", pd.CategoricalDtype(list(STATUSES)), status)
    series.index = index.copy(deep=False)
    return series.rename("status")


def _raw(data: pd.Series[Any] | pd.Index[Any]) -> Any:
    """Values without a copy: a numpy array, or the extension array."""
    if isinstance(data.dtype, np.dtype) and data.dtype.kind not in "mM":
        return data.to_numpy()
    return data.array


def _make(data: Data, column: Column, dtype_backend: Backend) -> pd.Series[Any]:
    kind: str = column.field.kind
    dtype = dtype_of(column.field, dtype_backend)
    existing = _existing(data, column.name) if column.fill else None
    if existing is None:
        return _sound(data, column, kind, dtype, column.values)
    array = _raw(existing)
    cells = reader(array)(array)
    try:
        kept = [None if cell is None else as_kind(kind, cell) for cell in cells]
        if kind == "object" and isinstance(dtype, pd.ArrowDtype):
            make_series(kind, dtype, kept)
    except _UNFIT:
        kind, dtype, kept = "object", np.dtype(object), existing.astype(object).tolist()
    if kind == "category":
        more = dict.fromkeys(k for k in kept if k is not None and k not in dtype.categories)
        dtype = pd.CategoricalDtype([*dtype.categories, *more], ordered=dtype.ordered)
    values = [
        value if cell is None else keep
        for value, cell, keep in zip(column.values, cells, kept, strict=True)
    ]
    return _sound(data, column, kind, dtype, values)


def _sound(
    data: Data, column: Column, kind: str, dtype: Any, values: Sequence[Any]
) -> pd.Series[Any]:
    """The column; a value that its dtype cannot hold is NA, said aloud, and costs no other one."""
    try:
        return make_series(kind, dtype, values)
    except _UNFIT as error:
        first: Exception = error
    sound, bad = list(values), list[int]()
    for row, value in enumerate(values):
        try:
            make_series(kind, dtype, [value])
        except _UNFIT as error:
            sound[row] = None
            first = first if bad else error
            bad.append(row)
    if not bad:
        raise first
    warn_user(
        f"column {name_text(column.name)!r}: {len(bad):,} of {len(values):,} answers do not fit "
        f"{dtype} and are NA, the first at {data.index[bad[0]]!r}: {str(first)[:200]}."
        + (" dtype_backend=None shows them." if isinstance(dtype, pd.ArrowDtype) else "")
    )
    return make_series(kind, dtype, sound)


def refuse_unfit(data: Data, name: Hashable, field: Field, dtype_backend: Backend = None) -> None:
    """Refuse to fill a column whose cells its declared dtype cannot hold, before anything is sent.

    Args:
        data: The input.
        name: An output column.
        field: What was declared of it.
        dtype_backend: See `llmframe.dtypes.dtype_of`.

    Raises:
        SchemaError: Names the first such cell. The labels of a category are extended instead.
    """
    existing = _existing(data, name)
    dtype = dtype_of(field, dtype_backend)
    if existing is None or str(dtype) == "object":
        return
    array = _raw(existing)
    for label, cell in zip(existing.index, reader(array)(array), strict=True):
        try:
            kept = None if cell is None else as_kind(field.kind, cell)
            if field.kind == "object":
                make_series("object", dtype, [kept])
        except ValueError:
            shown = repr(cell) if len(repr(cell)) <= 60 else repr(cell)[:57] + "…"
            raise SchemaError(
                f'if_exists="fill" would keep {shown} in column {name_text(name)!r} (row '
                f"{label!r}), which a column of {dtype} cannot hold. Convert the column, or use "
                f'if_exists="replace". Nothing was sent.'
            ) from None


def _existing(data: Data, name: Hashable) -> pd.Series[Any] | None:
    if isinstance(data, pd.Series):
        return data if data.name == name else None
    place = position(data, name)
    return None if place is None else data.iloc[:, place]

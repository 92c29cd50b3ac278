"""Checked values become the plain values of a column: what stands in a cell."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.results import Failure
from llmframe.schemas.nodes import Kind, Node, deref, kind_of, without_null

__all__ = ["Checked", "Field", "Misfit", "column_values", "fields_of", "in_order", "plain"]


@dataclass(frozen=True, slots=True)
class Field:
    """One output column of a schema.

    Attributes:
        name: Its name, before `into` is applied.
        kind: What its values are: ``"str"``, ``"int"`` (64 bits), ``"float"`` (finite),
            ``"bool"``, ``"category"`` (one of `categories`), ``"datetime"`` (naive),
            ``"datetime_utc"`` (aware, in UTC) or ``"object"`` (lists, dicts, unions, Decimal).
        categories: Kind ``"category"``: the allowed texts in declared order.
        ordered: Whether the categories have an order.
        nullable: Whether the model may answer null.
        schema: Its property in the canonical schema.
        dtype: The pandas dtype that its user named, by name; None: the kind's own.
        defs: What the references in it mean.
    """

    name: str
    kind: Kind
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    nullable: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    defs: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a check: values in field order, or a failure.

    Attributes:
        values: One value a field, None where the answer is null; None on a failure.
        failure: Why the answer does not hold.
        coerced: Paths whose value was written in another type, such as ``"3"`` for 3.
    """

    values: tuple[Any, ...] | None
    failure: Failure | None = None
    coerced: tuple[str, ...] = ()


def fields_of(
    full: Node, names: tuple[str, ...], ordered: frozenset[str] = frozenset()
) -> tuple[Field, ...]:
    """The columns of a canonical schema.

    Args:
        full: The canonical schema.
        names: Name of each column, in the order of the properties.
        ordered: Columns whose categories have an order.

    Raises:
        SchemaError: A field can only be null.
    """
    defs = full.get("$defs", {})
    made = []
    for name, (wire, node) in zip(names, full["properties"].items(), strict=True):
        kind, values = kind_of(node, defs)
        inner, nullable = without_null(node, defs)
        if inner.get("type") == "null":
            raise SchemaError(f"field {name!r} can only be null. Give it a type to ask for.")
        optional = wire not in full["required"] and "default" not in deref(node, defs)
        made.append(
            Field(
                name,
                kind,
                # An Enum's aliases, and enums written by hand, say a value twice.
                tuple(dict.fromkeys(values)) if kind == "category" else None,
                name in ordered,
                nullable or optional,
                node,
                defs=defs,
            )
        )
    return tuple(made)


class Misfit(Exception):  # noqa: N818 - a value that does not fit, not a fault of the program
    """A value that passed its checks and still cannot stand in its column."""

    def __init__(self, message: str, kind: str = "invalid_output") -> None:
        super().__init__(message)
        self.kind = kind


_INT64: Final = range(-(2**63), 2**63)
_MICROSECOND: Final = timedelta(microseconds=1)


def _bare(value: Any) -> Any:
    """What an Enum's member or a pydantic RootModel stands for; any other value as it is."""
    while True:
        if isinstance(value, enum.Enum):
            value = value.value
        elif getattr(type(value), "__pydantic_root_model__", False):
            value = value.root
        else:
            return value


def plain(value: Any) -> Any:
    """A value without classes: models and dataclasses as dicts, Enums as their values.

    Cells hold plain values, so that a frame pickles, and goes to Parquet, without the classes.

    Args:
        value: What a check gave back.

    Returns:
        The same content in dicts, lists and scalars; Decimal and dates stay. A set is a sorted
        list, since its own order changes from process to process; a time of day with an offset
        is told in UTC, without it, as in every column of times.

    Raises:
        Misfit: An integer needs more than 64 bits, a float is not finite, a time or duration is
            beyond what a column holds, or a validator gave an object that has no text.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return _int(value)
    if kind is float:
        return _float(value)
    if kind is list:
        return [plain(item) for item in value]
    bare = _bare(value)
    if bare is not value:
        return plain(bare)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return _int(int(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    fields = getattr(kind, "model_fields", None)  # pydantic, without importing it
    if isinstance(fields, Mapping):
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, date | time | timedelta | Decimal | bytes):
        return _told(value)
    if isinstance(value, Iterable):
        try:
            items = [plain(item) for item in value]
            return in_order(items) if isinstance(value, Set) else items
        except ValueError as error:  # an iterator that checks as it goes
            raise Misfit(str(error).partition("\n")[0]) from None
    return _text(value)


def in_order(items: list[Any]) -> list[Any]:
    """The plain items of a set in an order that is the same in every process.

    Examples:
        >>> in_order(["b", 2, "a"])
        [2, 'a', 'b']
    """
    try:
        return sorted(items)
    except TypeError:  # of several types, or of one that has no order
        return sorted(items, key=lambda item: (type(item).__name__, repr(item)))


def _told(value: Any) -> Any:
    """A date, time, duration or the like, where a column holds it, as the column tells it."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            _utc(value)  # an Arrow column tells it in UTC
    elif isinstance(value, time):
        # A column has one clock.
        if value.utcoffset():
            value = datetime.combine(date(2000, 1, 1), value).astimezone(UTC).time()
        return value.replace(tzinfo=None)
    elif isinstance(value, timedelta) and value // _MICROSECOND not in _INT64:
        raise Misfit("is longer than the 292,000 years that a column of durations holds")
    return value


def _text(value: Any) -> Any:
    if type(value) is str:
        return value
    bare = _bare(value)
    if bare is not value:
        return _text(bare)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, re.Pattern):
        return value.pattern
    reveal = getattr(value, "get_secret_value", None)
    if reveal is not None:
        return reveal()
    # A UUID, a path or a URL: the column is text, whatever class checks it. What has no text of
    # its own would show as its repr.
    own = next(cls for cls in type(value).__mro__ if "__str__" in vars(cls))
    no_text = value is None or own is object or own.__module__.startswith("pydantic.main")
    if no_text or isinstance(value, _NO_TEXT):
        raise _wrong_type(value, "text")
    return str(value)


_NO_TEXT: Final = (Sequence, Mapping, Set, int, float, Decimal, date, time, timedelta)


def _int(value: Any) -> Any:
    if type(value) is not int:
        value = _bare(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong_type(value, "int")
        value = int(value)
    if value not in _INT64:
        raise Misfit("is an integer of more than 64 bits, which no column holds")
    return value


def _float(value: Any) -> Any:
    value = _bare(value)
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise _wrong_type(value, "float")
    try:
        value = float(value)
    except OverflowError:
        raise Misfit("is too large for a float") from None
    if not math.isfinite(value):
        raise Misfit("is no finite number")
    return value


def _narrow(most: float, value: Any) -> Any:
    value = _float(value)
    if abs(value) > most:
        raise Misfit(f"lies outside ±{most:.5g}, which its column can hold")
    return value


def _unsigned(value: Any) -> Any:
    whole = type(value) is int and 0 <= value < 2**64
    return value if whole else _int(value)


def _span(value: Any) -> Any:
    # What 64 bits of nanoseconds hold: the narrowest unit that a column has.
    if isinstance(value, timedelta) and abs(value) >= timedelta(days=106_751):
        raise Misfit("is a duration of 292 years or more, which its column cannot hold")
    return plain(value)


def _bool(value: Any) -> Any:
    value = _bare(value)
    if not isinstance(value, bool):
        raise _wrong_type(value, "bool")
    return value


def _naive(value: Any) -> Any:
    moment = _datetime(value)
    # A column has one clock: a time with an offset is told in UTC.
    return moment if moment.tzinfo is None else _utc(moment).replace(tzinfo=None)


def _utc(value: Any) -> Any:
    moment = _datetime(value)
    if moment.tzinfo is None:
        raise _wrong_type(value, "time with an offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise Misfit("lies outside the years 1 to 9999 in UTC") from None


def _datetime(value: Any) -> datetime:
    value = _bare(value)
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise _wrong_type(value, "date")


def _wrong_type(value: Any, column: str) -> Misfit:
    what = "None" if value is None else type(value).__name__
    more = ". Return the value, or allow None in its type" if value is None else ""
    return Misfit(f"became {what} in a validator, while its column is {column}{more}", "user_code")


def _takes_null(field: Field) -> bool:
    """Whether a field may hold None; a field of any type, or of a union, is let be."""
    if field.nullable or not field.schema:
        return True
    return "type" not in without_null(field.schema, field.defs)[0]


_BOUND: Final = 2**63  # floats beyond it are looked at one by one, which is all the same
_USUAL: Final[dict[str, type]] = {
    "str": str,
    "category": str,
    "int": int,
    "float": float,
    "bool": bool,
}
_CONVERT: Final[dict[str, Callable[[Any], Any]]] = {
    "str": _text,
    "category": str,  # any other text than those allowed is turned down
    "int": _int,
    "float": _float,
    "bool": _bool,
    "datetime": _naive,
    "date": _naive,
    "datetime_utc": _utc,
    "object": plain,
}


_NARROW: Final[dict[str, float]] = {
    "Float32": (2 - 2**-23) * 2.0**127,
    "float[pyarrow]": (2 - 2**-23) * 2.0**127,
    "halffloat[pyarrow]": 65504.0,
}
_UNSIGNED: Final = ("UInt64", "uint64[pyarrow]")


def _reader(field: Field) -> Callable[[Any], Any]:
    if field.dtype in _NARROW:
        return partial(_narrow, _NARROW[field.dtype])
    if field.dtype in _UNSIGNED:
        return _unsigned
    if field.dtype is not None and field.dtype.startswith("timedelta64["):
        return _span
    return _CONVERT[field.kind]


def _converter(field: Field) -> Callable[[Any], Any]:
    read, null, kind = _reader(field), _takes_null(field), field.kind
    told = {"str": "text", "category": "text", "object": "a list or object"}.get(kind, kind)
    allowed = frozenset(field.categories or ())
    moment = kind in ("datetime", "datetime_utc", "date")
    nanoseconds = moment and field.dtype is not None and "[ns" in field.dtype

    def convert(value: Any) -> Any:
        value = _bare(value)
        if value is None:
            if null:
                return None
            raise _wrong_type(None, told)
        made = read(value)
        if allowed and made not in allowed:
            listed = ", ".join(map(repr, (field.categories or ())[:10]))
            raise Misfit(f"became {made!r} in a validator, which is none of {listed}", "user_code")
        # What 64 bits of nanoseconds hold, but for a few months at both ends.
        if nanoseconds and not 1677 < made.year < 2262:
            raise Misfit("lies outside the years 1678 to 2261, which nanoseconds can hold")
        return made

    return convert


def column_values(fields: Sequence[Field]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function from checked values, in field order, to what stands in the cells.

    Args:
        fields: The columns.

    Returns:
        A function that raises `Misfit`, its message led by the field's name, for a value that
        no cell of its column can hold.
    """
    converters = tuple(_converter(field) for field in fields)
    own = (*_NARROW, *_UNSIGNED)  # these have a range of their own to look at
    usual = tuple(None if field.dtype in own else _USUAL.get(field.kind) for field in fields)
    bounded = [i for i, field in enumerate(fields) if field.kind in ("int", "float")]
    closed = [(i, frozenset(f.categories or ())) for i, f in enumerate(fields) if f.categories]
    # Of a category the converter asks whether it is one.
    steps: list[tuple[Any, bool, Any]] = [
        (None if field.kind == "category" else kind, kind in (int, float), converter)
        for field, kind, converter in zip(fields, usual, converters, strict=True)
    ]
    simple = None not in usual

    def convert(values: Sequence[Any]) -> tuple[Any, ...]:
        # Nearly every row: each value has its column's own type. Saves a call a value.
        if (
            simple
            and tuple(map(type, values)) == usual
            and all(-_BOUND <= values[i] < _BOUND for i in bounded)
            and all(values[i] in allowed for i, allowed in closed)
        ):
            return tuple(values)
        try:
            return tuple(
                [
                    value
                    if type(value) is kind and (not number or -_BOUND <= value < _BOUND)
                    else converter(value)
                    for (kind, number, converter), value in zip(steps, values, strict=True)
                ]
            )
        except Misfit:
            return _slowly(values)

    def _slowly(values: Sequence[Any]) -> tuple[Any, ...]:
        made = []
        for field_, converter, value in zip(fields, converters, values, strict=True):
            try:
                made.append(converter(value))
            except Misfit as misfit:
                raise Misfit(f"{field_.name}: {misfit}", misfit.kind) from None
        return tuple(made)

    return convert

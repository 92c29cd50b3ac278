"""Checked values become the plain values of a column: what stands in a cell."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.results import Failure
from llmframe.schemas.nodes import Kind, Node, deref, kind_of, without_null

__all__ = ["Checked", "Field", "Misfit", "column_values", "fields_of", "plain"]


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
                values if kind == "category" else None,
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


def plain(value: Any) -> Any:
    """A value without classes: models and dataclasses as dicts, Enums as their values.

    Cells hold plain values, so that a frame pickles, and goes to Parquet, without the classes.

    Args:
        value: What a check gave back.

    Returns:
        The same content in dicts, lists and scalars; Decimal and dates stay.

    Raises:
        Misfit: An integer needs more than 64 bits, or a float is not finite.
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
    if isinstance(value, enum.Enum):
        return plain(value.value)
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
        if (
            "root" in fields
            and len(fields) == 1
            and getattr(kind, "__pydantic_root_model__", False)
        ):
            return plain(value.root)
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, date | time | timedelta | Decimal | bytes):
        return value
    if isinstance(value, Iterable):
        try:
            return [plain(item) for item in value]
        except ValueError as error:  # an iterator that checks as it goes
            raise Misfit(str(error).partition("\n")[0]) from None
    return _text(value)


def _text(value: Any) -> Any:
    if type(value) is str:
        return value
    if isinstance(value, enum.Enum):
        return _text(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, re.Pattern):
        return value.pattern
    reveal = getattr(value, "get_secret_value", None)
    if reveal is not None:
        return reveal()
    # A UUID, a path or a URL: the column is text, whatever class checks it.
    if isinstance(value, Sequence | Mapping | set | int | float):
        raise _wrong_type(value, "text")
    return str(value)


def _int(value: Any) -> Any:
    if type(value) is not int:
        if isinstance(value, enum.Enum):
            return _int(value.value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong_type(value, "int")
        value = int(value)
    if value not in _INT64:
        raise Misfit("is an integer of more than 64 bits, which no column holds")
    return value


def _float(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _float(value.value)
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
    if isinstance(value, enum.Enum):
        return _bool(value.value)
    if not isinstance(value, bool):
        raise _wrong_type(value, "bool")
    return value


def _naive(value: Any) -> Any:
    moment = _datetime(value)
    # A column has one clock: a time with an offset is told in UTC.
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _utc(value: Any) -> Any:
    moment = _datetime(value)
    if moment.tzinfo is None:
        raise _wrong_type(value, "time with an offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise Misfit("lies outside the years 1 to 9999 in UTC") from None


def _datetime(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise _wrong_type(value, "date")


def _wrong_type(value: Any, column: str) -> Misfit:
    return Misfit(
        f"became {type(value).__name__} in a validator, while its column is {column}", "user_code"
    )


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
    "category": _text,
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


def _converter(field: Field) -> Callable[[Any], Any]:
    convert = _CONVERT[field.kind]
    if field.dtype in _NARROW:
        return partial(_narrow, _NARROW[field.dtype])
    if field.dtype in _UNSIGNED:
        return _unsigned
    if field.dtype is not None and field.dtype.startswith("timedelta64["):
        return _span
    if field.dtype is None or "[ns" not in field.dtype:
        return convert

    def bounded(value: Any) -> Any:
        moment = convert(value)
        # What 64 bits of nanoseconds hold, but for a few months at both ends.
        if not 1677 < moment.year < 2262:
            raise Misfit("lies outside the years 1678 to 2261, which nanoseconds can hold")
        return moment

    return bounded


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
    steps: list[tuple[Any, bool, Any]] = [
        (kind, kind in (int, float), converter)
        for kind, converter in zip(usual, converters, strict=True)
    ]
    simple = None not in usual

    def convert(values: Sequence[Any]) -> tuple[Any, ...]:
        # Nearly every row: each value has its column's own type. Saves a call a value.
        if (
            simple
            and tuple(map(type, values)) == usual
            and all(-_BOUND <= values[i] < _BOUND for i in bounded)
        ):
            return tuple(values)
        try:
            return tuple(
                [
                    value
                    if value is None
                    or (type(value) is kind and (not number or -_BOUND <= value < _BOUND))
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
                made.append(None if value is None else converter(value))
            except Misfit as misfit:
                raise Misfit(f"{field_.name}: {misfit}", misfit.kind) from None
        return tuple(made)

    return convert

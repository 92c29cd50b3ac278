"""Checked values become the plain values of a column: what stands in a cell."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.results import Failure
from llmframe.schemas.nodes import Kind, Node, deref, kind_of, without_null

__all__ = [
    "INT64",
    "Checked",
    "Field",
    "Misfit",
    "as_bool",
    "as_float",
    "as_int",
    "as_naive",
    "as_text",
    "as_utc",
    "bare",
    "fields_of",
    "in_order",
    "plain",
    "wrong_type",
]


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


INT64: Final = range(-(2**63), 2**63)
_MICROSECOND: Final = timedelta(microseconds=1)


def bare(value: Any) -> Any:
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
        return as_int(value)
    if kind is float:
        return as_float(value)
    if kind is list:
        return [plain(item) for item in value]
    inner = bare(value)
    if inner is not value:
        return plain(inner)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return as_int(int(value))
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
    return as_text(value)


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
            as_utc(value)  # an Arrow column tells it in UTC
    elif isinstance(value, time):
        # A column has one clock.
        if value.utcoffset():
            value = datetime.combine(date(2000, 1, 1), value).astimezone(UTC).time()
        return value.replace(tzinfo=None)
    elif isinstance(value, timedelta) and value // _MICROSECOND not in INT64:
        raise Misfit("is longer than the 292,000 years that a column of durations holds")
    return value


def as_text(value: Any) -> Any:
    """The text of a value whose column is text."""
    if type(value) is str:
        return value
    inner = bare(value)
    if inner is not value:
        return as_text(inner)
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
        raise wrong_type(value, "text")
    return str(value)


_NO_TEXT: Final = (Sequence, Mapping, Set, int, float, Decimal, date, time, timedelta)


def as_int(value: Any) -> Any:
    """An integer of 64 bits with a sign."""
    if type(value) is not int:
        value = bare(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(value, "int")
        value = int(value)
    if value not in INT64:
        raise Misfit("is an integer of more than 64 bits, which no column holds")
    return value


def as_float(value: Any) -> Any:
    """A finite float."""
    value = bare(value)
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise wrong_type(value, "float")
    try:
        value = float(value)
    except OverflowError:
        raise Misfit("is too large for a float") from None
    if not math.isfinite(value):
        raise Misfit("is no finite number")
    return value


def as_bool(value: Any) -> Any:
    """True or False, and no number for them."""
    value = bare(value)
    if not isinstance(value, bool):
        raise wrong_type(value, "bool")
    return value


def as_naive(value: Any) -> Any:
    """A moment without an offset; one with an offset is told in UTC."""
    moment = _datetime(value)
    return moment if moment.tzinfo is None else as_utc(moment).replace(tzinfo=None)


def as_utc(value: Any) -> Any:
    """A moment in UTC."""
    moment = _datetime(value)
    if moment.tzinfo is None:
        raise wrong_type(value, "time with an offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise Misfit("lies outside the years 1 to 9999 in UTC") from None


def _datetime(value: Any) -> datetime:
    value = bare(value)
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise wrong_type(value, "date")


def wrong_type(value: Any, column: str) -> Misfit:
    """A validator gave what the column does not take."""
    what = "None" if value is None else type(value).__name__
    more = ". Return the value, or allow None in its type" if value is None else ""
    return Misfit(f"became {what} in a validator, while its column is {column}{more}", "user_code")

"""What each column takes of a checked value, and what none of its cells can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from llmframe.schemas.nodes import without_null
from llmframe.schemas.values import (
    Field,
    Misfit,
    as_bool,
    as_float,
    as_int,
    as_naive,
    as_text,
    as_utc,
    bare,
    plain,
    wrong_type,
)

__all__ = ["column_values"]


def _narrow(most: float, value: Any) -> Any:
    value = as_float(value)
    if abs(value) > most:
        raise Misfit(f"lies outside ±{most:.5g}, which its column can hold")
    return value


def _unsigned(value: Any) -> Any:
    whole = type(value) is int and 0 <= value < 2**64
    return value if whole else as_int(value)


def _span(value: Any) -> Any:
    # What 64 bits of nanoseconds hold: the narrowest unit that a column has.
    if isinstance(value, timedelta) and abs(value) >= timedelta(days=106_751):
        raise Misfit("is a duration of 292 years or more, which its column cannot hold")
    return plain(value)


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
    "str": as_text,
    "category": str,  # any other text than those allowed is turned down
    "int": as_int,
    "float": as_float,
    "bool": as_bool,
    "datetime": as_naive,
    "date": as_naive,
    "datetime_utc": as_utc,
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
        value = bare(value)
        if value is None:
            if null:
                return None
            raise wrong_type(None, told)
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

"""A family of nested schemas, their answers and every dialect: the same values back, or a failure.

Each shape brings an oracle of its own: what the schema allows, what it forbids, and what the table
of coercions may put right. A single place of an answer is changed at random; what the oracle
forbids must fail, and what it allows must be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field, create_model
from typing_extensions import TypedDict

from llmframe.arrow import arrow_type, arrow_value
from llmframe.results import Result
from llmframe.schemas.dialects import anthropic, llama_grammar, openai_strict, xgrammar
from llmframe.schemas.forms import Form, form, form_from
from llmframe.schemas.reading import read
from tests.gbnf import accepts

Verdict = bool | None
"""Whether a value is allowed; None: it may be read as a coerced one, or fail."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Shape:
    """A type, its JSON values, the oracle, and what a cell and a strict mode make of a value."""

    type: Any
    values: st.SearchStrategy[Any]
    fits: Callable[[Any], Verdict]
    cell: Callable[[Any], Any] = _same
    write: Callable[[Any], Any] = _same


def all_of(verdicts: Iterator[Verdict]) -> Verdict:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def an_int(value: Any, allowed: Callable[[int], bool] = lambda n: True) -> Verdict:
    if isinstance(value, str):
        return None if re.fullmatch(r"\s*[+-]?\d+\s*", value) else False
    if isinstance(value, float):
        return None if value.is_integer() else False
    return type(value) is int and -(2**63) <= value < 2**63 and allowed(value)


def a_float(value: Any) -> Verdict:
    if isinstance(value, str):
        return None if re.fullmatch(r"[+-]?\d+(\.\d+)?", value) else False
    return type(value) in (int, float)


def a_bool(value: Any) -> Verdict:
    return (
        None
        if isinstance(value, str) and value.lower() in ("true", "false")
        else (type(value) is bool)
    )


def a_decimal(value: Any) -> Verdict:
    if type(value) in (int, float):
        return None
    return type(value) is str and re.fullmatch(r"-?\d+(\.\d+)?", value) is not None


def a_moment(kind: Any) -> Callable[[Any], Verdict]:
    def fits(value: Any) -> Verdict:
        if type(value) is not str or not re.match(r"\d{4}-\d\d-\d\d", value):
            return False
        try:
            kind.fromisoformat(value)
        except ValueError:
            return False
        return None if kind is datetime and "T" not in value else True

    return fits


def text(value: Any, pattern: str = "", most: int = 10**9) -> Verdict:
    return type(value) is str and len(value) <= most and re.search(pattern, value) is not None


def one_of(*allowed: Any) -> Callable[[Any], Verdict]:
    def fits(value: Any) -> Verdict:
        if any(type(value) is type(each) and value == each for each in allowed):
            return True
        return None if any(str(value) == str(each) or value == each for each in allowed) else False

    return fits


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=5)
SMALL = st.integers(-9, 9)
LEAVES = [
    Shape(int, SMALL, an_int),
    Shape(
        Annotated[int, Field(ge=0, multiple_of=5)],
        st.integers(0, 9).map(lambda n: 5 * n),
        lambda value: an_int(value, lambda n: n >= 0 and n % 5 == 0),
    ),
    Shape(float, st.sampled_from([0.5, -2.25, 3.0, 7]), a_float, float),
    Shape(bool, st.booleans(), a_bool),
    Shape(Annotated[str, Field(max_length=5)], TEXT, lambda value: text(value, most=5)),
    Shape(
        Annotated[str, Field(pattern="^[A-Z]{2}[0-9]$")],
        st.sampled_from(["AB1", "ZZ0"]),
        lambda value: text(value, r"^[A-Z]{2}[0-9]\Z"),
    ),
    Shape(Literal["a", 'b"'], st.sampled_from(["a", 'b"']), one_of("a", 'b"')),
    Shape(Literal[1, 2, 30], st.sampled_from([1, 2, 30]), one_of(1, 2, 30)),
    Shape(
        Decimal,
        st.decimals(-1000, 1000, places=2).map(lambda n: str(n + Decimal("0.00"))),
        a_decimal,
        Decimal,
    ),
    Shape(date, st.dates().map(date.isoformat), a_moment(date), date.fromisoformat),
    Shape(
        datetime,
        st.datetimes(timezones=st.none()).map(lambda at: at.replace(microsecond=0).isoformat()),
        a_moment(datetime),
        datetime.fromisoformat,
    ),
    Shape(
        int | Literal["na"],
        SMALL | st.just("na"),
        lambda value: (
            value == "na"
            or (
                None
                if isinstance(value, float)
                else (type(value) is int and -(2**63) <= value < 2**63)
            )
        ),
    ),
]


def nullable(inner: Shape) -> Shape:
    def unless_null(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: None if value is None else step(value)

    return Shape(
        inner.type | None,
        st.none() | inner.values,
        lambda value: True if value is None else inner.fits(value),
        unless_null(inner.cell),
        unless_null(inner.write),
    )


def listed(inner: Shape) -> Shape:
    def fits(value: Any) -> Verdict:
        if type(value) is not list or not 1 <= len(value) <= 3:
            return False
        return all_of(inner.fits(one) for one in value)

    return Shape(
        Annotated[list.__class_getitem__(inner.type), Field(min_length=1, max_length=3)],
        st.lists(inner.values, min_size=1, max_size=3),
        fits,
        lambda value: [inner.cell(one) for one in value],
        lambda value: [inner.write(one) for one in value],
    )


def mapped(inner: Shape) -> Shape:
    def fits(value: Any) -> Verdict:
        if value == []:
            return None  # no pairs: an empty map
        return type(value) is dict and all_of(inner.fits(one) for one in value.values())

    return Shape(
        dict.__class_getitem__((str, inner.type)),
        st.dictionaries(TEXT | st.just("key"), inner.values, max_size=3),
        fits,
        lambda value: {key: inner.cell(one) for key, one in value.items()},
        lambda value: [{"key": key, "value": inner.write(one)} for key, one in value.items()],
    )


def paired(inner: Shape) -> Shape:
    def fits(value: Any) -> Verdict:
        if type(value) is not list or len(value) != 2:
            return False
        return all_of(iter((an_int(value[0]), inner.fits(value[1]))))

    return Shape(
        tuple.__class_getitem__((int, inner.type)),
        st.tuples(SMALL, inner.values).map(list),
        fits,
        lambda value: [value[0], inner.cell(value[1])],
        lambda value: [value[0], inner.write(value[1])],
    )


def an_object(fields: dict[str, Shape], typed: bool) -> Shape:
    def fits(value: Any) -> Verdict:
        if type(value) is not dict:
            return False
        found = [
            shape.fits(value[name]) if name in value else None if shape.fits(None) else False
            for name, shape in fields.items()
        ]
        return all_of(iter([*found, True if value.keys() <= fields.keys() else None]))

    types = {name: shape.type for name, shape in fields.items()}
    return Shape(
        TypedDict("Part", types)  # type: ignore[operator]
        if typed
        else create_model("Part", **{name: (kind, ...) for name, kind in types.items()}),
        st.tuples(*(shape.values for shape in fields.values())).map(
            lambda values: dict(zip(fields, values, strict=True))
        ),
        fits,
        lambda value: {name: shape.cell(value[name]) for name, shape in fields.items()},
        lambda value: {name: shape.write(value[name]) for name, shape in fields.items()},
    )


def grown(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    one = st.builds(
        lambda wrap, shape: wrap(shape), st.sampled_from([nullable, listed, mapped, paired]), inner
    )
    names = st.sampled_from(["key", "value", "city", "model_x"])
    return one | st.builds(
        an_object, st.dictionaries(names, inner, min_size=1, max_size=3), st.booleans()
    )


SHAPES = st.recursive(st.sampled_from(LEAVES), grown, max_leaves=5)
Case = tuple[Form, dict[str, Shape], dict[str, Any]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.lists(st.sampled_from(["a", "b c", "ü", "key"]), min_size=1, unique=True))
    shapes = {name: draw(SHAPES) for name in names}
    answer = {name: draw(shape.values) for name, shape in shapes.items()}
    return form({name: shape.type for name, shape in shapes.items()}), shapes, answer


def expected(shapes: dict[str, Shape], answer: dict[str, Any]) -> tuple[Any, ...]:
    cells = [shape.cell(answer[name]) for name, shape in shapes.items()]
    # A column of dates has one clock with all others; inside a cell a date stays one.
    return tuple(
        datetime(cell.year, cell.month, cell.day) if type(cell) is date else cell for cell in cells
    )


def both(asked: Form) -> tuple[Form, Form]:
    """The form, and what another process makes of it."""
    return asked, form_from(json.loads(json.dumps(asked.stored())))


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    children: Any = enumerate(value) if type(value) is list else ()
    if type(value) is dict:
        children = value.items()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy with one place changed, by `change(container, key)`."""
    made = json.loads(json.dumps(value))
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return made


REPLACEMENTS: list[Any] = [None, True, 0, 1.5, -7, 10**30, "x", "ABCDEFG", "2024-02-30"]
REPLACEMENTS += ["1710028800", [], [[]], {}, {"key": "a"}, [1, 2, 3, 4]]


def put(new: Any) -> Callable[[Any, Any], None]:
    return lambda container, key: container.__setitem__(key, new)


def drop(container: Any, key: Any) -> None:
    del container[key]


def twice(container: Any, key: Any) -> None:
    if type(container) is list:
        container.insert(key, container[key])


CHANGES = st.sampled_from([*map(put, REPLACEMENTS), drop, twice])
quiet = settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@quiet
@given(cases())
def test_the_same_values_back_through_every_dialect(case: Case) -> None:
    asked, shapes, answer = case
    assert asked.schema is not None
    pairs = {name: shape.write(answer[name]) for name, shape in shapes.items()}
    ways = [(openai_strict, pairs), (anthropic, pairs), (xgrammar, answer)]
    for dialect, written in ways:
        wire = dialect(asked.schema)
        assert list(wire["properties"]) == list(shapes)
        assert Draft202012Validator(wire).is_valid(written), (dialect, written)
    if len(compact(answer)) < 200:  # the reader of grammars is slow
        assert accepts(llama_grammar(asked.schema), compact(answer)), compact(answer)
    for each in both(asked):
        for written in (pairs, answer):
            got = read(each, Result(b"", json.dumps(written), "stop"))
            assert got.failure is None, got.failure
            assert got.values == expected(shapes, answer)
            assert not got.coerced
            assert not got.repaired


@quiet
@given(cases(), st.data())
def test_what_one_change_breaks_is_a_failure_and_never_a_value(
    case: Case, data: st.DataObject
) -> None:
    asked, shapes, answer = case
    path = data.draw(st.sampled_from(list(places(answer))))
    new = changed(answer, path, data.draw(CHANGES))
    verdict = an_object(shapes, True).fits(new)
    assume(new != answer and verdict is not None)
    for each in both(asked):
        got = read(each, Result(b"", json.dumps(new), "stop"))
        if verdict:
            assert got.values == expected(shapes, new), (new, got)
        else:
            assert got.values is None, (new, got)
            assert got.failure is not None
            assert got.failure.kind == "invalid_output"


def with_maps(kind: Any, value: Any) -> Any:
    """A map is a list of pairs to pyarrow; newer releases can give dicts themselves."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: with_maps(kind.item_type, item) for key, item in value}
    if pa.types.is_list(kind):
        return [with_maps(kind.value_type, item) for item in value]
    if pa.types.is_struct(kind):
        return {part.name: with_maps(part.type, value[part.name]) for part in kind}
    return value


@quiet
@given(cases())
def test_an_arrow_column_holds_what_was_read(case: Case) -> None:
    import pyarrow as pa

    asked, shapes, answer = case
    values = read(asked, Result(b"", json.dumps(answer), "stop")).values
    assert values is not None
    for field, value, plain in zip(asked.fields, values, expected(shapes, answer), strict=True):
        kind = arrow_type(field.schema, field.defs)
        if kind is not None:
            column = pa.array([arrow_value(kind, value), None], type=kind)
            assert column.null_count == 1 + (value is None)
            back = with_maps(kind, column.to_pylist()[0])
            assert arrow_value(kind, back) == arrow_value(kind, plain)

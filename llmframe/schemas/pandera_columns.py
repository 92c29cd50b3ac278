"""pandera's schemas: columns with dtypes and checks, as a JSON Schema and checks of one value.

No import of pandera: whoever passes a schema has it. What looks at more than one row or column
(unique, aggregates, dataframe checks) cannot be told of one answer; it is a `Whole`, for whoever
has the joined frame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.schemas.pandera_checks import Test, scalar, test_of, told_by

__all__ = ["Columns", "Whole", "column_names", "columns"]


@dataclass(frozen=True, slots=True)
class Whole:
    """What a pandera schema says of a frame, rather than of one value.

    Attributes:
        schema: The `DataFrameSchema`.
        name: What its user calls it.
        asked: Columns that the model fills in; the others are the frame's own.
        checks: Checks that look at more than one value: their column, None for the whole frame,
            and the check.
        unique: Columns whose values, taken together, must not repeat.
    """

    schema: Any
    name: str
    asked: tuple[str, ...]
    checks: tuple[tuple[str | None, Any], ...]
    unique: tuple[tuple[str, ...], ...]

    @property
    def joint(self) -> bool:
        """Whether answers have to be looked at together."""
        return bool(self.checks or self.unique)


@dataclass(frozen=True, slots=True)
class Columns:
    """A pandera schema, taken apart.

    Attributes:
        schema: A raw JSON Schema.
        ordered: Columns whose categories have an order.
        dtypes: The pandas dtype of a column, where its user named one: a nullable one, by name.
        tests: Checks of one value that JSON cannot say: position of the column, and the test.
        defaults: What stands for null, by the position of the column.
        whole: What looks at more than one value.
        code: ``module:qualname`` of who holds checks that JSON cannot say, or None.
    """

    schema: dict[str, Any]
    ordered: frozenset[str]
    dtypes: dict[str, str]
    tests: tuple[tuple[int, Test], ...]
    defaults: Mapping[int, Any]
    whole: Whole
    code: str | None


def column_names(schema: Any) -> tuple[str, ...]:
    """The columns of a pandera schema, in order.

    Raises:
        SchemaError: It is no schema of columns with names.
    """
    return tuple(_opened(schema).columns)


def columns(schema: Any, have: Collection[str] = ()) -> Columns:
    """Take a pandera `DataFrameModel` or `DataFrameSchema` apart.

    Args:
        schema: The schema.
        have: Columns that the frame has already: checked there, and not asked for.

    Raises:
        SchemaError: A dtype has no JSON type, or no column is left to ask for.
    """
    owner = schema if isinstance(schema, type) else type(schema)
    schema = _opened(schema)
    _refuse_parsers(f"the pandera schema {_name(owner, schema)}", schema)
    defaults: dict[int, Any] = {}
    properties: dict[str, Any] = {}
    ordered: set[str] = set()
    dtypes: dict[str, str] = {}
    tests: list[tuple[int, Test]] = []
    joint: list[tuple[str | None, Any]] = []
    unique: list[tuple[str, ...]] = []
    asked = [name for name in schema.columns if name not in have]
    for name, column in schema.columns.items():
        checks = [check for check in column.checks if not getattr(check, "raise_warning", False)]
        if name in have:
            joint += [(name, check) for check in checks if _groups_by(check, asked)]
            continue
        if column.unique:
            unique.append((name,))
        node, has_order = _dtype(name, column)
        if has_order:
            ordered.add(name)
        _refuse_parsers(f"the pandera column {name!r}", column)
        position = len(properties)
        missing = scalar(column.default)
        if column.nullable and missing is not None and (missing == missing) is True:  # no NaN, NA
            defaults[position] = missing
        for check in checks:
            if told_by(node, check):
                continue
            test = test_of(name, check)
            if test is None:
                joint.append((name, check))
            else:
                tests.append((position, test))
        dtype = _twin(column.dtype, node)
        if dtype is not None:
            dtypes[name] = dtype
        words = ": ".join(part for part in (column.title, column.description) if part)
        if column.nullable or not column.required:
            node = {"anyOf": [node, {"type": "null"}]}
        properties[name] = {**node, "description": words} if words else node
    if not properties:
        raise SchemaError(
            f"the frame has every column of the pandera schema {_name(owner, schema)} already, so "
            f"there is nothing to ask for. Add the column to fill in, or use its validate()."
        )
    joint += [
        (None, check) for check in schema.checks if not getattr(check, "raise_warning", False)
    ]
    unique += [group for group in _unique_groups(schema) if not set(group).issubset(have)]
    made: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    if getattr(schema, "description", None):
        made["description"] = schema.description
    whole = Whole(schema, _name(owner, schema), tuple(asked), tuple(joint), tuple(unique))
    own = tests or whole.joint or defaults
    code = f"{owner.__module__}:{owner.__qualname__}" if own else None
    return Columns(made, frozenset(ordered), dtypes, tuple(tests), defaults, whole, code)


def _refuse_parsers(what: str, part: Any) -> None:
    """A parser takes a whole column, so what it makes of one answer cannot be checked or stored."""
    if getattr(part, "parsers", None):
        raise SchemaError(
            f"{what} has a parser, which is not run on answers. Ask with a schema without it, and "
            f"give the frame that comes back to the validate() of this one; what an answer has to "
            f"look like, write as a check or in the description."
        )


def _opened(schema: Any) -> Any:
    owner = schema if isinstance(schema, type) else type(schema)
    if hasattr(schema, "to_schema"):
        schema = schema.to_schema()
    if not isinstance(getattr(schema, "columns", None), Mapping):
        raise SchemaError(
            f"{owner.__name__} is no pandera schema with columns. Pass a DataFrameModel class or a "
            f"DataFrameSchema object."
        )
    if not schema.columns:
        raise SchemaError(f"the pandera schema {owner.__name__} has no columns. Add one.")
    for name, column in schema.columns.items():
        if not isinstance(name, str) or getattr(column, "regex", False):
            raise SchemaError(f"the pandera column {name!r} is no single name. Name each column.")
    return schema


def _name(owner: Any, schema: Any) -> str:
    own: str = owner.__name__
    return own if not isinstance(schema, owner) else str(schema.name or own)


def _groups_by(check: Any, asked: Sequence[str]) -> bool:
    """Whether a check of a column that the frame has looks at one that is asked for."""
    by = check.groupby
    return callable(by) or any(
        name in asked for name in ([by] if isinstance(by, str) else by or ())
    )


def _unique_groups(schema: Any) -> list[tuple[str, ...]]:
    given = schema.unique or []
    given = [given] if isinstance(given, str) else list(given)
    if all(isinstance(name, str) for name in given):
        return [tuple(given)] if given else []
    return [(group,) if isinstance(group, str) else tuple(group) for group in given]


_JSON_TYPES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("Bool", {"type": "boolean"}),
    ("UInt", {"type": "integer", "minimum": 0}),  # before Int, from which it inherits
    ("Int", {"type": "integer"}),
    ("Float", {"type": "number"}),
    ("String", {"type": "string"}),
    ("Timestamp", {"type": "string", "format": "date-time"}),  # before Date, likewise
    ("Date", {"type": "string", "format": "date"}),
    ("Timedelta", {"type": "string", "format": "duration"}),
    ("Decimal", {"type": "string", "format": "decimal"}),
)


def _dtype(name: str, column: Any) -> tuple[dict[str, Any], bool]:
    dtype = column.dtype
    bases = [base.__name__ for base in type(dtype).__mro__ if base.__module__ == "pandera.dtypes"]
    if "Category" in bases:
        values = list(getattr(dtype, "categories", None) or [])
        listed = any(check.name == "isin" for check in column.checks)
        if not values and not listed:
            raise SchemaError(
                f"the pandera column {name!r} is a category without categories. Give it "
                f"dtype_kwargs={{'categories': [...]}} or isin=[...]."
            )
        values = [scalar(value) for value in values]
        for value in values:
            if not isinstance(value, str | int | float):
                raise SchemaError(
                    f"the pandera column {name!r} has the category {value!r}, which JSON cannot "
                    f"carry. Ask for texts, numbers or truth values, and convert them afterwards."
                )
        node: dict[str, Any] = {"enum": values} if values else {}
        return node, bool(getattr(dtype, "ordered", False))
    for base, made in _JSON_TYPES:
        if base not in bases:
            continue
        node = dict(made)
        width = getattr(dtype, "bit_width", None)
        if node["type"] == "integer" and isinstance(width, int) and width < 64:
            node["minimum"] = -(2 ** (width - 1)) if base == "Int" else 0
            node["maximum"] = 2 ** (width - (base == "Int")) - 1
        if base == "Decimal":
            node |= {"max_digits": dtype.precision, "decimal_places": dtype.scale}
        if base == "Timestamp" and getattr(dtype, "tz", None) is not None:
            node["tz"] = "aware"
        return node, False
    raise SchemaError(
        f"the pandera column {name!r} has the dtype {dtype}, which no model can be asked for. Give "
        f"it str, int, float, bool, a category with categories, or a datetime."
    )


def _twin(dtype: Any, node: Mapping[str, Any]) -> str | None:
    """The nullable pandas dtype of a pandera dtype, by its name; None: as the values want it.

    A column may hold rows without an answer, so numpy's integers and booleans have no place in
    it. "str" stands for pandas' own text.
    """
    name = str(getattr(dtype, "type", dtype) if "Arrow" in type(dtype).__name__ else dtype)
    bases = {base.__name__ for base in type(dtype).__mro__ if base.__module__ == "pandera.dtypes"}
    if "Category" in bases:
        return None
    if name.endswith("[pyarrow]") and "Arrow" in type(dtype).__name__:
        return name
    if "String" in bases:
        return "str"
    if "Bool" in bases:
        return "boolean"
    width = getattr(dtype, "bit_width", None)
    if "UInt" in bases or "Int" in bases:
        return f"{'UInt' if 'UInt' in bases else 'Int'}{width or 64}"
    if "Float" in bases:
        return "Float32" if width is not None and width <= 32 else "Float64"
    if name == "date":
        return "object"  # of `datetime.date`
    return name if name.startswith(("datetime64[", "timedelta64[")) else None

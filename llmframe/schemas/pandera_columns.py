"""pandera's schemas: columns with dtypes and checks, as a JSON Schema and checks of one value.

No import of pandera: whoever passes a schema has it. What looks at more than one row or column
(unique, aggregates, dataframe checks) cannot be told of one answer and is refused.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.results import Failure
from llmframe.schemas.checks import Check
from llmframe.schemas.values import Checked
from llmframe.schemas.wording import invalid, shown

__all__ = ["Columns", "columns", "with_checks"]

Test = Callable[[Any], Failure | None]


@dataclass(frozen=True, slots=True)
class Columns:
    """A pandera schema, taken apart.

    Attributes:
        schema: A raw JSON Schema.
        ordered: Columns whose categories have an order.
        tests: Checks of one value that JSON cannot say: position of the column, and the test.
        code: ``module:qualname`` of who holds them, or None.
    """

    schema: dict[str, Any]
    ordered: frozenset[str]
    tests: tuple[tuple[int, Test], ...]
    code: str | None


def columns(schema: Any) -> Columns:
    """Take a pandera `DataFrameModel` or `DataFrameSchema` apart.

    Raises:
        SchemaError: A dtype has no JSON type, or a check needs more than one value.
    """
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
    if getattr(schema, "checks", None) or getattr(schema, "unique", None):
        raise SchemaError(
            f"the pandera schema {owner.__name__} has a check over several columns or rows, which "
            f"one answer cannot meet. Take it out here and validate the finished frame with it."
        )
    properties: dict[str, Any] = {}
    ordered: set[str] = set()
    tests: list[tuple[int, Test]] = []
    for position, (name, column) in enumerate(schema.columns.items()):
        if not isinstance(name, str) or getattr(column, "regex", False):
            raise SchemaError(f"the pandera column {name!r} is no single name. Name each column.")
        if column.unique:
            raise SchemaError(
                f"the pandera column {name!r} is unique=True, which one answer cannot meet. Take "
                f"it out here and validate the finished frame with it."
            )
        node, has_order = _dtype(name, column)
        if has_order:
            ordered.add(name)
        for check in column.checks:
            if getattr(check, "raise_warning", False):
                continue
            if not _builtin(node, check):
                tests.append((position, _test(name, check)))
        words = column.description or column.title
        if column.nullable or not column.required:
            node = {"anyOf": [node, {"type": "null"}]}
        properties[name] = {**node, "description": words} if words else node
    made: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    if getattr(schema, "description", None):
        made["description"] = schema.description
    code = f"{owner.__module__}:{owner.__qualname__}" if tests else None
    return Columns(made, frozenset(ordered), tuple(tests), code)


def with_checks(check: Check, tests: Sequence[tuple[int, Test]]) -> Check:
    """`check`, and then each test on its column's value."""

    def both(value: dict[str, Any]) -> Checked:
        checked = check(value)
        if checked.values is None:
            return checked
        for position, test in tests:
            one = checked.values[position]
            failure = None if one is None else test(one)
            if failure is not None:
                return Checked(None, failure)
        return checked

    return both if tests else check


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
        node: dict[str, Any] = {"enum": [_scalar(value) for value in values]} if values else {}
        return node, bool(getattr(dtype, "ordered", False))
    for base, made in _JSON_TYPES:
        if base not in bases:
            continue
        node = dict(made)
        width = getattr(dtype, "bit_width", None)
        if node["type"] == "integer" and isinstance(width, int) and width < 64:
            node["minimum"] = -(2 ** (width - 1)) if base == "Int" else 0
            node["maximum"] = 2 ** (width - (base == "Int")) - 1
        if base == "Timestamp" and getattr(dtype, "tz", None) is not None:
            node["tz"] = "aware"
        return node, False
    raise SchemaError(
        f"the pandera column {name!r} has the dtype {dtype}, which no model can be asked for. Give "
        f"it str, int, float, bool, a category with categories, or a datetime."
    )


def _builtin(node: dict[str, Any], check: Any) -> bool:
    """Write one of pandera's own checks into the node; whether JSON can say it."""
    told = {key: _scalar(value) for key, value in (check.statistics or {}).items()}
    name = check.name
    bounds = {
        "greater_than": ("exclusiveMinimum", "min_value"),
        "greater_than_or_equal_to": ("minimum", "min_value"),
        "less_than": ("exclusiveMaximum", "max_value"),
        "less_than_or_equal_to": ("maximum", "max_value"),
    }
    patterns: dict[str, tuple[str, Callable[[str], str]]] = {
        "str_matches": ("pattern", lambda text: f"^(?:{text})"),
        "str_contains": ("pattern", lambda text: text),
        "str_startswith": ("string", lambda text: "^" + re.escape(text)),
        "str_endswith": ("string", lambda text: re.escape(text) + "$"),
    }
    if name in bounds:
        rule, source = bounds[name]
        return _bound(node, rule, told.get(source))
    if name == "in_range":
        low = "minimum" if told.get("include_min", True) else "exclusiveMinimum"
        high = "maximum" if told.get("include_max", True) else "exclusiveMaximum"
        return _bound(node, low, told.get("min_value")) and _bound(
            node, high, told.get("max_value")
        )
    if name in ("isin", "equal_to"):
        given = told.get("allowed_values", [told.get("value")])
        # A set has no order of its own, and the order of labels changes answers and the key.
        given = sorted(given, key=str) if isinstance(given, set | frozenset) else given
        allowed = [_scalar(value) for value in given]
        if not all(isinstance(value, str | int | float) for value in allowed):
            return False
        node["enum"] = [value for value in node.get("enum", allowed) if value in allowed]
        return True
    if name == "str_length":
        exact = told.get("exact_value")
        for word, key in (("minLength", "min_value"), ("maxLength", "max_value")):
            size = told.get(key) if exact is None else exact
            if size is not None:
                node[word] = size
        return True
    if name in patterns and "pattern" not in node:
        source, make = patterns[name]
        text = told.get(source)
        if isinstance(text, str):
            node["pattern"] = make(text)
            return True
    return False


def _bound(node: dict[str, Any], word: str, value: Any) -> bool:
    if not isinstance(value, int | float) or node.get("type") not in ("integer", "number"):
        return False
    tighter = max if word in ("minimum", "exclusiveMinimum") else min
    node[word] = tighter(value, node.get(word, value))
    return True


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _test(name: str, check: Any) -> Test:
    told = check.statistics or {}
    if check.name in _ONE_VALUE and told and not check.groupby:
        rule = _ONE_VALUE[check.name]

        def holds(value: Any) -> bool:
            return rule(value, told)

    elif check.element_wise and not check.groupby:
        function, given = check._check_fn, check._check_kwargs

        def holds(value: Any) -> bool:
            return bool(function(value, **given))

    else:
        raise SchemaError(
            f"the pandera column {name!r} has a check ({check.name or 'unnamed'}) over the whole "
            f"column, which one answer cannot meet. Write it for one value: Check(…, "
            f"element_wise=True)."
        )
    words = check.error or check.description or f"fails the check {check.name or 'of its column'}"

    def test(value: Any) -> Failure | None:
        try:
            if holds(value):
                return None
        except (ValueError, AssertionError) as error:
            return invalid(f"{name}: {error}")
        except Exception:
            text = traceback.format_exc()[-2000:]
            return Failure("user_code", f"a check of column {name!r} raised:\n{text}")
        return invalid(f"{name}: {words}, got {shown(value)}")

    return test


def _compare(operation: Callable[[Any, Any], bool], key: str) -> Callable[[Any, Any], bool]:
    def compare(value: Any, told: Any) -> bool:
        bound = told[key]
        if hasattr(bound, "to_pydatetime"):
            bound = bound.to_pydatetime()
        return operation(value, bound)

    return compare


# pandera's own checks where JSON has no word for them: bounds of dates, forbidden values.
_ONE_VALUE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "greater_than": _compare(lambda value, bound: bool(value > bound), "min_value"),
    "greater_than_or_equal_to": _compare(lambda value, bound: bool(value >= bound), "min_value"),
    "less_than": _compare(lambda value, bound: bool(value < bound), "max_value"),
    "less_than_or_equal_to": _compare(lambda value, bound: bool(value <= bound), "max_value"),
    "in_range": lambda value, told: (
        bool(told["min_value"] <= value <= told["max_value"])
        and (told.get("include_min", True) or value != told["min_value"])
        and (told.get("include_max", True) or value != told["max_value"])
    ),
    "isin": lambda value, told: value in list(told["allowed_values"]),
    "equal_to": lambda value, told: value == told["value"],
    "not_equal_to": lambda value, told: value != told["value"],
    "notin": lambda value, told: value not in list(told["forbidden_values"]),
    "str_matches": lambda value, told: re.match(told["pattern"], value) is not None,
    "str_contains": lambda value, told: re.search(told["pattern"], value) is not None,
    "str_startswith": lambda value, told: value.startswith(told["string"]),
    "str_endswith": lambda value, told: value.endswith(told["string"]),
}

"""pandera's checks of one value: as words of a JSON Schema, or as a test that is run here."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llmframe.results import Failure
from llmframe.schemas.checks import Check
from llmframe.schemas.values import Checked
from llmframe.schemas.wording import invalid, shown

__all__ = ["Test", "scalar", "test_of", "told_by", "with_checks"]

Test = Callable[[Any], Failure | None]


def with_checks(
    check: Check, tests: Sequence[tuple[int, Test]], defaults: Mapping[int, Any]
) -> Check:
    """`check`, then what stands for null, and then each test on its column's value."""

    def both(value: dict[str, Any]) -> Checked:
        checked = check(value)
        if checked.values is None:
            return checked
        values = tuple(
            defaults.get(position) if value is None else value
            for position, value in enumerate(checked.values)
        )
        for position, test in tests:
            one = values[position]
            failure = None if one is None else test(one)
            if failure is not None:
                return Checked(None, failure)
        return Checked(values, None, checked.coerced)

    return both if tests or defaults else check


def told_by(node: dict[str, Any], check: Any) -> bool:
    """Write one of pandera's own checks into the node; whether JSON can say it."""
    told = {key: scalar(value) for key, value in (check.statistics or {}).items()}
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
        allowed = [scalar(value) for value in given]
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


def scalar(value: Any) -> Any:
    """A value without numpy."""
    return value.item() if hasattr(value, "item") else value


def test_of(name: str, check: Any) -> Test | None:
    """A check as a test of one value; None where it looks at more."""
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
        return None
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

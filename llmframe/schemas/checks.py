"""The strict check of a decoded answer against the full schema.

Two checks with one behaviour: `ModelCheck` asks pydantic, with the user's own class and its
validators; `SchemaCheck` asks the JSON Schema alone, for schemas that came as one and for jobs
that are joined in a process that has not the class.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, Final, cast

import orjson

from llmframe.results import Failure
from llmframe.schemas.coercion import Coercion, Invalid
from llmframe.schemas.converting import column_values
from llmframe.schemas.formats import FORMATS, is_multiple
from llmframe.schemas.nodes import Node, deref, entry, is_free, merged, without_null
from llmframe.schemas.values import Checked, Field, Misfit, in_order
from llmframe.schemas.wording import invalid, joined, path_of, schema_words, validator_words

__all__ = ["Check", "ModelCheck", "SchemaCheck"]

Check = Callable[[dict[str, Any]], Checked]


class _Base(ABC):
    """What both checks share: coercion, then the check, then the cells' values."""

    def __init__(self, schema: Node, fields: Sequence[Field]) -> None:
        self._coercion = Coercion(schema)
        self._always = self._coercion.always
        self._cells = column_values(fields)

    def __call__(self, value: dict[str, Any]) -> Checked:
        coerced: tuple[str, ...] = ()
        try:
            if self._always:
                value, coerced = self._coercion(value)
            values, failure = self._checked(value)
            if failure is not None and not self._always:
                value, coerced = self._coercion(value)
                if coerced:
                    values, failure = self._checked(value)
            if failure is not None or values is None:
                return Checked(None, failure)
            return Checked(self._cells(values), None, coerced)
        except Invalid as error:
            return Checked(None, invalid(str(error)))
        except Misfit as misfit:
            if misfit.kind == "invalid_output":
                return Checked(None, invalid(str(misfit)))
            return Checked(None, Failure(misfit.kind, str(misfit)))
        except RecursionError:
            return Checked(None, invalid("the answer is nested too deeply"))

    @abstractmethod
    def _checked(self, value: dict[str, Any]) -> tuple[Sequence[Any] | None, Failure | None]:
        """The values in the columns' order, or what is wrong."""


class ModelCheck(_Base):
    """pydantic's check, in strict JSON mode.

    Args:
        adapter: A pydantic `TypeAdapter`.
        schema: The canonical schema.
        fields: The columns.
        names: Python names of the fields, in order.
        mapping: Whether a checked answer is a dict (TypedDict) rather than an instance.
    """

    def __init__(
        self,
        adapter: Any,
        schema: Node,
        fields: Sequence[Field],
        names: Sequence[str],
        *,
        mapping: bool,
    ) -> None:
        super().__init__(schema, fields)
        from pydantic import ValidationError

        # The validator itself: TypeAdapter's own method costs 0.4 µs more a row.
        self._validate = adapter.validator.validate_json
        self._error = ValidationError
        self._known = _property_names(schema)
        self._root = frozenset(schema["properties"])
        self._take = _from_dict(names) if mapping else _from_instance(names)

    def whole_text(self, text: str) -> tuple[Any, ...] | None:
        """The cells of a reply that is strict JSON and right as it stands, in one reading.

        Decoding with a look at each key, and encoding again for pydantic, costs twice the check
        itself; nearly every reply of a constrained engine needs neither.

        Args:
            text: The reply.

        Returns:
            None where anything is unusual: then `__call__` says what, or finds the values.
        """
        if self._always:
            return None
        try:
            value = orjson.loads(text)  # refuses NaN and infinite numbers, which pydantic takes
            if type(value) is not dict or self._root.isdisjoint(value) or not _once(text, value):
                return None
            return self._cells(self._take(self._validate(text, strict=True)))
        except Exception:
            # Nothing is hidden: the slow way meets the same fault, a validator's too, and tells it.
            return None

    def _checked(self, value: dict[str, Any]) -> tuple[Sequence[Any] | None, Failure | None]:
        try:
            data = _encoded(value)
        except (ValueError, TypeError) as error:
            return None, invalid(f"the answer holds what JSON cannot carry: {error}")
        try:
            return self._take(self._validate(data, strict=True)), None
        except self._error as error:
            faults = error.errors(include_url=False)
            return None, invalid(
                joined((path_of(one["loc"], self._known), validator_words(one)) for one in faults)
            )
        except Exception as error:
            inside = error.__traceback__.tb_next if error.__traceback__ else None
            if isinstance(error, RecursionError) and inside is None:
                raise  # pydantic's own: the answer is too deep, not a validator
            text = traceback.format_exc()
            return None, Failure(
                "user_code", "a validator of the schema raised:\n" + text[-2000:], retryable=False
            )


class SchemaCheck(_Base):
    """The check of a JSON Schema (draft 2020-12), its formats included.

    Args:
        schema: The canonical schema.
        fields: The columns.
        sets: Lists of unique items are sets, whose order says nothing.
    """

    def __init__(self, schema: Node, fields: Sequence[Field], *, sets: bool = False) -> None:
        super().__init__(schema, fields)
        self._sets = sets
        self._defs: Mapping[str, Any] = schema.get("$defs", {})
        self._validator = _validator(schema)
        self._properties = schema["properties"]

    def _checked(self, value: dict[str, Any]) -> tuple[Sequence[Any] | None, Failure | None]:
        errors = list(islice(self._validator.iter_errors(value), 20))
        if errors:
            return None, invalid(
                joined((path_of(one.absolute_path), schema_words(one)) for one in errors)
            )
        return [
            self._convert(value.get(name, child.get("default")), child, name)
            for name, child in self._properties.items()
        ], None

    def _convert(self, value: Any, node: Mapping[str, Any], path: str) -> Any:
        """Texts in a format become dates, decimals …, as pydantic gives them."""
        if value is None or isinstance(value, bool):
            return value
        inner, _ = without_null(deref(node, self._defs), self._defs)
        if "allOf" in inner:
            inner = merged(inner, self._defs)
        branches = inner.get("anyOf") or inner.get("oneOf")
        if branches:
            for branch in branches:
                made = deref(branch, self._defs)
                if self._validator.evolve(schema={**made, "$defs": self._defs}).is_valid(value):
                    try:
                        return self._convert(value, made, path)
                    except Invalid:
                        continue
            return value
        if isinstance(value, str):
            reader = FORMATS.get(str(inner.get("format"))) if "enum" not in inner else None
            return value if reader is None else reader(value, inner, path)
        if isinstance(value, dict) and is_free(inner):
            _, free = entry(inner) or ({}, {})
            return {k: self._convert(v, free, f"{path}.{k}") for k, v in value.items()}
        if isinstance(value, dict) and "properties" in inner:
            made = {}
            for name, child in inner["properties"].items():
                if name in value:
                    made[name] = self._convert(value[name], child, f"{path}.{name}")
                elif "default" in child or name not in inner["required"]:
                    made[name] = self._convert(child.get("default"), child, path)
            return made
        if isinstance(value, list):
            first, rest = inner.get("prefixItems", ()), inner.get("items", {})
            items = [
                self._convert(item, first[i] if i < len(first) else rest, f"{path}[{i}]")
                for i, item in enumerate(value)
            ]
            return in_order(items) if self._sets and inner.get("uniqueItems") else items
        return value


def _from_instance(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    take = attrgetter(*names)
    return (lambda made: (take(made),)) if len(names) == 1 else take


def _from_dict(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    return lambda made: [made.get(name) for name in names]


def _once(text: str, value: dict[str, Any]) -> bool:
    """Whether no object of a JSON text has a key twice; False also where that takes a closer look.

    A colon follows each key that was written, and a quote stands before it where no white space
    does. So there are at least as many as keys were written; as many as were read means that no
    key was lost.
    """
    keys = len(value) if text.count("{") == 1 else _keys(value)
    if text.count(":") == keys:
        return True
    if " :" in text or "\n:" in text or "\t:" in text or "\r:" in text:
        return False
    return text.count('":') == keys


def _keys(value: dict[str, Any] | list[Any]) -> int:
    if type(value) is dict:
        count, items = len(value), list(value.values())
    else:
        count, items = 0, cast("list[Any]", value)
    for item in items:
        if type(item) is dict or type(item) is list:
            count += _keys(item)
    return count


def _encoded(value: Any) -> bytes:
    try:
        data = orjson.dumps(value, default=_number)
    except TypeError:
        # orjson stops at 64-bit integers and at 254 levels; the check itself decides on those.
        return json.dumps(value, default=_number, allow_nan=False).encode()
    if b"null" in data:
        _refuse_non_finite(value)  # orjson writes NaN as null, which a nullable field would take
    return data


def _number(value: Any) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid("", "NaN and Infinity are no numbers in JSON")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        if type(item) not in _FINITE:
            _refuse_non_finite(item)


_FINITE: Final = frozenset({str, int, bool, type(None)})


def _property_names(schema: Any) -> frozenset[str]:
    names: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            names.update(node.get("properties", ()))
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(schema)
    return frozenset(names)


def _validator(schema: Node) -> Any:
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import ValidationError

    extend: Any = validators.extend

    def pattern(validator: Any, rule: str, value: Any, schema: Any) -> Iterable[Any]:
        if isinstance(value, str) and not _python_pattern(rule).search(value):
            yield ValidationError(f"{value!r} does not match {rule!r}")

    def multiple(validator: Any, rule: Any, value: Any, schema: Any) -> Iterable[Any]:
        if validator.is_type(value, "number") and not is_multiple(value, rule):
            yield ValidationError(f"{value!r} is no multiple of {rule}")

    def integer(checker: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    # To JSON Schema 3.0 is an integer; here it becomes one, and is marked.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", integer)
    words = {"pattern": pattern, "multipleOf": multiple}
    return extend(Draft202012Validator, words, type_checker=types)(schema)


@lru_cache(maxsize=256)
def _python_pattern(rule: str) -> re.Pattern[str]:
    # `$` is the very end in JSON Schema; Python's lets one line feed stand after it.
    strict = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", _end, rule, flags=re.DOTALL)
    return re.compile(strict)


def _end(match: re.Match[str]) -> str:
    return r"\Z" if match[0] == "$" else match[0]

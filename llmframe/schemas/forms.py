r"""Any way to write a schema becomes one `Form`: what is asked, how it is checked, which columns.

Examples:
    >>> from typing import Literal, Optional
    >>> from llmframe.schemas.forms import form
    >>> asked = form({"topic": Literal["bug", "praise"], "stars": Optional[int]})
    >>> [(field.name, field.kind, field.nullable) for field in asked.fields]
    [('topic', 'category', False), ('stars', 'int', True)]
    >>> asked.check({"topic": "bug", "stars": "3"}).values
    ('bug', 3)
    >>> asked.check({"topic": "idea", "stars": 3}).failure.message
    'topic: should be \'bug\' or \'praise\', got "idea"'
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from llmframe.errors import SchemaError, warn_user
from llmframe.results import Failure
from llmframe.schemas.canonical import canonical, normal
from llmframe.schemas.checks import Check, ModelCheck, SchemaCheck
from llmframe.schemas.coercion import Invalid
from llmframe.schemas.flat import Flat
from llmframe.schemas.hints import no_schema, no_types
from llmframe.schemas.nodes import Node, bounds_in_64_bits
from llmframe.schemas.pairs import Pairs, holds_map
from llmframe.schemas.python_types import UNNAMED, describe, has_fields, is_type
from llmframe.schemas.values import Checked, Field, fields_of
from llmframe.schemas.wording import invalid, shown

if TYPE_CHECKING:
    from llmframe.schemas.pandera_columns import Whole

__all__ = ["Checked", "Field", "Form", "form", "form_again", "form_from", "pandera_names"]

_RAW_WORDS: Final = frozenset(
    {"$schema", "$ref", "$defs", "definitions", "type", "properties", "items"}
    | {"enum", "const", "anyOf", "oneOf", "allOf"}
)
_DEFAULT_NAME: Final = "response"


class Form:
    """A schema in one canonical form; immutable.

    Attributes:
        fields: The output columns, in declared order.
        schema: The canonical full JSON Schema, its root an object; None for free text.
        bare: Whether it is one column that takes the verb's own name: text or a bare type.
        normal: The schema's part of a request's key; None for free text.
        code: ``module:qualname`` of what holds checks that JSON cannot say, or None.
        exact: Whether a reply's numbers must be decoded with all their digits (Decimal).
        whole: What is said of the frame rather than of one answer; None where nothing is.
    """

    __slots__ = (
        "_check",
        "_known",
        "_nested",
        "_pairs",
        "_whole_text",
        "bare",
        "code",
        "exact",
        "fields",
        "normal",
        "schema",
        "whole",
    )

    def __init__(
        self,
        fields: tuple[Field, ...],
        schema: Node | None,
        check: Check | None,
        *,
        bare: bool,
        code: str | None = None,
        whole: Whole | None = None,
    ) -> None:
        self.whole = whole
        self.fields = fields
        self.schema = schema
        self.bare = bare
        self.code = code
        self.normal = None if schema is None else normal(schema)
        self.exact = '"format":"decimal"' in (self.normal or "")
        self._check = check
        self._nested: Form | None = None
        self._pairs = Pairs(schema) if schema is not None and holds_map(schema) else None
        self._whole_text = None
        if isinstance(check, ModelCheck) and self._pairs is None and not self.exact:
            self._whole_text = check.whole_text
        self._known = frozenset(() if schema is None else schema["properties"])

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.kind}" for field in self.fields)
        return f"Form({columns})"

    def check(self, value: object) -> Checked:
        """Check a decoded answer against the full schema.

        Args:
            value: Decoded JSON; for free text the text.

        Returns:
            Plain values in field order, or a failure: ``invalid_output``, ``user_code`` (a
            validator raised something else than ValueError or AssertionError) or ``needs_code``.
        """
        if self._check is None:
            if isinstance(value, str):
                return Checked((value,))
            return Checked(None, invalid(f"expected text, got {shown(value)}"))
        if type(value) is not dict:
            return Checked(None, invalid(f"expected a JSON object, got {shown(value)}"))
        if self._known.isdisjoint(value):
            return Checked(None, invalid(self._none_known(value)))
        if self._pairs is not None:
            try:
                value = self._pairs(value)
            except Invalid as error:
                return Checked(None, invalid(str(error)))
        return self._check(value)

    def at_once(self, text: str) -> tuple[Any, ...] | None:
        """The values of a reply that is right as it stands; None: it takes a closer look.

        Args:
            text: The reply, free of anything but the answer.

        Returns:
            Plain values in field order.
        """
        return None if self._whole_text is None else self._whole_text(text)

    def _none_known(self, value: Mapping[str, Any]) -> str:
        keys = ", ".join(repr(key) for key in list((self.schema or {}).get("properties", ()))[:8])
        if "properties" in value and value.keys() & {"type", "$defs", "required", "title"}:
            return f"the reply repeats the schema instead of filling it in; expected {keys}"
        found = ", ".join(repr(str(key)[:40]) for key in list(value)[:8])
        return f"none of the keys {keys} in the reply" + (f", only {found}" if found else "")

    def flat(self) -> Form:
        """The same question, its nested models as dotted columns.

        Examples:
            >>> from dataclasses import make_dataclass
            >>> place = make_dataclass("Place", [("city", str), ("zip", str)])
            >>> [field.name for field in form({"at": place, "n": int}).flat().fields]
            ['at.city', 'at.zip', 'n']
        """
        if self.schema is None or self.bare or self._check is None:
            return self
        leaves, check = Flat(self.fields, self.schema.get("$defs", {})), self._check
        made = Form(
            leaves.fields,
            self.schema,
            lambda value: leaves(check(value)),
            bare=False,
            code=self.code,
            whole=self.whole,
        )
        made._nested = self
        return made

    def stored(self) -> dict[str, Any]:
        """The form as JSON, for `form_from` in another process."""
        if self._nested is not None:
            return {**self._nested.stored(), "flat": True}
        # In JSON Schema a set is a list of unique items; what is sorted would be forgotten.
        sets = isinstance(self._check, ModelCheck) and '"uniqueItems":true' in (self.normal or "")
        return {
            **({"sets": True} if sets else {}),
            "schema": self.schema,
            "names": [field.name for field in self.fields],
            "ordered": [field.name for field in self.fields if field.ordered],
            "dtypes": {field.name: field.dtype for field in self.fields if field.dtype},
            "bare": self.bare,
            "code": self.code,
        }


def form(schema: Any, *, name: str = _DEFAULT_NAME, have: Collection[str] = ()) -> Form:
    """The form of any schema.

    Args:
        schema: None (free text); a pydantic model, dataclass or TypedDict; a dict
            ``{"name": type}``; a raw JSON Schema; a bare type, Enum, Literal or compiled regular
            expression; a pandera schema. A `Form` is given back as it is.
        name: The field of a bare type, a regular expression or text.
        have: Columns of a pandera schema that the frame has already, and that are not asked for.

    Returns:
        The form.

    Raises:
        SchemaError: No model can be asked for this; says which field and what to do.

    Examples:
        >>> form(int).fields[0].name
        'response'
    """
    if isinstance(schema, Form):
        return schema
    if schema is None:
        return Form((Field(name, "str"),), None, None, bare=True)
    if _is_pandera(schema):
        return _pandera_form(schema, have)
    if isinstance(schema, Mapping) and not is_type(schema):
        return _raw_form(schema, name)
    if not is_type(schema):
        raise SchemaError(no_schema(schema))
    described = describe(schema, name)
    full, opened = canonical(bounds_in_64_bits(described.schema), title=described.title)
    for path in opened:
        warn_user(
            f"extra='allow'{f' of {path!r}' if path else ''} lets any key in, but extra keys "
            f"cannot be asked for: the model is told to add none. Declare the fields you want."
        )
    if "properties" not in full:
        raise SchemaError("the schema has no fields, so there is nothing to ask for. Add a field.")
    fields = fields_of(full, described.names)
    check = ModelCheck(described.adapter, full, fields, described.names, mapping=described.mapping)
    bare = not isinstance(schema, Mapping) and not has_fields(schema)
    return Form(fields, full, check, bare=bare, code=described.code)


def form_from(stored: Mapping[str, Any]) -> Form:
    """Rebuild a form that was stored, maybe in another process.

    A class that holds checks of its own is used where this process has it loaded and it still
    means the same schema; otherwise each `Form.check` fails with ``needs_code``.

    Args:
        stored: What `Form.stored` gave.

    Returns:
        A form with the same columns, schema and key.
    """
    if stored.get("flat"):
        return form_from({**stored, "flat": False}).flat()
    full = stored["schema"]
    if full is None:
        return Form((Field(stored["names"][0], "str"),), None, None, bare=True)
    fields = fields_of(full, tuple(stored["names"]), frozenset(stored["ordered"]))
    dtypes = stored.get("dtypes", {})
    fields = tuple(replace(field, dtype=dtypes.get(field.name)) for field in fields)
    code = stored["code"]
    if code is None:
        check = SchemaCheck(full, fields, sets="sets" in stored)
        return Form(fields, full, check, bare=stored["bare"])
    loaded = _loaded(code)
    if loaded is not None:
        try:
            again = form_again(loaded, tuple(stored["names"]))
        except SchemaError:
            again = None
        if again is not None and again.normal == normal(full):
            return again
    return Form(fields, full, _needs(code), bare=stored["bare"], code=code)


def form_again(schema: Any, names: tuple[str, ...]) -> Form:
    """The form of a schema that some of whose columns are asked for, as it was stored.

    Args:
        schema: As in `form`.
        names: The fields that were asked for.
    """
    have: tuple[str, ...] = ()
    if pandera_names(schema) is not None:
        have = tuple(name for name in pandera_names(schema) or () if name not in names)
    return form(schema, name=names[0], have=have)


def pandera_names(schema: Any) -> tuple[str, ...] | None:
    """The columns of a pandera schema, in order; None of any other schema."""
    if not _is_pandera(schema):
        return None
    from llmframe.schemas.pandera_columns import column_names

    return column_names(schema)


def _needs(code: str) -> Check:
    who = "types that JSON cannot say" if code == UNNAMED else code
    failure = Failure(
        "needs_code",
        f"the answer is checked by {who}, which this process has not loaded, or in another "
        f"version. Call join(df, schema=…) with it.",
    )
    return lambda value: Checked(None, failure)


def _loaded(code: str) -> Any:
    # Never imported: joining a job must not run a module's code.
    module, _, name = code.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if inspect.isclass(found) else None


def _raw_form(schema: Mapping[Any, Any], name: str) -> Form:
    from jsonschema import Draft202012Validator

    if not schema:
        raise SchemaError("the schema {} has no fields. Write {'name': type, …}.")
    if not (_RAW_WORDS & schema.keys()) or any(is_type(value) for value in schema.values()):
        raise SchemaError(no_types(schema))
    schema = _as_json(schema)
    for error in Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema):
        where = ".".join(str(part) for part in error.absolute_path)
        raise SchemaError(
            f"the JSON Schema is not valid{f' at {where!r}' if where else ''}: "
            f"{error.message[:200]} Correct it, or write {{'name': type, …}}."
        )
    title = schema.get("title")
    # One word is a class's name (`model_json_schema()`), which says nothing to the model.
    name_only = isinstance(title, str) and title.isidentifier()
    full, opened = canonical(bounds_in_64_bits(schema), title=title if name_only else None)
    for path in opened:
        warn_user(
            f"additionalProperties{f' of {path!r}' if path else ''} lets any key in, but extra "
            f"keys cannot be asked for: the model is told to add none."
        )
    bare = "properties" not in full
    if bare:
        if full.get("type") == "object" and not full.get("additionalProperties"):
            raise SchemaError("the schema has no fields, so there is nothing to ask for. Add one.")
        defs = full.pop("$defs", None)
        full = {"type": "object", "properties": {name: full}, "required": [name]}
        full |= {"$defs": defs} if defs else {}
    _check_patterns(full, "")
    if not full["properties"]:
        raise SchemaError(
            "the schema names no field, so there is no column to fill: patternProperties and the "
            "like only say what keys look like. Name the fields under 'properties'; for one column "
            "that holds whatever keys come write dict[str, str]."
        )
    fields = fields_of(full, tuple(full["properties"]))
    return Form(fields, full, SchemaCheck(full, fields), bare=bare)


def _as_json(schema: Mapping[Any, Any]) -> dict[str, Any]:
    """A copy in plain JSON types: numpy's scalars and tuples come from data, and are common."""

    def scalar(value: Any) -> Any:
        if hasattr(value, "item"):
            return value.item()
        raise TypeError(f"{shown(value)} ({type(value).__name__})")

    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(schema), default=scalar, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"the JSON Schema holds {error}, which JSON cannot carry. Write it in JSON's types."
        ) from None
    return made


def _pandera_form(schema: Any, have: Collection[str]) -> Form:
    from llmframe.schemas.pandera_checks import with_checks
    from llmframe.schemas.pandera_columns import columns

    taken = columns(schema, have)
    full, _ = canonical(taken.schema)
    fields = fields_of(full, tuple(full["properties"]), taken.ordered)
    fields = tuple(replace(field, dtype=taken.dtypes.get(field.name)) for field in fields)
    check = with_checks(SchemaCheck(full, fields), taken.tests, taken.defaults)
    return Form(fields, full, check, bare=False, code=taken.code, whole=taken.whole)


def _check_patterns(node: Any, path: str) -> None:
    if isinstance(node, Mapping):
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            try:
                re.compile(pattern)
            except re.error as error:
                raise SchemaError(
                    f"the pattern {pattern!r} at {path!r} is no regular expression: {error}."
                ) from None
        for key, child in node.items():
            _check_patterns(child, path if key == "properties" else f"{path}.{key}".strip("."))
    elif isinstance(node, list):
        for child in node:
            _check_patterns(child, path)


def _is_pandera(schema: Any) -> bool:
    cls = schema if isinstance(schema, type) else type(schema)
    return any(base.__module__.split(".")[0] == "pandera" for base in cls.__mro__)

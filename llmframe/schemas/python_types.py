"""Python's ways to write a schema: classes, dicts of types, bare types, regular expressions."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from llmframe.errors import SchemaError
from llmframe.schemas.choices import check_choices
from llmframe.schemas.nodes import DECIMAL_DIGITS

__all__ = ["UNNAMED", "Described", "describe", "has_fields", "is_type"]

UNNAMED: Final = "schema:types"
"""`Described.code` where the types of a dict or a bare type hold checks that JSON cannot say."""


@dataclass(frozen=True, slots=True)
class Described:
    """A Python schema, taken apart.

    Attributes:
        adapter: The pydantic `TypeAdapter` that checks an answer.
        schema: pydantic's JSON Schema of it.
        names: Python names of the fields, in the order of the schema's properties.
        mapping: Whether a checked answer is a dict.
        title: Name of the class.
        code: ``module:qualname`` of what holds checks that JSON cannot say, or None.
    """

    adapter: Any
    schema: dict[str, Any]
    names: tuple[str, ...]
    mapping: bool
    title: str | None
    code: str | None


def is_type(value: Any) -> bool:
    """Whether `value` reads as a type, so that a dict of such is no raw JSON Schema."""
    if isinstance(value, type | re.Pattern | types.UnionType | typing.TypeVar):
        return True
    if isinstance(value, Mapping):
        return bool(value) and all(is_type(item) for item in value.values())
    named = hasattr(value, "__supertype__") or hasattr(value, "__value__")  # NewType, `type X = …`
    return named or value is Any or typing.get_origin(value) is not None


def has_fields(schema: Any) -> bool:
    """Whether the class itself has named fields: pydantic model, dataclass or TypedDict."""
    if not isinstance(schema, type):
        return False
    from pydantic import BaseModel, RootModel
    from typing_extensions import is_typeddict

    if issubclass(schema, RootModel):
        return False
    return issubclass(schema, BaseModel) or dataclasses.is_dataclass(schema) or is_typeddict(schema)


def describe(schema: Any, name: str) -> Described:
    """Take a Python schema apart.

    Args:
        schema: A class with fields, a dict of types, or any other type: a bare one, which
            becomes the one field `name`.
        name: The field of a bare type.

    Returns:
        What the form is made of.

    Raises:
        SchemaError: pydantic, or JSON, has no word for one of its types.
    """
    from pydantic import BaseModel

    if has_fields(schema):
        hints = _hints(schema)
        adapter, made = _adapt(_portable(schema, {}), schema.__qualname__, hints)
        for key, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar):
                raise SchemaError(
                    f"field {key!r} of {schema.__qualname__} is an InitVar, which no instance "
                    f"keeps, so there is no value for its column. Make it a field."
                )
        mapping = not (issubclass(schema, BaseModel) or dataclasses.is_dataclass(schema))
        names = _field_names(schema, hints)
        title = schema.__name__
    else:
        hints = dict(schema) if isinstance(schema, Mapping) else {name: schema}
        if not hints:
            raise SchemaError("the schema has no fields. Write {'name': type, …}.")
        for key in hints:
            if not isinstance(key, str):
                raise SchemaError(
                    f"the schema's key {key!r} is no text. Write {{'name': type, …}}."
                )
        done: dict[Any, Any] = {}
        parts = {key: _portable(_annotation(hint), done) for key, hint in hints.items()}
        adapter, made = _adapt(_typed_dict("Response", parts), "the schema", hints)
        mapping, names, title = True, tuple(hints), "Response"
    properties = made.get("properties", {})
    if "$ref" in made:
        properties = made["$defs"][made["$ref"].rpartition("/")[2]].get("properties", {})
    if len(properties) != len(names):
        odd = sorted(set(properties) ^ set(names)) or list(names)
        raise SchemaError(
            f"the schema {title!r} tells its fields apart by more than their names: {odd}. "
            f"Give each field one alias at most."
        )
    return Described(adapter, made, names, mapping, title, _code(adapter, schema))


def _pattern_schema(pattern: re.Pattern[Any]) -> dict[str, Any]:
    """A compiled regular expression, which the whole answer must match, as JSON Schema."""
    if not isinstance(pattern.pattern, str):
        raise SchemaError(
            f"{pattern.pattern!r} is a regular expression for bytes. An answer is text: "
            f"compile a str."
        )
    flags = "".join(
        letter
        for letter, flag in (("i", re.I), ("m", re.M), ("s", re.S), ("x", re.X), ("a", re.A))
        if pattern.flags & flag
    )
    inner = re.sub(r"^\(\?[aiLmsux]+\)", "", pattern.pattern)  # flags are said once, in the group
    return {"type": "string", "pattern": f"^(?{flags}:{inner})$"}


def _annotation(value: Any) -> Any:
    from pydantic import AfterValidator, WithJsonSchema

    if isinstance(value, re.Pattern):
        return typing.Annotated[
            str, AfterValidator(_Matches(value)), WithJsonSchema(_pattern_schema(value))
        ]
    if isinstance(value, Mapping):
        return _typed_dict("Fields", {key: _annotation(item) for key, item in value.items()})
    return value


class _Matches:
    """Local check of a regular expression: Python's own rules, the whole text."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def __call__(self, text: str) -> str:
        if not self.pattern.fullmatch(text):
            raise ValueError(f"should match {self.pattern.pattern}")
        return text


def _typed_dict(name: str, hints: Mapping[str, Any]) -> Any:
    # TypedDict takes any text as a field's name; a model class has reserved ones.
    from typing_extensions import TypedDict

    make: Any = TypedDict  # called, not declared: the names come from the user
    return make(name, dict(hints))


def _hints(schema: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(schema, include_extras=True)
    except Exception:  # a forward reference that only pydantic can resolve: names will do
        return dict(getattr(schema, "__annotations__", {}))


def _field_names(schema: Any, hints: Mapping[str, Any]) -> tuple[str, ...]:
    fields = getattr(schema, "model_fields", None) or getattr(schema, "__pydantic_fields__", None)
    if isinstance(fields, Mapping):
        return tuple(name for name, field in fields.items() if field.init is not False)
    if dataclasses.is_dataclass(schema):
        return tuple(field.name for field in dataclasses.fields(schema) if field.init)
    return tuple(hints)


def _portable(schema: Any, done: dict[Any, Any]) -> Any:
    """The same type where pydantic takes it: before 3.12 it refuses `typing.TypedDict`."""
    if sys.version_info >= (3, 12):
        return schema
    if typing.is_typeddict(schema) and type(schema).__module__ == "typing":
        if schema in done:
            if done[schema] is None:
                raise SchemaError(
                    f"{schema.__name__} contains itself. Import TypedDict from typing_extensions, "
                    f"as Python below 3.12 needs it for that."
                )
            return done[schema]
        done[schema] = None
        hints = {}
        for key, hint in typing.get_type_hints(schema, include_extras=True).items():
            needed = key in schema.__required_keys__
            if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
                # Under `from __future__ import annotations` the class itself does not know.
                needed = typing.get_origin(hint) is typing.Required
                hint = typing.get_args(hint)[0]
            inner = _portable(hint, done)
            hints[key] = typing.Required[inner] if needed else typing.NotRequired[inner]
        made = _typed_dict(schema.__name__, hints)
        made.__doc__, made.__module__ = schema.__doc__, schema.__module__
        done[schema] = made
        return made
    origin, arguments = typing.get_origin(schema), typing.get_args(schema)
    if origin is typing.Annotated:
        return typing.Annotated[(_portable(arguments[0], done), *arguments[1:])]
    if not arguments or origin is typing.Literal:
        return schema
    changed = tuple(
        _portable(one, done) if typing.get_origin(one) or isinstance(one, type) else one
        for one in arguments
    )
    if changed == arguments:
        return schema
    rebuilt: Any = typing.Union if origin is types.UnionType else origin
    return rebuilt[changed]


def _adapt(schema: Any, title: str, hints: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    from pydantic import TypeAdapter

    try:
        adapter = TypeAdapter(schema)
        check_choices(adapter.core_schema)
        return adapter, _json_schema(adapter)
    except SchemaError:
        raise
    except Exception as error:
        for field, hint in hints.items():
            try:
                _json_schema(TypeAdapter(_portable(_annotation(hint), {})))
            except Exception as own:
                raise SchemaError(_unaskable(field, title, hint, own)) from error
        raise SchemaError(
            f"{title} cannot be asked for: {_first_line(error)} "
            f"Make it a pydantic model, a dataclass or a dict of types that JSON can carry."
        ) from error


def _unaskable(field: str, title: str, hint: Any, error: Exception) -> str:
    name = getattr(hint, "__name__", None) if isinstance(hint, type) else None
    return (
        f"field {field!r} of {title} has the type {name or hint!r}, which no model can be asked "
        f"for ({_first_line(error)}). Use a type that JSON can carry: str, int, float, bool, "
        f"date, Literal, list, Optional or a model of such."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _json_schema(adapter: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        # A default that JSON cannot say stays with the class; nothing to tell the user.
        warnings.simplefilter("ignore")
        made: dict[str, Any] = adapter.json_schema(schema_generator=_generator())
    return made


@lru_cache(maxsize=1)
def _generator() -> Any:
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        """pydantic's generator, the same on each of its versions."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            # Text, so that digits survive; 2.13 put a look-ahead pattern here, which servers
            # answer with a 500.
            made: dict[str, Any] = {"type": "string", "format": "decimal"}
            for key, word in _DECIMAL_RULES.items():
                if schema.get(key) is not None:
                    number = float(schema[key])
                    made[word] = int(number) if number.is_integer() else number
            made |= {word: schema[word] for word in DECIMAL_DIGITS if schema.get(word) is not None}
            return made

        def dataclass_args_schema(self, schema: Any) -> dict[str, Any]:
            # field(init=False): the class sets it, and takes no answer for it.
            own = dict(schema)
            own["fields"] = [field for field in schema["fields"] if field.get("init", True)]
            made: dict[str, Any] = super().dataclass_args_schema(own)  # type: ignore[arg-type]
            return made

        def complex_schema(self, schema: Any) -> dict[str, Any]:
            raise PydanticInvalidForJsonSchema("a complex number has no form in JSON")

        def datetime_schema(self, schema: Any) -> dict[str, Any]:
            zone = schema.get("tz_constraint")
            made: dict[str, Any] = {"type": "string", "format": "date-time"}
            return {**made, "tz": zone} if zone in ("aware", "naive") else made

        def emit_warning(self, kind: Any, detail: str) -> None:
            # Optional[Callable] would become null alone, in silence.
            if kind == "skipped-choice":
                raise PydanticInvalidForJsonSchema(detail)

    return Generator


_DECIMAL_RULES: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}

# Core schemas, and keys of theirs, whose whole check stands in the JSON Schema. Anything else is
# taken for a check that only the class holds.
_SAYABLE: Final = frozenset(
    {"any", "none", "bool", "int", "float", "str", "bytes", "decimal", "uuid", "url"}
    | {"date", "datetime", "time", "timedelta", "literal", "enum", "nullable", "default"}
    | {"list", "set", "frozenset", "tuple", "dict", "union", "tagged-union", "chain"}
    | {"model", "model-fields", "model-field", "typed-dict", "typed-dict-field"}
    | {"dataclass", "dataclass-args", "dataclass-field", "definitions", "definition-ref"}
    | {"json-or-python", "lax-or-strict", "is-instance"}
    | {"function-plain", "function-before", "function-after", "function-wrap"}
)
_UNSAYABLE_KEYS: Final = frozenset(
    {"max_digits", "decimal_places", "now_op", "missing", "default_factory", "custom_init"}
    | {"strip_whitespace", "to_lower", "to_upper", "allowed_schemes", "host_required", "version"}
)
# JSON text takes the JSON side of a type; serialization says nothing about answers.
_ASIDE: Final = frozenset(
    {"serialization", "metadata", "python_schema", "lax_schema", "config", "function"}
)


def _code(adapter: Any, schema: Any) -> str | None:
    """Who holds checks that JSON cannot say: the class itself, else the first function."""
    for found in _unsayable(adapter.core_schema):
        if isinstance(schema, type):
            found = schema
        owner = found if hasattr(found, "__qualname__") else type(found)
        unnamed = owner.__module__ == __name__
        return UNNAMED if unnamed else f"{owner.__module__}:{owner.__qualname__}"
    return None


def _unsayable(node: Any, cls: Any = None) -> Iterator[Any]:
    if isinstance(node, list | tuple):
        for item in node:
            yield from _unsayable(item, cls)
        return
    if not isinstance(node, Mapping):
        return
    kind = node.get("type")
    cls = node.get("cls", cls)
    if isinstance(kind, str):
        function = node.get("function")
        function = function.get("function") if isinstance(function, Mapping) else function
        # pydantic's own functions too: its ByteSize takes "1MB", and JSON only knows a text.
        if callable(function) and not isinstance(function, _Matches):
            yield function
        hook = node.get("post_init")
        if hook is True or hook == "model_post_init":
            yield cls
        bounded = kind in ("date", "time", "timedelta") and node.keys() & {"le", "lt", "ge", "gt"}
        config = node.get("config") or {}
        if (
            kind not in _SAYABLE
            or bounded
            or any(node.get(key) for key in _UNSAYABLE_KEYS)
            or any(key.startswith("str_") or key == "coerce_numbers_to_str" for key in config)
            or not _compiles(node.get("pattern"))
        ):
            yield cls or Described
    for key, child in node.items():
        if key not in _ASIDE:
            yield from _unsayable(child, cls)


def _compiles(pattern: Any) -> bool:
    # pydantic's own engine knows words that Python's does not, such as \\p{L}.
    try:
        re.compile(pattern or "")
    except re.error:
        return False
    return True

"""Prompts that are functions of the user: the call, the check of what it returns, its name."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import CodeType, MappingProxyType
from typing import Any, Final, Literal

from llmframe.columns import Columns, name_text
from llmframe.errors import PromptError
from llmframe.rendering import Message, RowError, is_missing, plain, surrogate

__all__ = ["Function"]

_ROLES: Final = ("system", "user", "assistant")


class Function:
    """Calls the user's function with one row and checks what it gives back.

    It has the attributes of `llmframe.templates.Template`; `code` is the function's name and a
    fingerprint of its code, and only that is stored.

    Raises:
        PromptError: The function is async, or two columns have one name.
    """

    prefix: int = 0
    text: None = None
    advice: None = None

    def __init__(self, call: Callable[[Mapping[Any, Any]], Any], columns: Columns) -> None:
        if inspect.iscoroutinefunction(call):
            raise PromptError("the prompt is an async function; expected one that returns text.")
        levels = [
            -1 - level
            for level, name in enumerate(columns.index_names)
            if name is not None and name not in columns.names
        ]
        self.columns = (*range(len(columns.names)), *levels)
        self._keys = tuple(columns.label(position) for position in self.columns)
        for key in self._keys:
            if self._keys.count(key) > 1:
                raise PromptError(
                    f"{self._keys.count(key)} columns are called {key!r}, and a function gets a "
                    "row as a dict. Rename them. Nothing was sent."
                )
        self.labels = tuple(name_text(key) for key in self._keys)
        self._call = call
        self.code = _fingerprint(call)
        self.stored: dict[str, Any] = {"code": self.code}

    def missing(self, values: Sequence[Any]) -> Literal["none", "some", "all"]:
        """Always ``"none"``: the function sees its missing cells as None."""
        return "none"

    def messages(self, values: Sequence[Any]) -> tuple[Message, ...]:
        """What the function makes of one row.

        Args:
            values: The cells of `columns`, in that order.

        Raises:
            RowError: It raised, or returned neither text nor a conversation.
        """
        row = MappingProxyType(dict(zip(self._keys, values, strict=True)))
        try:
            answer = self._call(row)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace").decode()
            raise RowError("prompt_error", f"the prompt function raised {reason}") from error
        if isinstance(answer, str):
            return (_message("user", str.__str__(answer)),)
        return _conversation(answer)


def _conversation(answer: Any) -> tuple[Message, ...]:
    """What a function returned, as messages; RowError where it is no conversation."""
    if isinstance(answer, Mapping) or not hasattr(answer, "__iter__"):
        raise _returned(f"a {type(answer).__name__}")
    messages = []
    for number, item in enumerate(answer):
        if not isinstance(item, Mapping):
            raise _returned(f"a list with a {type(item).__name__} in it")
        # Tables with chat columns fill the keys a message lacks with None.
        extra = [k for k, v in item.items() if k not in ("role", "content") and not is_missing(v)]
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES:
            raise _returned(f"message {number} with role {role!r}", f"one of {', '.join(_ROLES)}")
        if extra:
            raise _returned(f"message {number} with {extra[0]!r}", "only role and content")
        if isinstance(content, str):
            messages.append(_message(role, str.__str__(content)))
            continue
        try:
            parts = plain(content)
        except (TypeError, RecursionError) as error:
            raise _returned(f"message {number} that is not JSON ({error})") from error
        if not isinstance(parts, list) or not parts or not all(isinstance(p, dict) for p in parts):
            raise _returned(f"message {number} without content", "text or a list of parts")
        messages.append(_message(role, parts))
    if not messages:
        raise _returned("an empty list")
    return tuple(messages)


def _returned(what: str, expected: str = "text or a list of messages") -> RowError:
    return RowError("prompt_error", f"the prompt function returned {what}; expected {expected}.")


def _message(role: str, content: str | list[Any]) -> Message:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    bad = surrogate(text)
    if bad:
        raise RowError(
            "prompt_error",
            f"the prompt function returned a lone surrogate ({bad}), which is not text.",
        )
    return {"role": role, "content": content}


def _fingerprint(call: Callable[..., Any]) -> str:
    """Name of a function and a hash of its code: says whether it is still the same one."""
    while isinstance(call, functools.partial):
        call = call.func
    target: Any = call if hasattr(call, "__qualname__") else type(call)
    name = f"{getattr(target, '__module__', None) or 'builtins'}:{target.__qualname__}"
    method = call if hasattr(call, "__code__") else vars(type(call)).get("__call__")
    code = getattr(method, "__code__", None)
    state = blake2b(name.encode(), digest_size=6)
    if isinstance(code, CodeType):
        state.update(_code_text(code).encode("utf-8", "surrogatepass"))
    return f"{name}#{state.hexdigest()}"


def _code_text(code: CodeType) -> str:
    consts = [
        _code_text(const)
        if isinstance(const, CodeType)
        else repr(sorted(map(repr, const)) if isinstance(const, frozenset) else const)
        for const in code.co_consts
    ]
    return repr((code.co_code.hex(), code.co_names, consts))

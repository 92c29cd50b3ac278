"""Prompts: a template or a function on one side, a row's messages on the other.

A `Prompt` is compiled once a call and rendered once a row. What every row shares (the system
text and the examples) is made once and stays the same objects, so that an engine can encode it
once and a provider can cache it.

Templates: ``{column}``, with a format spec ``{price:.2f}``; ``{{`` and ``}}`` for braces. The
whole text between the braces is looked up as a column first, so names may hold spaces, dots and
colons. MultiIndex columns join with a dot. ``{0}`` is the first column, except in a frame with
integer labels, where a number is always a label. ``{}`` is the only column of a Series. The
name of an index level works where no column has it. Cells are never read as templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmframe.callables import Function
from llmframe.columns import Columns, name_text
from llmframe.errors import PromptError, sentence
from llmframe.rendering import Message, RowError, format_value, is_missing, plain, surrogate
from llmframe.sections import Fenced, Sections, sections_from
from llmframe.templates import Source, Template

__all__ = [
    "Prompt",
    "RowError",
    "Sections",
    "Source",
    "build",
    "format_value",
    "is_missing",
    "prompt_from",
    "source_template",
]

Examples = Sequence[tuple[Any, Any] | Mapping[Any, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A compiled prompt.

    Attributes:
        columns: What `render` takes, in this order: positions in the names, ``-1 - k`` for
            level k of the index. A function takes every column and every named level.
        shared: System text and examples, the same objects in every row.
        prefix: Constant characters at the start of the last message; 0 for functions.
        text: The template, for people; None for functions.
        code: ``module:qualname#fingerprint`` of a function; None for templates.
        advice: One sentence where the order of the template costs money, else None.
    """

    columns: tuple[int, ...]
    shared: tuple[Message, ...]
    prefix: int
    text: str | None
    code: str | None
    advice: str | None
    _renderer: Template | Function | Fenced = field(repr=False, compare=False)
    _without: Mapping[str, tuple[Message, ...]] = field(repr=False, compare=False)
    _stored: Mapping[str, Any] = field(repr=False, compare=False)

    def missing(self, values: Sequence[Any]) -> Literal["none", "some", "all"]:
        """How many of the used cells hold nothing.

        A function looks after its own missing cells (always ``"none"``), and so does a list of
        names as long as one of them has a value.
        """
        return self._renderer.missing(values)

    def render(self, values: Sequence[Any], swapped: bool = False) -> tuple[Message, ...]:
        """The row's conversation: `shared`, then the row's own messages.

        An example that is identical to the row is left out, since it would give the answer
        away. That conversation does not start with `shared`; see `shared_by`.

        Args:
            values: The cells of `columns`, in that order.
            swapped: With the two texts that `Sections.swaps` names in each other's place.

        Raises:
            RowError: This row cannot be rendered.
        """
        own = self._renderer.messages(values)
        shared = self._without.get(_identity(own), self.shared) if self._without else self.shared
        if swapped and isinstance(self._renderer, Fenced):
            own = self._renderer.swapped(values)
        return shared + own

    def shared_by(self, messages: Sequence[Message]) -> int:
        """How many of `shared` a rendered conversation starts with: all but for an example."""
        count = 0
        for ours, theirs in zip(self.shared, messages, strict=False):
            if ours is not theirs:
                break
            count += 1
        return count

    def stored(self) -> dict[str, Any]:
        """Plain JSON from which `prompt_from` builds it again; of a function only its name."""
        return dict(self._stored)


def build(
    prompt: str | Source | Sections | Callable[[Mapping[Any, Any]], Any],
    names: Sequence[Hashable],
    index_names: Sequence[Hashable] = (),
    *,
    system: str | None = None,
    examples: Examples | None = None,
    blank: bool = False,
) -> Prompt:
    """Compile a prompt against a frame's columns.

    Args:
        prompt: A template, what `source_template` gave, `Sections` of such, or a function that
            takes a read-only dict of the row's own values and returns text or a list of messages.
        names: Column labels in order; one for a Series.
        index_names: Names of the index levels, None where a level has none.
        system: Constant text for the system message; braces in it are braces.
        examples: ``(inputs, answer)`` pairs, inputs a dict by column (or the value itself where
            the prompt uses one column); or dicts with the prompt's columns, of which the rest
            is the answer.
        blank: A missing cell is rendered as empty text instead of an error of its row.

    Raises:
        PromptError: A column is unknown, ambiguous or not named at all; a brace is loose; an
            example lacks a column or an answer. Nothing was sent.

    Examples:
        >>> prompt = build("Translate: {text}", ["id", "text"], system="You are brief.")
        >>> prompt.columns, prompt.prefix
        ((1,), 11)
        >>> prompt.render(["Guten Tag"])[-1]
        {'role': 'user', 'content': 'Translate: Guten Tag'}
    """
    columns = Columns(names, index_names)
    renderer: Template | Function | Fenced
    if isinstance(prompt, str):
        prompt = Source("template", prompt)
    if isinstance(prompt, Source):
        renderer = Template(prompt, columns, blank=blank)
    elif isinstance(prompt, Sections):
        renderer = Fenced(prompt, columns, blank=blank)
    elif callable(prompt):
        renderer = Function(prompt, columns)
    else:
        raise PromptError(
            f"the prompt is a {type(prompt).__name__}; expected a template or a function. "
            "Nothing was sent."
        )
    pairs = [
        _example(number, item, renderer, columns) for number, item in enumerate(examples or (), 1)
    ]
    return _assemble(renderer, _system(system), pairs)


def prompt_from(
    stored: Mapping[str, Any], names: Sequence[Hashable], index_names: Sequence[Hashable] = ()
) -> Prompt:
    """A template prompt again, in any process, on any frame that has its columns.

    Raises:
        PromptError: The frame lacks a column, or the prompt was a function.

    Examples:
        >>> kept = build("Hi {name}", ["name"]).stored()
        >>> prompt_from(kept, ["id", "name"]).columns
        (1,)
    """
    if "code" in stored:
        raise PromptError(
            f"the prompt was the function {stored['code'].partition('#')[0]!r}, which is not "
            "stored. Pass it again: join(df, prompt=…)."
        )
    columns, blank = Columns(names, index_names), stored["blank"]
    renderer: Template | Fenced
    if stored["kind"] == "sections":
        renderer = Fenced(sections_from(stored), columns, blank=blank)
    else:
        source = Source(
            stored["kind"],
            stored["template"],
            tuple(stored["columns"]),
            stored["before"],
            stored["after"],
        )
        renderer = Template(source, columns, blank=blank)
    pairs = [tuple(pair) for pair in stored["examples"]]
    return _assemble(renderer, tuple(stored["system"]), pairs)


def source_template(
    source: Hashable | Sequence[Hashable],
    names: Sequence[Hashable],
    index_names: Sequence[Hashable] = (),
) -> Source:
    """What `classify` and `extract` read: a column, a template, or a list of names.

    Args:
        source: A column's exact name (even one with braces in it); else a template; else a list
            of names, rendered as ``name: value`` lines without the missing ones.
        names: Column labels in order.
        index_names: Names of the index levels.

    Raises:
        PromptError: No column has the name, or the list is empty.

    Examples:
        >>> source_template("ticket", ["ticket"]).wrapped("Ticket: ").kind
        'column'
        >>> lines = source_template(["a", "b"], ["a", "b"])
        >>> build(lines, ["a", "b"]).render([None, 2])[0]["content"]
        'b: 2'
    """
    columns = Columns(names, index_names)
    if isinstance(source, list | tuple) and not (
        isinstance(source, tuple) and columns.exact(source) is not None
    ):
        if not source:
            raise PromptError("the source is an empty list. Name at least one column.")
        for name in source:
            if columns.exact(name) is None:
                raise columns.unknown(name_text(name), braces=False)
        return Source("lines", columns=tuple(source))
    if columns.exact(source) is not None:
        return Source("column", columns=(source,))
    if isinstance(source, str) and ("{" in source or "}" in source):
        return Source("template", source)
    raise columns.unknown(name_text(source), braces=False)


def _system(system: str | None) -> tuple[Message, ...]:
    if system is None or system == "":
        return ()
    if not isinstance(system, str):
        raise PromptError(f"system is a {type(system).__name__}; expected text.")
    bad = surrogate(system)
    if bad:
        raise PromptError(f"system holds a lone surrogate ({bad}), which is not text.")
    return ({"role": "system", "content": system},)


def _assemble(
    renderer: Template | Function | Fenced,
    system: tuple[Message, ...],
    pairs: Sequence[tuple[Message, ...]],
) -> Prompt:
    own = [_identity(pair[:-1]) for pair in pairs]
    without = {
        one: system
        + tuple(m for pair, other in zip(pairs, own, strict=True) if other != one for m in pair)
        for one in own
    }
    stored = dict(renderer.stored)
    if "code" not in stored:
        stored |= {"system": list(system), "examples": [list(pair) for pair in pairs]}
    return Prompt(
        columns=renderer.columns,
        shared=system + tuple(message for pair in pairs for message in pair),
        prefix=renderer.prefix,
        text=renderer.text,
        code=renderer.code,
        advice=renderer.advice,
        _renderer=renderer,
        _without=without,
        _stored=stored,
    )


def _identity(own: Sequence[Message]) -> str:
    """A text that is the same for the same messages."""
    if len(own) == 1 and isinstance(own[0]["content"], str):
        return str(own[0]["content"])
    return json.dumps(own, sort_keys=True)


def _example(
    number: int, item: Any, renderer: Template | Function | Fenced, columns: Columns
) -> tuple[Message, ...]:
    """An example as the messages of a row, then the answer."""
    if isinstance(item, Mapping):
        inputs, answer = _split_record(item, renderer, columns)
    elif isinstance(item, list | tuple) and len(item) == 2:
        inputs, answer = item
    else:
        raise PromptError(
            f"example {number} is a {type(item).__name__}; expected (inputs, answer) or a dict."
        )
    if is_missing(answer):
        raise PromptError(f"example {number} has no answer. Nothing was sent.")
    values = _inputs(number, inputs, renderer, columns)
    try:
        if renderer.missing(values) == "all":
            raise PromptError(f"example {number} has only missing inputs. Nothing was sent.")
        own = renderer.messages(values)
        text = answer if isinstance(answer, str) else json.dumps(plain(answer), ensure_ascii=False)
        bad = surrogate(text)
        if bad:
            raise RowError("prompt_error", f"the answer holds a lone surrogate ({bad}).")
    except (RowError, TypeError, RecursionError) as error:
        raise PromptError(f"example {number}: {sentence(error)} Nothing was sent.") from error
    return (*own, {"role": "assistant", "content": text})


def _split_record(
    item: Mapping[Any, Any], renderer: Template | Function | Fenced, columns: Columns
) -> tuple[dict[Any, Any], Any]:
    """A record of an example table: the frame's columns are inputs, the rest is the answer."""
    used = {columns.label(position) for position in renderer.columns} | set(renderer.labels)
    rest = {k: v for k, v in item.items() if k not in used and k not in columns.names}
    inputs = {k: v for k, v in item.items() if k in used}
    return inputs, next(iter(rest.values())) if len(rest) == 1 else rest or None


def _inputs(
    number: int, inputs: Any, renderer: Template | Function | Fenced, columns: Columns
) -> list[Any]:
    if not isinstance(inputs, Mapping):
        if len(renderer.columns) == 1:
            return [inputs]
        raise PromptError(
            f"example {number}: the prompt uses {len(renderer.columns)} columns; expected a dict "
            f"with {', '.join(map(repr, renderer.labels))}."
        )
    values = []
    for position, text in zip(renderer.columns, renderer.labels, strict=True):
        label = columns.label(position)
        if label not in inputs and text not in inputs and renderer.code is None:
            raise PromptError(f"example {number} lacks {text!r}. Nothing was sent.")
        values.append(inputs.get(label, inputs.get(text)))
    return values

"""A template and the columns it names, compiled once and filled row by row."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from llmframe.columns import Columns, name_text
from llmframe.errors import PromptError, sentence
from llmframe.rendering import Message, RowError, format_value, format_with, is_missing, surrogate

__all__ = ["Source", "Template"]

_SPEC: Final = re.compile(
    r"(?:.?[<>=^])?[-+ ]?z?\#?0?\d*[,_]?(?:\.\d+)?[bcdeEfFgGnosxX%]?|.*%[A-Za-z].*", re.DOTALL
)
_CODE: Final = re.compile(r"[\"'`{\n<>;]")
_LONG: Final = 200
"""Characters of constant text after a field from which their order is worth an advice."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a row's text comes from, before the columns are looked up.

    Attributes:
        kind: ``"template"``; ``"column"``: one cell as it is; ``"lines"``: ``name: value``
            lines without the missing ones.
        template: The template's text.
        columns: Labels for the other kinds.
        before: Constant text before it, taken as it is (braces are braces).
        after: Constant text after it.
    """

    kind: Literal["template", "column", "lines"]
    template: str = ""
    columns: tuple[Hashable, ...] = ()
    before: str = ""
    after: str = ""

    def wrapped(self, before: str = "", after: str = "") -> Source:
        """The same source between constant texts, which are never read as a template."""
        return replace(self, before=before + self.before, after=self.after + after)


@dataclass(frozen=True, slots=True)
class _Hole:
    part: int
    slot: int
    spec: str


class Template:
    """A compiled source: a row's cells in, its text out.

    Attributes:
        columns: Positions of the cells it takes, in their order, each once.
        labels: What they are called, for messages.
        prefix: Characters of constant text before the first cell.
        text: The template, for people.
        advice: One sentence where the order of the text costs money, else None.
        stored: Plain JSON from which it can be compiled again.

    Raises:
        PromptError: A column is unknown or ambiguous, none is named, or a brace is loose.

    Examples:
        >>> body = Template(Source("template", "Hi {name}: {n:.1f}"), Columns(["name", "n"]))
        >>> body.columns, body.prefix, body.render(["Ada", 2])
        ((0, 1), 3, 'Hi Ada: 2.0')
    """

    code: None = None

    def __init__(self, source: Source, names: Columns, *, blank: bool = False) -> None:
        self._lines = source.kind == "lines"
        self._blank = blank
        self.stored: dict[str, Any] = {
            "kind": source.kind,
            "template": source.template,
            "columns": [name_text(label) for label in source.columns],
            "before": source.before,
            "after": source.after,
            "blank": blank,
        }
        self._slots: dict[int, int] = {}
        self._parts: list[str] = [source.before]
        self._holes: tuple[_Hole, ...] = ()
        if source.kind == "template":
            self._compile(source.template, names)
            self.text = source.before + source.template + source.after
        else:
            for label in source.columns:
                position = names.exact(label)
                if position is None:
                    raise names.unknown(name_text(label), braces=False)
                self._hole(position, "")
            self.text = source.before + _sketch(source) + source.after
        self.columns = tuple(self._slots)
        self.labels = tuple(name_text(names.label(position)) for position in self.columns)
        if not self._holes:
            write = name_text(names.names[0]) if names.names else "column"
            raise PromptError(
                f"the prompt names no column, so every row would get one answer. Write {{{write}}}."
            )
        self.prefix: int = len(self._parts[0])
        self.advice: str | None = self._advice()
        self._parts.append(source.after)
        bad = surrogate("".join([*self._parts, *(self.labels if self._lines else ())]))
        if bad:
            raise PromptError(f"the prompt holds a lone surrogate ({bad}), which is not text.")

    def missing(self, values: Sequence[Any]) -> Literal["none", "some", "all"]:
        """How many of a row's cells hold nothing; in a list of names only all of them count."""
        count = 0
        for value in values:
            if type(value) is not str and is_missing(value):
                count += 1
        if not count:
            return "none"
        if count == len(values):
            return "all"
        return "none" if self._lines else "some"

    def messages(self, values: Sequence[Any]) -> tuple[Message, ...]:
        """The row's text as one user message; see `render`."""
        return ({"role": "user", "content": self.render(values)},)

    def render(self, values: Sequence[Any]) -> str:
        """The row's text.

        Args:
            values: The cells of `columns`, in that order.

        Raises:
            RowError: A cell is missing (unless ``blank``), has no text form, does not fit its
                format spec, or holds a lone surrogate.
        """
        if self._lines:
            lines = [
                f"{self.labels[hole.slot]}: {self._cell(values, hole)}"
                for hole in self._holes
                if not is_missing(values[hole.slot])
            ]
            text = self._parts[0] + "\n".join(lines) + self._parts[-1]
        else:
            parts = self._parts.copy()
            for hole in self._holes:
                value = values[hole.slot]
                parts[hole.part] = (
                    value if type(value) is str and not hole.spec else self._cell(values, hole)
                )
            text = "".join(parts)
        if not text.isascii() and surrogate(text):
            self._blame(values)
        return text

    def _cell(self, values: Sequence[Any], hole: _Hole) -> str:
        value = values[hole.slot]
        label = self.labels[hole.slot]
        try:
            if is_missing(value):
                if self._blank:
                    return ""
                raise RowError("prompt_error", f"column {label!r} is missing in this row.")
            return format_with(value, hole.spec) if hole.spec else format_value(value)
        except RecursionError:
            raise RowError("prompt_error", f"column {label!r}: nested too deeply.") from None
        except (ValueError, TypeError, OverflowError) as error:
            if hole.spec:
                fit = f"format {hole.spec!r} does not fit {reprlib.repr(value)}"
                message = f"column {label!r}: {fit} ({type(value).__name__})."
            else:
                message = f"column {label!r}: {sentence(error)}"
            raise RowError("prompt_error", message) from error

    def _blame(self, values: Sequence[Any]) -> None:
        for hole in self._holes:
            value = values[hole.slot]
            bad = None if is_missing(value) else surrogate(self._cell(values, hole))
            if bad:
                raise RowError(
                    "prompt_error",
                    f"column {self.labels[hole.slot]!r} holds a lone surrogate ({bad}), which is "
                    "not text. Clean it with .encode('utf-8', 'replace').decode().",
                )

    def _hole(self, position: int, spec: str) -> None:
        slot = self._slots.setdefault(position, len(self._slots))
        self._holes += (_Hole(len(self._parts), slot, spec),)
        self._parts += ["", ""]

    def _compile(self, template: str, names: Columns) -> None:
        at = 0
        while at < len(template):
            start = _next_brace(template, at)
            self._parts[-1] += template[at:start]
            brace = template[start : start + 1]
            if not brace:
                return
            if template[start + 1 : start + 2] == brace:
                self._parts[-1] += brace
                at = start + 2
                continue
            if brace == "}":
                raise PromptError(
                    f"a single '}}' in {_around(template, start)}. "
                    "For a literal brace write {{ and }}."
                )
            end = template.find("}", start)
            inner = template[start + 1 : end if end >= 0 else len(template)]
            if end < 0 and not _CODE.search(inner):
                raise PromptError(
                    f"{_around(template, start)} has no closing brace. "
                    "For a literal brace write {{ and }}."
                )
            self._hole(*_resolve(inner, names))
            at = end + 1

    def _advice(self) -> str | None:
        after = [part for part in self._parts[1:] if len(part) >= _LONG]
        if not after or self._lines:
            return None
        return (
            f"{{{self.labels[0]}}} stands before {sum(map(len, after))} characters of constant "
            "text. Put the constant text first: engines read a shared beginning once."
        )


def _resolve(inner: str, names: Columns) -> tuple[int, str]:
    """Position and format spec of what stands between two braces."""
    if inner == "" and len(names.names) == 1:
        return 0, ""
    found = names.find(inner)
    if found is not None:
        return found, ""
    # A name may hold colons, and so may a spec ({t:%H:%M}): the longest name wins.
    at = inner.rfind(":")
    while at >= 0:
        name, spec = inner[:at], inner[at + 1 :]
        found = 0 if name == "" and len(names.names) == 1 else names.find(name)
        if found is not None:
            if not _SPEC.fullmatch(spec):
                raise PromptError(
                    f"{_shown(inner)!r}: {spec!r} is no format spec, such as .2f or %d %B. "
                    "For a literal brace write {{ and }}."
                )
            return found, spec
        at = inner.rfind(":", 0, at)
    raise _refusal(inner, names)


def _refusal(inner: str, names: Columns) -> PromptError:
    if inner == "":
        return PromptError(
            f"'{{}}' is the column of a Series; here are {len(names.names)} columns. "
            f"Name one{_such_as(names)}, or write {{{{}}}} for the braces themselves."
        )
    if _CODE.search(inner) or not inner.strip():
        return _reads_as_column(inner)
    base, mark, rest = _split(inner)
    if mark and names.find(base) is not None:
        if mark == "!" and rest[:1] in {"r", "s", "a"}:
            return PromptError(f"{_shown(inner)!r}: no conversions (!r). Write {{{base}}}.")
        if mark in {".", "["}:
            return PromptError(
                f"{_shown(inner)!r}: attributes and parts of a cell are not read. "
                f"Write {{{base}}}, or pass a function as the prompt."
            )
    name, _, spec = inner.partition(":")
    return names.unknown(name if _SPEC.fullmatch(spec) else inner)


def _such_as(names: Columns) -> str:
    return f", such as {{{name_text(names.names[0])}}}" if names.names else ""


def _split(inner: str) -> tuple[str, str, str]:
    found = re.search(r"[.\[!]", inner)
    if found is None:
        return inner, "", ""
    return inner[: found.start()], found.group(), inner[found.end() :]


def _reads_as_column(inner: str) -> PromptError:
    return PromptError(
        f"'{_shown(inner)}' reads as a column. For a literal brace write {{{{ and }}}}."
    )


def _shown(inner: str) -> str:
    """``{"label"…`` for ``{"label": "…"}``: enough to find the place."""
    head = re.split(r"[:\s{]", inner.strip(), maxsplit=1)[0][:24]
    return f"{{{inner}}}" if head == inner else f"{{{head}…"


def _next_brace(template: str, at: int) -> int:
    found = re.compile(r"[{}]").search(template, at)
    return found.start() if found else len(template)


def _around(template: str, at: int) -> str:
    piece = template[max(0, at - 12) : at + 12]
    return repr(("…" if at > 12 else "") + piece + ("…" if at + 12 < len(template) else ""))


def _sketch(source: Source) -> str:
    texts = [name_text(label) for label in source.columns]
    if source.kind == "column":
        return f"{{{texts[0]}}}"
    return "\n".join(f"{text}: {{{text}}}" for text in texts)

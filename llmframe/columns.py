"""Finds a column by what a template, a list or a dict calls it."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Hashable, Sequence

from llmframe.errors import PromptError

__all__ = ["Columns", "companion", "name_text"]


def name_text(label: Hashable) -> str:
    """How a column is written between braces: MultiIndex levels are joined with a dot.

    Examples:
        >>> name_text("unit price"), name_text(("m", "x")), name_text(("id", "")), name_text(0)
        ('unit price', 'm.x', 'id', '0')
    """
    if isinstance(label, tuple):
        parts = [str(part) for part in label]
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        return ".".join(parts)
    return str(label)


def companion(base: Hashable, name: str) -> Hashable:
    """Label of a column that stands beside another one; of a MultiIndex its last level changes.

    Examples:
        >>> companion("label", "reason"), companion(("m", "x"), "reason")
        ('label_reason', ('m', 'x_reason'))
    """
    if isinstance(base, tuple):
        return (*base[:-1], f"{base[-1]}_{name}")
    return f"{base}_{name}"


class Columns:
    """Finds a column by what a template, a list or a dict calls it.

    Positions from 0 are columns; ``-1 - k`` is level k of the index.

    Args:
        names: Column labels, in order.
        index_names: Names of the index levels, None where a level has none.
    """

    def __init__(self, names: Sequence[Hashable], index_names: Sequence[Hashable] = ()) -> None:
        self.names = tuple(names)
        self.index_names = tuple(index_names)
        self._columns: dict[str, list[int]] = {}
        self._levels: dict[str, list[int]] = {}
        for position, label in enumerate(self.names):
            self._columns.setdefault(name_text(label), []).append(position)
        for level, label in enumerate(self.index_names):
            if label is not None:
                self._levels.setdefault(name_text(label), []).append(-1 - level)
        # In a frame with integer labels a number is a label and never a place: a guess between
        # the two would fill prompts from the wrong column.
        self._by_place = not any(
            isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in self.names
        )

    def label(self, position: int) -> Hashable:
        """The label at a position."""
        return self.names[position] if position >= 0 else self.index_names[-1 - position]

    def find(self, text: str) -> int | None:
        """Position of the column that a text names, or None.

        A column's name comes before a place (``0``), and that before an index level.

        Raises:
            PromptError: More than one column has the name.
        """
        hits = self._columns.get(text)
        if hits is None and self._by_place and text.isascii() and text.isdigit():
            hits = [int(text)] if int(text) < len(self.names) else None
        hits = hits or self._levels.get(text, [])
        if len(hits) > 1:
            raise self._ambiguous(text, hits)
        return hits[0] if hits else None

    def exact(self, label: Hashable) -> int | None:
        """Position of the column with exactly this label, or else with this text.

        Raises:
            PromptError: More than one column has it.
        """
        for labels, sign in ((self.names, 1), (self.index_names, -1)):
            hits = [
                k if sign > 0 else -1 - k
                for k, other in enumerate(labels)
                if other is not None and type(other) is type(label) and other == label
            ]
            if len(hits) > 1:
                raise self._ambiguous(name_text(label), hits)
            if hits:
                return hits[0]
        return self.find(name_text(label))

    def unknown(self, text: str, *, braces: bool = True, sends: bool = True) -> PromptError:
        """The error for a name that no column has: the near miss, or the names there are.

        Args:
            text: The name.
            braces: It stood in a prompt.
            sends: It was meant for a call that sends something.
        """
        unsent = " Nothing was sent." if sends else ""
        known = [*self._columns, *self._levels]
        folded = {name.casefold(): name for name in reversed(known)}
        near = difflib.get_close_matches(text.strip().casefold(), folded, n=1)
        if near:
            found = folded[near[0]]
            return PromptError(f"no column {text!r}; did you mean {found!r}?{unsent}")
        shown = ", ".join(repr(name) for name in known[:12]) + (", …" if len(known) > 12 else "")
        there = f"the columns are {shown}" if known else "the frame has no column"
        escape = " For a literal brace write {{ and }}." if braces else ""
        return PromptError(f"no column {text!r}; {there}.{escape}{unsent}")

    def _ambiguous(self, text: str, hits: Sequence[int]) -> PromptError:
        labels = [self.label(hit) for hit in hits]
        if all(label == labels[0] and type(label) is type(labels[0]) for label in labels):
            what = f"{len(hits)} columns are called {text!r}"
        else:
            what = f"{text!r} could be any of {', '.join(repr(label) for label in labels)}"
        return PromptError(f"{what}; a prompt needs one. Rename them. Nothing was sent.")

"""What a person is shown of a row: the text that the model was asked about."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from llmframe import frames
from llmframe.calls import Call
from llmframe.errors import PromptError
from llmframe.marks import RowKey, row_keys
from llmframe.prompts import Prompt, build, source_template
from llmframe.rendering import RowError
from llmframe.templates import Source

__all__ = ["RowTexts", "asked_of_a_series", "inputs", "row_texts"]


@dataclass(frozen=True, slots=True)
class RowTexts:
    """A text for each row of any frame that has the columns.

    Attributes:
        bind: Column and index names of a frame → how its rows are written.
    """

    bind: Callable[[Sequence[Hashable], Sequence[Hashable]], Prompt]

    def of(self, data: pd.DataFrame) -> list[str | None]:
        """The texts, in row order; None where a row has none.

        Raises:
            PromptError: The frame lacks a column.
        """
        table = frames.Table(data)
        prompt = self.bind(table.names, table.index_names)
        return [_text(prompt, values) for values in table.rows(prompt.columns)]

    def keys(
        self, data: pd.DataFrame, texts: Sequence[str | None] | None = None
    ) -> list[RowKey | None]:
        """By which its rows are known in another frame; None where there is no text.

        Args:
            data: A frame.
            texts: What `of` gave for it, where that is at hand.
        """
        texts, table = self.of(data) if texts is None else texts, frames.Table(data)
        places = [place for place, text in enumerate(texts) if text is not None]
        known = row_keys((table.label_text(k), texts[k] or "") for k in places)
        found: list[RowKey | None] = [None] * len(texts)
        for place, key in zip(places, known, strict=True):
            found[place] = key
        return found


def row_texts(data: pd.DataFrame, text: Any, call: Call | None) -> RowTexts:
    """How rows are shown.

    Args:
        data: A frame.
        text: A column, a template, a list of columns or a function of the row; None: the cells
            that the prompt of `call` uses, or what it makes of them where it is a function.
        call: What the model was asked.

    Raises:
        PromptError: There is neither, or a column is missing.
    """
    if text is None and call is None:
        raise PromptError(
            "nothing says which text the answers are about: the frame's attrs name no job that "
            "wrote this column. Pass text=, a column or a template."
        )
    table = frames.Table(data)
    if text is None and call is not None and asked_of_a_series(call):
        raise PromptError(
            "the model was asked about a Series, which no column of this frame is known to be. "
            "Pass text=, the Series or the column that holds it."
        )
    if text is None and call is not None:
        prompt = call.bind(table.names, table.index_names)
        if prompt.code is not None:
            return RowTexts(call.bind)
        used = tuple(_label(table, place) for place in prompt.columns)
        source = Source("column" if len(used) == 1 else "lines", columns=used)
    elif callable(text):
        source = text
    else:
        source = source_template(text, table.names, table.index_names)
    return RowTexts(partial(build, source, blank=True))


def asked_of_a_series(call: Call) -> bool:
    """Whether its prompt is made of a Series' own values, ``{}``, and of nothing else."""
    try:
        # A name that no prompt holds: only what stands for the one column there is can be found.
        prompt = call.bind([object()], [])
    except PromptError:
        return False
    return prompt.code is None and prompt.columns == (0,)


def inputs(data: pd.DataFrame, texts: RowTexts, call: Call | None) -> pd.DataFrame:
    """The columns, and index levels, from which the model's prompt is made, under their names.

    Of a function nobody knows them: then all that llmframe did not write. Of a call on a Series it
    is the text.
    """
    table = frames.Table(data)
    bind = texts.bind if call is None or asked_of_a_series(call) else call.bind
    prompt = bind(table.names, table.index_names)
    places = prompt.columns
    if prompt.code is not None:
        ours = frames.written(data)
        places = tuple(p for p in places if p < 0 or str(_label(table, p)) not in ours)
    made = {
        number: data.index.get_level_values(-1 - place).to_series(index=data.index)
        if place < 0
        else data.iloc[:, place]
        for number, place in enumerate(places)
    }
    found = pd.DataFrame(
        {number: series.array for number, series in made.items()}, index=data.index
    )
    found.columns = pd.Index([_label(table, place) for place in places], tupleize_cols=False)
    return found


def _label(table: frames.Table, place: int) -> Hashable:
    return table.names[place] if place >= 0 else table.index_names[-1 - place]


def _text(prompt: Prompt, values: Sequence[Any]) -> str | None:
    if prompt.missing(values) == "all":
        return None
    try:
        content = prompt.render(values)[-1]["content"]
    except RowError:
        return None
    if isinstance(content, str):
        return content
    parts = [part.get("text") or f"({part.get('type', 'part')})" for part in content]
    return "\n".join(map(str, parts)) if parts else json.dumps(content)

"""A call on a frame: which rows are asked, under which key, and which share one.

Requests are made when they are taken: a million of them at once would fill the memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from llmframe.calls import Call
from llmframe.columns import name_text
from llmframe.errors import PromptError
from llmframe.prompts import Prompt, RowError, is_missing
from llmframe.requests import KeyMaker, Message, Request, Sampling
from llmframe.results import Failure

__all__ = ["STATUS", "Rows", "Source", "Work", "compiled", "unique"]

STATUS: Final = ("pending", "ok", "cached", "skipped", "failed", "in_doubt", "kept")
"""Row states; arrays, stored ones too, hold their places in this tuple."""
PENDING, OK, CACHED, SKIPPED, FAILED, IN_DOUBT, KEPT = range(7)


class Rows(Protocol):
    """The cells of the columns that a prompt reads, a tuple of plain scalars a row."""

    def __getitem__(self, position: int) -> tuple[Any, ...]: ...


class Source(Protocol):
    """Where rows come from: a frame, as `llmframe.frames.Table` shows it."""

    count: int

    @property
    def names(self) -> Sequence[Hashable]:
        """Column labels in order."""

    @property
    def index_names(self) -> Sequence[Hashable]:
        """Names of the index levels."""

    def rows(self, columns: Sequence[int]) -> Rows:
        """The cells of some columns."""


@dataclass(slots=True)
class Work:
    """A call on a frame: which rows are asked, and under which key.

    Attributes:
        call: What is asked.
        prompt: Bound to the frame's columns.
        rows: The cells.
        count: Rows of the frame.
        status: Place in `STATUS` for each row, as far as it is known before asking.
        inverse: For each row the place of its key in `keys`, -1 where it is not asked; of a row
            with several requests one place for each, so that request ``a`` of row ``r`` is at
            ``r * call.asks + a``.
        keys: The distinct keys, in order of their first row.
        first: Where in `inverse` each key comes first.
        failures: Rows that cannot be rendered.
        partly: Rows skipped although another used cell has a value.
        aux: Keys of the content-free inputs; request ``len(keys) + i`` is the i-th of them.
    """

    call: Call
    prompt: Prompt
    rows: Rows
    count: int
    status: npt.NDArray[np.uint8]
    inverse: npt.NDArray[np.int64]
    keys: list[bytes]
    first: npt.NDArray[np.int64]
    failures: dict[int, Failure]
    partly: int
    aux: list[bytes]
    _sampling: Sampling = field(init=False)
    _sorted: tuple[list[bytes], npt.NDArray[np.int64]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._sampling = self.call.sent  # made once: a million rows share it

    def __len__(self) -> int:
        return len(self.keys) + len(self.aux)

    def key(self, place: int) -> bytes:
        """Key of request `place`."""
        here = place - len(self.keys)
        return self.keys[place] if here < 0 else self.aux[here]

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """`inverse` as one line a row."""
        return self.inverse.reshape(self.count, self.call.asks)

    @property
    def asked(self) -> npt.NDArray[np.bool_]:
        """Whether each row is asked."""
        return self.places[:, 0] >= 0

    def row_of(self, place: int) -> int:
        """Position of the first row that asks request `place`."""
        return int(self.first[place]) // self.call.asks

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """These rows were not asked: they had a value, which was kept."""
        self.places[rows] = -1
        self.status[rows] = KEPT

    def place(self, key: bytes) -> int | None:
        """Place of the request with that key; None where there is none.

        Sorted lists take 16 bytes a row, where a dict would take 130.
        """
        if self._sorted is None:
            keys = [*self.keys, *self.aux]
            order = np.argsort(np.array(keys, dtype="S16"), kind="stable")
            self._sorted = [keys[i] for i in order], order
        keys, order = self._sorted
        at = bisect_left(keys, key)
        return int(order[at]) if at < len(keys) and keys[at] == key else None

    @property
    def shared(self) -> tuple[Message, ...]:
        """The messages that every row begins with."""
        return self.prompt.shared

    def can_ask(self, place: int) -> bool:
        """Whether request `place` can be made here; always, with the frame at hand."""
        return True

    def request(self, place: int) -> Request:
        """Make request `place`."""
        call, here = self.call, place - len(self.keys)
        shared = prefix = 0
        if here >= 0:
            position, messages = -1 - here, call.content_free[here]
        else:
            position = self.row_of(place)
            swapped = call.panel is not None and call.panel.swaps and self._ask(place) > 0
            messages = self.prompt.render(self.rows[position], swapped)
            shared, prefix = self.prompt.shared_by(messages), self.prompt.prefix
        return Request(
            self.key(place),
            position,
            messages,
            call.form.schema,
            call.choices,
            self.sampling(place),
            shared,
            prefix,
        )

    def _ask(self, place: int) -> int:
        """Which of its row's requests it is, from 0."""
        return int(self.first[place]) % self.call.asks

    def sampling(self, place: int) -> Sampling:
        """How the reply to request `place` is drawn."""
        sampling = self._sampling
        if sampling.seed is None or place >= len(self.keys) or not (ask := self._ask(place)):
            return sampling
        # Samples under one seed would be one sample; of two orders each is a text of its own.
        same = self.call.panel is None or self.call.panel.swaps
        return sampling if same else replace(sampling, seed=sampling.seed + ask)


def compiled(call: Call, source: Source, asked: npt.NDArray[np.bool_] | None = None) -> Work:
    """Bind a call to a frame: render every row once and give it its key.

    Args:
        call: What is asked.
        source: The frame's rows.
        asked: Which rows to ask, one bool a row; None for all.

    Raises:
        PromptError: An unknown column, or a missing cell under ``missing="raise"``.
    """
    prompt = call.bind(source.names, source.index_names)
    rows = source.rows(prompt.columns)
    keys_of = _Keys(call, prompt)
    status = np.full(source.count, PENDING, dtype=np.uint8)
    failures: dict[int, Failure] = {}
    keys = bytearray()
    positions: list[int] = []
    asks = call.asks
    partly = 0
    for position in range(source.count):
        if asked is not None and not asked[position]:
            status[position] = KEPT if call.look.get("fill") else SKIPPED
            continue
        values = rows[position]
        if call.missing != "blank" and (gap := prompt.missing(values)) != "none":
            if call.missing == "raise":
                raise PromptError(_gap(source, prompt, values, position))
            if gap == "all" or call.missing == "skip":
                status[position] = SKIPPED
                partly += gap == "some"
                continue
        try:
            key = keys_of(values)
        except RowError as error:
            status[position] = FAILED
            failures[position] = Failure(error.kind, error.message)
            continue
        except UnicodeEncodeError as error:
            status[position] = FAILED
            failures[position] = Failure("prompt_error", _surrogate(error))
            continue
        keys += key
        positions.extend(range(position * asks, position * asks + asks))
    distinct, first, inverse = unique(keys, positions, source.count * asks)
    aux = [call.maker().key(messages) for messages in call.content_free]
    return Work(
        call, prompt, rows, source.count, status, inverse, distinct, first, failures, partly, aux
    )


class _Keys:
    """The keys of a row's requests, one behind the other."""

    def __init__(self, call: Call, prompt: Prompt) -> None:
        self._call = call
        self._prompt = prompt
        self._maker = call.maker(prompt.shared)
        self._bare: KeyMaker | None = None
        self._shared = len(prompt.shared)
        self._seen: dict[bytes, int] = {}
        orders = call.panel is not None and call.panel.swaps
        self._orders, self._samples = (call.asks, 1) if orders else (1, call.asks)

    def __call__(self, values: Sequence[Any]) -> bytes:
        found = self._one(values, False)
        return found if self._orders == 1 else found + self._one(values, True)

    def _one(self, values: Sequence[Any], swapped: bool) -> bytes:
        messages = self._prompt.render(values, swapped)
        maker = self._maker
        if self._shared and self._prompt.shared_by(messages) < self._shared:
            # An example that is the row itself was left out for it.
            maker = self._bare = self._bare or self._call.maker()
        key, start = maker.key(messages), 0
        if not self._call.dedupe:
            start = self._seen.get(key, 0)
            self._seen[key] = start + self._samples
        samples = range(start, start + self._samples)
        return b"".join(maker.key(messages, sample) if sample else key for sample in samples)


def unique(
    keys: bytearray, positions: list[int], count: int
) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct keys in order of first use, their first positions, and each row's place.

    Sorted arrays: about 50 bytes a row at a million, where a dict takes 132.
    """
    inverse = np.full(count, -1, dtype=np.int64)
    where = np.asarray(positions, dtype=np.int64)
    if not len(where):
        return [], where, inverse
    halves = np.frombuffer(bytes(keys), dtype=">u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: the first row of a key leads it
    ranked = halves[order]
    starts = np.concatenate(([True], (ranked[1:] != ranked[:-1]).any(axis=1)))
    leaders = order[starts]
    by_use = np.argsort(leaders, kind="stable")
    place = np.empty(len(leaders), dtype=np.int64)
    place[by_use] = np.arange(len(leaders))
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(starts) - 1
    inverse[where] = place[group]
    lead = leaders[by_use]
    view = memoryview(keys)
    return [bytes(view[16 * i : 16 * i + 16]) for i in lead], where[lead], inverse


def _gap(source: Source, prompt: Prompt, values: Sequence[Any], position: int) -> str:
    names = [
        name_text(source.names[column] if column >= 0 else source.index_names[-1 - column])
        for column, value in zip(prompt.columns, values, strict=True)
        if is_missing(value)
    ]
    return (
        f"the row at position {position} has no value in {', '.join(map(repr, names))}, which the "
        f'prompt uses (missing="raise"). Nothing was sent. Fill it, drop the row, or use '
        f'missing="skip".'
    )


def _surrogate(error: UnicodeEncodeError) -> str:
    return (
        f"the prompt holds a lone surrogate (U+{ord(error.object[error.start]):04X}), which is no "
        f"text that can be sent; clean the cell with .encode('utf-8', 'replace')"
    )

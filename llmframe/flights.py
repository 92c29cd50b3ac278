"""A request on its way, and what the run says to the engine meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmframe.engines.base import Mode
from llmframe.requests import Request
from llmframe.work import Work

__all__ = ["Control", "Elsewhere", "Flight"]


@dataclass(slots=True)
class Control:
    """See `llmframe.engines.base.Control`."""

    limit: int
    mode: Mode = "run"


@dataclass(slots=True)
class Flight:
    """A request from its making to its last reply.

    Attributes:
        place: Of the request in its `Work`.
        request: What goes out next, where it is not what its row makes.
        attempt: 1 for the first try.
        tries: Spent on timeouts, lost connections and server errors.
        waits: Pauses that spent no try.
        repairs: Times the error was told.
        longer: A larger token limit was tried.
        asked: What the last repair told.
        reserved: US$ held back for it.
        taken: The engine has it.
        claimed: Its key is this run's to send; a stored reply ends the claim.
    """

    place: int
    request: Request | None = None
    attempt: int = 1
    tries: int = 0
    waits: int = 0
    repairs: int = 0
    longer: bool = False
    asked: str | None = None
    reserved: float = 0.0
    taken: bool = False
    claimed: bool = False


class Elsewhere:
    """Requests whose answers come in hours: a byte each, and what is reserved for them.

    A frame of a million rows may be in batches at once, and a `Flight` with its request takes a
    thousand bytes.

    Args:
        work: The rows.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._there = np.zeros(len(work), dtype=bool)
        self._reserved = np.zeros(len(work))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return map(self._work.key, np.flatnonzero(self._there).tolist())

    def put(self, place: int, reserved: float) -> None:
        """A request is there from now on."""
        self._count += not self._there[place]
        self._there[place] = True
        self._reserved[place] = reserved

    def pop(self, key: bytes) -> Flight | None:
        """It is not there any more; None: it never was."""
        place = self._work.place(key) if self._count else None
        if place is None or not self._there[place]:
            return None
        self._there[place] = False
        self._count -= 1
        return Flight(place, reserved=float(self._reserved[place]))

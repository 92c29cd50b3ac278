"""A request on its way, and what the run says to the engine meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from llmframe.engines.base import Mode
from llmframe.requests import Request

__all__ = ["Control", "Flight"]


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
        request: As it goes out next.
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
    request: Request
    tries: int = 0
    waits: int = 0
    repairs: int = 0
    longer: bool = False
    asked: str | None = None
    reserved: float = 0.0
    taken: bool = False
    claimed: bool = False

"""What has succeeded within the hour: the next call of its kind needs no canary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from llmframe.journal import Journal

__all__ = ["is_proven", "prove"]

_PROVEN: Final = 3600.0
"""Seconds for which a success makes the next canary unnecessary."""

_proven: WeakKeyDictionary[object, dict[bytes, float]] = WeakKeyDictionary()
"""When an engine last succeeded with a schema and parameters: by the key of an empty prompt."""


@runtime_checkable
class Learner(Protocol):
    """An engine that learns from refusals what its server takes."""

    def learned(self) -> Mapping[str, Any]:
        """What it knows by now, as plain JSON."""

    def learn(self, known: Mapping[str, Any]) -> None:
        """Know what another one learned."""


def is_proven(engine: object, journal: Journal, mark: bytes) -> bool:
    """Whether the same engine, schema and parameters have succeeded within the hour.

    In this process or in another one. What the other one had to leave out, so that it succeeded,
    is left out here too: it may have been the canary that taught it.

    Args:
        engine: Who is to be asked.
        journal: Where other processes say so.
        mark: Key of an empty prompt: engine, schema and parameters are all that is in it.
    """
    if time.monotonic() - _marks(engine).get(mark, -_PROVEN) < _PROVEN:
        return True
    proof = journal.proof(mark)
    if proof is None or time.time() - proof["at"] >= _PROVEN:
        return False
    if isinstance(engine, Learner):
        engine.learn(proof["learned"])
    return True


def prove(engine: object, journal: Journal, job: str, mark: bytes) -> None:
    """A request of this engine, schema and parameters has succeeded now."""
    _marks(engine)[mark] = time.monotonic()
    learned = engine.learned() if isinstance(engine, Learner) else {}
    journal.prove(job, mark, {"at": time.time(), "learned": dict(learned)})


def _marks(engine: object) -> dict[bytes, float]:
    try:
        return _proven.setdefault(engine, {})
    except TypeError:  # an engine of the user's that cannot be hashed or referred to weakly
        return {}

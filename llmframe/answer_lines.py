"""Results files in OpenAI's batch shape, from whatever ran them, line by line. Total: never raises.

Split at newlines alone: U+2028 and its like stand unescaped inside valid JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmframe.engines import openai_batch_wire as wire
from llmframe.results import Result

__all__ = ["BadLine", "read_answers"]


@dataclass(frozen=True, slots=True)
class BadLine:
    """Line `number`, from 1, that says nothing of any request."""

    number: int
    why: str


def read_answers(path: Path) -> Iterator[Result | BadLine]:
    """The results of a file; blank lines are left out."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            found = wire.read_line(data)
            if isinstance(found, wire.BadLine):
                yield BadLine(number, found.why)
            elif found is not None:
                custom_id, _, result = found
                if len(result.key) == 16:
                    yield result
                else:
                    yield BadLine(number, f"custom_id {custom_id!r} is none of llmframe's")

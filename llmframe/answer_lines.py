"""Results files in OpenAI's or Anthropic's batch shape, line by line. Total: never raises.

Split at newlines alone: U+2028 and its like stand unescaped inside valid JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from llmframe.engines import anthropic_lines
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
            found = _anthropic(data) or wire.read_line(data)
            if isinstance(found, wire.BadLine):
                yield BadLine(number, found.why)
            elif found is not None:
                custom_id, result = found[0], found[-1]
                if len(result.key) == 16:
                    yield result
                else:
                    yield BadLine(number, f"custom_id {custom_id!r} is none of llmframe's")


def _anthropic(data: bytes) -> tuple[str, Result] | None:
    """custom_id and result of a line in Anthropic's shape."""
    if b'"result"' not in data:
        return None
    try:
        read = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(read, dict) or "result" not in read or "response" in read:
        return None
    custom_id = read.get("custom_id")
    if not isinstance(custom_id, str):
        return None
    return custom_id, anthropic_lines.result(read, "file")

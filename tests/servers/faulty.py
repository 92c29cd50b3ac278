"""A provider on an ordinary day: rows fail, lines are missing, doubled or hold nonsense.

`Day` decides what each request gets and keeps the books, so that a test can ask what was paid for
and how often. It knows nothing of llmframe.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.servers import anthropic, openai_batches

__all__ = ["Day", "answer", "anthropic_day", "openai_day"]

_ROW = re.compile(r"Ticket (\d+):")
_SHARES = {"busy": 0.03, "dropped": 0.01, "invalid": 0.01, "doubled": 0.02}


def answer(row: int) -> dict[str, Any]:
    """The right answer to a row."""
    return {"topic": "billing", "urgent": row % 2 == 0, "summary": f"Ticket {row}."}


class Day:
    """What became of every request.

    Args:
        shares: Of the requests that go each way; the rest is answered.

    Attributes:
        fates: By row, what each of its requests in turn got.
    """

    def __init__(self, shares: Mapping[str, float] = _SHARES) -> None:
        self._shares = shares
        self.fates: dict[int, list[str]] = {}

    def request(self, body: Mapping[str, Any]) -> tuple[int, str]:
        """The row that a body asks, and what its request gets."""
        found = _ROW.search(json.dumps(body["messages"]))
        assert found is not None, "a row is a Ticket"
        row = int(found[1])
        fates = self.fates.setdefault(row, [])
        dice, fate = random.Random(f"{row} {len(fates)}").random(), "answered"
        for name, share in self._shares.items():
            if 0 <= dice < share:
                fate = name
            dice -= share
        fates.append(fate)
        return row, fate

    def books(self) -> dict[str, Any]:
        """Requests and failures of each round, and the rows that were answered twice."""
        good = {"answered", "doubled"}
        rounds = max(map(len, self.fates.values()), default=0)
        asked = [sum(len(f) > n for f in self.fates.values()) for n in range(rounds)]
        failed = [
            sum(len(f) > n and f[n] not in good for f in self.fates.values()) for n in range(rounds)
        ]
        twice = sum(sum(fate in good for fate in fates) > 1 for fates in self.fates.values())
        every = Counter(fate for fates in self.fates.values() for fate in fates)
        return {"asked": asked, "failed": failed, "twice": twice, "fates": dict(every)}


def openai_day(day: Day) -> openai_batches.BatchServer:
    """OpenAI's emulator on that day."""

    def reply(body: dict[str, Any]) -> Any:
        row, fate = day.request(body)
        if fate == "busy":
            return openai_batches.Row(status=503)
        text = "{" if fate == "invalid" else json.dumps(answer(row))
        return openai_batches.Row(text, lines={"dropped": 0, "doubled": 2}.get(fate, 1))

    server = openai_batches.BatchServer(answer=reply)
    server.plan = openai_batches.Plan(words=["in_progress"])
    return server


def anthropic_day(day: Day) -> anthropic.AnthropicServer:
    """Anthropic's emulator on that day."""

    def reply(asked: anthropic.Asked) -> Any:
        row, fate = day.request(asked.body)
        if fate == "busy":
            return anthropic.error(529, "Overloaded")
        text = "{" if fate == "invalid" else json.dumps(answer(row))
        lines = {"dropped": 0, "doubled": 2}.get(fate, 1)
        return anthropic.Reply(anthropic.message(text), lines=lines)

    return anthropic.AnthropicServer(reply)

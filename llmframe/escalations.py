"""What a cascade came to: rows that went on to the stronger model, what it cost, what it saved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmframe.journal import Journal
from llmframe.reopened import remembered
from llmframe.views import money, number

__all__ = ["Escalation", "escalation_of", "note_escalation"]


@dataclass(frozen=True, slots=True)
class Escalation:
    """Rows that one model was not sure of, and another one answered.

    Attributes:
        rows: Rows that went on, those that failed included.
        failed: Of these, the rows that had failed.
        of: Rows that the first model was asked.
        below: Probability below which it counted as not sure.
        model: Who they went on to.
        cost: US$ of the stronger model; None where unknown.
        first: US$ of the first model; None where unknown.
        whole: US$ that the stronger model was expected to take for all rows; None where unknown.
    """

    rows: int
    failed: int
    of: int
    below: float
    model: str
    cost: float | None = None
    first: float | None = None
    whole: float | None = None

    @property
    def saved(self) -> float | None:
        """US$ less than the stronger model alone, the first model's own cost counted."""
        if self.whole is None or self.cost is None or self.first is None:
            return None
        return self.whole - self.cost - self.first

    def told(self) -> str:
        """One sentence for a warning."""
        unsure = self.rows - self.failed
        share = unsure / max(self.of - self.failed, 1)
        text = f"{unsure:,} of {self.of - self.failed:,} rows ({share:.0%}) were less than "
        text += f"{self.below:.3g} sure and went to {self.model}"
        text += f", as did {self.failed:,} that failed" if self.failed else ""
        if self.whole and self.cost is not None:
            text += f": {money(self.cost)}; all rows would have been about {money(self.whole)}"
        return f"{text}."

    def lines(self) -> Iterable[tuple[str, str]]:
        """For a report."""
        share = self.rows / max(self.of, 1)
        told = f"{number(self.rows)} of {number(self.of)} rows ({share:.0%}) to {self.model}, "
        told += f"less than {self.below:.3g} sure"
        yield "went on", told + (f" or failed ({number(self.failed)})" if self.failed else "")
        yield "the stronger model", money(self.cost)
        if self.whole is not None:
            yield "for all rows", f"about {money(self.whole)}"
        if self.saved is not None:
            name = "the cascade saved" if self.saved >= 0 else "the cascade cost more"
            yield name, f"about {money(abs(self.saved))}"


def escalation_of(journal: Journal, id: str, cost: float | None) -> Escalation | None:
    """What became of the cascade that a job is half of; None where it is of none.

    Args:
        journal: Where the job is.
        id: The job.
        cost: US$ of the job so far.
    """
    record = journal.job(id)
    known = {} if record is None else json.loads(record.engine).get("cascade", {})
    if "rows" not in known:  # before its end nobody knows what a first call leaves open
        return None
    spent = 0.0 if known["other"] is None else _spent(journal, known["other"])
    first, second = (spent, cost) if known.get("is_second") else (cost, spent)
    told = {name: known[name] for name in ("rows", "failed", "of", "below", "model", "whole")}
    return Escalation(**told, cost=second, first=first)


def note_escalation(journal: Journal, id: str, known: Mapping[str, Any]) -> None:
    """Store in the record of a cascade's first job what it came to."""
    record = journal.job(id)
    if record is not None:  # purged in the meantime
        engine = {**json.loads(record.engine), "cascade": dict(known)}
        journal.update_job(id, engine=json.dumps(engine))


def _spent(journal: Journal, id: str) -> float | None:
    found = remembered(id)  # a fake engine keeps a journal of its own
    record = (journal if found is None else found[1]).job(id)
    return None if record is None else record.spent

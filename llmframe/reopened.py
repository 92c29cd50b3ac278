"""What a process needs of a job that another one made: its rows, its failures, its code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from llmframe import joins
from llmframe.calls import Call
from llmframe.journal import Journal
from llmframe.outcomes import outcome_of
from llmframe.prompts import build
from llmframe.schemas.forms import form_again
from llmframe.settlements import Lost, is_spent, settle
from llmframe.stored import stored_work
from llmframe.work import Work

__all__ = ["remember", "remembered", "save_rows", "stored_failures", "with_code"]

_KEPT: Final = 10_000

_calls: dict[str, tuple[Call, Journal]] = {}
"""Calls of this process by job id: they hold the code that the journal cannot."""


def remember(job: str, call: Call, journal: Journal) -> None:
    """Keep what a job asks, with its code, for as long as this process lives."""
    _calls[job] = (call, journal)
    while len(_calls) > _KEPT:
        del _calls[next(iter(_calls))]


def remembered(job: str) -> tuple[Call, Journal] | None:
    """What `remember` kept of a job."""
    return _calls.get(job)


class Labelled(Protocol):
    """Something that knows its rows' labels."""

    def label_text(self, position: int) -> str:
        """The label of a row as text."""


def save_rows(journal: Journal, name: str, work: Work, table: Labelled) -> None:
    """Key and label of each row, so that another process can name the rows that failed.

    A row with several requests has as many lines.
    """
    missing = bytes(16)
    inverse, asks = work.inverse.tolist(), work.call.asks
    status = work.status.repeat(asks)
    for start in range(0, len(inverse), 4096):
        stop = min(start + 4096, len(inverse))
        keys = b"".join(work.keys[i] if i >= 0 else missing for i in inverse[start:stop])
        labels = [table.label_text(line // asks) for line in range(start, stop)]
        journal.save_rows(name, keys, status[start:stop].tobytes(), labels, start)


def stored_failures(call: Call, journal: Journal, job: str) -> Any:
    """The failed rows of a job from the journal alone, on the labels that were stored as text."""
    labels: list[str] = []
    lost: list[tuple[int, Lost]] = []
    record = journal.job(job) if call.asks > 1 else None
    if record is not None:
        labels = [text for *_, texts in journal.rows(job) for text in texts or ()][:: call.asks]
        outcome = outcome_of(stored_work(journal, record, call), journal)
        return joins.failures(joins.labels_index(labels), outcome.lost_rows())
    for start, keys, _, texts in journal.rows(job):
        chunk = [keys[i : i + 16] for i in range(0, len(keys), 16)]
        found = journal.replies(chunk)
        for place, key in enumerate(chunk):
            settled = settle(call, found[key]) if key in found else None
            if isinstance(settled, Lost) and is_spent(call, settled):
                lost.append((start + place, settled))
            labels.append(texts[place] if texts else str(start + place))
    return joins.failures(joins.labels_index(labels), lost)


def with_code(
    call: Call, prompt: Any = None, schema: Any = None, system: str | None = None
) -> Call:
    """The call with the Python code that the journal cannot hold.

    Args:
        call: As it was stored.
        prompt: The function it was made with.
        schema: The class it was made with.
        system: The system text it was made with, where that was not stored.
    """
    if prompt is not None:
        around = dict(call.around) | ({} if system is None else {"system": system})
        call = replace(call, bind=partial(build, prompt, **around))
    if schema is not None:
        names = tuple(field.name for field in call.form.fields)
        call = replace(call, form=form_again(schema, names))
    return call

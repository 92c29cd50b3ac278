"""Stored replies as a person is shown them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from llmframe.calls import Call
from llmframe.journal import Entry, Journal
from llmframe.label_scores import probabilities
from llmframe.labels import Labels
from llmframe.reports import Trace
from llmframe.settlements import as_result
from llmframe.work import KEPT, Work

__all__ = ["judged", "traced"]

_RANKED: Final = 10
"""Labels that are shown with their probabilities."""


def traced(work: Work, row: int, shown: str, journal: Journal) -> Trace:
    """How one row's answer came to be.

    Args:
        work: All rows, compiled.
        row: Its place among them.
        shown: Its label.
        journal: Where the replies are.
    """
    places = list(dict.fromkeys(work.places[row].tolist()))
    if places[0] < 0:
        failure = work.failures.get(row)
        note = "it had a value, which was kept"
        if work.status[row] != KEPT:
            note = failure.message if failure else "a cell is missing"
        return Trace(shown, (), (), note)
    found = journal.replies([work.keys[place] for place in places])
    told = [(ask, entry) for ask, p in enumerate(places) for entry in found.get(work.keys[p], [])]
    panel = work.call.panel
    names = () if panel is None or panel.size == 1 else tuple(panel.name(ask) for ask, _ in told)
    entries = judged(work.call, [entry for _, entry in told])
    # Further requests of the row are that text once more, or its parts in another order.
    return Trace(shown, work.request(places[0]).messages, entries, names=names)


def judged(call: Call, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Stored replies with the verdict of the local check in place of the engine's "ok".

    The message of one that is an answer says what was put right in reading it. The text of one of
    which the labels were scored is their probabilities, the likeliest first.
    """
    found = []
    for entry in entries:
        if entry.text is None and entry.scores is not None and call.labels is not None:
            entry = entry._replace(text=_ranked(call.labels, entry.scores))
        reading = call.read(as_result(entry))
        if reading.failure is not None:
            kind, message = reading.failure.kind, reading.failure.message
            found.append(entry._replace(kind=kind, message=message))
            continue
        marks = ["found among other text"] if reading.repaired else []
        if reading.coerced:
            marks.append(f"coerced {', '.join(reading.coerced)}")
        found.append(entry._replace(message="; ".join(marks)) if marks else entry)
    return tuple(found)


def _ranked(labels: Labels, scores: Sequence[float]) -> str:
    [shares] = probabilities([scores], None, "none").tolist()
    ranked = sorted(zip(shares, labels.texts, strict=False), key=lambda pair: -pair[0])
    lines = [f"{text}: {share:.3f}" for share, text in ranked[:_RANKED]]
    if len(ranked) > _RANKED:
        lines.append(f"… and {len(ranked) - _RANKED:,} more")
    return "\n".join(["probabilities of the labels, before any calibration:", *lines])

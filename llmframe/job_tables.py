"""The table of all jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from llmframe import markup
from llmframe.columns import name_text
from llmframe.views import age, money, number

if TYPE_CHECKING:
    from llmframe.jobs import Job

__all__ = ["JobTable"]


class JobTable(Sequence["Job"]):
    """All jobs of the store, newest first; shown as a table."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)

    @overload
    def __getitem__(self, place: int) -> Job: ...
    @overload
    def __getitem__(self, place: slice) -> list[Job]: ...
    def __getitem__(self, place: int | slice) -> Job | list[Job]:
        return self._jobs[place]

    def __len__(self) -> int:
        return len(self._jobs)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """One line a job, as text: what it is, where it stands, what it cost."""
        for job in self._jobs:
            status = job.status()
            done = status.ok + status.cached
            yield (
                status.id,
                status.shown_state,
                job.verb,
                ", ".join(map(name_text, job.call.columns)) if job.verb != "filter" else "",
                job.model,
                number(status.rows),
                number(done),
                number(status.failed),
                status.at_provider,
                money(status.cost),
                age(time.time() - job.created),
            )

    _HEADER = (
        "id",
        "state",
        "verb",
        "columns",
        "model",
        "rows",
        "answered",
        "failed",
        "at the provider",
        "cost",
        "age",
    )

    def __repr__(self) -> str:
        if not self._jobs:
            return "no jobs"
        lines = [self._HEADER, *self.rows()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self._HEADER))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        if not self._jobs:
            return markup.page("There is none in the store.", title="Jobs")
        head = ["id", "state", "progress", "what", "model", "rows", "failed"]
        head += ["at the provider", "cost", "age"]
        rows: list[list[str]] = []
        for job, line in zip(self._jobs, self.rows(), strict=True):
            status, said = job.status(), dict(zip(self._HEADER, line, strict=True))
            # Narrower than the text: what the bar says already is left out.
            what = f"{said['verb']} → {said['columns']}" if said["columns"] else said["verb"]
            said |= {"state": status.toned_state(), "progress": status.meter(), "what": what}
            said["failed"] = said["failed"] if status.failed else ""
            rows.append([said[name] for name in head])
        filled = [place for place in range(len(head)) if any(row[place] for row in rows)]
        numeric = {"rows", "failed", "cost", "age"}
        shown = markup.table(
            [head[place] for place in filled],
            [[row[place] for place in filled] for row in rows],
            numeric=[i for i, place in enumerate(filled) if head[place] in numeric],
        )
        return markup.page(shown, title="Jobs")

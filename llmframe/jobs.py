"""Jobs: wait, join, cancel, look back; in the process that made them or in any other."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmframe import frames, joins, table_files
from llmframe.accounts import Account, account
from llmframe.awaiting import Awaited
from llmframe.calls import Call, call_from
from llmframe.errors import (
    BudgetError,
    EngineError,
    Line,
    RowsFailed,
    StoreError,
    on_behalf,
    user_line,
    warn_user,
)
from llmframe.escalations import escalation_of
from llmframe.lanes import CONFLICTS
from llmframe.notices import foreign, tell
from llmframe.outcomes import Outcome, in_doubt, outcome_of
from llmframe.reopened import remember, stored_failures, with_code
from llmframe.reports import JobStatus, Report, Trace
from llmframe.retold import traced
from llmframe.standings import standing
from llmframe.stored import stored_work
from llmframe.summaries import report_of, stored_report
from llmframe.verdicts import judged_together
from llmframe.work import Work, compiled

__all__ = ["Job"]


class Job(Awaited):
    """A call that runs, or ran, row by row; its state is the journal's.

    `submit` makes one and `lf.job(id)` finds one again, in any process and after any crash.
    ``await job`` gives the joined frame.

    Attributes:
        id: Such as ``"j_8f2a61c3"``.
    """

    # -- state -------------------------------------------------------------------------------

    @property
    def created(self) -> float:
        """When it was made, in Unix seconds."""
        return self._record.created

    def status(self) -> JobStatus:
        """Where the job stands: its state, and rows by status."""
        run = self._run
        if run is None or (self._done.is_set() and run.left):
            return self._status_by_journal()
        outcome, doubts = run.outcome, self._doubts()
        if doubts:
            outcome = outcome.snapshot()
            outcome.doubt(doubts)
        counts = outcome.answers()
        progress = run.progress()
        state = self._state if self._done.is_set() else "running"
        return JobStatus(
            self.id,
            state,
            run.work.count,
            counts,
            progress.cost,
            progress.usage,
            progress.awaited,
            0 if run.lane is None else len(self._batches(open_only=False)),
            error=(str(run.error) if run.error else self._failed) if state == "failed" else None,
        )

    def _status_by_journal(self) -> JobStatus:
        """Of a job whose run is elsewhere, or ended before it was done: others may have gone on."""
        record = self._journal.job(self.id) or self._record
        seen = standing(self._call, self._journal, record)
        usage = None if self._run is None else self._run.progress().usage
        return JobStatus(
            self.id,
            seen.state,
            record.count,
            seen.counts,
            seen.cost,
            usage,
            seen.awaited,
            seen.batches,
            seen.reader,
            record.error if seen.state == "failed" else None,
        )

    def _doubts(self) -> set[bytes]:
        """Keys of which nobody knows whether the provider has them."""
        run = self._run
        if run is None or run.lane is None:
            return set()
        return in_doubt(self._journal, run.lane.jobs)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.awaited(user_line()).__await__()

    async def awaited(self, line: Line) -> Any:
        """As `result`, without blocking the loop; what it warns of is told at `line`."""
        await self._awaited(line)
        return await asyncio.to_thread(on_behalf, line, self.result)

    # -- results -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait, but for a job that failed here: it says so each time, whatever is still open."""
        if not (self._done.is_set() and self._state == "failed"):
            self.wait()
        self._heard = True

    def check(self) -> None:
        """Wait, and raise what ended the job early, if anything did."""
        self._settle()
        if self._run is not None and self._run.error is not None:
            raise _with_result(self._run.error, self._here()[0])

    def result(self) -> Any:
        """Wait, and join as the verb itself does: with its warnings and its errors.

        After the Stop of a notebook's view it is the frame with what is answered so far and a
        warning, or, with ``errors="raise"``, an error that carries the frame.
        """
        self._settle()
        run, prepared = self._run, self._prepared
        if run is None or prepared is None:
            return self.join()
        out, _ = self._here()
        if run.error is not None:
            raise _with_result(run.error, out)
        if self._state in {"interrupted", "canceled", "failed"} or not self._done.is_set():
            if self._pressed is not None and self._call.errors != "raise":
                warn_user(str(self._kept()))
                joins.warn(self._call, run.outcome, prepared.keep_failed, False)
                return out
            raise EngineError(
                f"job {self.id} was stopped: {run.left:,} requests are without an answer. "
                f"The same call sends the rest.",
                retryable=True,
                result=out,
            )
        scores = prepared.engine.limits.choices
        joins.warn(self._call, run.outcome, prepared.keep_failed, scores)
        if self._call.errors == "raise" and (told := joins.lost_text(self._call, run.outcome)):
            raise RowsFailed(told, result=out, failures=self.failures())
        return out

    def join(
        self, df: Any = None, *, prompt: Any = None, schema: Any = None, system: str | None = None
    ) -> Any:
        """The frame with what is answered so far; never blocks.

        Args:
            df: A frame to join to, in whatever order and with whatever rows: its prompts are
                rendered again and matched by key. None: the frame the job was made with.
            prompt: The callable the job was made with, where another process made it.
            schema: The Python class the job was made with, likewise.
            system: The system text, where the store was told to keep no prompts.

        Returns:
            DataFrame or Series as the verb gives it; rows without an answer are NA.

        Warns:
            RowsFailedWarning: Rows failed, or the job ended early: the message says why.
            UserWarning: Rows of `df` are none that the job asked; or they wait, and for what.

        Raises:
            StoreError: No `df`, and this process has not the job's own.
            SchemaError: An output column is in `df` already, and is not llmframe's.
        """
        if df is None:
            out, outcome = self._here()
            self._tell(outcome, 0)
            return out
        call = self._call
        if prompt is not None or schema is not None:
            call = with_code(call, prompt, schema, system)
        self._refuse_foreign_columns(df)
        outcome = self.on(df, call)
        strangers = foreign(outcome, self._journal, self.id)
        if call is not self._call and strangers < int(outcome.work.asked.sum()):
            self._call = call
            remember(self.id, call, self._journal)  # for what `df.llm` will ask of the frame
        self._tell(outcome, strangers)
        return self._joined(df, call, outcome)

    def _here(self) -> tuple[Any, Outcome]:
        """The frame of this process with what is answered so far, and nothing said."""
        if self._prepared is None or self._run is None:
            raise StoreError(
                f"job {self.id} was made by another process, so its frame is not here. "
                f"Pass it: lf.job({self.id!r}).join(df)."
            )
        outcome = self.outcome()
        return self._joined(self._prepared.data, self._call, outcome), outcome

    def outcome(self) -> Outcome:
        """What became of its own rows so far; of another process's job, by the journal."""
        run = self._run
        if run is None or self._prepared is None:
            work = stored_work(self._journal, self._record, self._call)
            return outcome_of(work, self._journal, self._record.created)
        if self._going:
            outcome = run.outcome.snapshot()
        elif run.left:  # others may have answered since
            outcome = outcome_of(run.work, self._journal, self._record.created)
        else:
            outcome = run.outcome
        judged_together(self._prepared.data, outcome, self._journal)
        outcome.doubt(self._doubts())
        return outcome

    @property
    def data(self) -> Any:
        """The frame it was made with; None where another process made it."""
        return None if self._prepared is None else self._prepared.data

    def account(self, keys: Sequence[bytes]) -> Account:
        """What the replies to some of its requests took, whichever job paid for them."""
        return account(self._journal, keys)

    def label_texts(self) -> Any:
        """Labels of its rows as they were stored, as text; an index."""
        rows = self._journal.rows(self.id)
        labels = [text for _, _, _, texts in rows for text in texts or ()]
        return joins.labels_index(labels[:: self._call.asks])  # stored for each request of a row

    def _tell(self, outcome: Outcome, strangers: int) -> None:
        if not self._going:
            tell(outcome, strangers, self.status(), self._remade)

    def _refuse_foreign_columns(self, df: Any) -> None:
        """As the verb does, before a column of the user's own is overwritten."""
        call, look = self._call, self._call.look
        if call.verb == "filter":
            return
        more = joins.detail_names(look["prefix"]) if look.get("details") else []
        own = joins.written_by(df, call.verb, self._call_of)
        frames.check_output(
            df,
            [*call.columns, *more],
            if_exists=look.get("if_exists", "raise"),
            own=own,
            remedy="Rename it, or drop it before join(df).",
        )

    def _call_of(self, job: str) -> Call | None:
        if job == self.id:
            return self._call
        record = self._journal.job(job)
        return None if record is None else call_from(record.call)

    def _joined(self, data: Any, call: Call, outcome: Outcome) -> Any:
        look = call.look
        if call.verb == "filter":
            return joins.kept(data, outcome, bool(look.get("keep_failed")))
        more: list[Any] = []
        if look.get("details"):
            more = joins.details(look["prefix"], outcome, self._journal)
        return joins.joined(
            data,
            call,
            outcome,
            self.id,
            dtype_backend=look.get("dtype_backend"),
            fill=bool(look.get("fill")),
            more=more,
        )

    @property
    def call(self) -> Call:
        """What was asked."""
        return self._call

    @property
    def verb(self) -> str:
        """Which verb made it."""
        return self._call.verb

    @property
    def model(self) -> str:
        """Who answers, such as ``"openai/gpt-4.1-mini"``."""
        return f"{self._call.identity['provider']}/{self._call.identity['model']}"

    def trace_on(self, df: Any, label: Any, position: int | None) -> Trace:
        """As `trace`, for a row of `df`."""
        return self._trace(df, self._work_on(df, self._call), label, position)

    def _work_on(self, df: Any, call: Call) -> Work:
        """The rows of `df`, less those that had a value which the call kept."""
        work = compiled(call, frames.Table(df))
        if call.look.get("fill"):
            here = work.asked
            mine = {
                chunk[i : i + 16]
                for _, chunk, _, _ in self._journal.rows(self.id)
                for i in range(0, len(chunk), 16)
            }
            foreign = np.array([key not in mine for key in work.keys], dtype=bool)
            here[here] = foreign[work.places[here]].any(axis=1)
            work.keep(here & ~frames.unfilled(df, call.filled))
        return work

    def _trace(self, data: Any, work: Work, label: Any, position: int | None) -> Trace:
        row = joins.place_of(data, label) if position is None else position
        if not -work.count <= row < work.count:
            raise IndexError(f"position={row}: the frame has {work.count:,} rows.")
        shown = joins.label_text(label) if position is None else f"at position {position}"
        return self.trace_row(work, row, shown)

    def trace_row(self, work: Work, row: int, shown: str) -> Trace:
        """As `trace`, for the row at a place of `work`; `shown` is its label."""
        return traced(work, row, shown, self._journal)

    def on(self, df: Any, call: Call | None = None) -> Outcome:
        """What became of the rows of `df`, matched by key."""
        work = self._work_on(df, call or self._call)
        outcome = outcome_of(work, self._journal, self._record.created)
        judged_together(df, outcome, self._journal)
        return outcome

    def failures(self) -> Any:
        """The failed rows, on the frame's own index.

        Returns:
            DataFrame with columns ``position, kind, message, raw, attempts, request_id``.
        """
        if self._run is None or self._prepared is None:
            return stored_failures(self._call, self._journal, self.id)
        return joins.failures(self._prepared.data.index, self._run.outcome.lost_rows())

    def trace(self, label: Any = None, *, position: int | None = None) -> Trace:
        """How one row's answer came to be: prompt, replies, usage, attempts.

        Args:
            label: The row's index label.
            position: Its place, where labels repeat.
        """
        if self._prepared is None or self._run is None:
            raise StoreError(
                f"job {self.id} was made by another process. Use "
                f"lf.job({self.id!r}).join(df).llm.trace(label)."
            )
        return self._trace(self._prepared.data, self._run.work, label, position)

    def report(self) -> Report:
        """What happened: rows, requests, tokens, cost, latency, failures by kind."""
        status = self.status()
        run = self._run
        notes = [batch.notes for batch in self._batches(open_only=False)]
        conflicts = sum(int(note.get(CONFLICTS, 0)) for note in notes)
        estimate = json.loads(self._record.engine).get("estimate")
        if run is None:
            record, journal = self._record, self._journal
            found = stored_report(status, self._call, journal, record, conflicts, estimate)
        else:
            found = report_of(status, run, conflicts, estimate)
        return replace(found, escalation=escalation_of(self._journal, self.id, status.cost))

    def export(self, path: str | os.PathLike[str], *, csv_safe: bool = True) -> Path:
        """Write the joined frame to ``.csv``, ``.parquet`` or ``.jsonl``.

        Where another process made the job its frame is not here: then the row's labels and the
        output columns are written.

        Args:
            path: Where; the ending says what.
            csv_safe: Prefix ``'`` to text that a spreadsheet would run as a formula.
        """
        out = self._by_label() if self._prepared is None else self.join()
        return table_files.export(out, Path(path), csv_safe=csv_safe)

    def _by_label(self) -> Any:
        """The output columns alone, on the labels that were stored as text."""
        return self._joined(joins.labels_frame(self.label_texts()), self._call, self.outcome())

    def __repr__(self) -> str:
        return repr(self.status())

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()


def _with_result(error: BaseException, out: Any) -> BaseException:
    if isinstance(error, BudgetError | EngineError):
        error.result = out
    return error

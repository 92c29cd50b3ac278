"""Outcomes become frames: output columns, failures, details, and what is said about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe import frames, placing
from llmframe.calls import Call
from llmframe.columns import name_text
from llmframe.errors import RowsFailedWarning, RowsSkippedWarning, warn_user
from llmframe.failures import FailedRow, FailureTable, failures_frame
from llmframe.journal import Entry, Journal
from llmframe.outcomes import Outcome, column
from llmframe.results import KINDS, Usage
from llmframe.schemas.forms import Field
from llmframe.settlements import Lost
from llmframe.turnouts import warn_of_panel, warn_of_scores, warn_of_unsure
from llmframe.work import FAILED, STATUS

__all__ = [
    "both_details",
    "details",
    "examples",
    "failed_text",
    "failures",
    "joined",
    "label_text",
    "warn",
    "written_by",
]

_DETAILS: Final[tuple[tuple[str, str], ...]] = (
    ("status", "category"),
    ("error", "str"),
    ("tokens", "int"),
    ("cost", "float"),
    ("model", "str"),
    ("finish", "str"),
)


def outputs(call: Call) -> list[tuple[Hashable, Field]]:
    """Name and field of each output column, in the order of the outcome's values."""
    if call.panel is not None:
        return list(zip(call.columns, call.panel.fields(), strict=True))
    # A few texts are allowed, and still the column is declared as text.
    fields = [
        replace(field, kind="str") if field.dtype == "str" else field for field in call.form.fields
    ]
    if call.labels is not None:
        fields = [call.labels.column(f) if f.name == "label" else f for f in fields]
    if call.confidence:
        fields.append(Field("confidence", "float", nullable=True))
    return list(zip(call.columns, fields, strict=True))


def _in_order(call: Call) -> list[int]:
    """Places of the output columns as they stand in the frame.

    A model gives its reason before its label; a reader looks for the label first.
    """
    names = [field.name for _, field in outputs(call)]
    ahead = {"label": 0, "confidence": 1} if call.verb == "classify" else {}
    return sorted(range(len(names)), key=lambda place: ahead.get(names[place], 2))


def joined(
    data: Any,
    call: Call,
    outcome: Outcome,
    job: str,
    *,
    dtype_backend: Any = None,
    fill: bool = False,
    more: Sequence[frames.Column] = (),
) -> Any:
    """The frame with its new columns; rows without an answer are NA."""
    made, rows = outputs(call), outcome.rows()
    columns = [
        frames.Column(*made[place], column(rows, place), fill=fill) for place in _in_order(call)
    ]
    return frames.attach(data, [*columns, *more], job=job, dtype_backend=dtype_backend)


def kept(data: Any, outcome: Outcome, keep_failed: bool) -> Any:
    """The rows for which the condition of `filter` holds."""
    mask = np.array([value is True for value in outcome.column(0)], dtype=bool)
    if keep_failed:
        mask |= outcome.row_status() == FAILED
    return frames.take(data, mask)


def details(prefix: str, outcome: Outcome, journal: Journal) -> list[frames.Column]:
    """Status, error, tokens, US$, model and finish of each row's request.

    Tokens and US$ are those of all its replies, earlier calls' too. They stand at the first row
    that shares it and are 0 at the others: whoever adds a column up gets what was spent.
    """
    work = outcome.work
    entries: dict[bytes, list[Entry]] = {}
    for start in range(0, len(work.keys), 4096):
        entries |= journal.replies(work.keys[start : start + 4096])
    lost = dict(outcome.lost_rows())
    rows: dict[str, list[Any]] = {name: [] for name, _ in _DETAILS}
    for position, state in enumerate(outcome.row_status().tolist()):
        places = work.places[position].tolist()
        asked = [place for place in dict.fromkeys(places) if place >= 0]
        replies = [entry for place in asked for entry in entries.get(work.keys[place], [])]
        failure = lost[position].failure if position in lost else None
        own = [work.keys[place] for place in asked if work.row_of(place) == position]
        billed = [entry for key in own for entry in entries.get(key, [])]
        usage = sum((entry.usage for entry in billed if entry.usage), Usage())
        priced = any(entry.cost is not None for entry in replies)
        rows["status"].append(STATUS[state])
        rows["error"].append(f"{failure.kind}: {failure.message}" if failure else None)
        tokens = usage.input_tokens + usage.output_tokens
        rows["tokens"].append(tokens if replies else None)
        rows["cost"].append(sum(entry.cost or 0.0 for entry in billed) if priced else None)
        rows["model"].append(replies[-1].model if replies else None)
        rows["finish"].append(replies[-1].finish if replies else None)
    return [
        frames.Column(
            f"{prefix}_{name}",
            Field(name, kind, frames.STATUSES if name == "status" else None),  # type: ignore[arg-type]
            rows[name],
        )
        for name, kind in _DETAILS
    ]


def both_details(
    first: pd.DataFrame, final: pd.DataFrame, prefix: str, asked: npt.NDArray[np.bool_] | None
) -> pd.DataFrame:
    """The second frame with the details of both calls of a cascade.

    Tokens and US$ of a row that both were asked are those of both; all else is told of the one
    that answered it.

    Args:
        first: What the first call gave, with details.
        final: What the second gave, likewise.
        prefix: Name that the detail columns begin with.
        asked: Rows that the second was asked.
    """
    out = final.copy(deep=False)
    for name in detail_names(prefix):
        place, there = placing.position(out, name), placing.position(first, name)
        assert place is not None, "the second call gave details"
        assert there is not None, "the first did"
        after = final.iloc[:, place].reset_index(drop=True)
        before = first.iloc[:, there].reset_index(drop=True)
        both = after
        if name in {f"{prefix}_tokens", f"{prefix}_cost"}:
            both = after.add(before, fill_value=0).astype(after.dtype)
        column = both.where(pd.Series(asked), before)
        column.index = out.index
        out.isetitem(place, cast(Any, column))
    return out


def detail_names(prefix: str) -> list[Hashable]:
    """Columns that `details` adds."""
    return [f"{prefix}_{name}" for name, _ in _DETAILS]


def failures(index: pd.Index[Any], lost: Iterable[tuple[int, Lost]]) -> FailureTable:
    """The failed rows on the labels of `index`."""
    return failures_frame(
        index,
        [
            FailedRow(
                position,
                row.failure.kind,
                row.failure.message,
                row.raw,
                row.attempts,
                row.request_id,
            )
            for position, row in lost
        ],
    )


def status(index: pd.Index[Any], codes: npt.NDArray[np.uint8]) -> pd.Series[Any]:
    """State of each row on the labels of `index`."""
    return frames.status_series(index, [STATUS[code] for code in codes.tolist()])


def labels_index(labels: Sequence[str]) -> pd.Index[Any]:
    """Labels that were stored as text, as an index."""
    return pd.Index(labels, dtype=object)


def labels_frame(labels: pd.Index[Any]) -> pd.DataFrame:
    """A frame without columns on labels that were stored as text."""
    return pd.DataFrame(index=labels)


def label_text(label: Any) -> str:
    """An index label as it is written, without numpy's names.

    Examples:
        >>> label_text(np.int64(2)), label_text(("a", np.int64(1))), label_text("b")
        ('2', "('a', 1)", "'b'")
    """
    if type(label) is tuple:
        return f"({', '.join(map(label_text, label))})"
    return repr(label.item() if isinstance(label, np.number | np.bool_ | np.str_) else label)


def place_of(data: Any, label: Any) -> int:
    """Position of the one row with that label.

    Raises:
        KeyError: No row has it.
        ValueError: Several rows have it.
    """
    if label is None and None not in data.index:
        raise ValueError("say which row: trace(label), or trace(position=…) where labels repeat.")
    found = data.index.get_loc(label)
    if isinstance(found, int | np.integer):
        return int(found)
    places = np.arange(len(data))[found]
    if len(places) == 1:
        return int(places[0])
    listed = ", ".join(map(str, places[:5]))
    raise ValueError(
        f"{len(places)} rows have the label {label_text(label)}, at positions {listed}. "
        f"Say which: trace(position={places[0]})."
    )


def written_by(
    data: Any, verb: str, call_of: Callable[[str], Call | None]
) -> Callable[[Any], bool]:
    """Whether a column of `data` was written by the same verb.

    Args:
        data: The frame.
        verb: Such as ``"map"``.
        call_of: What the job of an id asked; None where it is not known.
    """
    written = frames.written(data)

    def own(column: Any) -> bool:
        name = written.get(column)
        if name is None:
            return False
        call = call_of(name)
        if call is None:
            return True  # purged, or another store's: the frame itself says it is ours
        return call.verb == verb and looks_written(data, column, call)

    return own


def looks_written(data: Any, column: str, call: Call) -> bool:
    """Whether a column still has the dtype that a call gave it.

    The attrs of a frame outlive its columns: labels set by hand must not pass for the model's.
    """
    kinds = {name_text(name): field.kind for name, field in outputs(call)}
    kind = kinds.get(column)
    if isinstance(data, pd.Series) or kind not in {"category", "int", "float", "bool"}:
        return True
    dtypes = [t for name, t in data.dtypes.items() if name_text(name) == column]
    check: Any = {
        "category": lambda t: isinstance(t, pd.CategoricalDtype),
        "int": pd.api.types.is_integer_dtype,
        "float": pd.api.types.is_float_dtype,
        "bool": pd.api.types.is_bool_dtype,
    }[kind]
    return all(check(dtype) for dtype in dtypes)


def examples(given: Any) -> Any:
    """Examples as the prompt takes them: a DataFrame becomes a list of records."""
    return given.to_dict("records") if isinstance(given, pd.DataFrame) else given


_TURNED: Final = '{}: a check over several rows turned them down; retry="all" asks them once more'


def unmet_text(call: Call, outcome: Outcome) -> str | None:
    """The checks of the whole frame that fail and name no row; None where there are none."""
    if not outcome.unmet or call.form.whole is None:
        return None
    return (
        f"the frame does not meet {call.form.whole.name}: {'; '.join(outcome.unmet)}. That names "
        f"no row, so none was asked again, and none is NA for it."
    )


def failed_text(call: Call, outcome: Outcome) -> str:
    """``7 of 200 rows are NA: 5 rate_limited, 2 truncated (max_tokens=64). …``."""
    kinds = Counter(lost.failure.kind for _, lost in outcome.lost_rows())
    longer = any(
        lost.failure.retryable
        for _, lost in outcome.lost_rows()
        if lost.failure.kind == "truncated"
    )
    # Of a reply that filled the window its limit says nothing.
    limit = call.sent.max_tokens if longer else None
    parts = [
        f"{count:,} {kind}" + (f" (max_tokens={limit})" if kind == "truncated" and limit else "")
        for kind, count in kinds.most_common()
    ]
    unread, closed = kinds["needs_code"], len(outcome.turned)
    told = sum(n for kind, n in kinds.items() if kind in KINDS and KINDS[kind].rerun == "told")
    if unread == kinds.total():
        again = "the answers are stored: join(df, schema=…) reads them with the class they need"
    elif told == kinds.total():
        again = 'the provider refused these, so only retry="all" asks them again'
    elif closed == kinds.total():
        again = _TURNED.format("the same call asks none of these")
    else:
        again = "the same call asks only these"
        if closed:
            again += f", {_TURNED.format(f'less {closed:,}')}"
        if told:
            again += f', less the {told:,} that the provider refused (retry="all" asks them too)'
        if unread:
            again += f"; the {unread:,} answers that need a class are read by join(df, schema=…)"
    panel = "" if call.panel is None else f" ({call.panel.summary(outcome.rows())})"
    return (
        f"{kinds.total():,} of {outcome.work.count:,} rows are NA: {', '.join(parts)}{panel}. "
        f"See out.llm.failures(); {again}."
    )


def lost_text(call: Call, outcome: Outcome) -> str:
    """What ``errors="raise"`` raises for; empty where the frame is all that was asked for."""
    failed = failed_text(call, outcome) if outcome.counts()["failed"] else None
    return " ".join(text for text in (failed, unmet_text(call, outcome)) if text)


def warn(call: Call, outcome: Outcome, keep_failed: bool = False, scores: bool = False) -> None:
    """Say what the frame does not show: rows that failed, were skipped, or were left out.

    Args:
        call: What was asked.
        outcome: What became of it.
        keep_failed: Of `filter`.
        scores: The engine was expected to give probabilities of labels.
    """
    work, counts = outcome.work, outcome.counts()
    unmet = None if call.errors == "raise" else unmet_text(call, outcome)
    if unmet is not None and not counts["pending"]:
        # No cell shows it, so "coerce" does not hide it.
        warn_user(unmet)
    if scores:
        warn_of_scores(call, outcome)
    if call.errors != "coerce":
        warn_of_unsure(call, outcome)
    if call.panel is not None and call.errors != "coerce":
        warn_of_panel(call.panel, outcome)
    if work.partly:
        warn_user(
            f"{work.partly:,} of {work.count:,} rows were skipped because a cell that the prompt "
            f"uses is missing, although another one has a value. "
            f'missing="blank" sends them with a blank.',
            RowsSkippedWarning,
        )
    if call.verb == "filter":
        names = ("skipped",) if keep_failed else ("failed", "skipped")
        left_out = [f"{counts[name]:,} {name}" for name in names if counts[name]]
        if left_out and call.errors == "warn":
            advice = "" if keep_failed else " keep_failed=True keeps the failed ones."
            warn_user(
                f"{' and '.join(left_out)} of {work.count:,} rows were left out without an answer."
                + advice,
                RowsFailedWarning if counts["failed"] else RowsSkippedWarning,
            )
    elif counts["failed"] and call.errors == "warn":
        warn_user(failed_text(call, outcome), RowsFailedWarning)

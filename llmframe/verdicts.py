"""What a pandera schema says of the whole frame: before anything is sent, and of the answers.

pandera's checks run on a frame of the successful rows alone, on a RangeIndex, under the schema's
own names and dtypes, so that what fails there is a position here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe import joins
from llmframe.calls import Call
from llmframe.columns import name_text
from llmframe.errors import SchemaError
from llmframe.journal import Journal
from llmframe.outcomes import Outcome
from llmframe.rechecks import Judge, is_final, tell_replies
from llmframe.results import Failure
from llmframe.schemas.pandera_columns import Whole
from llmframe.schemas.wording import invalid, shown
from llmframe.settlements import Lost
from llmframe.work import CACHED, KEPT, OK

__all__ = ["judge_on", "judged_together", "present", "refuse"]

_SHOWN: Final = 5
_TAKEN: Final = 20
"""Values already taken that a repair names."""


def present(data: Any, names: Sequence[str]) -> list[str]:
    """Those of some columns that a frame has."""
    if isinstance(data, pd.Series):
        return []
    here = {name_text(label) for label in data.columns}
    return [name for name in names if name in here]


# -- before anything is sent ---------------------------------------------------------------------


def refuse(data: Any, call: Call, asked: npt.NDArray[np.bool_]) -> None:
    """Check the columns that the frame has already; no answer could mend them.

    Args:
        data: The frame.
        call: What is asked.
        asked: The rows that are asked: of the others the schema says nothing.

    Raises:
        SchemaError: A row breaks a check, or the schema's ``strict`` or ``ordered`` would not
            take the frame that comes back; nothing was sent.
    """
    whole = call.form.whole
    if whole is None or isinstance(data, pd.Series):
        return
    names = [name_text(label) for label in data.columns]
    look, new = call.look, [name_text(name) for name in call.columns]
    details = list(map(str, joins.detail_names(look["prefix"]))) if look.get("details") else []
    _refuse_other_columns(whole, names, new, details)
    frame = _plain(data)[asked]
    own = _own_part(whole)
    if own.columns:
        _refuse_rows(whole, own, frame, data.index[asked])
    if whole.schema.index is not None:
        index = type(own)({}, index=copy.deepcopy(whole.schema.index))
        _refuse_rows(whole, index, frame.set_axis(data.index[asked]), None)


def _refuse_other_columns(
    whole: Whole, names: Sequence[str], new: Sequence[str], details: Sequence[str]
) -> None:
    schema = whole.schema
    if list(new) != list(whole.asked):
        return  # renamed by `into`: the frame that comes back is no frame of this schema
    others = [name for name in names if name not in schema.columns]
    if schema.strict is True and others:
        raise SchemaError(
            f"{whole.name} is strict, and the frame has {_listed(others)}, which it does not name. "
            f"Name them in the schema (they are checked, not asked for), or drop them first. "
            f"Nothing was sent."
        )
    if schema.strict is True and details:
        raise SchemaError(
            f"{whole.name} is strict, and details=True adds {_listed(details)}, which it does not "
            f"name. Leave details out: status(), failures() and trace() tell the same. Nothing "
            f"was sent."
        )
    if not schema.ordered:
        return
    back = [name for name in names if name in schema.columns]
    back += [name for name in new if name not in back]
    wanted = [name for name in schema.columns if name in back]
    if back != wanted:
        raise SchemaError(
            f"{whole.name} is ordered as {_listed(wanted)}, while the frame that comes back has "
            f"{_listed(back)}: new columns come last. Write them last in the schema. Nothing was "
            f"sent."
        )


def _own_part(whole: Whole) -> Any:
    """The schema of the columns that the frame has already."""
    schema = whole.schema
    columns = {}
    for name, column in schema.columns.items():
        if name in whole.asked:
            continue
        column = copy.deepcopy(column)
        joint = [id(check) for where, check in whole.checks if where == name]
        kept = zip(schema.columns[name].checks, column.checks, strict=True)
        column.checks = [check for given, check in kept if id(given) not in joint]
        column.drop_invalid_rows = False
        columns[name] = column
    unique = [list(group) for group in _groups(schema.unique) if not set(group) & set(whole.asked)]
    return type(schema)(columns, coerce=schema.coerce, unique=unique or None)


def _groups(unique: Any) -> Iterator[Sequence[str]]:
    given = [unique] if isinstance(unique, str) else unique or []
    if given and all(isinstance(name, str) for name in given):
        given = [given]
    for group in given:
        yield [group] if isinstance(group, str) else group


def _refuse_rows(
    whole: Whole, schema: Any, frame: pd.DataFrame, labels: pd.Index[Any] | None
) -> None:
    """Have pandera look; `labels` are those of a frame on a RangeIndex, else it has its own."""
    try:
        schema.validate(frame, lazy=True)
    except Exception as error:
        # Without an import of pandera: its `SchemaErrors` holds each fault.
        faults = getattr(error, "schema_errors", None)
        if not faults:
            raise
        raise SchemaError(_fault(whole, faults[0], labels)) from None


def _fault(whole: Whole, fault: Any, labels: pd.Index[Any] | None) -> str:
    owner, check = getattr(fault, "schema", None), fault.check
    name = getattr(owner, "name", None)
    where = f"column {name!r} of the frame" if name else "the frame"
    if getattr(owner, "__class__", type).__name__ == "Index":
        where = f"the index{f' {name!r}' if name else ''}"
    rule = _words(check) if callable(check) else str(check)
    cases = fault.failure_cases
    # Of an index older pandera tells positions, newer labels; the value is the label in both.
    key = "failure_case" if labels is None else "index"
    places = cases[key].tolist() if hasattr(cases, "columns") and "index" in cases else []
    rows = [label for label in dict.fromkeys(places) if label is not None]
    told = f"{where} breaks the check {rule} of {whole.name}"
    if rows:
        shown_ = rows[:_SHOWN] if labels is None else [labels[row] for row in rows[:_SHOWN]]
        more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
        told += f" in {len(rows):,} row{'s' if len(rows) > 1 else ''}: "
        told += f"{', '.join(map(joins.label_text, shown_))}{more}"
    return f"{told}. It is checked, not asked for; mend or drop them first. Nothing was sent."


# -- the answers together ------------------------------------------------------------------------


def judge_on(data: Any, call: Call) -> Judge | None:
    """What looks at the answers to a call on a frame together; None where nothing has to."""
    whole = call.form.whole
    return partial(_judge, data, whole) if whole is not None and whole.joint else None


def judged_together(data: Any, outcome: Outcome, journal: Journal) -> None:
    """Say of an outcome which rows the other rows turn down; nothing is asked.

    A row that no call has asked again yet is pending: the same call on the frame does it.
    """
    judge = judge_on(data, outcome.work.call)
    if judge is not None:
        judge(outcome, partial(is_final, outcome.work.call, outcome))
        tell_replies(outcome, journal)


def _judge(data: Any, whole: Whole, outcome: Outcome, final: Callable[[int], bool]) -> None:
    outcome.turned, outcome.unmet = {}, ()
    status, work = outcome.row_status(), outcome.work
    alive = np.flatnonzero(np.isin(status, (OK, CACHED, KEPT)))
    frame = _answers(data, whole, outcome)
    again = np.array([int(place) in outcome.again for place in work.inverse], dtype=int)
    # Of two equal values the one that stays: a kept cell, then an answer of its own, then one
    # that was asked for again; among them the first row. So nobody who was asked is asked twice.
    rank = np.where(status == KEPT, -1, again)
    while len(alive):
        rows = frame.iloc[alive].set_axis(pd.RangeIndex(len(alive)))
        found, unmet = _faults(whole, rows, rank[alive], work.inverse[alive])
        outcome.unmet = tuple(unmet)
        faults = {int(alive[row]): fault for row, fault in found.items()}
        for row in [row for row in faults if status[row] == KEPT]:
            kept = f"a kept cell: {faults.pop(row).message}"
            outcome.unmet += (kept,)
        closed = {
            row: Lost(replace(fault, retryable=False))
            for row, fault in faults.items()
            if not fault.retryable or final(int(work.inverse[row]))
        }
        if not closed:
            outcome.turned |= {row: Lost(fault) for row, fault in faults.items()}
            return
        # Those that stay may hold without them.
        outcome.turned |= closed
        alive = alive[~np.isin(alive, list(closed))]


def _answers(data: Any, whole: Whole, outcome: Outcome) -> pd.DataFrame:
    """All rows with their answers, named and typed as the schema has them."""
    call = outcome.work.call
    out = joins.joined(
        data,
        call,
        outcome,
        "",
        dtype_backend=call.look.get("dtype_backend"),
        fill=bool(call.look.get("fill")),
    )
    out = _plain(out.to_frame() if isinstance(out, pd.Series) else out)
    fields = {
        name_text(column): field.name
        for column, field in zip(call.columns, call.form.fields, strict=True)
    }
    # A column that `into` leaves as it is may have the name of one that is asked for.
    out = out[[name for name in out.columns if name in fields or name not in whole.asked]]
    return out.rename(columns=fields)


def _plain(data: pd.DataFrame) -> pd.DataFrame:
    """The frame on a RangeIndex, its columns' names as text."""
    out = data.set_axis(pd.RangeIndex(len(data)))
    return out.set_axis([name_text(label) for label in data.columns], axis=1)


def _as_declared(whole: Whole, rows: pd.DataFrame) -> pd.DataFrame:
    """With the dtypes that the checks were written for, where no cell is missing."""
    made = {}
    for name in whole.asked:
        dtype = getattr(whole.schema.columns[name].dtype, "type", None)
        if isinstance(dtype, np.dtype) and dtype.kind in "iufb" and not rows[name].isna().any():
            made[name] = rows[name].astype(dtype)
    return rows.assign(**made)


def _faults(
    whole: Whole,
    rows: pd.DataFrame,
    rank: npt.NDArray[np.int_],
    places: npt.NDArray[np.int64],
) -> tuple[dict[int, Failure], list[str]]:
    """Which rows fail, and the checks that fail and name no row."""
    rows = _as_declared(whole, rows)
    found: dict[int, Failure] = {}
    unmet: list[str] = []
    for column, check in whole.checks:
        told = f"{column}: {_words(check)}" if column else _words(check)
        try:
            result = check(rows, column) if column else check(rows)
            failing = _failing(result, rows)
        except Exception as error:
            unmet.append(f"{told}: it raised {type(error).__name__}: {str(error)[:200]}")
            continue
        if not len(failing) and not np.all(result.check_passed):
            unmet.append(told)
        # Only what the model itself wrote is told back to it.
        names = [name for name in ([column] if column else whole.asked) if name in whole.asked]
        for row in failing:
            cells = [_cell(rows[name].iloc[row]) for name in names]
            got = f", got {_told(names, cells)}" if names else ""
            found.setdefault(int(row), invalid(told + got))
    for group in whole.unique:
        names = [name for name in group if name in rows]
        left = np.array([row for row in range(len(rows)) if row not in found], dtype=int)
        ordered = left[np.argsort(rank[left], kind="stable")]
        for row, failure in _repeated(names, whole.asked, rows[names].iloc[ordered], places):
            found.setdefault(row, failure)
    return found, unmet


def _failing(result: Any, rows: pd.DataFrame) -> list[int]:
    """Rows that a check turns down; none where it says nothing of single rows."""
    output = result.check_output
    if isinstance(output, pd.DataFrame):
        output = output.all(axis=1)
    if not isinstance(output, pd.Series):
        return []
    failed = output.index[~output.astype("boolean").fillna(True).to_numpy(dtype=bool)]
    if isinstance(result.checked_object, Mapping):  # it says something of each group
        groups = [result.checked_object[key] for key in failed if key in result.checked_object]
        return sorted({row for group in groups for row in group.index})
    # Missing cells are left out for most checks, so the result may be shorter than the frame.
    return failed.tolist() if output.index.isin(rows.index).all() else []


def _repeated(
    names: Sequence[str],
    asked: Sequence[str],
    values: pd.DataFrame,
    places: npt.NDArray[np.int64],
) -> Iterator[tuple[int, Failure]]:
    """Rows whose values an earlier one has, in the order in which they may keep them.

    The message goes to the model, so it tells values of the asked columns only: what the frame
    has besides stays here.
    """
    repeated = values.duplicated(keep="first").to_numpy()
    if not repeated.any():
        return
    mine = [place for place, name in enumerate(names) if name in asked]
    given = [place for place, name in enumerate(names) if name not in asked]
    told = ", ".join(names[place] for place in mine)
    beside = f" for one {', '.join(names[place] for place in given)}" if given else ""
    keepers: dict[tuple[Any, ...], int] = {}
    beside_them: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    cells = [tuple(map(_cell, row)) for row in values.itertuples(index=False)]
    for row, cell in zip(values.index, cells, strict=True):
        if keepers.setdefault(cell, row) == row:
            beside_them.setdefault(_of(cell, given), []).append(_of(cell, mine))
    for row, cell, again in zip(values.index, cells, repeated, strict=True):
        if not again:
            continue
        own = [names[place] for place in mine]
        value = _told(own, _of(cell, mine))
        words = f"{told}: has to be unique{beside}, and {value} is taken"
        if places[keepers[cell]] == places[row]:
            message = (
                f"{words} by a row with the same prompt, whose answer this row shares. "
                f"dedupe=False asks each by itself"
            )
            yield row, Failure("invalid_output", message)
            continue
        others = (other for other in beside_them[_of(cell, given)] if other != _of(cell, mine))
        more = "".join(f", {_told(own, other)}" for other in islice(others, _TAKEN))
        words += " already"
        yield row, invalid(f"{words}; so are {more[2:]}" if 0 < len(more) < 400 else words)


def _of(cell: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    return tuple(cell[place] for place in places)


def _told(names: Sequence[str], cells: Sequence[Any]) -> str:
    """One value as it is, several with their names."""
    return shown(cells[0] if len(names) == 1 else dict(zip(names, cells, strict=True)))


def _cell(cell: Any) -> Any:
    """A cell as JSON has it."""
    if pd.api.types.is_scalar(cell) and pd.isna(cell):
        return None
    return cell.item() if isinstance(cell, np.generic) else cell


def _words(check: Any) -> str:
    return str(check.error or check.description or f"fails the check {check.name or 'unnamed'}")


def _listed(names: Sequence[str]) -> str:
    shown_ = ", ".join(map(repr, names[:_SHOWN]))
    return shown_ + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")

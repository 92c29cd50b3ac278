"""Two runs side by side: which rows are the same one, and what became of each in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from llmframe import frames, joins
from llmframe.compared import STATES, Comparison
from llmframe.errors import warn_user
from llmframe.jobs import Job
from llmframe.outcomes import Outcome
from llmframe.submits import job as job_by_id
from llmframe.work import FAILED

__all__ = ["compare"]

Places = npt.NDArray[np.int64]


def compare(job_a: Job | str, job_b: Job | str, df: Any = None) -> Comparison:
    """Say what changed between two runs: two prompts, two models, two sets of examples.

    Rows of the two jobs are matched by their index label; where a label repeats, its first row
    in `job_a` with its first in `job_b`, and so on. A row that only one of them has is left out,
    and counted. With `df`, both calls are matched to its rows by their prompts instead, as
    ``job.join(df)`` does: then labels may be what they like.

    Answers are compared field by field under the names that the schema gives them, so ``into=``
    may differ; the columns that only one job writes are left out. Nothing is sent, and nothing
    is waited for: rows of a job that still runs count as unanswered.

    Args:
        job_a: A `Job`, or its id.
        job_b: The other.
        df: A frame that both were, or could have been, made with.

    Returns:
        A `Comparison`: ``counts``, ``changed``, ``confusion``, ``agreement``, ``cost``, and
        ``plot()``.

    Raises:
        TypeError: An argument is no job and no id.
        ValueError: The jobs have no row, or no output column, in common.
        StoreError: The store has no such job, or not its rows.

    Warns:
        UserWarning: Rows with the same label held other cells in the two jobs' frames.

    Examples:
        >>> import pandas as pd, llmframe as lf
        >>> df = pd.DataFrame({"t": ["It crashes.", "Why?", "Thanks!"]})
        >>> def ask(answer):
        ...     engine = lf.testing.FakeEngine(answer)
        ...     return df.llm.submit.classify("t", ["bug", "other"], model=engine).wait()
        >>> first = ask({"label": "other"})
        >>> second = ask(lambda text: {"label": "bug" if "crash" in text else "other"})
        >>> lf.compare(first, second).changed
           position column      a    b
        0         0  label  other  bug
    """
    a, b = _job(job_a, "job_a"), _job(job_b, "job_b")
    left = a.outcome() if df is None else a.on(df)
    right = b.outcome() if df is None else b.on(df)
    fields = _common(a, b)
    notes: tuple[str, ...] = ()
    if df is not None:
        index = df.index
        at_a = at_b = np.arange(len(df))
        matched, unmatched = "by their prompts, in the frame that was given", {"a": 0, "b": 0}
    else:
        here = a.data is not None and b.data is not None
        index, other = (job.data.index if here else job.label_texts() for job in (a, b))
        at_a, at_b = _pairs(index, other)
        if not len(at_a) and (len(index) or len(other)):
            raise ValueError(
                f"jobs {a.id} and {b.id} have no row label in common: {_some(index)} in one, "
                f"{_some(other)} in the other. Pass the frame that both asked about: "
                f"lf.compare(a, b, df)."
            )
        matched = "by index label" + ("" if index.is_unique else ", and in order where it repeats")
        unmatched = {"a": len(index) - len(at_a), "b": len(other) - len(at_b)}
        if here:
            notes = _other_cells(a, left, at_a, b, right, at_b)
    notes += tuple(
        f"job {job.id} still runs; compare again when it is done"
        for job in (a, b)
        if job.status().state == "running"
    )
    notes += tuple(
        f"{count:,} answers of job {job.id} count as none: only a Python class can read them, "
        f"which lf.job({job.id!r}).join(df, schema=…) gives"
        for job, outcome in ((a, left), (b, right))
        if (count := sum(lost.failure.kind == "needs_code" for _, lost in outcome.lost_rows()))
    )
    cells = [_cells(name, left, i, at_a, right, k, at_b) for name, (i, k) in fields.items()]
    costs = [_costs(a, left, at_a), _costs(b, right, at_b)]
    return Comparison(
        a.id,
        b.id,
        matched,
        len(at_a),
        unmatched,
        counts=_counts(cells),
        changed=_changed(cells, index, at_a),
        confusions={c.name: _confusion(c) for c in cells if c.named is not None},
        cost=pd.DataFrame(costs, index=pd.Index(["a", "b"], dtype=object)),
        notes=notes,
    )


def _job(given: Any, name: str) -> Job:
    if isinstance(given, Job):
        return given
    if isinstance(given, str):
        return job_by_id(given)
    remedy = "lf.jobs() lists them."
    if isinstance(given, pd.DataFrame | pd.Series):
        ids = list(dict.fromkeys(frames.written(given).values()))
        if ids:
            remedy = f"That frame was written by {', '.join(ids)}: pass the id."
    raise TypeError(
        f"{name} is a {type(given).__name__}; expected a Job, as df.llm.submit gives it, or the id "
        f"of one. {remedy}"
    )


def _common(a: Job, b: Job) -> dict[str, tuple[int, int]]:
    """Output fields that both write → their places in the answers of each."""
    left, right = _fields(a), _fields(b)
    found = {name: (place, right[name]) for name, place in left.items() if name in right}
    if not found and len(left) == len(right) == 1:
        # One answer each, under two names: a field called "topic" and the labels of classify.
        [(name, place)], [other] = left.items(), right.values()
        return {name: (place, other)}
    if not found:
        raise ValueError(
            f"jobs {a.id} and {b.id} have no output field in common: {', '.join(left)} in one, "
            f"{', '.join(right)} in the other."
        )
    return found


def _fields(job: Job) -> dict[str, int]:
    """Places of the fields that are compared: of a label neither the reason nor the confidence."""
    names = [spec.name for _, spec in joins.outputs(job.call)]
    return {n: i for i, n in enumerate(names) if job.call.labels is None or n == "label"}


def _pairs(left: pd.Index[Any], right: pd.Index[Any]) -> tuple[Places, Places]:
    """Positions of the rows with one label, in the order of `left`; the n-th goes with the n-th."""
    if len(left) == len(right) and left.equals(right):
        return np.arange(len(left)), np.arange(len(left))
    codes = pd.factorize(left.append(right), use_na_sentinel=False)[0]
    sides = []
    for part in (codes[: len(left)], codes[len(left) :]):
        side = pd.DataFrame({"label": part, "place": np.arange(len(part))})
        side["nth"] = side.groupby("label").cumcount()
        sides.append(side)
    both = sides[0].merge(sides[1], on=["label", "nth"]).sort_values("place_x")
    return both["place_x"].to_numpy(), both["place_y"].to_numpy()


def _some(index: pd.Index[Any]) -> str:
    shown = [joins.label_text(label) for label in index[:3].tolist()]
    return ", ".join(shown) + (", …" if len(index) > len(shown) else "")


def _other_cells(
    a: Job, left: Outcome, at_a: Places, b: Job, right: Outcome, at_b: Places
) -> tuple[str, ...]:
    """What is said where a label stood for two different rows: the frames were not the same."""
    used = []
    for job, outcome in ((a, left), (b, right)):
        table, prompt = frames.Table(job.data), outcome.work.prompt
        # A function takes every column, also those that the other job wrote meanwhile.
        places = () if prompt.code is not None else prompt.columns
        used.append((table, {table.names[p]: p for p in places if p >= 0}))
    (table_a, names_a), (table_b, names_b) = used
    common = [name for name in names_a if name in names_b]
    rows_a = table_a.rows([names_a[name] for name in common])
    rows_b = table_b.rows([names_b[name] for name in common])
    pairs = zip(at_a.tolist(), at_b.tolist(), strict=True)
    count = sum(rows_a[i] != rows_b[k] for i, k in pairs) if common else 0
    if not count:
        return ()
    told = (
        f"{count:,} of {len(at_a):,} rows with one label hold other cells in the two frames "
        f"({', '.join(map(repr, common))}): pass the frame that is meant, lf.compare(a, b, df)"
    )
    warn_user(f"jobs {a.id} and {b.id}: {told}.")
    return (told,)


@dataclass(frozen=True, slots=True)
class _Cells:
    """One output field of the rows that both jobs have.

    Attributes:
        name: Of the field.
        a: Values of the first job, None where it has no answer.
        b: Of the second.
        by_a: Rows that the first answered.
        by_b: Rows that the second answered.
        same: Rows that both answered alike.
        named: The values that the field can have, of both; None where it has no list of them.
    """

    name: str
    a: list[Any]
    b: list[Any]
    by_a: npt.NDArray[np.bool_]
    by_b: npt.NDArray[np.bool_]
    same: npt.NDArray[np.bool_]
    named: list[Any] | None


def _cells(
    name: str, left: Outcome, i: int, at_a: Places, right: Outcome, k: int, at_b: Places
) -> _Cells:
    sides, named = [], []
    for outcome, place, rows in ((left, i, at_a), (right, k, at_b)):
        values = outcome.column(place)
        answered = _answered(outcome)[rows]
        sides.append(([values[row] for row in rows.tolist()], answered))
        named.append(_values_of(outcome, place))
    (a, by_a), (b, by_b) = sides
    unordered = all(o.work.call.labels is not None for o in (left, right))
    same = [_alike(x, y, unordered) for x, y in zip(a, b, strict=True)]
    listed = None if None in named else list(dict.fromkeys([*named[0], *named[1]]))  # type: ignore[misc]
    return _Cells(name, a, b, by_a, by_b, by_a & by_b & np.array(same, dtype=bool), listed)


def _answered(outcome: Outcome) -> npt.NDArray[np.bool_]:
    """Rows with an answer, which may well be null."""
    asked = np.array([bool(values) for values in outcome.values] or [False], dtype=bool)
    inverse = outcome.work.inverse
    found: npt.NDArray[np.bool_] = (inverse >= 0) & asked[inverse]
    return found


def _values_of(outcome: Outcome, place: int) -> Sequence[Any] | None:
    """The values that a field can have, where there is a list of them."""
    spec = joins.outputs(outcome.work.call)[place][1]
    return [False, True] if spec.kind == "bool" else spec.categories


def _alike(x: Any, y: Any, unordered: bool) -> bool:
    if unordered and isinstance(x, list) and isinstance(y, list):
        return set(x) == set(y)  # several labels, in no order
    return bool(x == y)


def _counts(cells: Sequence[_Cells]) -> pd.DataFrame:
    lines = []
    for c in cells:
        both, same = c.by_a & c.by_b, int(c.same.sum())
        counts = [same, both.sum() - same, (c.by_a & ~c.by_b).sum(), (c.by_b & ~c.by_a).sum()]
        share = same / both.sum() if both.any() else np.nan
        lines.append([*map(int, counts), int((~c.by_a & ~c.by_b).sum()), share])
    names = pd.Index([c.name for c in cells], name="column", dtype=object)
    return pd.DataFrame(lines, index=names, columns=[*STATES, "agreement"])


def _changed(cells: Sequence[_Cells], index: pd.Index[Any], at_a: Places) -> pd.DataFrame:
    lines = sorted(
        (row, number, c)
        for number, c in enumerate(cells)
        for row in np.flatnonzero(c.by_a & c.by_b & ~c.same).tolist()
    )
    places = np.array([at_a[row] for row, _, _ in lines], dtype=np.int64)
    made = pd.DataFrame(
        {
            "position": places,
            "column": pd.Series([c.name for _, _, c in lines], dtype=object),
            "a": pd.Series([c.a[row] for row, _, c in lines], dtype=object),
            "b": pd.Series([c.b[row] for row, _, c in lines], dtype=object),
        }
    )
    made.index = index.take(places)
    return made


def _confusion(c: _Cells) -> pd.DataFrame:
    """Rows by both answers; a null answer is in no line of it."""
    assert c.named is not None, "only called for a field with a list of values"
    place = {value: i for i, value in enumerate(c.named)}
    counts = np.zeros((len(place), len(place)), dtype=np.int64)
    for x, y in zip(c.a, c.b, strict=True):
        if x in place and y in place:
            counts[place[x], place[y]] += 1
    labels = pd.Index(c.named, dtype=object)
    return pd.DataFrame(counts, index=labels.rename("a"), columns=labels.rename("b"))


def _costs(job: Job, outcome: Outcome, rows: Places) -> dict[str, Any]:
    work = outcome.work
    places = np.unique(work.inverse[rows])
    paid = job.account([work.keys[place] for place in places.tolist() if place >= 0])
    return {
        "job": job.id,
        "model": job.model,
        "state": job.status().shown_state,
        "answered": int(_answered(outcome)[rows].sum()),
        "failed": int((outcome.row_status()[rows] == FAILED).sum()),
        "replies": paid.replies,
        "input_tokens": paid.usage.input_tokens,
        "output_tokens": paid.usage.output_tokens,
        "cost": np.nan if paid.cost is None else paid.cost,
        "latency": median(paid.latencies) if paid.latencies else np.nan,
    }

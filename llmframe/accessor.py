"""``df.llm`` and ``series.llm``: sugar over submit → wait → join."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pandas as pd

from llmframe.cascades import acascaded, alone, cascaded, planned
from llmframe.engines import homes
from llmframe.errors import Line, on_behalf, user_line, warn_user
from llmframe.grading import prepare_compare, prepare_judge
from llmframe.jobs import Job
from llmframe.jsonl import from_jsonl, to_jsonl
from llmframe.keywords import spelled_out, undescribed
from llmframe.looks import Holder, Looks
from llmframe.options import get_options
from llmframe.plans import Plan
from llmframe.prepared import Prepared
from llmframe.reviewing import review, review_series
from llmframe.submits import submit
from llmframe.verbs import (
    prepare_classify,
    prepare_extract,
    prepare_filter,
    prepare_map,
)

__all__ = [
    "ITSELF",
    "FrameAccessor",
    "SeriesAccessor",
    "document",
    "register",
    "result",
]

P = ParamSpec("P")
R = TypeVar("R")
Columns = pd.Series | pd.DataFrame
"""What a verb on a Series gives: one column is a Series, several are a DataFrame."""

ITSELF = "{}"
"""The `source` that stands for a Series' own values."""


def result(prepared: Prepared) -> Any:
    """Run a call to its end, and join."""
    homes.check(prepared.engine)
    return submit(prepared).result() if prepared.stronger is None else cascaded(prepared)


def _shown(prepared: Prepared) -> Job:
    """Start a call, and show it where a notebook runs it."""
    # The cell is left, and perhaps the kernel: another one has to know what is still to be sent.
    found = submit(replace(alone(prepared), ahead=True))
    if prepared.progress is not False and get_options().progress is not False:
        found.show()
    return found


def _aresult(prepared: Prepared) -> Coroutine[Any, Any, Any]:
    line = user_line()

    async def awaited() -> Any:
        if prepared.stronger is not None:
            return await acascaded(prepared, line, partial(_ajoined, line))
        _, out = await _ajoined(line, prepared, lambda _: None)
        return out

    return awaited()


async def _ajoined(line: Line, prepared: Prepared, begun: Callable[[Job], None]) -> tuple[Job, Any]:
    """Run a call to its end, and join; `begun` is told the job as soon as there is one."""
    started: list[Job] = []
    unwanted = threading.Event()

    def start() -> None:
        started.append(submit(prepared))
        begun(started[0])
        if unwanted.is_set():  # canceled in the meantime, when there was nothing to stop yet
            started[0].abandon()

    homes.enter(prepared.engine)  # again: the loop that awaits may be another one
    try:
        # Rendering a large frame takes seconds that the caller's loop should not lose.
        await asyncio.to_thread(on_behalf, line, start)
    except asyncio.CancelledError:
        unwanted.set()
        for job in started:
            job.abandon()
        raise
    return started[0], await started[0].awaited(line)


@contextlib.contextmanager
def _own_name() -> Iterator[None]:
    """A missing argument is told under the name that the user called."""
    try:
        yield
    except TypeError as error:
        if not str(error).startswith("prepare_"):
            raise
        raise TypeError(str(error).removeprefix("prepare_")) from None


def _on_frame(
    prepare: Callable[Concatenate[Any, P], Prepared],
    finish: Callable[[Prepared], R],
) -> Callable[Concatenate[Holder, P], R]:
    def verb(self: Holder, *args: P.args, **keywords: P.kwargs) -> R:
        with _own_name():
            prepared = prepare(self._data, *args, **keywords)
        return finish(prepared)

    return cast(Callable[Concatenate[Holder, P], R], _named(verb, prepare, 1))


def _on_series(
    prepare: Callable[Concatenate[Any, Any, P], Prepared], finish: Callable[[Prepared], R]
) -> Callable[Concatenate[Holder, P], R]:
    """The same without `source`: it is the Series itself."""

    def verb(self: Holder, *args: P.args, **keywords: P.kwargs) -> R:
        with _own_name():
            prepared = prepare(self._data, ITSELF, *args, **keywords)
        return finish(prepared)

    return cast(Callable[Concatenate[Holder, P], R], _named(verb, prepare, 2))


def _plan(prepare: Callable[..., Prepared], *itself: str) -> Callable[..., Plan]:
    """A verb that only says what it would do; with `pilot` it buys a few rows to know better."""

    def verb(self: Holder, *args: Any, pilot: int = 0, **keywords: Any) -> Plan:
        return planned(prepare(self._data, *itself, *args, **keywords), pilot)

    named = _named(verb, prepare, 1 + len(itself))
    pilot = inspect.Parameter("pilot", inspect.Parameter.KEYWORD_ONLY, default=0, annotation="int")
    given = verb.__signature__  # type: ignore[attr-defined]
    verb.__signature__ = given.replace(parameters=[*given.parameters.values(), pilot])  # type: ignore[attr-defined]
    return cast(Callable[..., Plan], named)


def _named(verb: Any, prepare: Callable[..., Any], drop: int) -> Any:
    verb.__name__ = verb.__qualname__ = prepare.__name__.removeprefix("prepare_")
    verb.__signature__ = spelled_out(prepare, drop, self=True)
    return verb


def _of_data(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Holder, P], R]:
    """A function of a frame, as a method."""

    @wraps(function)
    def method(self: Holder, *args: P.args, **keywords: P.kwargs) -> R:
        return function(self._data, *args, **keywords)

    return cast(Callable[Concatenate[Holder, P], R], method)


def _frame(prepared: Prepared) -> pd.DataFrame:
    out: pd.DataFrame = result(prepared)
    return out


def _columns(prepared: Prepared) -> Columns:
    out: Columns = result(prepared)
    return out


def _aframe(prepared: Prepared) -> Coroutine[Any, Any, pd.DataFrame]:
    return _aresult(prepared)


def _acolumns(prepared: Prepared) -> Coroutine[Any, Any, Columns]:
    return _aresult(prepared)


class FramePlans(Holder):
    """``df.llm.plan``: what a verb would send and cost; called directly it means `map`."""

    map = _plan(prepare_map)
    classify = _plan(prepare_classify)
    extract = _plan(prepare_extract)
    filter = _plan(prepare_filter)
    judge = _plan(prepare_judge)
    compare = _plan(prepare_compare)
    __call__ = map


class FrameSubmits(Holder):
    """``df.llm.submit``: start a verb, get a `Job` at once; called directly it means `map`."""

    map = _on_frame(prepare_map, _shown)
    classify = _on_frame(prepare_classify, _shown)
    extract = _on_frame(prepare_extract, _shown)
    filter = _on_frame(prepare_filter, _shown)
    judge = _on_frame(prepare_judge, _shown)
    compare = _on_frame(prepare_compare, _shown)
    __call__ = map


class SeriesPlans(Holder):
    """``series.llm.plan``."""

    map = _plan(prepare_map)
    classify = _plan(prepare_classify, ITSELF)
    extract = _plan(prepare_extract, ITSELF)
    filter = _plan(prepare_filter)
    judge = _plan(prepare_judge)
    __call__ = map


class SeriesSubmits(Holder):
    """``series.llm.submit``."""

    map = _on_frame(prepare_map, _shown)
    classify = _on_series(prepare_classify, _shown)
    extract = _on_series(prepare_extract, _shown)
    filter = _on_frame(prepare_filter, _shown)
    judge = _on_frame(prepare_judge, _shown)
    __call__ = map


class FrameAccessor(Looks):
    """``df.llm``: a model fills in columns of this frame. Holds nothing but the frame."""

    map = _on_frame(prepare_map, _frame)
    classify = _on_frame(prepare_classify, _frame)
    extract = _on_frame(prepare_extract, _frame)
    filter = _on_frame(prepare_filter, _frame)
    judge = _on_frame(prepare_judge, _frame)
    compare = _on_frame(prepare_compare, _frame)
    amap = _on_frame(prepare_map, _aframe)
    aclassify = _on_frame(prepare_classify, _aframe)
    aextract = _on_frame(prepare_extract, _aframe)
    afilter = _on_frame(prepare_filter, _aframe)
    ajudge = _on_frame(prepare_judge, _aframe)
    acompare = _on_frame(prepare_compare, _aframe)
    review = _of_data(review)
    to_jsonl = _of_data(to_jsonl)
    from_jsonl = _of_data(from_jsonl)

    @property
    def plan(self) -> FramePlans:
        """What a verb would send and cost; nothing is sent."""
        return FramePlans(self._data)

    @property
    def submit(self) -> FrameSubmits:
        """Start a verb in the background; gives a `Job`."""
        return FrameSubmits(self._data)


class SeriesAccessor(Looks):
    """``series.llm``: the same on one column, without `source`; ``{}`` is the value."""

    map = _on_frame(prepare_map, _columns)
    classify = _on_series(prepare_classify, _columns)
    extract = _on_series(prepare_extract, _columns)
    filter = _on_frame(prepare_filter, _columns)
    judge = _on_frame(prepare_judge, _columns)
    amap = _on_frame(prepare_map, _acolumns)
    aclassify = _on_series(prepare_classify, _acolumns)
    aextract = _on_series(prepare_extract, _acolumns)
    afilter = _on_frame(prepare_filter, _acolumns)
    ajudge = _on_frame(prepare_judge, _acolumns)
    review = _of_data(review_series)
    to_jsonl = _of_data(to_jsonl)
    from_jsonl = _of_data(from_jsonl)

    @property
    def plan(self) -> SeriesPlans:
        """What a verb would send and cost; nothing is sent."""
        return SeriesPlans(self._data)

    @property
    def submit(self) -> SeriesSubmits:
        """Start a verb in the background; gives a `Job`."""
        return SeriesSubmits(self._data)


def document(verb: str, doc: str | None) -> None:
    """Give each form of `verb` the description of the function of that name.

    Args:
        verb: Such as ``"map"``.
        doc: Its docstring. The accessor stands on the argument ``data``, and on a Series that is
            the ``source`` too.
    """
    if doc is None:  # python -OO
        return
    pilot = "    pilot: Rows to buy now, live, for an estimate with an interval; they are kept.\n"
    planned = doc.replace("\n\nReturns:", f"\n{pilot}\nReturns:").partition("Returns:")
    for name, text, holders in (
        (verb, doc, (FrameAccessor, SeriesAccessor)),
        (f"a{verb}", f"With `await`, in any event loop. {doc}", (FrameAccessor, SeriesAccessor)),
        (
            verb,
            f"Say what it would send and cost. {planned[0].rstrip()}",
            (FramePlans, SeriesPlans),
        ),
        (verb, f"Start it in the background; gives a `Job`. {doc}", (FrameSubmits, SeriesSubmits)),
    ):
        for holder in holders:
            if (function := vars(holder).get(name)) is None:  # compare is for frames alone
                continue
            known = {"self", *inspect.signature(function).parameters}
            function.__doc__ = undescribed(text, {"data", "source"} - known)


class _Fresh:
    """Makes an accessor at each access.

    pandas 2 keeps the first one on the frame, which then holds itself alive in a cycle.
    """

    def __init__(self, accessor: type[Holder]) -> None:
        self._accessor = accessor

    def __get__(self, data: Any, owner: type) -> Any:
        return self._accessor if data is None else self._accessor(data)


def register(name: str = "llm") -> None:
    """Give DataFrame and Series the accessor `name`.

    Args:
        name: Another one where ``llm`` is taken.
    """
    for cls, accessor in ((pd.DataFrame, FrameAccessor), (pd.Series, SeriesAccessor)):
        taken = cls.__dict__.get(name)
        ours = type(taken).__module__ == __name__
        if taken is not None and not ours:
            owner = getattr(taken, "_accessor", taken)
            other = getattr(owner, "__module__", "another package")
            named = f"{other}.{getattr(owner, '__qualname__', type(owner).__name__)}"
            warn_user(
                f"{cls.__name__}.{name} was {named} and is llmframe's now. To keep both, call "
                f"llmframe.accessor.register('lf') and import {other} last, or use the functions: "
                f"lf.map(df, …)."
            )
        setattr(cls, name, _Fresh(accessor))
        cast(Any, cls)._accessors.add(name)  # pandas' own list: it makes `dir(df)` show the name

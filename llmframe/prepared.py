"""A call on a frame, ready to be planned or submitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmframe import frames
from llmframe.calls import Call
from llmframe.engines.base import BatchEngine, Engine

__all__ = ["Prepared", "Stronger"]


@dataclass(frozen=True, slots=True)
class Stronger:
    """Where rows go on to of which a call is not sure.

    Attributes:
        whole: The call that asks the stronger model about all rows: what it would cost, and
            whether it can be made.
        then: The frame that the first call gave, and the US$ that are left → the call that asks
            about its rows without a label.
    """

    whole: Prepared
    then: Callable[[Any, float | None], Prepared]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call on a frame, ready to be planned or submitted.

    Attributes:
        data: The DataFrame or Series.
        table: Its rows.
        call: What is asked.
        engine: Who answers.
        asked: Which rows to ask; None: all.
        keep_failed: `filter` keeps the rows without an answer.
        if_exists: What an existing output column means.
        dtype_backend: As in ``read_csv``.
        details: Add the columns about each row's request.
        prefix: Name that the detail columns begin with.
        progress: Show it or not; None: as it fits.
        budget: US$.
        concurrency: Requests in flight at once; None: the engine's default.
        cache: False: ask every row anew, once.
        advice: Sentences for the plan.
        stronger: Where unsure rows go on to; None: nowhere.
    """

    data: Any
    table: frames.Table
    call: Call
    engine: Engine | BatchEngine
    asked: npt.NDArray[np.bool_] | None = None
    keep_failed: bool = False
    if_exists: str = "raise"
    dtype_backend: str | None = None
    details: bool = False
    prefix: str = "llm"
    progress: bool | None = None
    budget: float | None = None
    concurrency: int | None = None
    cache: bool = True
    advice: tuple[str, ...] = ()
    stronger: Stronger | None = None

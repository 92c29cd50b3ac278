"""A call on a frame, ready to be planned or submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmframe import frames
from llmframe.calls import Call
from llmframe.engines.base import BatchEngine, Engine

__all__ = ["Prepared"]


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
        stronger: The same call to a stronger model, for the rows of which this one is not sure;
            None: there is none.
        cascade: What the job's record says of the other call; empty where there is none.
        ahead: Whoever starts it goes away: all prompts are stored before the first is sent live.
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
    stronger: Prepared | None = None
    cascade: Mapping[str, Any] = field(default_factory=dict)
    ahead: bool = False

    def filling(self, out: Any, budget: float | None) -> Prepared:
        """The call as it goes on where another one stopped, asking what that left open.

        Args:
            out: The rows with the other call's columns, which may lack what the prompt reads.
            budget: US$ that are left.
        """
        look = {**self.call.look, "fill": True, "if_exists": "fill"}
        return replace(
            self,
            data=out,
            call=replace(self.call, look=look),
            asked=frames.unfilled(out, self.call.columns),
            if_exists="fill",
            budget=budget,
        )

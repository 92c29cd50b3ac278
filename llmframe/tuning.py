"""The knee of the throughput curve: how many rows at once, measured on the user's own rows.

More rows in the batch are more tokens a second until the machine is full; beyond that each row
only waits longer, and where the KV cache runs out, work is thrown away and done again.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llmframe import frames
from llmframe.engines import engine_for
from llmframe.engines.base import BatchEngine, Engine
from llmframe.errors import EngineError, ModelError
from llmframe.journal import Journal
from llmframe.launches import run_over
from llmframe.pilots import spread
from llmframe.prepared import Prepared
from llmframe.verbs import prepare_map
from llmframe.views import Sheet
from llmframe.work import compiled

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trial", "Tuning", "choose", "tune"]

_POINTS: Final = 4
"""Points of the curve before a knee may end it: the first doublings are the noisiest."""
_GAIN: Final = 0.05
"""A doubling that gives less is the knee, however quiet the machine."""
_FULL: Final = 0.95
"""Share of the KV cache beyond which the next doubling is bound to preempt."""
_LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Trial:
    """One point of the curve.

    Attributes:
        at_once: Rows in the batch, or requests in flight.
        tokens_per_second: Prompt and reply, the middle of two runs.
        rows_per_second: The same, in rows.
        p50: Seconds of a row, the middle.
        p95: Seconds of a row, the slowest twentieth the quickest.
        kv_cache: Most of the KV cache in use at once, 0 to 1; None where the engine does not say.
        preemptions: Rows put back for want of memory; None likewise.
        noise: How far the two runs are apart, as a share of their mean.
        rows: Rows that were asked.
    """

    at_once: int
    tokens_per_second: float
    rows_per_second: float
    p50: float
    p95: float
    kv_cache: float | None
    preemptions: int | None
    noise: float
    rows: int

    @property
    def pressed(self) -> bool:
        """Whether memory ran out, or is about to."""
        return bool(self.preemptions) or (self.kv_cache or 0.0) > _FULL


@dataclass(frozen=True, repr=False)
class Tuning(Sheet):
    """What `tune` found.

    Attributes:
        curve: A row a point, its index the number of rows at once.
        best: The number to use.
        noise: Share by which two runs of the same point differ, at least 5 %: smaller differences
            say nothing.
        why: One sentence on why the curve ends where it does.
        knob: ``"max_num_seqs"``, or ``"concurrency"`` of a server.
        engine: The engine to use, with `best` set; of `lf.VLLM` the loaded one, until `close`.
    """

    curve: pd.DataFrame
    best: int
    noise: float
    why: str
    knob: str
    engine: Any

    def plot(self, **keywords: Any) -> Any:
        """Draw tokens a second over the number of rows at once; needs matplotlib.

        Args:
            **keywords: As in ``DataFrame.plot``.

        Returns:
            The axes.
        """
        given = {"marker": "o", "logx": True, "ylabel": "tokens a second", "legend": False}
        axes = self.curve.plot(y="tokens_per_second", **{**given, **keywords})
        axes.axvline(self.best, linestyle=":")
        axes.set_title(f"{self.knob}={self.best}")
        return axes

    def _title(self) -> str:
        return f"{self.knob}={self.best}: {self.why}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        for at_once, rate, p95 in zip(
            self.curve.index, self.curve["tokens_per_second"], self.curve["p95"], strict=True
        ):
            mark = "  <- use this" if at_once == self.best else ""
            yield str(at_once), f"{rate:,.0f} tokens/s, p95 {p95:.2f} s{mark}"
        yield "noise", f"{self.noise:.0%}"


def tune(
    data: Any,
    prompt: Any,
    schema: Any = None,
    *,
    model: Any = None,
    start: int = 8,
    stop: int = 1024,
    slice: int = 512,
    **common: Any,
) -> Tuning:
    """Find how many rows at once an engine takes best, on rows of the frame itself.

    The number doubles from `start` until a doubling gains less than 5 %, the KV cache is full, a
    row is put back for want of memory, or there are too few rows to say; then the smallest number
    that is as quick as the best, within the noise, is chosen. Replies are not kept. On a server
    that is paid by the token each point costs its rows.

    Args:
        data: DataFrame or Series.
        prompt: As in `map`.
        schema: As in `map`.
        model: An engine or its name: `lf.VLLM`, or a live server.
        start: The first number.
        stop: The last. `lf.VLLM` is loaded once, for this many, in place of the same model that
            was loaded for fewer; it stays loaded, and `Tuning.engine` uses it.
        slice: Rows of one point at most, evenly spread over the frame. A point takes four times
            as many rows as it has at once.
        **common: As in `map`.

    Raises:
        ModelError: The engine is a provider's batch API.
        ValueError: The numbers make no curve, or there are too few rows.
        EngineError: The engine broke off.
    """
    if not 0 < start < stop:
        raise ValueError(f"start={start!r}, stop={stop!r}: expected 0 < start < stop.")
    given = engine_for(model)
    if isinstance(given, BatchEngine):
        raise ModelError(f"{given.name}/{given.model} is a batch API, which has nothing to tune.")
    in_batch = hasattr(given, "max_num_seqs")
    engine: Any = given.with_knobs(max_num_seqs=stop) if in_batch else given  # type: ignore[attr-defined]
    prepared = prepare_map(data, prompt, schema, model=engine, **common)
    bench = _Bench(prepared, slice)
    if bench.rows < 4 * start:
        raise ValueError(
            f"{bench.rows} rows are too few to tune from start={start}: expected at least "
            f"{4 * start}. Give more rows, or a smaller start."
        )
    try:
        trials, why = _curve(bench, start, stop)
    except BaseException:
        if in_batch:
            engine.close()
        raise
    best, noise = choose(trials)
    if in_batch:
        made: Any = given.with_knobs(max_num_seqs=best)  # type: ignore[attr-defined]
    else:
        made = object.__new__(type(given))  # `copy` would leave its key behind, as a pickle does
        made.__dict__.update(given.__dict__)
        made.limits = replace(given.limits, concurrency=best)
        if hasattr(made, "concurrency"):
            made.concurrency = best
    columns = {f.name: [getattr(t, f.name) for t in trials] for f in fields(Trial)}
    return Tuning(
        curve=frames.table(columns, index="at_once"),
        best=best,
        noise=noise,
        why=why,
        knob="max_num_seqs" if in_batch else "concurrency",
        engine=made,
    )


def choose(trials: Sequence[Trial]) -> tuple[int, float]:
    """The smallest number that is as quick as the best one, and the noise of the curve.

    Examples:
        >>> def at(n, rate, **more):
        ...     given = {"kv_cache": None, "preemptions": None, "noise": 0.03, "rows": 64}
        ...     return Trial(n, rate, 1.0, 1.0, 1.0, **{**given, **more})
        >>> choose([at(8, 500.0), at(16, 900.0), at(32, 980.0), at(64, 1000.0)])
        (32, 0.05)
        >>> choose([at(8, 500.0), at(16, 900.0), at(32, 990.0, preemptions=4)])
        (16, 0.05)
    """
    noise = max([_GAIN, *(trial.noise for trial in trials)])
    able = [trial for trial in trials if not trial.pressed] or list(trials[:1])
    most = max(trial.tokens_per_second for trial in able)
    quick = [trial for trial in able if trial.tokens_per_second >= (1 - noise) * most]
    return quick[0].at_once, noise


def _curve(bench: _Bench, start: int, stop: int) -> tuple[list[Trial], str]:
    trials: list[Trial] = []
    bench.run(start, min(bench.rows, 2 * start))  # the first run pays for what is made once
    at_once = start
    while True:
        trials.append(bench.trial(at_once))
        last = trials[-1]
        if last.pressed:
            put_back = f"{last.preemptions} rows put back" if last.preemptions else "cache full"
            return trials, f"memory ends the curve at {at_once} ({put_back})"
        if len(trials) >= _POINTS:
            gain = last.tokens_per_second / trials[-2].tokens_per_second - 1
            if gain < max(_GAIN, last.noise):
                return trials, f"the knee: {trials[-2].at_once} to {at_once} gained {gain:.0%}"
        at_once *= 2
        if at_once > stop:
            return trials, f"the curve still rises at stop={stop}"
        if 2 * at_once > bench.rows:
            return trials, f"{bench.rows} rows are too few to say more"


class _Bench:
    """Runs of a call on changing rows of its frame, with nothing kept."""

    def __init__(self, prepared: Prepared, most: int) -> None:
        self._prepared = prepared
        work = compiled(prepared.call, prepared.table)
        self._places = list(dict.fromkeys(map(work.row_of, range(len(work.keys)))))
        self._most = min(most, len(self._places))
        self._count = work.count
        self._next = 0

    @property
    def rows(self) -> int:
        return self._most

    def trial(self, at_once: int) -> Trial:
        rows = min(self._most, max(32, 4 * at_once))
        before, polled = self._figures(), _Polled(self._prepared.engine)
        with polled:
            runs = [self.run(at_once, rows // 2) for _ in range(2)]
        after = self._figures()
        rates = [tokens / seconds for seconds, tokens, _ in runs]
        latencies = [latency for *_, found in runs for latency in found]
        cuts = statistics.quantiles(latencies, n=20) if len(latencies) > 1 else latencies * 19
        preempted = None
        if getattr(after, "preemptions", None) is not None:
            preempted = after.preemptions - before.preemptions
        return Trial(
            at_once=at_once,
            tokens_per_second=statistics.fmean(rates),
            rows_per_second=len(latencies) / sum(seconds for seconds, *_ in runs),
            p50=cuts[9],
            p95=cuts[18],
            kv_cache=polled.kv_peak,
            preemptions=preempted,
            noise=abs(rates[0] - rates[1]) / statistics.fmean(rates),
            rows=rows // 2 * 2,
        )

    def run(self, at_once: int, rows: int) -> tuple[float, int, list[float]]:
        """Seconds, tokens, and the seconds of each row.

        Raises:
            EngineError: It broke off.
        """
        turned = self._places[self._next :] + self._places[: self._next]
        # Other rows each time, as far as there are: known ones would come from the prefix cache.
        self._next = (self._next + 1) % len(self._places)
        asked = np.zeros(self._count, dtype=bool)
        asked[spread(turned, rows)] = True
        engine: Engine = self._prepared.engine  # type: ignore[assignment]
        work = compiled(self._prepared.call, self._prepared.table, asked)
        run = run_over(work, engine, Journal.memory(), "tune", concurrency=at_once)
        began = time.perf_counter()
        run.run()
        seconds = time.perf_counter() - began
        if run.error is not None:
            raise run.error
        usage = run.progress().usage
        if not run.ledger.latencies:
            raise EngineError("no row of the slice got an answer, so there is nothing to measure.")
        return seconds, usage.input_tokens + usage.output_tokens, run.ledger.latencies

    def _figures(self) -> Any:
        figures = getattr(self._prepared.engine, "figures", None)
        return figures() if callable(figures) else None


class _Polled:
    """Looks at an engine's figures while it runs."""

    def __init__(self, engine: Any) -> None:
        self._figures = getattr(engine, "figures", None)
        self._over = threading.Event()
        self.kv_peak: float | None = None

    def __enter__(self) -> None:
        if callable(self._figures):
            threading.Thread(target=self._look, name="llmframe-figures", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _look(self) -> None:
        assert self._figures is not None
        while not self._over.wait(_LOOK):
            now = self._figures()
            if now is not None and now.kv_cache is not None:
                self.kv_peak = max(self.kv_peak or 0.0, now.kv_cache)

"""What vLLM in this process is doing, gathered from what it tells its own loggers."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import Any, Final

from llmframe.engines.base import Figures
from llmframe.results import Result

__all__ = ["Meter"]

_SPAN: Final = 30.0
"""Seconds over which speed and latency are taken."""


class Meter:
    """Gathers figures while an engine runs; read from any thread.

    Attributes:
        kv_peak: Most of the KV cache that was in use at once since `reset_peak`.
        preemptions: Requests put back for want of memory.
    """

    def __init__(self) -> None:
        self.kv_peak = 0.0
        self.preemptions = 0
        self._lock = threading.Lock()
        self._done: deque[tuple[float, float, int]] = deque()
        self._prompt = self._cached = 0
        self._running: int | None = None
        self._waiting: int | None = None
        self._kv: float | None = None

    def listen(self, engine: Any) -> None:
        """Hear what vLLM tells its own loggers after each step, where it has any."""
        manager = getattr(engine, "logger_manager", None)
        record = getattr(manager, "record", None)
        if record is None:
            return

        def heard(*args: Any, **given: Any) -> Any:
            self._note(given.get("scheduler_stats"), given.get("iteration_stats"))
            return record(*args, **given)

        manager.record = heard  # type: ignore[union-attr]

    def _note(self, scheduler: Any, iteration: Any) -> None:
        if scheduler is not None:
            self._running = getattr(scheduler, "num_running_reqs", None)
            self._waiting = getattr(scheduler, "num_waiting_reqs", None)
            self._kv = getattr(scheduler, "kv_cache_usage", None)
            self.kv_peak = max(self.kv_peak, self._kv or 0.0)
        self.preemptions += getattr(iteration, "num_preempted_reqs", 0) or 0

    def reset_peak(self) -> None:
        """Begin to look for the peak anew."""
        self.kv_peak = 0.0

    def count(self, result: Result, seconds: float) -> None:
        """A request is finished."""
        usage = result.usage
        tokens = usage.input_tokens + usage.output_tokens if usage else 0
        with self._lock:
            self._done.append((time.monotonic(), seconds, tokens))
            if usage:
                self._prompt += usage.input_tokens
                self._cached += usage.cached_tokens

    def figures(self) -> Figures:
        """Where the engine stands."""
        now = time.monotonic()
        with self._lock:
            while self._done and now - self._done[0][0] > _SPAN:
                self._done.popleft()
            done = list(self._done)
            hits = self._cached / self._prompt if self._prompt else None
        if len(done) < 2:
            return Figures(
                running=self._running,
                waiting=self._waiting,
                kv_cache=self._kv,
                prefix_hits=hits,
                preemptions=self.preemptions,
            )
        # From when the first of them was sent: a handful that ends in one step is no rate.
        span = max(1e-3, now - min(at - seconds for at, seconds, _ in done[:64]))
        cuts = statistics.quantiles((seconds for _, seconds, _ in done), n=20)
        return Figures(
            rows_per_second=len(done) / span,
            tokens_per_second=sum(tokens for *_, tokens in done) / span,
            running=self._running,
            waiting=self._waiting,
            kv_cache=self._kv,
            prefix_hits=hits,
            preemptions=self.preemptions,
            p50=cuts[9],
            p95=cuts[18],
        )

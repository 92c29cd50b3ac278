"""The end of the process: what is on its way to a provider is handed over, the rest is kept."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from functools import lru_cache
from typing import Final

from llmframe.progress import in_kernel
from llmframe.runs import Run

__all__ = ["enter", "hand_over_in_a_script", "left"]

_QUIET: Final = 60.0
"""Seconds without a new batch after which an exit waits for no more of them."""

_running: dict[Run, threading.Event] = {}
"""The runs of this process, and what is set when each has ended."""


def enter(run: Run, ended: threading.Event) -> None:
    """A run begins: the process does not end under it without a word."""
    _running[run] = ended
    _watch_the_end()


def left(run: Run) -> None:
    """A run has ended."""
    _running.pop(run, None)


@lru_cache(maxsize=1)
def _watch_the_end() -> None:
    # No atexit function: the engines would be down by then. The interpreter waits for this thread,
    # while everything still runs.
    threading.Thread(target=_when_main_ends, name="llmframe-exit").start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch_the_end.cache_clear)


def _when_main_ends() -> None:
    threading.main_thread().join()
    _leave()


def _leave() -> None:
    """At exit: hand over what is on its way to a provider, stop feeding, keep what is finished.

    Daemon threads would die in mid-write.
    """
    running = list(_running.items())
    with contextlib.suppress(KeyboardInterrupt):
        for run, ended in running:
            _hand_over(run, ended)
    for run, _ in running:
        run.stop("abort")
    for _, ended in running:
        ended.wait(2.0)


def hand_over_in_a_script(run: Run, ended: threading.Event) -> None:
    """Where a script could end next: wait until a run's rows are at the provider.

    From Python 3.12 on no thread can be started once the script has ended, so nothing could be
    sent then; before, `_leave` does this at the end. A notebook or a prompt stays.
    """
    stays = hasattr(sys, "ps1") or in_kernel()
    if sys.version_info >= (3, 12) and not stays:
        _hand_over(run, ended)


def _hand_over(run: Run, ended: threading.Event) -> None:
    """Wait until a run's rows are all at the provider: a script may submit and end."""
    if run.lane is None:
        return
    sent, until = -1, 0.0
    while run.sending and not ended.is_set():
        if (now := run.lane.counts["batches"]) != sent:
            sent, until = now, time.monotonic() + _QUIET
        if time.monotonic() > until:
            return
        time.sleep(0.02)

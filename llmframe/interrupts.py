"""Ctrl-C while the process ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["held_off"]


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """Ignore Ctrl-C for the moment that it takes to store and close at the end of a process.

    Whoever pressed it once and presses it again wants the process to end, which it does; the
    interrupt would only break off the storing of what was paid, and print a traceback.
    """
    before = signal.getsignal(signal.SIGINT)
    # None was not set by Python, which could not set it again.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""What stands between the lane's thread and the stream that is read: a queue and two ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from llmframe.engines.base import Batch
from llmframe.results import Result

__all__ = ["Checked", "HandOver", "StoppedError"]


@dataclass(slots=True)
class Checked:
    """Every result of the batch was handed over.

    Attributes:
        tag: Of the batch.
        batch: None where there never was one.
        keys: Of its requests.
    """

    tag: str
    batch: Batch | None
    keys: frozenset[bytes]


class StoppedError(Exception):
    """Unwinds the thread when its stream is left."""


class HandOver:
    """A queue out of a thread, which may be left at any time.

    Args:
        on_end: Called once, when both the thread and the stream have ended.

    Attributes:
        out: Lists of results; `Checked`; an exception that ends the stream; None at its end.
        wake: Set when the thread should look again.
        stop: Set when the stream is left.
        unclosed: Batches handed over whole that the journal still counts as open.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.out: queue.Queue[list[Result] | Checked | BaseException | None] = queue.Queue(16)
        self.wake = threading.Event()
        self.stop = threading.Event()
        self.unclosed: set[str] = set()
        self._ended = False
        self._lock = threading.Lock()
        self._on_end = on_end

    def run(self, work: Callable[[], None]) -> None:
        """The thread: `work`, then how it ended."""
        end: BaseException | None = None
        try:
            work()
        except BaseException as error:
            end = error
        try:
            self.put(end)
        except StoppedError:
            pass
        finally:
            with self._lock:
                self._ended = True
                if self.stop.is_set():
                    self._on_end()

    def leave(self) -> None:
        """The stream is left, at its end or before."""
        with self._lock:
            self.stop.set()
            self.wake.set()
            if self._ended:
                self._on_end()

    def put(self, item: list[Result] | Checked | BaseException | None) -> None:
        """Hand over, waiting for room.

        Raises:
            StoppedError: The stream was left.
        """
        while not self.stop.is_set():
            try:
                return self.out.put(item, timeout=0.1)
            except queue.Full:
                continue
        raise StoppedError

"""How a job is awaited: the loop goes on, and a cancelled `await` stops the work."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from llmframe.driving import PATIENCE
from llmframe.errors import Line, on_behalf
from llmframe.progress import in_kernel
from llmframe.showing import Shown

__all__ = ["Awaited"]

_LOOK: Final = 0.5
"""Seconds between two looks at a job that another process drives."""
_TICK: Final = 0.1
"""Seconds after which a kernel's interrupt gets through, at most."""


class Awaited(Shown):
    """A job whose end can be awaited, in any event loop."""

    async def _awaited(self, line: Line) -> None:
        """As `wait`, without blocking the loop; what it warns of is told at `line`.

        Raises:
            asyncio.CancelledError: The work has been stopped, as by Ctrl-C. A note says what was
                kept; the message itself belongs to whoever cancelled, and some frameworks read it.
        """
        if self._run is None:
            await self._left_alone()
        if self._reads_on():
            await asyncio.to_thread(on_behalf, line, self._read_on)
        if self._run is not None:
            await self._ended()

    async def _left_alone(self) -> None:
        """Wait until no other process drives it."""
        while (record := await asyncio.to_thread(self._journal.job, self.id)) is not None:
            if record.driver is None:
                return
            await asyncio.sleep(_LOOK)

    async def _ended(self) -> None:
        """Wait for the run of this process."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def awake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(ended.set)

        self._callbacks.append(awake)
        run = self._run
        assert run is not None
        # Outside notebooks a server may run this loop, whose log it would fill.
        shown = self._display() if in_kernel() else None
        try:
            while not self._done.is_set() and self._pressed != "stop":
                if shown is not None:
                    shown.update(run.progress(watched=shown.shows))
                # A kernel's interrupt is heard of when the loop next wakes.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _TICK)
        except asyncio.CancelledError as error:
            self.abandon()
            # What is in flight is let go first; a second cancel is in a hurry.
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(ended.wait(), PATIENCE)
            error.add_note(str(self._kept()))
            raise
        finally:
            self._callbacks.remove(awake)
            if shown is not None:
                shown.close(run.progress(watched=shown.shows))

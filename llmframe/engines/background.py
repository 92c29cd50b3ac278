"""The process's one background event loop, in which every live engine works.

So the verbs work in a script, under a running loop, under uvloop and from several threads, and
no session is ever used in a loop that it was not made in.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from llmframe.interrupts import held_off

__all__ = ["at_exit", "background_loop", "close_later", "in_thread", "in_use", "on_loop"]


class _Background:
    """The loop, its thread, and what must be closed before it ends."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.closers: set[Callable[[], Awaitable[None]]] = set()


_background = _Background()


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's one background event loop, started when first asked for.

    It runs in a daemon thread, is made anew in a forked child, and ends at interpreter exit
    after everything that was opened in it has been closed.

    Examples:
        >>> import asyncio
        >>> async def double(x: int) -> int:
        ...     return 2 * x
        >>> asyncio.run_coroutine_threadsafe(double(4), background_loop()).result()
        8
    """
    with _background.lock:
        if _background.loop is None or _background.loop.is_closed():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_run, args=(loop,), name="llmframe-loop", daemon=True)
            _background.loop, _background.thread = loop, thread
            thread.start()
        return _background.loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def on_loop() -> bool:
    """Whether the calling thread is the background loop's own."""
    return threading.current_thread() is _background.thread


def in_use(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether `loop` is the background loop of this process, and open."""
    return loop is _background.loop and not loop.is_closed()


def close_later(
    loop: asyncio.AbstractEventLoop,
    close: Callable[[], Awaitable[None]],
    forget: Callable[[], None],
) -> None:
    """Have `close` awaited in the loop that its object lives in; from any thread, at any time.

    Takes no lock and does not wait, so that a garbage collector may call it anywhere.

    Args:
        loop: Where the object was made.
        close: Closes it.
        forget: What `at_exit` gave.
    """

    async def finish() -> None:
        await close()
        forget()

    def begin() -> None:
        task = loop.create_task(finish())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    if in_use(loop):
        loop.call_soon_threadsafe(begin)


_closing: set[asyncio.Task[None]] = set()
"""Held here because a loop keeps only a weak reference to its tasks."""


def at_exit(close: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Have `close` awaited in the loop before the interpreter ends.

    Returns:
        A function that takes it off the list again.
    """
    _background.closers.add(close)
    closers = _background.closers
    return lambda: closers.discard(close)


@atexit.register
def _shutdown() -> None:
    """Leave no open socket, no pending task and no warning behind."""
    loop, thread = _background.loop, _background.thread
    if loop is None or thread is None or loop.is_closed() or not thread.is_alive():
        return

    async def close_all() -> None:
        closing = set(_closing)  # a pool whose closing is broken off takes itself for closed
        others = asyncio.all_tasks() - closing - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, *closing, return_exceptions=True)
        for close in list(_background.closers):
            with contextlib.suppress(Exception):
                await close()
        # A TLS connection takes a turn of the loop or two to be closed.
        await asyncio.sleep(0.01)
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()

    with held_off():
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(close_all(), loop).result(timeout=2)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=2)
        if not thread.is_alive():
            loop.close()


def _forked() -> None:
    # The thread did not survive the fork. The old loop is kept, unused: closing it would close
    # the parent's wake-up socket and take the parent's connections off their shared epoll.
    global _background
    _forgotten.append(_background)
    _background = _Background()


_forgotten: list[_Background] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call in a daemon thread of its own.

    Its start costs a twentieth of the SDK's own work for a request. The loop's pool would do
    it too, but its threads are waited for when the interpreter ends: an aborted job would hang
    until the server answers.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():  # canceled meanwhile
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="llmframe-client", daemon=True).start()
    return await done

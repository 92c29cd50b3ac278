"""The user's event loops, in which async clients of theirs live.

The connections of an async client belong to the loop that it was first used in and fail in every
other one. The SDK's own pool is copied (`SdkClient`). A pool that the user made, with proxies,
certificates, hooks or an authentication of theirs, cannot be: it is used where it lives, while
everything else goes on in llmframe's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from llmframe.engines.background import background_loop, in_use
from llmframe.errors import ModelError

__all__ = [
    "HomeLostError",
    "check",
    "enter",
    "home_of",
    "in_home",
    "own_pool",
    "running",
    "settle",
    "wait",
]

_LOOK: Final = 0.5
"""Seconds between two looks whether a loop still runs."""
_LONG: Final = 10.0
"""Seconds after which a loop that does not begin with a call is said to be blocked."""
_STEP: Final = 0.02
"""Seconds between two looks at an event, in the loop that goes on meanwhile."""

_log = logging.getLogger("llmframe")

_homes: WeakKeyDictionary[Any, AbstractEventLoop] = WeakKeyDictionary()
"""Pool → the loop in which it is used."""
_used: WeakSet[Any] = WeakSet()
"""Pools through which something was sent."""
_told: WeakSet[Any] = WeakSet()
"""Pools of which it was said that their loop is blocked."""
if hasattr(os, "register_at_fork"):
    # Loops of the parent seem to run in a child, and never will.
    os.register_at_fork(after_in_child=_homes.clear)
    os.register_at_fork(after_in_child=_used.clear)


class HomeLostError(Exception):
    """The loop in which a client lives has ended under a call."""


def running() -> AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def own_pool(client: Any) -> Any:
    """The connection pool of an async SDK client, where it is the user's own.

    Returns:
        None for a pool that the SDK made, which holds nothing of the user's, and for a client
        that blocks.
    """
    pool = getattr(client, "_client", None)
    if not hasattr(pool, "aclose"):
        return None
    made_by_the_sdk = type(pool).__name__ == "AsyncHttpxClientWrapper"
    changed = getattr(pool, "auth", None) or any(getattr(pool, "event_hooks", {}).values())
    return None if made_by_the_sdk and not changed else pool


def enter(engine: Any) -> None:
    """A call on `engine` begins in this thread; engines with a client of the user's note where."""
    if callable(note := getattr(engine, "enter", None)):
        note()


def settle(pool: Any) -> None:
    """A pool without a home lives in the loop that runs in this thread, if one does.

    One that was used stays where it is, also where that loop has ended: its connections would
    fail, or never answer, in another.
    """
    if pool in _used or _alive(_homes.get(pool)):
        return
    here = running()
    if here is None:
        _homes.pop(pool, None)
    else:
        _homes[pool] = here


def home_of(pool: Any) -> AbstractEventLoop | None:
    """The user's loop in which a pool lives; None: llmframe's own loop uses it."""
    home = None if pool is None else _homes.get(pool)
    return None if home is None or in_use(home) else home


def _alive(loop: AbstractEventLoop | None) -> bool:
    return loop is not None and not loop.is_closed() and loop.is_running()


async def in_home(pool: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await `call()` in the loop where `pool` lives; from llmframe's own.

    No coroutine exists before it runs, so none is left un-awaited where the loop ends first.

    Args:
        pool: The user's; None: it may be used here.
        call: Makes what is awaited.

    Raises:
        HomeLostError: That loop has ended, or ended meanwhile.
    """
    if pool is None:
        return await call()
    home = _homes.setdefault(pool, background_loop())
    _used.add(pool)
    if in_use(home):
        return await call()
    if not _alive(home):
        raise HomeLostError
    here = asyncio.get_running_loop()
    done: asyncio.Future[Any] = here.create_future()
    working: list[asyncio.Task[Any]] = []
    given_up = threading.Event()

    async def work() -> Any:
        return await call()

    def begin() -> None:
        if not given_up.is_set():
            working.append(home.create_task(work()))
            working[0].add_done_callback(ended)

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()  # looked at, or it is logged
        with contextlib.suppress(RuntimeError):  # llmframe's loop is closed: nobody waits
            here.call_soon_threadsafe(hand_over, task, error)

    def hand_over(task: asyncio.Task[Any], error: BaseException | None) -> None:
        if done.done():
            return
        if task.cancelled():  # as `asyncio.run` does with what is left at its end
            done.set_exception(HomeLostError())
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())

    def give_up() -> None:
        for task in working:
            task.cancel()

    try:
        home.call_soon_threadsafe(begin)
        sent = time.monotonic()
        while not done.done():
            await asyncio.wait((done,), timeout=_LOOK)
            if not (done.done() or home.is_running()):
                raise HomeLostError
            if not working and time.monotonic() - sent > _LONG and pool not in _told:
                _told.add(pool)
                _log.warning(
                    "requests wait for the event loop in which the client passed as client= "
                    "lives, and something blocks it: a thread that is waited for there, a long "
                    "cell. `await df.llm.amap(…)` blocks nothing."
                )
        return done.result()
    except RuntimeError:
        if home.is_closed():
            raise HomeLostError from None
        raise
    finally:
        if not done.done():
            done.cancel()
            given_up.set()
            with contextlib.suppress(RuntimeError):  # it is closed, and all its tasks with it
                home.call_soon_threadsafe(give_up)


def check(engine: Any) -> None:
    """Look whether a call may block here: the loop in this thread may have to go on meanwhile.

    Args:
        engine: Whose client may live in this thread's loop.

    Raises:
        ModelError: It has to, and cannot; nothing was sent.
    """
    here = running()
    if here is None or getattr(engine, "home", None) is not here:
        return
    # nest-asyncio works on the internals of asyncio's own loops.
    if not isinstance(here, asyncio.BaseEventLoop):
        raise ModelError(
            f"the async client passed as client= lives in the {type(here).__module__} loop that "
            f"runs here, and a call that blocks would stop that loop. {_WAYS}"
        )
    if _nest_asyncio() is None:
        raise ModelError(
            f"the async client passed as client= lives in the event loop that runs here, and a "
            f"call that blocks would stop that loop. {_WAYS} Or install nest-asyncio2, which "
            f"lets the loop go on meanwhile."
        )


_WAYS: Final = (
    "Write `await df.llm.amap(…)` (each verb has such a form; `await job` for a job), or pass a "
    "client that is not async."
)


def wait(engine: Any, event: threading.Event, seconds: float) -> bool:
    """As ``event.wait(seconds)``; the loop in this thread goes on where the engine's client lives.

    That needs nest-asyncio, which patches asyncio for the whole process: it is applied here,
    and nowhere else.

    Raises:
        ModelError: As `check`.
    """
    here = running()
    if here is None or event.is_set() or getattr(engine, "home", None) is not here:
        return event.wait(seconds)
    check(engine)
    nest = _nest_asyncio()
    assert nest is not None
    if not getattr(here, "_nest_patched", False):
        nest.apply(here)
    loop: Any = here
    loop.run_until_complete(_until(event, seconds))
    return event.is_set()


async def _until(event: threading.Event, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not event.is_set() and (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(_STEP, left))


def _nest_asyncio() -> ModuleType | None:
    """nest-asyncio2, or its predecessor where that is all there is, or was applied already.

    The predecessor breaks ``asyncio.run(…, loop_factory=…)``, so it comes second.
    """
    names = ["nest_asyncio2", "nest_asyncio"]
    if hasattr(asyncio, "_nest_patched") and not hasattr(asyncio, "_nest_asyncio2"):
        names.reverse()
    for name in names:
        with contextlib.suppress(ImportError):
            return import_module(name)
    return None

"""What a fork needs: nobody inside SQLite while it happens, and no connection carried over."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol

__all__ = ["Forkable", "registry", "watch"]


class Forkable(Protocol):
    """Something with locks and connections that must not be carried into a child as they are."""

    def before_fork(self) -> None:
        """Take every lock, let go of every file."""

    def after_fork_in_parent(self) -> None:
        """Give the locks back."""

    def after_fork_in_child(self) -> None:
        """Make new locks; nothing of the parent's is ours."""


registry: Final = threading.RLock()
"""Held while journals are opened and during a fork, so that two forks never wait crosswise."""

_watched: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_forking: Final[list[Forkable]] = []


def watch(journal: Forkable) -> None:
    """Keep `journal` whole across forks for as long as it lives."""
    with registry:
        _watched.add(journal)


def _before() -> None:
    registry.acquire()
    _forking[:] = _watched
    for journal in _forking:
        journal.before_fork()


def _in_parent() -> None:
    for journal in _forking:
        journal.after_fork_in_parent()
    _forking.clear()
    registry.release()


def _in_child() -> None:
    for journal in _forking:
        journal.after_fork_in_child()
    _forking.clear()
    registry.release()  # the thread that forked holds it, and is the one thread of the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

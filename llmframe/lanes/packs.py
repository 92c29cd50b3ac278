"""Requests into packs that a provider's batch can hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from llmframe.requests import Request, custom_id
from llmframe.results import Failure

__all__ = ["Pack", "Packer"]

_UNLIMITED = 1 << 62


@dataclass(slots=True)
class Pack:
    """Requests that go into one batch.

    Attributes:
        lines: ``(custom_id, part, key)`` of each, as the journal keeps them: the source makes a
            request again when its line is written. Never empty, no key twice.
        was: Tag of an earlier intent for them that came to nothing. It stays open, and with it
            the claims on their keys, until they are sent again.
    """

    lines: list[tuple[str, int, bytes]]
    was: str | None = None


class Packer:
    """Packs by number of requests *and* by encoded bytes, in the order in which they come.

    Args:
        size: Encoded bytes of a request's line.
        max_requests: Requests in a pack.
        max_bytes: Encoded bytes in a pack; None: no limit.
        first: Requests in the first pack: small, so that a mistake that fails every row shows
            before the rest is paid for.

    Attributes:
        ready: Packs to be sent, the next one first.
        open: The pack that is being filled.
    """

    def __init__(
        self,
        size: Callable[[Request], int],
        max_requests: int,
        max_bytes: int | None = None,
        first: int = 1000,
    ) -> None:
        self.ready: deque[Pack] = deque()
        self.open: list[tuple[str, int, bytes]] = []
        self._size = size
        self._most = max_requests
        self._bytes_most = _UNLIMITED if max_bytes is None else max_bytes
        self._cap = min(first, max_requests)
        self._bytes = 0
        self._keys: set[bytes] = set()

    @property
    def room(self) -> int:
        """Requests that the open pack takes by number."""
        return self._cap - len(self.open)

    def add(self, request: Request) -> Failure | None:
        """Put `request` into the open pack, or into the next where it does not fit.

        Returns:
            Why it fits into no batch at all, else None.
        """
        size = self._size(request)
        if size > self._bytes_most:
            return Failure(
                "request_too_large",
                f"the request has {size:,} bytes; a batch may hold {self._bytes_most:,}. "
                f"Nothing was sent for this row.",
            )
        # One key twice in a batch would be one custom_id twice, which providers refuse whole.
        if self._bytes + size > self._bytes_most or request.key in self._keys:
            self.finish()
        name = custom_id(request.position, request.key, request.attempt)
        self.open.append((name, 0, request.key))
        self._keys.add(request.key)
        self._bytes += size
        if self.room <= 0:
            self.finish()
        return None

    def finish(self) -> None:
        """The open pack is ready as it is; an empty one is not."""
        if self.open:
            self.ready.append(Pack(self.open))
            self.open, self._keys, self._bytes = [], set(), 0
            self._cap = self._most

    def again(self, pack: Pack) -> None:
        """A pack that the provider did not take is next again, whole."""
        self.ready.appendleft(pack)

    def halve(self, pack: Pack) -> None:
        """A pack that is too large for the provider is next again in halves.

        Later packs are no larger than a half: the limit that really holds (a proxy's, an
        account's share of the queue) is not known beforehand.
        """
        half = max(1, len(pack.lines) // 2)
        self._most = min(self._most, half)
        self._cap = min(self._cap, half)
        self.cut(pack, half)

    def cut(self, pack: Pack, count: int) -> None:
        """The first `count` requests of a pack are next, the others after them."""
        self.ready.appendleft(Pack(pack.lines[count:]))
        self.ready.appendleft(Pack(pack.lines[:count], pack.was))

    def drop(self) -> list[Pack]:
        """Forget, and return, everything that is not sent yet."""
        self.finish()
        dropped = list(self.ready)
        self.ready.clear()
        return dropped

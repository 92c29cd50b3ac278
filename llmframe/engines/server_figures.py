"""What a vLLM server is doing, from its ``/metrics``; for whoever watches a run.

Asked in a thread of its own, once a second, and only while somebody looks: no request waits for
it, and a server that has no such page is asked once.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from llmframe.engines.base import Figures

__all__ = ["ServerMeter", "figures_of"]

_EVERY: Final = 1.0
_UNWATCHED: Final = 5.0
"""Seconds without a look after which nothing is asked any more."""
_LINE: Final = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class ServerMeter:
    """The figures of one server.

    Args:
        base_url: As the engine has it. Only ``http://`` is asked, a server of one's own: a public
            service has no such page, and no business with it.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._host = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/metrics"
        self._able = parts.scheme == "http" and bool(self._host)
        self._looked = 0.0
        self._thread: threading.Thread | None = None
        self._latest: Figures | None = None

    def figures(self) -> Figures | None:
        """The latest; None at first, and of a server that has none."""
        self._looked = time.monotonic()
        if self._able and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(
                target=self._watch, name="llmframe-metrics", daemon=True
            )
            self._thread.start()
        return self._latest

    def _watch(self) -> None:
        before: tuple[float, Mapping[str, float]] | None = None
        while time.monotonic() - self._looked < _UNWATCHED:
            page = self._read()
            if page is None or not (found := counters(page)):
                self._able, self._latest = False, None
                return
            now = time.monotonic()
            self._latest = figures_of(found, *(before or (now, found)), now)
            before = (now, found)
            time.sleep(_EVERY)
        self._latest = None

    def _read(self) -> str | None:
        connection = http.client.HTTPConnection(self._host, timeout=5)
        try:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == 200 else None
        except (OSError, http.client.HTTPException, UnicodeDecodeError):
            return None
        finally:
            connection.close()


def counters(page: str) -> dict[str, float]:
    """The numbers of a page in Prometheus' text format, summed over engines and models.

    Examples:
        >>> counters('vllm:num_requests_running{engine="0"} 3.0')
        {'num_requests_running': 3.0}
    """
    found: dict[str, float] = {}
    for name, value in _LINE.findall(page):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def figures_of(
    found: Mapping[str, float], at: float, before: Mapping[str, float], now: float
) -> Figures:
    """Figures between two looks.

    Args:
        found: What the server says now.
        at: When it said `before`.
        before: What it said then.
        now: When it said `found`.
    """

    def grown(*names: str) -> float:
        return sum(found.get(name, 0.0) - before.get(name, 0.0) for name in names)

    def whole(name: str) -> int | None:
        return int(found[name]) if name in found else None

    asked, hits = found.get("prefix_cache_queries_total"), found.get("prefix_cache_hits_total")
    tokens = grown("prompt_tokens_total", "generation_tokens_total")
    return Figures(
        tokens_per_second=tokens / (now - at) if now > at else None,
        running=whole("num_requests_running"),
        waiting=whole("num_requests_waiting"),
        kv_cache=found.get("kv_cache_usage_perc", found.get("gpu_cache_usage_perc")),
        prefix_hits=hits / asked if asked and hits is not None else None,
        preemptions=whole("num_preemptions_total"),
    )

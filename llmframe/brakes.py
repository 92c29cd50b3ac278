"""What stops a job: the canary, the breakers, the budget. Pure decisions; `runs` acts on them."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from llmframe.costs import Price
from llmframe.journal import Entry
from llmframe.requests import Request, Sampling
from llmframe.results import Failure, Usage

__all__ = [
    "OUTAGE",
    "PATIENCE",
    "UNLIMITED",
    "Budget",
    "Outage",
    "Quality",
    "Refusals",
    "estimate_tokens",
    "output_limit",
]

OUTAGE: Final = frozenset({"timeout", "connection", "provider_error", "engine_lost"})
"""Failure kinds that say something about the server and nothing about the row."""

PATIENCE: Final = 600.0
"""Seconds that a server which answers with errors only is waited for."""

_UNREACHABLE: Final = 25.0
"""The same for one that cannot be reached at all: it is down, not busy."""

_NEVER_REACHED: Final = 6.0
"""The same where it was never reached in this job: most likely the address is wrong."""


class Outage:
    """Opens when the last results were all timeouts, lost connections or server errors.

    While it is open one row at a time is tried, 1, 2, 4 … 60 s apart; after `patience` the job
    ends. Any answer closes it.

    Args:
        width: Results in a row that open it: ``max(32, concurrency)``.
        patience: Seconds to wait for a server that answers with errors; None: 600.
    """

    def __init__(self, width: int, patience: float | None = None) -> None:
        self._width = max(32, width)
        self._patience = PATIENCE if patience is None else patience
        self._row = 0
        self._since: float | None = None
        self._kinds: Counter[str] = Counter()
        self._probes = 0
        self._reached = False
        self.last: Failure | None = None

    @property
    def open(self) -> bool:
        """Whether feeding is stopped."""
        return self._row >= self._width

    @property
    def streak(self) -> bool:
        """Whether the last result was such a failure."""
        return self._row > 0

    def answered(self) -> None:
        """Any reply that came from the model, good or bad."""
        self._row = self._probes = 0
        self._since = None
        self._reached = True
        self._kinds.clear()

    def failed(self, failure: Failure, now: float) -> None:
        """One more failure of a kind in `OUTAGE`."""
        if failure.status is not None:
            self._reached = True
        self._row += 1
        self._kinds[failure.kind] += 1
        self.last = failure
        if self._since is None:
            self._since = now

    def pause(self) -> float:
        """Seconds until the next single row is tried."""
        self._probes += 1
        return float(min(60, 2 ** (self._probes - 1)))

    def over(self, now: float) -> bool:
        """Whether patience has run out."""
        if self._since is None:
            return False
        if set(self._kinds) <= {"connection", "engine_lost"}:
            wait = min(self._patience, _UNREACHABLE if self._reached else _NEVER_REACHED)
        else:
            wait = self._patience
        return now - self._since > wait


class Quality:
    """Trips when more than 90 % of the last answers are invalid, truncated or refused.

    It looks after 100 answers, then at the last 300: a model that turns bad in mid-run is seen,
    and a bad stretch of the data is not taken for one.
    """

    _BAD: Final = frozenset({"invalid_output", "empty_output", "truncated", "refused"})
    _AFTER: Final = 100
    _LAST: Final = 300
    _REMEDY: Final = {
        "invalid_output": "the schema is not being applied: try another model or a simpler schema",
        "empty_output": "the model says nothing: raise max_tokens or try another model",
        "truncated": "raise max_tokens, or the window where that is full",
        "refused": "the model will not do this: reword the prompt or try another model",
    }

    def __init__(self) -> None:
        self._last: deque[str | None] = deque()
        self._bad: Counter[str] = Counter()

    def answer(self, failure: Failure | None) -> None:
        """Count one answer of the model."""
        kind = failure.kind if failure is not None and failure.kind in self._BAD else None
        self._last.append(kind)
        if kind is not None:
            self._bad[kind] += 1
        if len(self._last) > self._LAST:
            old = self._last.popleft()
            if old is not None:
                self._bad[old] -= 1

    def verdict(self) -> str | None:
        """What is wrong and one remedy, or None."""
        bad, answers = self._bad.total(), len(self._last)
        if answers < self._AFTER or bad <= 0.9 * answers:
            return None
        kind, count = self._bad.most_common(1)[0]
        return (
            f"{bad} of the last {answers} answers are no use ({count} {kind}); "
            f'{self._REMEDY[kind]}. errors="coerce" would go on all the same'
        )


class Refusals:
    """Decides, on the canary's 400, whether the job or only the row is at fault.

    A refused parameter, model or schema is named by the provider and ends the job. A refusal
    that names nothing may be the row's own: one other row is tried, and the same words or the
    same code twice end the job.
    """

    def __init__(self) -> None:
        self._seen: Failure | None = None

    def ends(self, failure: Failure) -> bool:
        """Whether this refusal ends the job; else it is remembered for the next one."""
        if failure.kind != "invalid_request":
            return False
        if failure.param is not None:
            return True
        before, self._seen = self._seen, failure
        if before is None:
            return False
        return before.code == failure.code if failure.code else before.message == failure.message


UNLIMITED: Final = 4096
"""Token limit of a reply under a budget, where neither the user nor the schema gives one.

It is sent: what nothing limits, nothing can be reserved for.
"""

_SAMPLE: Final = 256
"""Stored replies that tell how far estimates of tokens are off."""

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def output_limit(sampling: Sampling) -> int | None:
    """Tokens that a reply may have; None: the model's own limit."""
    given = [(sampling.extra or {}).get(name) for name in _LIMITS]
    return next((limit for limit in given if isinstance(limit, int)), sampling.max_tokens)


@dataclass(slots=True)
class Budget:
    """Spent plus reserved never passes the limit.

    Attributes:
        price: Of the model; None: unknown (then there can be no limit).
        limit: US$; None: no limit.
        spent: US$ so far, over all runs of the same call.
        reserved: US$ that the requests in flight may cost.
        live: Of a batch's canary, which goes out live; None: as any other.
        unsure: US$ of `spent` for requests whose answer never came: they may have been charged.
        margin: How many times as much as expected at most a request has cost.
    """

    price: Price | None
    limit: float | None = None
    spent: float = 0.0
    reserved: float = 0.0
    live: Price | None = None
    unsure: float = 0.0
    margin: float = 1.0
    _schema: tuple[object, int] = (None, 0)
    _learned: int = 0

    def worst(self, request: Request, *, live: bool = False) -> float:
        """What a request may cost: its input, and its token limit in full, at list price.

        Args:
            request: What is asked.
            live: At the live price.
        """
        price = (self.live if live else None) or self.price
        if price is None or self.limit is None:
            return 0.0
        return self.margin * _most(price, self._tokens(request), _limit(request))

    def _tokens(self, request: Request) -> int:
        tokens = sum(estimate_tokens(str(message["content"])) for message in request.messages)
        if request.schema is None:
            return tokens
        if self._schema[0] is not request.schema:
            told = json.dumps(request.schema, default=str)
            self._schema = request.schema, estimate_tokens(told)
        return tokens + self._schema[1]

    def learn(self, request: Request, usage: Usage, *, earlier: bool = False) -> None:
        """What a request took: others may pass what is expected of them as far as it did.

        The number of tokens in a text is an estimate, and what a server adds to it (a template,
        the schema in words of its own) shows in the first replies only.

        Args:
            request: What was asked.
            usage: What it took.
            earlier: In another run, which may have had another limit.
        """
        if self.price is None or self.limit is None:
            return
        out = _limit(request)
        expected = _most(self.price, self._tokens(request), out)
        took = _most(
            self.price, usage.input_tokens, out if earlier else max(out, usage.output_tokens)
        )
        if expected > 0:
            self.margin = max(self.margin, took / expected)

    def fits(self, cost: float) -> bool:
        """Whether a request of that cost may be sent now."""
        return self.limit is None or self.spent + self.reserved + cost <= self.limit + 1e-12

    def reserve(self, cost: float) -> None:
        """A request is on its way."""
        self.reserved += cost

    def settle(self, reserved: float, cost: float) -> None:
        """A request came back and cost that much."""
        self.reserved = max(0.0, self.reserved - reserved)
        self.spent += cost

    def pay(self, request: Callable[[], Request], reserved: float, entry: Entry) -> None:
        """A request came back; an answer that never came may have been charged all the same."""
        self.settle(reserved, entry.cost or 0.0)
        if self.limit is None:
            return
        if entry.usage is not None:
            self.learn(request(), entry.usage)
        elif entry.maybe_paid:
            self._lose(reserved)

    def paid(self, entries: Iterable[Entry], request: Callable[[], Request]) -> None:
        """What earlier runs of the same call paid for a request is spent too."""
        if self.price is None or self.limit is None:
            return
        for entry in entries:
            if entry.usage is not None:
                self.spent += self.price.cost(entry.usage) if entry.cost is None else entry.cost
                if self._learned < _SAMPLE:
                    self._learned += 1
                    self.learn(request(), entry.usage, earlier=True)
            elif entry.maybe_paid:
                self._lose(self.worst(request()))

    def _lose(self, cost: float) -> None:
        self.spent += cost
        self.unsure += cost

    def refusal(self, cost: float) -> str:
        """Why a request of that cost is not sent."""
        unsure = (
            f" (US${self.unsure:.4f} of it for requests without an answer, which may have been "
            f"charged)"
            if self.unsure
            else ""
        )
        return (
            f"US${self.spent:.4f} of budget={self.limit} is spent{unsure}, and the next row may "
            f"cost US${cost:.4f}. Everything paid is kept; the same call with a larger budget "
            f"pays only the rest."
        )


def _limit(request: Request) -> int:
    limit = output_limit(request.sampling)
    return UNLIMITED if limit is None else limit


def _most(price: Price, tokens: int, out: int) -> float:
    """US$ at most: writing to the provider's cache costs more than plain input does."""
    return max(price.cost(Usage(tokens, out, cache_write_tokens=part)) for part in (0, tokens))


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: four bytes of UTF-8 each, and a few for its frame.

    A real tokeniser would download its vocabulary; the estimate only has to be on the safe side.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return size // 4 + 4

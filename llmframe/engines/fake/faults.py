"""Scripted faults of the fake engines: which request meets which, and what it does to a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage

__all__ = ["Fault", "Faults", "FaultsLike", "spoil"]

FAULTS: Final[dict[str, str]] = {
    "drop": "no result at all: the engine loses the row",
    "duplicate": "the same result twice",
    "conflict": "two results with different texts",
    "reorder": "the result comes after those of all others sent with it",
    "garbage": "a text that fits no schema",
    "empty": "an empty text",
    "truncate": "half the text, cut off by the token limit",
    "refuse": "the model refuses",
    "filter": "the provider's content filter",
    "connection": "the connection is reset",
    "timeout": "a timeout, at once",
    "hang": "no reply until the engine's `timeout`",
    "crash": "the engine dies: `stream` raises EngineError",
}
"""Every fault that is no HTTP status."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault.

    Args:
        kind: ``"drop"``, ``"duplicate"``, ``"conflict"``, ``"reorder"``, ``"garbage"``,
            ``"empty"``, ``"truncate"``, ``"refuse"``, ``"filter"``, ``"connection"``,
            ``"timeout"``, ``"hang"``, ``"crash"``, or an HTTP status from ``"400"`` to ``"599"``.
        times: Tries of a request that meet it; later ones pass. None: every try.
        retry_after: Seconds that a 429 or 503 asks to wait.
        code: The provider's error code with an HTTP status.

    Raises:
        ValueError: There is no such kind.

    Examples:
        >>> Fault("429", times=2, retry_after=0.5).kind
        '429'
    """

    kind: str
    times: int | None = 1
    retry_after: float | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        is_status = self.kind.isdecimal() and 400 <= int(self.kind) <= 599
        if self.kind not in FAULTS and not is_status:
            kinds = ", ".join(FAULTS)
            raise ValueError(
                f"no fault {self.kind!r}; there are {kinds}, and HTTP statuses from '400' to '599'."
            )


FaultsLike = (
    str
    | Fault
    | Mapping[str | Fault, float]
    | Sequence[str | Fault | None]
    | Callable[[Request], str | Fault | None]
    | None
)
"""What `faults=` takes, see `FakeEngine`."""


def _fault(spec: str | Fault | None) -> Fault | None:
    return Fault(spec) if isinstance(spec, str) else spec


class Faults:
    """Says which fault a try of a request meets.

    Args:
        spec: See `FakeEngine`.
        seed: Changes which requests a share falls on.

    Raises:
        ValueError: An unknown kind, or shares that are negative or above 1 together.
    """

    def __init__(self, spec: FaultsLike, seed: int = 0) -> None:
        self._choose = self._chooser(spec)
        self._salt = str(seed).encode()
        self._met: dict[bytes, int] = {}
        self._assigned: dict[bytes, Fault | None] = {}

    def _chooser(self, spec: FaultsLike) -> Callable[[Request], Fault | None] | None:
        if spec is None:
            return None
        if isinstance(spec, str | Fault):
            fault = _fault(spec)
            return lambda request: fault
        if isinstance(spec, Mapping):
            self._shares = [(_fault(kind), float(share)) for kind, share in spec.items()]
            total = sum(share for _, share in self._shares)
            if total > 1 + 1e-9 or any(share < 0 for _, share in self._shares):
                raise ValueError(f"fault shares {dict(spec)!r}: expected 0 to 1, at most 1 in all.")
            return self._by_share
        if isinstance(spec, Sequence):
            self._script = [_fault(kind) for kind in spec]
            return self._by_order
        ask = spec
        return lambda request: _fault(ask(request))

    def _by_share(self, request: Request) -> Fault | None:
        digest = blake2b(request.key + self._salt, digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        for fault, share in self._shares:
            if place < share:
                return fault
            place -= share
        return None

    def _by_order(self, request: Request) -> Fault | None:
        if request.key not in self._assigned:
            place = len(self._assigned)
            self._assigned[request.key] = self._script[place] if place < len(self._script) else None
        return self._assigned[request.key]

    def next(self, request: Request) -> Fault | None:
        """The fault that this try of `request` meets; counts the try."""
        if self._choose is None:
            return None
        fault = self._choose(request)
        if fault is None:
            return None
        met = self._met.get(request.key, 0)
        if fault.times is not None and met >= fault.times:
            return None
        self._met[request.key] = met + 1
        return fault


_FATAL: Final = {
    401: "the key was refused",
    402: "payment required",
    403: "forbidden",
    404: "no such model",
}


def _status(fault: Fault) -> Failure:
    status = int(fault.kind)
    said = f"HTTP {status} from the fake engine"
    if status in _FATAL:
        message = f"{said}: {_FATAL[status]}"
        return Failure("invalid_request", message, fatal=True, status=status, code=fault.code)
    if status == 429:
        fatal = fault.code == "insufficient_quota"
        return Failure(
            "rate_limited",
            f"{said}: {'no quota is left' if fatal else 'too many requests'}",
            retryable=not fatal,
            fatal=fatal,
            status=status,
            code=fault.code,
            retry_after=fault.retry_after,
        )
    if status < 500:
        kind = "request_too_large" if status == 413 else "invalid_request"
        return Failure(kind, said, status=status, code=fault.code)
    return Failure(
        "provider_error",
        said,
        retryable=True,
        status=status,
        code=fault.code,
        retry_after=fault.retry_after,
        maybe_paid=True,
    )


_FAILED: Final = {
    "connection": Failure(
        "connection", "the fake connection was reset", retryable=True, maybe_paid=True
    ),
    "timeout": Failure("timeout", "no reply from the fake engine", retryable=True, maybe_paid=True),
    "hang": Failure("timeout", "no reply from the fake engine", retryable=True, maybe_paid=True),
}


def spoil(fault: Fault, result: Result) -> list[Result]:
    """What becomes of a good `result` under `fault`: no, one or two results."""
    if fault.kind == "drop":
        return []
    if fault.kind == "duplicate":
        return [result, result]
    if fault.kind == "conflict":
        return [result, replace(result, text=f"{result.text} (the other reply)")]
    if fault.kind == "garbage":
        text = f"}}{{ no answer to {result.key.hex()[:8]}"
        return [replace(result, text=text, choice_logprobs=None)]
    if fault.kind == "empty":
        failure = Failure("empty_output", "the fake reply is empty", retryable=True)
        return [replace(result, text="", failure=failure, choice_logprobs=None)]
    if fault.kind == "truncate":
        text = (result.text or "")[: len(result.text or "") // 2]
        usage = replace(result.usage or Usage(), output_tokens=len(text) // 4 + 1)
        failure = Failure("truncated", "the fake reply was cut off by its token limit", True)
        return [
            replace(
                result,
                text=text,
                finish="length",
                usage=usage,
                failure=failure,
                choice_logprobs=None,
            )
        ]
    if fault.kind in {"refuse", "filter"}:
        refused = fault.kind == "refuse"
        kind, finish = ("refused", "refusal") if refused else ("content_filter", "content_filter")
        failure = Failure(kind, f"the fake {'model refuses' if refused else 'filter hit'}")
        usage = replace(result.usage or Usage(), output_tokens=0)
        return [
            replace(
                result, text=None, finish=finish, usage=usage, failure=failure, choice_logprobs=None
            )
        ]
    if fault.kind == "reorder":
        return [result]
    failure = _FAILED[fault.kind] if fault.kind in _FAILED else _status(fault)
    # A request that never came through: no text, nothing counted.
    return [Result(result.key, request_id=result.request_id, failure=failure)]

"""The two engine protocols, and the values they speak in.

A live engine takes requests from a `Source` and yields lists of results as they come. A lazy
iterable could not say "nothing now, a repair may still come", which is why there is a source;
a batch that was submitted without a tag could not be found again, which is why there is one.

An engine answers every request it took with exactly one `Result`, in any order. It never
retries by itself what the run can retry (see `llmframe.results.KINDS`); it may adapt a request
to what its model takes (a parameter left out, the schema in the prompt) and send it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from llmframe.requests import Request
from llmframe.results import Result

__all__ = [
    "Batch",
    "BatchEngine",
    "BatchStatus",
    "Control",
    "Engine",
    "Figures",
    "Limits",
    "Line",
    "Mode",
    "Source",
]

Mode = Literal["run", "drain", "abort"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine takes.

    Attributes:
        concurrency: Requests in flight at once, where the user names none.
        choices: Whether it returns the probability of each of `Request.choices`.
        calibrate: Whether scores need contextual calibration by default (small local models).
        in_process: It runs in this process: costs nothing, needs no canary, holds no key.
        max_requests: Requests a provider batch may hold.
        max_bytes: Encoded bytes a provider batch may hold.
        context: Tokens of prompt and reply together, where known.
        seed: Whether a request may carry a seed.
        temperature: Whether a request may carry a temperature that the user did not ask for.
        reply: Token limit of a reply that is sent where the user names none; None: none is sent.
        reply_most: The largest that the model takes, where known.
        prefixes: It keeps what prompts share only for a while, so those that begin alike are
            best asked one after the other.
    """

    concurrency: int = 32
    choices: bool = False
    calibrate: bool = False
    in_process: bool = False
    max_requests: int | None = None
    max_bytes: int | None = None
    context: int | None = None
    seed: bool = True
    temperature: bool = True
    reply: int | None = None
    reply_most: int | None = None
    prefixes: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """An engine at one moment; None where it does not say.

    Attributes:
        rows_per_second: Over the last half minute.
        tokens_per_second: Prompt and reply tokens, over the last half minute.
        running: Requests in the batch.
        waiting: Requests that wait for a slot or for memory.
        kv_cache: Share of the KV cache in use, 0 to 1.
        prefix_hits: Share of the prompt tokens that were in the cache, 0 to 1.
        preemptions: Requests put back for want of memory, since the engine was loaded.
        p50: Seconds from sending to the reply, the middle of the last half minute.
        p95: The same, of the slowest twentieth the quickest.
        loading: The model is not there yet, and nothing runs.
    """

    rows_per_second: float | None = None
    tokens_per_second: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_cache: float | None = None
    prefix_hits: float | None = None
    preemptions: int | None = None
    p50: float | None = None
    p95: float | None = None
    loading: bool = False


@runtime_checkable
class Source(Protocol):
    """Where an engine takes its requests from; owned by the run, thread-safe."""

    def take(self, n: int) -> list[Request] | None:
        """At most `n` requests; ``[]``: nothing ready now; None: closed for good."""

    def again(self, key: bytes) -> Request:
        """A request that was taken and is not answered, as it was: a batch holds too many."""

    def on_ready(self, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when requests are ready or the source closed."""


@runtime_checkable
class Control(Protocol):
    """What the run says to an engine while it runs; both are read live.

    Attributes:
        limit: Requests in flight, at most.
        mode: ``"run"``; ``"drain"``: take nothing more, finish what is in flight; ``"abort"``:
            stop now, what is in flight is given up.
    """

    limit: int
    mode: Mode


@runtime_checkable
class Engine(Protocol):
    """A live server, vLLM, a local model, Ray, a fake.

    One that can say what it is doing has ``figures() -> Figures | None`` too: cheap, from any
    thread.
    """

    name: str
    """Provider, such as ``"openai"``; the part before the slash of a model name."""
    model: str
    limits: Limits

    def identity(self) -> Mapping[str, str]:
        """All that this engine adds to a key: base_url, endpoint, weights, chat template."""

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives until it is closed; called from one thread."""

    def close(self) -> None:
        """Release what the engine holds; idempotent."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a provider batch."""

    custom_id: str
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch at the provider.

    Attributes:
        id: The provider's.
        tag: Ours.
        count: Lines in it.
        created_at: Unix seconds.
        choices: `Request.choices` of its rows, when its results are read: a line of results does
            not repeat them.
        schema: Likewise.
    """

    id: str
    tag: str
    count: int
    created_at: float
    choices: tuple[str, ...] | None = field(default=None, compare=False)
    schema: Mapping[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """State of a batch in one vocabulary.

    Attributes:
        state: ``"running"``; ``"done"``: results can be read, for good or bad;
            ``"rejected"``: nothing ran; ``"gone"``: no longer at the provider.
        done: Requests finished well.
        failed: Requests finished badly.
        total: Requests in the batch.
        message: The provider's own words, where there are any.
        queue_full: With ``"rejected"``: the provider's queue is full, so the same batch may pass
            later.
        missing: With ``"done"``: the failure kind of a request that has no line at all,
            ``"expired"`` or ``"canceled"`` where the batch ended so.
        expires_at: Unix seconds at which its window ends, where the provider says so.
    """

    state: Literal["running", "done", "rejected", "gone"]
    done: int = 0
    failed: int = 0
    total: int = 0
    message: str = ""
    queue_full: bool = False
    missing: str = "no_result"
    expires_at: float | None = None


@runtime_checkable
class BatchEngine(Protocol):
    """A provider's batch API.

    An engine may also have `account` (whose batches it sees), `cleanup` (delete what is stored),
    `poll_interval` (seconds between two looks at a batch where nobody says), and
    `distinct_counts`: True where `find` can tell batches by their counts alone, so that no two
    intents without an answer may have the same.
    """

    name: str
    model: str
    limits: Limits

    def identity(self) -> Mapping[str, str]:
        """As `Engine.identity`: the lane is no part of a key."""

    def probe(self, request: Request) -> Result | None:
        """The live twin answers one request, for the canary; None where there is no twin."""

    def size(self, request: Request) -> int:
        """Encoded bytes of the request's line."""

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        """Send a batch; `note(name, value)` commits each remote side effect before the next."""

    def find(self, tag: str, notes: Mapping[str, str], count: int) -> list[Batch]:
        """Batches at the provider that may be the one of this intent."""

    def poll(self, batch: Batch) -> BatchStatus:
        """Where the batch stands."""

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        """Results as they are read: custom_id, part of the line, result; in any order."""

    def cancel(self, batch: Batch) -> None:
        """Ask the provider to stop; what is done stays readable."""

    def delete(self, batch: Batch) -> None:
        """Delete the batch's files at the provider."""

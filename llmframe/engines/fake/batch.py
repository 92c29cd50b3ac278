"""The fake batch provider: a batch API with every way to go wrong, in memory or on disk."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmframe.engines.base import Batch, BatchStatus, Limits, Line
from llmframe.engines.fake.answers import Answers
from llmframe.engines.fake.faults import Faults, FaultsLike, spoil
from llmframe.errors import EngineError
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage

if TYPE_CHECKING:
    from llmframe.journal import Journal

__all__ = ["FakeBatchEngine"]

BATCH_FAULTS: Final[dict[str, str]] = {
    "unavailable": "submit fails before anything is created",
    "too_many": "submit is refused with 429",
    "lost_answer": "the batch is created, but the answer to submit is lost",
    "queue_full": "accepted, then rejected since the provider's queue is full",
    "rejected": "accepted, then rejected as a whole",
    "expired": "the window ends: some rows answered, some expired, some without a line",
    "stuck": "never ends",
    "gone": "the batch is no longer at the provider",
    "unauthorized": "a poll is refused with 401",
    "poll_error": "the first poll fails with 503",
    "cut": "the connection is cut in the middle of the first read of the results",
    "foreign": "some lines with ids that nobody sent",
}


class FakeBatchEngine:
    """A batch engine for tests: a provider that keeps batches, and answers as `FakeEngine` does.

    Results always come in an order of their own, as providers' results do.

    Args:
        answer: As in `FakeEngine`; called when the batch is submitted.
        model: Name of the model.
        faults: Faults of rows, as in `FakeEngine`: ``"drop"`` leaves a row without a line,
            ``"duplicate"`` and ``"conflict"`` give it two, ``"hang"`` lets it expire,
            ``"crash"`` ends `submit` before the batch is created.
        batch_faults: What happens to the first, second … batch submitted, None for nothing:
            ``"unavailable"``, ``"too_many"``, ``"lost_answer"``, ``"queue_full"``,
            ``"rejected"``, ``"expired"``, ``"stuck"``, ``"gone"``, ``"unauthorized"``,
            ``"poll_error"``, ``"cut"``, ``"foreign"``.
        polls: Polls that find a batch still running.
        max_requests: Requests a batch may hold; more are refused with 413.
        max_bytes: Encoded bytes a batch may hold; more are refused with 413.
        probe: Whether there is a live twin.
        can_list: False: `find` raises, as with a service that cannot list its batches.
        directory: Folder in which the provider keeps its batches, so that another process finds
            them; None keeps them in memory.
        account: The account that the batches belong to.
        seed: As in `FakeEngine`.

    Attributes:
        submits: Tag and count of each `submit` of this object, refused ones too.
        requests: The requests of each batch created by this object, in order.

    Examples:
        >>> import llmframe as lf
        >>> engine = lf.testing.FakeBatchEngine(polls=0)
        >>> [request] = lf.testing.requests(["hello"])
        >>> line = lf.engines.base.Line("0-a-1", (request,))
        >>> batch = engine.submit([line], "tag", lambda name, value: None)
        >>> engine.poll(batch).state
        'done'
        >>> [(custom_id, result.text) for custom_id, _, result in engine.fetch(batch)]
        [('0-a-1', 'hello')]
    """

    name = "fake"

    def __init__(
        self,
        answer: Any = None,
        *,
        model: str = "fake-1",
        faults: FaultsLike = None,
        batch_faults: Sequence[str | None] = (),
        polls: int = 1,
        max_requests: int = 50_000,
        max_bytes: int = 200_000_000,
        probe: bool = True,
        can_list: bool = True,
        directory: str | os.PathLike[str] | None = None,
        account: str = "fake-account",
        seed: int = 0,
    ) -> None:
        for fault in batch_faults:
            if fault is not None and fault not in BATCH_FAULTS:
                raise ValueError(f"no batch fault {fault!r}; there are {', '.join(BATCH_FAULTS)}.")
        self.model = model
        self.account = account
        self.limits = Limits(max_requests=max_requests, max_bytes=max_bytes)
        self.submits: list[tuple[str, int]] = []
        self.requests: list[Request] = []
        self._answers = Answers(answer, model, seed=seed)
        self._faults = Faults(faults, seed)
        self._batch_faults = list(batch_faults)
        self._polls = polls
        self.poll_interval = 0.05  # nobody's quota is spent by looking
        self._has_probe = probe
        self._can_list = can_list
        self._seed = seed
        self._shelf = _Shelf(None if directory is None else Path(directory))
        self._store: Journal | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    @property
    def store(self) -> Journal | None:
        """The journal of its replies, in memory; None with a `directory`: the one on disk."""
        if self._store is None and self._shelf.directory is None:
            from llmframe.journal import Journal

            self._store = Journal.memory()
        return self._store

    @property
    def created(self) -> list[Batch]:
        """Every batch at the provider, from whatever process, the oldest first."""
        return [_batch(record) for record in self._shelf.all()]

    def identity(self) -> Mapping[str, str]:
        """Provider, model and seed, as the live twin's."""
        return {"provider": self.name, "model": self.model, "seed": str(self._seed)}

    def probe(self, request: Request) -> Result | None:
        """The live twin's result, without faults."""
        if not self._has_probe:
            return None
        self.requests.append(request)
        return self._answers.result(request, f"fake-probe-{len(self.requests)}")

    def size(self, request: Request) -> int:
        """Bytes of the messages as JSON, and 100 for the rest of the line."""
        return len(json.dumps(request.messages).encode()) + 100

    def submit(self, lines: Iterable[Line], tag: str, note: Callable[[str, str], None]) -> Batch:
        """Create a batch.

        Raises:
            EngineError: 413 for too many requests or bytes, and by `batch_faults`.
        """
        lines = list(lines)
        requests = [request for line in lines for request in line.requests]
        order = len(self.submits)
        self.submits.append((tag, len(requests)))
        fault = self._batch_faults[order] if order < len(self._batch_faults) else None
        size = sum(map(self.size, requests))
        if len(requests) > self.limits.max_requests or size > self.limits.max_bytes:  # type: ignore[operator]
            raise self._error(f"{len(requests)} requests of {size} bytes are too many", 413)
        note("input_file", f"file-{tag}")
        if fault == "unavailable":
            raise self._error("service unavailable", 503, retryable=True)
        if fault == "too_many":
            raise self._error("too many batches", 429, retryable=True)
        ids = [line.custom_id for line in lines]
        if len(set(ids)) < len(ids):
            fault = "rejected"
        results = [
            (line.custom_id, part, result)
            for line in lines
            for part, request in enumerate(line.requests)
            for result in self._answer(request)
        ]
        record = self._shelf.create(
            {
                "tag": tag,
                "account": self.account,
                "count": len(requests),
                "created_at": time.time(),
                "polls": 0,
                "ended": fault if fault == "expired" else "completed",
                "fault": fault,
                "notes": {"input_file": f"file-{tag}"},
                "results": [(i, part, _encoded(result)) for i, part, result in results],
            }
        )
        self.requests += requests
        if fault == "lost_answer":
            raise self._error("the connection was reset", None, retryable=True)
        return _batch(record)

    def _answer(self, request: Request) -> list[Result]:
        fault = self._faults.next(request)
        if fault is not None and fault.kind == "crash":
            raise self._error("the fake engine crashed, as its faults= says", None)
        good = self._answers.result(request, "")
        if fault is not None and fault.kind == "hang":
            return [Result(request.key, failure=_EXPIRED)]
        return [good] if fault is None else spoil(fault, good)

    def _error(self, message: str, status: int | None, retryable: bool = False) -> EngineError:
        return EngineError(message + ".", provider=self.name, status=status, retryable=retryable)

    def find(self, tag: str, notes: Mapping[str, str], count: int) -> list[Batch]:
        """Batches with the tag.

        Raises:
            EngineError: With ``can_list=False``.
        """
        if not self._can_list:
            raise self._error("this service cannot list its batches", 404)
        return [_batch(record) for record in self._shelf.all() if record["tag"] == tag]

    def poll(self, batch: Batch) -> BatchStatus:
        """Where the batch stands; counts the look.

        Raises:
            EngineError: By `batch_faults`.
        """
        record = self._shelf.get(batch.id)
        fault = record["fault"] if record else "gone"
        if record is None or fault == "gone":
            return BatchStatus("gone", message="no such batch")
        if fault == "unauthorized":
            raise self._error("the key was refused", 401)
        record["polls"] += 1
        self._shelf.put(record)
        if fault == "poll_error" and record["polls"] == 1:
            raise self._error("service unavailable", 503, retryable=True)
        count = record["count"]
        if record["ended"] == "completed" and (fault == "stuck" or record["polls"] <= self._polls):
            return BatchStatus("running", total=count)
        if fault == "queue_full":
            message = "token_limit_exceeded: enqueued token limit reached"
            return BatchStatus("rejected", total=count, message=message, queue_full=True)
        if fault == "rejected":
            return BatchStatus("rejected", total=count, message="invalid_json_line: line 1")
        failed = sum(1 for _, _, result in _lines(record, self._seed) if result.failure)
        missing = "no_result" if record["ended"] == "completed" else record["ended"]
        return BatchStatus("done", count - failed, failed, count, record["ended"], missing=missing)

    def fetch(self, batch: Batch) -> Iterator[tuple[str, int, Result]]:
        """Results in an order of their own.

        Raises:
            EngineError: The batch is gone, or the read is cut short, by `batch_faults`.
        """
        record = self._shelf.get(batch.id)
        if record is None:
            raise self._error(f"no such batch {batch.id!r}", 404)
        cut = record["fault"] == "cut" and not record.get("read")
        for place, line in enumerate(_lines(record, self._seed)):
            if cut and place == record["count"] // 2:
                self._shelf.put({**record, "read": True})
                raise self._error("the connection was cut", None, retryable=True)
            yield line

    def cancel(self, batch: Batch) -> None:
        """Stop a batch that runs: half of its rows were answered by then."""
        record = self._shelf.get(batch.id)
        if record is not None and record["polls"] <= self._polls:
            self._shelf.put({**record, "ended": "canceled"})

    def delete(self, batch: Batch) -> None:
        """Remove the batch from the provider."""
        self._shelf.remove(batch.id)


_EXPIRED: Final = Failure("expired", "the batch's window ended before this row", retryable=True)
_CANCELED: Final = Failure("canceled", "the batch was cancelled before this row")


def _lines(record: Mapping[str, Any], seed: int) -> Iterator[tuple[str, int, Result]]:
    """The lines of the results file: shuffled, and what the batch's end made of them."""
    lines = list(record["results"])
    random.Random(f"{record['tag']}{seed}").shuffle(lines)
    for place, (custom_id, part, encoded) in enumerate(lines):
        result = _decoded(encoded, f"{record['id']}-{place}")
        if record["ended"] != "completed" and place >= len(lines) // 2:
            if record["ended"] == "expired" and place % 2:
                continue  # some of what did not run has no line at all
            failure = _EXPIRED if record["ended"] == "expired" else _CANCELED
            result = Result(result.key, request_id=result.request_id, failure=failure)
        yield custom_id, part, result
        if record["fault"] == "foreign" and place % 2:
            yield f"foreign-{place}", 0, result


def _batch(record: Mapping[str, Any]) -> Batch:
    return Batch(record["id"], record["tag"], record["count"], record["created_at"])


def _encoded(result: Result) -> dict[str, Any]:
    usage, failure = result.usage, result.failure
    return {
        "key": result.key.hex(),
        "text": result.text,
        "finish": result.finish,
        "model": result.model,
        "usage": None if usage is None else [usage.input_tokens, usage.output_tokens],
        "failure": None
        if failure is None
        else {name: getattr(failure, name) for name in Failure.__slots__},
    }


def _decoded(data: Mapping[str, Any], request_id: str) -> Result:
    return Result(
        bytes.fromhex(data["key"]),
        text=data["text"],
        finish=data["finish"],
        usage=None if data["usage"] is None else Usage(*data["usage"]),
        model=data["model"],
        request_id=request_id,
        failure=None if data["failure"] is None else Failure(**data["failure"]),
    )


class _Shelf:
    """The provider's records by id: in memory, or one JSON file each."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._records: dict[str, dict[str, Any]] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def create(self, record: dict[str, Any]) -> dict[str, Any]:
        # The tag keeps two processes apart that create at the same moment.
        record = {"id": f"batch-{len(self.all()) + 1:04d}-{record['tag'][-12:]}", **record}
        self.put(record)
        return record

    def put(self, record: dict[str, Any]) -> None:
        if self.directory is None:
            self._records[record["id"]] = record
            return
        path = self.directory / f"{record['id']}.json"
        # Of this writer alone: another process may be writing the same record.
        half = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        half.write_text(json.dumps(record), encoding="utf-8")
        half.replace(path)  # whole or not at all: the process may be killed here

    def get(self, id: str) -> dict[str, Any] | None:
        if self.directory is None:
            return self._records.get(id)
        path = self.directory / f"{id}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def all(self) -> list[dict[str, Any]]:
        if self.directory is None:
            return list(self._records.values())
        paths = sorted(self.directory.glob("*.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def remove(self, id: str) -> None:
        if self.directory is None:
            self._records.pop(id, None)
        else:
            (self.directory / f"{id}.json").unlink(missing_ok=True)

"""A job's rows and its engine from the journal alone, in a process that has not its frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from llmframe.calls import Call
from llmframe.engines import ENGINES, engine_for, engine_made
from llmframe.engines.base import BatchEngine, Engine
from llmframe.errors import LLMFrameError, StoreError, sentence
from llmframe.journal import JobRecord, Journal
from llmframe.options import get_options
from llmframe.requests import Message, Request
from llmframe.results import Failure
from llmframe.work import FAILED, Work, unique

__all__ = ["StoredWork", "engine_again", "identity_of", "stored_work"]


_IN_PROCESS: Final = ("local", "vllm")


class _NoFrame:
    """The prompt and the rows of a job whose frame is elsewhere."""

    shared: tuple[Message, ...] = ()
    prefix = 0

    def __getitem__(self, position: int) -> tuple[Any, ...]:
        raise LookupError("the frame is in the process that made the job")


@dataclass(slots=True)
class StoredWork(Work):
    """A `Work` whose prompts are those that the journal holds.

    A prompt is stored when its request is claimed, so rows that were never sent have none.
    """

    journal: Journal = field(kw_only=True)

    @property
    def shared(self) -> tuple[Message, ...]:
        """None: each prompt is stored whole again where it is asked again."""
        return ()

    def can_ask(self, place: int) -> bool:
        """Whether the prompt of request `place` is in the journal."""
        return place >= len(self.keys) or self._prompt(place) is not None

    def request(self, place: int) -> Request:
        """Request `place`; without messages where `can_ask` says no."""
        if place >= len(self.keys):
            # By its unbound name: `super()` does not find its way in a slotted dataclass.
            return Work.request(self, place)
        key, call = self.keys[place], self.call
        return Request(
            key,
            self.row_of(place),
            self._prompt(place) or (),
            call.form.schema,
            call.choices,
            self.sampling(place),
        )

    def _prompt(self, place: int) -> tuple[Message, ...] | None:
        """The prompt of request `place`, or that of another vote on its row, which is the same."""
        same = [place]
        if self.call.panel is not None and not self.call.panel.swaps:
            same += self.places[self.row_of(place)].tolist()
        found = (self._messages(self.keys[own]) for own in same)
        return next((messages for messages in found if messages is not None), None)

    def _messages(self, key: bytes) -> tuple[Message, ...] | None:
        stored = self.journal.prompt(key)
        if stored is None or not stored[0]:
            return None
        shared, tail = json.loads(stored[0])["messages"], json.loads(stored[1])
        maker = self.call.maker()
        # The key tells what is the row's own prompt. An example that is the row itself was left
        # out for it; and a repair added two messages, the bad reply and what is wrong with it.
        for own in (tail, tail[:-2]):
            for count in range(len(shared), -1, -1):
                messages = (*shared[:count], *own)
                samples = range(self.call.asks if messages else 0)
                if any(maker.key(messages, sample) == key for sample in samples):
                    return messages
        return None if self.call.dedupe else (*shared, *tail)


def stored_work(journal: Journal, record: JobRecord, call: Call) -> StoredWork:
    """The rows of a job as the journal holds them.

    Raises:
        StoreError: They were not stored.
    """
    keys, positions = bytearray(), []
    status = np.zeros(record.count * call.asks, dtype=np.uint8)
    nothing = bytes(16)
    seen = 0
    for start, chunk, states, _ in journal.rows(record.id):
        status[start : start + len(states)] = np.frombuffer(states, dtype=np.uint8)
        seen += len(states)
        for place in range(len(states)):
            key = chunk[16 * place : 16 * place + 16]
            if key != nothing:
                keys += key
                positions.append(start + place)
    asks = call.asks
    if seen != record.count * asks:
        raise StoreError(
            f"job {record.id} has {record.count:,} rows, {seen // asks:,} of them in the store. "
            f"The process that made it died before it had sent anything; make the call again."
        )
    distinct, first, inverse = unique(keys, positions, len(status))
    status = status[::asks]
    cannot = Failure("prompt_error", "the row's prompt could not be rendered")
    return StoredWork(
        call=call,
        prompt=_NoFrame(),  # type: ignore[arg-type]
        rows=_NoFrame(),
        count=record.count,
        status=status,
        inverse=inverse,
        keys=distinct,
        first=first,
        failures=dict.fromkeys(np.flatnonzero(status == FAILED).tolist(), cannot),
        partly=0,
        aux=[call.maker().key(messages) for messages in call.content_free],
        journal=journal,
    )


def identity_of(engine: Engine | BatchEngine) -> dict[str, str]:
    """All that an engine adds to a key."""
    return {"provider": engine.name, "model": engine.model, **engine.identity()}


def engine_again(
    record: JobRecord, call: Call, model: Any = None, how: str = "resume"
) -> Engine | BatchEngine:
    """The engine that a job was made with, in another process.

    Args:
        record: The job.
        call: Its call.
        model: The engine itself or its name; None: as it was stored, or the default model where
            that is the engine.
        how: Method of `Job` that takes the engine.

    Raises:
        StoreError: It cannot be made again here, or it is another engine: another server,
            endpoint or model.
    """
    made = json.loads(record.engine)
    default = get_options().model
    own = model is None and default is not None and not isinstance(default, str)
    if own and identity_of(default) == dict(call.identity):
        return default  # type: ignore[no-any-return]
    batch = bool(made.get("batch"))
    try:
        if model is None and made.get("made") is not None:
            engine = engine_made(made["name"], made["model"], made["made"], batch=batch)
        elif model is None and (given := _not_stored(made)) is not None:
            raise StoreError(given)
        else:
            name = f"{made['name']}/{made['model']}" if model is None else model
            engine = engine_for(name, batch=batch or None)
    except LLMFrameError as error:
        raise StoreError(
            f"the engine of job {record.id} cannot be made here: {sentence(error)} "
            f"Pass it: lf.job({record.id!r}).{how}(model={_written(made, call)})."
        ) from error
    here, there = identity_of(engine), dict(call.identity)
    if here != there:
        names = [key for key in {**there, **here} if here.get(key) != there.get(key)]
        parts = [f"{key}={there.get(key)!r} (here {here.get(key)!r})" for key in names]
        raise StoreError(
            f"job {record.id} was sent with {', '.join(parts)}. Pass the engine that sent it: "
            f"lf.job({record.id!r}).{how}(model={_written(made, call)}). Nothing was sent."
        )
    return engine


def _not_stored(made: Mapping[str, Any]) -> str | None:
    """Why an engine cannot be made again from what is stored of it."""
    if made["name"] not in ENGINES:
        return "it is an object of the process that made the job."
    if "made" in made:
        return "its key, its headers or its client were given, and are stored nowhere."
    return None


def _written(made: Mapping[str, Any], call: Call) -> str:
    """An engine as a user writes it, as far as that is known."""
    if made["name"] not in ENGINES:
        return "…"
    if made["name"] in _IN_PROCESS:
        return f"lf.{ENGINES[made['name']][1]}({made['model']!r}, …)"
    arguments = [repr(made["model"])]
    for name, usual in (
        ("base_url", None),
        ("endpoint", "/v1/chat/completions"),
        ("revision", ""),
    ):
        value = call.identity.get(name)
        if value and value != usual and not (name == "endpoint" and made["name"] == "anthropic"):
            arguments.append(f"{name}={value!r}")
    batch = ", batch=True" if made.get("batch") else ""
    return f"lf.{ENGINES[made['name']][1]}({', '.join(arguments)}, api_key=…{batch})"

"""A call, compiled: what is asked of every row, and how its replies are read.

A `Call` knows no frame. Bound to one (`Call.compile`) it gives a `Work`: which rows are asked,
under which key, and which share one. Requests are made when they are taken, since a million of
them at once would fill the memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from llmframe.columns import name_text
from llmframe.errors import PromptError
from llmframe.labels import CONTENT_FREE, Labels, labels_from, probabilities
from llmframe.prompts import Prompt, RowError, build, is_missing, prompt_from
from llmframe.requests import KeyMaker, Message, Request, Sampling
from llmframe.results import Failure, Result
from llmframe.schemas.forms import Form, form_from
from llmframe.schemas.reading import Reading, read

__all__ = ["STATUS", "Call", "Rows", "Source", "Work", "call_from"]

STATUS: Final = ("pending", "ok", "cached", "skipped", "failed", "in_doubt")
"""Row states; arrays hold their places in this tuple."""
PENDING, OK, CACHED, SKIPPED, FAILED, IN_DOUBT = range(6)

Calibration = Literal["contextual", "batch", "none"]


class Rows(Protocol):
    """The cells of the columns that a prompt reads, a tuple of plain scalars a row."""

    def __getitem__(self, position: int) -> tuple[Any, ...]: ...


class Source(Protocol):
    """Where rows come from: a frame, as `llmframe.frames.Table` shows it."""

    count: int

    @property
    def names(self) -> Sequence[Hashable]:
        """Column labels in order."""

    @property
    def index_names(self) -> Sequence[Hashable]:
        """Names of the index levels."""

    def rows(self, columns: Sequence[int]) -> Rows:
        """The cells of some columns."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything about a call but the frame.

    Attributes:
        verb: ``"map"``, ``"classify"``, ``"extract"`` or ``"filter"``.
        bind: Column and index names of a frame → the prompt on that frame.
        form: Output columns and the check on every reply.
        identity: What the engine adds to the keys, as it was when the job was made.
        sampling: As the user asked (this is what the keys hold).
        ceiling: Token limit that is sent where the user named none; None: the model's own.
        labels: Of `classify`; None elsewhere.
        scored: Ask for the probability of each label, where the engine can give it.
        calibration: How scores become probabilities when they are read.
        confidence: Give each label's probability too.
        content_free: The conversations whose scores calibrate the others.
        missing: What a missing cell does: ``"skip"``, ``"blank"`` or ``"raise"``.
        dedupe: Identical rows share one request.
        salt: Job id for ``cache=False``; else empty.
        repairs: How often a reply that fails the check is asked again with the error told.
        retry: ``"transient"``, or ``"all"`` to ask again what the provider refused.
        errors: ``"warn"``, ``"raise"`` or ``"coerce"``.
        columns: Output column of each field of `form`.
        code: Name and fingerprint of the Python code (callable, class) the call needs.
    """

    verb: str
    bind: Callable[[Sequence[Hashable], Sequence[Hashable]], Prompt]
    form: Form
    identity: Mapping[str, str]
    sampling: Sampling = field(default_factory=Sampling)
    ceiling: int | None = None
    labels: Labels | None = None
    scored: bool = False
    calibration: Calibration = "none"
    confidence: bool = False
    content_free: tuple[tuple[Message, ...], ...] = ()
    missing: str = "skip"
    dedupe: bool = True
    salt: str = ""
    repairs: int = 1
    retry: str = "transient"
    errors: str = "warn"
    columns: tuple[Hashable, ...] = ()
    code: str | None = None

    @property
    def sent(self) -> Sampling:
        """Sampling as it is sent: with the computed token limit where the user named none."""
        if self.sampling.max_tokens is None and self.ceiling is not None:
            return replace(self.sampling, max_tokens=self.ceiling)
        return self.sampling

    def maker(self, shared: Sequence[Message] = ()) -> KeyMaker:
        """The maker of this call's keys, over rows that begin with `shared`."""
        return KeyMaker(
            self.identity,
            schema=self.form.normal,
            choices=self.labels.texts if self.scored and self.labels else None,
            sampling=self.sampling,
            shared=shared,
            salt=self.salt,
        )

    def compile(self, source: Source, asked: npt.NDArray[np.bool_] | None = None) -> Work:
        """Bind the call to a frame: render every row once and give it its key.

        Args:
            source: The frame's rows.
            asked: Which rows to ask, one bool a row; None for all.

        Raises:
            PromptError: An unknown column, or a missing cell under ``missing="raise"``.
        """
        prompt = self.bind(source.names, source.index_names)
        rows = source.rows(prompt.columns)
        maker, bare = self.maker(prompt.shared), None
        shared = len(prompt.shared)
        status = np.full(source.count, PENDING, dtype=np.uint8)
        failures: dict[int, Failure] = {}
        keys = bytearray()
        positions: list[int] = []
        seen: dict[bytes, int] = {}
        partly = 0
        for position in range(source.count):
            if asked is not None and not asked[position]:
                status[position] = SKIPPED
                continue
            values = rows[position]
            if self.missing != "blank" and (gap := prompt.missing(values)) != "none":
                if self.missing == "raise":
                    raise PromptError(_gap(source, prompt, values, position))
                if gap == "all" or self.missing == "skip":
                    status[position] = SKIPPED
                    partly += gap == "some"
                    continue
            try:
                messages = prompt.render(values)
                if shared and prompt.shared_by(messages) < shared:
                    # An example that is the row itself was left out for it.
                    bare = bare or self.maker()
                    key = bare.key(messages)
                else:
                    key = maker.key(messages)
                if not self.dedupe:
                    sample = seen.get(key, 0)
                    seen[key] = sample + 1
                    if sample:
                        key = (bare or maker).key(messages, sample)
            except RowError as error:
                status[position] = FAILED
                failures[position] = Failure(error.kind, error.message)
                continue
            except UnicodeEncodeError as error:
                status[position] = FAILED
                failures[position] = Failure("prompt_error", _surrogate(error))
                continue
            keys += key
            positions.append(position)
        unique, first, inverse = _unique(keys, positions, source.count)
        aux = [self.maker().key(messages) for messages in self.content_free]
        return Work(
            self, prompt, rows, source.count, status, inverse, unique, first, failures, partly, aux
        )

    def read(self, result: Result) -> Reading:
        """Check one reply; a scored one has no values until all are read (`decide`)."""
        if result.failure is not None:
            return Reading(None, result.failure)
        if self.scored and result.choice_logprobs is not None:
            if all(math.isfinite(score) for score in result.choice_logprobs):
                return Reading(())
            return Reading(None, Failure("invalid_output", "a label has no finite score"))
        reading = read(self.form, result)
        if self.labels is None or self.form.fields[0].name != "label":
            return reading
        if reading.failure is None:
            return reading
        if reading.failure.kind in {"invalid_output", "refused"}:
            place = self.labels.match(_label_text(result.text or ""))
            if place is not None and len(self.form.fields) == 1:
                return Reading((self.labels.values[place],), repaired=True)
        return reading

    def decide(
        self, scores: Sequence[Sequence[float]], content_free: Sequence[Sequence[float]]
    ) -> tuple[list[Any], list[float]]:
        """Labels and their probabilities from the scores of all rows, by the call's calibration."""
        if self.labels is None or not scores:
            return [], []
        method = self.calibration
        if method == "contextual" and not content_free:
            method = "none"
        shares = probabilities(scores, content_free or None, method)
        best = shares.argmax(axis=1)
        return (
            [self.labels.values[place] for place in best],
            shares[np.arange(len(best)), best].tolist(),
        )

    def stored(self, prompt: Prompt, keep_prompts: bool = True) -> str:
        """JSON from which `call_from` rebuilds the call, as far as JSON can say it.

        Args:
            prompt: The call's prompt, bound to any frame.
            keep_prompts: False leaves it out, and every text that belongs to it.
        """
        kept = keep_prompts and prompt.code is None
        return json.dumps(
            {
                "verb": self.verb,
                "prompt": prompt.stored() if kept else None,
                "form": self.form.stored(),
                "identity": dict(self.identity),
                "sampling": {
                    "temperature": self.sampling.temperature,
                    "max_tokens": self.sampling.max_tokens,
                    "seed": self.sampling.seed,
                    "extra": self.sampling.extra,
                },
                "ceiling": self.ceiling,
                "labels": self.labels.stored() if self.labels else None,
                "scored": self.scored,
                "calibration": self.calibration,
                "confidence": self.confidence,
                "content_free": self.content_free if keep_prompts else (),
                "missing": self.missing,
                "dedupe": self.dedupe,
                "salt": self.salt,
                "repairs": self.repairs,
                "retry": self.retry,
                "errors": self.errors,
                "columns": [_plain_name(name) for name in self.columns],
                "code": self.code,
            }
        )


def call_from(
    text: str, bind: Callable[..., Prompt] | None = None, form: Form | None = None
) -> Call:
    """Rebuild a stored call; `bind` and `form` stand in for code that JSON cannot hold."""
    data = json.loads(text)
    stored = data.pop("prompt")
    sampling = Sampling(**data.pop("sampling"))
    labels = data.pop("labels")
    content_free = tuple(tuple(messages) for messages in data.pop("content_free"))
    columns = tuple(tuple(n) if isinstance(n, list) else n for n in data.pop("columns"))
    rebuilt = form or form_from(data.pop("form"))
    data.pop("form", None)
    return Call(
        bind=bind or _Stored(stored),
        form=rebuilt,
        sampling=sampling,
        labels=labels_from(labels) if labels else None,
        content_free=content_free,
        columns=columns,
        **data,
    )


class _Stored:
    """A prompt kept as JSON, looked up by name on whatever frame comes."""

    def __init__(self, data: Mapping[str, Any] | None) -> None:
        self._data = data

    def __call__(self, names: Sequence[Hashable], index_names: Sequence[Hashable] = ()) -> Prompt:
        if self._data is None:
            raise PromptError(
                "this job's prompt is Python code that only the process that made it has. "
                "Pass it: join(df, prompt=…)."
            )
        return prompt_from(self._data, names, index_names)


def _plain_name(name: Hashable) -> Any:
    if isinstance(name, tuple):
        return [_plain_name(part) for part in name]
    return name if isinstance(name, str | int) else str(name)


@dataclass(slots=True)
class Work:
    """A call on a frame: which rows are asked, and under which key.

    Attributes:
        call: What is asked.
        prompt: Bound to the frame's columns.
        rows: The cells.
        count: Rows of the frame.
        status: Place in `STATUS` for each row, as far as it is known before asking.
        inverse: For each row the place of its key in `keys`; -1 where it is not asked.
        keys: The distinct keys, in order of their first row.
        first: Position of the first row of each key.
        failures: Rows that cannot be rendered.
        partly: Rows skipped although another used cell has a value.
        aux: Keys of the content-free inputs; request ``len(keys) + i`` is the i-th of them.
    """

    call: Call
    prompt: Prompt
    rows: Rows
    count: int
    status: npt.NDArray[np.uint8]
    inverse: npt.NDArray[np.int64]
    keys: list[bytes]
    first: npt.NDArray[np.int64]
    failures: dict[int, Failure]
    partly: int
    aux: list[bytes]

    def __len__(self) -> int:
        return len(self.keys) + len(self.aux)

    def key(self, place: int) -> bytes:
        """Key of request `place`."""
        here = place - len(self.keys)
        return self.keys[place] if here < 0 else self.aux[here]

    def request(self, place: int) -> Request:
        """Make request `place`."""
        call, here = self.call, place - len(self.keys)
        shared = prefix = 0
        if here >= 0:
            position, messages = -1 - here, call.content_free[here]
        else:
            position = int(self.first[place])
            messages = self.prompt.render(self.rows[position])
            shared, prefix = self.prompt.shared_by(messages), self.prompt.prefix
        return Request(
            self.key(place),
            position,
            messages,
            call.form.schema,
            call.labels.texts if call.scored and call.labels else None,
            call.sent,
            shared,
            prefix,
        )


def content_free(before: str, after: str, system: str | None) -> tuple[tuple[Message, ...], ...]:
    """The conversations that stand for "no content", under the prompt of `classify`."""
    prompt = build(before + "{text}" + after, ["text"], system=system, blank=True)
    return tuple(prompt.render((text,)) for text in CONTENT_FREE)


def _unique(
    keys: bytearray, positions: list[int], count: int
) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct keys in order of first use, their first positions, and each row's place.

    Sorted arrays: about 50 bytes a row at a million, where a dict takes 132.
    """
    inverse = np.full(count, -1, dtype=np.int64)
    where = np.asarray(positions, dtype=np.int64)
    if not len(where):
        return [], where, inverse
    halves = np.frombuffer(bytes(keys), dtype=">u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: the first row of a key leads it
    ranked = halves[order]
    starts = np.concatenate(([True], (ranked[1:] != ranked[:-1]).any(axis=1)))
    leaders = order[starts]
    by_use = np.argsort(leaders, kind="stable")
    place = np.empty(len(leaders), dtype=np.int64)
    place[by_use] = np.arange(len(leaders))
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(starts) - 1
    inverse[where] = place[group]
    lead = leaders[by_use]
    view = memoryview(keys)
    return [bytes(view[16 * i : 16 * i + 16]) for i in lead], where[lead], inverse


def _gap(source: Source, prompt: Prompt, values: Sequence[Any], position: int) -> str:
    names = [
        name_text(source.names[column] if column >= 0 else source.index_names[-1 - column])
        for column, value in zip(prompt.columns, values, strict=True)
        if is_missing(value)
    ]
    return (
        f"the row at position {position} has no value in {', '.join(map(repr, names))}, which the "
        f'prompt uses (missing="raise"). Nothing was sent. Fill it, drop the row, or use '
        f'missing="skip".'
    )


def _surrogate(error: UnicodeEncodeError) -> str:
    return (
        f"the prompt holds a lone surrogate (U+{ord(error.object[error.start]):04X}), which is no "
        f"text that can be sent; clean the cell with .encode('utf-8', 'replace')"
    )


def _label_text(text: str) -> str:
    """What stands for the label in a reply: the value of a one-value object, else the text."""
    stripped = text.strip().removeprefix("```json").strip("`").strip()
    if stripped.startswith("{"):
        try:
            value = json.loads(stripped)
        except ValueError:
            return text
        if isinstance(value, dict) and len(value) == 1:
            (only,) = value.values()
            if isinstance(only, str | int | float | bool):
                return str(only)
    return text

"""A call, compiled: what is asked of every row, and how its replies are read.

A `Call` knows no frame; bound to one it is a `llmframe.work.Work`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from llmframe.brakes import output_limit
from llmframe.errors import PromptError
from llmframe.label_scores import CONTENT_FREE, Curves, Fitted, Scaling, fitted_from, probabilities
from llmframe.labels import Labels, labels_from
from llmframe.panels import Panel, panel_from
from llmframe.prompts import Prompt, build, prompt_from
from llmframe.rendering import plain
from llmframe.requests import KeyMaker, Message, Sampling
from llmframe.results import Failure, Result
from llmframe.schemas.forms import Form, form_from
from llmframe.schemas.reading import Reading, read
from llmframe.schemas.scanning import decode

__all__ = ["Call", "call_from", "content_free"]

Calibration = Literal["contextual", "batch", "none"]
_ANSWERS: Final = ("label", "score", "winner")
"""Fields in which a verb gives its answer; what else it writes goes with that."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything about a call but the frame.

    Attributes:
        verb: ``"map"``, ``"classify"``, ``"extract"``, ``"filter"``, ``"judge"`` or
            ``"compare"``.
        bind: Column and index names of a frame → the prompt on that frame.
        form: Output columns and the check on every reply.
        identity: What the engine adds to the keys, as it was when the job was made.
        sampling: As the user asked (this is what the keys hold).
        ceiling: Token limit that is sent where the user named none; None: the model's own.
        reply: The one that the engine then sends by itself; None: it sends none.
        reply_most: The largest that the model takes, where known.
        labels: What is scored, or matched in another spelling; None: nothing is.
        choices: What to score, a text a label, where the engine can; None: nothing.
        calibration: How scores become probabilities when they are read.
        fitted: What makes the probability of a label how often it is right; None: it is the
            model's own.
        confidence: Give each label's probability too.
        unsure_below: Probability below which a row is left without a label; None: no row is.
        content_free: The conversations whose scores calibrate the others.
        missing: What a missing cell does: ``"skip"``, ``"blank"`` or ``"raise"``.
        dedupe: Identical rows share one request.
        salt: Job id for ``cache=False``; else empty.
        repairs: How often a reply that fails the check is asked again with the error told.
        retry: ``"transient"``, or ``"all"`` to ask again what the provider refused.
        errors: ``"warn"``, ``"raise"`` or ``"coerce"``.
        columns: Output column of each field of `form`.
        code: Name and fingerprint of the Python code (callable, class) the call needs.
        look: How the joined frame looks: dtype_backend, details, prefix, keep_failed, fill.
        around: What stands around a prompt that is a function: `build`'s keywords.
        once: The answers come from a file: nobody asks again, so a failure is final.
        panel: How the requests of one row become its columns; None: a row is one request, and its
            columns are the fields of `form`.
    """

    verb: str
    bind: Callable[[Sequence[Hashable], Sequence[Hashable]], Prompt]
    form: Form
    identity: Mapping[str, str]
    sampling: Sampling = field(default_factory=Sampling)
    ceiling: int | None = None
    reply: int | None = None
    reply_most: int | None = None
    labels: Labels | None = None
    choices: tuple[str, ...] | None = None
    calibration: Calibration = "none"
    fitted: Fitted | None = None
    confidence: bool = False
    unsure_below: float | None = None
    content_free: tuple[tuple[Message, ...], ...] = ()
    missing: str = "skip"
    dedupe: bool = True
    salt: str = ""
    repairs: int = 1
    retry: str = "transient"
    errors: str = "warn"
    columns: tuple[Hashable, ...] = ()
    code: str | None = None
    look: Mapping[str, Any] = field(default_factory=dict)
    around: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False
    panel: Panel | None = None

    @property
    def asks(self) -> int:
        """Requests a row."""
        return 1 if self.panel is None else self.panel.size

    @property
    def filled(self) -> tuple[Hashable, ...]:
        """The columns whose missing cells ``if_exists="fill"`` asks for.

        Fields of the user's own schema are filled each for itself. What a verb writes beside its
        answer (the reason, the confidence, the votes) belongs to that answer: a row that keeps its
        label or score gets none of another's.
        """
        if self.labels is None and self.panel is None:
            return self.columns
        fields = self.form.fields if self.panel is None else self.panel.fields()
        named = zip((field.name for field in fields), self.columns, strict=False)
        return tuple(column for name, column in named if name in _ANSWERS) or self.columns

    @property
    def sent(self) -> Sampling:
        """Sampling as it is sent: with the computed token limit where the user named none."""
        if self.sampling.max_tokens is None and self.ceiling is not None:
            return replace(self.sampling, max_tokens=self.ceiling)
        return self.sampling

    @property
    def longer(self) -> int | None:
        """Token limit of the one more try of a reply that was cut off; None: there is none."""
        limit = self.sent.max_tokens
        if limit is None and output_limit(self.sent) is None:
            limit = self.reply
        if limit is None:
            return None
        longer = 4 * limit if self.reply_most is None else min(4 * limit, self.reply_most)
        return longer if longer > limit else None

    def maker(self, shared: Sequence[Message] = ()) -> KeyMaker:
        """The maker of this call's keys, over rows that begin with `shared`."""
        return KeyMaker(
            self.identity,
            schema=self.form.normal,
            choices=self.choices,
            sampling=self.sampling,
            shared=shared,
            salt=self.salt,
        )

    def read(self, result: Result) -> Reading:
        """Check one reply; a scored one has no values until all are read (`decide`)."""
        if result.failure is not None:
            return Reading(None, result.failure)
        scores = result.choice_logprobs
        if self.choices is not None and scores is not None:
            if len(scores) != len(self.choices):
                told = f"{len(scores)} scores for {len(self.choices)} labels"
                return Reading(None, Failure("invalid_output", told))
            if not all(map(math.isfinite, scores)):
                return Reading(None, Failure("invalid_output", "a label has no finite score"))
            return Reading(())
        reading = read(self.form, result)
        if self.labels is None:
            return reading
        if reading.failure is not None:
            said = reading.failure.kind in {"invalid_output", "refused"}
            return (self._label_in_words(result.text or "") if said else None) or reading
        if reading.values is None:
            return reading
        several = any(type(value) is list for value in reading.values)
        if several or self.labels.kind == "object" or self.labels.codes:
            place = [field.name for field in self.form.fields].index("label")
            values = list(reading.values)
            # A label that is said twice fits once.
            found = list(dict.fromkeys(values[place])) if several else values[place]
            values[place] = self.labels.own(found)
            return replace(reading, values=tuple(values))
        return reading

    def _label_in_words(self, text: str) -> Reading | None:
        """A reply that names a label in another spelling, as JSON or as plain text."""
        if self.labels is None or len(self.form.fields) != 1:
            return None
        text = text.strip().strip("`").removeprefix("json").strip()
        said: Any = text
        field = self.form.fields[0]
        several = field.schema.get("type") == "array"
        if text.startswith("{") or (several and text.startswith("[")):
            try:
                said = decode(text)
            except (ValueError, RecursionError):
                return None
        if isinstance(said, dict):
            only = {key.casefold(): item for key, item in said.items()}
            said = only[field.name] if set(only) == {field.name} else None
        texts = said if several and isinstance(said, list) else [said]
        # JSON's null says that there is no label; it is none of the name "None".
        if not all(isinstance(text, str | bool | int | float) for text in texts):
            return None
        places = [self.labels.match(str(text)) for text in texts]
        if None in places:
            return None
        found = [self.labels.values[place] for place in places if place is not None]
        return Reading((list(dict.fromkeys(found)) if several else found[0],), repaired=True)

    def decide(
        self, scores: Sequence[Sequence[float]], content_free: Sequence[Sequence[float]]
    ) -> tuple[list[Any], list[float]]:
        """Labels and their probabilities from the scores of all rows, by the call's calibration.

        Where a panel wants the expected score, that stands in the place of the probability. A row
        that is not sure enough has None in the place of its label.
        """
        if self.labels is None or not scores:
            return [], []
        method = self.calibration
        if method == "contextual" and not content_free:
            method = "none"
        shares = probabilities(scores, content_free or None, method)
        if isinstance(self.fitted, Scaling):
            shares = self.fitted(shares)
        best = shares.argmax(axis=1)
        labels: list[Any] = [self.labels.values[place] for place in best]
        if self.panel is not None and self.panel.expected:
            return labels, (shares @ np.array(self.labels.values, dtype=float)).tolist()
        sure = shares[np.arange(len(best)), best]
        if isinstance(self.fitted, Curves):
            sure = self.fitted(sure, labels)
        if self.unsure_below is not None:
            enough = (sure >= self.unsure_below).tolist()
            labels = [label if keep else None for label, keep in zip(labels, enough, strict=True)]
        return labels, sure.tolist()

    def stored(self, prompt: Prompt, keep_prompts: bool = True) -> str:
        """JSON from which `call_from` rebuilds the call, as far as JSON can say it.

        Args:
            prompt: The call's prompt, bound to any frame.
            keep_prompts: False leaves it out, and every text that belongs to it.
        """
        # Of a function there is only its name, which is no prompt.
        kept = keep_prompts or prompt.code is not None
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
                "reply": self.reply,
                "reply_most": self.reply_most,
                "labels": self.labels.stored() if self.labels else None,
                "choices": self.choices,
                "calibration": self.calibration,
                **({} if self.fitted is None else {"fitted": self.fitted.stored()}),
                "confidence": self.confidence,
                **({} if self.unsure_below is None else {"unsure_below": self.unsure_below}),
                "content_free": self.content_free if keep_prompts else (),
                "missing": self.missing,
                "dedupe": self.dedupe,
                "salt": self.salt,
                "repairs": self.repairs,
                "retry": self.retry,
                "errors": self.errors,
                "once": self.once,
                "columns": [_plain_name(name) for name in self.columns],
                "code": self.code,
                "look": dict(self.look),
                "around": plain(self.around) if keep_prompts and prompt.code else {},
                **({} if self.panel is None else {"panel": self.panel.stored()}),
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
    choices = data.pop("choices")
    panel = panel_from(data.pop("panel", None))
    fitted = fitted_from(data.pop("fitted", None))
    columns = tuple(tuple(n) if isinstance(n, list) else n for n in data.pop("columns"))
    rebuilt = form or form_from(data.pop("form"))
    data.pop("form", None)
    return Call(
        bind=bind or _Stored(stored, data["verb"]),
        form=rebuilt,
        sampling=sampling,
        labels=labels_from(labels) if labels else None,
        content_free=content_free,
        choices=None if choices is None else tuple(choices),
        columns=columns,
        panel=panel,
        fitted=fitted,
        **data,
    )


class _Stored:
    """A prompt kept as JSON, looked up by name on whatever frame comes."""

    def __init__(self, data: Mapping[str, Any] | None, verb: str) -> None:
        self._data = data
        self._verb = verb

    def __call__(self, names: Sequence[Hashable], index_names: Sequence[Hashable] = ()) -> Prompt:
        code = None if self._data is None else self._data.get("code")
        if self._data is not None and code is None:
            return prompt_from(self._data, names, index_names)
        why = (
            f"is Python code ({code.partition('#')[0]}) that the store does not hold"
            if code
            else "was not stored (keep_prompts=False)"
        )
        how = "Pass it, and its system text if it had one: join(df, prompt=…, system=…)."
        if self._verb != "map":  # what it puts around a prompt cannot be passed
            how = f"The same {self._verb}(…) on the frame gives the answers and pays none twice."
        raise PromptError(f"this job's prompt {why}. {how}")


def _plain_name(name: Hashable) -> Any:
    if isinstance(name, tuple):
        return [_plain_name(part) for part in name]
    return name if isinstance(name, str | int) else str(name)


def content_free(before: str, after: str, system: str | None) -> tuple[tuple[Message, ...], ...]:
    """The conversations that stand for "no content", under the prompt of `classify`."""
    prompt = build(before + "{text}" + after, ["text"], system=system, blank=True)
    return tuple(prompt.render((text,)) for text in CONTENT_FREE)

"""What a call would send and cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llmframe import markup
from llmframe.advice import path
from llmframe.brakes import estimate_tokens
from llmframe.costs import Price, price
from llmframe.engines.base import BatchEngine, Engine
from llmframe.results import Usage
from llmframe.runs import Run
from llmframe.schemas.forms import Field, Form
from llmframe.views import Sheet, money, number
from llmframe.work import Work

__all__ = ["Plan", "Plans", "ceiling", "estimate", "plan_of", "price_of"]

_SAMPLE: Final = 200
_REPLY: Final = {"str": 40, "category": 8, "object": 60}
_LIMIT: Final = {"str": 512, "category": 64, "object": 1024}
_TEXT: Final = 150
_SHOWN: Final = 24
"""Lines of a prompt that a plan shows."""
_WIDEST: Final = 1000
"""And characters of each."""


@dataclass(frozen=True, repr=False)
class Plan(Sheet):
    """A call that was not sent.

    Attributes:
        model: Engine and model.
        rows: Rows of the frame.
        requests: Distinct requests that would be sent; where more may follow, as with votes that
            are asked one after another, at the least.
        cached: Rows that are answered already.
        skipped: Rows with a missing cell.
        unrenderable: Rows whose prompt cannot be rendered.
        tokens: Expected input and output tokens of what would be sent; an estimate.
        max_tokens: Token limit of each reply; None: the model's own.
        cost: Expected US$ live; None where the model has no known price; 0.0 in this process.
        cost_batch: The same through the provider's batch API.
        batch: Whether the call goes out through the batch API.
        cost_limit: US$ if every reply used its token limit in full; None where unknown.
        advice: Sentences on how to do better; may be empty.
        prompts: The first rendered prompts, as text.
        keys: Key of each row in hex, of its first request where it has several; None where the
            row is not asked.
        pilot: Rows that the plan bought, and kept.
        sample: With a pilot: rows that have replies and that `interval` rests on; those of
            `pilot` and, before them, what was answered already.
        spent: US$ that the rows of `pilot` cost.
        interval: With a pilot: US$ that the rest costs, from and to, 19 times of 20.
        kept: Rows that had a value already, under ``if_exists="fill"``.
        marked: Tokens at the start of each prompt that the provider's prompt cache is told of;
            an estimate. 0: none, or a provider that caches unasked.
        requests_most: Distinct requests if every row needed all that may follow; else `requests`.
        cost_most: Expected US$ of these, by the path of this call; None where unknown.
    """

    model: str
    rows: int
    requests: int
    cached: int
    skipped: int
    unrenderable: int
    tokens: tuple[int, int]
    max_tokens: int | None
    cost: float | None
    cost_batch: float | None
    cost_limit: float | None
    advice: tuple[str, ...]
    prompts: tuple[str, ...]
    keys: tuple[str | None, ...]
    batch: bool = False
    pilot: int = 0
    sample: int = 0
    spent: float | None = None
    interval: tuple[float, float] | None = None
    kept: int = 0
    marked: int = 0
    requests_most: int = 0
    cost_most: float | None = None

    @property
    def expected(self) -> float | None:
        """Expected US$ of the call as it stands: live, or as a batch."""
        return self.cost_batch if self.batch else self.cost

    def _title(self) -> str:
        sent = f"{number(self.pilot)} rows of a pilot sent" if self.pilot else "nothing sent"
        return f"Plan for {self.model}: {self._sends} requests, {sent}"

    @property
    def _may_send_more(self) -> bool:
        return self.requests_most > self.requests

    @property
    def _sends(self) -> str:
        most = f" to {number(self.requests_most)}" if self._may_send_more else ""
        return f"{number(self.requests)}{most}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        yield "rows", number(self.rows)
        yield "to send", self._sends
        yield "cached", number(self.cached)
        yield "skipped", number(self.skipped)
        if self.kept:
            yield "kept", number(self.kept)
        if self.unrenderable:
            yield "cannot be rendered", number(self.unrenderable)
        yield "tokens", f"about {number(self.tokens[0])} in, {number(self.tokens[1])} out"
        yield "max_tokens", "the model's own" if self.max_tokens is None else str(self.max_tokens)
        name = "cost live" if self.batch else "cost"
        yield name, f"{money(self.cost)} expected, {money(self.cost_limit)} at most"
        if self.cost_batch is not None and (self.batch or self.cost_batch != self.cost):
            yield "cost as a batch", money(self.cost_batch)
        if self._may_send_more:
            yield "with all votes", f"{money(self.cost_most)} expected"
        if self.sample:
            bought = f"{number(self.pilot)} rows for {money(self.spent)}, kept"
            before = f"{number(self.sample)} rows have replies, nothing bought"
            yield "pilot", bought if self.pilot else before
        if self.interval is not None:
            low, high = self.interval
            yield "cost by the pilot", f"{money(low)} to {money(high)}"
        if self.marked:
            start = f"about {number(self.marked)} tokens at the start of each prompt"
            yield "prompt cache", f"{start} are marked"
        for sentence in self.advice:
            yield "advice", sentence

    def _texts(self) -> Iterable[tuple[str, str]]:
        before: list[str] = []
        for place, prompt in enumerate(self.prompts, 1):
            lines = prompt.splitlines()
            same = next((i for i, (a, b) in enumerate(zip(before, lines)) if a != b), 0)  # noqa: B905
            told = [f"… ({same} lines as in prompt 1)"] if same > 1 else []
            yield f"prompt {place}", "\n".join(told + _clipped(lines[same if told else 0 :]))
            before = before or lines

    def _parts(self) -> Iterable[markup.Html]:
        costs = {"cost", "cost live", "cost as a batch", "with all votes", "advice"}
        yield markup.facts((name, value) for name, value in self._lines() if name not in costs)
        yield markup.heading("Cost")
        here = " (this call)"
        rows = [("live" + here * (not self.batch), money(self.cost), money(self.cost_limit))]
        if self.cost_batch is not None and (self.batch or self.cost_batch != self.cost):
            rows.append(("as a batch" + here * self.batch, money(self.cost_batch), ""))
        if self._may_send_more:
            rows.append(("with all votes" + here, money(self.cost_most), ""))
        yield markup.table(["", "expected", "at most"], rows, numeric=(1, 2))
        for sentence in self.advice:
            yield markup.note(sentence)
        for place, (name, text) in enumerate(self._texts()):
            yield markup.details(name, markup.text(text), opened=place == 0)


@dataclass(frozen=True, repr=False)
class Plans(Sheet):
    """Several calls that belong together, none of them sent.

    Attributes:
        what: What they are for.
        plans: Each by its name, in the order in which they would go out.
    """

    what: str
    plans: Mapping[str, Plan]

    @property
    def requests(self) -> int:
        """Distinct requests that all of them would send."""
        return sum(plan.requests for plan in self.plans.values())

    @property
    def cost(self) -> float | None:
        """Expected US$ of all; None where a price is not known."""
        costs = [plan.expected for plan in self.plans.values()]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def _title(self) -> str:
        return f"Plan for {self.what}: {number(self.requests)} requests, nothing sent"

    def _lines(self) -> Iterable[tuple[str, str]]:
        for name, plan in self.plans.items():
            told = f"{number(plan.requests)} requests to {plan.model}, {money(plan.expected)}"
            yield name, f"{told}, {number(plan.cached)} of {number(plan.rows)} rows cached"
        yield "cost", f"{money(self.cost)} expected"

    def _parts(self) -> Iterable[markup.Html]:
        yield markup.facts(self._lines())
        for name, plan in self.plans.items():
            yield markup.details(name, *plan._parts())


def _clipped(lines: list[str]) -> list[str]:
    """A prompt that fits a screen: its start and its end, where the row's own text is."""
    if len(lines) > _SHOWN:
        head = _SHOWN // 2
        left = len(lines) - 2 * head
        lines = [*lines[:head], f"… ({left} more lines; .prompts has them)", *lines[-head:]]
    return [line if len(line) <= _WIDEST else f"{line[:_WIDEST]} …" for line in lines]


def _expected(field: Field) -> int:
    return 6 + _REPLY.get(field.kind, 6)


def ceiling(form: Form) -> int | None:
    """Token limit for a reply of that form; None for text: the model's own.

    Generous, since a cut reply is a lost one, yet small enough to end a run of white space.
    """
    if form.schema is None:
        return None
    return min(64 + sum(16 + _LIMIT.get(field.kind, 32) for field in form.fields), 8192)


def price_of(engine: Engine | BatchEngine, *, batch: bool = False) -> Price | None:
    """The price of an engine's model, where it is known."""
    return price(
        engine.name,
        engine.model,
        batch=batch,
        in_process=engine.limits.in_process,
        base_url=getattr(engine, "base_url", None),
    )


def estimate(work: Work, run: Run, engine: Engine | BatchEngine) -> tuple[int, int]:
    """Input and output tokens that what `run` would send is expected to take."""
    return _tokens(work, [place for place in run.missing() if place < len(work.keys)], engine)


def _tokens(work: Work, places: Sequence[int], engine: Engine | BatchEngine) -> tuple[int, int]:
    """Input and output tokens that some requests are expected to take."""
    call = work.call
    step = max(1, len(places) // _SAMPLE)
    sizes = [
        sum(estimate_tokens(str(message["content"])) for message in work.request(p).messages)
        for p in places[::step][: 2 * _SAMPLE]
    ]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    # Servers write the label all the same, and give its probabilities beside it.
    scored = call.choices is not None and engine.limits.choices and engine.limits.in_process
    reply = 1 if scored else sum(map(_expected, call.form.fields)) if call.form.schema else _TEXT
    limit = call.sent.max_tokens
    return round(mean * len(places)), len(places) * (min(reply, limit) if limit else reply)


def _shown(work: Work, places: Sequence[int]) -> list[int]:
    """The first two requests that differ: votes are one text, sent again."""
    panel = work.call.panel
    if panel is None or panel.swaps:
        return list(places[:2])
    found: dict[int, int] = {}
    for place in places:
        found.setdefault(work.row_of(place), place)
        if len(found) == 2:
            break
    return list(found.values())


def plan_of(work: Work, run: Run, engine: Engine | BatchEngine, advice: Iterable[str] = ()) -> Plan:
    """What `run` would send.

    Args:
        work: The rows.
        run: Looked up, not started.
        engine: Who would answer.
        advice: Sentences from the callers.
    """
    call = work.call
    places = [place for place in run.missing() if place < len(work.keys)]
    tokens = tokens_most = estimate(work, run, engine)
    everything = places
    if perhaps := run.perhaps():
        everything = places + perhaps
        tokens_most = _tokens(work, everything, engine)
    limit = call.sent.max_tokens
    usage, most = Usage(*tokens), Usage(tokens_most[0], len(everything) * (limit or 0))
    in_process = engine.limits.in_process
    live, batch = price_of(engine), price_of(engine, batch=True)
    counts = run.outcome.counts()
    prompts = tuple(
        "\n\n".join(f"[{m['role']}] {m['content']}" for m in work.request(place).messages)
        for place in _shown(work, places or range(len(work.keys)))
    )
    keys = tuple(None if i < 0 else work.keys[i].hex() for i in work.places[:, 0].tolist())
    expected = live.cost(usage) if live else None
    expected_batch = batch.cost(usage) if batch else None
    here = live if run.lane is None else batch
    guess = batch.guess if batch else ""
    fits = path(
        len(places),
        expected,
        # A batch price that is not known is counted as the live one, and says nothing.
        None if guess and expected_batch == expected else expected_batch,
        concurrency=engine.limits.concurrency,
        batched=run.lane is not None,
        in_process=in_process,
    )
    if guess and (run.lane is not None or fits):
        guess += (
            f'. State it: lf.set_options(prices={{"{engine.name}/{engine.model}": {{"input": …, '
            f'"output": …, "batch_input": …, "batch_output": …}}}}), US$ per million tokens.'
        )
    else:
        guess = ""
    own = (work.prompt.advice, fits, guess)
    marked = getattr(engine, "marked", None)
    start = marked(work.request(places[0])) if callable(marked) and places else ""
    return Plan(
        model=f"{engine.name}/{engine.model}",
        rows=work.count,
        requests=len(places),
        cached=counts["cached"],
        skipped=counts["skipped"],
        unrenderable=len(work.failures),
        tokens=tokens,
        max_tokens=limit,
        cost=expected,
        cost_batch=expected_batch,
        cost_limit=live.cost(most) if live and limit else (0.0 if in_process else None),
        advice=tuple(advice) + tuple(sentence for sentence in own if sentence),
        prompts=prompts,
        keys=keys,
        batch=run.lane is not None,
        kept=counts["kept"],
        marked=estimate_tokens(start) if start else 0,
        requests_most=len(everything),
        cost_most=here.cost(Usage(*tokens_most)) if here else None,
    )

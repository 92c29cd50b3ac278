"""A job in mid-run as HTML: a function of what is known of it, without a widget in sight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from llmframe.markup import Html, facts, heading, joined, meter, note, page, table, toned
from llmframe.progress import Progress, Watched, engine_figures, waiting
from llmframe.views import money, number

__all__ = ["Pace", "one_line", "picture", "state"]

_SPAN: Final = 30.0
"""Seconds over which a speed is taken."""
_SURE: Final = 2.0
"""Seconds from which on a speed is told."""
_SETTLED: Final = 5
"""Rows from which on tokens and cost are projected."""
_ANSWER: Final = 100
_MESSAGE: Final = 200
_KINDS: Final = 5


class Pace:
    """Rows and tokens a second over the last half minute.

    Examples:
        >>> pace = Pace()
        >>> for second in range(4):
        ...     pace.add(Progress(100, ok=10 * second, seconds=second))
        >>> pace.rows, pace.left(Progress(100, ok=30, seconds=3))
        (10.0, 7.0)
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int, int]] = deque()

    def add(self, now: Progress) -> None:
        """Where the run is now."""
        marks = self._marks
        if marks and now.seconds < marks[-1][0]:  # another run of the same job
            marks.clear()
        # The span before the first answer says nothing: a model may have been loaded.
        if len(marks) == 1 and now.done == marks[0][1]:
            marks.clear()
        marks.append((now.seconds, now.done, now.usage.input_tokens + now.usage.output_tokens))
        while len(marks) > 2 and marks[-1][0] - marks[1][0] >= _SPAN:
            marks.popleft()

    def _rate(self, place: int) -> float | None:
        if not self._marks or (span := self._marks[-1][0] - self._marks[0][0]) < _SURE:
            return None
        return (self._marks[-1][place] - self._marks[0][place]) / span

    @property
    def rows(self) -> float | None:
        """Rows a second; None until it is known."""
        return self._rate(1)

    @property
    def tokens(self) -> float | None:
        """Prompt and reply tokens a second; None until it is known."""
        return self._rate(2)

    def left(self, now: Progress) -> float | None:
        """Seconds until the end at this speed; None where nobody can tell."""
        rate = self.rows
        return (now.total - now.done) / rate if rate and not now.awaited else None


def state(now: Progress, going: bool) -> str:
    """What it does, in a few words."""
    if not going:
        return "at the provider; nobody waits for it" if now.awaited else "not running"
    if now.figures is not None and now.figures.loading:
        return "loading the model"
    if now.awaited and now.in_flight <= sum(batch.count for batch in now.awaited):
        return "waiting for the provider"
    return "running"


def picture(watched: Watched, now: Progress, pace: Pace, doing: str, remark: str = "") -> Html:
    """A job as it is now.

    Args:
        watched: The job.
        now: Where it is.
        pace: How quick it is.
        doing: In a few words.
        remark: A last line.
    """
    parts = [facts(_lines(now, pace, watched.expected, doing))]
    if now.latest:
        rows = [(watched.label(row), one_line(text, _ANSWER)) for row, text in now.latest]
        parts += [heading("Last answers"), table(["row", "answer"], rows)]
    if now.troubles:
        kinds = [
            (trouble.kind, number(trouble.count), one_line(trouble.message, _MESSAGE))
            for trouble in now.troubles[:_KINDS]
        ]
        head = ["kind", "replies", "the last one"]
        parts += [heading("Replies that were no answer"), table(head, kinds, numeric=[1])]
    if remark:
        parts.append(note(remark))
    return page(*parts, title=f"Job {watched.id}: {watched.about}")


def _lines(
    now: Progress, pace: Pace, expected: float | None, doing: str
) -> Iterator[tuple[str, object]]:
    yield "state", doing
    done = f", {number(now.done)} of {number(now.total)} rows"
    yield "done", joined(meter(now.ok + now.cached, now.total, now.failed, wide=True), done)
    counts = [f"{number(now.ok)} answered"]
    if now.cached:
        counts.append(f"{number(now.cached)} answered before")
    failed = toned(f"{number(now.failed)} failed", "bad" if now.failed else "")
    flight = f", {number(now.in_flight)} in flight" if now.in_flight else ""
    yield "rows", joined(", ".join(counts), ", ", failed, flight)
    left = pace.left(now)
    yield "time", _clock(now.seconds) + (f", about {_clock(left)} left" if left else "")
    if speed := list(_speed(now, pace)):
        yield "speed", ", ".join(speed)
    yield from _spent(now, expected)
    if now.awaited:
        yield "waiting for", waiting(now.awaited)
    if now.figures is not None and not now.figures.loading:
        # Its own speed and latency stand above.
        said = [text for text in engine_figures(now.figures) if not text.startswith(("p50", "p95"))]
        if said:
            yield "engine", ", ".join(said)


def _speed(now: Progress, pace: Pace) -> Iterator[str]:
    if pace.rows is not None and not now.awaited:
        yield f"{pace.rows:,.1f} rows/s"
    if pace.tokens:
        yield f"{pace.tokens:,.0f} tokens/s"
    if now.p50 is not None:
        yield f"p50 {now.p50:.2f} s"
    if now.p95 is not None:
        yield f"p95 {now.p95:.2f} s"


def _spent(now: Progress, expected: float | None) -> Iterator[tuple[str, object]]:
    """Tokens and US$, so far and in all."""
    settled = now.ok + now.failed
    more = (now.total - now.done) / settled if settled >= _SETTLED else None
    tokens = now.usage.input_tokens, now.usage.output_tokens
    if sum(tokens):
        text = f"{number(tokens[0])} in, {number(tokens[1])} out"
        if more:
            text += f", about {number(sum(tokens) * (1 + more))} in all"
        yield "tokens", text
    if now.cost == 0 and not expected:  # a model on this machine
        return
    text = money(now.cost)
    if more and now.cost:
        text += f", about {money(now.cost * (1 + more))} in all"
    if expected:
        text += f" (the plan expected {money(expected)})"
    yield "cost", text


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def one_line(text: str, limit: int) -> str:
    """The beginning of a text, so that a picture does not jump at each update."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[:limit]}…"

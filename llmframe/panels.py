"""A row that is asked more than once, or for more than one thing: what its answers come to.

The votes of a judge are samples of one request, the two orders of a pair are two requests; either
way the requests are ordinary ones, with keys of their own, and only here they become one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median_low, stdev
from typing import Any

from llmframe.schemas.values import Field

__all__ = ["Orders", "Panel", "Votes", "panel_from"]

Answer = tuple[Any, ...]
"""What one request of a row came to: one value a field of the form."""


class Panel(ABC):
    """What the requests of a row come to."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Requests a row."""

    @property
    @abstractmethod
    def majority(self) -> bool:
        """Whether more than half of its requests have to be answered, or all of them.

        With fewer the row has failed.
        """

    @property
    def sequential(self) -> bool:
        """Whether some of its requests hang on the answers to the others."""
        return False

    def more(self, answers: Sequence[Answer | None]) -> int:
        """Requests that are asked next.

        Args:
            answers: One for each request so far, in order; None for those without.
        """
        return self.size - len(answers)

    @property
    def swaps(self) -> bool:
        """Whether its requests are the two orders of one text, rather than samples of one."""
        return False

    @property
    def expected(self) -> bool:
        """Whether the mean over the probabilities of the scores is wanted."""
        return False

    @property
    def spelled(self) -> Mapping[str, Mapping[str, str]]:
        """By field: how a row calls a value → how the first request of the row calls it."""
        return {}

    @abstractmethod
    def fields(self) -> list[Field]:
        """The output columns of a row."""

    @abstractmethod
    def row(self, answers: Sequence[Answer | None]) -> Answer:
        """Values of `fields`.

        Args:
            answers: One for each request that was asked, in order; None for those without. As
                many are there as `majority` says.
        """

    @abstractmethod
    def name(self, ask: int) -> str:
        """What a request is called where it is told of."""

    def notice(self, rows: Sequence[Answer | None]) -> str | None:
        """What has to be said of a frame's rows, if anything."""
        return None

    @abstractmethod
    def summary(self, rows: Sequence[Answer | None]) -> str:
        """What a frame's rows came to, with the number of them that it rests on."""

    @abstractmethod
    def stored(self) -> dict[str, Any]:
        """As JSON, for `panel_from`."""


@dataclass(frozen=True, slots=True)
class Votes(Panel):
    """The votes of `judge`.

    The score is the median of the votes; of an even number the lower of the two in the middle,
    so that it stays on the scale and a tie does not pass.

    Attributes:
        kind: ``"int"``, ``"bool"`` or ``"category"``.
        scale: The scores, the worst first.
        votes: How many a row, at most; more than half of those asked have to be there.
        criteria: What is scored apart; empty: the answer as a whole.
        shares: Weight of each criterion in the total.
        explain: Each vote begins with its reason.
        mean: The expected score is wanted.
        least: How many are asked first, and the others only while these differ; 0: all at once.
    """

    kind: str
    scale: tuple[Any, ...]
    votes: int = 1
    criteria: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    explain: bool = True
    mean: bool = False
    least: int = 0

    @property
    def size(self) -> int:
        """As `Panel`."""
        return self.votes

    @property
    def majority(self) -> bool:
        """As `Panel`."""
        return True

    @property
    def sequential(self) -> bool:
        """As `Panel`."""
        return 0 < self.least < self.votes

    def more(self, answers: Sequence[Answer | None]) -> int:
        """As `Panel`: as few as may do, so that no vote is asked for which another would not be.

        A row is at its end when all its votes so far say the same, or when the median of all that
        may come to be is certain.
        """
        left = self.votes - len(answers)
        if not self.sequential:
            return left
        given = [answer for answer in answers if answer is not None]
        total = left + len(given)
        if total <= self.votes // 2:
            return 0  # too many have failed, whatever the others say
        # As many as are wanted at the least, and more than half of those asked.
        wanted = max(self.least - len(given), len(answers) - 2 * len(given) + 1)
        at = int(self.explain)
        for one in range(len(self.criteria) or 1):
            marks = [answer[at + one] for answer in given]
            if len(set(marks)) > 1:
                wanted = max(wanted, self._short(marks, total))
        return min(left, max(0, wanted))

    def _short(self, marks: Sequence[Any], total: int) -> int:
        """Votes that are missing, if they agree, until the median of `total` is certain.

        It is a mark when half of all votes are no higher and more than half no lower, wherever
        the others stand. A vote for that very mark counts for both.
        """
        rank = self.scale.index if self.kind == "category" else int
        ranks = [rank(mark) for mark in marks]
        return min(
            max(
                total - total // 2 - sum(other <= own for other in ranks),
                total // 2 + 1 - sum(other >= own for other in ranks),
            )
            for own in ranks
        )

    @property
    def expected(self) -> bool:
        """As `Panel`."""
        return self.mean

    @property
    def _totals(self) -> bool:
        """Whether there is a total of criteria: labels have no distances to weigh."""
        return bool(self.criteria) and self.kind != "category"

    def fields(self) -> list[Field]:
        """As `Panel`."""
        made = [self._field(name) for name in self.criteria] or [self._field("score")]
        if self._totals:
            made.insert(0, Field("score", "float"))
        if self.mean:
            made.append(Field("expected", "float", nullable=True))
        if self.explain:
            made.append(Field("reason", "str"))
        if self.votes > 1:
            made += [Field("spread", "float"), Field("votes", "object")]
        return made

    def _field(self, name: str) -> Field:
        if self.kind == "category":
            return Field(name, "category", self.scale, ordered=True)
        return Field(name, "int" if self.kind == "int" else "bool")

    def row(self, answers: Sequence[Answer | None]) -> Answer:
        """As `Panel`."""
        given = [answer for answer in answers if answer is not None]
        count = len(self.criteria) or 1
        at = int(self.explain)
        marks = [self._middle([answer[at + one] for answer in given]) for one in range(count)]
        values: list[Any] = list(marks)
        if self._totals:
            values.insert(0, self._total(marks))
        if self.mean:
            values.append(given[0][1] if len(given[0]) > 1 else None)
        if self.explain:
            values.append(self._reason(given, marks))
        if self.votes > 1:
            votes = [None if answer is None else self._vote(answer[at:]) for answer in answers]
            values += [self._spread([vote for vote in votes if vote is not None]), votes]
        return tuple(values)

    def _middle(self, marks: Sequence[Any]) -> Any:
        if self.kind != "category":
            return median_low(marks)
        return self.scale[median_low([self.scale.index(mark) for mark in marks])]

    def _total(self, marks: Sequence[Any]) -> float:
        return float(sum(share * mark for share, mark in zip(self.shares, marks, strict=True)))

    def _vote(self, marks: Sequence[Any]) -> Any:
        """What one vote says, as it stands in the list of votes."""
        if not self.criteria:
            return marks[0]
        return self._total(marks) if self._totals else list(marks)

    def _reason(self, given: Sequence[Answer], marks: Sequence[Any]) -> Any:
        """The reason of the vote that is nearest to what the votes came to, the first of them."""
        rank = self.scale.index if self.kind == "category" else int

        def distance(answer: Answer) -> int:
            pairs = zip(answer[1:], marks, strict=True)
            return sum(abs(rank(own) - rank(mark)) for own, mark in pairs)

        return min(given, key=distance)[0]

    def _spread(self, votes: Sequence[Any]) -> float:
        if self.kind == "int" or self._totals:
            return float(stdev(votes))
        if self.kind == "category" and self.criteria:
            return mean(_apart([vote[one] for vote in votes]) for one in range(len(self.criteria)))
        return _apart(votes)

    def name(self, ask: int) -> str:
        """As `Panel`."""
        most = "at most " if self.sequential else ""
        return f"vote {ask + 1} of {most}{self.votes}"

    def summary(self, rows: Sequence[Answer | None]) -> str:
        """As `Panel`."""
        scored = [row[0] for row in rows if row is not None]
        told = f"{len(scored):,} of {len(rows):,} rows scored"
        if scored and self.kind != "category":
            told += f", mean {mean(map(float, scored)):.4g}"
        return told

    def stored(self) -> dict[str, Any]:
        """As `Panel`."""
        return {"verb": "judge", **asdict(self)}


def _apart(votes: Sequence[Any]) -> float:
    """Share of the votes that are not the commonest one: the variation ratio (Freeman 1965)."""
    return 1 - Counter(votes).most_common(1)[0][1] / len(votes)


@dataclass(frozen=True, slots=True)
class Orders(Panel):
    """The orders in which `compare` shows a pair: a first, and b first.

    A winner that depends on the order is none: that pair says more of the judge than of its texts.

    Attributes:
        swap: Both orders are asked.
        ties: Neither need be the better one.
        explain: Each answer begins with its reason.
    """

    swap: bool = True
    ties: bool = True
    explain: bool = True

    @property
    def size(self) -> int:
        """As `Panel`."""
        return 1 + self.swap

    @property
    def majority(self) -> bool:
        """As `Panel`."""
        return False

    @property
    def swaps(self) -> bool:
        """As `Panel`."""
        return True

    @property
    def spelled(self) -> Mapping[str, Mapping[str, str]]:
        """As `Panel`."""
        return {"winner": {name: place for place, name in _NAMED[0].items()}}

    def fields(self) -> list[Field]:
        """As `Panel`."""
        names = ("a", "b", "tie") if self.ties else ("a", "b")
        made = [Field("winner", "category", names)]
        if self.swap:
            made.append(Field("consistent", "bool"))
        if self.explain:
            made.append(Field("reason", "str"))
        return made

    def row(self, answers: Sequence[Answer | None]) -> Answer:
        """As `Panel`."""
        at = int(self.explain)
        given = [answer for answer in answers if answer is not None]
        named = [_NAMED[ask][answer[at]] for ask, answer in enumerate(given)]
        consistent = len(set(named)) == 1
        values: list[Any] = [named[0] if consistent else None]
        if self.swap:
            values.append(consistent)
        if self.explain:
            reasons = [str(answer[0]) for answer in given]
            told = [f"{self.name(ask)}: {reason}" for ask, reason in enumerate(reasons)]
            values.append(reasons[0] if consistent else "\n".join(told))
        return tuple(values)

    def name(self, ask: int) -> str:
        """As `Panel`."""
        return ("a first", "b first")[ask]

    def notice(self, rows: Sequence[Answer | None]) -> str | None:
        """As `Panel`."""
        judged = [row for row in rows if row is not None]
        changed = sum(row[1] is False for row in judged) if self.swap else 0
        if not changed:
            return None
        return (
            f"no winner in {changed:,} of {len(judged):,} pairs ({changed / len(judged):.0%}): "
            f"another one was named when the two changed places. winner_consistent is False there."
        )

    def summary(self, rows: Sequence[Answer | None]) -> str:
        """As `Panel`."""
        found = Counter(row[0] for row in rows if row is not None and row[0] is not None)
        names = self.fields()[0].categories or ()
        told = ", ".join(f"{name} {found[name]:,}" for name in names)
        return f"{found.total():,} of {len(rows):,} rows have a winner: {told}"

    def stored(self) -> dict[str, Any]:
        """As `Panel`."""
        return {"verb": "compare", **asdict(self)}


_NAMED = (
    {"first": "a", "second": "b", "tie": "tie"},
    {"first": "b", "second": "a", "tie": "tie"},
)
"""Who is meant by the place, in each order."""


def panel_from(stored: Mapping[str, Any] | None) -> Panel | None:
    """What `Panel.stored` gave, in another process; None for None."""
    if stored is None:
        return None
    data: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    verb = data.pop("verb")
    return Votes(**data) if verb == "judge" else Orders(**data)

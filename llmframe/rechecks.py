"""Answers that hold one by one, looked at together: who is asked once more.

A check over several rows needs the whole frame, so it waits until nothing is open. The requests
of the rows that it turns down go out again in the same run: same keys, claims and budget, with
the check's own words. Each is asked again once; that it was is read from the journal, so the same
call asks nothing anew and comes to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from llmframe.calls import Call
from llmframe.feeds import Feed
from llmframe.flights import Flight
from llmframe.journal import Entry, Journal
from llmframe.ledgers import Ledger
from llmframe.outcomes import Outcome
from llmframe.rounds import tell
from llmframe.settlements import Settled, settle
from llmframe.work import FAILED, OK, STATUS, Work

__all__ = ["Judge", "Rechecks", "is_final", "tell_replies"]

Judge = Callable[[Outcome, Callable[[int], bool]], None]
"""Fills `Outcome.turned` and `Outcome.unmet`; the function says of a request that it is not asked
again, whatever its rows' checks say."""


def is_final(call: Call, outcome: Outcome, place: int) -> bool:
    """Whether an answered request has been asked again already, or never is."""
    return call.once or not call.repairs or place in outcome.again


def tell_replies(outcome: Outcome, journal: Journal) -> None:
    """Say of the rows that were turned down what their last reply was."""
    work = outcome.work
    places = {row: int(work.inverse[row]) for row in outcome.turned}
    found = journal.replies([work.key(place) for place in set(places.values())])
    for row, place in places.items():
        entries = found[work.key(place)]
        outcome.turned[row] = replace(
            outcome.turned[row],
            raw=entries[-1].text,
            attempts=len(entries),
            request_id=entries[-1].request_id,
        )


class Rechecks:
    """Looks at a run's answers once all are there.

    Args:
        work: The rows.
        journal: Where the replies are.
        outcome: The answers.
        ledger: Counts rows.
        feed: Takes the requests that are asked again.
        judge: Knows the frame; None: the answers stand each by itself.
    """

    def __init__(
        self,
        work: Work,
        journal: Journal,
        outcome: Outcome,
        ledger: Ledger,
        feed: Feed,
        judge: Judge | None,
    ) -> None:
        self._work = work
        self._journal = journal
        self._outcome = outcome
        self._ledger = ledger
        self._feed = feed
        self._judge = judge
        self._asked: set[int] = set()

    def look(self) -> bool:
        """Whether some requests are open again; called when none is."""
        if self._judge is None:
            return False
        self._read_again()
        self._judge(self._outcome, self._is_final)
        inverse, places = self._work.inverse, dict[int, int]()
        for row, lost in self._outcome.turned.items():
            if lost.failure.retryable:
                places.setdefault(int(inverse[row]), row)
        found = self._replies(places)
        for place, row in sorted(places.items()):
            self._ask(place, row, found[self._work.key(place)])
        if not places:
            self._ledger.recount(self._outcome.counts(), len(self._work.failures))
            tell_replies(self._outcome, self._journal)
        self._feed.open += len(places)
        return bool(places)

    def _is_final(self, place: int) -> bool:
        if place in self._asked or not self._work.call.repairs:
            return True
        return self._work.call.retry != "all" and is_final(self._work.call, self._outcome, place)

    def _replies(self, places: Iterable[int]) -> dict[bytes, list[Entry]]:
        return self._journal.replies([self._work.key(place) for place in places])

    def _ask(self, place: int, row: int, entries: list[Entry]) -> None:
        work, outcome = self._work, self._outcome
        settled = settle(work.call, entries)
        assert isinstance(settled, Settled), "only answers are looked at"
        # It counts as one of the repairs, which leaves no other where one is all there are.
        flight = Flight(place, attempt=len(entries) + 1, repairs=1)
        tell(work, flight, settled.entry.text, outcome.turned[row].failure)
        self._ledger.reopen(STATUS[outcome.status[place]], place)
        outcome.reopen(place)
        self._feed.known[place] = len(entries)
        self._feed.told[place] = flight
        self._feed.todo.append(place)
        self._asked.add(place)

    def _read_again(self) -> None:
        """Take the answers of what was asked again as any later call will read them."""
        outcome, work = self._outcome, self._work
        found = self._replies(self._asked)
        for place in self._asked:
            settled = settle(work.call, found[work.key(place)])
            if not isinstance(settled, Settled) or not settled.again:
                continue  # nobody answered: a failure of its own, which the same call asks again
            outcome.again.add(place)
            if outcome.status[place] == FAILED:
                # No better than before: the check's own words say what is wrong with the row.
                del outcome.losses[place]
                outcome.take(place, settled.entry, settled.reading, OK)

"""What a job says where nobody waits for it any more: what goes on, and how to come back."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from llmframe.errors import BudgetError, EngineError, LLMFrameError, StoreError
from llmframe.journal import JobRecord

__all__ = [
    "at_provider",
    "driven",
    "driven_elsewhere",
    "interrupted",
    "leaves_batches",
    "never_sent",
    "reads",
    "unanswered",
]

_NAMED = 3


def leaves_batches(error: BaseException | None) -> TypeGuard[LLMFrameError]:
    """Whether what ended a run says nothing of its batches: they go on."""
    # Of the store only that its file cannot be used (a full disk): else the batches are the matter.
    store = isinstance(error, StoreError) and isinstance(error.__cause__, sqlite3.Error)
    return store or isinstance(error, EngineError | BudgetError)


def at_provider(job: str, provider: str, ids: Sequence[str], again: bool) -> str:
    """Which batches go on without this process.

    Args:
        job: Id of the job.
        provider: Where they are.
        ids: The provider's ids; never empty.
        again: Its engine can be made again in any process.
    """
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    go, them = ("batch goes", "it") if len(ids) == 1 else ("batches go", "them")
    back = f'lf.job("{job}").wait() comes back to {them}'
    if again:
        how = (
            f', from any process, and so does the same call; lf.job("{job}").cancel() stops {them}.'
        )
    else:
        # Its key is stored nowhere.
        how = (
            f', and so does the same call; lf.job("{job}").cancel() stops {them}. In another '
            f"process pass the engine: resume(model=…), cancel(model=…)."
        )
    return f"{len(ids)} {go} on at {provider} ({', '.join(ids[:_NAMED])}{more}): {back}{how}"


def reads(job: str, again: bool) -> str:
    """How to come back to batches; as `at_provider`."""
    if again:
        return f'lf.job("{job}").wait() reads them'
    return f'lf.job("{job}").resume(model=…).wait() reads them, with the engine that sent them'


def interrupted(
    job: str,
    counts: Mapping[str, int],
    rows: int,
    provider: str,
    ids: Sequence[str],
    again: bool,
) -> KeyboardInterrupt:
    """What Ctrl-C is told; as `at_provider`, `ids` empty where nothing goes on."""
    kept = f"{counts['ok'] + counts['cached']:,} of {rows:,} rows kept"
    if ids:
        return KeyboardInterrupt(f"{kept}. {at_provider(job, provider, ids, again)}")
    return KeyboardInterrupt(
        f'{kept}. lf.job("{job}").join(df) shows them; the same call sends the rest.'
    )


def driven(record: JobRecord) -> StoreError:
    """Why a job cannot be taken up, or stopped, here."""
    return StoreError(
        f"job {record.id} is driven by {record.driver}; stop it there, or end that process. "
        f"lf.job({record.id!r}).wait() watches it from here."
    )


def driven_elsewhere(record: JobRecord) -> KeyboardInterrupt:
    """What Ctrl-C is told that only ended the watching."""
    return KeyboardInterrupt(
        f'job {record.id} goes on in {record.driver}. lf.job("{record.id}").wait() watches it.'
    )


def never_sent(job: str, requests: int) -> str:
    """Of a job that was taken up here, and whose prompts are not all in the store."""
    return (
        f"{requests:,} requests of job {job} were never sent, and their prompts are not in the "
        f"store. The same call on the frame sends them, and only them."
    )


def unanswered(record: JobRecord, counts: Mapping[str, int]) -> str | None:
    """Of a job that nobody drives, and that nobody can go on with from here."""
    pending = Counter(counts)["pending"]
    if record.driver is not None or not pending:
        return None
    why = f" It ended early: {record.error}" if record.error else ""
    return (
        f"{pending:,} rows of job {record.id} are without an answer, and nobody is at them.{why} "
        f"The same call on the frame sends them, and only them."
    )

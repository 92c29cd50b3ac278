"""What a job says where nobody waits for it any more: what goes on, and how to come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from llmframe.journal import JobRecord

__all__ = ["at_provider", "driven_elsewhere", "interrupted", "never_sent", "unanswered"]

_NAMED = 3


def at_provider(job: str, provider: str, ids: Sequence[str]) -> str:
    """Which batches go on without this process.

    Args:
        job: Id of the job.
        provider: Where they are.
        ids: The provider's ids; never empty.
    """
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    go, them = ("batch goes", "it") if len(ids) == 1 else ("batches go", "them")
    return (
        f"{len(ids)} {go} on at {provider} ({', '.join(ids[:_NAMED])}{more}): "
        f'lf.job("{job}").wait() comes back to {them}, from any process, and so does the same '
        f'call; lf.job("{job}").cancel() stops {them}.'
    )


def interrupted(
    job: str, counts: Mapping[str, int], rows: int, provider: str, ids: Sequence[str]
) -> KeyboardInterrupt:
    """What Ctrl-C is told; `ids` as in `at_provider`, empty where nothing goes on."""
    kept = f"{counts['ok'] + counts['cached']:,} of {rows:,} rows kept"
    if ids:
        return KeyboardInterrupt(f"{kept}. {at_provider(job, provider, ids)}")
    return KeyboardInterrupt(
        f'{kept}. lf.job("{job}").join(df) shows them; the same call sends the rest.'
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

"""The journal: one SQLite file that knows what was asked, by whom, and every reply to it.

It is what makes a rerun free and a crash harmless. A request is claimed in the transaction that
stores it, so two processes never send one key; a reply is stored as the model wrote it, before
anything looks at it, and is never changed afterwards.

Examples:
    >>> from llmframe.journal import Entry, Journal
    >>> journal = Journal.memory()
    >>> head = journal.head('{"system": "Be brief."}')
    >>> key = bytes(16)
    >>> journal.claim(head, [(key, b"Hello?")])
    [True]
    >>> journal.record([Entry(key, attempt=1, lane="live", at=0.0, kind="ok", text="Hi.")])
    >>> journal.replies([key])[key][0].text
    'Hi.'
"""

from llmframe.journal.store import Journal
from llmframe.journal.values import CHUNK, BatchRecord, Entry, JobRecord, Tally, new_job_id

__all__ = ["CHUNK", "BatchRecord", "Entry", "JobRecord", "Journal", "Tally", "new_job_id"]

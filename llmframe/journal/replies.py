"""Requests, claims and replies: the statements behind `Journal.claim`, `record`, `replies`."""

from __future__ import annotations

import secrets
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from llmframe.journal.owners import Process, ensure, living, reap
from llmframe.journal.values import Entry, Tally
from llmframe.results import Usage

__all__ = ["claim", "head", "held", "keep", "prompt", "read", "release", "row_of", "store"]

Row = tuple[Any, ...]

# State of a request: 0 nobody's, 1 claimed by a run, 2 in a batch at a provider.

# The numbers are the same for a whole call, so they are written into the statement and the
# caller's (key, tail) pairs go to SQLite as they are. While a request is claimed, `batch` holds
# the number of the call that claimed it.
_CLAIM: Final = """
INSERT INTO request (key, head, tail, state, owner, batch)
VALUES (?, {head}, ?, 1, {owner}, {call})
ON CONFLICT (key) DO UPDATE SET
    state = 1, owner = excluded.owner, head = excluded.head, tail = coalesce(excluded.tail, tail),
    batch = excluded.batch
WHERE state = 0{limit}
"""
_KEEP: Final = """
INSERT INTO request (key, head, tail, state) VALUES (?, {head}, ?, 0)
ON CONFLICT (key) DO UPDATE SET head = excluded.head, tail = excluded.tail WHERE tail IS NULL
"""
_SEEN: Final = " AND (SELECT count(*) FROM reply WHERE reply.request = request.id) <= "


def head(db: sqlite3.Connection, text: str, keep: bool) -> int:
    """Id of the shared part `text`; only its hash is stored unless `keep`."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    db.execute(
        "INSERT INTO head (hash, json) VALUES (?, ?)"
        " ON CONFLICT (hash) DO UPDATE SET json = excluded.json WHERE json = ''",
        (digest, _bindable(text, exact=True) if keep else ""),
    )
    return int(db.execute("SELECT id FROM head WHERE hash = ?", (digest,)).fetchone()[0])


def keep(db: sqlite3.Connection, head: int, requests: Sequence[tuple[bytes, bytes]]) -> None:
    """As `Journal.keep`."""
    db.executemany(_KEEP.format(head=int(head)), requests)


def claim(
    db: sqlite3.Connection,
    process: Process,
    head: int,
    requests: Sequence[tuple[bytes, bytes | None]],
    job: str,
    seen: Sequence[int] | None,
    again: bool,
    keep: bool,
) -> list[bool]:
    """As `Journal.claim`."""
    owner = ensure(db, process, job)
    limit = "" if again else _SEEN + ("0" if seen is None else "?")
    call = secrets.randbits(30)
    statement = _CLAIM.format(head=int(head), owner=owner, call=call, limit=limit)
    rows: Sequence[Row] = requests if keep else [(key, None) for key, _ in requests]
    if seen is not None and not again:
        rows = [(*row, count) for row, count in zip(rows, seen, strict=True)]
    # All at once, in the hope that nobody else is here; a savepoint or a look beforehand would
    # cost every call what only the unlucky need.
    if db.executemany(statement, rows).rowcount == len(rows):
        return [True] * len(rows)
    reap(db, process)
    ensure(db, process, job)  # a process that was stopped for long may have been reaped itself
    db.executemany(statement, rows)
    won = {
        key
        for (key,) in db.execute(
            "SELECT key FROM request WHERE owner = ? AND state = 1 AND batch = ?", (owner, call)
        )
    }
    granted = []
    for key, _ in requests:
        granted.append(key in won)
        won.discard(key)  # a key that stands here twice is to be sent once
    return granted


def release(db: sqlite3.Connection, process: Process, keys: Sequence[bytes]) -> None:
    """Give back claims of this process's runs."""
    db.executemany(
        "UPDATE request SET state = 0, owner = NULL WHERE key = ? AND state = 1"
        f" AND owner IN {_ours(process)}",
        [(key,) for key in keys],
    )


def _ours(process: Process) -> str:
    return f"({', '.join(map(str, process.runs.values()))})"


_STORE: Final = (
    "INSERT INTO reply (request, attempt, lane, at, kind, message, finish, model, request_id,"
    " input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens,"
    " cache_write_1h_tokens, cost, latency, maybe_paid, asked, scores, vector, text, reasoning)"
    f" VALUES ({', '.join('?' * 23)})"
)
_NO_USAGE: Final = (None,) * 6
_EXACT: Final = (5, 18, 21, 22)  # message, asked, text, reasoning


def row_of(entry: Entry) -> Row:
    """The parameters of `_STORE`."""
    usage = entry.usage
    return (
        entry.key,
        entry.attempt,
        entry.lane,
        entry.at,
        entry.kind,
        entry.message or None,
        entry.finish,
        entry.model,
        entry.request_id,
        *(
            _NO_USAGE
            if usage is None
            else (
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                usage.cache_write_tokens,
                usage.reasoning_tokens,
                usage.cache_write_1h_tokens,
            )
        ),
        entry.cost,
        entry.latency,
        entry.maybe_paid,
        entry.asked,
        _packed(entry.scores),
        _packed(entry.vector),
        entry.text,
        entry.reasoning,
    )


def store(db: sqlite3.Connection, process: Process, rows: Sequence[Row]) -> None:
    """Append replies, and end the claims they answer, inside a transaction.

    A reply whose claim has passed to another owner in the meantime is stored all the same, and
    the other's claim stands.
    """
    # One look at the keys for both statements: each would cost 2 µs a row to find them again.
    keys = [row[0] for row in rows]
    ids = _ids(db, keys)
    if strays := [(key,) for key in keys if key not in ids]:  # purged in flight, never claimed
        db.executemany(
            "INSERT INTO request (key, state) VALUES (?, 0) ON CONFLICT (key) DO NOTHING", strays
        )
        ids = _ids(db, keys)
    rows = [(ids[row[0]], *row[1:]) for row in rows]
    before = db.total_changes
    try:
        db.executemany(_STORE, rows)
    except (UnicodeEncodeError, OverflowError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
        # Providers send lone surrogates, and numbers and types of their own: what cannot be
        # bound must be kept in some form, and must not keep others out.
        rest = rows[db.total_changes - before :]
        db.executemany(
            _STORE,
            [
                tuple(_bindable(value, exact=n in _EXACT) for n, value in enumerate(row))
                for row in rest
            ],
        )
    db.executemany(
        "UPDATE request SET state = 0, owner = NULL, batch = NULL WHERE id = ?"
        f" AND (state = 2 OR state = 1 AND owner IN {_ours(process)})",
        [(number,) for number in ids.values()],
    )


def _ids(db: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for marks, part in batched(keys):
        found.update(db.execute(f"SELECT key, id FROM request WHERE key IN ({marks})", part))
    return found


def _bindable(value: Any, exact: bool) -> Any:
    """`value` in a form that SQLite takes; text that is no valid Unicode as bytes, if `exact`."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass" if exact else "backslashreplace")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data
    if value is None or isinstance(value, (bytes, float)):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return str(value)


def text_of(value: Any) -> Any:
    """Undo `_bindable` for an exact text."""
    return value.decode("utf-8", "surrogatepass") if type(value) is bytes else value


def _packed(numbers: tuple[float, ...] | None) -> bytes | None:
    return None if numbers is None else array("d", numbers).tobytes()


def _unpacked(data: bytes) -> tuple[float, ...]:
    numbers = array("d")
    numbers.frombytes(data)
    return tuple(numbers)


_READ: Final = (
    "SELECT r.key, p.attempt, p.lane, p.at, p.kind, p.message, p.finish, p.text, p.scores,"
    " p.vector, p.model, p.request_id, p.input_tokens, p.output_tokens, p.cached_tokens,"
    " p.cache_write_tokens, p.reasoning_tokens, ifnull(p.cache_write_1h_tokens, 0), p.cost,"
    " p.latency, p.maybe_paid, p.asked, p.reasoning"
    " FROM request r CROSS JOIN reply p ON p.request = r.id WHERE r.key IN ({})"
    " ORDER BY r.key, p.id"  # the order in which the two indexes give them anyway: no sorting
)
_SIZES: Final = (1, 16, 256)  # of IN lists: few, so that SQLite keeps their statements


def batched(keys: Sequence[bytes]) -> Iterator[tuple[str, Sequence[bytes]]]:
    """Lists of keys with their placeholders, padded to a few sizes by repeating a key."""
    for start in range(0, len(keys), _SIZES[-1]):
        part = list(keys[start : start + _SIZES[-1]])
        size = next(size for size in _SIZES if size >= len(part))
        part += part[:1] * (size - len(part))
        yield ", ".join("?" * size), part


def read(db: sqlite3.Connection, marks: str, keys: Sequence[bytes]) -> list[Entry]:
    """Every reply to `keys` (from `batched`), in the order they came."""
    return [_entry(row) for row in db.execute(_READ.format(marks), keys)]


_TALLY: Final = (
    "SELECT r.key, SUM(p.kind = 'ok'), SUM(p.kind = 'ok' AND p.at >= ?), COUNT(*),"
    " SUM(CASE WHEN p.at >= ? THEN p.cost END), p.kind, MAX(p.id)"  # `kind` is the last one's
    " FROM request r CROSS JOIN reply p ON p.request = r.id WHERE r.key IN ({}) GROUP BY r.key"
)


def tally(
    db: sqlite3.Connection, marks: str, keys: Sequence[bytes], since: float
) -> dict[bytes, Tally]:
    """The replies to `keys` (from `batched`), counted; keys without any are left out."""
    rows = db.execute(_TALLY.format(marks), (since, since, *keys))
    return {row[0]: Tally(*row[1:6]) for row in rows}


def _entry(row: Row) -> Entry:
    key, attempt, lane, at, kind, message, finish, text, scores, vector, model, request_id = row[
        :12
    ]
    cost, latency, maybe_paid, asked, reasoning = row[18:]
    if bytes in (type(message), type(text), type(asked), type(reasoning)):
        message, text, asked, reasoning = map(text_of, (message, text, asked, reasoning))
    return Entry(
        key,
        attempt,
        lane,
        at,
        kind,
        message or "",
        finish,
        text,
        None if scores is None else _unpacked(scores),
        None if vector is None else _unpacked(vector),
        model,
        request_id,
        None if row[12] is None else Usage(*row[12:18]),
        cost,
        latency,
        maybe_paid == 1,
        asked,
        reasoning,
    )


def held(db: sqlite3.Connection, process: Process, keys: Sequence[bytes]) -> set[bytes]:
    """Keys that a living run has claimed, or that are in a batch at a provider."""
    owners = living(db, process)
    return {
        key
        for marks, part in batched(keys)
        for key, state, owner in db.execute(
            f"SELECT key, state, owner FROM request WHERE key IN ({marks}) AND state > 0", part
        )
        if state == 2 or owner in owners
    }


def prompt(db: sqlite3.Connection, key: bytes) -> tuple[str, bytes] | None:
    """Shared part and tail of the request, where they are stored."""
    row = db.execute(
        "SELECT head.json, tail FROM request JOIN head ON head.id = head WHERE key = ?"
        " AND tail IS NOT NULL",
        (key,),
    ).fetchone()
    return None if row is None else (text_of(row[0]), row[1])

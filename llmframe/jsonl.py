"""JSONL as the common tongue: lines for whatever runs batches, and its results back.

``df.llm.to_jsonl(path, prompt, …)`` writes the lines, and beside them a key map that says what
was asked; ``df.llm.from_jsonl(results)`` joins what came back, with the checks and the columns of
`map`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Unpack

from llmframe import frames, joins, key_maps
from llmframe.answer_lines import BadLine, read_answers
from llmframe.calls import call_from
from llmframe.costs import price
from llmframe.engines import anthropic_bodies, engine_for
from llmframe.engines.openai_bodies import Bodies, features_of
from llmframe.errors import RowsFailed, SchemaError, warn_user
from llmframe.journal import Entry, JobRecord, Journal, new_job_id
from llmframe.keywords import Common
from llmframe.launches import journal_of, run_over
from llmframe.outcomes import Outcome, outcome_of
from llmframe.reopened import remember, save_rows, with_code
from llmframe.requests import Request, custom_id
from llmframe.results import Failure, Result
from llmframe.settlements import Lost, as_result, entry_of
from llmframe.verbs import prepare_map
from llmframe.verdicts import judged_together
from llmframe.work import PENDING, Work, compiled

__all__ = ["from_jsonl", "to_jsonl"]

_CHAT: Final = "/v1/chat/completions"
_RESPONSES: Final = "/v1/responses"
_GROUP: Final = 500


def to_jsonl(
    data: Any,
    /,
    path: str | os.PathLike[str],
    prompt: Any,
    schema: Any = None,
    *,
    overwrite: bool = False,
    **common: Any,
) -> Path:
    """Write one line for each request that `map` would send; nothing is sent.

    The lines are what OpenAI's Batch API, every service that imitates it, and
    ``vllm run-batch -i requests.jsonl -o results.jsonl --model …`` read, for the engine's
    ``endpoint=``. With an Anthropic model each line is an element of ``requests`` of its Message
    Batches. Beside them stands ``<path>.keys.json``, which `from_jsonl` needs: what was asked, and
    the label of the row that each id stands for.

    Rows that are answered in the store are left out, as `map` leaves them out, and so are those
    that are on their way elsewhere; ``cache=False`` writes them all, to be asked anew.

    Args:
        data: DataFrame or Series.
        path: Of the new file; providers want its name to end in ``.jsonl``.
        prompt: As in `map`.
        schema: As in `map`.
        overwrite: Replace a file of other requests. Its key map is kept beside the new one, under
            another name: a batch that runs on the earlier lines still needs it.
        **common: As in `map`; of `model` only the name, and what it takes, is used: no key.

    Returns:
        `path`.

    Raises:
        SchemaError: There is nothing to ask, or every row is answered.
        FileExistsError: `path` holds other requests, and `overwrite` was not said.
        FileNotFoundError: There is no such folder.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"path={str(path)!r}: there is no folder {str(path.parent)!r}. Make it first."
        )
    engine = engine_for(common.get("model"), batch=common.get("batch"), sends=False)
    given: Common = {**common, "model": engine, "batch": None}  # type: ignore[typeddict-item]
    prepared = _prepared(data, prompt, schema, **given)
    call = prepared.call
    if not prepared.cache:
        call = replace(call, salt=new_job_id())
    work = compiled(call, prepared.table, prepared.asked)
    places = _to_write(work, engine)
    line = _lines_for(engine)
    half = path.with_name(path.name + ".part")
    labels: dict[str, str] = {}
    try:
        with half.open("wb") as file:
            for place in places:
                request = work.request(place)
                name = custom_id(request.position, request.key, 1)
                labels[name] = prepared.table.label_text(request.position)
                # ASCII: some services split their input at every line break that Unicode knows.
                read = {"custom_id": name, **line(request)}
                file.write(json.dumps(read, separators=(",", ":")).encode() + b"\n")
        stored = {
            "llmframe": 1,
            "engine": {"name": engine.name, "model": engine.model},
            "call": json.loads(call.stored(work.prompt)),
            "lines": labels,
        }
        key_maps.put(path, stored, overwrite)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return path


def _to_write(work: Work, engine: Any) -> list[int]:
    """Places of the requests that `map` would send now.

    Raises:
        SchemaError: There are none.
    """
    if not work.keys:
        raise SchemaError("no row has anything to ask, so there is no line to write.")
    journal = journal_of(None)  # where `from_jsonl` puts the answers
    asked = run_over(work, engine, journal, "jsonl").missing()
    places = [place for place in asked if place < len(work.keys)]
    held = journal.held([work.keys[place] for place in places])
    if held:
        warn_user(
            f"{len(held):,} rows are on their way already, in a batch at a provider or in another "
            f"call, and were left out. lf.jobs() shows where."
        )
        places = [place for place in places if work.keys[place] not in held]
    if not places:
        raise SchemaError(
            "every row is answered or on its way, so there is no line to write. map(…) gives the "
            "answers without sending anything; cache=False writes all rows, to be asked anew."
        )
    return places


def _lines_for(engine: Any) -> Callable[[Request], dict[str, Any]]:
    """Makes a line but for its id, in the shape of the engine's provider."""
    if engine.name == "anthropic":
        params, taken = anthropic_bodies.Bodies(engine.model), anthropic_bodies.Features()
        return lambda request: {"params": json.loads(params.encode(request, taken, ttl="1h"))}
    url = getattr(engine, "endpoint", _CHAT)
    official = (getattr(engine, "base_url", None) or "").startswith("https://api.openai.com")
    features = features_of(engine.model, official, getattr(engine, "prompt_cache", None))
    bodies = Bodies(engine.model, url == _RESPONSES)
    return lambda request: {
        "method": "POST",
        "url": url,
        "body": json.loads(bodies.encode(request, features)),
    }


def _prepared(data: Any, prompt: Any, schema: Any, **common: Unpack[Common]) -> Any:
    return prepare_map(data, prompt, schema, **common)


def from_jsonl(
    data: Any,
    /,
    path: str | os.PathLike[str],
    *,
    keys: str | os.PathLike[str] | None = None,
    prompt: Any = None,
    schema: Any = None,
    errors: str = "warn",
) -> Any:
    """Join a results file to a frame, whatever ran it and in whatever order its lines are.

    Joined by id: the frame may be reordered, filtered or grown. Every reply goes through the same
    checks as `map`'s, and into the store, so that `map` itself then asks only what is missing.

    Args:
        data: The frame that the requests were made from, or rows of it.
        path: The results. Where there are two files, output and errors, call it for each, or put
            one behind the other. A row's answer is its first reply that passes the checks, in
            whichever file.
        keys: The key map that `to_jsonl` wrote; None: the one in the folder of `path` that knows
            the ids of its lines.
        prompt: The callable that the lines were made with, where it was one.
        schema: The Python class that they were made with, where it was one.
        errors: As in `map`.

    Returns:
        The frame with the columns that `map` gives; rows without a line fail as ``no_result``.

    Raises:
        StoreError: There is no key map for these results, or `keys` is none or of others.
        FileNotFoundError: There are no results.
        RowsFailed: ``errors="raise"`` and a row has no answer.
    """
    path = Path(path)
    stored = key_maps.found(path) if keys is None else key_maps.named(Path(keys), path)
    call = replace(call_from(json.dumps(stored["call"])), errors=errors, once=True)
    if prompt is not None or schema is not None:
        call = with_code(call, prompt, schema)
    table = frames.Table(data)
    work = compiled(call, table)
    journal, name = journal_of(None), new_job_id()
    made = time.time()
    record = JobRecord(
        id=name,
        created=made,
        state="running",
        call=call.stored(work.prompt),
        engine=json.dumps(stored["engine"]),
        count=work.count,
    )
    journal.create_job(record)
    save_rows(journal, name, work, table)
    _take_in(path, work, journal, stored["engine"])
    outcome = outcome_of(work, journal, made)
    _lose_the_rest(outcome, path, journal)
    judged_together(data, outcome, journal)
    journal.update_job(name, state="done", finished=time.time(), counts=outcome.answers())
    remember(name, call, journal)  # with its code, for what `df.llm` will ask of the frame
    out = joins.joined(data, call, outcome, name)
    joins.warn(call, outcome)
    if errors == "raise" and (told := joins.lost_text(call, outcome)):
        failures = joins.failures(data.index, outcome.lost_rows())
        raise RowsFailed(told, result=out, failures=failures)
    return out


def _take_in(path: Path, work: Work, journal: Journal, engine: dict[str, str]) -> None:
    """Store every result of the file that belongs to a row; tell of the lines that do not.

    A row may have several: what counts is the first that passes the checks.
    """
    wanted = set(work.keys)
    known = price(engine["name"], engine["model"], batch=True)
    seen: dict[bytes, list[Result]] = {}
    odd: Counter[str] = Counter()
    first_bad: BadLine | None = None
    entries: list[Entry] = []
    before = journal.replies(work.keys)
    for answer in read_answers(path):
        if isinstance(answer, BadLine):
            odd["unreadable"] += 1
            first_bad = first_bad or answer
            continue
        if answer.key not in wanted:
            odd["of rows that are not in this frame"] += 1
            continue
        earlier = seen.setdefault(answer.key, [])
        if what := _needless(answer, earlier, work):
            odd[what] += 1
            continue
        earlier.append(answer)
        stored = map(as_result, before.get(answer.key, ()))
        if any(_same(answer, old) and answer.request_id == old.request_id for old in stored):
            continue  # this file was read before
        cost = known.cost(answer.usage) if known is not None and answer.usage else None
        entries.append(entry_of(answer, cost, time.time(), 1, None, "batch"))
        if len(entries) >= _GROUP:
            journal.record(entries)
            entries = []
    journal.record(entries)
    journal.flush()
    if odd:
        parts = ", ".join(f"{count:,} {what}" for what, count in odd.items())
        why = f" Line {first_bad.number}: {first_bad.why}." if first_bad is not None else ""
        warn_user(f"{str(path)!r} has lines that were left out: {parts}.{why}")


def _same(one: Result, other: Result) -> bool:
    """Whether two results say the same."""
    kinds = [result.failure.kind if result.failure else None for result in (one, other)]
    return one.text == other.text and kinds[0] == kinds[1]


def _needless(answer: Result, earlier: Sequence[Result], work: Work) -> str | None:
    """Why a further line of a file for one row says nothing new; None where it may."""
    if any(_same(answer, old) for old in earlier):
        return "a second time"
    if not any(work.call.read(old).failure is None for old in earlier):
        return None
    return "in conflict" if work.call.read(answer).failure is None else "a second time"


def _lose_the_rest(outcome: Outcome, path: Path, journal: Journal) -> None:
    """A failure of its own for each row without a line, stored like any other.

    Not for what is on its way elsewhere: it has an end of its own, and a stored reply would end
    the claim that keeps it from being sent again.
    """
    failure = Failure("no_result", f"{path.name} has no line for this row", retryable=True)
    keys, now = outcome.work.keys, time.time()
    pending = [place for place in range(len(keys)) if outcome.status[place] == PENDING]
    held = journal.held([keys[place] for place in pending])
    missing = [place for place in pending if keys[place] not in held]
    for place in missing:
        outcome.lose(place, Lost(failure, attempts=1))
    for start in range(0, len(missing), _GROUP):
        lost = [Result(keys[place], failure=failure) for place in missing[start : start + _GROUP]]
        journal.record([entry_of(result, None, now, 1, None, "batch") for result in lost])
    journal.flush()

"""The key map beside a file of requests: what was asked, and which row each id stands for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import orjson

from llmframe.answer_lines import read_answers
from llmframe.errors import StoreError
from llmframe.requests import parse_custom_id
from llmframe.results import Result

__all__ = ["found", "named", "put"]

_KEYS: Final = ".keys.json"


def _keys_of(path: Path) -> Path:
    return path.with_name(path.name + _KEYS)


def put(path: Path, stored: dict[str, Any], overwrite: bool) -> None:
    """Write the key map of the requests at `path`.

    Args:
        path: Where the requests go.
        stored: What was asked, and the label of the row that each id stands for.
        overwrite: Other requests may stand there; their key map is kept under another name.

    Raises:
        FileExistsError: They do, and may not.
    """
    data = orjson.dumps(stored)
    keys = _keys_of(path)
    there = keys.read_bytes() if keys.exists() else None
    if there == data:
        return  # the same requests once more, as when a cell is run twice
    if (path.exists() or there is not None) and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} is there and holds other requests; its key map is what joins their "
            f"results. Write to another path, or say overwrite=True. Nothing was written."
        )
    if there is not None:
        names = (path.with_name(f"{path.name}.{n}{_KEYS}") for n in itertools.count(1))
        keys.rename(next(name for name in names if not name.exists()))
    keys.write_bytes(data)


def found(path: Path) -> dict[str, Any]:
    """The key map in the folder of a results file that knows one of its lines.

    Raises:
        StoreError: There is none.
    """
    answered = _answered(path)
    if not answered:
        raise StoreError(
            f"{str(path)!r} has no line with an id of to_jsonl's, so nothing says what it answers. "
            f"Is it the results file, and whole?"
        )
    for candidate in [_keys_of(path), *sorted(path.parent.glob(f"*{_KEYS}"))]:
        stored = _read(candidate)
        if stored is not None and not answered.isdisjoint(_asked(stored)):
            return stored
    raise StoreError(
        f"no key map beside {str(path)!r} knows its lines. to_jsonl wrote one, named "
        f"<requests>{_KEYS}: put it into the same folder, or pass keys=."
    )


def named(keys: Path, path: Path) -> dict[str, Any]:
    """The key map that the user names.

    Raises:
        StoreError: It is none, or of other requests.
    """
    stored = _read(keys)
    if stored is None:
        why = "is no key map" if keys.exists() else "is not there"
        beside = _keys_of(keys)
        hint = f"keys={str(beside)!r}" if beside.exists() else f"the file <requests>{_KEYS}"
        raise StoreError(
            f"keys={str(keys)!r} {why}. Expected what to_jsonl wrote beside its lines: {hint}."
        )
    answered = _answered(path)
    if answered and answered.isdisjoint(_asked(stored)):
        raise StoreError(
            f"keys={str(keys)!r} knows none of the lines of {str(path)!r}: it is of other "
            f"requests. Leave keys= out, and the map is looked for in the folder of the results."
        )
    return stored


def _read(path: Path) -> dict[str, Any] | None:
    """A key map; None where the file is none, or not there."""
    try:
        stored = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    parts = {"llmframe": int, "engine": dict, "call": dict, "lines": dict}
    if isinstance(stored, dict) and all(isinstance(stored.get(n), t) for n, t in parts.items()):
        return stored
    return None


def _asked(stored: dict[str, Any]) -> set[bytes]:
    """Keys of the requests that a key map is of."""
    return {parsed[1] for parsed in map(parse_custom_id, stored["lines"]) if parsed is not None}


def _answered(path: Path) -> set[bytes]:
    """Keys of the requests that a results file has lines of."""
    return {answer.key for answer in read_answers(path) if isinstance(answer, Result)}

"""Frames from files, and into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pandas as pd

__all__ = ["export", "read_table"]


def read_table(path: Path) -> pd.DataFrame:
    """A frame from ``.csv``, ``.parquet`` or ``.jsonl``.

    Raises:
        ValueError: Another ending.
    """
    if path.suffix == ".csv":
        return pd.read_csv(path)
    if path.suffix == ".parquet":
        try:
            return pd.read_parquet(path)
        except (TypeError, ValueError, NotImplementedError):
            found = _read_nested(path)
            if found is None:
                raise
            return found
    if path.suffix == ".jsonl":
        return pd.read_json(path, orient="records", lines=True)
    raise ValueError(f"path={str(path)!r}: expected the ending .csv, .parquet or .jsonl.")


def _read_nested(path: Path) -> pd.DataFrame | None:
    """By the types in the file: the names that pandas writes for nested ones it cannot read.

    None where pandas did not write it, and the trouble is another one.
    """
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    written = (table.schema.metadata or {}).get(b"pandas")
    if written is None:
        return None
    told = json.loads(written)
    for one in told["columns"]:
        if one["numpy_type"].endswith("[pyarrow]"):
            one["numpy_type"] = "object"
    table = table.replace_schema_metadata({b"pandas": json.dumps(told).encode()})
    return cast(pd.DataFrame, table.to_pandas(types_mapper=pd.ArrowDtype))


def export(out: Any, path: Path, *, csv_safe: bool) -> Path:
    """Write a frame to ``.csv``, ``.parquet`` or ``.jsonl``; see `llmframe.jobs.Job.export`."""
    frame = out.to_frame() if isinstance(out, pd.Series) else out
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        # The index as a column: a label is part of the row.
        frame.reset_index().to_json(path, orient="records", lines=True, date_format="iso")
    elif path.suffix == ".csv":
        shown = frame.reset_index()
        if csv_safe:
            for place in range(shown.shape[1]):
                column = shown.iloc[:, place]
                if not pd.api.types.is_numeric_dtype(column.dtype):
                    shown.isetitem(place, column.astype(object).map(_harmless).to_numpy())
        shown.to_csv(path, index=False)
    else:
        raise ValueError(f"path={str(path)!r}: expected the ending .csv, .parquet or .jsonl.")
    return path


def _harmless(cell: Any) -> Any:
    # A spreadsheet runs a cell that begins like this as a formula.
    text = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    if isinstance(cell, dict | list):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return f"'{cell}" if text else cell

"""Write golden.json: ``python -m tests.keys.generate``.

Only with a new `llmframe.requests.KEY_VERSION`, or for calls that were added: the file is what
users' stores were written with.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.keys.calls import CALLS

GOLDEN = Path(__file__).with_name("golden.json")


def keys() -> dict[str, list[str | None]]:
    """Keys of every call, in row order; None for a row that is skipped."""
    return {name: list(call().keys) for name, call in CALLS.items()}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(keys(), indent=1) + "\n")

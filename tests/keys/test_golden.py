"""The key's golden file holds on every supported pydantic and pandas."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keys.calls import CALLS
from tests.keys.generate import GOLDEN


@pytest.fixture(scope="module")
def golden() -> dict[str, list[str | None]]:
    return json.loads(GOLDEN.read_text())


def test_there_are_fifty_calls(golden: dict[str, Any]) -> None:
    assert len(CALLS) == 50
    assert list(golden) == list(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_keys_have_not_changed(name: str, golden: dict[str, list[str | None]]) -> None:
    assert list(CALLS[name]().keys) == golden[name]


def test_keys_differ_where_the_question_does(golden: dict[str, list[str | None]]) -> None:
    """Within a call only identical rows share a key, and no call shares one with another."""
    owners: dict[str, str] = {}
    for name, keys in golden.items():
        for key in keys:
            if key is None:
                continue
            assert re.fullmatch(r"[0-9a-f]{32}", key)
            owner = owners.setdefault(key, name)
            assert owner == name or any({name, owner} <= same for same in SAME)
    assert golden["identical rows"][0] == golden["identical rows"][2]
    assert len(set(golden["identical rows, each a sample"])) == 3
    assert golden["descriptions"] != golden["another order"]
    assert golden["masked"][1] is None
    assert golden["masked and blank"][1] is not None


# The three dtypes of a text column ask the same thing by design, and so do the rows without a
# missing cell, whatever a missing one would have done.
SAME = ({"object strings", "string dtype", "categories"}, {"masked", "masked and blank"})


def test_another_process_with_another_hash_seed_makes_the_same_keys(home: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    code = "import json\nfrom tests.keys.generate import keys\nprint(json.dumps(keys()))\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(GOLDEN.read_text())

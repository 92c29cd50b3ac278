"""A pandera model on the real engine: dtypes, checks of one value, and checks over the rows."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pandera.pandas")

from tests.reviews import holds


def test_eight_dtypes_that_meet_every_check(smollm2: Any) -> None:
    out = holds(smollm2)
    assert (out.llm.status() == "ok").any()

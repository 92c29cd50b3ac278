"""Small steps that every provider's wire takes: bodies out, counts and words in. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

__all__ = ["LONGEST", "count_of", "dump", "shortened", "text_of"]

LONGEST: Final = 400
"""Characters of a provider's own words that are kept."""


def dump(value: Any) -> bytes:
    """A value as JSON.

    Raises:
        ValueError: It is no plain JSON.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        try:  # orjson refuses integers beyond 64 bits, which JSON itself does not
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            raise ValueError("the text holds a lone surrogate, which is no Unicode") from None
        except (TypeError, ValueError):
            raise ValueError(f"the request is not plain JSON: {error}") from None


def count_of(counts: Mapping[str, Any], name: str) -> int:
    """The whole number of that name; 0 where there is none."""
    value = counts.get(name)
    return value if isinstance(value, int) else 0


def text_of(value: object) -> str | None:
    """The value where it is a text, else None."""
    return value if isinstance(value, str) else None


def shortened(words: str) -> str:
    """The words in one line, cut off at `LONGEST`."""
    words = " ".join(words.split())
    return words if len(words) <= LONGEST else words[:LONGEST] + "…"

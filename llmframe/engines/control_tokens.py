"""Keeping a model's control tokens for its chat template alone.

A tokenizer reads ``<|im_end|>`` as the end of a turn wherever it stands, in a cell too. So what
must stay text is taken out of the conversation while the template is filled, and what stands in
for it is turned into tokens apart, without control tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

__all__ = ["Literals"]


class Literals:
    """Texts that are out of a conversation while its template is filled.

    Examples:
        >>> kept = Literals()
        >>> rendered = f"<|user|>Say {kept.put('<|end|>')} twice.<|end|>"
        >>> list(kept.pieces(rendered))
        [('<|user|>Say ', False), ('<|end|>', True), (' twice.<|end|>', False)]
    """

    def __init__(self) -> None:
        # Nobody can write this into a cell beforehand.
        self._mark = f"llmframe{secrets.token_hex(8)}x"
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._texts)

    def put(self, text: str) -> str:
        """What stands in for `text`."""
        self._texts.append(text)
        return f"{self._mark}{len(self._texts) - 1}x"

    def pieces(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The filled template in order: a piece of it, and whether it is text that was put."""
        for place, piece in enumerate(re.split(f"{self._mark}([0-9]+)x", rendered)):
            if place % 2:
                yield self._texts[int(piece)], True
            elif piece:
                yield piece, False

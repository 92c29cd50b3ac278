"""What must never be shown: keys in messages, and credentials in URLs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

__all__ = ["hidden", "scrub", "split_user"]

_LOOKS_SECRET: Final = re.compile(r"\b(sk-|Bearer\s+)[^\s'\",;]+", re.IGNORECASE)


def hidden(values: Iterable[str]) -> tuple[str, ...]:
    """What `scrub` takes out, the longest first.

    Args:
        values: Secrets, and headers that hold one after a word such as ``Bearer``.
    """
    secrets = {part for value in values for part in (value, value.rpartition(" ")[2])}
    # A short one is no secret, and taking "a" out of a message would say more than it hides.
    return tuple(sorted((one for one in secrets if len(one) >= 6), key=len, reverse=True))


def scrub(text: str, secrets: tuple[str, ...]) -> str:
    """The text without these secrets, and without all that looks like a key."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _LOOKS_SECRET.sub(r"\1***", text)


def split_user(base_url: str | None) -> tuple[str, str | None]:
    """``user:password`` of a URL, and the URL without."""
    if base_url is None:
        return "", None
    parts = urlsplit(base_url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return "", base_url
    return unquote(user), urlunsplit((parts.scheme, host, parts.path, parts.query, ""))

"""Where requests to an OpenAI-compatible server go and what they carry, as the SDK would have it.

Nothing here raises with a secret in reach: what is wrong is told in `Settings.fault`, for a
caller whose own frame holds none. Debuggers and notebooks print the locals of every frame.
"""

from __future__ import annotations

import contextlib
import re
import threading
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from llmframe.engines.http import public_url
from llmframe.engines.redaction import hidden, scrub, split_user

__all__ = ["Settings", "scrub", "settings"]

_NO_KEY: Final = "none-needed"
_importing = threading.Lock()
_OF_THE_SDK: Final = {"accept", "content-type", "user-agent"}


@dataclass(repr=False)
class Settings:
    """What the engine needs to know; its repr shows nothing.

    Attributes:
        base_url: Without user, query and fragment; may be shown.
        url: Where every request goes.
        headers: Of every request.
        secrets: What must never be shown, longest first.
        official: The server is OpenAI's own.
        has_key: There is a key, or a client that brings one.
        fault: Why these settings cannot be used; holds no secret.
    """

    base_url: str
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    official: bool = False
    has_key: bool = False
    fault: str | None = None


def settings(
    endpoint: str,
    client: Any,
    base_url: str | None,
    api_key: str | None,
    headers: Mapping[str, str] | None,
) -> Settings:
    """Put together what was given and what the environment says.

    Args:
        endpoint: Path of the API, with ``/v1``.
        client: The user's own SDK client, or None.
        base_url: As given; None: the environment's, else OpenAI.
        api_key: As given; None: the environment's.
        headers: As given.
    """
    user, base_url = split_user(base_url)
    sdk, has_key = _sdk_client(client, base_url, api_key)
    if sdk is None:
        kind = type(client).__name__
        return Settings("", fault=f"client={kind}: expected an openai.OpenAI or AsyncOpenAI.")
    found = Settings(public_url(str(sdk.base_url)), has_key=has_key)
    parts = urlsplit(str(sdk.base_url))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        found.fault = f"base_url={found.base_url!r}: expected http(s):// and a host."
        return found
    found.official = f".{parts.hostname}".endswith(".api.openai.com")  # regions too
    path = parts.path.rstrip("/") + endpoint.removeprefix("/v1")
    found.url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    sent: dict[str, str] = {}
    if client is None:
        # What the SDK says of itself and of the platform is left out: it costs time per row.
        for name, value in sdk.default_headers.items():
            if name.lower() not in _OF_THE_SDK and not name.lower().startswith("x-stainless"):
                sent[name] = str(value)
        sent |= sdk.auth_headers
        if user and not has_key:
            sent["Authorization"] = "Basic " + b64encode(user.encode()).decode()
        sdk.close()
    given = {name: str(value) for name, value in (headers or {}).items()}
    lowered = {name.lower() for name in given}
    found.headers = {n: v for n, v in sent.items() if n.lower() not in lowered} | given
    for name, value in found.headers.items():
        if not value.isascii() or re.search(r"[\r\n\0]", value):
            found.fault = (
                f"the header {name!r} holds a line break or a non-ASCII character. "
                f"Was a key read from a file? Strip it."
            )
    key = getattr(sdk, "api_key", None)
    # Gateways name their keys as they like: every header of the user's may hold one.
    secrets = [user, user.partition(":")[2], found.headers.get("Authorization", "")]
    secrets += [*given.values(), *([key] if isinstance(key, str) else [])]
    found.secrets = hidden(one for one in secrets if not one.endswith(_NO_KEY))
    return found


def _sdk_client(client: Any, base_url: str | None, api_key: str | None) -> tuple[Any, bool]:
    """An SDK client for what it knows (the user's own, else one of ours), and whether it has a key.

    None in its place where the user's is no such client.
    """
    # Two threads that import the SDK at once can see it half loaded.
    with _importing:
        import openai

        make: Any = openai.OpenAI
        kinds = openai.OpenAI | openai.AsyncOpenAI
    if client is not None:
        return (client, True) if isinstance(client, kinds) else (None, False)
    # Nothing is sent through it. With the environment's proxies it would not even be made where
    # one of them needs a package that is not there.
    pool = openai.DefaultHttpxClient(trust_env=False)
    options = {"base_url": base_url, "max_retries": 0, "http_client": pool}
    key = None if api_key is None else api_key.strip()
    if key != "":
        with contextlib.suppress(openai.OpenAIError):
            sdk = make(api_key=key, **options)
            if sdk.api_key:
                return sdk, True
    return make(api_key=_NO_KEY, **options), False

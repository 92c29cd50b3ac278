"""Where requests to Anthropic go and what they carry, as the SDK would have it.

Nothing here raises with a secret in reach: what is wrong is told in `Settings.fault`, for a
caller whose own frame holds none. Debuggers and notebooks print the locals of every frame.
"""

from __future__ import annotations

import re
import threading
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from llmframe.engines.http import public_url
from llmframe.engines.redaction import hidden, split_user

__all__ = ["Settings", "settings"]

_NO_KEY: Final = "none-needed"
_importing = threading.Lock()
_OF_THE_SDK: Final = {"accept", "content-type", "user-agent"}


@dataclass(repr=False)
class Settings:
    """What the engine needs to know; its repr shows nothing.

    Attributes:
        base_url: Without user, query and fragment; may be shown.
        root: Where the API is, ``/v1`` left out; with the query that the user gave.
        headers: Of every request.
        secrets: What must never be shown, longest first.
        official: The server is Anthropic's own.
        has_key: There is a key, or a client that brings one.
        client: The SDK client to send through: the user's, or one whose credentials (a profile,
            a workload identity) change while it runs.
        fault: Why these settings cannot be used; holds no secret.
    """

    base_url: str
    root: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    official: bool = False
    has_key: bool = False
    client: Any = None
    fault: str | None = None

    def url(self, path: str) -> str:
        """URL of a path such as ``/v1/messages``."""
        parts = urlsplit(self.root)
        return urlunsplit((parts.scheme, parts.netloc, parts.path + path, parts.query, ""))


def settings(
    client: Any,
    base_url: str | None,
    api_key: str | None,
    headers: Mapping[str, str] | None,
) -> Settings:
    """Put together what was given and what the environment says.

    Args:
        client: The user's own SDK client, or None.
        base_url: As given; None: the environment's, else Anthropic.
        api_key: As given; None: the environment's.
        headers: As given.
    """
    user, base_url = split_user(base_url)
    try:
        # Two threads that import the SDK at once can see it half loaded.
        with _importing:
            import anthropic
    except ImportError:
        return Settings(
            "", fault="the package anthropic is not installed. Run: pip install anthropic"
        )
    if client is not None and not isinstance(
        client, anthropic.Anthropic | anthropic.AsyncAnthropic
    ):
        kind = type(client).__name__
        return Settings("", fault=f"client={kind}: expected an Anthropic or AsyncAnthropic.")
    sdk, has_key = (client, True) if client is not None else _sdk_client(base_url, api_key)
    found = Settings(public_url(str(sdk.base_url)), has_key=has_key)
    parts = urlsplit(str(sdk.base_url))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        found.fault = f"base_url={found.base_url!r}: expected http(s):// and a host."
        return found
    if parts.path.rstrip("/").endswith("/v1"):
        found.fault = f"base_url={found.base_url!r}: leave /v1 out, Anthropic's paths bring it."
        return found
    found.official = parts.hostname == "api.anthropic.com"
    found.root = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), parts.query, ""))
    sent: dict[str, str] = {}
    if client is not None or getattr(sdk, "credentials", None) is not None:
        found.client = sdk
    else:
        # What the SDK says of itself and of the platform is left out: it costs time per row.
        for name, value in {**sdk.default_headers, **sdk.auth_headers}.items():
            if name.lower() not in _OF_THE_SDK and not name.lower().startswith("x-stainless"):
                sent[name] = str(value)
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
    # Gateways name their keys as they like: every header may hold one, but the API's version.
    secrets = [user, user.partition(":")[2]]
    secrets += [v for n, v in found.headers.items() if n.lower() != "anthropic-version"]
    for own in (getattr(sdk, "api_key", None), getattr(sdk, "auth_token", None)):
        secrets += [own] if isinstance(own, str) else []
    found.secrets = hidden(one for one in secrets if not one.endswith(_NO_KEY))
    return found


def _sdk_client(base_url: str | None, api_key: str | None) -> tuple[Any, bool]:
    """An SDK client for what it knows, and whether it has a key."""
    import anthropic

    # Nothing is sent through it, but with credentials that change. With the environment's
    # proxies it would not even be made where one of them needs a package that is not there.
    pool = anthropic.DefaultHttpxClient(trust_env=False)
    options: dict[str, Any] = {"base_url": base_url, "max_retries": 0, "http_client": pool}
    key = None if api_key is None else api_key.strip()
    if key != "":
        sdk = anthropic.Anthropic(api_key=key, **options)
        if sdk.api_key or sdk.auth_token:
            return sdk, True
        if getattr(sdk, "credentials", None) is not None:
            sdk.close()
            del options["http_client"]
            return anthropic.Anthropic(**options), True
    return anthropic.Anthropic(api_key=_NO_KEY, **options), False

"""Where requests go and what they carry, as an SDK would have it: what the SDKs share.

Nothing here raises with a secret in reach: what is wrong is told in `Settings.fault`, for a
caller whose own frame holds none. Debuggers and notebooks print the locals of every frame.
"""

from __future__ import annotations

import os
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from llmframe.engines.http import public_url
from llmframe.engines.redaction import hidden, split_user

__all__ = ["NO_KEY", "Settings", "gather", "importing"]

NO_KEY: Final = "none-needed"
"""The key in the place of none: the SDKs cannot be made without."""
importing: Final = threading.Lock()
"""Two threads that import an SDK at once can see it half loaded."""
_OF_THE_SDK: Final = {"accept", "content-type", "user-agent"}
_NO_SECRET: Final = {"anthropic-version", "openai-organization", "openai-project"}


@dataclass(repr=False)
class Settings:
    """What an engine needs to know; its repr shows nothing.

    Attributes:
        base_url: Without user, query and fragment; may be shown.
        root: Where the API is, with the query that the user gave.
        version: How every path starts, where `root` ends so already.
        headers: Of every request.
        secrets: What must never be shown, longest first.
        official: The server is the provider's own.
        has_key: There is a key, or a client that brings one.
        client: The SDK client to send through: the user's, or one whose credentials (a profile,
            a workload identity) change while it runs.
        fault: Why these settings cannot be used; holds no secret.
    """

    base_url: str
    root: str = ""
    version: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    official: bool = False
    has_key: bool = False
    client: Any = None
    fault: str | None = None

    def url(self, path: str) -> str:
        """URL of a path such as ``/v1/messages``."""
        parts = urlsplit(self.root)
        path = parts.path + path.removeprefix(self.version)
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def gather(
    sdk_client: Callable[[Any, str | None, str | None], tuple[Any, bool] | str],
    client: Any,
    base_url: str | None,
    api_key: str | None,
    headers: Mapping[str, str] | None,
    *,
    variable: str,
    version: str = "",
) -> Settings:
    """Put together what was given and what the environment says.

    Args:
        sdk_client: Gives an SDK client for what it knows (the user's own, else one for a base_url
            and a key) and whether it has a key; or says why there is none.
        client: The user's own SDK client, or None.
        base_url: As given; None: the environment's, else the provider.
        api_key: As given; None: the environment's.
        headers: As given.
        variable: Where the environment names a base_url.
        version: Start of the paths that a base_url ends with.
    """
    fault = _misfit(base_url, api_key, headers, variable)
    if fault is not None:
        return Settings("", fault=fault)
    user, base_url = split_user(base_url)
    made = sdk_client(client, base_url, api_key)
    if isinstance(made, str):
        return Settings("", fault=made)
    sdk, has_key = made
    parts = urlsplit(str(sdk.base_url))
    root = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), parts.query, ""))
    found = Settings(public_url(root), root, version, has_key=has_key)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        found.fault = f"base_url={found.base_url!r}: expected http(s):// and a host."
        return found
    sent: dict[str, str] = {}
    if client is not None or getattr(sdk, "credentials", None) is not None:
        found.client = sdk
    else:
        # What the SDK says of itself and of the platform is left out: it costs time per row.
        for name, value in {**sdk.default_headers, **sdk.auth_headers}.items():
            own = name.lower() in _OF_THE_SDK or name.lower().startswith("x-stainless")
            # What has no value is there as an `Omit` object: no organisation, no project.
            if isinstance(value, str) and not own:
                sent[name] = value
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
    # Gateways name their keys as they like: every other header may hold one.
    secrets = [user, user.partition(":")[2]]
    secrets += [v for n, v in found.headers.items() if n.lower() not in _NO_SECRET]
    for own in (getattr(sdk, "api_key", None), getattr(sdk, "auth_token", None)):
        secrets += [own] if isinstance(own, str) else []
    found.secrets = hidden(one for one in secrets if not one.endswith(NO_KEY))
    return found


def _misfit(base_url: object, api_key: object, headers: object, variable: str) -> str | None:
    """Why what was given cannot be used: it is of no type that could be; else None."""
    # Of what is of the wrong type only the type is told: a secret may be in it all the same.
    if not isinstance(base_url, str | None):
        return (
            f"base_url= is of type {type(base_url).__name__}: expected text, such as "
            f"'http://127.0.0.1:8000'."
        )
    if not isinstance(api_key, str | None):
        return f"api_key= is of type {type(api_key).__name__}: expected text."
    try:
        found = urlsplit(base_url or os.environ.get(variable, ""))
        found.port  # noqa: B018 - it is read when asked for
    except ValueError:
        where = variable if base_url is None else "base_url="
        return f"{where} cannot be read as a URL: expected http(s)://, a host and perhaps a port."
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        return (
            f"headers= is of type {type(headers).__name__}: expected a dict of names and values, "
            f"such as {{'x-team': 'data'}}."
        )
    for name, value in headers.items():
        if not isinstance(name, str):
            return f"headers= has a name of type {type(name).__name__}: expected text."
        if not isinstance(value, str | int | float):
            return f"headers={{{name!r}: …}} is of type {type(value).__name__}: expected text."
    return None

"""Where requests to Anthropic go and what they carry, as the SDK would have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from llmframe.engines.sdk_settings import NO_KEY, Settings, gather, importing

__all__ = ["settings"]


def settings(
    client: Any = None,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Settings:
    """What was given and what the environment says, as `gather` puts it together."""
    found = gather(_sdk_client, client, base_url, api_key, headers, variable="ANTHROPIC_BASE_URL")
    parts = urlsplit(found.root)
    found.official = parts.hostname == "api.anthropic.com"
    if parts.path.endswith("/v1"):
        found.fault = f"base_url={found.base_url!r}: leave /v1 out, Anthropic's paths bring it."
    return found


def _sdk_client(client: Any, base_url: str | None, api_key: str | None) -> tuple[Any, bool] | str:
    """See `gather`."""
    try:
        with importing:
            import anthropic
    except ImportError:
        return "the package anthropic is not installed. Run: pip install anthropic"
    if client is not None:
        if isinstance(client, anthropic.Anthropic | anthropic.AsyncAnthropic):
            return client, True
        return f"client={type(client).__name__}: expected an Anthropic or AsyncAnthropic."
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
    return anthropic.Anthropic(api_key=NO_KEY, **options), False

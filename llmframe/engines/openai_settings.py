"""Where requests to an OpenAI-compatible server go and what they carry, as the SDK has it."""

from __future__ import annotations

import contextlib
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
    found = gather(
        _sdk_client, client, base_url, api_key, headers, variable="OPENAI_BASE_URL", version="/v1"
    )
    host = urlsplit(found.root).hostname
    found.official = f".{host}".endswith(".api.openai.com")  # regions too
    return found


def _sdk_client(client: Any, base_url: str | None, api_key: str | None) -> tuple[Any, bool] | str:
    """See `gather`."""
    with importing:
        import openai

        make: Any = openai.OpenAI
        kinds = openai.OpenAI | openai.AsyncOpenAI
    if client is not None:
        if isinstance(client, kinds):
            return client, True
        return f"client={type(client).__name__}: expected an openai.OpenAI or AsyncOpenAI."
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
    return make(api_key=NO_KEY, **options), False

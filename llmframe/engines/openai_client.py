"""Requests through an OpenAI client that the user made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llmframe.engines.http import Reply
from llmframe.engines.sdk_client import SdkClient

__all__ = ["Client"]


class Client(SdkClient):
    """Requests through `openai.OpenAI` or `openai.AsyncOpenAI`, as `SdkClient` does it.

    Args:
        client: The user's client.
        headers: Further headers of every request.
        timeout: Seconds for one request.
        endpoint: ``"/v1/chat/completions"`` or ``"/v1/responses"``.
    """

    def __init__(
        self,
        client: Any,
        headers: Mapping[str, str],
        timeout: float,
        endpoint: str = "/v1/chat/completions",
    ) -> None:
        import openai

        super().__init__(openai, "OpenAI", client, headers, timeout)
        responses = endpoint == "/v1/responses"
        self._asked = "input" if responses else "messages"
        self._create = (
            self._client.responses if responses else self._client.chat.completions
        ).with_raw_response.create

    async def post(self, body: bytes) -> Reply:
        """Send one request; see `Transport.post`."""
        fields = orjson.loads(body)
        call = {
            "model": fields.pop("model"),
            self._asked: fields.pop(self._asked),
            "extra_body": fields,
            "extra_headers": self._headers or None,
        }
        return await self._reply(lambda: self._create(**call))

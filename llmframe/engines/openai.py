"""OpenAI, and every server that speaks its protocol: live, and as provider batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from llmframe.engines.base import Figures
from llmframe.engines.http import Transport
from llmframe.engines.openai_batch import MAX_BYTES, MAX_REQUESTS, BatchCalls
from llmframe.engines.openai_bodies import Bodies, Features, features_of, marked, refused
from llmframe.engines.openai_settings import settings
from llmframe.engines.openai_wire import from_wire
from llmframe.engines.sdk_settings import Settings
from llmframe.engines.server import ServerEngine
from llmframe.engines.server_figures import ServerMeter
from llmframe.errors import ModelError
from llmframe.requests import Request
from llmframe.results import Result

__all__ = ["OpenAI", "OpenAIBatch"]

_CHAT: Final = "/v1/chat/completions"
_RESPONSES: Final = "/v1/responses"


class OpenAI(ServerEngine[Features]):
    """An OpenAI-compatible server, asked live, many requests at once.

    Args:
        model: The model's name at the server, such as ``"gpt-4.1-mini"``.
        base_url: Where the server is, ``/v1`` included; else ``OPENAI_BASE_URL``, else OpenAI.
        api_key: The key; else ``OPENAI_API_KEY``. A server of your own needs none.
        batch: Provider batches in place of live requests: an `OpenAIBatch`.
        timeout: Seconds for one request; waiting for its turn does not count.
        headers: Further headers of every request.
        concurrency: Requests in flight at once (32).
        endpoint: Path of the API: ``"/v1/chat/completions"`` or ``"/v1/responses"``.
        revision: Free text that goes into every key: for weights that change behind one name.
        prompt_cache: Tell the prompt cache where the constant start of the prompt ends, from 4,096
            characters on (`prompt_cache_key` and a breakpoint). None: for GPT-5.6 and later at
            api.openai.com, which cache nothing of a template otherwise; True: for this model at
            this server; False: never. Earlier models, and most other servers, cache unasked.
        client: An `openai.OpenAI` or `openai.AsyncOpenAI` of your own, through which every
            request goes.
        max_batch_requests: Requests in one provider batch, at most (50,000, as OpenAI takes).
        max_batch_bytes: Bytes in one provider batch, at most (200 MB, as OpenAI takes).
        cleanup: Delete a batch's files at the provider once the store has a result of each of
            its rows; where one has none, they stay.

    Raises:
        ModelError: No key, or a value that cannot be used; nothing was sent.

    Examples:
        >>> engine = OpenAI("my-model", base_url="http://127.0.0.1:8000/v1")
        >>> engine
        OpenAI('my-model', base_url='http://127.0.0.1:8000/v1')
        >>> engine.close()
    """

    name = "openai"
    _title = "OpenAI"
    _example = "gpt-4.1-mini"
    _usual_endpoint = _CHAT
    _adaptations = 6
    _batch_size = (MAX_REQUESTS, MAX_BYTES)
    _gather = staticmethod(settings)
    _read = staticmethod(from_wire)
    _refused = staticmethod(refused)

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        batch: bool = False,
        timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
        concurrency: int | None = None,
        endpoint: str = _CHAT,
        revision: str = "",
        prompt_cache: bool | None = None,
        client: Any = None,
        max_batch_requests: int | None = None,
        max_batch_bytes: int | None = None,
        cleanup: bool = False,
    ) -> None:
        self.model, self.base_url = model, ""  # what `repr` needs, should anything be raised
        found = settings(client, base_url, api_key, headers)
        # First, since debuggers and notebooks print the locals of a frame that raised.
        del base_url, api_key, headers
        if endpoint not in (_CHAT, _RESPONSES):
            raise ModelError(f"endpoint={endpoint!r}: expected {_CHAT!r} or {_RESPONSES!r}.")
        if prompt_cache not in (None, True, False):
            raise ModelError(f"prompt_cache={prompt_cache!r}: expected True, False or None.")
        self.prompt_cache = prompt_cache
        if batch and type(self) is OpenAI:
            # One name and one signature for both lanes: what a user changes is `batch=` alone.
            self.__class__ = OpenAIBatch
        super().__init__(
            model,
            found,
            endpoint=endpoint,
            batch=batch,
            timeout=timeout,
            concurrency=concurrency,
            revision=revision,
            max_batch_requests=max_batch_requests,
            max_batch_bytes=max_batch_bytes,
            cleanup=cleanup,
        )

    def made(self) -> dict[str, Any] | None:
        """As in `ServerEngine`."""
        arguments = super().made()
        own = {"endpoint": self.endpoint, "prompt_cache": self.prompt_cache}
        return None if arguments is None else {**arguments, **own}

    def _start(self, found: Settings, features: Features) -> None:
        super()._start(found, features)
        self._meter = ServerMeter(self.base_url)
        self._bodies = Bodies(self.model, responses=self.endpoint == _RESPONSES)

    def figures(self) -> Figures | None:
        """What the server is doing, where it is vLLM's, behind ``http://``; None elsewhere."""
        return self._meter.figures()

    def batched(self) -> OpenAIBatch:
        """The same engine with ``batch=True``.

        Raises:
            ModelError: It is of a class of the user's own.
        """
        if type(self) is not OpenAI:
            raise ModelError(
                f"{type(self).__name__} has no batches. Pass lf.OpenAI(…, batch=True)."
            )
        return self._as(OpenAIBatch, batch=True)

    def _guess(self, found: Settings) -> Features:
        features = features_of(self.model, found.official, self.prompt_cache)
        if self.endpoint == _CHAT:
            return features
        return replace(features, limit="max_output_tokens", limit_settled=True)

    def _scores(self, features: Features) -> bool:
        return features.top_logprobs > 0

    def __getstate__(self) -> dict[str, Any]:
        """As any engine's, and what was said of the prompt cache."""
        return {**super().__getstate__(), "prompt_cache": self.prompt_cache}

    def marked(self, request: Request) -> str:
        """The constant start of a prompt that the prompt cache is told of; may be empty."""
        return marked(request, self._features)

    def _through(self, client: Any) -> Transport:
        from llmframe.engines.openai_client import Client

        return Client(client, self._settings.headers, self.timeout, self.endpoint)

    def _encode(self, request: Request, features: Features) -> bytes:
        return self._bodies.encode(request, features)

    def accepts(self, schema: Mapping[str, Any]) -> None:
        """Look whether a schema can be put on the wire.

        Raises:
            SchemaError: It cannot; nothing was sent.
        """
        from llmframe.schemas import dialects

        dialects.openai_strict(schema)

    def _look_at(self, request: Request, result: Result, body: bytes, features: Features) -> None:
        """Learn from an answer what no error says."""
        if request.sampling.temperature is None and not features.temperature:
            self._notice(
                f"{self.model} takes no temperature=0, so none is sent: the same call may get "
                f"other answers another time.",
            )
        if (
            request.choices is not None
            and features.top_logprobs
            and result.failure is None
            and b'"top_logprobs"' not in body
        ):
            self._learn(features, replace(features, top_logprobs=0))

    def _lost(self, seen: Features, learned: Features) -> str | None:
        if seen.cache_marks and not learned.cache_marks:
            return f"{self.base_url} refuses marks for the prompt cache: {self.model} gets none."
        if not seen.response_format or learned.response_format:
            return None
        return (
            f"{self.base_url} refuses response_format for {self.model}: the schema goes into "
            f"the prompt, and replies are checked here."
        )


class OpenAIBatch(OpenAI, BatchCalls):
    """OpenAI's Batch API, or that of a service that imitates it: what ``batch=True`` makes.

    Half the price, within a day. Its keys are those of the live engine, which it is too:
    `probe` and `stream` ask live.

    Examples:
        >>> engine = OpenAI("my-model", base_url="http://127.0.0.1:8000/v1", batch=True)
        >>> engine
        OpenAI('my-model', base_url='http://127.0.0.1:8000/v1', batch=True)
        >>> engine.limits.max_requests, engine.limits.max_bytes
        (50000, 200000000)
    """

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, batch=True)"

    def _check(self) -> None:
        super()._check()
        if self._settings.client is not None:
            import openai

            if not isinstance(self._settings.client, openai.OpenAI):
                raise ModelError("batch=True takes an openai.OpenAI as client=, not an async one.")

    def _start(self, found: Settings, features: Features) -> None:
        super()._start(found, features)
        self._begin()

    def live(self) -> OpenAI:
        """The same engine with ``batch=False``.

        Raises:
            ModelError: It is of a class of the user's own.
        """
        if type(self) is not OpenAIBatch:
            raise ModelError(f"{type(self).__name__} answers in batches. Leave batch=False out.")
        return self._as(OpenAI, batch=False)

    def probe(self, request: Request) -> Result | None:
        """Ask one request live: what the model refuses shows before a batch is paid for.

        What is learned from a refusal (no temperature, another name of the limit) holds for
        the lines of the batches too.
        """
        return self._probed(request)

    def _encoded(self, request: Request) -> bytes:
        return self._bodies.encode(request, self._features)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        super().close()
        self._end()

"""llama.cpp's server inside this process: loading, chat template, tokens, completions.

Completions go through the library itself. Template and tokeniser are reached over the server's
own loopback port, the only way it offers; the port asks for a random key.
"""

from __future__ import annotations

import ctypes
import http.client
import importlib.util
import json
import math
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmframe.engines.control_tokens import Literals
from llmframe.engines.local_scoring import LabelTree
from llmframe.errors import EngineError, ModelError, sentence
from llmframe.requests import Message
from llmframe.results import Failure, Usage

__all__ = [
    "Cancelled",
    "Completion",
    "Config",
    "LlamaServer",
    "Refused",
    "drop",
    "get",
    "is_loaded",
    "require",
]

LEAD: Final = "Category:"
"""How the reply starts where labels are scored. Without it a small model is about to start a
sentence, and the probabilities of the labels say little. ("Label:" finds fewer: 0.73 of 160
bank questions against 0.78, 0.55 of 40 text messages against 0.68.)"""

# An abort is heard between two of these; a whole prompt at once would keep a core busy for
# half a minute after it.
_PROMPT_CHUNK: Final = 256

# Every control token that a model was seen to have holds one of these.
_MAY_CONTROL: Final = re.compile("[<\\[{|\uff5c]")

# Added to a logit: larger than any difference between two, small enough for 32-bit floats to
# keep five digits of what is added to.
_LIFT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Config:
    """What makes one loaded model different from another.

    Attributes:
        path: The GGUF file.
        window: Tokens of prompt and reply together, in each slot.
        threads: Threads that write a reply, and that read a prompt.
        slots: Replies written at once.
    """

    path: Path
    window: int
    threads: tuple[int, int]
    slots: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote; `probs` of its first token, where they were asked for."""

    text: str
    finish: str
    usage: Usage
    probs: Mapping[str, Any]


class Refused(Exception):  # noqa: N818 - a verdict on one request
    """The server cannot answer this request; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Cancelled(Exception):  # noqa: N818 - asked for
    """The request was given up on the caller's word."""


class LlamaServer:
    """One loaded model. Safe to call from several threads; loading takes a second or more.

    Attributes:
        window: Tokens of prompt and reply together; less than asked for where the model was
            trained on less.
        scoring: Held while one row's labels are scored, whose calls share the row's prompt in
            the prefix cache.
    """

    def __init__(self, config: Config) -> None:
        library = _library()
        self._key = secrets.token_urlsafe(24)
        params = library.CommonParams()
        params.model.path = str(config.path)
        params.n_ctx = config.window * config.slots
        params.n_parallel = config.slots
        params.n_batch = _PROMPT_CHUNK
        params.n_ubatch = _PROMPT_CHUNK
        params.cpuparams.n_threads, params.cpuparams_batch.n_threads = config.threads
        params.verbosity = -1
        # Up to 8 GB of memory for prompts that were left; rows of a job share theirs anyway.
        params.cache_ram_mib = 0
        params.hostnames = ["127.0.0.1"]
        params.api_keys = [self._key]
        params.ui = False
        try:
            self._server = library.Server(params)
        except RuntimeError as error:
            raise EngineError(
                f"llama.cpp cannot load {config.path}: {sentence(error)} Check that it is a "
                f"whole GGUF file of a model that writes text, and that memory suffices.",
                provider="local",
            ) from None
        self._address = self._server.listening_address.removeprefix("http://")
        settings = self._ask("GET", "/props")
        self.window: int = settings["default_generation_settings"]["n_ctx"]
        self.scoring = threading.Lock()
        self._trees: dict[tuple[str, ...], LabelTree] = {}

    def prompt(
        self, messages: Sequence[Message], template: Mapping[str, Any], lead: str = ""
    ) -> list[int]:
        """Tokens of the conversation in the model's own chat template.

        Text that spells a control token of the model stays text: no cell ends its own turn.

        Args:
            messages: The conversation.
            template: Arguments of the chat template.
            lead: Text that the reply starts with.

        Raises:
            Refused: The template does not take such a conversation.
        """
        kept = Literals()
        told = [{**m, "content": self._kept(m["content"], kept)} for m in messages]
        tokens: list[int] = []
        for piece, literal in kept.pieces(self._render(told, template) + lead):
            # Only at the very start may the model want a token in front.
            tokens += self._tokens(piece, control=not literal, start=not tokens)
        return tokens

    def labels(self, choices: tuple[str, ...]) -> LabelTree:
        """Token sequences of `choices` as they follow `LEAD`."""
        tree = self._trees.get(choices)
        if tree is None:
            before = self._tokens(LEAD)
            tree = LabelTree([self._label(text, before) for text in choices])
            self._trees = {choices: tree}
        return tree

    def follow(
        self, prompt: Sequence[int], tokens: Sequence[int], stop: Callable[[], bool]
    ) -> tuple[dict[int, float], Usage]:
        """Natural-log probability of each of `tokens` as the next one.

        Exact, however improbable: a bias lifts them above all others, ``top_k`` keeps exactly
        them, and what the sampler would draw from is the model's distribution over them.

        Returns:
            Token → logarithm of its share among `tokens` (`alone` has the missing constant).
        """
        body = {
            "prompt": list(prompt),
            "n_predict": 1,
            "logit_bias": [[token, _LIFT] for token in tokens],
            "samplers": ["top_k", "temperature"],
            "top_k": len(tokens),
            "temperature": 1.0,
            "n_probs": len(tokens),
            "post_sampling_probs": True,
            "id_slot": 0,
        }
        done = self.complete(body, stop)
        return {entry["id"]: _log(entry["prob"]) for entry in done.probs["top_probs"]}, done.usage

    def alone(
        self, prompt: Sequence[int], token: int, stop: Callable[[], bool]
    ) -> tuple[float, Usage]:
        """Natural-log probability of `token` as the next one, over the whole vocabulary."""
        body = {
            "prompt": list(prompt),
            "n_predict": 1,
            "logit_bias": [[token, _LIFT]],
            "temperature": 0.0,
            "n_probs": 1,
            "id_slot": 0,
        }
        done = self.complete(body, stop)
        return max(done.probs["logprob"], _log(0.0)), done.usage

    def complete(self, body: Mapping[str, Any], stop: Callable[[], bool]) -> Completion:
        """Run one completion, asking `stop` after every token and every piece of the prompt.

        Raises:
            Refused: The server refused it.
            Cancelled: `stop` said so.
            RuntimeError: The library failed.
        """
        chunks: list[Mapping[str, Any]] = []

        def receive(chunk: Mapping[str, Any]) -> bool:
            chunks.append(chunk)
            return stop()

        streamed = {**body, "stream": True, "return_progress": True}
        self._server.handle_completions(streamed, receive)
        last = chunks[-1] if chunks else {}
        if "error" in last:
            raise Refused(_failure(last["error"]))
        if "usage" in last:
            return _completion(chunks)
        if stop():
            raise Cancelled
        raise RuntimeError("llama.cpp ended a reply before its end.")

    def _render(self, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
        body = {"messages": list(messages), "chat_template_kwargs": dict(template)}
        reply = self._ask("POST", "/apply-template", body)
        if "error" in reply and messages and messages[0]["role"] == "system":
            # Some templates (Gemma) know no system message; its text then opens the first turn.
            body["messages"] = _without_system(messages)
            reply = self._ask("POST", "/apply-template", body)
        if "error" in reply:
            raise Refused(
                Failure(
                    "invalid_request",
                    f"the model's chat template refuses the messages: {reply['error']['message']}",
                )
            )
        return str(reply["prompt"])

    def _kept(self, content: Any, kept: Literals) -> Any:
        """A message's content, less what the tokenizer would read control tokens in."""
        if not isinstance(content, str):
            return [
                {**part, "text": self._kept(part["text"], kept)} if "text" in part else part
                for part in content
            ]
        bare = content.strip()  # as some templates do
        if not _MAY_CONTROL.search(bare) or (
            self._tokens(bare) == self._tokens(bare, control=True)
        ):
            return content
        return content.replace(bare, kept.put(bare))

    def _tokens(self, text: str, *, control: bool = False, start: bool = False) -> list[int]:
        body = {"content": text, "add_special": start, "parse_special": control}
        tokens: list[int] = self._ask("POST", "/tokenize", body)["tokens"]
        return tokens

    def _label(self, text: str, before: list[int]) -> list[int]:
        # Words, not identifiers: a model has seen "lost card" more often than "lost_card".
        written = " " + " ".join(text.replace("_", " ").split())
        tokens = self._tokens(LEAD + written)
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return self._tokens(written)

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers)
            reply: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return reply


def _completion(chunks: Sequence[Mapping[str, Any]]) -> Completion:
    last = chunks[-1]
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    usage = last["usage"]
    return Completion(
        text="".join(chunk["choices"][0]["text"] for chunk in chunks),
        finish=last["choices"][0]["finish_reason"],
        usage=Usage(
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ),
        probs=next((logprobs["content"][0] for logprobs in found if logprobs), {}),
    )


def _log(probability: float) -> float:
    # Probabilities come as 32-bit floats, which end here; 0 means "below".
    return math.log(max(probability, 1.2e-38))


def _failure(error: Mapping[str, Any]) -> Failure:
    message = str(error.get("message", "no reason given"))
    if error.get("type") == "exceed_context_size_error":
        return too_long(int(error["n_prompt_tokens"]), int(error["n_ctx"]))
    if error.get("type") == "invalid_request_error":
        return Failure("invalid_request", f"llama.cpp refuses the request: {message}")
    return Failure("provider_error", f"llama.cpp failed: {message}", retryable=True)


def too_long(tokens: int, window: int) -> Failure:
    """The verdict on a prompt that leaves no room for a reply."""
    return Failure(
        "prompt_too_long",
        f"the prompt has {tokens:,} tokens and the window {window:,}, reply included. Shorten the "
        f"text, or give lf.Local(n_ctx=…) up to what the model was trained on.",
    )


def _without_system(messages: Sequence[Message]) -> list[Message]:
    system, *others = messages
    if not others or not isinstance(others[0]["content"], str):
        return [{**system, "role": "user"}, *others]
    first = {**others[0], "content": f"{system['content']}\n\n{others[0]['content']}"}
    return [first, *others[1:]]


def require() -> None:
    """Raise ModelError where the library is not installed, without importing it."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ModelError(
            "the local engine needs xllamacpp. Run: pip install 'llmframe[local]' "
            "(in a checkout: pip install -e '.[local]')."
        )


def _library() -> Any:
    require()
    # Threads that spin while they wait for work make two busy cores four times slower (19
    # against 88 tokens a second). OpenMP reads this once, when the library is loaded.
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelError(
            f"xllamacpp cannot be loaded: {sentence(error)} Where libgomp.so.1 is missing, install "
            f"the system's libgomp (Debian, Ubuntu: apt install libgomp1)."
        ) from error
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]
    return xllamacpp


_servers: dict[Config, LlamaServer] = {}
_loading = threading.Lock()


def get(config: Config) -> LlamaServer:
    """The process's one server of this configuration, loaded when first asked for."""
    with _loading:
        server = _servers.get(config)
        if server is None:
            server = _servers[config] = LlamaServer(config)
        return server


def is_loaded(config: Config) -> bool:
    """Whether the server of this configuration is there already."""
    return config in _servers


def drop(config: Config) -> None:
    """Forget the server; its memory goes when the last call that uses it ends."""
    with _loading:
        _servers.pop(config, None)


def _after_fork() -> None:
    # The threads of the servers stayed in the parent. Destroying one here would wait for them
    # for ever, so the copies are leaked, and a child that needs a model loads its own.
    global _loading
    _loading = threading.Lock()
    for server in _servers.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

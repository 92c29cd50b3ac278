"""The vLLM engine under the contract of every engine, with a stand-in for the library.

What is tried here is llmframe's own: the thread, feeding, aborts, ends, the watch. The real
library has `tests/on_vllm`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pandas as pd
import pytest
from pydantic import BaseModel, ValidationError, field_validator

import llmframe as lf
from llmframe.engines import vllm_core, vllm_errors, vllm_loading
from llmframe.engines.base import Engine, Figures
from llmframe.engines.vllm import VLLM
from llmframe.engines.vllm_requests import Asked
from llmframe.errors import EngineError, ModelError
from llmframe.testing import ListSource, Switch, drive, requests
from tests.contract.kit import Case, Running
from tests.contract.test_engines import *  # noqa: F403 - the tests themselves


class EngineDeadError(RuntimeError):
    """As vLLM's, by name."""


class StandIn:
    """Behaves as ``LLMEngine`` does: a reply is the prompt, some steps after it was added.

    Attributes:
        in_flight_max: Most requests that it had at once.
        step_seconds: What a step takes.
        broken: Raised by the next step.
        loaded: It was not shut down.
    """

    model_config = SimpleNamespace(max_model_len=10_000)

    def __init__(self, latency: float, max_num_seqs: int = 256) -> None:
        self.latency = latency
        self.max_num_seqs = max_num_seqs
        self.loaded = True
        self.waiting: dict[str, tuple[float, list[int]]] = {}
        self.in_flight_max = 0
        self.aborted: list[str] = []
        self.step_seconds = 0.0005
        self.broken: BaseException | None = None
        self.refuses = ""
        self.threads: set[int] = set()
        self.engine_core = SimpleNamespace(shutdown=self.shutdown)

    def shutdown(self) -> None:
        self.loaded = False

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> None:
        self.threads.add(threading.get_ident())
        if self.refuses and bytes(prompt["prompt_token_ids"]).decode() == self.refuses:
            raise ValueError(f"no {self.refuses}\nand more lines")
        self.waiting[name] = (time.monotonic() + self.latency, prompt["prompt_token_ids"])
        self.in_flight_max = max(self.in_flight_max, len(self.waiting))

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.waiting.pop(name, None)

    def step(self) -> list[Any]:
        self.threads.add(threading.get_ident())
        assert self.waiting, "the real one would wait for ever"
        time.sleep(self.step_seconds)
        if self.broken is not None:
            raise self.broken
        now = time.monotonic()
        done = [name for name, (due, _) in self.waiting.items() if due <= now]
        return [self._output(name, self.waiting.pop(name)[1]) for name in done]

    def _output(self, name: str, tokens: list[int]) -> Any:
        reply = SimpleNamespace(
            text=bytes(tokens).decode(), token_ids=tokens, finish_reason="stop", logprobs=None
        )
        return SimpleNamespace(
            request_id=name, finished=True, outputs=[reply], prompt_token_ids=tokens
        )


class EchoWords:
    """Asks for the last message's text as it is."""

    def __init__(self, library: Any) -> None:
        pass

    def ask(self, request: Any, prompts: Any) -> Asked:
        tokens = list(request.messages[-1]["content"].encode())
        return Asked([({"prompt_token_ids": tokens}, None)])


@contextmanager
def standing_in(latency: float, children: Sequence[Any] = (), **options: Any) -> Iterator[VLLM]:
    made: list[StandIn] = []

    def load(model: str, given: Any) -> tuple[Any, list[Any]]:
        assert not [engine for engine in made if engine.loaded], "no GPU holds two of them"
        made.append(StandIn(latency, given["max_num_seqs"]))
        return SimpleNamespace(llm_engine=made[-1], get_tokenizer=lambda: None), [*children]

    with (
        mock.patch.object(vllm_loading, "require"),
        mock.patch.object(vllm_loading, "load", load),
        mock.patch.object(vllm_core, "Words", EchoWords),
        mock.patch.dict("sys.modules", {"vllm": SimpleNamespace()}),
    ):
        engine: Any = VLLM("stand-in", **options)
        engine.loads = made
        try:
            yield engine
        finally:
            engine.close()


@pytest.fixture
def case() -> Case:
    return Case("vllm", standing_in, in_flight_max=lambda e: e.loads[-1].in_flight_max)


# The stand-ins belong to the test, so this engine is compared by what it says of itself.
def test_identity_is_plain_text_and_survives_pickling(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    engine = VLLM(tmp_path, max_num_seqs=4, dtype="bfloat16", enforce_eager=True)
    identity = dict(engine.identity())
    import pickle

    assert dict(pickle.loads(pickle.dumps(engine)).identity()) == identity
    assert identity["dtype"] == "bfloat16"
    # Another path and other knobs are the same model; other weights are not.
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "config.json").write_text("{}")
    same = VLLM(moved, max_num_seqs=64, gpu_memory_utilization=0.5, dtype="bfloat16")
    assert dict(same.identity()) == identity
    (moved / "model.safetensors").write_bytes(b"12")
    assert dict(same.identity()) != identity


def test_one_thread_speaks_to_the_engine():
    with standing_in(0.0) as engine:
        for name in "ab":
            drive(engine, requests([f"{name}{i}" for i in range(20)]))
        [stand_in] = engine.loads
    assert len(stand_in.threads) == 1
    assert threading.get_ident() not in stand_in.threads


def test_what_an_interrupted_stream_left_is_aborted_and_the_next_gets_its_own():
    with standing_in(3600.0) as engine:
        stream = engine.stream(ListSource(requests(["old"] * 8)), Switch(limit=8))
        running = Running(lambda: next(stream))
        while not engine.loads or len(engine.loads[0].waiting) < 8:
            time.sleep(0.001)
        [stand_in] = engine.loads
        first, *left = list(stand_in.waiting)
        stand_in.waiting[first] = (0.0, stand_in.waiting[first][1])
        running.value()
        stream.close()
        stand_in.latency = 0.0
        texts = [result.text for result in drive(engine, requests(["new 1", "new 2"]))]
        assert sorted(texts) == ["new 1", "new 2"]
        assert sorted(stand_in.aborted) == sorted(left)


def test_a_request_that_vllm_refuses_fails_alone():
    with standing_in(0.0) as engine:
        asked = requests(["a", "b"])
        drive(engine, requests(["load"]))
        engine.loads[0].refuses = "a"
        found = {result.key: result for result in drive(engine, asked)}
    assert found[asked[1].key].text == "b"
    failure = found[asked[0].key].failure
    assert (failure.kind, failure.fatal) == ("invalid_request", False)
    assert failure.message == "vLLM refuses the request: no a"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (EngineDeadError("EngineCore encountered an issue."), "lower max_num_batched_tokens"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "Lower max_num_batched"),
    ],
)
def test_a_dead_engine_ends_the_job_with_the_knob_and_the_next_call_loads_anew(error, advice):
    with standing_in(0.05) as engine:
        drive(engine, requests(["load"]))
        engine.loads[0].broken = error
        results = drive(engine, requests(["a", "b", "c"]))
        assert [result.failure.kind for result in results] == ["engine_lost"] * 3
        assert all(result.failure.fatal for result in results)
        assert advice in results[0].failure.message
        assert drive(engine, requests(["d"]))[0].text == "d"
        assert len(engine.loads) == 2


class Child:
    """A process of ours, as `multiprocessing` shows one."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.pid = self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.kill()
    made.process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM's children are guarded on Linux")
def test_the_guard_ends_the_child_it_was_started_for_and_no_other_of_its_id(child):
    guard = vllm_loading.guard([child])
    *command, pid, born = guard.args
    assert pid == str(child.pid)
    # Who has that id by then, began later.
    late = subprocess.Popen([*command, pid, str(int(born) - 1)], stdin=subprocess.PIPE)
    late.communicate()
    assert child.is_alive()
    guard.communicate()
    assert child.process.wait(timeout=5) == -9
    assert vllm_loading.guard([child]) is None, "it has ended"


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM's children are guarded on Linux")
def test_no_guard_outlives_close_however_the_engine_died(child):
    over = threading.Event()
    with standing_in(0.05, [child]) as engine:
        drive(engine, requests(["load"]))
        guard = vllm_core.loaded(engine._config())._guard
        assert guard.poll() is None
        # vLLM clears up in a thread of its own, too, and the two may wait for each other.
        engine.loads[0].engine_core.shutdown = over.wait
        child.kill()
        child.process.wait()
        engine.loads[0].broken = EngineDeadError("EngineCore encountered an issue.")
        assert drive(engine, requests(["a"]))[0].failure.kind == "engine_lost"
        engine.close()
        assert guard.returncode is not None
        over.set()


def test_a_tuned_engine_is_the_loaded_one(tmp_path):
    df = pd.DataFrame({"t": [f"row {i}" for i in range(200)]})
    with standing_in(0.01) as kept, VLLM(tmp_path, max_num_seqs=4) as model:
        model.load()
        tuning = model.tune(df, "{t}", start=2, stop=16)
        # Not two at once, which `load` looks after, and not again for the number that is best.
        assert [engine.max_num_seqs for engine in kept.loads] == [4, 16]
        out = lf.map(df, "{t}", model=tuning.engine, into="a")
        assert out["a"].tolist() == df["t"].tolist()
        kept.loads[-1].in_flight_max = 0
        lf.map(df, "{t}!", model=model, into="b")
        assert kept.loads[-1].in_flight_max == 4, "its own number, as loaded for it"
        assert len(kept.loads) == 2
        assert kept.loads[-1].loaded
    assert not kept.loads[-1].loaded, "one close is enough for both"
    assert tuning.engine.figures() is None


def test_u071_the_same_cell_again_has_the_same_engine_and_another_model_its_own():
    with standing_in(0.0) as first:
        drive(first, requests(["a"]))
        # The cell again: `lf.VLLM(…)` anew, of the same arguments.
        assert drive(VLLM("stand-in"), requests(["b"]))[0].text == "b"
        assert len(first.loads) == 1
        first.close()
        assert not first.loads[0].loaded
        # `load` refuses a second one beside it, as a GPU would.
        with VLLM("another") as other:
            assert drive(other, requests(["c"]))[0].text == "c"
        assert [engine.loaded for engine in first.loads] == [False, False]


def test_u071_no_room_for_a_second_model_names_what_to_close():
    said = ValueError("Free memory on device cuda:0 (3/24 GiB) on startup is less than desired")
    with pytest.raises(EngineError, match=r"'x'.*close\(\) another lf\.VLLM of this process"):
        raise vllm_loading.cannot("x", said)


def test_a_busy_engine_is_not_closed_for_a_larger_one():
    with standing_in(0.05, max_num_seqs=2) as engine:
        stream = engine.stream(ListSource(requests(["a"] * 4)), Switch(limit=2))
        first = next(stream)
        larger = drive(engine.with_knobs(max_num_seqs=8), requests(["b"]))
        assert [result.text for result in larger] == ["b"]
        left = [result for results in stream for result in results]
        assert [result.text for result in [*first, *left]] == ["a"] * 4


def test_an_engine_that_hangs_is_given_up():
    with standing_in(0.0, timeout=0.3) as engine:
        drive(engine, requests(["load"]))
        engine.loads[0].step_seconds = 3.0
        start = time.monotonic()
        [result] = drive(engine, requests(["a"]))
        assert time.monotonic() - start < 2
        assert (result.failure.kind, result.failure.fatal) == ("engine_lost", True)
        assert "no sign of life for 0.3 s" in result.failure.message
        assert "timeout" in result.failure.message


def test_a_stream_that_comes_as_the_engine_is_closed_ends():
    with standing_in(0.0) as engine:
        drive(engine, requests(["load"]))
        core = vllm_core.loaded(engine._config())
        engine.close()
        late = vllm_core.Stream(ListSource(requests(["a"])), Switch())
        core.join(late)
        assert late.out.get(timeout=5) is None
        assert drive(engine, requests(["b"]))[0].text == "b", "the next use loads it again"


def test_long_rows_are_no_hang():
    with standing_in(1.0, timeout=0.3) as engine:
        assert drive(engine, requests(["a"]))[0].failure is None


def test_a_model_that_cannot_be_loaded_says_so_each_time():
    error = EngineError("vLLM cannot load 'x'", provider="vllm")
    with (
        mock.patch.object(vllm_loading, "require"),
        mock.patch.object(vllm_loading, "load", side_effect=error),
    ):
        engine: Engine = VLLM("x")
        for _ in range(2):
            with pytest.raises(EngineError, match="cannot load"):
                drive(engine, requests(["a"]))


def test_the_library_that_is_not_there(monkeypatch):
    monkeypatch.setattr(vllm_loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'llmframe\[vllm\]'"):
        drive(VLLM("x"), requests(["a"]))
    VLLM("x").close()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "To serve at least one request with the models's max seq len (131072), 16.00 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (9.1 GiB).",
            "Lower max_model_len",
        ),
        ("No available memory for the cache blocks.", "Raise gpu_memory_utilization"),
        ("Free memory on device cuda:0 (3/24 GiB) on startup is less than", "close() another"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "Lower max_num_batched_tokens"),
        ("unknown architecture", ""),
    ],
)
def test_advice_names_the_knob(said, told):
    assert told in vllm_errors.advice(said)
    assert bool(vllm_errors.advice(said)) == bool(told)


def test_a_refused_engine_argument_comes_with_its_reason():
    class ModelConfig(BaseModel, arbitrary_types_allowed=True):
        dtype: Literal["auto", "half"] | ModuleType
        quantization: str

        @field_validator("quantization")
        @classmethod
        def known(cls, value: str) -> str:
            raise ValueError(f"Unknown quantization method: {value}.\nMust be one of …")

    with pytest.raises(ValidationError) as caught:
        ModelConfig(dtype="float7", quantization="zip")
    assert vllm_errors.reason(caught.value) == (
        "dtype: Input should be 'auto' or 'half'; "
        "quantization: Unknown quantization method: zip. Must be one of …"
    )
    assert vllm_errors.advice("max_model_len: Input should be a valid integer") == ""
    with pytest.raises(EngineError, match="load 'x': dtype: Input should be 'auto'"):
        raise vllm_loading.cannot("x", caught.value)


def test_a_misspelt_argument_is_refused_with_the_one_that_was_meant(monkeypatch):
    with pytest.raises(ModelError, match=r"max_num_seq=….*did you mean 'max_num_seqs'\?"):
        VLLM("x").with_knobs(max_num_seq=3)
    # Whether vLLM has it is not known before it is imported.
    VLLM("x", enforce_eagre=True)

    @dataclass
    class EngineArgs:
        enforce_eager: bool = False

    class LLM:
        def __init__(self, model: str, hf_token: str | None = None, **kwargs: Any) -> None: ...

    for name, module in (("engine.arg_utils", EngineArgs), ("entrypoints.llm", LLM)):
        stand_in = SimpleNamespace(**{module.__name__: module})
        monkeypatch.setitem(sys.modules, f"vllm.{name}", stand_in)
    VLLM("x", enforce_eager=True, hf_token="t", max_num_seqs=3)
    for name, told in {
        "enforce_eagre": "did you mean 'enforce_eager'",
        "zzz": "leave it out",
        "kwargs": "no such argument",
    }.items():
        with pytest.raises(ModelError, match=f"{name}=….*{told}"):
            VLLM("x", **{name: 1})


def test_the_hubs_token_is_not_shown():
    assert repr(VLLM("x", hf_token="hf_secret")) == "VLLM('x', max_num_seqs=256, hf_token=…)"


def test_figures_say_that_the_model_is_loading():
    there = threading.Event()

    def load(model: str, given: Any) -> tuple[Any, list[Any]]:
        there.wait(10)
        raise EngineError("vLLM cannot load 'x'", provider="vllm")

    with (
        mock.patch.object(vllm_loading, "require"),
        mock.patch.object(vllm_loading, "load", load),
    ):
        engine = VLLM("loading")
        assert engine.figures() is None
        running = Running(engine.load)
        while (now := engine.figures()) is None:
            time.sleep(0.001)
        assert now == Figures(loading=True)
        there.set()
        with pytest.raises(EngineError):
            running.value()


@pytest.mark.parametrize("model", ["/nowhere", "./nowhere", "~/nowhere/at", "no/where/at-all"])
def test_a_folder_that_is_not_there_is_no_hub_id(model):
    with standing_in(0.0), pytest.raises(ModelError, match="there is no such folder"):
        drive(VLLM(model), requests(["a"]))


@pytest.mark.parametrize("model", ["org/model", "model", "org/repo/file.gguf", "s3://a/b/c"])
def test_what_may_be_elsewhere_is_left_to_vllm(model):
    with standing_in(0.0):
        engine = VLLM(model)
        assert drive(engine, requests(["a"]))[0].text == "a"
        engine.close()


@pytest.mark.parametrize(
    "given",
    [
        {"max_num_seqs": 0},
        {"max_num_seqs": "8"},
        {"max_num_seqs": None},
        {"gpu_memory_utilization": "0.9"},
        {"gpu_memory_utilization": 1.5},
        {"max_num_batched_tokens": 0},
        {"timeout": 0},
        {"chat_template": "nowhere.jinja"},
    ],
)
def test_wrong_values_are_said_at_once(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}=.*expected"):
        VLLM("x", **given)

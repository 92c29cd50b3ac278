"""Which weights a model's name stands for, without loading them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final

from llmframe import models
from llmframe.errors import ModelError

__all__ = ["fingerprint", "is_small", "require", "short_name"]

_READ: Final = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")
_NAMED: Final = re.compile(r"(?<![A-Za-z0-9.])\d+(\.\d+)?[MB](?![A-Za-z0-9])")
_SMALL_BYTES: Final = 2_000_000_000
"""A billion parameters of 16 bits."""


def short_name(model: str) -> str:
    """The model as it is shown: a hub id as it is, of a folder its last part."""
    return Path(model).name if Path(model).expanduser().is_dir() else model


def require(model: str) -> None:
    """Raise ModelError where a model reads as a path, and there is nothing.

    vLLM takes such a one for a hub id, and speaks of that.
    """
    if Path(model).exists() or "://" in model:
        return
    deep = model.count("/") > 1 and not model.endswith(".gguf")  # a hub id and a file there
    if deep or model.startswith((os.sep, "./", "../")):
        raise ModelError(
            f"model={model!r}: there is no such folder. Give one that holds config.json and the "
            f"weights, or a hub id such as 'Qwen/Qwen2.5-7B-Instruct'."
        )


def is_small(model: str) -> bool:
    """Whether a model has less than a billion parameters, by its name or its files.

    Examples:
        >>> is_small("HuggingFaceTB/SmolLM2-135M-Instruct"), is_small("meta-llama/Llama-3.1-8B")
        (True, False)
    """
    name = Path(model).name
    if _NAMED.search(name.upper()):
        return models.is_small(name.upper())
    sizes = [path.stat().st_size for path in Path(model).expanduser().glob("*.safetensors")]
    return bool(sizes) and sum(sizes) < _SMALL_BYTES


def fingerprint(model: str, revision: str | None) -> str:
    """What tells these weights from others of the same name.

    Args:
        model: Hub id or folder.
        revision: Branch, tag or commit at the hub.

    Returns:
        Of a folder a hash of its configuration, tokenizer, chat template and index, and of the
        names and sizes of its weight files; of a hub id the commit where it can be told without
        loading, else the revision as given.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _of_folder(folder)
    return f"{model}@{_commit(model, revision) or revision or 'main'}"


def _of_folder(folder: Path) -> str:
    state = hashlib.blake2b(digest_size=16)
    read = [*_READ, *_TEMPLATES, *(path.name for path in folder.glob("*.index.json"))]
    for name in sorted(read):
        path = folder / name
        if path.is_file():
            state.update(f"{name}\0".encode() + path.read_bytes())
    for path in sorted(folder.iterdir()):
        if path.suffix in {".safetensors", ".bin", ".pt", ".gguf"}:
            state.update(f"{path.name}\0{path.stat().st_size}".encode())
    return state.hexdigest()


def _commit(model: str, revision: str | None) -> str | None:
    """The commit that the hub's cache, or else the hub, has for it."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        return None
    try:
        path: Any = hf_hub_download(model, "config.json", revision=revision)
    except Exception:  # offline, private, not there: loading says so in its own words
        return None
    parts = Path(path).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None

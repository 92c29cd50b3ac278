"""Two models for vLLM, made on this machine from what the package index has; no hub.

`smollm2` is the embedded engine's own SmolLM2-135M, turned from GGUF into a folder of
safetensors (half a minute, 270 MB): real answers. `tiny` is a random Llama of two layers with
its tokenizer: loads in seconds and writes noise, for all that is not about answers.

Both are kept in ``LLMFRAME_TEST_CACHE``, by default ``~/.cache/llmframe-tests``, and made once.
``python -m tests.on_vllm.weights`` makes them and prints where they are. Needs ``gguf`` and
``accelerate`` beside vLLM.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["smollm2", "tiny"]

_VERSION = "1"


def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct in bfloat16."""
    return _kept("smollm2-135m-instruct", _convert)


def tiny() -> Path:
    """Folder of a random Llama: 2 layers, hidden size 64, SmolLM2's tokenizer and template."""
    return _kept("tiny-llama", _invent)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    cache = Path(os.environ.get("LLMFRAME_TEST_CACHE") or "~/.cache/llmframe-tests").expanduser()
    target = cache / f"{name}-{_VERSION}"
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, however often it is interrupted or run at once.
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as folder:
            part = Path(folder) / "model"
            make(part)
            if not target.is_dir():
                shutil.move(part, target)
    return target


def _convert(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from llmframe import models

    source = os.environ.get("LLMFRAME_TEST_MODEL")
    path = models.resolve(source) if source else models.download()
    loaded = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    loaded.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tokenizer.save_pretrained(folder)


def _invent(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(smollm2()))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,  # the CPU's attention kernel has none for 16
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(smollm2(), tiny(), sep="\n")

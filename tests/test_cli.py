"""The command line: what is wrong is told before anything is sent, in words of a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

import llmframe as lf
from llmframe import cli
from llmframe.testing import FakeEngine

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    asked = FakeEngine("new", in_process=False)
    with lf.set_options(model=asked, progress=False):
        yield asked


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    pd.DataFrame({"text": ["a", "b", "c"], "tone": ["old", None, "old"]}).to_csv(path, index=False)
    return path


@pytest.fixture
def told(file: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs ``llmframe map`` on the file: its exit status and what it says of a fault."""

    def run(*more: str) -> tuple[int, str]:
        code = cli.main(["map", str(file), "--prompt", "Say {text}", *more])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("out", ["x.xlsx", "nowhere/x.csv"])
def test_where_nothing_can_be_written_nothing_is_sent(
    told: Told, engine: FakeEngine, file: Path, out: str
) -> None:
    code, error = told("--out", str(file.parent / out))
    assert code == 1
    assert "Nothing was sent" in error
    assert not engine.requests


def test_what_cannot_be_written_after_all_is_paid_once(
    told: Told, engine: FakeEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_parquet", Mock(side_effect=ImportError("no pyarrow.")))
        code, error = told("--out", str(file.with_name("x.parquet")))
    assert code == 1
    assert "no pyarrow. The answers are kept: the same command with another --out" in error
    asked = len(engine.requests)
    assert told("--out", str(file.with_name("x.csv")))[0] == 0
    assert len(engine.requests) == asked == 3


def test_a_column_that_is_there(told: Told, engine: FakeEngine, file: Path) -> None:
    code, error = told("--into", "tone")
    assert code == 1
    assert "--if-exists replace or fill, or --into tone_llm" in error
    assert not engine.requests
    assert told("--into", "tone", "--if-exists", "fill")[0] == 0
    assert pd.read_csv(file.with_name("in.out.csv"))["tone"].tolist() == ["old", "new", "old"]


def test_a_price_that_is_not_known(told: Told, engine: FakeEngine) -> None:
    code, error = told("--budget", "1")
    assert code == 1
    assert "Give one with --price IN,OUT, US$ per million tokens." in error
    assert told("--budget", "0.00001", "--price", "1000,1000")[0] == 1
    assert not engine.requests
    assert told("--budget", "1", "--price", "1,1.5")[0] == 0
    assert lf.options.get_options().prices is None


def test_an_end_that_is_good_says_no_more_than_the_job(told: Told, engine: FakeEngine) -> None:
    code, error = told()
    assert code == 0
    assert re.fullmatch(r"job j_\w+\n", error)


def test_help_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["map"], ["watch"], ["cancel"], ["export"]):
        with pytest.raises(SystemExit):
            cli.main([*command, "--help"])
    assert "`" not in capsys.readouterr().out

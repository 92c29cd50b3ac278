"""``python -m llmframe``: fetch the embedded model, fill in a column, and look after jobs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from llmframe.errors import LLMFrameError

__all__ = ["main"]

_INTERRUPTED: Final = 130  # what a shell reports of a program that Ctrl-C ended
_ENDINGS: Final = (".csv", ".parquet", ".jsonl")
_MODEL: Final = r"\(model=(?:[^()]|\([^()]*\))*\)"
_WORDS: Final = (
    (r"""lf\.job\(["'](\w+)["']\)\.wait\(\)""", r"llmframe watch \1"),
    (
        rf"""lf\.job\(["'](\w+)["']\)\.(?:resume|finish){_MODEL}(?:\.wait\(\))?""",
        r"llmframe watch \1 --model NAME",
    ),
    (r"""lf\.job\(["'](\w+)["']\)\.cancel\(\)""", r"llmframe cancel \1"),
    (rf"""lf\.job\(["'](\w+)["']\)\.cancel{_MODEL}""", r"llmframe cancel \1 --model NAME"),
    (rf"pass the engine: resume{_MODEL}, cancel{_MODEL}", "add --model NAME"),
    (r"""lf\.job\(["'](\w+)["']\)\.join\(df\)""", r"llmframe export \1 FILE"),
    (r"lf\.set_options\(prices=.*?\}\)", "--price IN,OUT"),
    (r"lf\.set_options\(model=.*?\)", "--model NAME"),
    (r'if_exists="replace" or "fill"', "--if-exists replace or fill"),
    (r'\binto="(\w+)"', r"--into \1"),
    (r"\b(batch)=True", r"--\1"),
    (r"\b(budget)=([\d.]+)", r"--\1 \2"),
    (r"; see \.plan\.", "."),
    (r"\b([Tt]he) same call\b", r"\1 same command"),
)
"""What messages tell a program to write, and what to type in its place."""


def _price(text: str) -> tuple[float, float]:
    into, out = map(float, text.split(","))
    return into, out


def _parser() -> argparse.ArgumentParser:
    about = "Fetch the embedded model, fill in a column of a file, and look after jobs."
    parser = argparse.ArgumentParser(prog="llmframe", description=about)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("download", help="fetch the embedded model")
    fill = commands.add_parser("map", help="ask a model about each row of a file")
    fill.add_argument("file", type=Path, help="a .csv, .parquet or .jsonl file")
    fill.add_argument("--prompt", required=True, help='such as "Summarise: {ticket}"')
    fill.add_argument("--into", help="name of the new column; default: response")
    fill.add_argument(
        "--if-exists",
        choices=("raise", "replace", "fill"),
        default="raise",
        help="what a column of that name in the file means; fill: ask where it is empty",
    )
    fill.add_argument("--model", help='such as "openai/gpt-4.1-mini"')
    fill.add_argument("--batch", action="store_true", help="through the provider's batch API")
    fill.add_argument("--budget", type=float, help="US$ that may be spent")
    fill.add_argument(
        "--price",
        type=_price,
        metavar="IN,OUT",
        help="US$ per million tokens, where the model's price is not known: 0.40,1.60",
    )
    fill.add_argument("--out", type=Path, help="default: FILE with .out before its ending")
    commands.add_parser("jobs", help="list the jobs in the store, newest first")
    job = argparse.ArgumentParser(add_help=False)
    job.add_argument("job", help="id of the job, such as j_8f2a61c3")
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--model", help="the engine, where its stored name does not make it again")
    commands.add_parser("show", help="a job's report and its failed rows", parents=[job])
    commands.add_parser(
        "watch", help="wait for a job; takes it up where nobody drives it", parents=[job, model]
    )
    commands.add_parser(
        "cancel", help="stop a job's batches; what they had done is kept", parents=[job, model]
    )
    export = commands.add_parser(
        "export", help="write a job's labels and output columns to a file", parents=[job]
    )
    export.add_argument("path", type=Path, help="a .csv, .parquet or .jsonl file")
    return parser


def _map(given: argparse.Namespace) -> None:
    from llmframe import table_files
    from llmframe.options import get_options, set_options
    from llmframe.submits import submit
    from llmframe.verbs import prepare_map

    path: Path = given.file
    out = given.out or path.with_name(f"{path.stem}.out{path.suffix}")
    _check_out(out)  # now: later everything is paid
    prepared = prepare_map(
        table_files.read_table(path),
        given.prompt,
        into=given.into,
        if_exists=given.if_exists,
        model=given.model,
        batch=given.batch or None,
        budget=given.budget,
    )
    prices = dict(get_options().prices or {})
    if given.price is not None:
        prices[f"{prepared.engine.name}/{prepared.engine.model}"] = given.price
    with set_options(prices=prices):
        job = submit(prepared)
        print(f"job {job.id}", file=sys.stderr)
        filled = job.result()
    try:
        print(table_files.export(filled, out, csv_safe=False))
    except (OSError, ValueError, ImportError) as error:
        raise OSError(
            f"{error} The answers are kept: the same command with another --out writes them, and "
            f"asks nothing again."
        ) from error


def _check_out(out: Path) -> None:
    """Refuse a path that nothing can be written to.

    Raises:
        ValueError: Its ending says nothing.
        FileNotFoundError: There is no such folder.
    """
    if out.suffix not in _ENDINGS:
        raise ValueError(
            f"--out {out}: expected the ending {', '.join(_ENDINGS)}. Nothing was sent."
        )
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no folder {out.parent}. Nothing was sent.")


def _watch(given: argparse.Namespace) -> None:
    from llmframe.submits import job

    found = job(given.job)
    if given.model is not None:
        found.resume(model=given.model)
    print(found.wait().report())


def _show(given: argparse.Namespace) -> None:
    from llmframe.submits import job

    found = job(given.job)
    print(found.report())
    failures = found.failures()
    if len(failures):
        print(failures.to_string(max_rows=50, max_colwidth=80))


def _cancel(given: argparse.Namespace) -> None:
    from llmframe.submits import job

    found = job(given.job)
    found.cancel(model=given.model)
    print(found.status())


def _run(given: argparse.Namespace) -> None:
    if given.command == "download":
        from llmframe.models import download

        print(download())
    elif given.command == "jobs":
        from llmframe.submits import jobs

        print(jobs())
    elif given.command == "export":
        from llmframe.submits import job

        print(job(given.job).export(given.path))
    else:
        {"map": _map, "watch": _watch, "show": _show, "cancel": _cancel}[given.command](given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: As on the command line; None: those of this process.

    Returns:
        Exit status: 0; 1 where something could not be done, said on stderr; 130 after Ctrl-C,
        with how to come back.
    """
    given = _parser().parse_args(arguments)
    try:
        _run(given)
    except (LLMFrameError, OSError, ValueError) as error:
        print(f"llmframe: {_typed(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        job = f" llmframe watch {given.job} comes back to it." if "job" in given else ""
        print(f"llmframe: {_typed(str(stopped)) or 'stopped.' + job}", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _typed(text: str) -> str:
    """A message with commands and options in the place of Python."""
    for python, typed in _WORDS:
        text = re.sub(python, typed, text)
    return text

"""``python -m llmframe``: fetch the embedded model, fill in a column, and look after jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmframe.errors import LLMFrameError

__all__ = ["main"]

_INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmframe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("download", help="fetch the embedded model")
    fill = commands.add_parser("map", help="ask a model about each row of a file")
    fill.add_argument("file", type=Path, help="a .csv, .parquet or .jsonl file")
    fill.add_argument("--prompt", required=True, help='such as "Summarise: {ticket}"')
    fill.add_argument("--into", help="name of the new column; default: response")
    fill.add_argument("--model", help='such as "openai/gpt-4.1-mini"')
    fill.add_argument("--batch", action="store_true", help="through the provider's batch API")
    fill.add_argument("--budget", type=float, help="US$ that may be spent")
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
    export = commands.add_parser(
        "export", help="write a job's labels and output columns to a file", parents=[job]
    )
    export.add_argument("path", type=Path, help="a .csv, .parquet or .jsonl file")
    return parser


def _map(given: argparse.Namespace) -> None:
    from llmframe import joins
    from llmframe.submits import submit
    from llmframe.verbs import prepare_map

    path: Path = given.file
    out = given.out or path.with_name(f"{path.stem}.out{path.suffix}")
    prepared = prepare_map(
        joins.read_table(path),
        given.prompt,
        into=given.into,
        model=given.model,
        batch=given.batch or None,
        budget=given.budget,
    )
    job = submit(prepared)
    print(f"{job.id}: llmframe watch {job.id} comes back to it", file=sys.stderr)
    print(joins.export(job.result(), out, csv_safe=False))


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
        {"map": _map, "watch": _watch, "show": _show}[given.command](given)


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
        print(f"llmframe: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print(f"llmframe: {stopped}", file=sys.stderr)
        return _INTERRUPTED
    return 0

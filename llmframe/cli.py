"""``python -m llmframe``: fetch the embedded model, and look at jobs from a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from llmframe.errors import LLMFrameError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmframe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("download", help="fetch the embedded model")
    commands.add_parser("jobs", help="list the jobs in the store, newest first")
    show = commands.add_parser("show", help="show one job: its report and its failed rows")
    show.add_argument("job", help="id of the job, such as j_8f2a61c3")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: As on the command line; None: those of this process.

    Returns:
        Exit status: 0; 1 where something could not be done, said on stderr.
    """
    given = _parser().parse_args(arguments)
    try:
        if given.command == "download":
            from llmframe.models import download

            print(download())
        elif given.command == "jobs":
            from llmframe.submits import jobs

            print(jobs())
        else:
            from llmframe.submits import job

            found = job(given.job)
            print(found.report())
            failures = found.failures()
            if len(failures):
                print(failures.to_string(max_rows=50, max_colwidth=80))
    except LLMFrameError as error:
        print(f"llmframe: {error}", file=sys.stderr)
        return 1
    return 0

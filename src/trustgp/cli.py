"""The command line: `trustgp demo` and `trustgp inspect`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from . import __version__
from .safefile import ArtifactError

WIDE = 110  # columns where there is no terminal to ask


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 1 a missing optional package, 2 a mistake of the user.

    Args:
        arguments: Without the program's name; None: those of the process.
    """
    parser = argparse.ArgumentParser(prog="trustgp", description="Honest error bars for trained networks.")
    parser.add_argument("--version", action="version", version=f"trustgp {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (ArtifactError, OSError) as error:  # the user's files; anything else is our bug and shows itself
        print(f"trustgp: {_one_line(error)}", file=sys.stderr)
        return 2


def _demo(commands: Any) -> None:
    parser = commands.add_parser("demo", help="a toy and a simulated arm, no data needed; about a minute")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of figures and results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a smaller arm, for a first look and for CI")
    parser.add_argument("--part", choices=("toy", "arm"), help="only this part")

    def run(options: argparse.Namespace) -> int:
        from .studies.demo import PARTS, run_demo

        parts = PARTS if options.part is None else (options.part,)
        return run_demo(options.out, seed=options.seed, quick=options.quick, parts=parts, console=_console())

    parser.set_defaults(run=run)


def _inspect(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="what a saved model holds; needs no network")
    parser.add_argument("file", type=Path, help="written by model.save(...)")
    parser.add_argument("--all", action="store_true", help="every expert, however many there are")

    def run(options: argparse.Namespace) -> int:
        from .inspecting import expert_table, origin_table, size_table, summarise

        summary = summarise(options.file)
        tables = [origin_table(summary), size_table(summary)]
        tables.append(expert_table(summary, most=None) if options.all else expert_table(summary))
        console = _console()
        for table in tables:
            console.print(table)
        return 0

    parser.set_defaults(run=run)


# A further command is a function like those above, and its name here.
COMMANDS = (_demo, _inspect)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    raise SystemExit(main())

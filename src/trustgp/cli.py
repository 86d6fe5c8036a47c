"""The command line: `trustgp inspect`, and the commands of installed distributions.

A distribution adds a command by an entry point of the group `trustgp.commands`: a function that gets
argparse's subparsers and adds a parser with the defaults `run` (called with the options) and `user_errors`
(optional: a function that returns the exceptions that are printed as one line, with exit status 2).
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from .data.escapes import printable
from .data.version import __version__

WIDTH = 110  # columns, if the output is not a terminal
EXPERIMENTS = {"demo", "study", "report"}  # commands of another distribution, which may be absent
INTERRUPTED, CLOSED = 130, 141  # the convention of shells: 128 + the number of the signal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0 is success, 1 a missing package, 2 an error of the user, 130 Ctrl-C, 141 a closed output. The
    arguments exclude the program's name; None: the arguments of the process.
    """
    for stream in (sys.stdout, sys.stderr):  # letters that the terminal's encoding lacks are escaped
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with _interrupts() as pressed:
        try:
            try:
                return _run(arguments)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # for example `| head`; what Python flushes at exit is discarded
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CLOSED
        except BaseException as error:
            if not (pressed or isinstance(error, KeyboardInterrupt)):
                raise
            print("trustgp: stopped; what was finished is kept, nothing is half-written.", file=sys.stderr)
            return INTERRUPTED


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Record Ctrl-C, which an interrupted import may turn into another error; a second one exits at once."""
    pressed: list[int] = []

    def handle(number: int, _: Any) -> None:
        if pressed:
            os._exit(INTERRUPTED)
        pressed.append(number)
        raise KeyboardInterrupt

    main_thread = threading.current_thread() is threading.main_thread()
    if installed := main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        if installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: Sequence[str] | None) -> int:
    parser = _Parser(prog="trustgp", description="Honest error bars for trained networks.")
    parser.add_argument("--version", action="version", version=f"trustgp {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    parser.set_defaults(user_errors=tuple)
    _add_inspect(commands)
    installed = entry_points(group="trustgp.commands")
    for entry in installed:
        entry.load()(commands)
    for name in EXPERIMENTS.difference(installed.names):  # without help=, so it is not listed
        commands.add_parser(name, add_help=False).set_defaults(run=_explain_absence)
    options, unknown = parser.parse_known_args(arguments)
    if unknown and options.run is not _explain_absence:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return options.run(options) or 0
    except (BrokenPipeError, KeyboardInterrupt):
        raise  # before user_errors imports torch, which fails if its first import was interrupted
    except Exception as error:
        if not (absent := isinstance(error, ImportError)):  # its message names the extra to install
            from .data.tensor_file import ArtifactError  # brings torch, which `--help` does not need

            if not isinstance(error, (ArtifactError, OSError, *options.user_errors())):
                raise  # a bug keeps its traceback
        print(f"trustgp: {_one_line(error)}", file=sys.stderr)
        return 1 if absent else 2


def _explain_absence(_: argparse.Namespace) -> NoReturn:
    what = "demo, study and report are commands of trustgp-experiments, which is not installed"
    raise ImportError(f"{what}: run `pip install ./experiments` in a clone of trustgp's repository.")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors escape the arguments that they quote: `inspect *` may match any file name."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


class _Console(Console):
    """A console that interprets neither markup nor control codes, and lets `main` handle a closed pipe."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, keep="\n\t", most=None), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _add_inspect(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="show what a saved model contains; needs no network")
    parser.add_argument("file", type=Path, help="written by model.save(...)")
    parser.add_argument("--all", action="store_true", help="every expert, however many there are")

    def run(options: argparse.Namespace) -> None:
        from .state.summary import inspect_tables

        console = open_console()
        for table in inspect_tables(options.file, every=options.all):
            console.print(table)

    parser.set_defaults(run=run)


def open_console() -> Console:
    """A console for the output of a command."""
    console = _Console(markup=False, emoji=False)
    return console if console.is_terminal else _Console(markup=False, emoji=False, width=WIDTH)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    return printable(" ".join(str(error).split()))


if __name__ == "__main__":
    raise SystemExit(main())

"""The command line: `trustgp demo`, `study`, `report` and `inspect`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from .data.escapes import printable
from .data.version import __version__

WIDE = 110  # columns where there is no terminal to ask
INTERRUPTED, CLOSED = 130, 141  # as a shell counts them: 128 and the number of the signal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 1 a missing optional package, 2 a mistake of the user, 130 Ctrl-C, 141 an
    output that was closed. The arguments come without the program's name; None: those of the process."""
    for stream in (sys.stdout, sys.stderr):  # a letter that the terminal's encoding has not is written out
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with _Interrupt() as interrupt:
        try:
            try:
                return _run(arguments)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough; what Python flushes at its end goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CLOSED
        except BaseException as error:
            if not (interrupt.pressed or isinstance(error, KeyboardInterrupt)):
                raise
            print("trustgp: stopped; what was finished is kept, nothing is half-written.", file=sys.stderr)
            return INTERRUPTED


class _Interrupt:
    """Remembers Ctrl-C, which a package that is being imported may turn into another error, or lose: a second
    one ends the process at once."""

    pressed = False

    def __enter__(self) -> _Interrupt:
        main_thread = threading.current_thread() is threading.main_thread()
        self._mine = main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._mine:
            signal.signal(signal.SIGINT, self._hear)
        return self

    def _hear(self, *_: Any) -> None:
        if self.pressed:
            os._exit(INTERRUPTED)
        self.pressed = True
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: Sequence[str] | None) -> int:
    parser = _Parser(prog="trustgp", description="Honest error bars for trained networks.")
    parser.add_argument("--version", action="version", version=f"trustgp {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options) or 0
    except (BrokenPipeError, KeyboardInterrupt):
        raise  # before what is below imports torch anew, which dies of it when that was interrupted
    except ImportError as error:  # of an extra; its message says which
        print(f"trustgp: {_one_line(error)}", file=sys.stderr)
        return 1
    except _mistakes() as error:  # anything else is our bug and shows itself
        print(f"trustgp: {_one_line(error)}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """One whose errors quote the arguments without obeying them: `inspect *` names whatever lies there."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


class _Console(Console):
    """One that obeys neither markup nor control characters in names, and lets `main` see a closed pipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, keep="\n\t", most=None), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _mistakes() -> tuple[type[Exception], ...]:
    """The errors that are the user's. Imported here: they bring torch, which `--help` does without."""
    from trustgp_experiments.core.result import StudyError

    from .data.tensor_file import ArtifactError

    return ArtifactError, StudyError, OSError


def _demo(commands: Any) -> None:
    parser = commands.add_parser("demo", help="a toy and a simulated arm, no data needed; about a minute")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of figures and results")
    parser.add_argument("--seed", type=_seed, default=0)
    parser.add_argument("--quick", action="store_true", help="a smaller arm, for a first look and for CI")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--part", choices=("toy", "arm"), help="only this part")
    which.add_argument("--detection", action="store_true", help="instead: boxes of a detector, and a film")

    def run(options: argparse.Namespace) -> int:
        asked = {"seed": options.seed, "quick": options.quick, "console": _console()}
        if options.detection:
            from trustgp_experiments.demo.detection import run_detection

            return run_detection(options.out, **asked)
        from trustgp_experiments.demo.run import PARTS, run_demo

        return run_demo(options.out, parts=PARTS if options.part is None else (options.part,), **asked)

    parser.set_defaults(run=run)


def _inspect(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="what a saved model holds; needs no network")
    parser.add_argument("file", type=Path, help="written by model.save(...)")
    parser.add_argument("--all", action="store_true", help="every expert, however many there are")

    def run(options: argparse.Namespace) -> None:
        from .state.summary import inspect_tables

        console = _console()
        for table in inspect_tables(options.file, every=options.all):
            console.print(table)

    parser.set_defaults(run=run)


def _study(commands: Any) -> None:
    from trustgp_experiments.core.registry import STUDIES

    about = "".join(f"  {name:<12}{text}\n" for name, text in STUDIES.items())
    parser = commands.add_parser(
        "study",
        help="measure trustgp beside its peers",
        description=f"Studies:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", choices=(*STUDIES, "all"), help="or: all")
    parser.add_argument("--seeds", type=_positive, help="how many (default 5; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a small part; its figures mean nothing")
    parser.add_argument("--out", type=Path, help="folder of all results (default results, or results-quick)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--jobs", type=_positive, default=1, help="processes, where a study can share work")

    def run(options: argparse.Namespace) -> None:
        from trustgp_experiments.report.terminal import show
        from trustgp_experiments.studies import run_study

        out = options.out or Path("results-quick" if options.quick else "results")
        console = _console()
        for name in STUDIES if "all" in options.names else options.names:
            asked = {key: getattr(options, key) for key in ("quick", "device", "jobs")}
            asked["seeds"] = options.seeds or (1 if options.quick else 5)
            show(run_study(name, out, console=console, **asked), console)
            console.print(f"All numbers: {out / name}", soft_wrap=True)

    parser.set_defaults(run=run)


def _report(commands: Any) -> None:
    parser = commands.add_parser("report", help="one page of HTML from the results of studies")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of results, from `study`")
    parser.add_argument("--out", type=Path, help="the page (default DIR/report.html)")

    def run(options: argparse.Namespace) -> None:
        from trustgp_experiments.report.page import write_report

        _console().print(f"Report: {write_report(options.folder, options.out)}", soft_wrap=True)

    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number}; at least 1 is needed.")
    return number


def _seed(text: str) -> int:
    if not 0 <= (number := int(text)) < 2**32:
        raise argparse.ArgumentTypeError(f"{number}; 0 to {2**32 - 1} are allowed.")
    return number


# A further command is a function like those above, and its name here.
COMMANDS = (_demo, _study, _report, _inspect)


def _console() -> Console:
    console = _Console()
    return console if console.is_terminal else _Console(width=WIDE)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    return printable(" ".join(str(error).split()))


if __name__ == "__main__":
    raise SystemExit(main())

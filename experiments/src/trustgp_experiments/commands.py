"""The commands `trustgp demo`, `study` and `report`: entry points of the group `trustgp.commands`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trustgp.cli import open_console

from .core.registry import STUDIES


def add_demo(commands: Any) -> None:
    """Add the command `trustgp demo`, a first look."""
    parser = commands.add_parser("demo", help="a toy and a simulated arm, no data needed; about a minute")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of figures and results")
    parser.add_argument("--seed", type=_seed, default=0)
    parser.add_argument("--quick", action="store_true", help="a smaller arm, for a first look and for CI")
    parser.add_argument("--detection", action="store_true", help="instead: pictures with a detector's boxes")

    def run(options: argparse.Namespace) -> int:
        setting = {"seed": options.seed, "quick": options.quick, "console": open_console()}
        if options.detection:
            from .demo.detection import run_detection

            return run_detection(options.out, **setting)
        from .demo.run import run_demo

        return run_demo(options.out, **setting)

    parser.set_defaults(run=run, user_errors=_user_errors)


def add_study(commands: Any) -> None:
    """Add the command `trustgp study`, which measures trustgp beside its peers."""
    about = "Studies:\n" + "".join(f"  {name:<16}{text}\n" for name, text in STUDIES.items())
    form: Any = {"description": about, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = commands.add_parser("study", help="measure trustgp beside its peers", **form)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=(*STUDIES, "all"), help="or: all")
    parser.add_argument("--seeds", type=_positive, help="how many (default 5; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a small part; its figures mean nothing")
    parser.add_argument("--out", type=Path, help="folder of all results (default results, or results-quick)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--jobs", type=_positive, default=1, help="processes, where a study can share work")

    def run(options: argparse.Namespace) -> None:
        from .report.terminal import show
        from .studies import run_study

        out = options.out or Path("results-quick" if options.quick else "results")
        setting = {key: getattr(options, key) for key in ("quick", "device", "jobs")}
        setting |= {"seeds": options.seeds or (1 if options.quick else 5), "console": open_console()}
        for name in STUDIES if "all" in options.names else options.names:
            show(run_study(name, out, **setting), setting["console"])
            setting["console"].print(f"All numbers: {out / name}", soft_wrap=True)

    parser.set_defaults(run=run, user_errors=_user_errors)


def add_report(commands: Any) -> None:
    """Add the command `trustgp report`, which shows stored results as a page."""
    parser = commands.add_parser("report", help="one page of HTML from the results of studies")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of results, from `study`")
    parser.add_argument("--out", type=Path, help="the page (default DIR/report.html)")

    def run(options: argparse.Namespace) -> None:
        from .report.page import write_report

        open_console().print(f"Report: {write_report(options.folder, options.out)}", soft_wrap=True)

    parser.set_defaults(run=run, user_errors=_user_errors)


def _user_errors() -> tuple[type[Exception], ...]:
    """Errors of the user; the import is here because it brings torch, which `--help` does not need."""
    from .core.result import StudyError

    return (StudyError,)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number}; at least 1 is needed.")
    return number


def _seed(text: str) -> int:
    if not 0 <= (number := int(text)) < 2**32:
        raise argparse.ArgumentTypeError(f"{number}; 0 to {2**32 - 1} are allowed.")
    return number

"""All results of a folder as one page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from ..core.atomic_files import write_text
from ..core.registry import STUDIES
from ..core.result import RESULT, Result, StudyError, read_result
from .html import Html, join, tag
from .study import quick_warning, study_html

PAGE = "report.html"


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of every `folder/*/result.json`; the same results give the same bytes.

    Args:
        folder: Of results, as `trustgp study` wrote it.
        out: The page; None: `folder/report.html`.

    Returns:
        Where the page is.
    """
    folder = Path(folder)
    return write_text(folder / PAGE if out is None else Path(out), render(read_results(folder)))


def read_results(folder: Path) -> dict[Path, Result]:
    """Results by their folder, in the order of `STUDIES`, then those of the user's own."""
    next(folder.iterdir(), None)  # where there is no such folder: an OSError that says so
    found = {file.parent: read_result(file) for file in sorted(folder.glob(f"*/{RESULT}"))}
    if (folder / RESULT).exists():
        raise StudyError(f"{folder} is the folder of one study; give the folder around it.")
    if not found:
        make = f"trustgp study all --out {folder}"
        raise StudyError(f"{folder} holds no results (NAME/{RESULT}); make some: {make}")
    order = {name: place for place, name in enumerate(STUDIES)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[1].study, len(order))))


def render(results: Mapping[Path, Result]) -> str:
    """The whole page.

    Args:
        results: By the folder in which their figures lie.
    """
    source = files("trustgp_experiments.report") / "assets"
    style, script = (source.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    names = _ids(result.study for result in results.values())
    studies = [(name, folder, result) for name, (folder, result) in zip(names, results.items(), strict=True)]
    return Template(source.joinpath("page.html").read_text("utf-8")).substitute(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        contents=tag("ol", *(_entry(name, result) for name, _, result in studies)),
        warning=quick_warning(
            "There are quick runs on this page.", "Their figures mean nothing.", results.values()
        )
        or "",
        studies=join(*(study_html(result, folder, name) for name, folder, result in studies)),
    )


def _entry(name: str, result: Result) -> Html:
    """The study's line in the contents, and those of its tables and figures."""
    parts = [(f"{name}-table-{n}", table.title) for n, table in enumerate(result.tables, 1)]
    parts += [(f"{name}-figure-{n}", figure.title) for n, figure in enumerate(result.figures, 1)]
    inner = (tag("li", tag("a", title, href=f"#{part}")) for part, title in parts)
    link = tag("a", result.study, href=f"#{name}", title=STUDIES.get(result.study, result.title))
    return tag("li", link, tag("ol", *inner) if parts else None)


def _ids(names: Iterable[str]) -> list[str]:
    """Names that may stand in an address, each once."""
    found: list[str] = []
    for name in names:
        plain = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "study"
        found.append(plain if plain not in found else f"{plain}-{len(found)}")
    return found


def _hash(text: str) -> str:
    """As a Content-Security-Policy names the only style and the only script that may act."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""All results of a folder as one self-contained page of HTML."""

import base64
import hashlib
import io
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup
from PIL import Image

from trustgp.data.escapes import printable

from ..core.registry import STUDIES
from ..core.result import RESULT, Figure, Result, StudyError, read_result, write_text
from .table import BETTER, TableView

PAGE = "report.html"
KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif"}
ORIGIN = ("date", "device", "seeds", "commit", "versions")
"""Keys that come first in the small print; those that a study adds come after."""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of all `folder/*/result.json` to `out` or `folder/report.html`, byte-reproducible."""
    folder = Path(folder)
    try:
        page = render(read_results(folder))
    except RecursionError as error:
        raise StudyError("a result has lists within lists, too deep to show.") from error
    return write_text(folder / PAGE if out is None else Path(out), page)


def read_results(folder: Path) -> dict[Path, Result]:
    """Results by their folder, in the order of `STUDIES`, then those of the user's own studies."""
    next(folder.iterdir(), None)  # an OSError, if there is no such folder
    results = {file.parent: read_result(file) for file in sorted(folder.glob(f"*/{RESULT}"))}
    if (folder / RESULT).exists():
        raise StudyError(f"{folder} is the folder of one study; give the folder around it.")
    if not results:
        make = f"trustgp study all --out {folder}"
        raise StudyError(f"{folder} holds no results (NAME/{RESULT}); make some: {make}")
    order = {name: place for place, name in enumerate(STUDIES)}
    return dict(sorted(results.items(), key=lambda item: order.get(item[1].study, len(order))))


def render(results: Mapping[Path, Result]) -> str:
    """Whole page as HTML, from results by the folder that has their figures."""
    studies: list[dict[str, Any]] = []
    for folder, result in results.items():
        name = re.sub("[^a-z0-9]+", "-", result.study.lower()).strip("-") or "study"  # valid in an address
        unique = name not in [study["id"] for study in studies]
        studies.append(
            {
                "id": name if unique else f"{name}-{len(studies)}",
                "result": result,
                "about": STUDIES.get(result.study, result.title),
                "tables": [TableView(table) for table in result.tables],
                "figures": [_figure(figure, folder) for figure in result.figures],
                "origin": _origin(result.provenance),
            }
        )
    return _template().render(studies=studies)


@cache
def _template() -> Template:
    assets = Path(__file__).parent / "assets"
    names = ("page.css", "page.js", "page.html.jinja")
    style, script, html = ((assets / name).read_text("utf-8") for name in names)
    shown: Any = {"finalize": lambda v: v if isinstance(v, Markup) else _visible(v)}
    environment = Environment(autoescape=True, trim_blocks=True, **shown)
    environment.filters |= {"prose": prose, "policy_hash": _policy_hash}
    environment.globals |= {"style": Markup(style), "script": Markup(script), "better": BETTER}
    return environment.from_string(html)


def prose(text: str) -> Markup:
    """Text as HTML, with `code` for backticks; no line begins with ± or %, or ends in ±."""
    kept = re.sub(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", _visible(text))
    parts = re.split(r"`([^`]+)`", kept)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if place % 2 else part for place, part in enumerate(parts))


def _visible(text: object) -> str:
    """Text in which control characters and unpaired surrogates, which results may contain, are escaped."""
    return printable(text, keep="\n\t", most=None)


def _policy_hash(text: str) -> str:
    """Hash by which a Content-Security-Policy names the only style and the only script that are allowed."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _figure(figure: Figure, folder: Path) -> dict[str, Any]:
    """The picture as a data URI, with its title and caption as alternative text."""
    file = folder / figure.file
    kind = KINDS.get(file.suffix.lower())
    if kind is None:
        raise StudyError(f"figure {file}: only {' and '.join(KINDS)} can be shown.")
    if not file.is_file():
        raise StudyError(f"figure {file} is missing, but {folder / RESULT} names it; run the study again.")
    content = file.read_bytes()
    words = f"{figure.title}. {figure.caption}" if figure.caption else figure.title
    address = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    attributes: dict[str, Any] = {"src": address, "alt": _visible(words)}
    form = file.suffix[1:].upper()
    try:
        if form != "SVG":  # its pixels, so that nothing moves while it is drawn
            with Image.open(io.BytesIO(content), formats=[form]) as picture:
                attributes |= dict(zip(("width", "height"), picture.size, strict=True))
    except Exception as error:  # of any kind: Pillow has no list of them
        raise StudyError(f"figure {file} is not a {form}, or a damaged one; run the study again.") from error
    return {"title": figure.title, "caption": figure.caption, "attributes": attributes}


def _origin(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Origin of a result by key, without the command, which is at the top."""
    keys = [*ORIGIN, *(key for key in provenance if key not in (*ORIGIN, "command", "quick"))]
    origin = {key.replace("_", " ").capitalize(): _words(provenance.get(key)) for key in keys}
    return {key: words for key, words in origin.items() if words}


def _words(value: Any) -> str:
    match value:
        case Mapping():
            parts = [(k, _words(v), isinstance(v, Mapping | list)) for k, v in value.items()]
            return ", ".join(f"{k} ({words})" if nested else f"{k} {words}" for k, words, nested in parts)
        case list() | tuple():
            return ", ".join(map(_words, value))
        case True | False | None:
            return {True: "yes", False: "no", None: ""}[value]
    return str(value)

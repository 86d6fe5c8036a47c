"""All results of a folder as one self-contained page of HTML."""

import base64
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, Template
from markupsafe import Markup
from PIL import Image, UnidentifiedImageError

from trustgp.data.escapes import printable

from ..core.registry import STUDIES
from ..core.result import RESULT, Figure, Result, StudyError, read_result, write_text
from .table import BETTER, TableView

PAGE = "report.html"
KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif"}
# How a picture begins, and the offset, the number of bytes and the order of its width and height.
PIXELS: dict[str, tuple[bytes, int, int, Literal["big", "little"]]] = {
    ".png": (b"\x89PNG\r\n\x1a\n", 16, 4, "big"),
    ".gif": (b"GIF8", 6, 2, "little"),
}
ORIGIN = ("date", "device", "seeds", "commit", "versions")
"""First in the small print; what a study adds comes after."""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The page of every `folder/*/result.json`, `out` or `folder/report.html`; results decide its bytes."""
    folder = Path(folder)
    return write_text(folder / PAGE if out is None else Path(out), render(read_results(folder)))


def read_results(folder: Path) -> dict[Path, Result]:
    """Results by their folder, in the order of `STUDIES`, then those of the user's own."""
    next(folder.iterdir(), None)  # an OSError, if there is no such folder
    found = {file.parent: read_result(file) for file in sorted(folder.glob(f"*/{RESULT}"))}
    if (folder / RESULT).exists():
        raise StudyError(f"{folder} is the folder of one study; give the folder around it.")
    if not found:
        make = f"trustgp study all --out {folder}"
        raise StudyError(f"{folder} holds no results (NAME/{RESULT}); make some: {make}")
    order = {name: place for place, name in enumerate(STUDIES)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[1].study, len(order))))


def render(results: Mapping[Path, Result]) -> str:
    """The whole page, of results by the folder that holds their figures."""
    ids = _ids(result.study for result in results.values())
    studies = [
        {
            "id": name,
            "result": result,
            "about": STUDIES.get(result.study, result.title),
            "tables": [TableView(table) for table in result.tables],
            "figures": [_figure(figure, folder) for figure in result.figures],
            "origin": _origin(result.provenance),
        }
        for name, (folder, result) in zip(ids, results.items(), strict=True)
    ]
    return _template().render(studies=studies)


@cache
def _template() -> Template:
    assets = files("trustgp_experiments.report") / "assets"
    style, script, html = (
        assets.joinpath(f"page.{suffix}").read_text("utf-8") for suffix in ("css", "js", "html.jinja")
    )
    environment = Environment(autoescape=True, finalize=_finalize, trim_blocks=True)
    environment.filters |= {"prose": prose, "policy_hash": _policy_hash}
    environment.globals |= {"style": Markup(style), "script": Markup(script), "better": BETTER}
    return environment.from_string(html)


def prose(text: str) -> Markup:
    """Words with `code` between backticks; no line begins with ± or %, or ends in ±."""
    kept = re.sub(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", _visible(text))
    parts = re.split(r"`([^`]+)`", kept)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if place % 2 else part for place, part in enumerate(parts))


def _visible(text: object) -> str:
    """Control characters and unpaired surrogates, which results may contain, are escaped."""
    return printable(text, keep="\n\t", most=None)


def _finalize(value: Any) -> Any:
    """What an expression of the template prints."""
    return value if isinstance(value, Markup) else _visible(value)


def _ids(names: Iterable[str]) -> list[str]:
    """Unique names that are valid in an address."""
    found: list[str] = []
    for name in names:
        plain = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "study"
        found.append(plain if plain not in found else f"{plain}-{len(found)}")
    return found


def _policy_hash(text: str) -> str:
    """As a Content-Security-Policy names the only style and the only script that are allowed."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _in_few_colours(content: bytes) -> bytes:
    """A PNG with a palette, where that is smaller, as of a chart: the page is to stay small."""
    if not content.startswith(PIXELS[".png"][0]):
        return content
    packed = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.convert("RGBA").quantize(256, method=Image.Quantize.FASTOCTREE).save(packed, "PNG")
    except (UnidentifiedImageError, OSError, SyntaxError):
        return content  # damaged: shown as it is
    return min(packed.getvalue(), content, key=len)


def _figure(figure: Figure, folder: Path) -> dict[str, Any]:
    """The picture as a data URI, with its title and caption as alternative text."""
    file = folder / figure.file
    kind = KINDS.get(file.suffix.lower())
    if kind is None:
        raise StudyError(f"figure {file}: only {' and '.join(KINDS)} can be shown.")
    if not file.is_file():
        raise StudyError(f"figure {file} is missing, but {folder / RESULT} names it; run the study again.")
    content = _in_few_colours(file.read_bytes())
    words = f"{figure.title}. {figure.caption}" if figure.caption else figure.title
    address = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    attributes = {"src": address, "alt": _visible(words), **_size(file, content)}
    return {"title": figure.title, "caption": figure.caption, "attributes": attributes}


def _size(file: Path, content: bytes) -> dict[str, int]:
    """Pixels of a PNG or GIF, so that nothing moves while the page is drawn."""
    suffix = file.suffix.lower()
    if suffix not in PIXELS:
        return {}
    begin, at, each, order = PIXELS[suffix]
    if not content.startswith(begin) or len(content) < at + 2 * each:
        kind = suffix[1:].upper()
        raise StudyError(f"figure {file} is not a {kind}, or a damaged one; run the study again.")
    width, height = (int.from_bytes(content[k : k + each], order) for k in (at, at + each))
    return {"width": width, "height": height}


def _origin(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Where the result comes from, by key; the command is at the top."""
    keys = [*ORIGIN, *(key for key in provenance if key not in (*ORIGIN, "command", "quick"))]
    try:
        origin = {key.replace("_", " ").capitalize(): _words(provenance.get(key)) for key in keys}
    except RecursionError as error:
        raise StudyError("the provenance of a result has lists within lists, too deep to show.") from error
    return {key: words for key, words in origin.items() if words}


def _words(value: Any) -> str:
    """A value of JSON as people read it."""
    if isinstance(value, Mapping):
        deep = {key: isinstance(item, Mapping | list) for key, item in value.items()}
        parts = {key: _words(item) for key, item in value.items()}
        return ", ".join(f"{key} ({part})" if deep[key] else f"{key} {part}" for key, part in parts.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)

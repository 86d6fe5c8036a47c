"""All results of a folder as one page of HTML that needs nothing else: no network, no other file."""

import base64
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

from trustgp.data.escapes import printable

from ..core.registry import STUDIES
from ..core.result import RESULT, Figure, Result, StudyError, read_result, write_text
from .table import Html, join, prose, table_html, tag

PAGE = "report.html"
KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif"}
# How a picture begins, and where its width and height stand: two numbers of as many bytes, in which order.
PIXELS: dict[str, tuple[bytes, int, int, Literal["big", "little"]]] = {
    ".png": (b"\x89PNG\r\n\x1a\n", 16, 4, "big"),
    ".gif": (b"GIF8", 6, 2, "little"),
}
ORIGIN = ("date", "device", "seeds", "commit", "versions")
"""What stands first in the small print; what a study adds comes after."""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The page of every `folder/*/result.json`, `out` or `folder/report.html`; results decide its bytes."""
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
    """The whole page, of results by the folder in which their figures lie."""
    source = files("trustgp_experiments.report") / "assets"
    style, script = (source.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    names = _ids(result.study for result in results.values())
    studies = [(name, folder, result) for name, (folder, result) in zip(names, results.items(), strict=True)]
    quick = "There are quick runs on this page.", "Their figures mean nothing."
    return Template(source.joinpath("page.html").read_text("utf-8")).substitute(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        contents=_shown(tag("ol", *(_entry(name, result) for name, _, result in studies))),
        warning=quick_warning(*quick, results.values()) or "",
        studies=_shown(join(*(study_html(result, folder, name) for name, folder, result in studies))),
    )


def _shown(html: Html) -> str:
    """The same with control characters and halves of characters, which results may hold, written out."""
    return printable(html, keep="\n\t", most=None)


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


def study_html(result: Result, folder: Path, name: str) -> Html:
    """Everything of a study but its `numbers`: its figures lie in the folder, `name` is its id."""
    lines = (tag("li", prose(finding)) for finding in result.findings)
    found = tag("section", tag("h3", "What was found"), tag("ul", *lines), class_="findings")
    paragraphs = (tag("p", prose(paragraph)) for paragraph in result.protocol)
    measured = tag("details", tag("summary", "How it was measured"), *paragraphs, class_="protocol")
    quick = "This is a quick run.", "Its figures mean nothing; it shows that the study works."
    command = tag("code", str(result.provenance.get("command")))
    copy = tag("button", "Copy", type="button", class_="copy", aria_label="Copy the command")
    return tag(
        "article",
        tag("p", result.study, class_="eyebrow"),
        tag("h2", result.title, id=f"{name}-title"),
        quick_warning(*quick, [result]),
        tag("div", command, copy, class_="command") if result.provenance.get("command") else None,
        found if result.findings else None,
        measured if result.protocol else None,
        *(table_html(table, f"{name}-table-{n}") for n, table in enumerate(result.tables, 1)),
        *(_figure(figure, folder, f"{name}-figure-{n}") for n, figure in enumerate(result.figures, 1)),
        _origin(result.provenance),
        id=name,
        aria_labelledby=f"{name}-title",
    )


def quick_warning(first: str, then: str, results: Iterable[Result]) -> Html | None:
    """A banner, its first words in bold, where a result was made with `--quick`; None where none was."""
    if not any(result.provenance.get("quick") for result in results):
        return None
    return tag("p", tag("strong", first), " ", then, class_="warning", role="note")


def _in_few_colours(content: bytes) -> bytes:
    """A PNG with a palette, where that is smaller, as of a chart: the page is to stay small."""
    if not content.startswith(PIXELS[".png"][0]):
        return content
    try:
        from PIL import Image, UnidentifiedImageError  # comes with matplotlib; a page can do without
    except ImportError:
        return content
    packed = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.convert("RGBA").quantize(256, method=Image.Quantize.FASTOCTREE).save(packed, "PNG")
    except (UnidentifiedImageError, OSError, SyntaxError):
        return content  # not whole: shown as it is
    return min(packed.getvalue(), content, key=len)


def _figure(figure: Figure, folder: Path, name: str) -> Html:
    """The picture inside the page, on a button that enlarges it; its words for those who cannot see it."""
    file = folder / figure.file
    kind = KINDS.get(file.suffix.lower())
    if kind is None:
        raise StudyError(f"figure {file}: only {' and '.join(KINDS)} can be shown.")
    if not file.is_file():
        raise StudyError(f"figure {file} is not there, but {folder / RESULT} names it; run the study again.")
    content = _in_few_colours(file.read_bytes())
    words = f"{figure.title}. {figure.caption}" if figure.caption else figure.title
    address = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    picture = tag("img", src=address, alt=words, **_size(file, content))
    enlarge = tag("button", picture, type="button", class_="enlarge", title="Enlarge")
    caption = tag("figcaption", tag("strong", figure.title), ". ", prose(figure.caption))
    return tag("figure", enlarge, caption, id=name)


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


def _origin(provenance: Mapping[str, Any]) -> Html | None:
    """Where the result comes from; the command stands above already."""
    keys = [*ORIGIN, *(key for key in provenance if key not in (*ORIGIN, "command", "quick"))]
    try:
        said = {key: _words(provenance.get(key)) for key in keys}
    except RecursionError as error:
        raise StudyError(
            "a result says where it comes from in lists within lists, too deep to show."
        ) from error
    lines = [
        tag("div", tag("dt", key.replace("_", " ").capitalize()), tag("dd", words))
        for key, words in said.items()
        if words
    ]
    return tag("dl", *lines, class_="origin") if lines else None


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

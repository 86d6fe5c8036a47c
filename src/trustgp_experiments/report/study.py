"""One study as HTML: findings, protocol, tables, figures, and in small print where it comes from."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.result import RESULT, Figure, Result, StudyError
from .html import Html, prose, tag
from .table import table_html

KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif"}
ORIGIN = ("date", "device", "seeds", "commit", "versions")
"""What stands first in the small print; what a study adds comes after."""


def study_html(result: Result, folder: Path, name: str) -> Html:
    """Everything of a study but its `numbers`.

    Args:
        result: Of the study.
        folder: Where its figures lie.
        name: Its id on the page.
    """
    tables = (table_html(table, f"{name}-table-{n}") for n, table in enumerate(result.tables, 1))
    figures = (_figure(figure, folder, f"{name}-figure-{n}") for n, figure in enumerate(result.figures, 1))
    return tag(
        "article",
        tag("p", result.study, class_="eyebrow"),
        tag("h2", result.title, id=f"{name}-title"),
        quick_warning(
            "This is a quick run.", "Its figures mean nothing; it shows that the study works.", [result]
        ),
        _command(result.provenance.get("command")),
        _findings(result.findings),
        _protocol(result.protocol),
        *tables,
        *figures,
        _origin(result.provenance),
        id=name,
        aria_labelledby=f"{name}-title",
    )


def quick_warning(first: str, then: str, results: Iterable[Result]) -> Html | None:
    """A banner, where a result was made with `--quick`; None where none was.

    Args:
        first: In bold.
        then: After it.
        results: To be looked at.
    """
    if not any(result.provenance.get("quick") for result in results):
        return None
    return tag("p", tag("strong", first), " ", then, class_="warning", role="note")


def _command(command: Any) -> Html | None:
    if not command:
        return None
    copy = tag("button", "Copy", type="button", class_="copy", aria_label="Copy the command")
    return tag("div", tag("code", str(command)), copy, class_="command")


def _findings(findings: Iterable[str]) -> Html | None:
    lines = [tag("li", prose(finding)) for finding in findings]
    if not lines:
        return None
    return tag("section", tag("h3", "What was found"), tag("ul", *lines), class_="findings")


def _protocol(protocol: Iterable[str]) -> Html | None:
    paragraphs = [tag("p", prose(paragraph)) for paragraph in protocol]
    if not paragraphs:
        return None
    return tag("details", tag("summary", "How it was measured"), *paragraphs, class_="protocol")


def _figure(figure: Figure, folder: Path, name: str) -> Html:
    """The picture inside the page, on a button that enlarges it; its words for those who cannot see it."""
    file = folder / figure.file
    kind = KINDS.get(file.suffix.lower())
    if kind is None:
        raise StudyError(f"figure {file}: only {' and '.join(KINDS)} can be shown.")
    if not file.is_file():
        raise StudyError(f"figure {file} is not there, but {folder / RESULT} names it; run the study again.")
    content = file.read_bytes()
    words = f"{figure.title}. {figure.caption}" if figure.caption else figure.title
    address = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    picture = tag("img", src=address, alt=words, **_size(file, content))
    enlarge = tag("button", picture, type="button", class_="enlarge", title="Enlarge")
    caption = tag("figcaption", tag("strong", figure.title), ". ", prose(figure.caption))
    return tag("figure", enlarge, caption, id=name)


def _size(file: Path, content: bytes) -> dict[str, int]:
    """Pixels of a PNG or GIF, so that nothing moves while the page is drawn."""
    if file.suffix.lower() == ".gif":
        if content[:4] != b"GIF8" or len(content) < 10:
            raise StudyError(f"figure {file} is not a GIF, or a damaged one; run the study again.")
        return {
            "width": int.from_bytes(content[6:8], "little"),
            "height": int.from_bytes(content[8:10], "little"),
        }
    if file.suffix.lower() != ".png":
        return {}
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        raise StudyError(f"figure {file} is not a PNG, or a damaged one; run the study again.")
    return {"width": int.from_bytes(content[16:20], "big"), "height": int.from_bytes(content[20:24], "big")}


def _origin(provenance: Mapping[str, Any]) -> Html | None:
    """Where the result comes from; the command stands above already."""
    keys = [*ORIGIN, *(key for key in provenance if key not in (*ORIGIN, "command", "quick"))]
    shown = {key: words for key in keys if (words := _words(provenance.get(key)))}
    lines = (
        tag("div", tag("dt", key.replace("_", " ").capitalize()), tag("dd", words))
        for key, words in shown.items()
    )
    return tag("dl", *lines, class_="origin") if shown else None


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

"""Blocks on a page that code writes, and figures outside of them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .stored import NotRun, Stored

Block = Callable[[Stored], str]

BLOCK = re.compile(r"(<!-- from: (?P<name>[^>]*?) -->)\n(?P<text>.*?)(?P<end><!-- /from -->)", re.DOTALL)
CODE = re.compile(r"^( *)(```|~~~).*?^ *\2 *$", re.DOTALL | re.MULTILINE)
# What cannot be a measured statement: code in a line, where a link leads, a comment, a footnote's number.
SILENT = re.compile(r"`[^`\n]+`|\]\([^)\n]*\)|<!--.*?-->|<[^>\n]+>", re.DOTALL)
COUNT = r"(?:\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|hundred|thousand)"
UNIT = r"(?:s|ms|µs|us|seconds?|milliseconds?|minutes?|hours?|[kKMGT]i?B|bytes|nats?|Hz|FPS)"
FIGURE = re.compile(
    rf"\d*\.\d+|\d ?%|\d+e-?\d+|±|\b\d[\d,]* of (?:the )?\d|\b{COUNT} times\b|\b{COUNT} {UNIT}\b"
    r"|\bhalf an? (?:second|minute|hour)\b",
    re.IGNORECASE,
)


def rewritten(page: str, blocks: Mapping[str, Block], stored: Stored) -> str:
    """The page with every block written from the results.

    Raises:
        KeyError: A block whose name is unknown.
    """

    def made(match: re.Match) -> str:
        name = match["name"]
        if name not in blocks:
            raise KeyError(f"block {name!r} is unknown; there are {', '.join(sorted(blocks))}.")
        return f"{match[1]}\n{text_of(blocks[name], stored)}\n{match['end']}"

    opened, closed = page.count("<!-- from:"), page.count("<!-- /from -->")
    if not opened == closed == len(BLOCK.findall(page)):
        raise ValueError(f"{opened} blocks begin and {closed} end; they cannot be nested.")
    return BLOCK.sub(made, page)


def text_of(block: Block, stored: Stored) -> str:
    """The text of a block, or that its study was not run."""
    try:
        return block(stored).strip()
    except NotRun as missing:
        return f"*The {missing} is yet to be run.*"


def loose(page: str, allowed: Iterable[str]) -> Iterator[str]:
    """Figures outside blocks and code, with line and text; those within the allowed texts do not count."""
    bare = _blank(_blank(page, BLOCK), CODE)
    for text in allowed:
        bare = bare.replace(text, " " * len(text))
    bare = _blank(bare, SILENT)
    lines = page.splitlines()
    for match in FIGURE.finditer(bare):
        line = bare.count("\n", 0, match.start())
        yield f"line {line + 1}: {match[0]!r} in {lines[line].strip()!r}"


def _blank(text: str, pattern: re.Pattern) -> str:
    """Without what matches; lines stay where they are."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def pages(root: Path) -> list[Path]:
    """The README, and the pages of the documentation."""
    folders = (root / "docs", root / "experiments" / "docs")
    return [root / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]

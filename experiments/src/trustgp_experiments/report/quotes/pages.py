"""Blocks on a page that code writes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from .stored import NotRun, Stored

Block = Callable[[Stored], str]

BLOCK = re.compile(r"(<!-- from: (?P<name>[^>]*?) -->)\n(?P<text>.*?)(?P<end><!-- /from -->)", re.DOTALL)


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
    """Text of a block, or a note that its study was not run."""
    try:
        return block(stored).strip()
    except NotRun as missing:
        return f"*The {missing} is yet to be run.*"


def pages(root: Path) -> list[Path]:
    """The README, and the pages of the documentation."""
    folders = (root / "docs", root / "experiments" / "docs")
    return [root / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]

"""`python -m trustgp_experiments.report.quotes [--write]`: which pages differ from the results."""

import argparse
from pathlib import Path

from .blocks import BLOCKS
from .pages import pages, rewritten
from .stored import Stored


def main() -> int:
    """Exit status: 1 if a page differs and was not written, else 0."""
    parser = argparse.ArgumentParser(description="Measured statements on the pages, from stored results.")
    parser.add_argument("--write", action="store_true", help="rewrite the pages; else print which differ")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="of the checkout")
    asked = parser.parse_args()
    stored, changed = Stored(asked.root / "experiments"), []
    for page in pages(asked.root):
        text = page.read_text(encoding="utf-8")
        made = rewritten(text, BLOCKS, stored)
        if made != text:
            changed.append(page)
            if asked.write:
                page.write_text(made, encoding="utf-8")
    for page in changed:
        print(page.relative_to(asked.root), "written" if asked.write else "differs: run with --write")
    return int(bool(changed) and not asked.write)


if __name__ == "__main__":
    raise SystemExit(main())

"""Stored results as the blocks of a page read them, and the words and tables that are made from them."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from textwrap import fill
from typing import Any

from ...core.result import RESULT, read_result
from ...core.storage import read_numbers

_fill = partial(fill, width=150, break_long_words=False, break_on_hyphens=False)


class NotRun(LookupError):
    """A study or benchmark without a stored result; its block has a note that it is yet to be run."""


@dataclass(frozen=True)
class Stored:
    """The results below a folder: `results/STUDY/result.json`, with numbers beside it, and
    `results/benchmarks/*.json`."""

    root: Path

    def study(self, name: str) -> dict[str, Any]:
        return _read(self.root / "results" / name / RESULT, f"study `{name}`")

    def numbers(self, name: str) -> Any:
        return self.study(name).get("numbers") or _numbers(self.root / "results" / name)

    def tables(self, name: str) -> list[dict[str, Any]]:
        """Tables as the study makes them from its numbers today."""
        result = self.study(name)
        if not result.get("rebuilds"):
            return result["tables"]
        return [asdict(one) for one in _rebuilt(self.root / "results" / name / RESULT).tables]

    def seeds(self, name: str) -> str:
        origin = self.study(name)["provenance"]
        return f"{len(origin['seeds'])} seeds, run on {origin['date']}"

    def benchmark(self, name: str) -> Any:
        return _read(self.root / "results" / "benchmarks" / f"{name}.json", f"benchmark `{name}`")


_numbers, _rebuilt = cache(read_numbers), cache(read_result)


@cache
def _read(file: Path, what: str) -> Any:
    if not file.exists():
        raise NotRun(what)
    return json.loads(file.read_text())


def number(value: float | None, digits: int = 2) -> str:
    """Number as text for a table: empty for a gap, "infinite" for infinity."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.{digits}f}" if math.isfinite(value) else "infinite" if value > 0 else "-infinite"


def short(value: float | None) -> str:
    """Number as text with at least three significant digits, for costs and sizes."""
    if value is None:
        return ""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value or 100))))}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one, in percent."""
    return "" if share is None else f"{number(100 * share, digits)} %"


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def bullets(sentences: Iterable[str]) -> str:
    """List in Markdown, with lines short enough for an editor."""
    return "\n".join(_fill(text, initial_indent="* ", subsequent_indent="  ") for text in sentences)


def words(text: str, *, indent: int = 0) -> str:
    """Paragraph with lines short enough for an editor; `indent` is that of all lines but the first."""
    return _fill(text, subsequent_indent=" " * indent)


def listed(names: Sequence[str]) -> str:
    """Names as text: "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

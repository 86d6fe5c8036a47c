"""Stored results as the blocks of a page read them, and the words and tables that are made from them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

WIDTH = 150  # letters of a line of prose


class NotRun(LookupError):
    """A study or benchmark without a stored result; a block then says that it is yet to be run."""


@dataclass(frozen=True)
class Stored:
    """The results below a folder: `results/STUDY/result.json`, `results/benchmarks/*.json`."""

    root: Path

    def study(self, name: str) -> dict[str, Any]:
        """What a study stored."""
        return self._read(self.root / "results" / name / "result.json", f"study `{name}`")

    def numbers(self, name: str) -> Any:
        """The numbers of a study, of which everything else is made."""
        return self.study(name)["numbers"]

    def benchmark(self, name: str) -> Any:
        """The figures in `results/benchmarks/NAME.json`."""
        return self._read(self.root / "results" / "benchmarks" / f"{name}.json", f"benchmark `{name}`")

    def _read(self, file: Path, what: str) -> Any:
        if file not in self._files:
            if not file.exists():
                raise NotRun(what)
            self._files[file] = json.loads(file.read_text())
        return self._files[file]

    @cached_property
    def _files(self) -> dict[Path, Any]:
        return {}


# --- text --------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 2) -> str:
    """A number of a table, nothing for a gap; what is infinite is said to be so."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.{digits}f}" if math.isfinite(value) else "infinite" if value > 0 else "-infinite"


def short(value: float | None) -> str:
    """To three digits, however large or small: costs and sizes."""
    if value is None:
        return ""
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one, in percent."""
    return "" if share is None else f"{number(100 * share, digits)} %"


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def bullets(sentences: Iterable[str]) -> str:
    """A list, in lines that can be read in an editor."""
    return "\n".join(
        fill(
            text,
            WIDTH,
            initial_indent="* ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for text in sentences
    )


def words(text: str) -> str:
    """A paragraph in such lines."""
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- numbers -----------------------------------------------------------------------------------


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of what is there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def seeds_of(result: Mapping[str, Any]) -> str:
    """How many seeds a study ran, in words."""
    count = len(result["provenance"]["seeds"])
    return f"{count} seed{'' if count == 1 else 's'}"

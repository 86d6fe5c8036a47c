"""Numbers of several seeds as a cell, and as words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev


def mean_spread(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation over seeds, as a table's cell."""
    return [fmean(values), pstdev(values)]


def words(cell: Sequence[float], digits: int = 2) -> str:
    """Mean and spread as text: "1.22 ± 0.05"."""
    return " ± ".join(f"{value:.{digits}f}" for value in cell)


def change(before: Sequence[float], after: Sequence[float], digits: int = 2) -> str:
    """From the numbers of some seeds to those of another setting on the same seeds, in words."""
    pairs = list(zip(before, after, strict=True))
    verb = f"falls in {sum(b < a for a, b in pairs)} of {len(pairs)} seeds"
    if all(b < a for a, b in pairs):
        verb = "falls in every seed"
    elif all(b > a for a, b in pairs):
        verb = "grows in every seed"
    return f"{verb}, from {words(mean_spread(before), digits)} to {words(mean_spread(after), digits)}"

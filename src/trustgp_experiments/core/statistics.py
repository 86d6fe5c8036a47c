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
    """From the numbers of some seeds to those of another setting on the same seeds, in words.

    Args:
        before, after: One number a seed each, in the same order.
        digits: Of the numbers in the text.
    """
    fell = sum(b < a for a, b in zip(before, after, strict=True))
    grew = sum(b > a for a, b in zip(before, after, strict=True))
    seeds = len(before)
    if fell == seeds:
        verb = "falls in every seed"
    else:
        verb = "grows in every seed" if grew == seeds else f"falls in {fell} of {seeds} seeds"
    return f"{verb}, from {words(mean_spread(before), digits)} to {words(mean_spread(after), digits)}"

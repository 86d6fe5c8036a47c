"""The tables of the classification study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.cases import IN_DOMAIN, METHOD, NETWORKS, TESTED, read_tests
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table
from .rows import NAMES, foreign_to, shifts_of
from .scores import SCORES

AXES = ("trained", "tested", "method")
WORDS = {"entropy": "entropy", "variance": "logit variance", "information": "mutual information"}
NLL = Measure("nll", Column("NLL", digits=4, better="low"))
RIGHT = (
    NLL,
    Measure("ece", Column("ECE", digits=2, better="low", unit="%"), factor=100.0),
    Measure("accuracy", Column("accuracy", digits=2, better="high", unit="%"), factor=100.0),
    Measure("brier", Column("Brier", digits=4, better="low")),
    Measure("aurc", Column("AURC", digits=4, better="low")),
)
APART = tuple(
    Measure(f"{key}_{score}", Column(f"{name} by {WORDS[score]}", digits=4, better=better))
    for key, name, better in (("auroc", "AUROC", "high"), ("fpr95", "FPR95", "low"))
    for score in SCORES
)


def collect(parts: Mapping[Place, Any]) -> Grid:
    """By what trained, what was tested and method, from what was scored for each seed.

    Args:
        parts: By (trained on,): for each seed, "methods" holds what `score_method` gave, by method.
    """
    return Grid.of(AXES, parts, read_tests)


def class_tables(grid: Grid, *more: Table) -> list[Table]:
    """In domain, foreign images, distorted images, what is given more, then everything."""
    trained = grid.along("trained")
    shifted = [name for name in trained if shifts_of(grid.along("tested", trained=name))]
    headline = [*map(_in_domain, trained), *map(_foreign, trained), *(_distorted(grid, t) for t in shifted)]
    every = []
    for name in shifted:
        every.append(_every(name, RIGHT, "Probabilities on every labelled set of images"))
        every.append(_every(name, APART, "Every set of images told from familiar ones"))
    return [*(pivot.table(grid) for pivot in headline), *more, *(pivot.table(grid) for pivot in every)]


def _in_domain(trained: str) -> Pivot:
    title = f"{NAMES[trained]}: test images like those that trained"
    return Pivot(title, METHOD, [NETWORKS, *RIGHT], {"trained": trained, "tested": IN_DOMAIN})


def _foreign(trained: str) -> Pivot:
    other = foreign_to(trained)
    title = f"Trained on {NAMES[trained]}: is {NAMES[other]} told from it?"
    note = "A gap: the method has no such score. The variance of trustgp is its latent variance."
    return Pivot(title, METHOD, APART, {"trained": trained, "tested": other}, note=note)


def _distorted(grid: Grid, trained: str) -> Pivot:
    shifts = shifts_of(grid.along("tested", trained=trained))
    measures = [NLL.at(name, digits=3, tested=name) for name in shifts]
    note = "Rotated by so many degrees; with Gaussian noise of so much std in every pixel from 0 to 1."
    return Pivot(f"NLL on distorted {NAMES[trained]}", METHOD, measures, {"trained": trained}, note=note)


def _every(trained: str, measures: Sequence[Measure], title: str) -> Pivot:
    """All test sets that have these measures."""
    title = f"{title}, trained on {NAMES[trained]}"
    return Pivot(title, TESTED, measures, {"trained": trained}, names=NAMES, block="tested on")

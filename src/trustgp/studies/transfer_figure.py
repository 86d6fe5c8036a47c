"""The figures of the transfer study: a dot for each method, a panel for each training."""

from __future__ import annotations

from pathlib import Path
from statistics import median, pstdev
from typing import Any

from .. import plots
from ..plots import BLUE, GREY, INK
from .transfer_rows import IN_DOMAIN
from .transfer_tables import Cells, average, methods_of, tests_of, trainings_of

OFFSET = 3.0  # added to NLL before its logarithm is drawn
FAR = 10.0  # times from the best to the median, beyond it: so far out, a number takes the place of the dot


def draw_in_domain(cells: Cells, path: Path) -> None:
    """NLL on the arm that trained, by method.

    Args:
        cells: Of the study.
        path: The picture to write.
    """
    trainings = trainings_of(cells)
    arms = list(dict.fromkeys(trained for trained, _ in trainings))
    splits = list(dict.fromkeys(split for _, split in trainings))
    methods = methods_of(cells)
    width, height = 2.9 * len(arms) + 1.4, 0.26 * len(methods) * len(splits) + 1.0
    with plots.figure(path, width=width, height=height) as figure:
        grid = figure.subplots(len(splits), len(arms), squeeze=False, sharey=True)
        for row, split in enumerate(splits):
            for column, arm in enumerate(arms):
                _dots(grid[row][column], cells, (arm, split, IN_DOMAIN))
                grid[row][column].set_title(f"{arm}, {split}")
                if row == len(splits) - 1:
                    grid[row][column].set_xlabel("NLL per torque")


def draw_zero_shot(cells: Cells, path: Path) -> None:
    """NLL on the other arms, by method, of the networks trained with the random split.

    Args:
        cells: Of the study.
        path: The picture to write.
    """
    arms = [trained for trained, split in trainings_of(cells) if split == "random"]
    methods = methods_of(cells)
    width, height = 2.9 * len(arms) + 1.4, 0.3 * len(methods) + 1.2
    with plots.figure(path, width=width, height=height) as figure:
        grid = figure.subplots(1, len(arms), squeeze=False, sharey=True)[0]
        for axes, arm in zip(grid, arms, strict=True):
            tests = [test for test in tests_of(cells, arm, "random") if test != IN_DOMAIN]
            for test, colour in zip(tests, plots.PALETTE, strict=False):
                values = [average(cells[arm, "random", test, method]["nll"]) + OFFSET for method in methods]
                axes.scatter(values, range(len(methods)), s=20, color=colour, label=test, zorder=3)
            axes.set_xscale("log")
            axes.set_title(f"trained on {arm}")
            axes.set_xlabel(f"NLL per torque + {OFFSET:g}")
            _name_rows(axes, methods)
            axes.legend(fontsize=7, loc="lower right")


def _dots(axes: Any, cells: Cells, at: tuple[str, str, str]) -> None:
    methods = methods_of(cells)
    known = [m for m in methods if not any(isinstance(value, str) for value in cells[*at, m]["nll"])]
    values = {method: average(cells[*at, method]["nll"]) for method in known}  # others cost infinitely much
    middle = median(values.values())
    farthest = middle + FAR * (middle - min(values.values()))
    for place, method in enumerate(methods):
        if method not in values:
            continue  # the table says so
        cell, value = cells[*at, method], values[method]
        if value > farthest:
            where = axes.get_yaxis_transform()  # across in parts of the panel, down in methods
            axes.text(0.99, place, f"{value:.3g} →", transform=where, ha="right", va="center", fontsize=8)
            continue
        colour = BLUE if method.startswith("trustgp") else GREY
        face = colour if cell["training_free"] else "white"
        axes.errorbar(
            value,
            place,
            xerr=pstdev(cell["nll"]),
            fmt="o",
            markersize=5,
            color=colour,
            markerfacecolor=face,
            zorder=3,
        )
    axes.axvline(values["trustgp"], color=BLUE, linewidth=0.7, alpha=0.6)
    _name_rows(axes, methods)


def _name_rows(axes: Any, methods: list[str]) -> None:
    axes.set_yticks(range(len(methods)), methods, color=INK)
    axes.set_ylim(len(methods) - 0.5, -0.5)

"""The figures of the transfer study: a dot for each method, a panel for each training."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from trustgp import plots
from trustgp.plots import BLUE, GREY, INK

from ...core.cases import IN_DOMAIN
from ...core.grid import Grid, Place, is_infinite
from .scores import others

OFFSET = 3.0  # added to NLL before its logarithm is drawn
FAR = 10.0  # times from the best to the median, beyond it: so far out, a number takes the place of the dot


def draw_in_domain(grid: Grid, path: Path) -> None:
    """NLL on the arm that trained, by method.

    Args:
        grid: Of the study.
        path: The picture to write.
    """
    arms, splits, methods = (grid.along(axis) for axis in ("trained", "split", "method"))
    width, height = 2.9 * len(arms) + 1.4, 0.26 * len(methods) * len(splits) + 1.0
    with plots.figure(path, width=width, height=height) as figure:
        panels = figure.subplots(len(splits), len(arms), squeeze=False, sharey=True)
        for row, split in zip(panels, splits, strict=True):
            for axes, arm in zip(row, arms, strict=True):
                _dots(axes, grid, (arm, split, IN_DOMAIN))
                axes.set_title(f"{arm}, {split}")
        for axes in panels[-1]:
            axes.set_xlabel("NLL per torque")


def draw_zero_shot(grid: Grid, path: Path) -> None:
    """NLL on the other arms, by method, of the networks trained with the random split.

    Args:
        grid: Of the study.
        path: The picture to write.
    """
    arms, methods = grid.along("trained", split="random"), grid.along("method")
    width, height = 2.9 * len(arms) + 1.4, 0.3 * len(methods) + 1.2
    with plots.figure(path, width=width, height=height) as figure:
        panels = figure.subplots(1, len(arms), squeeze=False, sharey=True)[0]
        for axes, arm in zip(panels, arms, strict=True):
            for test, colour in zip(others(grid, arm, "random"), plots.PALETTE, strict=False):
                values = [grid.mean((arm, "random", test, method), "nll") + OFFSET for method in methods]
                axes.scatter(values, range(len(methods)), s=20, color=colour, label=test, zorder=3)
            axes.set_xscale("log")
            axes.set_title(f"trained on {arm}")
            axes.set_xlabel(f"NLL per torque + {OFFSET:g}")
            name_rows(axes, methods)
            axes.legend(fontsize=7, loc="lower right")


def known_nll(grid: Grid, at: Place) -> dict[str, Any]:
    """By method, its NLL for each seed; those that cost infinitely much are left to the table."""
    found = {method: grid.values((*at, method), "nll") for method in grid.along("method")}
    return {method: values for method, values in found.items() if values and not is_infinite(values)}


def _dots(axes: Any, grid: Grid, at: Place) -> None:
    methods, known = grid.along("method"), known_nll(grid, at)
    means = {method: fmean(values) for method, values in known.items()}
    middle = median(means.values())
    farthest = middle + FAR * (middle - min(means.values()))
    for method, value in means.items():
        place = methods.index(method)
        if value > farthest:
            where = axes.get_yaxis_transform()  # across in parts of the panel, down in methods
            axes.text(0.99, place, f"{value:.3g} →", transform=where, ha="right", va="center", fontsize=8)
            continue
        colour = BLUE if method.startswith("trustgp") else GREY
        filled = grid.cells[*at, method]["training_free"][0]
        style = {"color": colour, "markerfacecolor": colour if filled else "white"}
        axes.errorbar(value, place, xerr=pstdev(known[method]), fmt="o", markersize=5, zorder=3, **style)
    axes.axvline(means["trustgp"], color=BLUE, linewidth=0.7, alpha=0.6)
    name_rows(axes, methods)


def name_rows(axes: Any, methods: list[str]) -> None:
    """Names the methods on the vertical axis, the first above."""
    axes.set_yticks(range(len(methods)), methods, color=INK)
    axes.set_ylim(len(methods) - 0.5, -0.5)

"""The figure of the toy study: two bands, the experts below them, and the standard deviations."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from trustgp import plots

TITLES = {
    "independent": "Independent experts: the band steps at their borders",
    "patchwork": "Patchwork: neighbours lend each other their rows",
}
COLOURS = {
    "independent": plots.ORANGE,
    "patchwork": plots.BLUE,
    "default": plots.GREEN,
    "witness": plots.RED,
}
LABELS = {
    "independent": "independent",
    "patchwork": "patchwork",
    "default": "4 x 10 %",
    "witness": "4 x 10 %, witness",
}
LIMIT = 4.6
TICKS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def draw_toy(drawn: dict[str, Any], gap: tuple[float, float], path: Path) -> None:
    """Bands without and with patchwork, one above the other, and the deviations of all variants.

    Args:
        drawn: grid, bands (mean and std by variant), borders, x and y, as plain lists.
        gap: The interval without rows.
        path: Of the picture.
    """
    with plots.figure(path, width=8.0, height=8.4, dpi=110) as figure:
        *upper, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
        for axes, name in zip(upper, TITLES, strict=True):
            _draw_band(axes, drawn, name)
        upper[0].legend(loc="upper right", fontsize=8)
        _draw_deviations(lower, drawn, gap)


def _draw_band(axes: Any, drawn: dict[str, Any], name: str) -> None:
    grid, band = torch.tensor(drawn["grid"]), drawn["bands"][name]
    mean, std = torch.tensor(band["mean"]), torch.tensor(band["std"])
    for sigma in (3, 2, 1):
        labels = {"label": "one, two, three sigma", "line": "network"} if sigma == 3 else {}
        plots.draw_band(axes, grid, mean, sigma * std, **labels)
    axes.scatter(drawn["x"], drawn["y"], s=9, color=plots.INK, linewidths=0, zorder=3, label="rows")
    _draw_experts(axes, drawn)
    axes.set_title(TITLES[name])
    axes.set_ylabel("y")
    axes.set_ylim(-LIMIT, LIMIT)


def _draw_experts(axes: Any, drawn: dict[str, Any]) -> None:
    """A strip of colours at the bottom, and dotted lines where one expert hands over to the next."""
    edges = [drawn["grid"][0], *drawn["borders"], drawn["grid"][-1]]
    for number, (start, stop) in enumerate(pairwise(edges)):
        colour = plots.PALETTE[number % len(plots.PALETTE)]
        axes.axvspan(start, stop, ymax=0.035, color=colour, alpha=0.9, linewidth=0)
    for border in drawn["borders"]:
        axes.axvline(border, color=plots.GREY, linewidth=0.8, linestyle=(0, (2, 2)))


def _draw_deviations(axes: Any, drawn: dict[str, Any], gap: tuple[float, float]) -> None:
    for name, band in drawn["bands"].items():
        axes.plot(drawn["grid"], band["std"], color=COLOURS[name], linewidth=1.5, label=LABELS[name])
    axes.axvspan(*gap, color=plots.GREY, alpha=0.12, linewidth=0)
    axes.text(
        sum(gap) / 2, 0.03, "no rows", ha="center", color=plots.GREY, transform=axes.get_xaxis_transform()
    )
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_title("Standard deviation")
    axes.set_ylabel("std of y")
    axes.set_xlabel("x")
    axes.set_xlim(drawn["grid"][0], drawn["grid"][-1])
    axes.legend(loc="upper center", ncols=4, fontsize=8)

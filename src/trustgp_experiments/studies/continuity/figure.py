"""The figure of the continuity study: lines through the experts, and how large all jumps are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trustgp import plots

COLOURS = {
    "independent": plots.ORANGE,
    "patchwork": plots.BLUE,
    "large": plots.GREEN,
    "default": plots.RED,
}


def draw_continuity(
    lines: Sequence[Mapping[str, Any]],
    shares: Mapping[str, Sequence[Sequence[float]]],
    names: Mapping[str, str],
    path: Path,
) -> None:
    """The error bar along lines, and the distribution of all jumps.

    Args:
        lines: Place, std by variant, and borders of each line, as plain lists.
        shares: By variant, for each seed, the jumps at evenly spaced ranks.
        names: Of the variants.
        path: Of the picture.
    """
    with plots.figure(path, width=9.0, height=5.6, dpi=110) as figure:
        left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
        panels = left.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0]
        for axes, line in zip(panels, lines, strict=True):
            _draw_line(axes, line)
        panels[0].set_title("Std of the first torque along a line")
        panels[-1].set_xlabel("from one test row (0) to another (1)")
        _draw_shares(right.subplots(), shares, names)


def _draw_line(axes: Any, line: Mapping[str, Any]) -> None:
    for border in line["borders"]:
        axes.axvline(border, color=plots.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    for name, deviations in line["std"].items():
        axes.plot(line["place"], deviations, color=COLOURS[name], linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1)
    axes.set_ylabel("std")


def _draw_shares(
    axes: Any, shares: Mapping[str, Sequence[Sequence[float]]], names: Mapping[str, str]
) -> None:
    for name, seeds in shares.items():
        for number, jumps in enumerate(seeds):
            rank = 100 * np.linspace(0, 1, len(jumps))
            label = names[name] if number == 0 else None
            axes.plot(jumps, rank, color=COLOURS[name], linewidth=1.2, alpha=0.85, label=label)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    top = max(jumps[-1] for seeds in shares.values() for jumps in seeds)
    ticks = [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50) if tick <= max(top, 1.5)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_title("All borders, all torques")
    axes.set_xlabel("jump of the std, as a factor")
    axes.set_ylabel("share of jumps no larger, %")
    axes.legend(loc="lower right", fontsize=8)

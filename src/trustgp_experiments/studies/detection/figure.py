"""The figures of the detection study: histograms in and out, and the bars of run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustgp import plots

from .scores import OURS


def draw_histograms(told: Mapping[str, Any], test: str, path: Path) -> None:
    """Scores of familiar and of foreign detections, by method: the entropy, and below the latent variance.

    Args:
        told: By method and test set.
        test: Which is foreign.
        path: The picture to write.
    """
    methods = list(told)
    with plots.figure(path, width=2.0 * len(methods) + 0.8, height=4.6) as figure:
        grid = figure.subplots(2, len(methods), squeeze=False)
        for row, score in zip(grid, ("entropy", "latent variance"), strict=True):
            for axes, method in zip(row, methods, strict=True):
                if score not in told[method][test]:
                    axes.set_axis_off()
                    continue
                numbers = told[method][test][score]
                bars = numbers["bars"]
                for side, colour, name in (("in", plots.BLUE, "familiar"), ("out", plots.ORANGE, test)):
                    axes.stairs(bars[side], bars["edges"], fill=True, alpha=0.6, color=colour, label=name)
                axes.set_title(f"{method}\nAUROC {numbers['auroc']:.3f}", fontsize=8)
                axes.set_yticks([])
                axes.tick_params(labelsize=6)
            row[0].set_ylabel("share of detections")
        for axes in (axes for row in grid for axes in row if axes.axison):
            axes.set_xlabel("entropy, nats" if axes in grid[0] else "latent variance", fontsize=7)
        grid[0][0].legend(fontsize=7)


def draw_times(times: Mapping[str, Any], path: Path) -> None:
    """Bars: how many times the detector a call takes, as `time_calls` found it."""
    names = sorted(times, key=lambda name: times[name]["over"])
    with plots.figure(path, width=6.4, height=0.45 * len(names) + 1.0) as figure:
        axes = figure.subplots()
        values = [times[name]["over"] for name in names]
        colours = [plots.BLUE if OURS in name else plots.ORANGE for name in names]
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("times the detector alone, one picture, one thread")
        axes.margins(x=0.12)

"""The figure of the scale study: time and memory of each stage against the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trustgp import plots

from ...core.grid import Grid
from .tables import stages_of


def draw_scale(grid: Grid, place: str, path: Path) -> None:
    """Two panels on logarithmic axes; `place`, whose memory is drawn, is "cpu" or "cuda"."""
    stages = stages_of(grid)
    with plots.figure(path, width=11.0, height=4.0, dpi=110) as figure:
        left, right = figure.subplots(1, 2)
        _panel(left, grid, {stage: f"time of {stage}" for stage in stages} | {"all stages": "seconds"})
        left.set(title="time", ylabel="seconds")
        _panel(right, grid, {stage: f"peak of {stage}, {place}" for stage in stages} | {"the model": "model"})
        right.set(title=f"memory at the peak, {'GPU' if place == 'cuda' else 'CPU'}", ylabel="MB")
        left.legend(handles=left.lines[-2:], loc="upper left", fontsize=8)  # the rest are those of the right
        right.legend(handles=right.lines[:-1], loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _panel(axes: Any, grid: Grid, measures: dict[str, str]) -> None:
    """A curve for each measure by its name, the last one of the whole, and what would be in step with it."""
    rows = grid.along("rows")
    curves = {name: [grid.mean((n,), key) for n in rows] for name, key in measures.items()}
    whole, values = curves.popitem()
    for (name, curve), colour in zip(curves.items(), plots.PALETTE, strict=False):
        drawn = [value if value > 0 else float("nan") for value in curve]  # no place on such an axis
        axes.plot(rows, drawn, color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.plot(rows, values, color=plots.INK, marker="o", markersize=3.5, linewidth=1.8, label=whole)
    guide = [values[0] * n / rows[0] for n in rows]
    axes.plot(rows, guide, color=plots.GREY, linestyle="--", linewidth=1.0, label="in step with the rows")
    axes.set(xscale="log", yscale="log", xlabel="rows")
